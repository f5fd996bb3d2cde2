"""The evidence of the claims, each piece with its place on a small axis."""

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from report.render.templating import grouped

Row = Mapping[str, Any]

# The ends of an interval, the values compared, and zero, which a sign is read against.
SHOWN = ("paper", "ours", "low", "high")


def evidence_by_claim(rows: Iterable[Row]) -> dict[int, list[dict[str, Any]]]:
    """The rows of evidence.parquet by the claim's number.

    Each gets ``places``: where paper, ours, low, high and zero stand on an axis from 0 to 100 that
    it shares with the claim's other rows; None where a value is missing, and in all of them where
    the units differ or what is counted is out of different numbers.
    """
    return {claim: _placed(group) for claim, group in grouped(rows, itemgetter("claim")).items()}


def _placed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    values = [row[name] for row in rows for name in SHOWN if _is_number(row[name])]
    counts = any(row["paper_n"] for row in rows)
    alike = len({row["unit"] for row in rows}) == 1 and not counts
    if not values or not alike:
        return [{**row, "places": None} for row in rows]
    start, end = min(values), max(values)
    # Zero belongs on the axis where it is near what is shown.
    if abs(start) < 1.5 * (end - start) and start > 0:
        start = 0.0
    if abs(end) < 1.5 * (end - start) and end < 0:
        end = 0.0
    width = (end - start) or 1.0

    def place(value: float | None) -> float | None:
        return round(100 * (value - start) / width, 2) if _is_number(value) else None

    zero = place(0.0) if start <= 0 <= end else None
    return [
        {**row, "places": {**{name: place(row[name]) for name in SHOWN}, "zero": zero}}
        for row in rows
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
