"""A piece of evidence for a claim, and the verdict that several of them give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from report import paper_seeds
from report.compute.measured import Measured
from report.layout import SEEDS
from report.paper import UNIT_SCALE

Verdict = Literal["reproduced", "direction only", "not reproduced", "not tested"]
# A scale that was tried and gave no value is not one that was left out.
_TRIED = ("failed", "oom")
# Equal sums of equal numbers may differ in the last bit.
_LAST_BIT = 1e-9


@dataclass(frozen=True)
class Printed:
    """What the paper prints, in ``unit``: the value, half a unit of its last digit, its spread.

    spread: standard deviation over the paper's seeds, where it prints them.
    """

    value: float
    rounding: float
    unit: str
    spread: float | None = None

    def minus(self, other: Printed) -> Printed:
        """The difference of two printed values."""
        rounding = self.rounding + other.rounding
        return Printed(self.value - other.value, rounding, self.unit)

    def over(self, other: Printed) -> Printed:
        """The ratio of two printed values."""
        ratio = self.value / other.value
        rounding = ratio * (self.rounding / self.value + other.rounding / other.value)
        return Printed(ratio, rounding, "x")


def printed(label: str, row: str, column: str, statistic: str = "value") -> Printed:
    """A number of the paper's tables."""
    found = paper_seeds.printed(label, row, column, statistic)
    return Printed(
        found.number,
        paper_seeds.resolution(found.printed),
        found.unit,
        paper_seeds.spread(label, row, column),
    )


@dataclass(frozen=True)
class Evidence:
    """One comparison.

    direction: whether the paper's sign or bound holds, size: whether its value is met; None where
    that is undecided. asks_direction and asks_size: whether the claim needs them. essential: the
    claim is not tested without it; else it may be missing, as a scale that was not run. What
    failed or ran out of memory is essential. scales: of the models behind it, where its records
    do not say.
    """

    label: str
    quantity: str
    unit: str
    paper: float | None = None
    ours: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    direction: bool | None = None
    size: bool | None = None
    asks_direction: bool = True
    asks_size: bool = True
    essential: bool = False
    note: str = ""
    sources: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()

    @property
    def undecided(self) -> bool:
        """Whether it says neither yes nor no."""
        return self.direction is None and self.size is None


def joined(*notes: str) -> str:
    """Notes as one; the empty ones say nothing."""
    return "; ".join(filter(None, notes))


def compare(
    label: str,
    quantity: str,
    paper: Printed,
    measured: Measured,
    direction: Callable[[float], bool] | None,
    *,
    essential: bool = False,
) -> Evidence:
    """Hold a value of the campaign against the paper's.

    The size is met where the paper's value lies in our 95% t interval over seeds, or ours within
    one of the paper's standard deviations or of its rounding.

    Args:
        measured: in the records' unit, with its values by seed.
        direction: whether a value in the paper's unit has the paper's sign; None: no sign is
            asked for.
    """
    given = {
        "label": label,
        "quantity": quantity,
        "unit": paper.unit,
        "paper": paper.value,
        "asks_direction": direction is not None,
        "essential": essential or measured.status in _TRIED,
        "note": measured.reason,
        "sources": measured.sources,
    }
    if measured.value is None:
        # A loss that was never reached is an answer, and a run that is not there is none.
        missed = False if measured.status == "not reached" else None
        return Evidence(**given, n=measured.n, direction=missed)
    if 0 < len(measured.by_seed) < len(SEEDS):
        seeds = "one seed" if measured.n == 1 else f"{measured.n} seeds"
        fewer = f"{seeds}, the paper's mean is of {len(SEEDS)}"
        given["note"] = joined(fewer, measured.reason)
    scale = UNIT_SCALE[paper.unit]
    ours = measured.value / scale
    margin = None if measured.margin is None else measured.margin / scale
    known = [size for size in (margin, paper.spread) if size is not None]
    off = abs(ours - paper.value)
    size: bool | None = off <= max([*known, paper.rounding]) * (1 + _LAST_BIT)
    if not known and not size:
        size = None
        given["note"] = joined(given["note"], "one seed has no interval")
    ends = [] if margin is None or direction is None else [ours - margin, ours + margin]
    if len({direction(end) for end in ends}) > 1:
        given["note"] = joined(given["note"], "its interval holds values that say otherwise")
    return Evidence(
        **given,
        ours=ours,
        low=None if margin is None else ours - margin,
        high=None if margin is None else ours + margin,
        n=measured.n,
        direction=None if direction is None else direction(ours),
        size=size,
    )


def at_least_as_good(
    label: str,
    quantity: str,
    paper: Printed,
    worst: Printed,
    measured: Measured,
    *,
    more: bool,
    direction: Callable[[float], bool] | None,
) -> Evidence:
    """Hold a value against the paper's worst: at least it where ``more`` is better, else at most.

    A value that was not measured is undecided; if it failed, so is the claim.
    """
    ours = None if measured.value is None else measured.value / UNIT_SCALE[paper.unit]
    good = None
    if ours is not None:
        slack = worst.rounding + _LAST_BIT
        good = ours >= worst.value - slack if more else ours <= worst.value + slack
    return Evidence(
        label,
        quantity,
        paper.unit,
        paper.value,
        ours,
        n=measured.n,
        direction=None if direction is None or ours is None else direction(ours),
        size=good,
        asks_direction=direction is not None,
        essential=measured.status in _TRIED,
        note=measured.reason,
        sources=measured.sources,
    )


def _names(rows: Sequence[Evidence]) -> str:
    return ", ".join(dict.fromkeys(row.label for row in rows))


def outcome(rows: Sequence[Evidence]) -> tuple[Verdict, str]:
    """The verdict of several pieces of evidence by the rules fixed in advance, and its reason.

    Reproduced: direction and size hold everywhere they are asked for. Direction only: the sign
    holds and a size does not. A piece without a sign is not reproduced where its size fails.
    """
    wrong = [row for row in rows if row.direction is False]
    missed = [row for row in rows if row.size is False]
    unsigned = [row for row in missed if not row.asks_direction]
    undecided = [row for row in rows if row.undecided]
    notes = "; ".join(dict.fromkeys(row.note for row in undecided if row.note))
    if wrong or unsigned:
        what = "the direction does not hold" if wrong else "the paper's value is not met"
        return "not reproduced", f"{what}: {_names(wrong or unsigned)}"
    if len(undecided) == len(rows):
        return "not tested", notes or "this campaign holds no record of it"
    essential = [row for row in undecided if row.essential]
    if essential:
        return "not tested", f"undecided: {_names(essential)}" + (f" ({notes})" if notes else "")
    decided = [row for row in rows if not row.undecided]
    unsized = [row for row in decided if row.asks_size and row.size is None]
    left = f"; without {_names(undecided)}: {notes}" if undecided else ""
    if missed:
        return "direction only", f"the size is another: {_names(missed)}{left}"
    if unsized:
        why = "; ".join(dict.fromkeys(row.note for row in unsized if row.note))
        said = f"the size is undecided: {_names(unsized)}" + (f" ({why})" if why else "")
        return "direction only", said + left
    held = "it holds" if len(decided) == 1 else f"it holds in all {len(decided)} comparisons"
    return "reproduced", held + left
