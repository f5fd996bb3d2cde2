"""The commands `crate` and `site`: what is made here, for other programs and for readers."""

import argparse
from dataclasses import replace
from pathlib import Path

from relation.cli.options import CHOICES, add_campaign_options, campaign_results


def add_commands(commands) -> None:
    """Register the commands."""
    parser = commands.add_parser(
        "crate",
        help="a campaign's workflow, configuration and records as an RO-Crate",
        description=(
            "Copies the records of a campaign, with its workflow and configuration, into a folder "
            "that any reader of Workflow Run RO-Crates understands, and describes the corpus in "
            "Croissant where its texts are at hand."
        ),
    )
    parser.set_defaults(call=_crate)
    add_campaign_options(parser, *CHOICES)
    parser.add_argument(
        "--shipped", action="store_true", help="the records in results/published alone"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="default: results/CAMPAIGN/crate"
    )
    parser = commands.add_parser(
        "site",
        help="shipped reports, documentation and reference in one folder, for any server",
        description=(
            "Writes one folder of pages: the rendered reports of what is shipped, the "
            "documentation and the library's reference."
        ),
    )
    parser.set_defaults(call=_site)
    parser.add_argument(
        "--output", type=Path, metavar="DIR", default=Path("site"), help="default: site"
    )
    parser.add_argument(
        "--no-reports", action="store_true", help="documentation and reference alone"
    )


def _crate(options: argparse.Namespace) -> None:
    from relation.pipeline.crate import METADATA, write_crate

    results = campaign_results(options)
    if options.shipped:
        results = replace(results, shipped_only=True)
        results.shipped.check_all()
    folder = options.output or results.own_folder / "crate"
    records = len(write_crate(results, folder))
    name = results.campaign.name
    print(f"{folder / METADATA}: {records} records of campaign {name}, its workflow and settings")


def _site(options: argparse.Namespace) -> None:
    from report.render.handbook import PUBLISHED, write_site

    for page in write_site(options.output, None if options.no_reports else PUBLISHED):
        print(page)
