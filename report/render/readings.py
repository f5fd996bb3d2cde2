"""The readings in print, for the page and the document: values, answers, distances, runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

from report.judge.readings_rule import DEFAULT, LEAST_SHARE, VALUES
from report.judge.readings_words import PREFIX, amount, heading, interval, probability, title
from report.render.templating import grouped
from report.values.numbers import DASH
from report.values.readings import BY_NAME, Statistic

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
# Where sentences stand, apart from those of a statistic and of what a claim turns on.
PLACES = ("headline", "finding", "answer", "practice")
NO_ANSWER = ("·", "open", "no direction in the paper")
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
    holds: bool | None
    established: bool | None
    inside: bool | None
    difference: str
    holm: str
    against: str
    turns: bool

    @property
    def answer(self) -> tuple[str, str, str]:
        """Whether the paper's direction holds, as a sign with its colour and words."""
        return ANSWERS.get((self.holds, self.established), NO_ANSWER)


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
    def base(self) -> Value | None:
        """The value that the others are compared with."""
        return next((value for value in self.values if value.against == "the base"), None)

    @property
    def _answered(self) -> list[Value]:
        """The readings proper for which the paper has a direction, those beside left out."""
        return [v for v in self.values if not v.beside and v.holds is not None]

    @property
    def holding(self) -> str:
        """In how many readings the paper's direction holds; a dash where it has none."""
        asked = self._answered
        return f"{sum(v.holds for v in asked)} of {len(asked)}" if asked else DASH

    @property
    def established(self) -> str:
        """In how many of them it is established, and against it; a dash without intervals."""
        tested = [v for v in self._answered if v.established is not None]
        sure = [v.holds for v in tested if v.established]
        return f"{sum(sure)}, {len(sure) - sum(sure)}" if tested else DASH


@dataclass(frozen=True)
class Readings:
    """What there is to show. Empty where the campaign has no run of a reading.

    said: sentences by place, of each of PLACES; turns: by claim, what its answer turns on; curves:
    a statistic each, by claim; readings: the rows of readings_choice.parquet; nearest: the same by
    distance to the paper, what has none last; runs: the rows of readings_runs.parquet by reading;
    figures: by name.
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
        """The reading that the others are compared with, whether the campaign has it or not."""
        return next((row["reading"] for row in self.readings if row["default"]), DEFAULT)

    @property
    def printed(self) -> list[Row]:
        """The figures that go on paper, which were drawn."""
        return [row for row in self.figures.values() if row["printed"] and row["file"]]

    def __bool__(self) -> bool:
        return bool(self.curves)

    def _by_reading(self, curves: Iterable[Curve]) -> list[tuple[Row, list[Value | None]]]:
        """The readings that have a value on some of these curves, those beside last."""
        found = [{value.reading: value for value in curve.values} for curve in curves]
        ordered = sorted(self.readings, key=itemgetter("beside"))
        rows = [(r, [values.get(r["reading"]) for values in found]) for r in ordered]
        return [(reading, values) for reading, values in rows if any(values)]

    @property
    def matrix(self) -> list[list[tuple[Row, list[Value | None]]]]:
        """A row a reading with a value, a column a statistic, in the order of ``curves``.

        The readings by residual scale, then those beside.
        """
        rows = self._by_reading(curve for group in self.curves.values() for curve in group)
        groups = grouped(rows, lambda r: "beside" if r[0]["beside"] else r[0]["residual"])
        return list(groups.values())

    @property
    def logged(self) -> list[tuple[Row, list[Value | None]]]:
        """Tokens spared by reading, a column an interval of logging."""
        return self._by_reading(self.curves.get(3, ()))

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


def read_readings(
    values: Iterable[Row],
    choice: Sequence[Row],
    runs: Iterable[Row],
    said: Iterable[Row],
    figures: Iterable[Row],
) -> Readings:
    """Lay out the rows of readings.parquet and its three companions, with the figures."""
    drawn = {figure["name"]: figure for figure in figures if is_of_readings(figure)}
    places = grouped(said, itemgetter("place"))
    of_statistic = {row["statistic"]: row["text"] for row in places.get("statistic", ())}
    beside = {row["reading"]: row["beside"] for row in choice}
    curves = [
        _curve(BY_NAME[name], rows, beside, of_statistic[name], drawn.get(PREFIX + name))
        for name, rows in grouped(values, itemgetter("statistic")).items()
    ]
    return Readings(
        said={place: [row["text"] for row in places.get(place, ())] for place in PLACES},
        turns={row["claim"]: row["text"] for row in places.get("turns", ())},
        curves=grouped(curves, attrgetter("claim")),
        readings=choice,
        nearest=sorted(choice, key=lambda r: math.inf if r["distance"] is None else r["distance"]),
        runs=grouped(runs, itemgetter("reading")),
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
            for row in sorted(rows, key=itemgetter("mean"))
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
        holds=row["holds"],
        established=row["established"],
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
