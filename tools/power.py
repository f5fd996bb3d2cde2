"""Print the power of the fair comparison's equivalence test: python -m tools.power.

Two unpaired arms have n runs each. Their losses are normal with equal deviations, and their means
differ by 0 or half the margin. Two one-sided t tests at 5% must show a difference below the margin.
"""

import math

import numpy as np
from scipy import stats

MARGIN, LEVEL = 0.01, 0.05
DEVIATIONS, SEEDS = (0.010, 0.0125, 0.0153, 0.018, 0.021), (16, 24, 48)


def power(deviation: float, seeds: int, difference: float = 0.0) -> float:
    """The chance that both tests reject, given the true difference of the two means.

    The difference of the sample means is independent of the pooled deviation. The chance is thus an
    integral over that deviation, approximated by the mean over its quantiles.
    """
    freedom = 2 * (seeds - 1)
    error = deviation * math.sqrt(2 / seeds)
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    estimated = error * np.sqrt(stats.chi2.ppf(quantiles, freedom) / freedom)
    room = MARGIN - stats.t.ppf(1 - LEVEL, freedom) * estimated
    above = stats.norm.cdf((room - difference) / error)
    below = stats.norm.cdf((-room - difference) / error)
    return float(np.where(room > 0, above - below, 0.0).mean())


if __name__ == "__main__":
    print(f"power of two one-sided tests, margin {MARGIN}, level {LEVEL}")
    columns = [(d, n) for d in (0.0, MARGIN / 2) for n in SEEDS]
    print("deviation  " + "  ".join(f"d={d:g} n={n}".rjust(13) for d, n in columns))
    for deviation in DEVIATIONS:
        values = "  ".join(f"{power(deviation, n, d):13.3f}" for d, n in columns)
        print(f"{deviation:9.4f}  {values}")
