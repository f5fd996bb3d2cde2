"""The vocabulary in which the tables are declared: forms, columns, rows, panels."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

import pandas as pd

from relation.spec import RunSpec
from report.values.frames import CampaignRecords
from report.values.measured import Measurements


@dataclass(frozen=True)
class Number:
    """How a number prints. The paper's own value decides the decimals where it prints one.

    ``significant`` is the least number of significant digits: a miniature campaign's 0.0213 GiB
    would otherwise shrink to 0.02. ``own`` keeps the form's decimals whatever the paper prints: its
    digits may be more than a measurement has. ``count`` prints the number of seeds beside the
    value; elsewhere a note gives it where it differs from the paper's three.
    """

    decimals: int = 0
    suffix: str = ""
    grouped: bool = False
    signed: bool = False
    significant: int = 0
    own: bool = False
    count: bool = False


@dataclass(frozen=True)
class Words:
    """A worded cell; ``formula`` sets ``T^2`` as a power, ``geometry`` turns 8x48 into 8×48."""

    kind: Literal["plain", "formula", "geometry"] = "plain"


@dataclass(frozen=True)
class Part:
    """One key of the cells inside a printed column."""

    column: str
    form: Number | Words


@dataclass(frozen=True)
class Column:
    """A printed column: parts set into ``pattern``, as in ``"{} → {}"``.

    ``merged`` is the pattern's short form for parts that read the same ("32/4" for both
    operators). ``operator`` marks a column that belongs to one of the paired operators.
    ``setting`` marks what was set and not measured, which a phone leaves out.
    """

    header: str
    parts: tuple[Part, ...]
    pattern: str = "{}"
    merged: bool = False
    operator: Literal["", "mha", "full", "both"] = ""
    setting: bool = False

    @property
    def align(self) -> str:
        if len(self.parts) > 1:
            return "c"
        return "l" if isinstance(self.parts[0].form, Words) else "r"


@dataclass(frozen=True)
class Row:
    """A printed row: the key in the cells, its labels, and the group that a rule sets apart."""

    key: str
    labels: tuple[str, ...]
    group: str = ""


@dataclass(frozen=True)
class Panel:
    """A block of columns under one heading; without ``rows`` it repeats the table's.

    ``measured`` marks a panel that only the campaign has: the paper prints nothing there. ``rows``
    of its own are printed where they have values, and the panel where it has such a row.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = ()
    measured: bool = False


class Note(NamedTuple):
    """A sentence on a table: to read first, or ``below`` the table, for who asks."""

    text: str
    below: bool = False


@dataclass(frozen=True)
class Needs:
    """What a table rests on, for what it alone would cost.

    Attributes:
        runs: whether it needs a run of the matrix.
        further: whether it shows the pairs beyond the matrix too.
        flow: whether it needs the diagnosed checkpoints of its runs.
        benchmarks: names of systems benchmarks.
    """

    runs: Callable[[RunSpec], bool] = lambda run: False
    further: bool = False
    flow: bool = False
    benchmarks: tuple[str, ...] = ()


SCALES = ("10M", "30M", "100M")
SEEDS = (42, 43, 44)
SCALE_ROWS = tuple(Row(scale, (scale,)) for scale in SCALES)


@dataclass(frozen=True)
class Table:
    """One table of the paper.

    Attributes:
        label: LaTeX label without ``tab:``; the file name of its values and of its pages.
        number: as the paper numbers it.
        title: a few words, as a heading.
        summary: one line for the index.
        caption: what the reader sees, without the campaign's name and devices.
        panels: its blocks of columns.
        measure: the campaign's values from its records, keyed (row, column, statistic).
        needs: the runs, diagnoses and benchmarks that it rests on.
        stubs: headings of the row labels.
        rows: as the paper prints them.
        systems: whether the paper measured it on its own GPU.
        extra_row: makes a row for a key that only the campaign has.
        label_column: the column of the cells that holds the campaign's own row label, where its
            rows meet the paper's by their place only.
        notes: sentences, or what makes some of the campaign's cells: what a value means before the
            table, what it was measured under below it.
    """

    label: str
    number: str
    title: str
    summary: str
    caption: str
    panels: tuple[Panel, ...]
    measure: Callable[[CampaignRecords], Measurements]
    needs: Needs = Needs()
    stubs: tuple[str, ...] = ("Scale",)
    rows: tuple[Row, ...] = SCALE_ROWS
    systems: bool = False
    extra_row: Callable[[str], Row] | None = None
    label_column: str = ""
    notes: tuple[Note | Callable[[pd.DataFrame], Iterable[Note]], ...] = ()

    def notes_on(self, cells: pd.DataFrame) -> list[Note]:
        """Its notes on a campaign's cells."""
        parts = ([part] if isinstance(part, Note) else part(cells) for part in self.notes)
        return list(chain.from_iterable(parts))


def block(*columns: Column) -> tuple[Panel, ...]:
    """The panels of a table that has one, without a title."""
    return (Panel("", columns),)


def value(
    header: str, key: str, form: Number | Words, operator: str = "", setting: bool = False
) -> Column:
    """A column of one value."""
    return Column(header, (Part(key, form),), operator=operator, setting=setting)


def arrow(header: str, key: str, form: Number) -> Column:
    """A column that prints MHA → Relation."""
    return Column(
        header, (Part(f"{key}.mha", form), Part(f"{key}.full", form)), "{} → {}", operator="both"
    )


def shown(cells: pd.DataFrame, column: str) -> list[tuple[str, float]]:
    """The rows and numbers of one column, where it has some, for a table's notes."""
    numbers = cells[(cells["column"] == column) & cells["value"].notna()]
    return list(numbers[["row", "value"]].itertuples(index=False, name=None))


def settings(cells: pd.DataFrame) -> dict[str, str]:
    """The texts of the row "setting" by column, for a table's notes."""
    return cells[cells["row"] == "setting"].set_index("column")["text"].to_dict()
