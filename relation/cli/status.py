"""The command `status`: how far a campaign has come, while it runs or not."""

import argparse
import json
import sys
import textwrap
import time
from collections import Counter
from dataclasses import replace

from relation.cli.options import CHOICES, add_campaign_options, campaign_results
from relation.cli.tables import print_table
from relation.machine.progress import duration
from relation.pipeline.campaign import Campaign
from relation.pipeline.progress import (
    DONE,
    STATES,
    STOPPED,
    CampaignStatus,
    RunStatus,
    campaign_status,
)

_COLUMNS = 100
_CLEAR_SCREEN = "\x1b[H\x1b[2J"


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "status",
        help="how far a campaign has come, while it runs or not",
        description=(
            "Prints every planned run with its state, progress, speed, time left, last training "
            "loss and the age of its last update. Reads files and changes none, so that it can be "
            "asked at any time. A run that is stopped goes on at the progress shown; one that is "
            "done has a record of this configuration, one that is stale of another or of other "
            "texts, and whether the code changed since is what `snakemake -n` tells."
        ),
    )
    parser.set_defaults(call=_status)
    add_campaign_options(parser, *CHOICES)
    parser.add_argument(
        "--steps", action="store_true", help="list the other jobs too; begun: running or killed"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--watch",
        type=_seconds,
        metavar="SECONDS",
        help="look again every so many seconds until all is done",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 86400")
    return seconds


def _status(options: argparse.Namespace) -> None:
    results = campaign_results(options)
    campaign = results.campaign
    while True:
        # Anew every time: what is published, and what of it is whole, is read once by each.
        found = campaign_status(campaign, replace(results), options.steps)
        if options.watch is not None and sys.stdout.isatty():
            print(_CLEAR_SCREEN, end="")
        if options.json:
            print(json.dumps(found.as_dict(), indent=None if options.watch else 2))
        else:
            _print(campaign, found, time.time())
        sys.stdout.flush()
        jobs = [*found.runs, *found.steps]
        if options.watch is None or all(job.state == DONE for job in jobs):
            return
        time.sleep(options.watch)
        if not (options.json or sys.stdout.isatty()):
            print()


def _counted(runs: list[RunStatus]) -> str:
    """How many runs there are and how many are in each state."""
    counts = Counter(run.state for run in runs)
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    return f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}: {states}"


def _age(updated: float | None, now: float) -> str:
    return "-" if updated is None else duration(now - updated)


def _row(run: RunStatus, now: float) -> list[str]:
    return [
        run.name,
        run.state,
        # Rounded down: only what is done has all of it.
        f"{int(100 * run.share)}%",
        "-" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}",
        "-" if run.state == DONE else duration(run.seconds_left),
        "-" if run.loss is None else f"{run.loss:.3f}",
        _age(run.updated, now),
    ]


def _print(campaign: Campaign, found: CampaignStatus, now: float) -> None:
    print_table(
        ["run", "state", "trained", "tok/s", "left", "loss", "age"],
        [_row(run, now) for run in found.runs],
    )
    if found.steps:
        print()
        print_table(
            ["step", "state", "age"],
            [[step.name, step.state, _age(step.updated, now)] for step in found.steps],
        )
    print()
    lines = [
        f"{job.name} {job.state}: {job.reason.removeprefix(f'{job.name}: ')}"
        for job in (*found.runs, *found.steps)
        if job.reason and job.state != STOPPED
    ]
    lines += [f"note: {note}" for note in found.notes]
    lines.append(f"{campaign.title}, {_counted(found.runs)}.")
    if found.seconds_left:
        lines.append(_left(campaign, found))
    for line in lines:
        print(
            textwrap.fill(
                line,
                _COLUMNS,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )


def _left(campaign: Campaign, found: CampaignStatus) -> str:
    """How long all training still takes, and what that rests on."""
    unit = "GPU" if campaign.device == "cuda" else "core"
    at_once = (
        f"; {duration(found.seconds_left_together)} at best, {found.running} at a time"
        if found.running > 1
        else ""
    )
    return (
        f"Training left: {duration(found.seconds_left)} of one {unit}{at_once}. A run without a "
        "rate takes that of its scale, or expected_tokens_per_second where none is measured."
    )
