"""A verification's record in short, on a terminal."""

from pathlib import Path

from relation.cli.tables import print_table
from relation.errors import RunError
from relation.store.parquet import read_parquet


def print_verification(record: Path) -> None:
    """The nearest to its bound of each check, then the record; raises RunError beyond a bound."""
    rows = read_parquet(record).to_pandas()
    # What must be the same bit for bit has a bound of 0.
    share = rows["error"] / rows["allowed"].where(rows["error"] != 0, 1)
    rows["share"] = share.fillna(float("inf"))
    wrong = rows[rows["share"] > 1]
    table = []
    for key, found in rows.groupby(["check", "operator", "precision"], sort=False):
        worst = found.loc[found["share"].idxmax()]
        numbers = f"{worst['error']:.2e}", f"{worst['allowed']:.2e}"
        beyond = f"{(found['share'] > 1).sum()}"
        table.append([*key, f"{len(found)}", beyond, worst["name"], worst["measure"], *numbers])
    header = ["check", "operator", "precision", "checked", "beyond", "worst", "measure"]
    print_table([*header, "error", "allowed"], table)
    print(f"\n{record}")
    if len(wrong):
        first = wrong.iloc[0]
        raise RunError(
            f"{len(wrong)} of {len(rows)} errors are beyond what is allowed, first that of "
            f"{first['name']}, {first['check']} of {first['operator']} in {first['precision']}: do "
            f"not train with it; {record} has every error"
        )
