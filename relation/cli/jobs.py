"""Commands that run one job of the DAG; each calls one importable function.

Snakemake's rules call them with --config results/<campaign>/campaign.json, the configuration that
the workflow was started with, and --expect, the hash the job was planned with. By hand they read
config.yaml.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from relation.cli.options import (
    add_campaign_options,
    add_job_options,
    campaign_results,
    check_expected,
    chosen_run,
    count,
    set_threads,
    sharing_of,
)
from relation.errors import InputError
from relation.pipeline.campaign import Campaign
from relation.pipeline.config import load_config
from relation.pipeline.results import (
    GRADIENTS_FILE,
    VERIFICATION_FILE,
    Results,
    chosen_results,
    run_path,
    systems_path,
)
from relation.pipeline.uses import uses_of
from relation.spec import canonical_hash

if TYPE_CHECKING:
    from report.values.frames import CampaignRecords


def add_commands(commands) -> None:
    """Register the commands."""

    def job(name: str, call: Callable, help: str, target: str | None = None):
        parser = commands.add_parser(name, help=help)
        parser.set_defaults(call=call)
        if target is not None:
            parser.add_argument("target", metavar=target)
        add_campaign_options(parser)
        add_job_options(parser)
        return parser

    job("prepare", _prepare, "tokenise one corpus", "DATASET")
    train = job("train", _train, "train one run, or go on with a killed one", "SCALE/VARIANT/SEED")
    train.add_argument(
        "--processes",
        type=count,
        default=1,
        help="share each update among so many processes, a GPU each, under torchrun",
    )
    train.add_argument(
        "--tensorboard", action="store_true", help="log to results/CAMPAIGN/tensorboard too"
    )
    job("measure", _measure, "run one systems benchmark", "BENCHMARK/SCALE")
    job("verify", _verify, "check FlashRelation against its definition on this device")
    job("verify-gradients", _verify_gradients, "check the training step's gradients against FP64")
    job("inventory", _inventory, "count the parameters of a campaign's models")
    for name, call, help in (
        ("cells", _cells, "compute every cell and claim"),
        ("figures", _figures, "draw the figures"),
        ("report", _report, "render the pages"),
        ("document", _document, "write the tables in LaTeX, report.tex and report.pdf"),
    ):
        job(name, call, help).add_argument(
            "--shipped", action="store_true", help="from results/published alone, gaps named"
        )
    job("render", _render, "cells, figures and report of what is there, with the gaps named")
    job("publish", _publish, "copy complete records to results/published")
    job("collect", _collect, "gather the records of the readings, a file a kind")


def _campaign(options: argparse.Namespace) -> tuple[Campaign, Results]:
    results = campaign_results(options)
    return results.campaign, results


def _whole_campaign(options: argparse.Namespace) -> tuple[Campaign, Results]:
    campaign, results = _campaign(options)
    check_expected(options.expect, canonical_hash(campaign.settings), f"campaign {campaign.name}")
    return campaign, results


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


def _train_under_torchrun(processes: int) -> None:
    """Start this very command so many times, as torchrun does.

    Raises SystemExit where they failed or were stopped: the first of them has said why.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    from relation.train.parallel import ON_THIS_MACHINE

    # Its own account of a failure says less than the run's line, at greater length.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    started = [*ON_THIS_MACHINE, "--nproc-per-node", str(processes), "-m", "relation"]
    try:
        run(parse_args([*started, *sys.argv[1:]]))
    except (ChildFailedError, SignalException):
        raise SystemExit(2) from None


def _train(options: argparse.Namespace) -> None:
    campaign, results = _campaign(options)
    spec = chosen_run(options.target, campaign)
    check_expected(options.expect, spec.job_hash, spec.name)
    if options.processes > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        _train_under_torchrun(options.processes)
        return

    from relation.flow.probe import FlowProbe
    from relation.train.probes import ValidationProbe
    from relation.train.run import train

    set_threads(options)
    data = results.data(campaign.data[spec.data])
    wanted = options.tensorboard or campaign.tensorboard
    events = results.folder / "tensorboard" / spec.name if wanted else None
    looks = campaign.diagnostics
    sampling = campaign.diagnostics_spec(spec, looks["probe_sequences"])
    probes = (
        FlowProbe(sampling, looks["probes"], data, spec.model_config().vocab_size, uses_of(spec)),
        ValidationProbe(looks["validations"], looks["validation_tokens"], data, spec),
    )
    output, resume = results.folder / run_path(spec), results.folder / "resume"
    train(spec, data, output, resume, events, probes, sharing_of(campaign, spec))


def _measure(options: argparse.Namespace) -> None:
    from relation.bench.campaign import measure

    set_threads(options)
    campaign, results = _campaign(options)
    benchmark, _, scale = options.target.partition("/")
    spec = campaign.benchmark(benchmark, scale)
    check_expected(options.expect, spec.job_hash, f"benchmark {options.target}")
    data = results.data(campaign.data_of_scale(scale))
    measure(spec, data, results.folder / systems_path(spec))


def _verify(options: argparse.Namespace) -> None:
    from relation.verify.operators import verify

    set_threads(options)
    campaign, results = _campaign(options)
    check_expected(options.expect, campaign.verification.job_hash, "verification")
    verify(campaign.verification, results.folder / VERIFICATION_FILE)


def _verify_gradients(options: argparse.Namespace) -> None:
    from relation.verify.gradients import verify_gradients

    set_threads(options)
    campaign, results = _campaign(options)
    check_expected(options.expect, campaign.gradients.job_hash, "gradients")
    verify_gradients(campaign.gradients, results.folder / GRADIENTS_FILE)


def _inventory(options: argparse.Namespace) -> None:
    from relation.pipeline.inventory import write_inventory

    campaign, results = _whole_campaign(options)
    write_inventory(campaign, results.models)


def _records(options: argparse.Namespace) -> tuple[CampaignRecords, Results]:
    """What a report is made from; of shipped records, those that are there."""
    from report.values.frames import load_records

    campaign, results = _whole_campaign(options)
    if options.shipped:
        results = replace(results, shipped_only=True)
        results.check_shipped()
    return load_records(campaign, results, partial=options.shipped), results


def _cells(options: argparse.Namespace) -> None:
    from report.judge.job import write_cells

    records, results = _records(options)
    write_cells(records, results.report)


def _figures(options: argparse.Namespace) -> None:
    from report.figures.job import write_figures

    records, results = _records(options)
    write_figures(records, results.report / "figures.parquet")


def _report(options: argparse.Namespace) -> None:
    from report.render.site_job import render_report

    campaign, results = _campaign(options)
    render_report(campaign, replace(results, shipped_only=options.shipped))


def report_place(results: Results) -> Results:
    """Where a report of what is there goes.

    Snakemake takes the report's folder for one of all records, made as the workflow was started:
    anything else goes beside it, so that nothing passes for done that is not.
    """
    from report.values.frames import load_records

    try:
        started = chosen_results(load_config(results.started_with))
        load_records(results.campaign, results)
    except InputError:
        return results.so_far
    as_started = started.published == results.published
    as_started &= started.campaign.settings == results.campaign.settings
    return results if as_started else results.so_far


def _render(options: argparse.Namespace) -> None:
    from report.figures.job import write_figures
    from report.judge.job import write_cells
    from report.render.document_job import write_document
    from report.render.site_job import render_report
    from report.values.frames import load_records

    campaign, results = _campaign(options)
    results = report_place(results)
    records = load_records(campaign, results, partial=True)
    write_cells(records, results.report)
    write_figures(records, results.report / "figures.parquet")
    render_report(campaign, results)
    print(write_document(results.report))
    print(f"{results.report / 'index.html'}: {len(records.provenance)} records")
    for gap in records.missing.to_dict("records"):
        seed = "" if gap["seed"] < 0 else str(gap["seed"])
        name = "/".join(filter(None, (gap["scale"], gap["variant"], seed)))
        print(f"{gap['status']}: {' '.join(filter(None, (gap['kind'], name)))}: {gap['reason']}")


def _document(options: argparse.Namespace) -> None:
    from report.render.document_job import write_document

    _, results = _campaign(options)
    print(write_document(replace(results, shipped_only=options.shipped).report))


def _collect(options: argparse.Namespace) -> None:
    from relation.pipeline.gather import collect

    _, results = _campaign(options)
    for path in collect(results):
        print(path)


def _publish(options: argparse.Namespace) -> None:
    from relation.pipeline.publish import publish

    campaign, results = _campaign(options)
    published = publish(campaign, results)
    print(f"{len(published)} files in {results.published_folder}")
