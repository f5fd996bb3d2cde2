"""The rule that chooses the default reading, and the one that says which seeds run next.

Both were written before any run that they apply to, but for the answer "unfinished";
`docs/readings.md` states them in words. They read the first two layers at 10M against Table
app-structural-layerwise, and nothing else.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import pandas as pd

from relation.errors import InputError
from relation.flow.pooled import by_layer
from report.values.measured import select
from report.values.paper import printed
from report.values.statistics import Scale, forward, pooled_deviation

SEEDS = (142, 143, 144)  # the matrix's seeds 42 to 44 carry verdicts and choose nothing
DEFAULT = "unscaled-sd-0.02"
RESIDUALS = ("unscaled", "scaled")
BASE, SHORT, RATES = "sd-0.02", "short-books", ("lr-half", "lr-twice")
PAPER_SEEDS = 3
DRAWS, GENERATOR = 10_000, 20_250_101
LEAST_SHARE = 0.05  # nearer than the best in this share of the draws: cannot be told from it
CHANCE = 0.95
TEXT_FACTOR = 4.0  # of a squared distance: twice the distance
NEAREST = 3  # readings that get further seeds however far they are


class Reading(Protocol):
    """What the rule reads of a configured reading."""

    name: str
    residual: str
    choice: str
    adds: tuple[str, ...]
    beside: bool


class Value(NamedTuple):
    """One of the eight values that are held to the paper's."""

    name: str
    variant: str
    metric: str
    layer: int
    scale: Scale

    @property
    def paper(self) -> float:
        """The paper's at 10M, a fraction or a rank."""
        column = {"self_flow": "self", "effective_rank": "effrank"}[self.metric]
        row = f"10M/L{self.layer}"
        return printed("app-structural-layerwise", row, f"{column}.{self.variant}").value


VALUES = tuple(
    Value(f"L{layer} {metric} {variant}", variant, metric, layer, scale)
    for metric, scale in (("self_flow", "logit"), ("effective_rank", "log"))
    for variant in ("full", "mha")
    for layer in (0, 1)
)
_NAMES = [value.name for value in VALUES]


@dataclass(frozen=True)
class Choice:
    """What the rule says.

    reading: the chosen one, None unless the answer is "chosen"; reason: one sentence; distances: a
    row a configured reading (reading, distance, n, rms, adds, nearer, candidate): squared distance,
    pairs behind it (0 and NaN where there is none), root of the mean over the eight terms, number
    of added statements, share of the draws in which it is nearer than the best; terms: (reading,
    value, deviation), whose squares add up to the distance; deviations: (value, sd, freedom), ours
    between seeds; bound: of the best's distance, the larger of by_chance and by_text, NaN where it
    cannot be computed; by_text: TEXT_FACTOR times what the texts differ by.
    """

    answer: Literal["chosen", "not identified", "texts disagree", "too few seeds", "unfinished"]
    reading: str | None
    reason: str
    distances: pd.DataFrame
    terms: pd.DataFrame
    deviations: pd.DataFrame
    bound: float
    by_chance: float
    by_text: float

    @property
    def default(self) -> str:
        """The reading that the matrix runs under, chosen or not."""
        return self.reading or DEFAULT


def calibration(diagnoses: pd.DataFrame) -> pd.DataFrame:
    """The eight values by reading and seed, each on its scale.

    Args:
        diagnoses: (reading, variant, seed, layer, head, metric, count, value).

    Returns:
        Columns as VALUES names them, indexed by (reading, seed); pairs that have all of them.

    Raises:
        InputError: for a seed that is none of SEEDS, or a value without its scale.
    """
    foreign = sorted(set(diagnoses["seed"]) - set(SEEDS))
    if foreign:
        raise InputError(f"readings: seed {foreign[0]} is none of {SEEDS}; leave its rows out")
    layers = by_layer(diagnoses.rename(columns={"reading": "scale"}))
    layers = layers.rename(columns={"scale": "reading"})
    columns = {}
    for value in VALUES:
        rows = select(layers, variant=value.variant, metric=value.metric, layer=value.layer)
        rows = rows.set_index(["reading", "seed"])
        columns[value.name] = pd.Series(
            forward(value.scale, rows["value"], value.name), index=rows.index
        )
    return pd.DataFrame(columns, columns=_NAMES).dropna()


class _Fit:
    """Means of the readings, deviations between seeds, and distances to the paper."""

    def __init__(self, diagnoses: pd.DataFrame) -> None:
        values = calibration(diagnoses)
        groups = values.groupby("reading")
        self.means, self.n = groups.mean(), groups.size()
        self.sd, self.freedom = _pooled(values)
        self.paper = np.array([float(forward(v.scale, v.paper, v.name)) for v in VALUES])

    @property
    def known(self) -> bool:
        """Whether there are deviations to measure in."""
        return bool((self.freedom > 0).all())

    def deviation(self, name: str, other: str | None = None) -> np.ndarray:
        """A reading less another, or less the paper, in standard errors of that: (8,)."""
        theirs = self.paper if other is None else self.means.loc[other].to_numpy()
        n = PAPER_SEEDS if other is None else self.n[other]
        error = self.sd * math.sqrt(1 / self.n[name] + 1 / n)
        return (self.means.loc[name].to_numpy() - theirs) / error

    def distance(self, name: str, other: str | None = None) -> float:
        return float((self.deviation(name, other) ** 2).sum())

    def drawn(self) -> pd.DataFrame:
        """Distances to the paper by reading in DRAWS draws: what the runs leave possible.

        A draw takes the variances as nu s^2 / chi2_nu, then the readings' means and the paper's
        within their standard errors; the distance is taken in that draw's deviations.
        """
        random = np.random.Generator(np.random.PCG64(GENERATOR))
        sd = self.sd * np.sqrt(self.freedom / random.chisquare(self.freedom, (DRAWS, len(VALUES))))
        paper = self.paper + random.standard_normal(sd.shape) * sd / math.sqrt(PAPER_SEEDS)
        total = np.zeros((DRAWS, len(self.means)))
        for k in range(len(VALUES)):
            # Readings with the same mean share their runs, and so their chance.
            means, of = np.unique(self.means.iloc[:, k], return_inverse=True)
            noise = random.standard_normal((DRAWS, len(means)))[:, of]
            n = self.n.to_numpy()
            ours = self.means.iloc[:, k].to_numpy() + noise * sd[:, k, None] / np.sqrt(n)
            error = sd[:, k, None] * np.sqrt(1 / n + 1 / PAPER_SEEDS)
            total += ((ours - paper[:, k, None]) / error) ** 2
        return pd.DataFrame(total, columns=self.means.index)

    def by_chance(self) -> float:
        """The distance that a right reading passes in one of twenty campaigns, whatever its n.

        Its terms are normal in the true deviations and are measured in ours: z^2 nu / chi2_nu.
        """
        random = np.random.Generator(np.random.PCG64(GENERATOR))
        shape = (DRAWS, len(VALUES))
        terms = random.standard_normal(shape) ** 2 * self.freedom
        return float(np.quantile((terms / random.chisquare(self.freedom, shape)).sum(1), CHANCE))


def _pooled(values: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Between-seed deviation pooled over readings and its degrees of freedom, (8,) each.

    Raises InputError where all seeds of every reading give the same value.
    """
    pooled = []
    for name in _NAMES:
        # Readings that share a run repeat its value, which is one observation.
        own = values[name].reset_index().drop_duplicates(["seed", name])
        pooled.append(pooled_deviation(own[name], own["reading"]))
        if pooled[-1][0] == 0:
            raise InputError(f"readings: {name} is the same in every seed; check the records")
    sd, freedom = zip(*pooled, strict=True)
    return np.array(sd), np.array(freedom)


def _named(readings: Sequence[Reading], choice: str) -> dict[str, str]:
    """The names of a choice's readings by residual."""
    return {r.residual: r.name for r in readings if r.choice == choice}


def _distances(readings: Sequence[Reading], fit: _Fit) -> pd.DataFrame:
    there = [r.name for r in readings if r.name in fit.means.index]
    unknown = sorted(set(fit.means.index) - set(there))
    if unknown:
        raise InputError(f"readings: {unknown[0]!r} is not configured; leave its rows out")
    frame = pd.DataFrame(
        {
            "reading": [r.name for r in readings],
            "distance": [fit.distance(r.name) if r.name in there else np.nan for r in readings],
            "n": [int(fit.n.get(r.name, 0)) for r in readings],
            "adds": [len(r.adds) for r in readings],
            "candidate": [r.name in there and not r.beside for r in readings],
        }
    )
    frame["rms"] = np.sqrt(frame["distance"] / len(VALUES))
    frame["nearer"] = np.nan
    candidates = frame[frame["candidate"]]
    if fit.known and len(candidates):
        best = candidates.loc[candidates["distance"].idxmin(), "reading"]
        drawn = fit.drawn()
        shares = drawn.lt(drawn[best], axis=0).mean()
        shares[best] = 1.0  # the best cannot be told from itself
        frame["nearer"] = frame["reading"].map(shares)
    return frame


def _tied(distances: pd.DataFrame) -> pd.DataFrame:
    """Candidates that cannot be told from the best, itself among them, nearest first."""
    kept = distances[distances["candidate"] & (distances["nearer"] >= LEAST_SHARE)]
    return kept.sort_values("distance", kind="stable")


def _lacking(readings: Sequence[Reading], fit: _Fit) -> str:
    """Why the rule cannot be applied yet; empty where it can."""
    for choice in (BASE, SHORT):
        names = _named(readings, choice)
        for residual in RESIDUALS:
            if names.get(residual) not in fit.means.index:
                return f"{residual}-{choice} has no whole pair"
    return "" if fit.known else "no reading has two seeds, so nothing is known of chance"


def choose(
    readings: Sequence[Reading], diagnoses: pd.DataFrame, given_up: Collection[tuple[str, int]] = ()
) -> Choice:
    """Apply the rule.

    Args:
        readings: the configured ones, in their order.
        diagnoses: (reading, variant, seed, layer, head, metric, count, value) of seeds in SEEDS.
        given_up: pairs that failed and will not be run again.

    Raises:
        InputError: for rows of another seed or of a reading that is not configured.
    """
    fit = _Fit(diagnoses)
    distances = _distances(readings, fit)
    by_chance = by_text = math.nan
    lacking = _lacking(readings, fit)
    if lacking:
        answer, reading, reason = "too few seeds", None, f"{lacking}."
    else:
        books, short = (_named(readings, choice) for choice in (BASE, SHORT))
        by_chance = fit.by_chance()
        by_text = TEXT_FACTOR * max(fit.distance(books[r], short[r]) for r in RESIDUALS)
        answer, reading, reason = _answer(distances, fit, (books, short), max(by_chance, by_text))
        left = _required(readings, distances, {*calibration(diagnoses).index, *given_up})
        if left:
            told = f"choose {reading}" if answer == "chosen" else f"answer {answer!r}"
            pairs = "1 pair is" if len(left) == 1 else f"{len(left)} pairs are"
            reason = f"{pairs} missing. On the pairs that have run it would {told}: {reason}"
            answer, reading = "unfinished", None
    terms = pd.DataFrame(
        [
            (name, value, float(deviation))
            for name in fit.means.index
            for value, deviation in zip(_NAMES, fit.deviation(name), strict=True)
        ],
        columns=["reading", "value", "deviation"],
    )
    deviations = pd.DataFrame({"value": _NAMES, "sd": fit.sd, "freedom": fit.freedom})
    bound = max(by_chance, by_text)
    return Choice(answer, reading, reason, distances, terms, deviations, bound, by_chance, by_text)


def _first(readings: Sequence[Reading]) -> list[tuple[str, int]]:
    """The pairs of step 1: the first seed of every reading, all seeds of the base."""
    base = _named(readings, BASE)
    further = [(base[r], seed) for r in RESIDUALS if r in base for seed in SEEDS[1:]]
    return [(r.name, SEEDS[0]) for r in readings] + further


def _deciding(readings: Sequence[Reading], distances: pd.DataFrame) -> list[str]:
    """The readings of step 2, on which the choice rests."""
    nearest = distances[distances["candidate"]].nsmallest(NEAREST, "distance")
    named = (*_named(readings, SHORT).values(), *nearest["reading"], *_tied(distances)["reading"])
    return list(dict.fromkeys(named))


def _required(
    readings: Sequence[Reading], distances: pd.DataFrame, done: Collection[tuple[str, int]]
) -> list[tuple[str, int]]:
    """The pairs of steps 1 and 2 that are not there."""
    second = [(name, seed) for name in _deciding(readings, distances) for seed in SEEDS]
    return [pair for pair in dict.fromkeys((*_first(readings), *second)) if pair not in done]


def _answer(
    distances: pd.DataFrame, fit: _Fit, texts: tuple[dict[str, str], ...], bound: float
) -> tuple[str, str | None, str]:
    nearer = [min(RESIDUALS, key=lambda r, names=names: fit.distance(names[r])) for names in texts]
    if nearer[0] != nearer[1]:
        reason = (
            f"on books {nearer[0]}-{BASE} is nearer the paper, on short books {nearer[1]}-{BASE}."
        )
        return "texts disagree", None, reason
    tied = _tied(distances)
    best = tied.iloc[0]
    said = (
        f"{best['reading']} is nearest to the paper "
        f"(distance {best['distance']:.1f}, bound {bound:.1f})"
    )
    if best["distance"] > bound:
        return "not identified", None, f"{said}, and so none is near."
    chosen = tied.sort_values(["adds", "distance"], kind="stable").iloc[0]
    others = ", ".join(
        f"{r.reading} (nearer in {r.nearer:.0%} of the draws, n = {r.n})"
        for r in tied[1:].itertuples()
    )
    reason = f"{said}; " + (
        f"not told from it: {others}." if others else "every other candidate is farther."
    )
    if chosen["reading"] != best["reading"]:
        reason += f" Of these {chosen['reading']} adds fewest statements ({chosen['adds']})."
    return "chosen", chosen["reading"], reason


def next_seeds(
    readings: Sequence[Reading], diagnoses: pd.DataFrame, given_up: Collection[tuple[str, int]] = ()
) -> list[tuple[str, int]]:
    """The pairs still to run, (reading, seed), in order.

    Until every reading has its first seed and the two base readings have all three, only those are
    asked for: what follows depends on the distances. Ask again after every batch.

    Args:
        readings, diagnoses: as `choose` takes them.
        given_up: pairs that failed and will not be run again.
    """
    fit = _Fit(diagnoses)
    done = {*calibration(diagnoses).index, *given_up}
    left = [pair for pair in _first(readings) if pair not in done]
    if left:
        return left
    ordered = [
        *_deciding(readings, _distances(readings, fit)),
        *(name for choice in RATES for name in _named(readings, choice).values()),
        *(r.name for r in readings),
    ]
    wanted = dict.fromkeys((name, seed) for name in ordered for seed in SEEDS)
    return [pair for pair in wanted if pair not in done]
