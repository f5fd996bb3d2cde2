"""Options that choose a campaign, shared by the commands."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from relation.errors import InputError
from relation.pipeline.campaign import Campaign
from relation.pipeline.config import load_config
from relation.pipeline.places import CHECKPOINT, run_path
from relation.pipeline.provenance import command_for
from relation.pipeline.results import Results, chosen_results
from relation.spec import RunSpec, canonical_hash

DEFAULT_CONFIG = Path("config.yaml")
# What `snakemake --config` takes too, by what it says of each.
CHOICES = {
    "scales": "comma-separated choice of scales",
    "seeds": "comma-separated choice of seeds",
    "variants": "comma-separated choice of variants",
    "readings": "comma-separated choice of readings, where it has some",
    "corpus": "books, or a file or folder of texts, for campaigns that read them",
    "published": "whether shipped records count as done",
}
RESTRICTIONS = ("scales", "seeds", "variants", "readings")
_LARGEST = 2**31 - 1  # that PyTorch takes as a number of threads


def add_command(
    commands,
    name: str,
    call: Callable,
    help: str,
    description: str,
    *choices: str,
    target: str | None = None,
) -> argparse.ArgumentParser:
    """Register a command on a campaign with those `choices`; target: what its argument is."""
    parser = commands.add_parser(name, help=help, description=description)
    parser.set_defaults(call=call)
    if target is not None:
        parser.add_argument("target", metavar=target)
    add_campaign_options(parser, *choices)
    return parser


def add_campaign_options(
    parser: argparse.ArgumentParser, *choices: str, default: str | None = None
) -> None:
    """--config, --campaign and those of CHOICES that change what the command does."""
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="configuration file")
    fallback = f"default: {default}" if default else "default: the configuration's"
    parser.add_argument("--campaign", default=default, help=f"campaign ({fallback})")
    for name in choices:
        taken = ("true", "false") if name == "published" else None
        parser.add_argument(f"--{name}", choices=taken, help=CHOICES[name])


def add_expect(parser: argparse.ArgumentParser) -> None:
    """--expect, which Snakemake's rules give."""
    parser.add_argument(
        "--expect", metavar="HASH", help="given by Snakemake: refuse unless the job has this hash"
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """--threads, for `set_threads`."""
    parser.add_argument(
        "--threads",
        type=count,
        default=1,
        metavar="N",
        help="CPU threads of PyTorch (default: 1, as in the workflow; more change last digits)",
    )


def count(text: str) -> int:
    """An option's value that is a whole number of at least 1."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _LARGEST):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_LARGEST}")
    return int(text)


def positive(text: str) -> float:
    """An option's value that is a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def set_threads(options: argparse.Namespace) -> None:
    """Give PyTorch the threads that were asked for."""
    import torch

    # The number of threads decides the order of sums: fixed, a rerun gives the same digits.
    torch.set_num_threads(options.threads)


def campaign_results(options: argparse.Namespace) -> Results:
    """The results of the campaign that the options choose."""
    choices = {name: getattr(options, name, None) for name in ("campaign", *CHOICES)}
    return chosen_results(load_config(options.config), **choices)


def chosen_campaign(options: argparse.Namespace) -> Campaign:
    """The campaign that the options choose."""
    return campaign_results(options).campaign


def chosen_run(target: str, campaign: Campaign) -> RunSpec:
    """The run SCALE/VARIANT/SEED of a campaign; of a reading's run, its name stands for SCALE.

    Raises InputError where there is none.
    """
    for run in campaign.known_runs:
        if run.name == target:
            return run
    raise InputError(
        f"campaign {campaign.name} has no run {target}; give SCALE/VARIANT/SEED, as "
        f"{campaign.known_runs[0].name}; `python -m relation status --campaign {campaign.name}` "
        "lists them"
    )


def checkpoint_of(run: RunSpec, results: Results) -> Path:
    """The run's checkpoint. Raises InputError unless it and its own record are there."""
    from relation.store.parquet import read_origin

    folder = results.folder / run_path(run)
    make = f"`{command_for(results.campaign, results.published)} -- {folder / CHECKPOINT}`"
    for name in (CHECKPOINT, "record.parquet"):
        if not (folder / name).exists():
            raise InputError(f"{run.name} has no {name}; make it with {make}")
    if read_origin(folder / "record.parquet")["config_hash"] != run.config_hash:
        raise InputError(f"{run.name} was trained as another configuration; make it with {make}")
    return folder / CHECKPOINT


def given_checkpoint(options: argparse.Namespace, *further: str) -> Path:
    """The path that --checkpoint names.

    Raises InputError where it is not there, and for options of a campaign, or `further` ones.
    """
    given = [f"--{name}" for name in ("campaign", *further) if getattr(options, name) is not None]
    given += ["--config"] * (options.config != DEFAULT_CONFIG)
    if given:
        raise InputError(f"--checkpoint reads no campaign; leave out {', '.join(given)}")
    if not options.checkpoint.exists():
        raise InputError(f"--checkpoint {options.checkpoint} is missing; name a model.safetensors")
    return options.checkpoint


def sharing_of(campaign: Campaign, run: RunSpec | None = None) -> int:
    """How many runs like it may share a GPU: the matrix's, whose times are results, if asked to."""
    of_reading = run is not None and bool(run.reading)
    return campaign.runs_per_gpu if of_reading or campaign.matrix_shares else 1


def check_expected(expected: str | None, found: str, what: str) -> None:
    """Raise InputError unless a job's hash is the one its rule was planned with."""
    if expected is not None and expected != found:
        raise InputError(
            f"{what}: the configuration changed after the workflow was started; start it again"
        )


def whole_results(options: argparse.Namespace) -> Results:
    """The results of a job that rests on all of the campaign."""
    results = campaign_results(options)
    campaign = results.campaign
    check_expected(options.expect, canonical_hash(campaign.settings), f"campaign {campaign.name}")
    return results
