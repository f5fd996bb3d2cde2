"""The command that sets two campaigns side by side."""

import argparse

from relation.cli.tables import print_table


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser("compare", help="two campaigns' reports side by side")
    parser.add_argument("first", help="a campaign with a report: smoke, or published/smoke")
    parser.add_argument("second", help="another")
    parser.set_defaults(call=_compare)


def _compare(options: argparse.Namespace) -> None:
    from relation.store.parquet import read_parquet
    from report.judge.frames import COMPARED_CELLS, COMPARED_CLAIMS
    from report.render.compare import compare
    from report.render.comparison import compared_tables, render_comparison

    folder = compare(options.first, options.second)
    page = render_comparison(folder)
    cells = read_parquet(folder / "cells.parquet", COMPARED_CELLS).to_pylist()
    claims = read_parquet(folder / "claims.parquet", COMPARED_CLAIMS).to_pylist()
    print_table(
        ["table", "values in both", "intervals apart", "verdicts differ"],
        [
            [found.table.label, f"{found.both}", f"{found.apart}", f"{found.verdicts}"]
            for found in compared_tables(cells)
        ],
    )
    differing = [row for row in claims if row["first_verdict"] != row["second_verdict"]]
    print()
    for row in differing:
        print(f"claim {row['number']}: {row['first_verdict']}, then {row['second_verdict']}")
    if not differing:
        print("The verdicts on all claims agree.")
    print(f"{page}, from {folder}/cells.parquet and claims.parquet")
