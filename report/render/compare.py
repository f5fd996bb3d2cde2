"""The command `compare`: two campaigns' reports side by side, and their page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from relation.errors import InputError
from relation.pipeline.config import load_config
from relation.pipeline.origin import stamp
from relation.pipeline.results import CHECKSUMS, REPORT, SO_FAR
from relation.spec import canonical_hash
from relation.store.parquet import read_origin, read_parquet, write_parquet
from relation.store.stamp import origin
from report.judge.frames import (
    CELL_KEY,
    CELLS,
    CLAIMS,
    COMPARED_CELL,
    COMPARED_CELLS,
    COMPARED_CLAIM,
    COMPARED_CLAIMS,
)
from report.render.environment import html_environment
from report.render.printed import MISSING
from report.render.site import write_assets
from report.render.templating import grouped
from report.values.layout import Table
from report.values.tables import TABLES

Row = Mapping[str, Any]
SIDES = ("first", "second")


def report_of(name: str, root: Path) -> Path:
    """The report's folder of a campaign below results/, as "smoke" or "published/smoke".

    That of all its records, or else of what was there. Raises InputError where it has neither, with
    what the campaign lacks for one.
    """
    for folder in (root / name / REPORT, root / name / SO_FAR):
        if (folder / "cells.parquet").exists():
            return folder
    raise InputError(f"cannot compare {name}: {_lack(name, root)}")


def _lack(name: str, root: Path) -> str:
    """What a campaign without a report lacks, and the command that mends it."""
    shipped, _, campaign = name.rpartition("/")
    if (root / name / CHECKSUMS).exists():
        return "it is published and not rendered; `make published` renders it"
    if not shipped and (root / name / "campaign.json").exists():
        return (
            "it has no report yet; `python -m relation render --campaign "
            f"{campaign}` makes one of what is there"
        )
    defined = load_config(Path("config.yaml"))["campaigns"]
    if campaign not in defined or shipped not in ("", "published"):
        return (
            f"there is no such campaign; config.yaml defines {', '.join(defined)}, and "
            f"published/NAME is what was shipped of one"
        )
    if shipped:
        return (
            f"{root / name} does not exist; `python -m relation publish --campaign {campaign}` "
            "ships its records once it has run, then `make published` renders them"
        )
    return f"it has not run; `snakemake --cores all --config campaign={campaign}` runs it"


def compare(first: str, second: str, root: Path = Path("results")) -> Path:
    """Write results/compare/<first>-<second>/{cells,claims}.parquet and return the folder.

    Raises InputError where a campaign has no report or its report is of another version.
    """
    folders = [report_of(name, root) for name in (first, second)]
    cells = [read_parquet(folder / "cells.parquet", CELLS).to_pylist() for folder in folders]
    claims = [read_parquet(folder / "claims.parquet", CLAIMS).to_pylist() for folder in folders]
    if [row["number"] for row in claims[0]] != [row["number"] for row in claims[1]]:
        counts = " and ".join(str(len(rows)) for rows in claims)
        raise InputError(
            f"cannot compare {first} and {second}: their ledgers hold {counts} claims, so they are "
            "of two versions; render both again"
        )
    origins = [read_origin(folder / "cells.parquet") for folder in folders]
    written = origin(
        f"{first}-{second}",
        canonical_hash([found["config_hash"] for found in origins]),
        "compare",
        "; ".join(dict.fromkeys(found["device"] for found in origins)),
        stamp("compare"),
        first={"name": first, "page": origins[0]["page"]},
        second={"name": second, "page": origins[1]["page"]},
    )
    target = root / "compare" / f"{first}-{second}".replace("/", "-")
    write_parquet(target / "cells.parquet", COMPARED_CELLS, _side_by_side(*cells), written)
    rows = [_claims(a, b) for a, b in zip(*claims, strict=True)]
    write_parquet(target / "claims.parquet", COMPARED_CLAIMS, rows, written)
    return target


def _side_by_side(first: list[Row], second: list[Row]) -> list[Row]:
    """Every cell of either, in the first's order, then what only the second has."""
    keyed = [
        {tuple(cell[k] for k in CELL_KEY): cell for cell in cells} for cells in (first, second)
    ]
    rows = []
    for key in dict.fromkeys((*keyed[0], *keyed[1])):
        a, b = (cells.get(key) for cells in keyed)
        either = a or b
        row = dict(zip(CELL_KEY, key, strict=True))
        row |= {name: either[name] for name in ("unit", "paper", "paper_value")}
        for side, cell in (("first", a), ("second", b)):
            for name in COMPARED_CELL:
                row[f"{side}_{name}"] = None if cell is None else cell[name]
        rows.append(row | _difference(a, b))
    return rows


def _difference(a: Row | None, b: Row | None) -> dict[str, Any]:
    """second - first, and whether their 95% intervals over seeds meet."""
    none = {"difference": None, "intervals_meet": None}
    if a is None or b is None or a["unit"] != b["unit"]:
        return none
    if a["value"] is None or b["value"] is None:
        return none
    ends = [cell[end] for cell in (a, b) for end in ("low", "high")]
    meet = None if None in ends else max(ends[0], ends[2]) <= min(ends[1], ends[3])
    return {"difference": b["value"] - a["value"], "intervals_meet": meet}


def _claims(a: Row, b: Row) -> dict[str, Any]:
    row = {name: a[name] for name in ("number", "claim")}
    for side, claim in (("first", a), ("second", b)):
        row |= {f"{side}_{name}": claim[name] for name in COMPARED_CLAIM}
    return row


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
    main = (cell for cell in cells if cell["statistic"] in ("value", "mean"))
    by_table = grouped(main, itemgetter("table"))
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
