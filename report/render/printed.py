"""A table as it prints: lines of text pieces, the same for LaTeX and HTML."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase
from typing import Any

import pandas as pd

from relation.pipeline.provenance import CURRENT, FRESHNESS, worst
from report.judge.chosen import ABOUT, CHOSE
from report.values.layout import Column, Panel, Part, Row, Table, Words, settings
from report.values.measured import ANSWERED
from report.values.numbers import (
    BOUNDS,
    DASH,
    POINTS,
    TOKEN_UNITS,
    bound_text,
    difference_text,
    printed_text,
    quantity,
    suffix,
    tolerance_text,
    value_text,
)
from report.values.paper import UNIT_SCALE

Cell = dict[str, Any]
# The rows of the cells by row and column, then by statistic.
Index = dict[tuple[str, str], dict[str, Cell]]

MISSING = {
    "not run": "not run",
    "failed": "failed",
    "oom": "OOM",
    "not reached": "not reached",
    "undetermined": "undetermined",
    "no counterpart": "n/a",
}
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
    """Reasons behind missing values, each with one letter.

    Where nothing of a value is there, the note does not repeat which: its row says so.
    """

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        text = _alike(text)
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


_NONE_THERE = re.compile(r"not run: (?:(\d+) of \1 (.*?)s(?: of .*)? are|the (.*?) is) not there")
_NO_RECORD = re.compile(r"not run: there is no \S+\.parquet")


def _alike(text: str) -> str:
    """A reason in the words that others of its kind share."""
    if found := _NONE_THERE.fullmatch(text):
        return f"not run: no {found[2] or found[3]} is there"
    return "not run: no record is there" if _NO_RECORD.fullmatch(text) else text


def letter(index: int) -> str:
    """a to z, then aa, ab and so on."""
    head, tail = divmod(index, len(ascii_lowercase))
    return (letter(head - 1) if head else "") + ascii_lowercase[tail]


def named(table: Table, cells: pd.DataFrame) -> Table:
    """A systems table whose title names the device that was measured."""
    device = settings(cells).get("device")
    if not table.systems or device is None:
        return table
    return replace(table, title=f"{table.title}: {device}")


def print_table(table: Table, cells: pd.DataFrame) -> PrintedTable:
    """Lay out one table.

    Args:
        table: its declaration.
        cells: the rows of ``cells.build`` that belong to it.
    """
    table = named(table, cells)
    notes = Notes()
    index: Index = {}
    # A frame read back from Parquet may say NaN where the built one says None.
    cells = cells.astype(object).where(cells.notna(), None)
    for cell in cells.to_dict("records"):
        index.setdefault((cell["row"], cell["column"]), {})[cell["statistic"]] = cell
    panels = tuple(
        PrintedPanel(panel, rows)
        for panel in table.panels
        if (rows := tuple(_rows(table, panel, index, notes)))
    )
    if len(panels) == 1:
        panels = (replace(panels[0], panel=replace(panels[0].panel, title="")),)
    told = table.notes_on(cells)
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


def _rows(table: Table, panel: Panel, index: Index, notes: Notes) -> Iterable[PrintedRow]:
    rows = _panel_rows(table, panel, index)
    known = {row.key for row in table.rows}
    group = rows[0].group if rows else ""
    for row in _in_groups(rows):
        kinds = ("campaign",)
        if row.key in known and not panel.measured:
            kinds = ("paper", *kinds, "difference")
        lines = tuple(
            Line(
                kind, tuple(_entry(column, row.key, kind, index, notes) for column in panel.columns)
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


def _panel_rows(table: Table, panel: Panel, index: Index) -> tuple[Row, ...]:
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


def _labels(table: Table, row: Row, index: Index) -> tuple[str, ...]:
    own = index.get((row.key, table.label_column), {}).get("value")
    if own is None or own["status"] != "ok":
        return row.labels
    label = f"{own['value']:,.0f}"
    return row.labels if label == row.labels[0] else (f"{label} (paper: {row.labels[0]})",)


@dataclass(frozen=True)
class _Value:
    """One value of a printed cell: its key and form, and its rows of the cells by statistic."""

    part: Part
    cells: Mapping[str, Cell]

    @property
    def main(self) -> Cell | None:
        return self.cells.get("value", self.cells.get("mean"))

    @property
    def there(self) -> Cell | None:
        """The main row, where the campaign has the value."""
        return self.main if self.main is not None and self.main["status"] == "ok" else None

    @property
    def gap(self) -> Cell | None:
        """The row that says why the value is absent; None if it is there."""
        return self.main if self.there is None else None

    @property
    def remark(self) -> str:
        """What a note must say: why the value is missing, or which seeds it leaves out."""
        main = self.main
        if main is None:
            return ""
        if self.gap:
            return f"{MISSING[main['status']]}: {main['reason']}"
        if ("mean" in self.cells and main["n"] != PAPER_SEEDS) or "seeds without" in main["reason"]:
            return f"n = {main['n']}" + (f"; {main['reason']}" if main["reason"] else "")
        return ""

    @property
    def hover(self) -> str:
        """How many seeds or measurements stand behind it, and what they leave out."""
        if not self.there or not self.there["n"]:
            return ""
        reason = f"; {self.there['reason']}" if self.there["reason"] else ""
        return f"n = {self.there['n']}{reason}"

    def paper(self) -> str:
        main, form = self.main, self.part.form
        if main is None or main["paper"] is None:
            return DASH
        if isinstance(form, Words):
            return main["paper"]
        text = printed_text(main["paper"], form)
        if "sd" in self.cells:
            text += f" ± {printed_text(self.cells['sd']['paper'], form)}"
        return text + suffix(form, main["unit"])

    def campaign(self) -> str:
        main, form = self.main, self.part.form
        if main is None:
            return DASH
        if self.gap:
            return MISSING[main["status"]]
        if isinstance(form, Words):
            return main["text"]
        text, sd = value_text(main["value"], form, main["paper"]), self.cells.get("sd")
        if sd is not None and sd["status"] == "ok":
            text += f" ± {value_text(sd['value'], form, sd['paper'])}"
        text += suffix(form, main["unit"])
        if main["unit"] in TOKEN_UNITS and main["value"] < 0.1:
            # Far below the paper's unit, in which it would print as leading zeros.
            text = quantity(main["value"] * UNIT_SCALE[main["unit"]], "#.4g")
        if "low" in self.cells:
            signed = replace(form, signed=form.signed or (main["paper"] or "")[:1] in ("+", "-"))
            ends = (value_text(self.cells[end]["value"], signed) for end in ("low", "high"))
            text += f" [{', '.join(ends)}]"
        return text + (f" (n = {main['n']})" if form.count else "")

    def difference(self) -> str:
        found, form = self.there, self.part.form
        if found is None or found["paper"] is None:
            return DASH
        if not isinstance(form, Words):
            ends = (found["difference"], found["value"])
            return difference_text(*ends, form, found["unit"], found["paper"])
        if found["unit"] == "text" and form.kind == "formula":
            return DASH
        return "same" if found["text"] == found["paper"] else "differs"

    def tolerance(self) -> str:
        main, form = self.main, self.part.form
        if main is None or isinstance(form, Words):
            return DASH
        for side in BOUNDS:
            if main[side] is not None:
                return bound_text(side, main[side], form, main["unit"], main["paper"])
        if main["tolerance"] is None:
            return DASH
        return tolerance_text(main["tolerance"], form, main["unit"], main["paper"])


def _values(column: Column, row: str, index: Index) -> list[_Value]:
    return [_Value(part, index.get((row, part.column), {})) for part in column.parts]


def _entry(column: Column, row: str, kind: str, index: Index, notes: Notes) -> Entry:
    found, form = _values(column, row, index), column.parts[0].form
    words = form.kind if isinstance(form, Words) else "plain"
    gaps = [value.gap for value in found]
    if not any(value.cells for value in found) or (kind == "difference" and all(gaps)):
        return Entry(DASH)
    if kind == "paper":
        return Entry(_set(column, [value.paper() for value in found]), words)
    if kind == "difference":
        return Entry(_set(column, _suffix_once([value.difference() for value in found])))
    behind = tuple((v.part.column, tuple(v.cells.values())) for v in found if v.cells)
    marks = tuple(dict.fromkeys(notes.mark(v.remark) for v in found if v.remark))
    if all(gaps) and len({gap["status"] for gap in gaps}) == 1:
        return Entry(MISSING[gaps[0]["status"]], marks=marks, missing=True, cells=behind)
    mains = [value.main for value in found if value.main]
    return Entry(
        _set(column, [value.campaign() for value in found]),
        words,
        marks,
        hover=" | ".join(dict.fromkeys(v.hover for v in found if v.hover)),
        freshness=worst(main["freshness"] for main in mains if main["freshness"]),
        cells=behind,
    )


def _judged(column: Column, row: str, index: Index) -> Entry:
    """The worst verdict of a column's values, with the tolerance or bound of each."""
    found = _values(column, row, index)
    verdicts = [v.main["verdict"] for v in found if v.main and v.main["verdict"] in VERDICTS[1:]]
    if not verdicts:
        return Entry("")
    texts = [value.tolerance() for value in found]
    text = _set(column, texts) if set(texts) != {DASH} else ""
    return Entry(text, verdict=max(verdicts, key=VERDICTS.index))


def _set(column: Column, texts: list[str]) -> str:
    if set(texts) == {DASH}:
        return DASH
    if column.merged and len(set(texts)) == 1:
        return texts[0]
    return column.pattern.format(*texts)


def _suffix_once(texts: list[str]) -> list[str]:
    """Percentage points named once, after the last of several differences."""
    if not all(text.endswith(POINTS) for text in texts):
        return texts
    return [*(text.removesuffix(POINTS) for text in texts[:-1]), texts[-1]]


def entry_text(entry: Entry) -> str:
    """An entry's text, its geometry with signs of multiplication: 8x48 as 8×48."""
    return re.sub(r"(?<=\d)x(?=\d)", "×", entry.text) if entry.form == "geometry" else entry.text
