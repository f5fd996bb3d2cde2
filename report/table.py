"""Declarations of tables, and the cells of all tables: the paper's values and each setting's.

A table is a function under `@table`. Its parameters name fields of `Records`. It yields the cells
that have a value, in the records' unit. tables/<label>.csv declares its columns. `cells` joins the
paper's values by key, converts to the paper's units and adds missing cells with the reason.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from inspect import signature
from itertools import groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from relation.errors import InputError
from relation.jobs import UNTRAINED
from relation.variants import PAIRED, VARIANTS
from report import paper, stats
from report.data import Records, gap
from report.paper import KEY, SCALES, UNITS

COLUMNS = [
    "setting", "table", *KEY, "paper", "paper_value", "value", "text", "unit", "n", "sd", "low",
    "high", "difference", "agrees", "status", "reason", "sources", "by_seed", "scale",
]  # fmt: skip

FOLDER = Path(__file__).parent / "tables"
NUMBERS = ("value", "sd", "low", "high")
# Rows with the keys of COLUMNS, in the records' unit.
Cells = Iterable[dict[str, Any]]


@dataclass(frozen=True)
class Column:
    """A column of a table, which is a line of the table's CSV.

    column: key of the cells. format: empty for words. unit: used if the paper prints no value. of:
    the variants of the runs, or the benchmark, behind the column, if neither its key nor its row
    names them. null: the value of no effect, or the column that holds it; the paper's value agrees
    only if our interval excludes the null. shows: "spread" for ±, "interval" for the interval; a
    column whose null is a number always shows it. measured: the side, if any, and the field of a
    benchmark's records.
    """

    panel: str
    column: str
    title: str
    format: str
    unit: str
    of: tuple[str, ...] = ()
    null: float | str | None = None
    shows: str = ""
    measured: str = ""


@cache
def read_columns(label: str) -> tuple[Column, ...]:
    """Read a table's columns. Raises InputError for an unknown unit."""
    parsed = []
    for row in paper.read(FOLDER / f"{label}.csv").to_dict("records"):
        null = row.get("null") or None
        if null and re.fullmatch(r"[\d.]+", null):
            null = float(null)
        parsed.append(Column(**row | {"of": tuple(row.get("of", "").split()), "null": null}))
    return tuple(parsed)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table. inputs: fields of `Records` that `compute` takes; a gap lacks the first one.

    rows: of a panel whose rows are not the paper's. scale: of rows that name none. names: labels of
    rows; a row without one is labelled by its key and titles, such as 10M, MHA for 10M/mha.
    """

    number: str
    label: str
    title: str
    caption: str
    inputs: tuple[str, ...]
    compute: Callable[..., Cells]
    rows: Mapping[str, Sequence[str]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    scale: str | None = None
    of_paper: bool = True

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns by key."""
        return {column.column: column for column in read_columns(self.label)}

    @property
    def printed(self) -> pd.DataFrame:
        """The paper's values, as `paper.load`."""
        return paper.load(self.label) if self.of_paper else paper.NOTHING

    @property
    def panels(self) -> dict[str, list[Column]]:
        """The columns by the heading of their panel."""
        by_panel = groupby(read_columns(self.label), attrgetter("panel"))
        return {panel: list(columns) for panel, columns in by_panel}

    def rows_of(self, panel: str) -> Sequence[str]:
        """Return the rows that a panel always shows; other rows show if they have cells."""
        if panel in self.rows:
            return self.rows[panel]
        in_panel = self.printed["column"].isin([column.column for column in self.panels[panel]])
        return list(self.printed["row"][in_panel].unique())


def table(number: str, label: str, title: str, **options: Any) -> Callable[[Callable], Table]:
    """Declare a table. Its function's parameters name its inputs; its docstring is the caption."""

    def declare(compute: Callable[..., Cells]) -> Table:
        inputs, caption = tuple(signature(compute).parameters), " ".join(compute.__doc__.split())
        derived = {"caption": caption, "inputs": inputs, "compute": compute}
        return Table(number=number, label=label, title=title, **derived, **options)

    return declare


def cell(
    row: str, column: str, value: float | stats.Estimate = math.nan,
    of: pd.DataFrame | None = None, **fields: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return one cell for a value, or for an estimate with its interval.

    of: the rows behind the cell. fields: other keys of COLUMNS. n is 0 unless the status is ok.
    """
    made = {
        "row": row, "column": column, "statistic": "value", "value": value, "by_seed": {},
        "n": int(fields.get("status", "ok") == "ok"), "status": "ok", "reason": "",
        "sources": () if of is None else sources(of),
    }  # fmt: skip
    if isinstance(value, stats.Estimate):
        made |= {name: getattr(value, name) for name in (*NUMBERS, "n")}
    return made | fields


def means(values: pd.DataFrame, statistic: str = "value", none: str = "diverged") -> Cells:
    """Yield means over seeds with 95% t intervals; for the statistic `mean` also a cell `sd`.

    values: one row per seed with row, column, seed, value and source (one source per line). none:
    the meaning of a NaN. recorded: the seeds, for `_name_missing`.
    """
    for (row, column), group in values.groupby(["row", "column"], sort=False):
        recorded = dict(zip(group["seed"].astype(int), group["value"].astype(float), strict=True))
        by_seed = {seed: value for seed, value in recorded.items() if not math.isnan(value)}
        mean = stats.mean(by_seed.values())
        lacking = ", ".join(str(seed) for seed in recorded if seed not in by_seed)
        reason = f"{none}: seeds {lacking}" if lacking else ""
        status = {"status": "ok" if by_seed else none, "reason": reason, "recorded": set(recorded)}
        yield cell(row, column, mean, group, statistic=statistic, by_seed=by_seed, **status)
        if mean.n == 1:
            why = "one seed has a value; a standard deviation takes two"
            status = {"status": "undetermined", "reason": why}
        if statistic == "mean":
            yield cell(row, column, mean.sd, group, statistic="sd", n=mean.n, **status)


def sources(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the distinct sources of some rows."""
    return tuple(dict.fromkeys("\n".join(rows["source"]).splitlines()))


def versus(
    values: pd.DataFrame, over: str, under: str, column: str, combine: Callable = operator.sub
) -> pd.DataFrame:
    """Combine two columns seed by seed, by default over − under, into rows for `means`."""
    terms = [values[values["column"] == name] for name in (over, under)]
    pairs = terms[0].merge(terms[1], on=["row", "seed"], suffixes=("", "_under"))
    value = combine(pairs["value"].astype(float), pairs["value_under"].astype(float))
    source = pairs["source_under"] + "\n" + pairs["source"]
    return pairs[["row", "seed"]].assign(column=column, value=value, source=source)


def ratios(values: pd.DataFrame, over: str, under: str, column: str) -> Cells:
    """Yield ratios of two columns' means over common seeds, with intervals of the seeds' ratios."""
    by_seed = versus(values, over, under, column, operator.truediv)
    for mean in means(by_seed):
        common = values[(values["row"] == mean["row"]) & values["seed"].isin(mean["by_seed"])]
        top, bottom = (common[common["column"] == name]["value"].mean() for name in (over, under))
        # Move the interval to the ratio of the means; keep its width.
        shift = top / bottom - mean["value"]
        yield mean | {end: mean[end] + shift for end in ("value", "low", "high")}


def table_cells(table: Table, records: Records) -> pd.DataFrame:
    """Return one setting's cells of a table, with COLUMNS, the paper's values and the gaps.

    Values are in `unit`. difference: value - paper_value; NaN for cells of one seed, deviations and
    miniatures. agrees: see Column; None if undecided. scale: the setting's own. Raises InputError
    if the table lacks a column of the paper's CSV, or one that it computes.
    """
    try:
        computed = list(table.compute(*(getattr(records, name) for name in table.inputs)))
    except Exception as error:
        error.add_note(f"in table {table.label} of {records.setting.name}")
        raise
    printed = table.printed
    used = {cell["column"] for cell in computed if cell["row"] != "setting"}
    if unknown := (used | set(printed["column"])) - set(table.columns):
        path = f"report/tables/{table.label}.csv"
        problem = f"has no column {min(unknown)!r}, which the table computes or the paper prints"
        raise InputError(f"{path} {problem}; correct one of them")
    _name_missing(table, records, computed)
    computed += _gaps(table, records, computed)
    ours = [name for name in COLUMNS if name in KEY or name not in printed]
    cells = pd.DataFrame(computed, columns=ours).astype(dict.fromkeys(NUMBERS, float))
    cells = _in_units(table, cells.merge(printed, "left", on=KEY))
    cells["setting"], cells["table"] = records.setting.name, table.label
    own_scales = pd.concat([records.models, records.planned]).set_index("scale")["own_scale"]
    cells["scale"] = cells["row"].str.split("/").str[0].map(own_scales.to_dict())

    difference = cells["value"] - cells["paper_value"]
    keys = zip(cells["row"], cells["column"], strict=True)
    difference[[seed_of(table, *key) is not None for key in keys]] = math.nan
    difference[(cells["statistic"] == "sd") | records.miniature] = math.nan
    cells["difference"] = difference
    cells["agrees"] = _agrees(table, cells)
    words = ["paper", "text", "scale"]
    cells[words] = cells[words].astype(object).where(cells[words].notna(), None)
    return cells[COLUMNS]


def _in_units(table: Table, cells: pd.DataFrame) -> pd.DataFrame:
    """Add `unit` and convert the numbers to it; clip intervals of shares to 0 to 100%."""
    units = {key: column.unit for key, column in table.columns.items()}
    of_column = cells["column"].map(units).where(cells["row"] != "setting")
    cells["unit"] = cells["unit"].fillna(of_column).fillna("text")
    unit_size = cells["unit"].map(UNITS).astype(float)
    cells[list(NUMBERS)] = cells[list(NUMBERS)].div(unit_size, axis=0)
    pairs = zip(cells["by_seed"], unit_size, strict=True)
    cells["by_seed"] = [{seed: v / size for seed, v in values.items()} for values, size in pairs]
    # A signed format shows a difference, which can be negative.
    shares = [k for k, c in table.columns.items() if c.unit == "%" and "+" not in c.format]
    of_share = cells["column"].isin(shares)
    cells.loc[of_share, ["low", "high"]] = cells.loc[of_share, ["low", "high"]].clip(0, 100)
    return cells


def _agrees(table: Table, cells: pd.DataFrame) -> pd.Series:
    """Return whether our interval holds the paper's value; None if it also holds the null."""
    values = cells[cells["statistic"] != "sd"].set_index(["row", "column"])["value"].to_dict()
    agrees: list[bool | None] = []
    for cell in cells.itertuples():
        null = table.columns[cell.column].null if cell.column in table.columns else None
        if isinstance(null, str):
            null = values.get((cell.row, null))
        inside = cell.low <= cell.paper_value <= cell.high
        undecided = pd.isna([null, cell.low, cell.difference]).any()
        if undecided or (inside and cell.low <= null <= cell.high):
            inside = None
        agrees.append(inside)
    return pd.Series(agrees, cells.index, dtype=object)


def _name_missing(table: Table, records: Records, computed: Cells) -> None:
    """Add to the reasons of means over the matrix the seeds of which they have no record."""
    seeds = {*records.seeds}
    for each in computed:
        recorded = each.get("recorded")
        if recorded and recorded < seeds and seed_of(table, each["row"], each["column"]) is None:
            why = f"seeds without a value: {', '.join(map(str, sorted(seeds - recorded)))}"
            each["reason"] = "; ".join(filter(None, [each["reason"], why]))


def _gaps(table: Table, records: Records, computed: Cells) -> Cells:
    """Yield a cell with a reason for each of the table's rows and columns without a value."""
    present = {(each["row"], each["column"]) for each in computed}
    asked = table.printed.groupby(["row", "column"])["statistic"].agg(list).to_dict()
    for panel, columns in table.panels.items():
        for row, column in product(table.rows_of(panel), columns):
            key = (row, column.column)
            if key in present:
                continue
            first, last = row.partition("/")[0], column.column.rpartition(".")[2]
            scale = first if first in SCALES else table.scale
            variants = column.of or [name for name in (row, last) if name in VARIANTS] or PAIRED
            kind = next((name for name in variants if name in UNTRAINED), table.inputs[0])
            status, reason = gap(records, kind, scale, variants, seed_of(table, *key))
            for statistic in asked.get(key, ["value"]):
                yield cell(*key, statistic=statistic, status=status, reason=reason)


def seed_of(table: Table, row: str, column: str) -> int | None:
    """Return the seed that a row (10M/42, 42) or column (seed_42) of a table of runs names."""
    for part in (row.rpartition("/")[2], column.removeprefix("seed_")):
        if part.isdigit() and table.inputs[0] == "runs":
            return int(part)
    return None


def cells(records: Sequence[Records], tables: Sequence[Table]) -> pd.DataFrame:
    """Return the cells of some tables in every setting."""
    frames = (table_cells(table, each) for table in tables for each in records)
    return pd.concat(frames, ignore_index=True)
