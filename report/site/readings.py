"""The page "Readings": what each reading gives, which one the rule chooses, what turns on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from report.readings.rule import LEAST_SHARE, VALUES
from report.readings.values import BY_NAME, INTERVALS, Statistic
from report.readings.words import PREFIX, amount, interval, probability, title

Row = Mapping[str, Any]

# Sign, class of colour and words of an answer: whether it holds, whether the interval says so too.
ANSWERS = {
    (True, True): ("✓", "agrees", "holds, established"),
    (True, False): ("(✓)", "open", "holds, not established"),
    (True, None): ("✓", "open", "holds, no interval"),
    (False, True): ("✗", "differs", "does not hold, established"),
    (False, False): ("(✗)", "open", "does not hold, not established"),
    (False, None): ("✗", "open", "does not hold, no interval"),
}
NO_ANSWER = ("·", "open", "no direction in the paper")
SHORT = {"self_flow": "Self", "effective_rank": "rank"}
OPERATORS = {"full": "Relation", "mha": "MHA"}


@dataclass(frozen=True)
class Value:
    """One statistic of one reading, in print."""

    reading: str
    beside: bool
    text: str
    interval: str
    n: int
    answer: tuple[str, str, str]
    inside: bool | None
    difference: str
    holm: str
    against: str
    turns: bool


@dataclass(frozen=True)
class Curve:
    """One statistic: its figure, what is said of it, and every reading's value, sorted by it."""

    name: str
    title: str
    claim: int | None
    paper: str
    said: str
    figure: Row | None
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Readings:
    """What the page shows. Empty where the campaign has no run of a reading.

    said: sentences by place; turns: by claim, what its answer turns on; curves: a statistic each,
    by claim; readings: the rows of readings_choice.parquet; nearest: the same by distance to the
    paper, what has none last; runs: the rows of readings_runs.parquet by reading; figures: by name.
    """

    said: Mapping[str, Sequence[str]]
    turns: Mapping[int, str]
    curves: Mapping[int | None, Sequence[Curve]]
    readings: Sequence[Row]
    nearest: Sequence[Row]
    runs: Mapping[str, Sequence[Row]]
    figures: Mapping[str, Row]

    def __bool__(self) -> bool:
        return bool(self.curves)

    @property
    def matrix(self) -> list[tuple[Row, list[Value | None]]]:
        """A row a reading with a value, a column a statistic, in the order of ``curves``."""
        curves = [curve for group in self.curves.values() for curve in group]
        by_name = [{value.reading: value for value in curve.values} for curve in curves]
        rows = [(r, [values.get(r["reading"]) for values in by_name]) for r in self.readings]
        return [(reading, values) for reading, values in rows if any(values)]

    @property
    def logged(self) -> list[tuple[Row, list[Value | None]]]:
        """Tokens spared by reading, a column an interval of logging."""
        names = [f"spared-every-{every}" for every in INTERVALS]
        curves = {curve.name: curve for curve in self.curves.get(3, ())}
        found = [
            {v.reading: v for v in curves[name].values} if name in curves else {} for name in names
        ]
        rows = [(r, [values.get(r["reading"]) for values in found]) for r in self.readings]
        return [(reading, values) for reading, values in rows if any(values)]

    @property
    def deviations(self) -> list[str]:
        """The headings of the eight values, as they stand in a row's ``terms``."""
        return [f"{SHORT[v.metric]}\n{OPERATORS[v.variant]}\nL{v.layer}" for v in VALUES]

    def tied(self, row: Row) -> bool:
        """Whether the rule cannot tell a candidate from the nearest."""
        return row["candidate"] and row["nearer"] is not None and row["nearer"] >= LEAST_SHARE


def is_of_readings(figure: Row) -> bool:
    """Whether a figure stands on this page and not among the others."""
    return figure["name"].startswith(PREFIX)


def run_names(rows: Iterable[Row]) -> set[str]:
    """The runs of readings_runs.parquet, as reading/variant/seed."""
    return {f"{row['reading']}/{row['variant']}/{row['seed']}" for row in rows}


def read_readings(
    values: Iterable[Row],
    choice: Sequence[Row],
    runs: Iterable[Row],
    said: Iterable[Row],
    figures: Iterable[Row],
) -> Readings:
    """Lay out the rows of readings.parquet and its three companions, with the figures."""
    drawn = {figure["name"]: figure for figure in figures if is_of_readings(figure)}
    sentences: dict[str, list[str]] = {}
    of_statistic, turns = {}, {}
    for row in said:
        sentences.setdefault(row["place"], []).append(row["text"])
        if row["place"] == "statistic":
            of_statistic[row["statistic"]] = row["text"]
        elif row["place"] == "turns":
            turns[row["claim"]] = row["text"]
    beside = {row["reading"]: row["beside"] for row in choice}
    grouped: dict[str, list[Row]] = {}
    for row in values:
        grouped.setdefault(row["statistic"], []).append(row)
    curves: dict[int | None, list[Curve]] = {}
    for name, rows in grouped.items():
        curve = _curve(BY_NAME[name], rows, beside, of_statistic[name], drawn.get(PREFIX + name))
        curves.setdefault(curve.claim, []).append(curve)
    by_reading: dict[str, list[Row]] = {}
    for row in runs:
        by_reading.setdefault(row["reading"], []).append(row)
    return Readings(
        said=sentences,
        turns=turns,
        curves=curves,
        readings=choice,
        nearest=sorted(choice, key=lambda r: math.inf if r["distance"] is None else r["distance"]),
        runs=by_reading,
        figures=drawn,
    )


def _curve(
    statistic: Statistic,
    rows: Sequence[Row],
    beside: Mapping[str, bool],
    said: str,
    figure: Row | None,
) -> Curve:
    return Curve(
        name=statistic.name,
        title=title(statistic),
        claim=statistic.claim,
        paper=amount(statistic.paper, statistic, unit=True),
        said=said,
        figure=figure,
        values=tuple(
            _value(statistic, row, beside[row["reading"]])
            for row in sorted(rows, key=lambda row: row["mean"])
        ),
    )


def _value(statistic: Statistic, row: Row, beside: bool) -> Value:
    against = "not compared"
    if row["base"]:
        against = "the base"
    elif row["turns"]:
        against = "turns"
    elif row["told_apart"]:
        against = "told apart"
    elif row["p"] is not None:
        against = "not told apart"
    return Value(
        reading=row["reading"],
        beside=beside,
        text=amount(row["mean"], statistic),
        interval=interval(row["low"], row["high"], statistic),
        n=row["n"],
        answer=ANSWERS.get((row["holds"], row["established"]), NO_ANSWER),
        inside=row["paper_inside"],
        difference=_difference(statistic, row),
        holm="" if row["p_holm"] is None else probability(row["p_holm"]),
        against=against,
        turns=bool(row["turns"]),
    )


def _difference(statistic: Statistic, row: Row) -> str:
    """A reading less the base; of ratios and shares, how many times the ratio or the odds."""
    names = ("difference", "difference_low", "difference_high")
    values = [row[name] for name in names]
    if values[0] is None:
        return ""
    if statistic.transform == "identity":
        told = [_signed(statistic, value) for value in values]
    else:
        told = ["" if value is None else f"{math.exp(value):.3g}" for value in values]
        told[0] = f"{'odds ' if statistic.transform == 'logit' else ''}× {told[0]}"
    return f"{told[0]} [{told[1]}, {told[2]}]" if all(told[1:]) else told[0]


def _signed(statistic: Statistic, value: float | None) -> str:
    if value is None:
        return ""
    told = amount(value, statistic)
    return told if told[0] in "+−" or not value else f"+{told}"
