"""The command `tune`: searches the launches of a kernel on the GPU at hand."""

import argparse
from pathlib import Path

from relation.cli.tables import print_tables
from relation.errors import InputError
from relation.pipeline.campaign import resolve
from relation.pipeline.config import load_config
from relation.store.files import write_text


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "tune",
        help="search a kernel's tile shapes on this machine's GPU",
        description=(
            "Compiles, times and checks tile shapes of FlashRelation's passes on this machine's "
            "GPU and prints entries for kernels/flash_relation/launches.toml, which it leaves "
            "as it is."
        ),
    )
    parser.set_defaults(call=_tune)
    parser.add_argument("name", metavar="NAME", help="what to tune: flash")
    parser.add_argument(
        "--shapes",
        metavar="CAMPAIGN",
        default="paper",
        help="campaign whose shapes are searched (default: paper)",
    )
    parser.add_argument("--scales", help="comma-separated choice of its scales")
    parser.add_argument(
        "--dtype", choices=("bf16", "fp16", "fp32"), default="bf16", help="default: bf16"
    )
    parser.add_argument(
        "--repeats", type=int, default=20, help="rounds of every candidate (default: 20)"
    )
    parser.add_argument(
        "--steady",
        type=float,
        metavar="SECONDS",
        help=(
            "rank the fastest by a load of so many seconds without a pause, as training is one: "
            "under its power cap a GPU may prefer others (2 is enough)"
        ),
    )
    parser.add_argument("--output", type=Path, metavar="FILE.toml", help="write the entries there")
    parser.add_argument(
        "--config", type=Path, default=Path("config.yaml"), help="configuration file"
    )


def _tune(options: argparse.Namespace) -> None:
    from relation.kernels import why_unavailable

    if options.name != "flash":
        raise InputError(f"nothing named {options.name!r} to tune; choose flash")
    reason = why_unavailable("cuda")
    if reason is not None:
        raise InputError(f"tune flash searches on an NVIDIA GPU: {reason}")
    # After the refusal, because they import Triton.
    from relation.bench.tune import tune
    from relation.bench.tune_report import entries_toml, notes, sections

    campaign = resolve(load_config(options.config), campaign=options.shapes, scales=options.scales)
    found = tune(campaign.systems, options.dtype, options.repeats, options.steady)
    print(f"Launches of FlashRelation on {found.device}")
    print_tables(sections(found), notes(found))
    entries = entries_toml(found)
    print(f"\n{entries}", end="")
    if options.output is not None:
        write_text(options.output, entries)
        print(options.output)
