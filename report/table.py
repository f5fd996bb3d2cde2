"""A table as a declaration, and the cells of all tables: the paper's values beside each setting's.

A table is a function under `@table`: it takes the frames of one setting that its parameters name
and yields the cells that have a value, in the records' unit. tables/<label>.csv has its columns.
`cells` joins the paper's values by key, converts to the paper's units and adds what is missing,
with the reason.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from relation.errors import InputError
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
# Rows of COLUMNS, in the records' unit.
Cells = Iterable[dict[str, Any]]


@dataclass(frozen=True)
class Column:
    """A column of a table, a line of its CSV.

    column: key of the cells; format: empty for words; unit: where the paper prints no value; of:
    variants of the runs, or the benchmark, behind it, where neither its key nor its row says so;
    null: the value of no effect, or the column that holds it; the paper's value counts as agreeing
    only where our interval excludes the null. shows: "spread" for ±, "interval" for the interval,
    which is always shown beside a null that is a number. measured: of a benchmark's column, the
    side, if it is of one, and the field of the records.
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
def columns(label: str) -> tuple[Column, ...]:
    """The columns of a table. Raises InputError for a missing CSV or another column or unit."""
    names = list(Column.__dataclass_fields__)
    rows = paper.lines(FOLDER / f"{label}.csv", names[:5], names[5:])
    found = []
    for row in rows.to_dict("records"):
        null = row.get("null", "")
        null = float(null) if re.fullmatch(r"[\d.]+", null) else null or None
        found.append(Column(**row | {"of": tuple(row.get("of", "").split()), "null": null}))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table. frames: of `Records`, what `compute` takes; the first is what a gap lacks.

    rows: of a panel whose rows are not the paper's; scale: of rows that name none; names: labels of
    rows whose key is none; others are words, as 10M, 42 for 10M/42.
    """

    number: str
    label: str
    title: str
    caption: str
    frames: tuple[str, ...]
    compute: Callable[..., Cells]
    rows: Mapping[str, Sequence[str]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    scale: str | None = None
    of_paper: bool = True

    @property
    def columns(self) -> dict[str, Column]:
        """Its columns by key."""
        return {column.column: column for column in columns(self.label)}

    @property
    def panels(self) -> dict[str, list[Column]]:
        """Its columns by heading."""
        return {k: list(of) for k, of in groupby(columns(self.label), attrgetter("panel"))}

    def rows_of(self, panel: str) -> Sequence[str]:
        """The rows that a panel always shows; further ones are shown where they are found."""
        if panel in self.rows or not self.of_paper:
            return self.rows.get(panel, ())
        printed = paper.load(self.label)
        of = printed["column"].isin([column.column for column in self.panels[panel]])
        return list(printed["row"][of].unique())


def table(number: str, label: str, title: str, **known: Any) -> Callable[[Callable], Table]:
    """Declare a table: its function's parameters name the frames, its docstring is the caption."""

    def declare(compute: Callable[..., Cells]) -> Table:
        frames, caption = tuple(signature(compute).parameters), " ".join(compute.__doc__.split())
        own = {"caption": caption, "frames": frames, "compute": compute}
        return Table(number=number, label=label, title=title, **own, **known)

    return declare


def cell(
    row: str,
    column: str,
    value: float | stats.Estimate = math.nan,
    of: pd.DataFrame | None = None,
    **known: Any,
) -> dict[str, Any]:
    """One cell, of a value or of an estimate with its interval.

    of: the rows that it rests on; known: any other of COLUMNS. One with a status other than ok has
    n = 0.
    """
    found = dict.fromkeys(COLUMNS[2:]) | {"statistic": "value", "status": "ok", "by_seed": {}}
    found |= {"row": row, "column": column, "value": value, "reason": ""}
    found |= dict.fromkeys(("sd", "low", "high"), math.nan)
    found |= {
        "n": int(known.get("status", "ok") == "ok"),
        "sources": () if of is None else sources(of),
    }
    if isinstance(value, stats.Estimate):
        found |= {name: getattr(value, name) for name in (*NUMBERS, "n")}
    return found | known


def means(values: pd.DataFrame, statistic: str = "value", seeds: Sequence[int] = ()) -> Cells:
    """Means over seeds with their 95% t interval; with the statistic `mean` also a row `sd`.

    values: a row a seed with row, column, seed, value and source (a line each);
    NaN is a run that diverged; seeds: the planned ones, of which a mean says which it lacks.
    """
    for (row, column), group in values.groupby(["row", "column"], sort=False):
        every = dict(zip(group["seed"].astype(int), group["value"].astype(float), strict=True))
        by_seed = {seed: value for seed, value in every.items() if not math.isnan(value)}
        found = stats.mean(list(by_seed.values()))
        lacking = {
            "diverged: seeds": [seed for seed in every if seed not in by_seed],
            "seeds without a value:": [seed for seed in seeds if seed not in every],
        }
        told = (f"{why} {', '.join(map(str, of))}" for why, of in lacking.items() if of)
        known = {"reason": "; ".join(told), "sources": sources(group)}
        known["status"] = "ok" if by_seed else "diverged"
        yield cell(row, column, found, statistic=statistic, by_seed=by_seed, **known)
        if found.n == 1:
            why = "one seed has a value; a standard deviation takes two"
            known |= {"status": "undetermined", "reason": why}
        if statistic == "mean":
            yield cell(row, column, found.sd, statistic="sd", n=found.n, **known)


def sources(rows: pd.DataFrame) -> tuple[str, ...]:
    """The distinct sources of some rows."""
    return tuple(dict.fromkeys("\n".join(rows["source"]).splitlines()))


def versus(
    values: pd.DataFrame, over: str, under: str, column: str, combine: Callable = operator.sub
) -> pd.DataFrame:
    """Rows as `means` takes them: one column's values less another's, seed by seed."""
    terms = [values[values["column"] == name] for name in (over, under)]
    both = terms[0].merge(terms[1], on=["row", "seed"], suffixes=("", "_under"))
    value = combine(both["value"].astype(float), both["value_under"].astype(float))
    source = both["source_under"] + "\n" + both["source"]
    return both[["row", "seed"]].assign(column=column, value=value, source=source)


def ratios(values: pd.DataFrame, over: str, under: str, column: str) -> Cells:
    """Ratios of two columns' means over their common seeds; intervals of the seeds' own ratios."""
    of_seeds = versus(values, over, under, column, operator.truediv)
    for found in means(of_seeds):
        common = values[(values["row"] == found["row"]) & values["seed"].isin(found["by_seed"])]
        top, bottom = (common[common["column"] == name]["value"].mean() for name in (over, under))
        shift = top / bottom - found["value"]
        ends = {end: found[end] + shift for end in ("value", "low", "high")}
        yield found | ends


def table_cells(table: Table, records: Records) -> pd.DataFrame:
    """One setting's cells of a table, as COLUMNS, with the paper's values and the gaps.

    Values are in `unit`; difference = value - paper_value, of means and single values that belong
    to no seed; agrees: see Column, None where undecided; scale: the setting's own. Raises
    InputError where the paper's CSV holds a column that the table has not.
    """
    printed = paper.load(table.label).to_dict("records") if table.of_paper else []
    theirs = {tuple(each[name] for name in KEY): each for each in printed}
    try:
        found = list(table.compute(*(getattr(records, name) for name in table.frames)))
    except Exception as error:
        error.add_note(f"in table {table.label} of {records.setting.name}")
        raise
    there = {(each["row"], each["column"]) for each in found}
    wanted = [(r, c) for p, of in table.panels.items() for r in table.rows_of(p) for c in of]
    for row, column in (key for key in wanted if (key[0], key[1].column) not in there):
        asked = [key[2] for key in theirs if key[:2] == (row, column.column)] or ["value"]
        status, reason = _gap(table, records, row, column)
        known = {"status": status, "reason": reason}
        found += [cell(row, column.column, statistic=each, **known) for each in asked]
        there.add((row, column.column))
    for key in theirs:
        if key[:2] not in there:
            told = f"report/paper/{table.label}.csv: the table has no {', '.join(key)}; correct it"
            raise InputError(told)
    known = table.columns
    named = (records.models, records.planned)
    scales = {a: b for frame in named for a, b in frame[["scale", "own_scale"]].to_numpy()}
    for each in found:
        own = known.get(each["column"]) if each["row"] != "setting" else None
        beside = theirs.get(tuple(each[name] for name in KEY), {})
        unit = beside.get("unit") or (own.unit if own else "text")
        each |= {name: each[name] / UNITS[unit] for name in NUMBERS}
        each["by_seed"] = {seed: value / UNITS[unit] for seed, value in each["by_seed"].items()}
        each |= {"setting": records.setting.name, "table": table.label, "unit": unit}
        each["scale"] = scales.get(each["row"].partition("/")[0])
        each |= {"paper": beside.get("printed"), "paper_value": beside.get("paper_value", math.nan)}
        single = each["statistic"] == "sd" or seed_of(table, each["row"], each["column"])
        alone = single or records.miniature
        each["difference"] = math.nan if alone else each["value"] - each["paper_value"]
    values = {(c["row"], c["column"]): c["value"] for c in found if c["statistic"] != "sd"}
    for each in found:
        null = known[each["column"]].null if each["column"] in known else None
        null = values.get((each["row"], null)) if isinstance(null, str) else null
        each["agrees"] = None if math.isnan(each["difference"]) else _agrees(null, each)
    numbers = dict.fromkeys((*NUMBERS, "paper_value", "difference"), float) | {"n": int}
    return pd.DataFrame(found, columns=COLUMNS, dtype=object).astype(numbers)


def _agrees(null: float | None, cell: Mapping[str, Any]) -> bool | None:
    """Whether the paper's value lies in our interval; None where the null does as well."""
    if null is None or math.isnan(cell["low"]):
        return None
    inside = bool(cell["low"] <= cell["paper_value"] <= cell["high"])
    return None if inside and cell["low"] <= null <= cell["high"] else inside


def _gap(table: Table, records: Records, row: str, column: Column) -> tuple[str, str]:
    first = row.partition("/")[0]
    scale = first if first in SCALES else table.scale
    named = [part for part in (row, column.column.rpartition(".")[2]) if part in VARIANTS]
    variants, seed = column.of or named or PAIRED, seed_of(table, row, column.column)
    return gap(records, table.frames[0], scale, variants, seed)


def seed_of(table: Table, row: str, column: str) -> int | None:
    """The seed that a row (10M/42, 42) or a column (seed_42) of a table of runs is of."""
    parts = (row.rpartition("/")[2], column.removeprefix("seed_"))
    numbers = [int(part) for part in parts if part.isdigit() and table.frames[0] == "runs"]
    return numbers[0] if numbers else None


def cells(records: Sequence[Records], tables: Sequence[Table]) -> pd.DataFrame:
    """The cells of some tables in every setting."""
    return pd.concat(
        [table_cells(table, each) for table in tables for each in records], ignore_index=True
    )
