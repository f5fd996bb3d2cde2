"""A table as a declaration, and the cells of all tables: the paper's values beside each setting's.

A table is a function under `@table`: it takes the frames of one setting that its parameters name
and yields the cells that have a value, in the records' unit. `cells` joins the paper's values by
key, converts to the paper's units and adds what is missing, with the reason.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pandas as pd

from relation.errors import InputError
from relation.variants import PAIRED, VARIANTS
from report import paper, stats
from report.data import Records, gap
from report.paper import KEY, SCALES, UNITS

COLUMNS = [
    "setting", "table", *KEY, "paper", "paper_value", "value", "text", "unit", "n", "sd", "low",
    "high", "difference", "agrees", "status", "reason", "sources", "by_seed",
]  # fmt: skip

# Rows of COLUMNS, in the records' unit.
Cells = Iterable[dict[str, Any]]


@dataclass(frozen=True)
class Column:
    """A column of the paper's table.

    key: of the cells; form: a format specification, empty for words; unit: where the paper prints
    no value; variants: of the runs, or the benchmark, behind it, where neither its key nor its row
    says so; null: the value of no effect, or the column that holds it; the paper's value counts as
    agreeing only where our interval excludes the null. spread, interval: whether ± and the
    interval are shown; the interval always is beside a null that is a number.
    """

    key: str
    title: str
    form: str = ""
    unit: str = "text"
    variants: tuple[str, ...] = ()
    null: float | str | None = None
    spread: bool = False
    interval: bool = False


def columns(
    titles: Mapping[str, str], form: str = "", unit: str = "text", **options: Any
) -> tuple[Column, ...]:
    """Columns of one format and unit: their titles by key."""
    return tuple(Column(key, title, form, unit, **options) for key, title in titles.items())


@dataclass(frozen=True)
class Panel:
    """Columns under one heading. rows: always shown; further ones are, where they are found."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]


def panel(title: str, rows: Iterable[str], *columns: Column) -> Panel:
    """A panel of some columns."""
    return Panel(title, tuple(rows), columns)


@dataclass(frozen=True)
class Table:
    """One table. frames: of `Records`, what `compute` takes; the first is what a gap lacks.

    scale: of rows that name none; names: labels of rows whose key is none.
    """

    number: str
    label: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    frames: tuple[str, ...]
    compute: Callable[..., Cells]
    scale: str | None
    names: Mapping[str, str]
    of_paper: bool

    @property
    def columns(self) -> dict[str, Column]:
        """Its columns by key."""
        return {column.key: column for panel in self.panels for column in panel.columns}

    def label_of(self, row: str) -> str:
        """The printed label of a row: its name, or its key in words, as 10M, 42."""
        return self.names.get(row) or row.replace("/", ", ")


def table(
    number: str,
    label: str,
    title: str,
    *panels: Panel,
    scale: str | None = None,
    names: Mapping[str, str] | None = None,
    of_paper: bool = True,
) -> Callable[[Callable[..., Cells]], Table]:
    """Declare a table: its function's parameters name the frames, its docstring is the caption."""

    def declare(compute: Callable[..., Cells]) -> Table:
        frames, caption = tuple(signature(compute).parameters), " ".join(compute.__doc__.split())
        known = (scale, names or {}, of_paper)
        return Table(number, label, title, caption, panels, frames, compute, *known)

    return declare


def cell(row: str, column: str, value: float = math.nan, **known: Any) -> dict[str, Any]:
    """One cell; known: any other of COLUMNS."""
    found = dict.fromkeys(COLUMNS[2:]) | {"statistic": "value", "n": 1, "status": "ok"}
    found |= {"row": row, "column": column, "value": value, "reason": "", "sources": ()}
    found |= dict.fromkeys(("sd", "low", "high"), math.nan) | {"by_seed": {}}
    return found | known


def estimate(row: str, column: str, found: stats.Estimate, **known: Any) -> dict[str, Any]:
    """One cell of an estimate with its interval."""
    ends = {"low": found.low, "high": found.high, "sd": found.sd, "n": found.n}
    return cell(row, column, found.value, **ends | known)


def means(
    values: pd.DataFrame, statistic: str = "value", seeds: Sequence[int] = ()
) -> Iterator[dict[str, Any]]:
    """Means over seeds with their 95% t interval; with the statistic `mean` also a row `sd`.

    values: a row a seed with row, column, seed, value and source (a tuple of sources, or one);
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
        yield estimate(row, column, found, statistic=statistic, by_seed=by_seed, **known)
        if statistic == "mean":
            if found.n == 1:
                why = "one seed has a value; a standard deviation takes two"
                known |= {"status": "undetermined", "reason": why}
            yield cell(row, column, found.sd, statistic="sd", n=found.n, **known)


def sources(rows: pd.DataFrame) -> tuple[str, ...]:
    """The distinct sources of some rows."""
    found: dict[str, None] = {}
    for source in rows["source"]:
        found |= dict.fromkeys((source,) if isinstance(source, str) else source)
    return tuple(found)


def between(
    values: pd.DataFrame,
    over: str,
    under: str,
    column: str,
    combine: Callable[[float, float], float] = float.__sub__,
) -> pd.DataFrame:
    """Rows as `means` takes them: one column's values less another's, seed by seed."""
    terms = [values[values["column"] == name] for name in (over, under)]
    both = terms[0].merge(terms[1], on=["row", "seed"], suffixes=("", "_under"))
    pairs = zip(both["value"].astype(float), both["value_under"].astype(float), strict=True)
    behind = zip(both["source_under"], both["source"], strict=True)
    return both.assign(
        column=column,
        value=[combine(a, b) for a, b in pairs],
        source=[(*_tuple(a), *_tuple(b)) for a, b in behind],
    )[["row", "column", "seed", "value", "source"]]


def _tuple(source: str | tuple[str, ...]) -> tuple[str, ...]:
    return (source,) if isinstance(source, str) else source


def ratios(values: pd.DataFrame, over: str, under: str, column: str) -> Iterator[dict[str, Any]]:
    """Ratios of two columns' means over their common seeds; intervals of the seeds' own ratios."""
    of_seeds = between(values, over, under, column, float.__truediv__)
    for found in means(of_seeds):
        common = values[(values["row"] == found["row"]) & values["seed"].isin(found["by_seed"])]
        top, bottom = (common[common["column"] == name]["value"].mean() for name in (over, under))
        shift = top / bottom - found["value"]
        ends = {end: found[end] + shift for end in ("value", "low", "high")}
        yield found | ends


def table_cells(table: Table, records: Records) -> pd.DataFrame:
    """One setting's cells of a table, as COLUMNS, with the paper's values and the gaps.

    Values are in `unit`; difference = value - paper_value, of means and single values that belong
    to no seed; agrees: see Column, None where undecided. Raises InputError where the paper's CSV
    holds a key that the table has not.
    """
    frames = (getattr(records, name) for name in table.frames)
    found = list(table.compute(*frames))
    there = {(each["row"], each["column"]) for each in found}
    printed = _printed(table)
    asked = printed.groupby(["row", "column"])["statistic"].agg(list).to_dict()
    for panel in table.panels:
        for row in panel.rows:
            for column in panel.columns:
                if (row, column.key) not in there:
                    found += _gaps(table, records, row, column, asked.get((row, column.key)))
    rows = pd.DataFrame(found, columns=COLUMNS).drop(columns=["paper", "paper_value", "unit"])
    rows = rows.merge(printed, on=KEY, how="left")
    lost = set(map(tuple, printed[KEY].to_numpy())) - set(map(tuple, rows[KEY].to_numpy()))
    for row, column, statistic in sorted(lost):
        if (row, column) not in there:
            key = f"{row}, {column}, {statistic}"
            raise InputError(f"report/paper/{table.label}.csv: the table has no {key}; correct it")
    return _compared(table, records, rows)[COLUMNS]


def _printed(table: Table) -> pd.DataFrame:
    if not table.of_paper:
        return pd.DataFrame(columns=[*KEY, "paper", "unit", "paper_value"])
    return paper.load(table.label).rename(columns={"printed": "paper"})


def _gaps(
    table: Table, records: Records, row: str, column: Column, statistics: list[str] | None
) -> Iterator[dict[str, Any]]:
    first = row.partition("/")[0]
    scale = first if first in SCALES else table.scale
    named = [part for part in (row, column.key.rpartition(".")[2]) if part in VARIANTS]
    status, reason = gap(
        records,
        table.frames[0],
        scale,
        column.variants or named or PAIRED,
        seed_of(table, row, column.key),
    )
    for statistic in statistics or ["value"]:
        known = {"statistic": statistic, "n": 0, "status": status, "reason": reason}
        yield cell(row, column.key, **known)


def seed_of(table: Table, row: str, column: str) -> int | None:
    """The seed that a row (10M/42, 42) or a column (seed_42) of a table of runs is of."""
    parts = (row.rpartition("/")[2], column.removeprefix("seed_"))
    numbers = [int(part) for part in parts if part.isdigit() and table.frames[0] == "runs"]
    return numbers[0] if numbers else None


def _compared(table: Table, records: Records, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows in the cells' unit, set against the paper."""
    columns = table.columns
    own = rows["column"].map(lambda key: columns[key].unit if key in columns else "text")
    own = own.where(rows["row"] != "setting", "text")
    rows["unit"] = rows["unit"].where(rows["unit"].notna(), own)
    size = rows["unit"].map(UNITS)
    for name in ("value", "sd", "low", "high"):
        rows[name] = rows[name].astype(float) / size
    rows["by_seed"] = [
        {seed: value / by for seed, value in values.items()} if by != 1 else values
        for values, by in zip(rows["by_seed"], size, strict=True)
    ]
    for name in ("paper", "text"):
        rows[name] = rows[name].astype(object).where(rows[name].notna(), None)
    rows["paper_value"] = rows["paper_value"].astype(float)
    of_seed = [
        seed_of(table, row, column) is not None
        for row, column in zip(rows["row"], rows["column"], strict=True)
    ]
    comparable = ~pd.Series(of_seed, index=rows.index, dtype=bool) & (rows["statistic"] != "sd")
    comparable &= not records.miniature
    rows["difference"] = (rows["value"] - rows["paper_value"]).where(comparable)
    main = rows[rows["statistic"] != "sd"].set_index(["row", "column"])["value"]
    rows["agrees"] = [
        _agrees(columns[row.column].null, row, main) if known else None
        for known, row in zip(rows["difference"].notna(), rows.itertuples(), strict=True)
    ]
    return rows.assign(setting=records.setting.name, table=table.label)


def _agrees(null: float | str | None, row: Any, main: pd.Series) -> bool | None:
    """Whether the paper's value lies in our interval; None where the null does as well."""
    if isinstance(null, str):
        null = main.get((row.row, null))
    if null is None or math.isnan(row.low) or math.isnan(null):
        return None
    inside = bool(row.low <= row.paper_value <= row.high)
    return None if inside and row.low <= null <= row.high else inside


def cells(records: Sequence[Records], tables: Sequence[Table]) -> pd.DataFrame:
    """The cells of some tables in every setting."""
    return pd.concat(
        [table_cells(table, each) for table in tables for each in records], ignore_index=True
    )
