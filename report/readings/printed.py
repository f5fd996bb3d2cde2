"""The readings in print, for the page and the document: values, answers, distances, runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from report.numbers import DASH
from report.readings.rule import LEAST_SHARE, VALUES
from report.readings.values import BY_NAME, INTERVALS, Statistic
from report.readings.words import PREFIX, amount, heading, interval, probability, title

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
_SURE = (True, False, None)
NO_ANSWER = ("·", "open", "no direction in the paper")
# Figures of the document; the page has all.
ON_PAPER = ("final-nll", "advantage", "learning-rate", "l0-self-more", "validation")
SHORT = {"self_flow": "Self", "effective_rank": "rank"}
OPERATORS = {"full": "Full", "mha": "MHA"}


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
    heading: str
    claim: int | None
    paper: str
    said: str
    figure: Row | None
    values: tuple[Value, ...]

    @property
    def proper(self) -> list[Value]:
        """The values of the readings proper, those beside left out."""
        return [value for value in self.values if not value.beside]

    @property
    def base(self) -> Value | None:
        """The value that the others are compared with."""
        return next((value for value in self.values if value.against == "the base"), None)

    @property
    def holding(self) -> str:
        """In how many readings the paper's direction holds; a dash where it has none."""
        asked = [value.answer for value in self.proper if value.answer != NO_ANSWER]
        holds = [answer for answer in asked if answer in (ANSWERS[True, e] for e in _SURE)]
        return f"{len(holds)} of {len(asked)}" if asked else DASH

    @property
    def established(self) -> str:
        """In how many of them it is established, and against it; a dash without intervals."""
        answers = [value.answer for value in self.proper]
        if not any(answer in (ANSWERS[h, e] for h in (True, False) for e in (True, False))
                   for answer in answers):  # fmt: skip
            return DASH
        return f"{answers.count(ANSWERS[True, True])}, {answers.count(ANSWERS[False, True])}"


@dataclass(frozen=True)
class Readings:
    """What there is to show. Empty where the campaign has no run of a reading.

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

    @property
    def base(self) -> str:
        """The reading that the others are compared with."""
        return next(row["reading"] for row in self.readings if row["default"])

    @property
    def printed(self) -> list[Row]:
        """The figures that go on paper, which were drawn."""
        drawn = (self.figures.get(PREFIX + name) for name in ON_PAPER)
        return [figure for figure in drawn if figure is not None and figure["file"]]

    def __bool__(self) -> bool:
        return bool(self.curves)

    @property
    def matrix(self) -> list[list[tuple[Row, list[Value | None]]]]:
        """A row a reading with a value, a column a statistic, in the order of ``curves``.

        The readings by residual scale, then those beside.
        """
        curves = [curve for group in self.curves.values() for curve in group]
        by_name = [{value.reading: value for value in curve.values} for curve in curves]
        groups: dict[str, list[tuple[Row, list[Value | None]]]] = {}
        for reading in sorted(self.readings, key=lambda r: r["beside"]):
            values = [found.get(reading["reading"]) for found in by_name]
            if any(values):
                group = "beside" if reading["beside"] else reading["residual"]
                groups.setdefault(group, []).append((reading, values))
        return list(groups.values())

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

    def ruling(self, row: Row) -> str:
        """What the rule says of one row of ``nearest``."""
        if row["chosen"]:
            told = "chosen"
        elif not row["n"]:
            told = "no whole pair"
        elif row["beside"]:
            told = "no candidate"
        elif row["nearer"] is None:
            told = "not decided yet"
        elif row["nearer"] >= LEAST_SHARE:
            told = "not told from the nearest"
        else:
            told = "farther than the nearest"
        return f"{told}; the default" if row["default"] and not row["chosen"] else told


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
        heading=heading(statistic),
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
