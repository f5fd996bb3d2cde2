"""The command `profile`: where the time of a training step goes."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from relation.cli.options import DEFAULT_CONFIG
from relation.cli.tables import print_table
from relation.pipeline.campaign import resolve
from relation.pipeline.config import load_config
from relation.pipeline.origin import stamp
from relation.store.files import write_text

_VARIANTS = "mha,full"


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "profile",
        help="show where the time of a training step goes",
        description=(
            "Profiles one update of each scale's models and sorts its kernels into parts: "
            "operator, products, norms, loss, optimiser and so on. Prints them, and writes Parquet "
            "and a picture below results/profile/."
        ),
    )
    parser.set_defaults(call=_profile)
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda; cpu: operations"
    )
    parser.add_argument(
        "--campaign", help="campaign whose steps are profiled (default: paper; on a CPU, smoke)"
    )
    parser.add_argument("--scales", help="comma-separated choice of its scales")
    parser.add_argument("--variants", default=_VARIANTS, help="of mha and full (default: both)")
    parser.add_argument(
        "--output",
        type=Path,
        help=(
            "Parquet to write (default: results/profile/CAMPAIGN-DEVICE.parquet; "
            "CAMPAIGN-DEVICE-choice with --scales or --variants)"
        ),
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="configuration file")


def _default_output(campaign: str, options: argparse.Namespace) -> Path:
    """Where a profile goes: what was restricted never replaces the whole."""
    chosen = options.scales is not None or options.variants != _VARIANTS
    name = f"{campaign}-{options.device}{'-choice' if chosen else ''}.parquet"
    return Path("results", "profile", name)


def _print_step(rows: Sequence[Mapping]) -> None:
    """One model's table: its parts, then the whole."""
    first = rows[0]
    wall = first["wall_seconds"]
    print(
        f"\n{first['scale']} {first['variant']} ({first['backend']}), "
        f"micro-batch {first['micro']}, T {first['context']}, {first['device']}"
    )
    table = [
        [
            row["part"],
            f"{1e3 * row['seconds']:.3f}",
            f"{row['seconds'] / wall:.1%}",
            f"{row['kernels']:.0f}",
        ]
        for row in rows
    ]
    print_table(["part", "ms", "share", "kernels"], [*table, ["step", f"{1e3 * wall:.3f}", "", ""]])


def _profile(options: argparse.Namespace) -> None:
    from relation.bench.profile import run
    from report.figures.profile import profile_svg

    name = options.campaign or ("paper" if options.device == "cuda" else "smoke")
    campaign = resolve(load_config(options.config), campaign=name, scales=options.scales)
    output = options.output or _default_output(name, options)
    variants = [variant.strip() for variant in options.variants.split(",")]
    rows = run(
        campaign.systems, campaign.settings, variants, options.device, output, stamp("profile")
    )
    for step in dict.fromkeys((row["scale"], row["variant"]) for row in rows):
        _print_step([row for row in rows if (row["scale"], row["variant"]) == step])
    picture = output.with_suffix(".svg")
    write_text(picture, profile_svg(rows))
    print(f"\n{output}\n{picture}")
