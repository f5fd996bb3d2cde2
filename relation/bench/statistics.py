"""What the times of one run say: medians, their intervals, and ratios taken round by round."""

import statistics
from collections.abc import Sequence

from scipy.stats import binom

_CONFIDENCE = 0.95


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """A 95% interval of the median of what the values were drawn from, whatever it is.

    Two order statistics, their ranks from the binomial distribution of the values on either side.
    None for fewer than six values, which allow no such interval.
    """
    n = len(values)
    rank = int(binom.ppf((1 - _CONFIDENCE) / 2, n, 0.5))
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[n - rank]


def summary(seconds: Sequence[float]) -> dict:
    """Median and quartiles, as the columns of a record hold them; one value stands for all."""
    if len(seconds) < 2:
        low = median = high = seconds[0]
    else:
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return {"seconds": median, "seconds_low": low, "seconds_high": high}


def median_columns(name: str, values: Sequence[float]) -> dict:
    """The columns `name`, `name`_low and `name`_high: median and its 95% interval or None."""
    low, high = median_interval(values) or (None, None)
    median = statistics.median(values) if values else None
    return {name: median, f"{name}_low": low, f"{name}_high": high}


def ratio(peer: Sequence[float], subject: Sequence[float]) -> dict:
    """The peer's values over the subject's, round by round: median and 95% interval, as columns.

    Raises ValueError for series of unequal length.
    """
    return median_columns("ratio", [a / b for a, b in zip(peer, subject, strict=True)])


def ratio_apart(peer: Sequence[float], subject: Sequence[float]) -> dict:
    """As `ratio`, of series that were not measured in the same rounds.

    The interval spans every ratio of a value in the one median's interval to one in the other's.
    """
    ends = median_interval(peer), median_interval(subject)
    low, high = None, None
    if all(ends):
        (peer_low, peer_high), (low_end, high_end) = ends
        low, high = peer_low / high_end, peer_high / low_end
    middle = statistics.median(peer) / statistics.median(subject)
    return {"ratio": middle, "ratio_low": low, "ratio_high": high}
