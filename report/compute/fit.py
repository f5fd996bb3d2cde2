"""Power laws fitted to measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# 97.5% quantiles of Student's t for 1 to 30 degrees of freedom. Beyond 30 the last one stays: an
# interval at most 5% too wide.
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


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
    log_x, log_y = np.log(np.asarray(points, dtype=np.float64)).T
    centred = log_x - log_x.mean()
    spread = float(centred @ centred)
    exponent = float(centred @ log_y) / spread
    intercept = float(log_y.mean() - exponent * log_x.mean())
    freedom = len(points) - 2
    low = high = None
    if freedom:
        residuals = log_y - intercept - exponent * log_x
        error = float(np.sqrt(residuals @ residuals / freedom / spread))
        margin = T_975[min(freedom, len(T_975)) - 1] * error
        low, high = exponent - margin, exponent + margin
    return PowerFit(float(np.exp(intercept)), exponent, low, high, len(points))
