"""The values that the paper prints, one CSV a table, to the last printed digit."""

from functools import cache
from pathlib import Path

import pandas as pd

from relation.errors import InputError
from relation.plan import PAPER_SCALES

FOLDER = Path(__file__).parent / "paper"
KEY = ["row", "column", "statistic"]
HEADER = [*KEY, "value", "unit"]
STATISTICS = {"value", "mean", "sd"}
SCALES = PAPER_SCALES
SEEDS = (42, 43, 44)
GPU = "RTX 5090"
# One unit of the paper in the unit of the records (fractions, single tokens, nats).
UNITS = {
    **dict.fromkeys(("nat/token", "tok/s", "GiB", "tokens", "parameters", "x"), 1.0),
    **dict.fromkeys(("dims", "epochs", "1", "text"), 1.0),
    "%": 0.01,
    "ms": 1e-3,
    "M tokens": 1e6,
    "B tokens": 1e9,
}


@cache
def load(table: str, folder: Path = FOLDER) -> pd.DataFrame:
    """The printed values of one table: row, column, statistic, printed (text), unit, paper_value.

    paper_value is a number in the unit, NaN for words. Raises InputError for a missing file,
    another header, an unknown statistic or unit, words in a numeric unit, or a key given twice.
    """
    path = folder / f"{table}.csv"
    if not path.is_file():
        raise InputError(f"{path}: the paper's values for table {table!r} are missing; restore it")
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    if list(rows.columns) != HEADER:
        raise InputError(f"{path}:1: the header must read {','.join(HEADER)}")
    numbers = pd.to_numeric(rows["value"].where(rows["unit"] != "text"), errors="coerce")
    for wrong, what in (
        ((rows == "").any(axis=1), "a field is empty; fill it in"),
        (~rows["statistic"].isin(STATISTICS), f"use a statistic of {', '.join(STATISTICS)}"),
        (~rows["unit"].isin(UNITS), f"use a unit of {', '.join(UNITS)}"),
        ((rows["unit"] != "text") & numbers.isna(), "the value is no number; use the unit text"),
        (rows.duplicated(KEY), "this row, column and statistic stand above; delete one"),
    ):
        if wrong.any():
            raise InputError(f"{path}:{wrong.idxmax() + 2}: {what}")
    return rows.rename(columns={"value": "printed"}).assign(paper_value=numbers)


def number(table: str, row: str, column: str, statistic: str = "value") -> float | None:
    """The number of one printed cell in the records' unit; None where the paper prints none."""
    found = load(table).set_index(KEY)
    if (row, column, statistic) not in found.index:
        return None
    cell = found.loc[(row, column, statistic)]
    return float(cell["paper_value"] * UNITS[cell["unit"]])
