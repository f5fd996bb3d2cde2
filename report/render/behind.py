"""What lies behind a printed cell, in words: for a page that opens it and for LaTeX's comments."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from report.render.printed import MISSING, Cell, PrintedRow, PrintedTable
from report.values.layout import Column
from report.values.numbers import BOUNDS, POINTS, grouped, significant

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
# The device of models that were counted and hold no weights, as PyTorch names it.
COUNTED = "meta"
Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Value:
    """One value of a printed cell: what is known of it, and the records that it rests on."""

    name: str
    facts: Facts
    verdict: str
    verdict_reason: str
    freshness: str
    freshness_reason: str
    sources: tuple[str, ...]


def anchor(row: PrintedRow, column: Column) -> str:
    """The id of a cell within its page."""
    keys = "+".join(part.column for part in column.parts)
    return f"{row.key}/{keys}".replace(" ", "_")


def title(row: PrintedRow, column: Column) -> str:
    """A cell by its row and its column."""
    header = column.header.replace("\n", " ").replace("$", "")
    return f"{', '.join(row.labels)} · {header}"


def values_behind(
    row: PrintedRow, columns: Iterable[Column]
) -> Iterator[tuple[Column, list[Value]]]:
    """The columns of which the campaign has a value, or a reason for none."""
    campaign = next(line for line in row.lines if line.kind == "campaign")
    for column, entry in zip(columns, campaign.entries, strict=True):
        if entry.cells:
            yield column, [_value(name, cells) for name, cells in entry.cells]


def behind_cells(printed: PrintedTable, records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The cells of a table and the records that they rest on, as plain JSON.

    Args:
        printed: the table as it prints.
        records: every row of provenance.parquet by its source, with the page that shows it.

    Returns:
        ``cells``: by anchor, a title and one entry a value (paper, ours, difference and so on, as
        text); ``records``: what the entries name by source.
    """
    cells = {
        anchor(row, column): {
            "title": f"Table {printed.table.number} · {title(row, column)}",
            "values": [asdict(value) for value in values],
        }
        for block in printed.panels
        for row in block.rows
        for column, values in values_behind(row, block.panel.columns)
    }
    used = dict.fromkeys(
        source for cell in cells.values() for value in cell["values"] for source in value["sources"]
    )
    return {"cells": cells, "records": {name: _record(name, records.get(name)) for name in used}}


def device_text(device: str) -> str:
    """A record's device in words: a model that is only counted has none."""
    return "no device, counted only" if device == COUNTED else device


def record_facts(record: Mapping[str, Any]) -> Facts:
    """The origin of a record, as far as it is known."""
    return tuple(
        (label, device_text(str(record[key])) if key == "device" else str(record[key]))
        for key, label in RECORD_FACTS.items()
        if record[key] not in (None, "") and record[key] == record[key]
    )


def _record(name: str, record: Mapping[str, Any] | None) -> dict[str, Any]:
    if record is None:
        return {"name": name, "facts": [], "page": "", "rerun": "", "log": "", "freshness": ""}
    told = {key: record[key] or "" for key in ("page", "rerun", "log", "log_link", "freshness")}
    return {"name": name, "facts": record_facts(record), **told}


def _value(name: str, cells: Iterable[Cell]) -> Value:
    """One value of a cell, from its rows of cells.parquet."""
    found = {cell["statistic"]: cell for cell in cells}
    main = found.get("value") or found.get("mean") or next(iter(found.values()))
    unit = "" if main["unit"] in ("1", "text") else main["unit"]
    # Percentages lie percentage points apart.
    apart = POINTS.strip() if unit == "%" else unit
    facts = [("Paper", _with_spread(found, main, "paper", unit))]
    facts.append(("Here", _with_spread(found, main, "value", unit)))
    ends = (main["low"], main["high"])
    if "low" in found and "high" in found:
        ends = (found["low"]["value"], found["high"]["value"])
    if all(map(_is_number, ends)):
        told = " to ".join(significant(end, 6) for end in ends)
        facts.append(("95% interval", f"{told} {unit}"))
    if _is_number(main["difference"]):
        difference = significant(main["difference"], 6, signed=True)
        facts.append(("Difference", f"{difference} {apart}"))
    if main["n"]:
        facts.append(("Seeds or measurements", str(main["n"])))
    if main["tolerance"] is not None:
        facts.append(("Tolerance", f"±{significant(main['tolerance'], 6)} {apart}"))
    for side in BOUNDS:
        if main[side] is not None:
            facts.append(("Bound", f"at {side} {significant(main[side], 6)} {unit}"))
    facts.append(("Why this rule", main["tolerance_rule"]))
    facts.append((MISSING.get(main["status"], "Remark").capitalize(), main["reason"]))
    facts.append(("Rows", main["rows"]))
    return Value(
        name,
        facts=tuple((label, text.strip()) for label, text in facts if text),
        verdict=main["verdict"] or "",
        verdict_reason=main["verdict_reason"] or "",
        freshness=main["freshness"] or "",
        freshness_reason=main["freshness_reason"] or "",
        sources=tuple(dict.fromkeys(s for cell in found.values() for s in cell["sources"])),
    )


def _with_spread(cells: Mapping[str, Cell], main: Cell, which: str, unit: str) -> str:
    """The paper's or the campaign's value with its deviation; empty where there is none."""
    text = _text(main, which)
    spread = _text(cells["sd"], which) if "sd" in cells else ""
    if not spread and which == "value" and main["spread"] is not None:
        spread = significant(main["spread"], 6)
    return " ".join(filter(None, (text, spread and f"± {spread}", unit))) if text else ""


def _text(cell: Cell, which: str) -> str:
    if which == "paper":
        paper = cell["paper"] or ""
        return paper if cell["unit"] == "text" else grouped(paper)
    if cell["status"] != "ok":
        return ""
    return significant(cell["value"], 8) if _is_number(cell["value"]) else cell["text"] or ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and value == value
