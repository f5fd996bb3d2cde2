"""Scales on which values of several seeds are averaged, and power laws fitted to measurements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import pandas as pd
import scipy  # scipy.stats is loaded where it is used, as that takes a second
from scipy.special import stdtrit

from relation.errors import InputError

Scale = Literal["identity", "logit", "log"]

# Half of the last digit of the paper's shares (28.57%): nearer to 0 or 1 it cannot be compared.
CLAMP = 5e-5


def forward(scale: Scale, values: np.ndarray | float, name: str) -> np.ndarray:
    """Values on a scale; shares are clamped to [CLAMP, 1 - CLAMP] before the logit.

    Raises InputError, with the value's ``name``, where one is not finite, a share lies outside 0
    to 1, or a logarithm is taken of what is not positive.
    """
    given = np.asarray(values, dtype=np.float64)
    low, high = {"identity": (-np.inf, np.inf), "logit": (0, 1), "log": (0, np.inf)}[scale]
    # FP32 means of shares can pass 1 by a rounding.
    fits = np.isfinite(given) & (given >= low) & (given <= high + 1e-6)
    if scale == "log":
        fits &= given > 0
    if not fits.all():
        wrong = given[~fits].flat[0]
        raise InputError(f"readings: {name} is {wrong}, which has no {scale}; check its record")
    if scale == "logit":
        share = np.clip(given, CLAMP, 1 - CLAMP)
        return np.log(share / (1 - share))
    return np.log(given) if scale == "log" else given


def back(scale: Scale, values: np.ndarray | float) -> np.ndarray:
    """The values whose ``forward`` these are."""
    given = np.asarray(values, dtype=np.float64)
    if scale == "logit":
        return 1 / (1 + np.exp(-given))
    return np.exp(given) if scale == "log" else given


def pooled_deviation(values: pd.Series, readings: pd.Series) -> tuple[float, int]:
    """Between-seed standard deviation pooled over readings, and its degrees of freedom.

    Squares within readings over the sum of (n - 1); NaN and 0 where no reading has two values.

    Args:
        values: (N,) a value a pair; readings: (N,) whose it is, on the same index.
    """
    groups = values.groupby(readings)
    freedom = int((groups.size() - 1).sum())
    if not freedom:
        return math.nan, 0
    return math.sqrt(((values - groups.transform("mean")) ** 2).sum() / freedom), freedom


@cache
def t_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t, which a two-sided 95% interval takes."""
    return float(stdtrit(freedom, 0.975))


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
    fit = scipy.stats.linregress(x, y)
    low = high = None
    freedom = len(points) - 2
    if freedom:
        margin = t_quantile(freedom) * fit.stderr
        low, high = float(fit.slope - margin), float(fit.slope + margin)
    return PowerFit(float(np.exp(fit.intercept)), float(fit.slope), low, high, len(points))
