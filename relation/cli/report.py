"""Commands of the report: its jobs, `render`, `publish`, `compare`, and the readings' rule."""

from __future__ import annotations

import argparse
import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relation.cli.options import (
    CHOICES,
    RESTRICTIONS,
    add_campaign_options,
    add_command,
    add_expect,
    campaign_results,
    whole_results,
)
from relation.cli.tables import print_table
from relation.errors import InputError
from relation.pipeline.config import load_config
from relation.pipeline.gaps import NOT_RUN, NOT_THERE
from relation.pipeline.provenance import command_for
from relation.pipeline.results import Results, chosen_results

if TYPE_CHECKING:
    from report.values.frames import CampaignRecords


def add_commands(commands) -> None:
    """Register the commands."""
    folder = "results/CAMPAIGN/report/"
    cells = add_command(
        commands,
        "cells",
        _cells,
        "compute every cell and claim",
        f"Computes every cell and claim from complete records and writes Parquet to {folder}.",
        *CHOICES,
    )
    report = add_command(
        commands,
        "report",
        _report,
        "render the pages",
        f"Renders the pages and tables to {folder} from its cells and figures.",
        *CHOICES,
    )
    document = add_command(
        commands,
        "document",
        _document,
        "write the tables in LaTeX, report.tex and report.pdf",
        f"Writes tables/*.tex, report.tex and, where TeX is installed, report.pdf to {folder} from "
        "its cells and figures.",
    )
    figures = add_command(
        commands,
        "figures",
        _figures,
        "draw the figures",
        f"Draws the figures of complete records as SVG and PDF to {folder}figures/.",
        *CHOICES,
    )
    for parser in (cells, report, document, figures):
        parser.add_argument(
            "--shipped", action="store_true", help="from results/published alone, gaps named"
        )
    for parser in (cells, figures):
        add_expect(parser)
    figures.add_argument(
        "--drawn", nargs="?", type=Path, metavar="FIGURES.PARQUET",
        help="of another report, whose pictures of the same readings are copied",
    )  # fmt: skip
    add_command(
        commands,
        "render",
        _render,
        "cells, figures and report of what is there, with the gaps named",
        "Does the work of cells, figures, report and document with the records that are there, and "
        f"writes it to {folder}, or to results/CAMPAIGN/so-far/ while there are gaps.",
        *CHOICES,
    )
    add_command(
        commands,
        "publish",
        _publish,
        "copy complete records to results/published",
        "Copies every complete record of a campaign, with checksums, to "
        "results/published/CAMPAIGN/.",
        *RESTRICTIONS,
        "corpus",
    )
    compared = commands.add_parser(
        "compare",
        help="two campaigns' reports side by side",
        description=(
            "Compares the reports of two campaigns, prints where they differ and writes a page "
            "below results/compare/."
        ),
    )
    compared.add_argument("first", help="a campaign with a report: smoke, or published/smoke")
    compared.add_argument("second", help="another")
    compared.set_defaults(call=_compare)
    ruled = commands.add_parser(
        "readings",
        help="which reading the rule chooses, what runs next",
        description="Prints how near each reading is, which one the rule chooses and what is next.",
    )
    add_campaign_options(ruled, "corpus", "published", default="readings")
    ruled.set_defaults(call=_readings)


def _records(options: argparse.Namespace) -> tuple[CampaignRecords, Path]:
    """What a report is made from, of shipped records those that are there; its folder."""
    from report.values.frames import load_records

    results = whole_results(options)
    if options.shipped:
        results = replace(results, shipped_only=True)
        results.shipped.check_all()
    return load_records(results.campaign, results, partial=options.shipped), results.report


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage: these commands' processes end soon, and scanning costs time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_uncollected()
def _cells(options: argparse.Namespace) -> None:
    from report.judge.job import write_cells

    write_cells(*_records(options))


@_uncollected()
def _figures(options: argparse.Namespace) -> None:
    from report.figures import write_figures

    records, report = _records(options)
    write_figures(records, report / "figures.parquet", options.drawn)


@_uncollected()
def _report(options: argparse.Namespace) -> None:
    from report.render.site import render_report

    results = campaign_results(options)
    render_report(results.campaign, replace(results, shipped_only=options.shipped))


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
    from report.figures import write_figures
    from report.judge.job import write_cells
    from report.render.document import write_document
    from report.render.site import render_report
    from report.values.frames import load_records

    results = report_place(campaign_results(options))
    records = load_records(results.campaign, results, partial=True)
    write_cells(records, results.report)
    write_figures(records, results.report / "figures.parquet")
    render_report(results.campaign, results)
    document = write_document(results.report)
    for line in gap_lines(records.missing.to_dict("records")):
        print(line)
    print(document)
    print(f"{results.report / 'index.html'}: {len(records.provenance)} records")


def gap_lines(missing: Iterable[Mapping[str, Any]]) -> list[str]:
    """What a report lacks: how much of each kind was not run, by reason, and each failed job."""
    counts: dict[str, Counter[str]] = {}
    for gap in missing:
        reason = "no record is there" if gap["reason"].startswith(NOT_THERE) else gap["reason"]
        if gap["status"] != NOT_RUN:
            seed = "" if gap["seed"] < 0 else str(gap["seed"])
            name = "/".join(filter(None, (gap["scale"], gap["variant"], seed)))
            reason = f"{name}: {reason}" if name else reason
        counts.setdefault(f"{gap['status']}: {reason}", Counter())[gap["kind"]] += 1
    return [
        f"{what} ({', '.join(f'{kind}: {n}' for kind, n in kinds.items())})"
        for what, kinds in counts.items()
    ]


@_uncollected()
def _document(options: argparse.Namespace) -> None:
    from report.render.document import write_document
    from report.render.shipped import read_shipped

    results = replace(campaign_results(options), shipped_only=options.shipped)
    print(write_document(results.report, read_shipped(results)))


def _publish(options: argparse.Namespace) -> None:
    from relation.pipeline.jobs import DONE, UNREPORTED
    from relation.pipeline.ledger import Ledger
    from relation.pipeline.publish import publish

    results = campaign_results(options)
    published = publish(results.campaign, results)
    print(f"{len(published)} files in {results.shipped.folder}")
    ledger = Ledger(campaign_results(options))
    jobs = [job for job in ledger.jobs if job.rule not in UNREPORTED]
    left = sum(ledger.recorded(job).name != DONE for job in jobs)
    if left:
        print(f"{left} of the campaign's {len(jobs)} jobs have no complete record to ship yet")


def _compare(options: argparse.Namespace) -> None:
    from report.render.compare import compare, render_comparison

    found = compare(options.first, options.second)
    page = render_comparison(found)
    print_table(
        ["table", "values in both", "intervals apart", "verdicts differ"],
        [
            [compared.table.label, f"{compared.both}", f"{compared.apart}", f"{compared.verdicts}"]
            for compared in found.tables
        ],
    )
    print()
    differing = [pair for pair in found.claims if pair[0]["verdict"] != pair[1]["verdict"]]
    for first, second in differing:
        print(f"claim {first['number']}: {first['verdict']}, then {second['verdict']}")
    if not differing:
        print("The verdicts on all claims agree.")
    print(page)


def _readings(options: argparse.Namespace) -> None:
    from relation.pipeline.gather import load_readings
    from report.judge.readings_rule import SEEDS, choose, next_seeds

    results = campaign_results(options)
    campaign = results.campaign
    if not campaign.readings:
        raise InputError(f"campaign {campaign.name} tries no readings; take --campaign readings")
    records = load_readings(results.of_readings)
    if records is None:
        raise InputError(
            f"campaign {campaign.name} has no finished run of a reading; "
            f"`{command_for(campaign, results.published)}` makes them"
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
    print(
        "adds: how much a reading states beyond the paper; nearer: in what share of random draws "
        "it is nearer than the nearest"
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
