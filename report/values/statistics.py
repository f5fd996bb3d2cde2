"""Power laws fitted to measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


def t_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t, which a two-sided 95% interval takes."""
    return float(stats.t.ppf(0.975, freedom))


@dataclass(frozen=True)
class PowerFit:
    """y = factor * x ** exponent with the exponent's 95% interval (None under three points)."""

    factor: float
    exponent: float
    low: float | None
    high: float | None
    points: int


def power_fit(points: Sequence[tuple[float, float]]) -> PowerFit | None:
    """Least squares in log-log coordinates; None with fewer than two distinct x.

    Args:
        points: pairs (x, y), both positive.
    """
    if len({x for x, _ in points}) < 2:
        return None
    x, y = np.log(np.asarray(points, dtype=np.float64)).T
    fit = stats.linregress(x, y)
    low = high = None
    freedom = len(points) - 2
    if freedom:
        margin = t_quantile(freedom) * fit.stderr
        low, high = float(fit.slope - margin), float(fit.slope + margin)
    return PowerFit(float(np.exp(fit.intercept)), float(fit.slope), low, high, len(points))
