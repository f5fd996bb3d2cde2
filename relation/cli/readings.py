"""The command that applies the rule of docs/readings.md: what it says, and what to run next."""

import argparse

from relation.cli.options import add_campaign_options, campaign_results
from relation.cli.tables import print_table
from relation.errors import InputError


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser("readings", help="which reading the rule chooses, what runs next")
    add_campaign_options(parser, default="readings")
    parser.set_defaults(call=_readings)


def _readings(options: argparse.Namespace) -> None:
    from relation.pipeline.gather import load_readings
    from report.judge.readings_rule import SEEDS, choose, next_seeds

    results = campaign_results(options)
    campaign = results.campaign
    records = load_readings(results.of_readings)
    if records is None:
        raise InputError(
            f"campaign {campaign.name} has no finished run of a reading; `snakemake --cores all "
            f"--config campaign={campaign.name}` makes them"
        )
    choice = choose(campaign.readings, records.diagnoses)
    rows = choice.distances.sort_values("distance")
    print_table(
        ["reading", "pairs", "adds", "distance", "nearer"],
        [
            [
                row.reading,
                f"{row.n}",
                f"{row.adds}",
                f"{row.distance:.1f}" if row.n else "-",
                f"{row.nearer:.2f}" if row.candidate else "-",
            ]
            for row in rows.itertuples()
        ],
    )
    print(f"\n{choice.answer}: {choice.reason}")
    left = next_seeds(campaign.readings, records.diagnoses)
    planned = {(run.reading, run.seed) for run in campaign.reading_runs}
    print("\nNext pairs, in the rule's order:")
    for name, seed in left:
        print(f"  {name} {seed}" + ("" if (name, seed) in planned else ", not configured yet"))
    unplanned = [name for name, seed in left if seed in SEEDS[1:] and (name, seed) not in planned]
    if unplanned:
        print(f"config.yaml, readings.further: add {', '.join(dict.fromkeys(unplanned))}")
