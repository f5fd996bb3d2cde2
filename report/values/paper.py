"""The values that the paper prints, one CSV a table, to the last printed digit; its seeds apart."""

import csv
import statistics
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from relation.errors import InputError
from report.values.layout import SEEDS

HEADER = ["row", "column", "statistic", "value", "unit"]
STATISTICS = frozenset({"value", "mean", "sd"})

Key = tuple[str, str, str]

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
    def key(self) -> Key:
        return self.row, self.column, self.statistic

    @cached_property
    def number(self) -> float | None:
        """In the paper's unit; None of words."""
        return None if self.unit == "text" else float(self.printed)

    @property
    def value(self) -> float:
        """The number in the records' unit."""
        return self.number * UNIT_SCALE[self.unit]

    @property
    def rounding(self) -> float:
        """See ``resolution``, in the paper's unit."""
        return resolution(self.printed)


def resolution(printed_text: str) -> float:
    """Half a unit of the last printed digit: what rounding alone can hide."""
    return 0.5 * 10.0 ** -len(printed_text.partition(".")[2])


@cache
def load(label: str, folder: Path | None = None) -> dict[Key, PrintedValue]:
    """Read the printed values of one table, keyed by (row, column, statistic).

    Raises:
        InputError: the file is missing, has another header, an unknown statistic or unit, a value
            that is not a number in a numeric unit, or the same key twice.
    """
    path = (folder or Path(__file__).parents[1] / "paper") / f"{label}.csv"
    if not path.is_file():
        raise InputError(f"{path}: the paper's values for table {label!r} are missing; restore it")
    values: dict[Key, PrintedValue] = {}
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


def printed(label: str, row: str, column: str, statistic: str = "value") -> PrintedValue | None:
    """One printed cell, or None where the paper prints none."""
    return load(label).get((row, column, statistic))


def number(label: str, row: str, column: str, statistic: str = "value") -> float | None:
    """The number of one printed cell."""
    found = printed(label, row, column, statistic)
    return None if found is None else found.number


def _seeds_of(label: str, row: str, column: str) -> tuple[Key, ...] | None:
    """The cells (table, row, column) of the three seeds behind a cell; None where unprinted."""
    if label in ("app-nll", "app-token-efficiency"):
        scale = row.split("/")[0]
        return tuple((label, f"{scale}/{seed}", column) for seed in SEEDS)
    if label == "main-results":
        if column == "token_reduction":
            return _seeds_of("app-token-efficiency", row, "reduction")
        names = {"mha_nll": "mha", "full_nll": "full", "delta": "delta"}
        return _seeds_of("app-nll", row, names[column]) if column in names else None
    if label == "structural-ablations":
        return _seeds_of("app-ablation", column, "mean" if row == "nll" else "delta")
    if label == "app-ablation":
        return tuple((label, row, f"seed_{seed}") for seed in SEEDS)
    if label == "app-hybrid":
        return tuple((label, str(seed), "nll") for seed in SEEDS)
    return None


def by_seed(label: str, row: str, column: str) -> dict[int, float]:
    """The paper's values of the three seeds behind one of its cells; empty where it prints none.

    Differences to Full Relation are taken seed by seed, as this project takes them.
    """
    cells = _seeds_of(label, row, column)
    if cells is None:
        return {}
    values = {seed: number(*cell) for seed, cell in zip(SEEDS, cells, strict=True)}
    ablation = (label == "app-ablation" and column == "delta") or (
        label == "structural-ablations" and row == "delta"
    )
    if ablation:
        full = by_seed("app-ablation", "full", "mean")
        values = {seed: value - full[seed] for seed, value in values.items()}
    return values


def spread(label: str, row: str, column: str) -> float | None:
    """Sample standard deviation over the paper's seeds behind a cell; None where it prints none."""
    values = by_seed(label, row, column)
    return statistics.stdev(values.values()) if values else None
