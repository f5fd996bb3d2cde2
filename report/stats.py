"""Statistics of the report: intervals over seeds, comparisons of two arms, curves, shares."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy  # scipy.stats takes a second to import, so it is loaded where it is used

from relation.errors import InputError


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference with its 95% interval: NaN ends where the values allow none.

    n: values, or pairs, behind it; sd: their sample standard deviation; se, freedom: the standard
    error and the degrees of freedom of a t interval.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    sd: float = math.nan
    se: float = math.nan
    freedom: float = math.nan

    def __format__(self, form: str) -> str:
        """The value and, where it has one, its interval, as +0.0036 (−0.0010 to +0.0082)."""
        if math.isnan(self.value):
            return "—"
        ends = "" if math.isnan(self.low) else f" ({self.low:{form}} to {self.high:{form}})"
        return f"{self.value:{form}}{ends}".replace("-", "−")

    @property
    def p(self) -> float:
        """Two-sided, of a t test against zero; NaN without a standard error."""
        t = -abs(self.value) / self.se if self.se else math.nan
        return float(2 * scipy.special.stdtr(self.freedom, t))

    def within(self, margin: float) -> float:
        """p of two one-sided t tests that it lies within ±margin; NaN without a standard error."""
        t = (abs(self.value) - margin) / self.se if self.se else math.nan
        return float(scipy.special.stdtr(self.freedom, t))


def _t_interval(value: float, se: float, freedom: float, n: int, sd: float = math.nan) -> Estimate:
    margin = float(scipy.special.stdtrit(freedom, 0.975)) * se
    return Estimate(value, value - margin, value + margin, n, sd, se, freedom)


def mean(values: Sequence[float]) -> Estimate:
    """The mean of values with its t interval, which takes two of them."""
    sample = [float(value) for value in values]
    if len(sample) < 2:
        return Estimate(*(sample or [math.nan]), n=len(sample))
    sd, n = statistics.stdev(sample), len(sample)
    return _t_interval(statistics.fmean(sample), sd / math.sqrt(n), n - 1, n, sd)


def welch(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """The difference of two means of unequal variance, unpaired, with Welch's interval."""
    terms = [mean(values) for values in (over, under)]
    value, n = terms[0].value - terms[1].value, min(term.n for term in terms)
    variance = sum(term.se**2 for term in terms)
    if n < 2 or variance == 0:
        return Estimate(value, n=n)
    freedom = variance**2 / sum(term.se**4 / term.freedom for term in terms)
    return _t_interval(value, math.sqrt(variance), freedom, n)


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's correction of a family's p values, in their order; an unknown one (NaN) stays so."""
    values = np.asarray(p, dtype=float)
    order = np.argsort(values, kind="stable")  # NaN last, though any of them may yet be the least
    factors = np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return corrected


def correlation(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """Pearson's correlation with Fisher's interval, which takes four pairs."""
    n = len(x)
    if n < 3 or min(len(set(x)), len(set(y))) == 1:
        return Estimate(math.nan, n=n)
    pearson = scipy.stats.pearsonr(x, y)
    if n < 4 or abs(pearson.statistic) == 1:
        return Estimate(float(pearson.statistic), n=n)
    ends = pearson.confidence_interval()
    return Estimate(float(pearson.statistic), float(ends.low), float(ends.high), n)


def smoothed(tokens: Sequence[float], loss: Sequence[float], window: float) -> np.ndarray:
    """Trailing mean of the loss over `window` tokens at every logged point (Appendix B.4).

    tokens: (N,) consumed after each update, ascending; loss: (N,) nat/token. Each update weighs as
    many tokens as it has inside the window, so a partial update, or one that the window's edge
    cuts, counts for its part. Before `window` tokens the mean is over all of them. Returns (N,).
    """
    if not window > 0:
        raise InputError(f"the smoothing window is {window} tokens; it must be positive")
    edges = np.concatenate(([0.0], np.asarray(tokens, dtype=np.float64)))
    integral = np.concatenate(([0.0], np.cumsum(np.asarray(loss, np.float64) * np.diff(edges))))
    end = edges[1:]
    start = np.maximum(end - window, 0.0)
    # The integral of a piecewise constant loss is piecewise linear in tokens.
    return (np.interp(end, edges, integral) - np.interp(start, edges, integral)) / (end - start)


def crossing(tokens: Sequence[float], smoothed: Sequence[float], target: float) -> float | None:
    """Tokens at which a smoothed loss (N,) first reaches the target; None where it never does.

    Linear interpolation between adjacent logged points.
    """
    reached = np.flatnonzero(np.asarray(smoothed) <= target)
    if not len(reached):
        return None
    k = int(reached[0])
    if k == 0:
        return float(tokens[0])
    part = (smoothed[k - 1] - target) / (smoothed[k - 1] - smoothed[k])
    return float(tokens[k - 1] + part * (tokens[k] - tokens[k - 1]))


def pooled(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Rows of flow to a row a group: `value`, weighted by `count`, and the summed `count`.

    The paper's order (Appendix B.4) is sequences and heads to a layer, layers to a checkpoint.
    """
    weighted = rows.assign(value=rows["value"].astype("float64") * rows["count"])
    sums = weighted.groupby(list(keys), observed=True, dropna=False)[["value", "count"]].sum()
    return sums.assign(value=sums["value"] / sums["count"]).reset_index()


def power_fit(x: Sequence[float], y: Sequence[float]) -> Estimate | None:
    """The exponent of y ~ x ** exponent by least squares in log-log coordinates.

    None with fewer than two distinct x; no interval below three points.
    """
    if len(set(x)) < 2:
        return None
    fit = scipy.stats.linregress(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)))
    n = len(x)
    return _t_interval(fit.slope, fit.stderr, n - 2, n) if n > 2 else Estimate(fit.slope, n=n)


def median(values: Sequence[float]) -> Estimate:
    """The median with a 95% interval that assumes no distribution: two order statistics.

    Fewer than six values allow no such interval.
    """
    ends = scipy.stats.quantile_test(values, p=0.5).confidence_interval()
    return Estimate(statistics.median(values), float(ends.low), float(ends.high), len(values))


def median_ratio(over: Sequence[float], under: Sequence[float], together: bool = True) -> Estimate:
    """Median ratio of two series of rounds with its 95% interval.

    together: the two took turns, so that the ratio is taken round by round. Otherwise the interval
    spans every ratio of a value in the one median's interval to one in the other's.
    """
    if together:
        return median([a / b for a, b in zip(over, under, strict=True)])
    top, bottom = median(over), median(under)
    ends = (top.low / bottom.high, top.high / bottom.low)
    return Estimate(top.value / bottom.value, *ends, min(top.n, bottom.n))


def bits_per_character(runs: pd.DataFrame, nll: str = "final_nll") -> pd.Series:
    """A loss in bits per character of the validation split; NaN where nobody recorded those.

    A text has the same characters in any vocabulary, so one run's count does for all of a corpus.
    bits/character = nat/token x tokens/characters / ln 2.
    """
    characters = runs["validation_characters"].astype(float)
    characters = characters.groupby(runs["corpus_fingerprint"], dropna=False).transform("max")
    return runs[nll] * runs["validation_tokens"] / characters / math.log(2)


def length_cost(lengths: pd.DataFrame) -> pd.DataFrame:
    """What windows longer than trained cost by position: `value`, nat/token, of `count` tokens."""
    # The same tokens were read in one long window ("whole") and in trained ones ("apart").
    long, trained = (lengths[lengths["reading"] == reading] for reading in ("whole", "apart"))
    key = ["scale", "variation", "variant", "seed", "first"]
    joined = long.merge(trained, on=key, suffixes=("", "_apart"))
    return joined.assign(value=joined["nll"] - joined["nll_apart"])


def recall_shares(recall: pd.DataFrame) -> pd.Series:
    """The share of queries answered at the learning rate chosen for each width."""
    rows = recall[recall["chosen"].fillna(False).astype(bool)]
    sums = rows.groupby(["mixer", "width", "length", "seed"])[["right", "queries"]].sum()
    return (sums["right"] / sums["queries"]).rename("share")
