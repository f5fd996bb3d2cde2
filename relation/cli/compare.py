"""The command that sets two campaigns side by side."""

import argparse
from collections import Counter

from relation.cli.tables import print_table


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser("compare", help="two campaigns' reports side by side")
    parser.add_argument("first", help="a campaign with a report: smoke, or published/smoke")
    parser.add_argument("second", help="another")
    parser.set_defaults(call=_compare)


def _compare(options: argparse.Namespace) -> None:
    from relation.parquet import read_parquet
    from report.jobs.compare import compare
    from report.jobs.schemas import COMPARED_CELLS, COMPARED_CLAIMS
    from report.site.comparison import render_comparison

    folder = compare(options.first, options.second)
    page = render_comparison(folder)
    cells = read_parquet(folder / "cells.parquet", COMPARED_CELLS).to_pylist()
    claims = read_parquet(folder / "claims.parquet", COMPARED_CLAIMS).to_pylist()
    counts = {name: Counter() for name in ("both", "apart", "verdicts")}
    for cell in cells:
        table = cell["table"]
        counts["both"][table] += cell["difference"] is not None
        counts["apart"][table] += cell["intervals_meet"] is False
        counts["verdicts"][table] += cell["first_verdict"] != cell["second_verdict"]
    print_table(
        ["table", "values in both", "intervals apart", "verdicts differ"],
        [
            [table, *(f"{counter[table]}" for counter in counts.values())]
            for table in dict.fromkeys(cell["table"] for cell in cells)
        ],
    )
    differing = [row for row in claims if row["first_verdict"] != row["second_verdict"]]
    print()
    for row in differing:
        print(f"claim {row['number']}: {row['first_verdict']}, then {row['second_verdict']}")
    if not differing:
        print("The verdicts on all claims agree.")
    print(f"{page}, from {folder}/cells.parquet and claims.parquet")
