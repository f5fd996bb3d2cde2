"""Statistics of the report: intervals over seeds, comparisons of two arms, curves, shares."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy  # scipy.stats takes a second to import, so it is loaded where it is used


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference with its 95% interval; the ends are NaN if the values give none.

    n: number of values or pairs. sd: their sample standard deviation. se, freedom: standard error
    and degrees of freedom of a t interval.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    sd: float = math.nan
    se: float = math.nan
    freedom: float = math.nan

    def __format__(self, form: str) -> str:
        """Format the value and its interval, if any, as +0.0036 (−0.0010 to +0.0082)."""
        if math.isnan(self.value):
            return "—"
        ends = "" if math.isnan(self.low) else f" ({self.low:{form}} to {self.high:{form}})"
        return f"{self.value:{form}}{ends}".replace("-", "−")

    @property
    def p(self) -> float:
        """Two-sided p value of a t test against zero; NaN without a standard error."""
        t = -abs(self.value) / self.se if self.se else math.nan
        return float(2 * scipy.special.stdtr(self.freedom, t))

    def within(self, margin: float) -> float:
        """Return p of two one-sided t tests for ±margin; NaN without a standard error."""
        t = (abs(self.value) - margin) / self.se if self.se else math.nan
        return float(scipy.special.stdtr(self.freedom, t))


def _t_interval(value: float, se: float, freedom: float, n: int, sd: float = math.nan) -> Estimate:
    margin = float(scipy.special.stdtrit(freedom, 0.975)) * se
    return Estimate(value, value - margin, value + margin, n, sd, se, freedom)


def mean(values: Iterable[float]) -> Estimate:
    """Return the mean with its 95% t interval, which needs at least two values."""
    sample = [float(value) for value in values]
    if len(sample) < 2:
        return Estimate(*(sample or [math.nan]), n=len(sample))
    sd, n = statistics.stdev(sample), len(sample)
    return _t_interval(statistics.fmean(sample), sd / math.sqrt(n), n - 1, n, sd)


def welch(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """Return the difference of two unpaired means with Welch's 95% interval."""
    terms = [mean(values) for values in (over, under)]
    value, n = terms[0].value - terms[1].value, min(term.n for term in terms)
    variance = sum(term.se**2 for term in terms)
    if n < 2 or variance == 0:
        return Estimate(value, n=n)
    freedom = variance**2 / sum(term.se**4 / term.freedom for term in terms)
    return _t_interval(value, math.sqrt(variance), freedom, n)


def holm(p: Sequence[float]) -> np.ndarray:
    """Return a family's p values after Holm's correction, in the same order. NaN stays NaN."""
    values = np.asarray(p, dtype=float)
    order = np.argsort(values, kind="stable")  # NaN last, though it may turn out to be the smallest
    factors = np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return corrected


def smoothed(log: pd.DataFrame, window: float) -> pd.Series:
    """Return the trailing mean of a run's logged loss over `window` tokens (Appendix B.4).

    log: one row per update; tokens: consumed after the update; loss: nat/token. The result's index
    is tokens. The weight of an update is the number of its tokens inside the window. Before
    `window` tokens, the mean is over all tokens so far.
    """
    log = log.sort_values("tokens")
    edges = np.concatenate(([0.0], log["tokens"].to_numpy(np.float64)))
    integral = np.concatenate(([0.0], np.cumsum(log["loss"].to_numpy(np.float64) * np.diff(edges))))
    end = edges[1:]
    start = np.maximum(end - window, 0.0)
    # The integral of a piecewise constant loss is piecewise linear in tokens.
    means = np.interp(end, edges, integral) - np.interp(start, edges, integral)
    return pd.Series(means / (end - start), log["tokens"].to_numpy())


def crossing(curve: pd.Series, target: float) -> float | None:
    """Return the tokens at which a loss, indexed by tokens, first reaches the target, or None.

    Interpolates linearly between adjacent points.
    """
    tokens, loss = curve.index.to_numpy(), curve.to_numpy()
    reached = np.flatnonzero(loss <= target)
    if not len(reached):
        return None
    k = int(reached[0])
    if k == 0:
        return float(tokens[0])
    part = (loss[k - 1] - target) / (loss[k - 1] - loss[k])
    return float(tokens[k - 1] + part * (tokens[k] - tokens[k - 1]))


def pooled(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Pool rows of flow by `keys`: the mean `value`, weighted by `count`, and the summed `count`.

    The paper pools sequences and heads to a layer, then layers to a checkpoint (Appendix B.4).
    """
    weighted = rows.assign(value=rows["value"].astype("float64") * rows["count"])
    sums = weighted.groupby(list(keys), observed=True, dropna=False)[["value", "count"]].sum()
    return sums.assign(value=sums["value"] / sums["count"]).reset_index()


def power_fit(x: Sequence[float], y: Sequence[float]) -> Estimate | None:
    """Fit the exponent of y ~ x ** exponent by least squares in log-log coordinates.

    Returns None for fewer than two distinct x, and no interval for fewer than three points.
    """
    if len(set(x)) < 2:
        return None
    fit = scipy.stats.linregress(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)))
    n = len(x)
    return _t_interval(fit.slope, fit.stderr, n - 2, n) if n > 2 else Estimate(fit.slope, n=n)


def median(values: Sequence[float]) -> Estimate:
    """Return the median with a distribution-free 95% interval: two order statistics.

    Fewer than six values give no interval.
    """
    ends = scipy.stats.quantile_test(values, p=0.5).confidence_interval()
    return Estimate(statistics.median(values), float(ends.low), float(ends.high), len(values))


def median_ratio(over: Mapping, under: Mapping) -> Estimate:
    """Return the median ratio of two sides of a benchmark, over rounds, with its 95% interval.

    If the two took turns, the ratio is taken round by round. If one ran alone, it is the ratio of
    the medians, and its interval covers all ratios of values in the medians' intervals.
    """
    if not (over["alone"] or under["alone"]):
        return median([a / b for a, b in zip(over["samples"], under["samples"], strict=True)])
    top, bottom = median(over["samples"]), median(under["samples"])
    ends = (top.low / bottom.high, top.high / bottom.low)
    return Estimate(top.value / bottom.value, *ends, min(top.n, bottom.n))


def bits_per_character(runs: pd.DataFrame) -> pd.Series:
    """Return the final NLL in bits per character of the validation split; NaN without a count.

    bits/character = nat/token x tokens/characters / ln 2.
    """
    characters = runs["validation_characters"].astype(float)
    return runs["final_nll"] * runs["validation_tokens"] / characters / math.log(2)


def length_cost(lengths: pd.DataFrame) -> pd.DataFrame:
    """Return the cost of long windows by position: `value` in nat/token, of `count` tokens."""
    # The same tokens were read in one long window ("whole") and in windows as trained ("apart").
    long, trained = (lengths[lengths["reading"] == reading] for reading in ("whole", "apart"))
    key = ["scale", "variation", "variant", "seed", "first"]
    joined = long.merge(trained, on=key, suffixes=("", "_apart"))
    return joined.assign(value=joined["nll"] - joined["nll_apart"])


def recall_shares(recall: pd.DataFrame) -> pd.Series:
    """Return the share of right answers, at the learning rate chosen for each width."""
    rows = recall[recall["chosen"].fillna(False).astype(bool)]
    sums = rows.groupby(["mixer", "width", "length", "seed"])[["right", "queries"]].sum()
    return (sums["right"] / sums["queries"]).rename("share")
