"""The values that the paper prints, one CSV a table, to the last printed digit."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from relation.errors import InputError

HEADER = ["row", "column", "statistic", "value", "unit"]
STATISTICS = frozenset({"value", "mean", "sd"})

# One unit of the paper in the unit of the records (fractions, single tokens, nats).
UNIT_SCALE = {
    "nat/token": 1.0,
    "%": 0.01,
    "tok/s": 1.0,
    "GiB": 1.0,
    "ms": 1e-3,
    "tokens": 1.0,
    "M tokens": 1e6,
    "B tokens": 1e9,
    "parameters": 1.0,
    "x": 1.0,
    "dims": 1.0,
    "epochs": 1.0,
    "1": 1.0,
    "text": 1.0,
}


@dataclass(frozen=True)
class PrintedValue:
    """One value as printed, without separators and unit signs; trailing zeros and signs kept."""

    row: str
    column: str
    statistic: str
    printed: str
    unit: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.row, self.column, self.statistic

    @cached_property
    def number(self) -> float | None:
        return None if self.unit == "text" else float(self.printed)


def load(label: str, folder: Path | None = None) -> dict[tuple[str, str, str], PrintedValue]:
    """Read the printed values of one table, keyed by (row, column, statistic).

    Raises:
        InputError: the file is missing, has another header, an unknown statistic or unit, a value
            that is not a number in a numeric unit, or the same key twice.
    """
    path = (folder or Path(__file__).parents[1] / "paper") / f"{label}.csv"
    if not path.is_file():
        raise InputError(f"{path}: the paper's values for table {label!r} are missing; restore it")
    values: dict[tuple[str, str, str], PrintedValue] = {}
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        if next(reader, None) != HEADER:
            raise InputError(f"{path}:1: the header must read {','.join(HEADER)}")
        for fields in reader:
            where = f"{path}:{reader.line_num}"
            if len(fields) != len(HEADER) or not all(fields):
                raise InputError(f"{where}: a line needs {len(HEADER)} filled fields")
            value = PrintedValue(*fields)
            _check(value, where)
            if value.key in values:
                raise InputError(f"{where}: {', '.join(value.key)} is given twice; keep one")
            values[value.key] = value
    return values


def _check(value: PrintedValue, where: str) -> None:
    if value.statistic not in STATISTICS:
        known = ", ".join(sorted(STATISTICS))
        raise InputError(f"{where}: unknown statistic {value.statistic!r}; use one of {known}")
    if value.unit not in UNIT_SCALE:
        known = ", ".join(UNIT_SCALE)
        raise InputError(f"{where}: unknown unit {value.unit!r}; use one of {known}")
    try:
        _ = value.number
    except ValueError:
        raise InputError(
            f"{where}: {value.printed!r} is not a number; correct it or give the unit text"
        ) from None
