"""Numbers and readings as the pages and figures print them."""

import math
from collections.abc import Iterable, Sequence

from report.values.layout import Number
from report.values.numbers import DASH, MINUS, value_text
from report.values.readings import Statistic

PREFIX = "readings-"  # of the names of their figures, which stand on their own page


def is_difference(statistic: Statistic) -> bool:
    """Whether a value is one model's less another's, and so has a sign."""
    return " - " in statistic.title


def title(statistic: Statistic) -> str:
    """A statistic's title with a true minus."""
    return statistic.title.replace(" - ", f" {MINUS} ").replace("'", "’")


def heading(statistic: Statistic) -> str:
    """The title with a capital, which a symbol does not take."""
    told = title(statistic)
    return told[0].upper() + told[1:] if told[0].isascii() else told


def factor(unit: str) -> float:
    """What a value in the records' units is multiplied by to be printed."""
    return 100.0 if unit == "%" else 1.0


def shown_unit(statistic: Statistic) -> str:
    """The unit after a printed number: differences of shares are in percentage points."""
    if statistic.unit == "%":
        return "pp" if is_difference(statistic) else "%"
    return "" if statistic.unit in ("1", "x") else statistic.unit


def amount(value: float | None, statistic: Statistic, *, unit: bool = False) -> str:
    """A value of a statistic with its digits, its sign where it is a difference, and its unit."""
    if value is None or not math.isfinite(value):
        return DASH
    decimals = 4 if statistic.unit == "nat/token" else 2
    form = Number(decimals, signed=is_difference(statistic))
    told, after = value_text(value * factor(statistic.unit), form), shown_unit(statistic)
    return told + (f" {after}" if unit and after not in ("", "%") else after if unit else "")


def interval(low: float | None, high: float | None, statistic: Statistic) -> str:
    """Both ends in brackets; empty where there is no interval."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{amount(low, statistic)}, {amount(high, statistic)}]"


def nats(value: float, *, signed: bool = False) -> str:
    """A loss or a difference of losses in nat/token, without the unit."""
    return value_text(value, Number(4, signed=signed))


def listed(names: Iterable[str]) -> str:
    """a, b and c."""
    names = list(names)
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def some(names: Sequence[str], most: int = 4) -> str:
    """The first few names, and how many more there are."""
    if len(names) <= most:
        return listed(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def count(number: int, what: str) -> str:
    """1 reading, 2 readings."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def probability(p: float) -> str:
    """A p: = 0.012, or < 0.001."""
    return "< 0.001" if p < 0.001 else f"= {min(p, 1.0):.2g}"
