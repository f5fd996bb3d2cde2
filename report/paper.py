"""The values that the paper prints: one CSV per table, with every printed digit."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from relation.errors import InputError
from relation.plan import PAPER_SCALES

FOLDER = Path(__file__).parent / "paper"
KEY = ["row", "column", "statistic"]
HEADER = [*KEY, "value", "unit"]
NOTHING = pd.DataFrame(columns=[*KEY, "printed", "unit", "paper_value"])
STATISTICS = {"value", "mean", "sd"}
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


def lines(path: Path, header: Sequence[str], further: Sequence[str] = ()) -> pd.DataFrame:
    """Read a CSV as text, with the columns of `header` and any of `further`.

    Raises InputError for a missing file, other columns or an unknown unit, with file and line.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing; see docs/extending.md")
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    if not {*header} <= {*rows.columns} <= {*header, *further}:
        more = f", and of {','.join(further)}" if further else ""
        raise InputError(f"{path}:1: the header must read {','.join(header)}{more}")
    refuse(path, ~rows["unit"].isin(UNITS), f"use a unit of {', '.join(UNITS)}")
    return rows


def refuse(path: Path, wrong: pd.Series, what: str) -> None:
    """Raise InputError for the first line of a CSV that `wrong` marks."""
    if wrong.any():
        raise InputError(f"{path}:{wrong.idxmax() + 2}: {what}")


@cache
def load(table: str, folder: Path = FOLDER) -> pd.DataFrame:
    """Return a table's printed values: row, column, statistic, printed (text), unit, paper_value.

    paper_value is a number in the unit, NaN for words. Raises InputError as `lines` does, and for
    an empty field, an unknown statistic, words in a numeric unit, or a repeated key.
    """
    path = folder / f"{table}.csv"
    rows = lines(path, HEADER)
    numbers = pd.to_numeric(rows["value"].where(rows["unit"] != "text"), errors="coerce")
    worded = (rows["unit"] != "text") & numbers.isna()
    refuse(path, (rows == "").any(axis=1), "a field is empty; fill it in")
    unknown = ~rows["statistic"].isin(STATISTICS)
    refuse(path, unknown, f"give a statistic of {', '.join(STATISTICS)}")
    refuse(path, worded, "the value is not a number; use the unit text")
    refuse(path, rows.duplicated(KEY), "an earlier line has the same row, column and statistic")
    return rows.rename(columns={"value": "printed"}).assign(paper_value=numbers)


def number(table: str, row: str, column: str, statistic: str = "value") -> float | None:
    """Return one printed number in the records' unit; None if the paper does not print it."""
    printed = load(table).set_index(KEY)
    if (row, column, statistic) not in printed.index:
        return None
    cell = printed.loc[(row, column, statistic)]
    return float(cell["paper_value"] * UNITS[cell["unit"]])
