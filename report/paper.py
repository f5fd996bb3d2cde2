"""The values that the paper prints: one CSV per table, with every printed digit."""

from functools import cache
from pathlib import Path

import pandas as pd

from relation.errors import InputError
from relation.plan import PAPER_SCALES

FOLDER = Path(__file__).parent / "paper"
KEY = ["row", "column", "statistic"]
NOTHING = pd.DataFrame(columns=[*KEY, "paper", "unit", "paper_value"])
SCALES = PAPER_SCALES
SEEDS = (42, 43, 44)
GPU = "RTX 5090"
# One unit of the paper in the unit of the records (fractions, single tokens, nats).
UNITS = {
    **dict.fromkeys(("nat/token", "bit/character", "tok/s", "GiB", "tokens"), 1.0),
    **dict.fromkeys(("parameters", "x", "dims", "epochs", "1", "text"), 1.0),
    "%": 0.01,
    "ms": 1e-3,
    "M tokens": 1e6,
    "B tokens": 1e9,
}


def read(path: Path) -> pd.DataFrame:
    """Read the CSV of a table's columns or printed values as text. It has a column `unit`."""
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    if unknown := set(rows["unit"]) - set(UNITS):
        raise InputError(f"{path}: unknown unit {min(unknown)!r}; use one of {', '.join(UNITS)}")
    return rows


@cache
def load(table: str) -> pd.DataFrame:
    """Return a table's printed values: row, column, statistic, paper (text), unit, paper_value.

    paper_value is a number in the unit, NaN for words.
    """
    rows = read(FOLDER / f"{table}.csv")
    numbers = pd.to_numeric(rows["value"].where(rows["unit"] != "text"))
    return rows.rename(columns={"value": "paper"}).assign(paper_value=numbers)


def number(table: str, row: str, column: str, statistic: str = "value") -> float | None:
    """Return one printed number in the records' unit; None if the paper does not print it."""
    printed = load(table).set_index(KEY)
    if (row, column, statistic) not in printed.index:
        return None
    cell = printed.loc[(row, column, statistic)]
    return float(cell["paper_value"] * UNITS[cell["unit"]])
