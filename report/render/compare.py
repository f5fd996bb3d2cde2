"""The command `compare`: two campaigns' reports side by side, and their page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relation.errors import InputError
from relation.pipeline.config import load_config
from relation.pipeline.results import REPORT, SO_FAR
from relation.pipeline.shipped import CHECKSUMS
from relation.store.parquet import read_origin, read_parquet
from report.judge.frames import CELL_KEY, CELLS, CLAIMS
from report.render.environment import html_environment
from report.render.printed import MISSING
from report.render.site import write_assets
from report.render.templating import grouped
from report.values.layout import Table
from report.values.tables import TABLES

Row = Mapping[str, Any]


def report_of(name: str, root: Path) -> Path:
    """The report's folder of a campaign below results/, as "smoke" or "published/smoke".

    That of all its records, or else of what was there. Raises InputError where it has neither, with
    what the campaign lacks for one.
    """
    for folder in (root / name / REPORT, root / name / SO_FAR):
        if (folder / "cells.parquet").exists():
            return folder
    raise InputError(f"cannot compare {name}: {_lack(name, root)}{_beside(name, root)}")


def _beside(name: str, root: Path) -> str:
    """What was shipped of a campaign, where that can be compared in its place."""
    shipped = root / "published" / name
    if (shipped / REPORT / "cells.parquet").exists():
        return f"; published/{name}, what was shipped of it, can be compared"
    if (shipped / CHECKSUMS).exists():
        return f"; `make published` renders what was shipped of it, published/{name}"
    return ""


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


@dataclass(frozen=True)
class Compared:
    """One cell in two campaigns; None where a campaign has none."""

    first: Row | None
    second: Row | None

    @property
    def either(self) -> Row:
        """The cell of a campaign that has it, for what is the same in both."""
        return self.first or self.second

    @property
    def difference(self) -> float | None:
        """second - first, where both have a value of one unit."""
        a, b = self.first, self.second
        if a is None or b is None or a["unit"] != b["unit"] or None in (a["value"], b["value"]):
            return None
        return b["value"] - a["value"]

    @property
    def intervals_meet(self) -> bool | None:
        """Whether the 95% intervals over seeds meet; None where one has none."""
        if self.difference is None:
            return None
        lows, highs = ([cell[end] for cell in (self.first, self.second)] for end in ("low", "high"))
        return None if None in (*lows, *highs) else max(lows) <= min(highs)

    @property
    def verdicts_differ(self) -> bool:
        verdicts = [cell and cell["verdict"] for cell in (self.first, self.second)]
        return verdicts[0] != verdicts[1]


@dataclass(frozen=True)
class ComparedTable:
    """The cells of one table that either campaign has: labels, column, and the two cells."""

    table: Table
    rows: Sequence[tuple[str, str, Compared]]

    @property
    def both(self) -> int:
        return sum(cell.difference is not None for _, _, cell in self.rows)

    @property
    def apart(self) -> int:
        return sum(cell.intervals_meet is False for _, _, cell in self.rows)

    @property
    def verdicts(self) -> int:
        return sum(cell.verdicts_differ for _, _, cell in self.rows)


@dataclass(frozen=True)
class Comparison:
    """Two campaigns' reports.

    sides: the name and page of each; claims: of each number, both campaigns'; folder: of its page.
    """

    sides: Sequence[Mapping[str, Any]]
    claims: Sequence[tuple[Row, Row]]
    tables: Sequence[ComparedTable]
    folder: Path


def compare(first: str, second: str, root: Path = Path("results")) -> Comparison:
    """Set two campaigns' reports side by side, for results/compare/<first>-<second>/.

    Raises InputError where a campaign has no report or its report is of another version.
    """
    names = (first, second)
    folders = [report_of(name, root) for name in names]
    cells = [read_parquet(folder / "cells.parquet", CELLS).to_pylist() for folder in folders]
    claims = [read_parquet(folder / "claims.parquet", CLAIMS).to_pylist() for folder in folders]
    if [row["number"] for row in claims[0]] != [row["number"] for row in claims[1]]:
        counts = " and ".join(str(len(rows)) for rows in claims)
        raise InputError(
            f"cannot compare {first} and {second}: their ledgers hold {counts} claims, so they are "
            "of two versions; render both again"
        )
    pages = (read_origin(folder / "cells.parquet")["page"] for folder in folders)
    return Comparison(
        sides=[{"name": name, "page": page} for name, page in zip(names, pages, strict=True)],
        claims=list(zip(*claims, strict=True)),
        tables=_tables(*cells),
        folder=root / "compare" / f"{first}-{second}".replace("/", "-"),
    )


def render_comparison(found: Comparison) -> Path:
    """Write a comparison's index.html; its path."""
    found.folder.mkdir(parents=True, exist_ok=True)
    environment = html_environment()
    write_assets(found.folder, environment)
    text = environment.get_template("comparison.html.j2").render(
        page={"campaign": " · ".join(side["name"] for side in found.sides)},
        sections=(("index.html", "Comparison"),),
        here="index.html",
        up="",
        records={},
        sides=found.sides,
        claims=found.claims,
        compared=found.tables,
        shown=shown,
    )
    path = found.folder / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


def _tables(first: Iterable[Row], second: Iterable[Row]) -> list[ComparedTable]:
    """Every cell of either, by table: in the first's order, then what only the second has.

    Each is under the labels of its row and column; intervals are left out.
    """
    keyed = [
        {tuple(cell[k] for k in CELL_KEY): cell for cell in cells} for cells in (first, second)
    ]
    keys = dict.fromkeys((*keyed[0], *keyed[1]))
    every = (Compared(*(cells.get(key) for cells in keyed)) for key in keys)
    main = (cell for cell in every if cell.either["statistic"] in ("value", "mean"))
    by_table = grouped(main, lambda cell: cell.either["table"])
    return [
        ComparedTable(table, _labelled(table, by_table.get(table.label, ()))) for table in TABLES
    ]


def _labelled(table: Table, cells: Iterable[Compared]) -> list[tuple[str, str, Compared]]:
    panels = table.panels
    rows = {row.key: row for row in (*table.rows, *(r for panel in panels for r in panel.rows))}
    headers = {
        part.column: " ".join((column.header, *_side(part.column, column.parts))).replace("\n", " ")
        for panel in panels
        for column in panel.columns
        for part in column.parts
    }
    labelled = []
    for cell in cells:
        row, column = cell.either["row"], cell.either["column"]
        label = ", ".join(rows[row].labels) if row in rows else row
        labelled.append((label, headers.get(column, column), cell))
    return labelled


def _side(column: str, parts: Sequence[Any]) -> list[str]:
    """Which of a column's several values a part is."""
    names = {"mha": "(MHA)", "full": "(Relation)"}
    return [names.get(column.rpartition(".")[2], f"({column})")] if len(parts) > 1 else []


def shown(cell: Row | None, figure: Any) -> str:
    """One campaign's value with its spread, or why it has none."""
    if cell is None:
        return figure(None)
    if cell["status"] != "ok":
        return MISSING[cell["status"]]
    if cell["value"] is None:
        return cell["text"] or figure(None)
    spread = cell["spread"]
    return figure(cell["value"]) + (f" ± {figure(spread)}" if spread is not None else "")
