"""Commands that run one job of the DAG; each calls one importable function.

Snakemake's rules call them with --config results/<campaign>/campaign.json, the configuration that
the workflow was started with, and --expect, the hash the job was planned with. By hand they read
config.yaml.
"""

import argparse
from collections.abc import Callable

from relation.cli.options import add_campaign_options, check_expected, chosen_campaign, chosen_run
from relation.config import Campaign
from relation.errors import InputError
from relation.results import Results, diagnostics_path, run_path, systems_path
from relation.spec import canonical_hash


def add_commands(commands) -> None:
    """Register the commands."""

    def job(name: str, call: Callable, help: str, target: str | None = None):
        parser = commands.add_parser(name, help=help)
        parser.set_defaults(call=call)
        if target is not None:
            parser.add_argument("target", metavar=target)
        add_campaign_options(parser)
        parser.add_argument("--expect", help="refuse to run unless the job has this hash")
        parser.add_argument("--threads", type=_count, help="CPU threads of PyTorch")
        return parser

    job("prepare", _prepare, "tokenise one corpus", "DATASET")
    train = job("train", _train, "train one run, or go on with a killed one", "SCALE/VARIANT/SEED")
    train.add_argument(
        "--tensorboard", action="store_true", help="log to results/CAMPAIGN/tensorboard too"
    )
    job("diagnose", _diagnose, "diagnose one run's checkpoint", "SCALE/VARIANT/SEED")
    job("measure", _measure, "run one systems benchmark", "BENCHMARK/SCALE")
    job("inventory", _inventory, "count the parameters of a campaign's models")
    job("cells", _cells, "compute every cell of every table")
    job("figures", _figures, "draw the figures")
    job("report", _report, "render the tables and the index")
    job("publish", _publish, "copy complete records to results/published")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _campaign(options: argparse.Namespace) -> tuple[Campaign, Results]:
    campaign = chosen_campaign(options)
    return campaign, Results(campaign)


def _whole_campaign(options: argparse.Namespace) -> tuple[Campaign, Results]:
    campaign, results = _campaign(options)
    check_expected(options.expect, canonical_hash(campaign.settings), f"campaign {campaign.name}")
    return campaign, results


def _set_threads(options: argparse.Namespace) -> None:
    import torch

    if options.threads is not None:
        # The number of threads decides the order of sums: fixed, a rerun gives the same digits.
        torch.set_num_threads(options.threads)


def _prepare(options: argparse.Namespace) -> None:
    from relation.data.prepare import prepare

    campaign, results = _campaign(options)
    spec = campaign.data.get(options.target)
    if spec is None:
        raise InputError(
            f"campaign {campaign.name} has no data set {options.target!r}; "
            f"choose among {', '.join(campaign.data)}"
        )
    check_expected(options.expect, spec.job_hash, spec.name)
    prepare(spec, results.data(spec), results.folder / "work" / spec.name, campaign.name)


def _train(options: argparse.Namespace) -> None:
    from relation.training.engine import train

    _set_threads(options)
    campaign, results = _campaign(options)
    spec = chosen_run(options.target, campaign)
    check_expected(options.expect, spec.job_hash, spec.name)
    data = results.data(campaign.data[spec.data])
    wanted = options.tensorboard or campaign.tensorboard
    events = results.folder / "tensorboard" / spec.name if wanted else None
    train(spec, data, results.folder / run_path(spec), results.folder / "resume", events)


def _diagnose(options: argparse.Namespace) -> None:
    from relation.diagnostics.measure import diagnose

    _set_threads(options)
    campaign, results = _campaign(options)
    run = chosen_run(options.target, campaign)
    spec = campaign.diagnostics_spec(run)
    check_expected(options.expect, spec.job_hash, f"diagnostics of {run.name}")
    checkpoint = results.folder / run_path(run) / "model.safetensors"
    data = results.data(campaign.data[run.data])
    diagnose(spec, run, checkpoint, data, results.folder / diagnostics_path(run))


def _measure(options: argparse.Namespace) -> None:
    from relation.systems.measure import measure

    _set_threads(options)
    campaign, results = _campaign(options)
    benchmark, _, scale = options.target.partition("/")
    spec = campaign.benchmark(benchmark, scale)
    check_expected(options.expect, spec.job_hash, f"benchmark {options.target}")
    data = results.data(campaign.data_of_scale(scale))
    measure(spec, data, results.folder / systems_path(spec))


def _inventory(options: argparse.Namespace) -> None:
    from relation.model.inventory import write_inventory

    campaign, results = _whole_campaign(options)
    write_inventory(campaign.inventory(), campaign.name, results.models)


def _cells(options: argparse.Namespace) -> None:
    from relation.records import load_records
    from report.jobs.cells import write_cells

    campaign, results = _whole_campaign(options)
    write_cells(load_records(campaign, results), results.report / "cells.parquet")


def _figures(options: argparse.Namespace) -> None:
    from relation.records import load_records
    from report.jobs.figures import write_figures

    campaign, results = _whole_campaign(options)
    write_figures(load_records(campaign, results), results.report / "figures.parquet")


def _report(options: argparse.Namespace) -> None:
    from report.jobs.pages import render_report

    _, results = _campaign(options)
    render_report(results.report)


def _publish(options: argparse.Namespace) -> None:
    from relation.records.publish import publish

    campaign, results = _campaign(options)
    published = publish(campaign, results)
    print(f"{len(published)} files in {results.published_folder}")
