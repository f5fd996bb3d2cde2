"""A table as it prints: lines of text pieces, the same for LaTeX and HTML."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase
from typing import Any

import pandas as pd

from relation.pipeline.provenance import CURRENT, FRESHNESS, worst
from report.judge.chosen import ABOUT, CHOSE
from report.values.layout import Column, Panel, Part, Row, Table, Words
from report.values.measured import ANSWERED
from report.values.numbers import (
    BOUNDS,
    DASH,
    POINTS,
    TOKEN_UNITS,
    bound_text,
    difference_text,
    few_tokens,
    printed_text,
    suffix,
    tolerance_text,
    value_text,
)
from report.values.paper import UNIT_SCALE

Cell = dict[str, Any]
Key = tuple[str, str]

MISSING = {
    "not run": "not run",
    "failed": "failed",
    "oom": "OOM",
    "not reached": "not reached",
    "undetermined": "undetermined",
    "no counterpart": "n/a",
}
# Columns of the cells that hold None where there is nothing, in place of NaN.
NULLABLE = (
    "paper", "text", "spread", "low", "high", "tolerance", "least", "most", "tolerance_rule",
    "verdict", "verdict_reason", "freshness", "freshness_reason",
)  # fmt: skip
PAPER_SEEDS = 3

# An entry of several values shows the last of theirs.
VERDICTS = ("not judged", "same", "within", "outside")


@dataclass(frozen=True)
class Entry:
    """One printed cell.

    ``marks`` name the notes that explain a missing value; ``hover`` says how many seeds or
    measurements stand behind a present one. A campaign's entry holds in ``cells`` the rows of the
    cells behind it, one list a part of its column, and in ``freshness`` the worst of theirs; an
    entry of the line of verdicts has its ``verdict``, and the tolerance or bound as its text.
    """

    text: str
    form: str = "plain"
    marks: tuple[str, ...] = ()
    hover: str = ""
    missing: bool = False
    verdict: str = ""
    freshness: str = CURRENT
    cells: tuple[tuple[str, tuple[Cell, ...]], ...] = ()


@dataclass(frozen=True)
class Line:
    """One line of a row: the paper's, the campaign's, their difference, or what is judged of it."""

    kind: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class PrintedRow:
    """A row of the paper with its lines; ``ruled`` sets it apart from the row above.

    ``verdicts`` is the line of verdicts; None where no value of the row is judged.
    """

    key: str
    labels: tuple[str, ...]
    lines: tuple[Line, ...]
    ruled: bool
    verdicts: Line | None = None


@dataclass(frozen=True)
class PrintedPanel:
    panel: Panel
    rows: tuple[PrintedRow, ...]


@dataclass
class Notes:
    """Reasons behind missing values, each with one letter."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        if text not in self.texts:
            self.texts.append(text)
        return letter(self.texts.index(text))


@dataclass(frozen=True)
class PrintedTable:
    """A table ready for a template.

    ``remarks`` are to be read before it; ``conditions`` say what it was measured under.
    """

    table: Table
    panels: tuple[PrintedPanel, ...]
    notes: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]
    conditions: tuple[str, ...]
    measured: int
    asked: int
    verdicts: dict[str, int]
    freshness: dict[str, int]
    sources: tuple[str, ...]


def letter(index: int) -> str:
    """a to z, then aa, ab and so on."""
    head, tail = divmod(index, len(ascii_lowercase))
    return (letter(head - 1) if head else "") + ascii_lowercase[tail]


def named(table: Table, cells: pd.DataFrame) -> Table:
    """A systems table whose title names the device that was measured."""
    device = cells[(cells["row"] == "setting") & (cells["column"] == "device")]
    if not table.systems or device.empty:
        return table
    name = device["text"].iloc[0]
    return replace(table, title=f"{table.title}: {name}")


def print_table(table: Table, cells: pd.DataFrame) -> PrintedTable:
    """Lay out one table.

    Args:
        table: its declaration.
        cells: the rows of ``cells.build`` that belong to it.
    """
    table = named(table, cells)
    notes = Notes()
    index: dict[Key, dict[str, Cell]] = {}
    # A frame read back from Parquet may say NaN where the built one says None.
    nullable = cells[list(NULLABLE)].astype("object")
    cells = cells.assign(**nullable.where(nullable.notna(), None))
    for cell in cells.to_dict("records"):
        index.setdefault((cell["row"], cell["column"]), {})[cell["statistic"]] = cell
    panels = tuple(
        PrintedPanel(panel, rows)
        for panel in table.panels
        if (rows := tuple(_rows(table, panel, index, notes)))
    )
    if len(panels) == 1:
        panels = (replace(panels[0], panel=replace(panels[0].panel, title="")),)
    told = table.notes(cells) if table.notes else []
    asked = cells[cells["paper"].notna()]
    return PrintedTable(
        table=table,
        panels=panels,
        notes=tuple((letter(i), text) for i, text in enumerate(notes.texts)),
        remarks=(
            *(note.text for note in told if not note.below),
            *((ABOUT,) if CHOSE in set(asked["verdict"]) else ()),
        ),
        conditions=tuple(note.text for note in told if note.below),
        measured=int(asked["status"].isin(ANSWERED).sum()),
        asked=len(asked),
        verdicts=_counts(asked["verdict"], (*VERDICTS, CHOSE)),
        freshness=_counts(cells[cells["status"] == "ok"]["freshness"], FRESHNESS),
        sources=tuple(sorted({source for sources in cells["sources"] for source in sources})),
    )


def _counts(found: pd.Series, known: tuple[str, ...]) -> dict[str, int]:
    counts = found.value_counts()
    return {name: int(counts.get(name, 0)) for name in known}


def _rows(
    table: Table, panel: Panel, index: dict[Key, dict[str, Cell]], notes: Notes
) -> Iterable[PrintedRow]:
    rows = _panel_rows(table, panel, index)
    known = {row.key for row in table.rows}
    group = rows[0].group if rows else ""
    for row in _in_groups(rows):
        kinds = ("campaign",)
        if row.key in known and not panel.measured:
            kinds = ("paper", *kinds, "difference")
        lines = tuple(
            Line(
                kind,
                tuple(_entry(column, row.key, kind, index, notes) for column in panel.columns),
            )
            for kind in kinds
        )
        verdicts = tuple(_judged(column, row.key, index) for column in panel.columns)
        yield PrintedRow(
            row.key,
            _labels(table, row, index),
            lines,
            ruled=row.group != group,
            verdicts=Line("verdict", verdicts) if any(e.verdict for e in verdicts) else None,
        )
        group = row.group


def _panel_rows(table: Table, panel: Panel, index: dict[Key, dict[str, Cell]]) -> tuple[Row, ...]:
    """The rows of a panel: its own, or the table's and those that only the campaign has."""
    shown = {part.column for column in panel.columns for part in column.parts}
    there = dict.fromkeys(row for row, column in index if column in shown)
    if panel.rows:
        return tuple(row for row in panel.rows if row.key in there or not panel.measured)
    known = {row.key for row in table.rows}
    further = [key for key in there if key not in known] if table.extra_row else []
    return (*table.rows, *(table.extra_row(key) for key in further))


def _in_groups(rows: Sequence[Row]) -> list[Row]:
    """Rows of a group together, groups in the order of their first row."""
    groups = list(dict.fromkeys(row.group for row in rows))
    return sorted(rows, key=lambda row: groups.index(row.group))


def _labels(table: Table, row: Row, index: dict[Key, dict[str, Cell]]) -> tuple[str, ...]:
    own = index.get((row.key, table.label_column), {}).get("value")
    if own is None or own["status"] != "ok":
        return row.labels
    label = f"{own['value']:,.0f}"
    return row.labels if label == row.labels[0] else (f"{label} (paper: {row.labels[0]})",)


def _entry(
    column: Column, row: str, kind: str, index: dict[Key, dict[str, Cell]], notes: Notes
) -> Entry:
    found = [index.get((row, part.column), {}) for part in column.parts]
    form = column.parts[0].form
    words = form.kind if isinstance(form, Words) else "plain"
    if not any(found):
        return Entry(DASH)
    if kind == "paper":
        texts = [_paper(part, cells) for part, cells in zip(column.parts, found, strict=True)]
        return Entry(_set(column, texts), words)
    missing = [_missing(cells) for cells in found]
    if kind == "difference":
        if all(missing):
            return Entry(DASH)
        texts = [_difference(part, cells) for part, cells in zip(column.parts, found, strict=True)]
        return Entry(_set(column, _suffix_once(texts)))
    behind = tuple(
        (part.column, tuple(cells.values()))
        for part, cells in zip(column.parts, found, strict=True)
        if cells
    )
    remarks = (_remark(cells) for cells in found)
    marks = tuple(dict.fromkeys(notes.mark(remark) for remark in remarks if remark))
    if all(missing) and len({cell["status"] for cell in missing}) == 1:
        return Entry(MISSING[missing[0]["status"]], marks=marks, missing=True, cells=behind)
    texts = [
        MISSING[gap["status"]] if gap else _campaign(part, cells)
        for part, cells, gap in zip(column.parts, found, missing, strict=True)
    ]
    mains = [main for cells in found if (main := _main(cells))]
    stale = worst(main["freshness"] for main in mains if main["freshness"])
    return Entry(
        _set(column, texts), words, marks, hover=_hover(found), freshness=stale, cells=behind
    )


def _judged(column: Column, row: str, index: dict[Key, dict[str, Cell]]) -> Entry:
    """The worst verdict of a column's values, with the tolerance or bound of each."""
    found = [index.get((row, part.column), {}) for part in column.parts]
    judged = [main for cells in found if (main := _main(cells)) and main["verdict"] in VERDICTS[1:]]
    if not judged:
        return Entry("")
    texts = [_tolerance(part, cells) for part, cells in zip(column.parts, found, strict=True)]
    text = _set(column, texts) if set(texts) != {DASH} else ""
    return Entry(text, verdict=max((main["verdict"] for main in judged), key=VERDICTS.index))


def _tolerance(part: Part, cells: dict[str, Cell]) -> str:
    main = _main(cells)
    if main is None or isinstance(part.form, Words):
        return DASH
    for side in BOUNDS:
        if main[side] is not None:
            return bound_text(side, main[side], part.form, main["unit"], main["paper"])
    if main["tolerance"] is None:
        return DASH
    return tolerance_text(main["tolerance"], part.form, main["unit"], main["paper"])


def _set(column: Column, texts: list[str]) -> str:
    if set(texts) == {DASH}:
        return DASH
    if column.merged and len(set(texts)) == 1:
        return texts[0]
    return column.pattern.format(*texts)


def _main(cells: dict[str, Cell]) -> Cell | None:
    return cells.get("value", cells.get("mean"))


def _missing(cells: dict[str, Cell]) -> Cell | None:
    """The cell that says why a printed value is absent; None if it is there."""
    main = _main(cells)
    return main if main is not None and main["status"] != "ok" else None


def _remark(cells: dict[str, Cell]) -> str:
    """What a note must say of a value: why it is missing, or which seeds it leaves out."""
    main = _main(cells)
    if main is None:
        return ""
    if main["status"] != "ok":
        return f"{MISSING[main['status']]}: {main['reason']}"
    if ("mean" in cells and main["n"] != PAPER_SEEDS) or "seeds without" in main["reason"]:
        return f"n = {main['n']}" + (f"; {main['reason']}" if main["reason"] else "")
    return ""


def _suffix_once(texts: list[str]) -> list[str]:
    """Percentage points named once, after the last of several differences."""
    if not all(text.endswith(POINTS) for text in texts):
        return texts
    return [*(text.removesuffix(POINTS) for text in texts[:-1]), texts[-1]]


def _paper(part: Part, cells: dict[str, Cell]) -> str:
    main = _main(cells)
    if main is None or main["paper"] is None:
        return DASH
    if isinstance(part.form, Words):
        return main["paper"]
    text = printed_text(main["paper"], part.form)
    if "sd" in cells:
        text += f" ± {printed_text(cells['sd']['paper'], part.form)}"
    return text + suffix(part.form, main["unit"])


def _campaign(part: Part, cells: dict[str, Cell]) -> str:
    main = _main(cells)
    if main is None:
        return DASH
    if isinstance(part.form, Words):
        return main["text"]
    text = value_text(main["value"], part.form, main["paper"])
    if "sd" in cells and cells["sd"]["status"] == "ok":
        text += f" ± {value_text(cells['sd']['value'], part.form, cells['sd']['paper'])}"
    text += suffix(part.form, main["unit"])
    if main["unit"] in TOKEN_UNITS and main["value"] < 0.1:
        text = few_tokens(main["value"] * UNIT_SCALE[main["unit"]])
    if "low" in cells:
        signed = part.form.signed or (main["paper"] or "")[:1] in ("+", "-")
        form = replace(part.form, signed=signed)
        low, high = (value_text(cells[end]["value"], form) for end in ("low", "high"))
        text += f" [{low}, {high}]"
    if part.form.count:
        text += f" (n = {main['n']})"
    return text


def _difference(part: Part, cells: dict[str, Cell]) -> str:
    main = _main(cells)
    if main is None or main["status"] != "ok" or main["paper"] is None:
        return DASH
    if isinstance(part.form, Words):
        if main["unit"] == "text" and part.form.kind == "formula":
            return DASH
        return "same" if main["text"] == main["paper"] else "differs"
    return difference_text(
        main["difference"], main["value"], part.form, main["unit"], main["paper"]
    )


def _hover(found: list[dict[str, Cell]]) -> str:
    parts = []
    for cells in found:
        main = _main(cells)
        if main is not None and main["status"] == "ok" and main["n"]:
            reason = f"; {main['reason']}" if main["reason"] else ""
            parts.append(f"n = {main['n']}{reason}")
    return " | ".join(dict.fromkeys(parts))


def entry_text(entry: Entry) -> str:
    """An entry's text, its geometry with signs of multiplication: 8x48 as 8×48."""
    return re.sub(r"(?<=\d)x(?=\d)", "×", entry.text) if entry.form == "geometry" else entry.text
