"""What lies behind a printed cell: the words that a page shows when the cell is opened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from report.render.printed import MISSING, Cell, PrintedRow, PrintedTable
from report.values.layout import Column, Table
from report.values.numbers import BOUNDS, MINUS, POINTS, grouped

# The columns of provenance.parquet that a reader is shown, as their labels.
RECORD_FACTS = {
    "seed": "Seed",
    "device": "Device",
    "config_hash": "Configuration",
    "code_hash": "Code",
    "golden_hash": "Golden losses",
    "commit": "Commit",
    "made": "Made",
}


def anchor(row: PrintedRow, column: Column) -> str:
    """The id of a cell within its page."""
    keys = "+".join(part.column for part in column.parts)
    return f"{row.key}/{keys}".replace(" ", "_")


def behind_cells(printed: PrintedTable, records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The cells of a table and the records that they rest on, as plain JSON.

    Args:
        printed: the table as it prints.
        records: every row of provenance.parquet by its source, with the page that shows it.

    Returns:
        ``cells``: by anchor, a title and one entry a value (paper, ours, difference and so on, as
        text); ``records``: what the entries name by source.
    """
    cells = {}
    used: dict[str, None] = {}
    for block in printed.panels:
        for row in block.rows:
            campaign = next(line for line in row.lines if line.kind == "campaign")
            for column, entry in zip(block.panel.columns, campaign.entries, strict=True):
                if not entry.cells:
                    continue
                values = [_value(name, parts) for name, parts in entry.cells]
                used |= dict.fromkeys(source for value in values for source in value["sources"])
                cells[anchor(row, column)] = {
                    "title": _title(printed.table, row, column),
                    "values": values,
                }
    return {"cells": cells, "records": {name: _record(name, records.get(name)) for name in used}}


def _title(table: Table, row: PrintedRow, column: Column) -> str:
    header = column.header.replace("\n", " ").replace("$", "")
    return f"Table {table.number} · {', '.join(row.labels)} · {header}"


def _value(name: str, cells: Iterable[Cell]) -> dict[str, Any]:
    """One value of the cell: its rows of cells.parquet by statistic, told in words."""
    by_statistic = {cell["statistic"]: cell for cell in cells}
    main = by_statistic.get("value", by_statistic.get("mean"))
    if main is None:
        main = next(iter(by_statistic.values()))
    facts = [("Paper", _with_spread(main, by_statistic, "paper"))]
    facts.append(("Here", _with_spread(main, by_statistic, "value")))
    ends = _interval(main, by_statistic)
    if ends:
        told = " to ".join(_number(end, 6) for end in ends)
        facts.append(("95% interval", f"{told} {_unit(main)}"))
    if _is_number(main["difference"]):
        told = _number(main["difference"], 6, signed=True)
        facts.append(("Difference", f"{told} {_unit_apart(main)}"))
    if main["n"]:
        facts.append(("Seeds or measurements", str(main["n"])))
    if main["tolerance"] is not None:
        facts.append(("Tolerance", f"±{_number(main['tolerance'], 6)} {_unit_apart(main)}"))
    for side in BOUNDS:
        if main[side] is not None:
            facts.append(("Bound", f"at {side} {_number(main[side], 6)} {_unit(main)}"))
    facts.append(("Why this rule", main["tolerance_rule"]))
    facts.append((MISSING.get(main["status"], "Remark").capitalize(), main["reason"]))
    facts.append(("Rows", main["rows"]))
    return {
        "name": name,
        "facts": [[label, text.strip()] for label, text in facts if text],
        "verdict": main["verdict"] or "",
        "verdict_reason": main["verdict_reason"] or "",
        "freshness": main["freshness"] or "",
        "freshness_reason": main["freshness_reason"] or "",
        "sources": list(
            dict.fromkeys(s for cell in by_statistic.values() for s in cell["sources"])
        ),
    }


def _interval(main: Cell, cells: Mapping[str, Cell]) -> tuple[float, float] | None:
    """A value's own 95% interval, or the one that stands beside it as two statistics."""
    ends = (main["low"], main["high"])
    if "low" in cells and "high" in cells:
        ends = (cells["low"]["value"], cells["high"]["value"])
    return ends if all(map(_is_number, ends)) else None


def _with_spread(main: Cell, cells: Mapping[str, Cell], which: str) -> str:
    """A value with its standard deviation, in its unit; empty where there is none."""
    text = _text(main, which)
    spread = _text(cells["sd"], which) if "sd" in cells else ""
    if not spread and which == "value" and main["spread"] is not None:
        spread = _number(main["spread"], 6)
    if text and spread:
        text += f" ± {spread}"
    return f"{text} {_unit(main)}".strip() if text else ""


def _text(cell: Cell, which: str) -> str:
    if which == "paper":
        paper = cell["paper"] or ""
        return paper if cell["unit"] == "text" else grouped(paper)
    if cell["status"] != "ok":
        return ""
    return _number(cell["value"], 8) if _is_number(cell["value"]) else cell["text"] or ""


def _number(value: float, digits: int, signed: bool = False) -> str:
    """A number to so many significant digits and never fewer than its whole ones, grouped."""
    size = abs(value)
    if size >= 10 ** (digits - 1):
        text = f"{size:,.0f}"
    elif 1e-12 < size < 1e-4:  # where Python's form takes an exponent
        text = f"{size:.{digits - 1 - math.floor(math.log10(size))}f}".rstrip("0")
    else:
        text = f"{size:,.{digits}g}"
    sign = MINUS if value < 0 else "+" if signed and value else ""
    return sign + text


def _unit(cell: Cell) -> str:
    return "" if cell["unit"] in ("1", "text") else cell["unit"]


def _unit_apart(cell: Cell) -> str:
    """The unit of a difference and of a tolerance: percentages lie percentage points apart."""
    return POINTS.strip() if cell["unit"] == "%" else _unit(cell)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and value == value


def _record(name: str, record: Mapping[str, Any] | None) -> dict[str, Any]:
    if record is None:
        return {"name": name, "facts": [], "page": "", "rerun": "", "log": "", "freshness": ""}
    facts = [(label, record[key]) for key, label in RECORD_FACTS.items()]
    return {
        "name": name,
        "facts": [[label, str(value)] for label, value in facts if _given(value)],
        "page": record["page"],
        "rerun": record["rerun"] or "",
        "log": record["log"] or "",
        "log_link": record["log_link"],
        "freshness": record["freshness"],
    }


def _given(value: object) -> bool:
    return value is not None and value == value and value != ""
