"""A piece of evidence for a claim, and the verdict that several of them give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from report.values.layout import SEEDS
from report.values.measured import Measured
from report.values.paper import UNIT_SCALE, load, spread

Verdict = Literal[
    "reproduced", "direction only", "not reproduced", "chose the reading", "not tested"
]
# A scale that was tried and gave no value is not one that was left out.
_TRIED = ("failed", "oom")
# Equal sums of equal numbers may differ in the last bit.
LAST_BIT = 1e-9
_CONTESTED = "its 95% interval includes values that would decide the other way"
_ALONE = "one seed has no interval"


@dataclass(frozen=True)
class Printed:
    """What the paper prints, in ``unit``: the value, half a unit of its last digit, its spread.

    spread: standard deviation over the paper's seeds, where it prints them.
    """

    value: float
    rounding: float
    unit: str
    spread: float | None = None

    def __sub__(self, other: Printed) -> Printed:
        rounding = self.rounding + other.rounding
        return Printed(self.value - other.value, rounding, self.unit)

    def __truediv__(self, other: Printed) -> Printed:
        ratio = self.value / other.value
        rounding = ratio * (self.rounding / self.value + other.rounding / other.value)
        return Printed(ratio, rounding, "x")


def printed(label: str, row: str, column: str, statistic: str = "value") -> Printed:
    """A number of the paper's tables."""
    found = load(label)[row, column, statistic]
    return Printed(found.number, found.rounding, found.unit, spread(label, row, column))


class Term(NamedTuple):
    """One quantity, as the paper prints it and as the campaign measured it."""

    paper: Printed
    ours: Measured

    def __sub__(self, other: Term) -> Term:
        return Term(self.paper - other.paper, self.ours - other.ours)

    def __truediv__(self, other: Term) -> Term:
        return Term(self.paper / other.paper, self.ours / other.ours)


def rises(value: float) -> bool:
    """The sign of a rise."""
    return value > 0


def falls(value: float) -> bool:
    """The sign of a fall."""
    return value < 0


@dataclass(frozen=True)
class Evidence:
    """One comparison.

    direction: whether the paper's sign or bound holds, size: whether its value is met; None where
    that is undecided. contested: the 95% interval includes values that would decide the other way,
    or one seed has none.
    asks_direction and asks_size: whether the claim needs them. essential: the claim is not tested
    without it; else it may be missing, as a scale that was not run. What failed or ran out of
    memory is essential. beside: it is shown and decides nothing; told: what such a row says of the
    claim in a few words, to stand beside the verdict. n counts what ``counted`` says;
    paper_n: what the paper's count is out of, ours being out of n. scales: of the models behind
    it, where its records do not say.
    """

    label: str
    quantity: str
    unit: str
    paper: float | None = None
    ours: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    counted: str = "seeds"
    paper_n: int | None = None
    direction: bool | None = None
    size: bool | None = None
    contested: bool = False
    asks_direction: bool = True
    asks_size: bool = True
    essential: bool = False
    beside: bool = False
    told: str = ""
    note: str = ""
    sources: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()

    @classmethod
    def of(cls, label: str, quantity: str, measured: Measured, **fields: object) -> Evidence:
        """What the campaign measured, in its unit; ``fields`` replace and add."""
        shown = {name: getattr(measured, name) for name in ("unit", "n", "sources")}
        shown |= {"ours": measured.value, "note": measured.reason}
        return cls(label, quantity, **shown | fields)

    @property
    def undecided(self) -> bool:
        """Whether it says neither yes nor no."""
        return self.direction is None and self.size is None


def joined(*notes: str) -> str:
    """Notes as one, each once; the empty ones say nothing."""
    return "; ".join(dict.fromkeys(filter(None, notes)))


def says_otherwise(
    holds: Callable[[float], bool] | None, low: float | None, high: float | None
) -> bool:
    """Whether a bound holds for some values of an interval and not for others."""
    if holds is None or low is None or high is None:
        return False
    return holds(low) != holds(high)


def compare(
    label: str,
    quantity: str,
    paper: Printed,
    measured: Measured,
    direction: Callable[[float], bool] | None,
    *,
    met: Callable[[float], bool] | None = None,
    ends: tuple[float | None, float | None] | None = None,
    counted: str = "seeds",
    essential: bool = False,
) -> Evidence:
    """Hold a value of the campaign against the paper's.

    The size is met where the paper's value lies in our 95% t interval over seeds, or ours within
    one of the paper's standard deviations or of its rounding; or as ``met`` says.

    Args:
        measured: in the records' unit, with its values by seed.
        direction: whether a value in the paper's unit has the paper's sign; None: no sign is
            asked for.
        met: whether a value in the paper's unit meets the paper's size.
        ends: of the 95% interval in the paper's unit, where it is not one over seeds.
        counted: what ``measured.n`` counts.
        essential: the claim is not tested without it.
    """
    given = Evidence.of(
        label,
        quantity,
        measured,
        unit=paper.unit,
        paper=paper.value,
        counted=counted,
        asks_direction=direction is not None,
        essential=essential or measured.status in _TRIED,
    )
    if measured.value is None:
        # A loss that was never reached is an answer, and a run that is not there is none.
        return replace(given, direction=False if measured.status == "not reached" else None)
    scale = UNIT_SCALE[paper.unit]
    ours = measured.value / scale
    margin = None if measured.margin is None else measured.margin / scale
    if ends is None:
        ends = (None, None) if margin is None else (ours - margin, ours + margin)
    alone = margin is None and len(measured.by_seed) == 1
    contested = any(says_otherwise(holds, *ends) for holds in (met, direction))
    open_ = _ALONE if alone else _CONTESTED if contested else ""
    size, why = _size(paper, ours, margin) if met is None else (met(ours), "")
    fewer = ""
    if 0 < len(measured.by_seed) < len(SEEDS):
        seeds = "one seed" if measured.n == 1 else f"{measured.n} seeds"
        fewer = f"{seeds}, the paper's mean is of {len(SEEDS)}"
    low, high = ends
    return replace(
        given,
        ours=ours,
        low=low,
        high=high,
        direction=None if direction is None else direction(ours),
        size=size,
        contested=bool(open_),
        note=joined(fewer, measured.reason, why, open_),
    )


def _size(paper: Printed, ours: float, margin: float | None) -> tuple[bool | None, str]:
    """Whether a value is as near to the paper's as their spreads allow, or why that is open."""
    known = [size for size in (margin, paper.spread) if size is not None]
    near = abs(ours - paper.value) <= max([*known, paper.rounding]) * (1 + LAST_BIT)
    return (near, "") if known or near else (None, _ALONE)


def shown_beside(found: Evidence) -> Evidence:
    """The same comparison, shown and deciding nothing."""
    return replace(found, size=None, asks_size=False, essential=False, beside=True)


def undecided(found: Evidence, why: str) -> Evidence:
    """The same comparison, which decides nothing for a reason."""
    return replace(found, direction=None, size=None, note=why)


def _names(rows: Sequence[Evidence]) -> str:
    return _listed(row.label for row in rows)


def _listed(labels: Iterable[str]) -> str:
    """Labels one after the other, each once."""
    labels = list(dict.fromkeys(labels))
    return ("; " if any("," in label for label in labels) else ", ").join(labels)


def _absent(undecided: Sequence[Evidence], decided: Sequence[Evidence]) -> str:
    """The labels of what is undecided; of a scale of which nothing is decided, the scale alone."""
    there = {row.label.partition(",")[0] for row in decided}
    labels = (row.label for row in undecided)
    return _listed(x if (scale := x.partition(",")[0]) in there else scale for x in labels)


class Outcome(NamedTuple):
    """A verdict, its reason, and the labels of what it rests on without being established by it.

    not_established is empty where every interval of what decides is there and includes no values
    that would decide the other way. without: the labels of what is not there to decide, of a scale
    that lacks all of it the scale alone; empty where nothing is tested.
    """

    verdict: Verdict
    reason: str
    not_established: str = ""
    without: str = ""


def outcome(evidence: Sequence[Evidence]) -> Outcome:
    """The verdict of several pieces of evidence by the rules fixed in advance, and its reason.

    Reproduced: direction and size hold everywhere they are asked for. Direction only: the sign
    holds and a size does not. A piece without a sign is not reproduced where its size fails.
    """
    rows = [row for row in evidence if not row.beside]
    wrong = [row for row in rows if row.direction is False]
    missed = [row for row in rows if row.size is False]
    unsigned = [row for row in missed if not row.asks_direction]
    undecided = [row for row in rows if row.undecided]
    decided = [row for row in rows if not row.undecided]
    notes = "; ".join(dict.fromkeys(row.note for row in undecided if row.note))
    without = _absent(undecided, decided)
    if wrong or unsigned:
        told = (("the direction does not hold", wrong), ("the paper's value is not met", unsigned))
        reason = "; ".join(f"{what}: {_names(those)}" for what, those in told if those)
        deciding = [*wrong, *unsigned]
        contested = _names([row for row in deciding if row.contested])
        if all(row.contested for row in deciding):
            return Outcome("not reproduced", reason, contested, without)
        # One that is established is enough.
        apart = f" (not established: {contested})" if contested else ""
        return Outcome("not reproduced", reason + apart, without=without)
    if not decided:
        return Outcome("not tested", notes or "this campaign holds no record of it")
    essential = [row for row in undecided if row.essential]
    if essential:
        held = [row for row in decided if row.size is not False]
        said = f"it holds for {_names(held)}; " if held else ""
        why = f" ({notes})" if notes else ""
        return Outcome("not tested", f"{said}undecided: {_names(essential)}{why}")
    contested = _names([row for row in decided if row.contested])
    unsized = [row for row in decided if row.asks_size and row.size is None]
    left = f"; without {_names(undecided)}: {notes}" if undecided else ""
    if missed:
        said = f"the size is another: {_names(missed)}{left}"
        return Outcome("direction only", said, contested, without)
    if unsized:
        why = "; ".join(dict.fromkeys(row.note for row in unsized if row.note))
        said = f"the size is undecided: {_names(unsized)}" + (f" ({why})" if why else "")
        return Outcome("direction only", said + left, contested, without)
    all_of = {1: "", 2: " in both comparisons"}
    said = f"the rule is met{all_of.get(len(decided), f' in all {len(decided)} comparisons')}"
    return Outcome("reproduced", said + left, contested, without)
