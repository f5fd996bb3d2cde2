"""How a measured value is held against the paper's: terms, evidence, and the verdict they give.

The rules are those of docs/preregistration.md, fixed before any run.
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

# Each verdict's sign, its class in the style sheet, and its meaning.
VERDICTS = {
    "reproduced": ("✓", "agrees", "The paper's sign or bound holds, and its size if one is asked."),
    "direction only": ("≈", "partly", "The sign holds where it ran; the size is another or open."),
    "not reproduced": ("✗", "differs", "The sign or the bound fails."),
    "chose the setting": ("○", "open", "No verdict: it rests on layers 0 and 1, which chose it."),
    "not tested": ("–", "open", "What decides it was not run, or not measured as the paper does."),
}
NOT_ESTABLISHED = "its 95% interval includes values that contradict this"
ONE_SEED = "one seed has no interval"
# Tokens of the sequences that the paper diagnoses (Appendix B.4, B.5).
PAPER_LENGTHS = {"flow_length": 1024, "rank_length": 512}
LAST_BIT = 1e-9  # equal sums of equal numbers may differ in the last bit


@dataclass(frozen=True)
class Term:
    """One quantity in the paper's unit: as the paper prints it, and as a setting measured it.

    rounding: half a unit of the last printed digit; spread: standard deviation over the paper's
    seeds, where it prints them. by_seed: the values behind a mean over seeds; low, high: the 95%
    interval of anything else.
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
        return self._with(other, operator.sub, self.rounding + other.rounding, self.unit)

    def __truediv__(self, other: Term) -> Term:
        relative = self.rounding / self.paper + other.rounding / other.paper
        if 0 in (other.value, *other.by_seed.values()):
            other = replace(other, value=None, reason="the denominator is zero")
        return self._with(other, operator.truediv, self.paper / other.paper * relative, "x")

    def _with(self, other: Term, combine: Callable, rounding: float, unit: str) -> Term:
        """Two terms over their common seeds; a ratio is that of the means."""
        combined = Term(combine(self.paper, other.paper), rounding, unit)
        seeds = sorted(self.by_seed.keys() & other.by_seed.keys())
        for term in (self, other):
            if term.value is None:
                return replace(combined, status=term.status, reason=term.reason)
        if self.by_seed and other.by_seed and not seeds:
            return replace(combined, reason="no seed has both")
        means = [fmean(t.by_seed[s] for s in seeds) if seeds else t.value for t in (self, other)]
        by_seed = {seed: combine(self.by_seed[seed], other.by_seed[seed]) for seed in seeds}
        n, reason = len(seeds) or min(self.n, other.n), self.reason or other.reason
        return replace(
            combined, value=combine(*means), by_seed=by_seed, n=n, status="ok", reason=reason
        )

    def against(self, paper: Term) -> Term:
        """Ours against what the paper prints elsewhere."""
        return replace(self, paper=paper.paper, rounding=paper.rounding)

    def with_spread(self, seeds: Iterable[Term]) -> Term:
        """With the standard deviation of what the paper prints seed by seed."""
        values = [seed.paper for seed in seeds]
        return replace(self, spread=None if any(map(math.isnan, values)) else stdev(values))


class Case:
    """One setting's cells by table, row, column and statistic, and its frames."""

    def __init__(self, cells: pd.DataFrame, records: Records) -> None:
        keys = cells[["table", "row", "column", "statistic"]].itertuples(index=False, name=None)
        rows = cells.astype(object).where(cells.notna(), None).to_dict("records")
        self.cells = dict(zip(keys, rows, strict=True))
        self.records = records

    def term(self, table: str, row: str, column: str, statistic: str = "value") -> Term:
        """One cell; an empty term where the setting has no such cell."""
        cell = self.cells.get((table, row, column, statistic))
        if cell is None:
            return Term()
        names = ("value", "unit", "by_seed", "low", "high", "n", "status")
        fields = {name: cell[name] for name in names if cell[name] is not None}
        paper = math.nan if cell["paper_value"] is None else cell["paper_value"]
        decimals = len((cell["paper"] or "").partition(".")[2])
        return Term(paper, 0.5 * 10.0**-decimals, reason=cell["reason"] or "", **fields)

    def layers(self, scale: str, column: str) -> list[Term]:
        """A column of Table 7 at the layers of a scale."""
        table = "app-structural-layerwise"
        rows = [row for label, row, key, _ in self.cells if (label, key) == (table, column)]
        return [self.term(table, row, column) for row in rows if row.startswith(f"{scale}/L")]

    def ours_and_paper(self, table: str, row: str, column: str) -> tuple[object, object]:
        """Ours and the paper's, in words or, where there are none, in numbers."""
        cell = self.cells.get((table, row, column, "value"), {})
        keys = ("text", "paper") if cell.get("text") else ("value", "paper_value")
        return cell.get(keys[0]), cell.get(keys[1])

    def pair(self, table: str, scale: str, column: str) -> tuple[Term, Term]:
        """Relation's value and MHA's."""
        return self.term(table, scale, f"{column}.full"), self.term(table, scale, f"{column}.mha")

    def seeds(self, table: str, scale: str, column: str) -> list[Term]:
        """The cells of the paper's seeds, a row each."""
        return [self.term(table, f"{scale}/{seed}", column) for seed in SEEDS]

    def mismatch(self, scale: str, needs: Sequence[str]) -> str:
        """Why this scale's models, or their diagnosis, are not the paper's; "" where they are."""
        for need in needs if scale else ():
            if need == "pair":  # Relation's flow counts only where MHA's was measured as well
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
    """One comparison, in ``unit``.

    direction: whether the paper's sign or bound holds; size: whether its value is met; None where
    undecided. contested: the interval includes values that would decide otherwise, or there is
    none. essential: without it the claim is not tested; else it may be missing, as a scale that
    was not run. beside: shown, and decides nothing. n counts what ``counted`` says, out of
    ``paper_n``. scale: the one whose models it rests on, "" for none.
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
    beside: bool = False
    note: str = ""
    scale: str = ""

    @property
    def difference(self) -> float | None:
        """Ours less the paper's; None of counts out of different numbers."""
        comparable = None not in (self.ours, self.paper) and self.paper_n is None
        return self.ours - self.paper if comparable else None

    def undecided(self, why: str) -> Evidence:
        """The same, undecided for a reason; unchanged without one."""
        return replace(self, direction=None, size=None, note=why) if why else self

    def noted(self, *notes: str) -> Evidence:
        return replace(self, note=joined(self.note, *notes))


def above(bound: float) -> Callable[[float], bool]:
    return lambda value: value > bound


def below(bound: float) -> Callable[[float], bool]:
    return lambda value: value < bound


def joined(*notes: str) -> str:
    return "; ".join(dict.fromkeys(filter(None, notes)))


def compare(
    label: str,
    quantity: str,
    term: Term,
    direction: Callable[[float], bool] | None = None,
    met: Callable[[float], bool] | None = None,
    **fields: object,
) -> Evidence:
    """Hold a measured value against the paper's.

    The size is met where the paper's value lies in our 95% t interval over seeds, or ours within
    one of the paper's standard deviations or its rounding; or as ``met`` says. direction: whether
    a value has the paper's sign; None: no sign is asked for. fields: of the evidence.
    """
    scale, paper = label.partition(",")[0], None if math.isnan(term.paper) else term.paper
    # What failed or ran out of memory was tried: it cannot pass for a scale that was left out.
    tried = term.status in ("failed", "oom")
    of = {"scale": scale if scale in SCALES else "", "essential": tried, "note": term.reason}
    evidence = Evidence(label, quantity, term.unit, paper, n=term.n, **of | fields)
    # A loss that was never reached is an answer; a run that is missing is none.
    if term.status == "not reached":
        evidence = replace(evidence, direction=False, contested=term.n == 1)
        return evidence.noted(ONE_SEED if evidence.contested else "")
    if term.value is None:
        return evidence
    low, high, margin = term.low, term.high, None
    if len(term.by_seed) > 1:
        margin = stats.mean(list(term.by_seed.values())).high - fmean(term.by_seed.values())
        if low is None:  # a cell has its own
            low, high = term.value - margin, term.value + margin
    single_seed = low is None and len(term.by_seed) == 1
    rules = [rule for rule in (met, direction) if rule is not None and low is not None]
    contested = any(rule(low) != rule(high) for rule in rules)
    allowed = [size for size in (margin, term.spread) if size is not None]
    near = abs(term.value - term.paper) <= max([*allowed, term.rounding]) * (1 + LAST_BIT)
    # One value off by more than the rounding may be noise: without a spread, the size is open.
    size = met(term.value) if met else True if near else False if allowed else None
    fewer = f"mean of {term.n}, the paper's of 3" if 0 < len(term.by_seed) < len(SEEDS) else ""
    caveat = ONE_SEED if single_seed else NOT_ESTABLISHED if contested else ""
    return replace(
        evidence, ours=term.value, low=low, high=high, size=size if evidence.asks_size else None,
        direction=direction(term.value) if direction else None, contested=single_seed or contested,
        note=joined(fewer, term.reason, caveat),
    )  # fmt: skip


def outcome(evidence: Sequence[Evidence]) -> tuple[str, str, str]:
    """Verdict, reason and what is not established, by the rules fixed in advance.

    Reproduced: direction and size hold wherever they are asked for. Direction only: the sign holds
    and a size does not. Without a sign, a size that fails is not reproduced.
    """
    rows = [row for row in evidence if not row.beside]
    undecided = [row for row in rows if row.direction is None and row.size is None]
    decided = [row for row in rows if row not in undecided]
    failed = [row for row in rows if row.direction is False]
    missed = [row for row in rows if row.size is False]
    unsigned = [row for row in missed if row.direction is None]
    notes = joined(*(row.note for row in undecided))
    if failed or unsigned:
        causes = {"the direction does not hold": failed, "the paper's value is not met": unsigned}
        reason = "; ".join(f"{cause}: {_names(rows)}" for cause, rows in causes.items() if rows)
        contested = [row for row in (*failed, *unsigned) if row.contested]
        if len(contested) == len(failed) + len(unsigned):
            return "not reproduced", reason, _names(contested)
        unsure = f" (not established: {_names(contested)})" if contested else ""
        return "not reproduced", reason + unsure, ""  # one that is established is enough
    if not decided:
        return "not tested", notes or "no record of it", ""
    if essential := [row for row in undecided if row.essential]:
        held = [row for row in decided if row.size is not False]
        holds = f"it holds for {_names(held)}; " if held else ""
        return "not tested", f"{holds}undecided: {_names(essential)} ({notes})", ""
    contested = _names([row for row in decided if row.contested])
    remaining = f"; without {_names(undecided)}: {notes}" if undecided else ""
    unsized = [row for row in decided if row.asks_size and row.size is None]
    if missed or unsized:
        what = "the size is another" if missed else "the size is undecided"
        return "direction only", f"{what}: {_names(missed or unsized)}{remaining}", contested
    return "reproduced", f"the rule is met in {len(decided)} of {len(rows)}{remaining}", contested


def _names(rows: Sequence[Evidence]) -> str:
    labels = list(dict.fromkeys(row.label for row in rows))
    return ("; " if any("," in label for label in labels) else ", ").join(labels)
