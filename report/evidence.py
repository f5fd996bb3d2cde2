"""Compare measured values with the paper's: terms, evidence, and the verdict that they give.

docs/preregistration.md has the rules and says when each was fixed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev

import pandas as pd

from report import stats
from report.data import Records
from report.paper import SCALES, SEEDS

# For each verdict: its sign, its class in the style sheet, and its meaning.
VERDICTS = {
    "reproduced": ("✓", "agrees", "The paper's sign or bound holds, and its size if asked for."),
    "direction only": ("≈", "partly", "The paper's sign holds; its size does not or is undecided."),
    "not reproduced": ("✗", "differs", "A sign, a bound or a value without a sign is not met."),
    "chose the setting": ("○", "open", "No verdict: its layers, 0 and 1, chose this setting."),
    "not tested": ("–", "open", "The runs or measurements are missing or differ from the paper's."),
}
NOT_ESTABLISHED = "its 95% interval includes values that contradict this result"
ONE_SEED = "one seed has no interval"
# Lengths, in tokens, of the sequences that the paper diagnoses (Appendix B.4, B.5).
PAPER_LENGTHS = {"flow_length": 1024, "rank_length": 512}
LAST_BIT = 1e-9  # tolerance: sums of the same numbers may differ in the last bit


@dataclass(frozen=True)
class Term:
    """One quantity in the paper's unit: the paper's printed value, and a setting's measured one.

    rounding: half a unit of the last printed digit. spread: standard deviation over the paper's
    seeds, if the paper prints them. by_seed: the values behind a mean over seeds. low, high: the
    95% interval of a table's cell; a combination of terms has none.
    """

    paper: float = math.nan
    rounding: float = 0.0
    unit: str = "1"
    value: float | None = None
    by_seed: dict[int, float] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    n: int = 0
    status: str = "not run"
    reason: str = "no record of it"
    spread: float | None = None

    def __sub__(self, other: Term) -> Term:
        return self._combined(other, operator.sub, self.rounding + other.rounding, self.unit)

    def __truediv__(self, other: Term) -> Term:
        relative = self.rounding / self.paper + other.rounding / other.paper
        if 0 in (other.value, *other.by_seed.values()):
            other = replace(other, value=None, reason="the denominator is zero")
        return self._combined(other, operator.truediv, self.paper / other.paper * relative, "x")

    def _combined(self, other: Term, combine: Callable, rounding: float, unit: str) -> Term:
        """Combine two terms, over their common seeds if both have values by seed."""
        combined = Term(combine(self.paper, other.paper), rounding, unit)
        for term in (self, other):
            if term.value is None:
                return replace(combined, status=term.status, reason=term.reason)
        seeds = sorted(self.by_seed.keys() & other.by_seed.keys())
        if self.by_seed and other.by_seed and not seeds:
            return replace(combined, reason="no seed has both")
        combined = replace(combined, status="ok", reason=self.reason or other.reason)
        if not seeds:
            return replace(combined, value=combine(self.value, other.value), n=min(self.n, other.n))
        means = [fmean(term.by_seed[seed] for seed in seeds) for term in (self, other)]
        by_seed = {seed: combine(self.by_seed[seed], other.by_seed[seed]) for seed in seeds}
        return replace(combined, value=combine(*means), by_seed=by_seed, n=len(seeds))

    def against(self, paper: Term) -> Term:
        """Return this measured value with the printed value of another term."""
        return replace(self, paper=paper.paper, rounding=paper.rounding)

    def with_spread(self, seeds: Iterable[Term]) -> Term:
        """Return the term with the standard deviation of the paper's seeds, if all are printed."""
        values = [seed.paper for seed in seeds]
        return replace(self, spread=None if any(map(math.isnan, values)) else stdev(values))


class Case:
    """One setting's cells, keyed by table, row, column and statistic, and its records."""

    def __init__(self, cells: pd.DataFrame, records: Records) -> None:
        keys = cells[["table", "row", "column", "statistic"]].itertuples(index=False, name=None)
        rows = cells.astype(object).where(cells.notna(), None).to_dict("records")
        self.cells = dict(zip(keys, rows, strict=True))
        self.records = records

    def term(self, table: str, row: str, column: str, statistic: str = "value") -> Term:
        """Return one cell as a term; an empty term if the setting has no such cell."""
        cell = self.cells.get((table, row, column, statistic))
        if cell is None:
            return Term()
        names = ("value", "unit", "by_seed", "low", "high", "n", "status")
        fields = {name: cell[name] for name in names if cell[name] is not None}
        paper = math.nan if cell["paper_value"] is None else cell["paper_value"]
        decimals = len((cell["paper"] or "").partition(".")[2])
        return Term(paper, 0.5 * 10.0**-decimals, reason=cell["reason"] or "", **fields)

    def layers(self, scale: str, column: str) -> list[Term]:
        """Return a column of Table 7, one term per layer of a scale."""
        table = "app-structural-layerwise"
        rows = [row for label, row, key, _ in self.cells if (label, key) == (table, column)]
        return [self.term(table, row, column) for row in rows if row.startswith(f"{scale}/L")]

    def ours_and_paper(self, table: str, row: str, column: str) -> tuple[object, object]:
        """Return our value and the paper's: as words, or as numbers if the cell has no words."""
        cell = self.cells.get((table, row, column, "value"), {})
        keys = ("text", "paper") if cell.get("text") else ("value", "paper_value")
        return cell.get(keys[0]), cell.get(keys[1])

    def pair(self, table: str, scale: str, column: str) -> tuple[Term, Term]:
        """Return Relation's term and MHA's."""
        return self.term(table, scale, f"{column}.full"), self.term(table, scale, f"{column}.mha")

    def seeds(self, table: str, scale: str, column: str) -> list[Term]:
        """Return one term per seed of the paper."""
        return [self.term(table, f"{scale}/{seed}", column) for seed in SEEDS]

    def mismatch(self, scale: str, needs: Sequence[str]) -> str:
        """Return why this scale's models or diagnosis differ from the paper's, or ""."""
        if not scale:
            return ""
        for need in needs:
            if need == "pair":  # Relation's flow counts only if MHA's was measured as well
                full, mha = self.pair("relation_internal", scale, "l0_self")
                if full.value is not None and mha.value is None:
                    return f"MHA of {scale}: {mha.reason or mha.status}"
                continue
            table = "relation_internal" if need in PAPER_LENGTHS else "app-configs"
            ours, paper = self.ours_and_paper(table, scale, need)
            paper = PAPER_LENGTHS.get(need, paper)
            if ours is not None and ours != paper:
                shown = self.cells[table, scale, need, "value"].get("scale") or scale  # 10M-mini
                return f"{need.replace('_', ' ')} of {shown} is {ours}, the paper's {paper}"
        return ""


@dataclass(frozen=True)
class Evidence:
    """One comparison of our value with the paper's, in ``unit``.

    direction: whether the paper's sign or bound holds. size: whether the paper's value is met.
    They are None if undecided or not asked for. contested: the interval includes values that would
    decide otherwise, or one seed gives no interval. essential: without it, a claim is not tested;
    any other row may be missing. informative: the row decides nothing. n: number of what
    ``counted`` names, out of ``paper_n``. scale: the scale of the models behind the row, or "".
    """

    label: str
    quantity: str
    unit: str = "1"
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
    asks_size: bool = True
    essential: bool = False
    informative: bool = False
    note: str = ""
    scale: str = ""

    @property
    def difference(self) -> float | None:
        """Our value minus the paper's; None if either is missing, or for counts out of paper_n."""
        comparable = None not in (self.ours, self.paper) and self.paper_n is None
        return self.ours - self.paper if comparable else None

    def undecided(self, why: str) -> Evidence:
        """Return the row as undecided, with the reason; unchanged if `why` is empty."""
        return replace(self, direction=None, size=None, note=why) if why else self

    def noted(self, note: str) -> Evidence:
        return replace(self, note=joined(self.note, note))


def above(bound: float) -> Callable[[float], bool]:
    return lambda value: value > bound


def below(bound: float) -> Callable[[float], bool]:
    return lambda value: value < bound


def joined(*notes: str) -> str:
    return "; ".join(dict.fromkeys(filter(None, notes)))


def compare(
    label: str, quantity: str, term: Term, direction: Callable[[float], bool] | None = None,
    met: Callable[[float], bool] | None = None, **fields: object,
) -> Evidence:  # fmt: skip
    """Compare a measured value with the paper's.

    The size is met if the paper's value lies in our 95% t interval over seeds, or if ours lies
    within one of the paper's standard deviations or within its rounding. ``met`` replaces this
    rule. direction: tells whether a value has the paper's sign; None: no sign is asked for.
    fields: further fields of the evidence, such as the scale if the label has more than it.
    """
    paper = None if math.isnan(term.paper) else term.paper
    scale = label if label in SCALES else ""
    # A job that failed or ran out of memory was tried. It is not a scale that was left out.
    tried = term.status in ("failed", "oom")
    of = {"scale": scale, "essential": tried, "note": term.reason}
    evidence = Evidence(label, quantity, term.unit, paper, n=term.n, **of | fields)
    # A target loss that was never reached is an answer; a missing run is not.
    if term.status == "not reached":
        evidence = replace(evidence, direction=False, contested=term.n == 1)
        return evidence.noted(ONE_SEED if evidence.contested else "")
    if term.value is None:
        return evidence
    low, high = term.low, term.high
    tolerances = [] if term.spread is None else [term.spread]
    if len(term.by_seed) > 1:
        mean = stats.mean(term.by_seed.values())
        margin = mean.high - mean.value
        tolerances.append(margin)
        if low is None:  # else the cell's own interval counts
            low, high = term.value - margin, term.value + margin
    if low is None:
        contested, caveat = len(term.by_seed) == 1, ONE_SEED
    else:
        contested = any(rule(low) != rule(high) for rule in (met, direction) if rule)
        caveat = NOT_ESTABLISHED
    size = None
    if met:
        size = met(term.value)
    elif abs(term.value - term.paper) <= max([*tolerances, term.rounding]) * (1 + LAST_BIT):
        size = True
    elif tolerances:  # else a single value that is off may be noise: the size is undecided
        size = False
    fewer = f"seeds here: {term.n}, in the paper: 3" if 0 < len(term.by_seed) < len(SEEDS) else ""
    return replace(
        evidence, ours=term.value, low=low, high=high, size=size if evidence.asks_size else None,
        direction=direction(term.value) if direction else None, contested=contested,
        note=joined(fewer, term.reason, caveat if contested else ""),
    )  # fmt: skip


def outcome(evidence: Sequence[Evidence]) -> tuple[str, str, str]:
    """Return verdict, reason and the labels that are not established, by the fixed rules.

    Reproduced: every direction and size that is asked for holds. Direction only: the signs hold,
    and a size fails or is undecided. A size that fails without a sign is not reproduced.
    """
    rows = [row for row in evidence if not row.informative]
    undecided = [row for row in rows if row.direction is None and row.size is None]
    decided = [row for row in rows if row not in undecided]
    failed = [row for row in rows if row.direction is False]
    missed = [row for row in rows if row.size is False]
    unsigned = [row for row in missed if row.direction is None]
    notes = joined(*(row.note for row in undecided))
    if failed or unsigned:
        causes = {"the direction does not hold": failed, "the paper's value is not met": unsigned}
        reason = "; ".join(f"{cause}: {_names(of)}" for cause, of in causes.items() if of)
        unsure = [row for row in (*failed, *unsigned) if row.contested]
        if len(unsure) == len(failed) + len(unsigned):
            return "not reproduced", reason, _names(unsure)
        if unsure:  # one established failure is enough
            reason += f" (not established: {_names(unsure)})"
        return "not reproduced", reason, ""
    if not decided:
        return "not tested", notes or "no record of it", ""
    if essential := [row for row in undecided if row.essential]:
        held = [row for row in decided if row.size is not False]
        holds = f"it holds for {_names(held)}; " if held else ""
        return "not tested", f"{holds}undecided: {_names(essential)} ({notes})", ""
    contested = _names([row for row in decided if row.contested])
    remaining = f"; decided without {_names(undecided)}: {notes}" if undecided else ""
    unsized = [row for row in decided if row.asks_size and row.size is None]
    if missed or unsized:
        what = "the size differs" if missed else "the size is undecided"
        return "direction only", f"{what}: {_names(missed or unsized)}{remaining}", contested
    return "reproduced", f"the rule holds in {len(decided)} of {len(rows)}{remaining}", contested


def _names(rows: Sequence[Evidence]) -> str:
    labels = list(dict.fromkeys(row.label for row in rows))
    return ("; " if any("," in label for label in labels) else ", ").join(labels)
