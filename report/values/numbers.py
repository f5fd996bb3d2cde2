"""Numbers as the tables print them, in plain Unicode."""

import math
from collections.abc import Iterable, Mapping
from decimal import Context
from typing import Any

from report.values.layout import Number

MINUS = "−"
DASH = "—"
POINTS = " pp"
# Signs of what a rule asks for at least or at most.
BOUNDS = {"least": "≥", "most": "≤"}
TOKEN_UNITS = {"M tokens": "M", "B tokens": "B"}


def suffix(form: Number, unit: str) -> str:
    """What follows the number; counts of tokens carry the letter of their unit."""
    return TOKEN_UNITS.get(unit, form.suffix)


def quantity(value: float, form: str = ".4g") -> str:
    """A count with a letter for its size: 98.3K, 150M, 1.071B."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:{form}}".rstrip(".") + letter
    return f"{value:{form}}".rstrip(".")


def three_digits(value: float) -> str:
    """A measured value to three significant digits, with separators: 1,040 of 1038.5."""
    return f"{Context(prec=3).create_decimal_from_float(value):,f}"


def significant(value: float | None, digits: int = 4, signed: bool = False) -> str:
    """A number of any unit to so many significant digits, all of its whole ones, with separators.

    A dash where there is none. Below 0.00001 the zeros are an exponent, as in 4.817e−8.
    """
    if value is None or math.isnan(value):
        return DASH
    size = abs(value)
    if size >= 10 ** (digits - 1):
        text = f"{size:,.0f}"
    elif 0 < size < 1e-5:
        number, _, power = f"{size:.{digits - 1}e}".partition("e")
        text = f"{number.rstrip('0').rstrip('.')}e{MINUS}{abs(int(power))}"
    elif 0 < size < 1e-3:  # where Python's form may take an exponent
        text = f"{size:.{digits - 1 - math.floor(math.log10(size))}f}".rstrip("0")
    else:
        text = f"{size:,.{digits}g}".replace("-", MINUS)
    return (MINUS if value < 0 else "+" if signed and value else "") + text


def printed_text(printed: str, form: Number) -> str:
    """The paper's value, every digit kept, with a true minus and, in such a form, separators."""
    return grouped(printed) if form.grouped else printed.replace("-", MINUS)


def grouped(printed: str) -> str:
    """A printed number, every digit kept, with separators and a true minus."""
    sign, digits = ("", printed) if printed[:1] not in ("+", "-") else (printed[0], printed[1:])
    whole, point, fraction = digits.partition(".")
    return sign.replace("-", MINUS) + (f"{int(whole):,}" if whole else "") + point + fraction


def value_text(value: float, form: Number, printed: str | None = None) -> str:
    """A campaign's value with the decimals and the sign that the paper prints, or the form's."""
    signed = form.signed or (printed is not None and printed[0] in "+-")
    return _text(value, form, _decimals(value, form, printed), signed)


def difference_text(difference: float, value: float, form: Number, unit: str, printed: str) -> str:
    """A signed difference with the value's decimals; percentages differ by percentage points."""
    # A count of tokens far below the paper's unit prints in another; the difference is in this.
    decimals = _decimals(difference if unit in TOKEN_UNITS else value, form, printed)
    text = _text(difference, form, decimals, signed=True)
    return text + (POINTS if unit == "%" else suffix(form, unit))


def tolerance_text(tolerance: float, form: Number, unit: str, printed: str | None = None) -> str:
    """A tolerance as ± and at least two significant digits, in the unit of its difference."""
    if not tolerance:
        return "exact"
    theirs = printed is not None and not form.own
    decimals = len(printed.partition(".")[2]) if theirs else form.decimals
    decimals = max(decimals, 1 - math.floor(math.log10(tolerance)))
    text = _text(tolerance, form, decimals, signed=False)
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"±{text}" + (POINTS if unit == "%" else suffix(form, unit))


def bound_text(side: str, bound: float, form: Number, unit: str, printed: str | None) -> str:
    """A bound with the paper's decimals; side: least or most."""
    text = _text(bound, form, _decimals(bound, form, printed), signed=False)
    return f"{BOUNDS[side]} {text}{suffix(form, unit)}"


def spans(numbers: Iterable[int]) -> str:
    """Whole numbers in order, three or more in a row as a span: 42, 45 to 72."""
    runs = in_a_row(numbers)
    told = (f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return ", ".join(told)


def in_a_row(numbers: Iterable[int]) -> list[list[int]]:
    """Whole numbers in order, cut where one is left out."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def counted(row: Mapping[str, Any]) -> str:
    """How many of what are behind a piece of evidence: 3 seeds, 1 check."""
    if not row["n"]:
        return DASH
    return f"{row['n']} {row['counted'].removesuffix('s') if row['n'] == 1 else row['counted']}"


def _decimals(value: float, form: Number, printed: str | None) -> int:
    theirs = printed is not None and not form.own
    decimals = len(printed.partition(".")[2]) if theirs else form.decimals
    if value and form.significant:
        # Of the rounded number: 0.9989 is 1.0 to two digits.
        power = int(f"{abs(value):.{form.significant - 1}e}".partition("e")[2])
        decimals = max(decimals, form.significant - 1 - power)
    return decimals


def _text(value: float, form: Number, decimals: int, signed: bool) -> str:
    grouping = "," if form.grouped else ""
    magnitude = f"{abs(value):{grouping}.{decimals}f}"
    zero = not any(digit in magnitude for digit in "123456789")
    if zero:
        return magnitude
    return (MINUS if value < 0 else "+" if signed else "") + magnitude
