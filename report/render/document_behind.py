"""What lies behind a table's values, as comments of its LaTeX source and as numbers of records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from report.render.latex import Tex, comment
from report.render.printed import Cell, PrintedRow, PrintedTable
from report.values.layout import Column
from report.values.numbers import BOUNDS, DASH

Record = Mapping[str, Any]
LINES = {"campaign": "ours", "paper": "paper", "difference": "difference"}
FACTS = {
    "seed": "seed",
    "config_hash": "configuration",
    "code_hash": "code",
    "commit": "commit",
    "device": "device",
    "made": "made",
    "log": "log",
}


def numbered(provenance: Sequence[Record]) -> dict[str, int]:
    """The number of each record, from 1, by its file."""
    return {record["source"]: place for place, record in enumerate(provenance, start=1)}


def cited(sources: Iterable[str], numbers: Mapping[str, int]) -> Tex:
    """The records behind a table or a figure as ``\\relationrecord`` and ranges of it."""
    found = sorted(numbers[source] for source in sources if source in numbers)
    spans: list[list[int]] = []
    for number in found:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return Tex(", ".join(map(_span, spans)))


def _span(numbers: Sequence[int]) -> str:
    ends = dict.fromkeys((numbers[0], numbers[-1]))
    return "--".join(rf"\relationrecord{{{number}}}" for number in ends)


def record_comments(printed: PrintedTable, provenance: Sequence[Record]) -> Tex:
    """Two comments a record that the table rests on: its origin, and how to make it again."""
    used = set(printed.sources)
    lines = []
    for number, record in enumerate(provenance, start=1):
        if record["source"] not in used:
            continue
        facts = [f"{name} {record[key]}" for key, name in FACTS.items() if record[key] is not None]
        state = "; ".join(filter(None, (record["freshness"], record["freshness_reason"])))
        lines.append(comment(f"{number} {record['source']}: {', '.join(facts)}; {state}"))
        lines.append(comment(f"  again: {record['rerun']}"))
    return Tex("\n".join(lines) or "% none")


# The record in the command that makes it: after -R or --, not a corpus that is such a file too.
_TARGET = re.compile(r"((?:-R|--) )\S+\.parquet")


def again(provenance: Iterable[Record]) -> dict[str, list[str]]:
    """The commands that make records again, each with the kinds of them, FILE for a record's.

    A run whose records another command makes than most of their kind is named with them.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for record in provenance:
        command = _TARGET.sub(r"\1FILE", record["rerun"])
        named = (record[part] for part in ("scale", "variant", "seed"))
        run = "/".join(str(part) for part in named if part not in (None, ""))
        found.setdefault(command, {}).setdefault(record["kind"], []).append(run)
    most = {
        kind: max(found, key=lambda command: len(found[command].get(kind, ())))
        for kinds in found.values()
        for kind in kinds
    }
    told = {}
    for command, kinds in found.items():
        usual = [kind for kind in kinds if most[kind] == command]
        others: dict[str, list[str]] = {}
        for kind in (kind for kind in kinds if kind not in usual):
            others.setdefault(" and ".join(dict.fromkeys(kinds[kind])), []).append(kind)
        apart = [
            ", ".join(sorted(names)) + (f" of {runs}" if runs else "")
            for runs, names in others.items()
        ]
        told[command] = [*usual, *apart]
    return told


def row_comments(
    row: PrintedRow, columns: Sequence[Column], numbers: Mapping[str, int]
) -> Tex | None:
    """One comment a value of a row: tolerance, verdict, and the rows of records behind it."""
    lines = {line.kind: line.entries for line in row.lines}
    comments = []
    for place, column in enumerate(columns):
        values = lines["campaign"][place].cells
        if not values:
            continue
        shown = "; ".join(
            f"{name} {lines[kind][place].text}"
            for kind, name in LINES.items()
            if kind in lines and lines[kind][place].text != DASH
        )
        heading = column.header.replace("\n", " ").replace("$", "")
        comments.append(comment(f"{' '.join(row.labels)}, {heading}: {shown}"))
        comments += [comment(f"  {_judged(name, cells, numbers)}") for name, cells in values]
    return Tex("\n".join(comments)) if comments else None


def _judged(name: str, cells: Iterable[Cell], numbers: Mapping[str, int]) -> str:
    cells = tuple(cells)
    main = next((c for c in cells if c["statistic"] in ("value", "mean")), cells[0])
    sources = sorted({numbers[s] for cell in cells for s in cell["sources"] if s in numbers})
    facts = [f"{main['status']}, {main['reason']}" if main["reason"] else main["status"]]
    if main["n"]:
        facts.append(f"n = {main['n']}")
    if main["tolerance"] is not None:
        facts.append(f"tolerance {main['tolerance']:.4g} {main['unit']} ({main['tolerance_rule']})")
    for side in BOUNDS:
        if main[side] is not None:
            facts.append(f"at {side} {main[side]:.6g} {main['unit']} ({main['tolerance_rule']})")
    if main["verdict"]:
        facts.append(": ".join(filter(None, (main["verdict"], main["verdict_reason"]))))
    if main["freshness"]:
        facts.append(": ".join(filter(None, (main["freshness"], main["freshness_reason"]))))
    if main["rows"]:
        facts.append(f"rows {main['rows']}")
    if sources:
        facts.append(f"records {', '.join(map(str, sources))}")
    return f"{name}: {'; '.join(facts)}"
