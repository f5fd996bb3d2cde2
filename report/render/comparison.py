"""Two campaigns side by side, as one page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relation.store.parquet import read_origin, read_parquet
from report.judge.frames import COMPARED_CELLS, COMPARED_CLAIMS
from report.render.environment import html_environment
from report.render.printed import MISSING
from report.render.site import write_assets
from report.values.layout import Table
from report.values.tables import TABLES

Row = Mapping[str, Any]
SIDES = ("first", "second")


@dataclass(frozen=True)
class ComparedTable:
    """The cells of one table that either campaign has: labels, column, and the compared row."""

    table: Table
    rows: Sequence[tuple[str, str, Row]]

    @property
    def both(self) -> int:
        return sum(row["difference"] is not None for _, _, row in self.rows)

    @property
    def apart(self) -> int:
        return sum(row["intervals_meet"] is False for _, _, row in self.rows)

    @property
    def verdicts(self) -> int:
        return sum(row["first_verdict"] != row["second_verdict"] for _, _, row in self.rows)


def render_comparison(folder: Path) -> Path:
    """Write index.html beside a comparison's cells.parquet and claims.parquet; its path.

    Raises InputError for a missing or damaged file.
    """
    origin = read_origin(folder / "cells.parquet")
    cells = read_parquet(folder / "cells.parquet", COMPARED_CELLS).to_pylist()
    claims = read_parquet(folder / "claims.parquet", COMPARED_CLAIMS).to_pylist()
    environment = html_environment()
    write_assets(folder, environment)
    text = environment.get_template("comparison.html.j2").render(
        page={"campaign": " · ".join(origin[side]["name"] for side in SIDES)},
        sections=(("index.html", "Comparison"),),
        here="index.html",
        up="",
        records={},
        sides=[origin[side] for side in SIDES],
        claims=claims,
        compared=compared_tables(cells),
        shown=shown,
    )
    path = folder / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


def compared_tables(cells: Iterable[Row]) -> list[ComparedTable]:
    """The cells by table, each under the labels of its row and column; intervals left out."""
    by_table: dict[str, list[Row]] = {}
    for cell in cells:
        if cell["statistic"] in ("value", "mean"):
            by_table.setdefault(cell["table"], []).append(cell)
    return [
        ComparedTable(table, _labelled(table, by_table.get(table.label, ()))) for table in TABLES
    ]


def _labelled(table: Table, cells: Iterable[Row]) -> list[tuple[str, str, Row]]:
    panels = table.panels
    rows = {row.key: row for row in (*table.rows, *(r for panel in panels for r in panel.rows))}
    headers = {
        part.column: " ".join((column.header, *_side(part.column, column.parts))).replace("\n", " ")
        for panel in panels
        for column in panel.columns
        for part in column.parts
    }
    return [
        (
            ", ".join(rows[cell["row"]].labels) if cell["row"] in rows else cell["row"],
            headers.get(cell["column"], cell["column"]),
            cell,
        )
        for cell in cells
    ]


def _side(column: str, parts: Sequence[Any]) -> list[str]:
    """Which of a column's several values a part is."""
    names = {"mha": "(MHA)", "full": "(Relation)"}
    return [names.get(column.rpartition(".")[2], f"({column})")] if len(parts) > 1 else []


def shown(row: Row, side: str, figure: Any) -> str:
    """One campaign's value with its spread, or why it has none."""
    status = row[f"{side}_status"]
    if status is None:
        return figure(None)
    if status != "ok":
        return MISSING[status]
    value = row[f"{side}_value"]
    if value is None:
        return row[f"{side}_text"] or figure(None)
    spread = row[f"{side}_spread"]
    return figure(value) + (f" ± {figure(spread)}" if spread is not None else "")
