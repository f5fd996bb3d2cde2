"""Student's t with whole degrees of freedom, by the finite sums of Abramowitz and Stegun, 26.7."""

from __future__ import annotations

import math
from functools import cache


def two_sided(t: float, freedom: int) -> float:
    """P(|T| > |t|) with ``freedom`` >= 1 degrees of freedom; below 1e-15 rounding hides it."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for j in range(1, freedom // 2 + 1):
        total += term
        term *= square * (2 * j / (2 * j + 1) if odd else (2 * j - 1) / (2 * j))
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1.0 - inside)


@cache
def quantile_975(freedom: int) -> float:
    """The t that a two-sided 95% interval takes, by bisection."""
    low, high = 0.0, 16.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > 0.05 else (low, middle)
    return (low + high) / 2
