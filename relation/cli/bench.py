"""The command `bench`: operators and training steps beside their peers, in one run."""

import argparse
from pathlib import Path

from relation.cli.tables import print_table
from relation.config import load_config, resolve

_REPEATS = 50


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "bench",
        help="measure an operator and its training step beside their peers",
        description=(
            "Times the project's kernels and their peers in one process, interleaved, on random "
            "inputs. Writes Parquet and prints times, ratios and peak memory."
        ),
    )
    parser.set_defaults(call=_bench)
    parser.add_argument("name", metavar="NAME", help="what to compare: flash, linear or decoder")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda; cpu: no kernels"
    )
    parser.add_argument(
        "--shapes",
        metavar="CAMPAIGN",
        help="campaign whose shapes are measured (default: paper; with --device cpu, smoke)",
    )
    parser.add_argument("--scales", help="comma-separated choice of its scales")
    parser.add_argument(
        "--only",
        metavar="MEASURES",
        help=(
            "comma-separated choice of forward, backward (with its forward), step and, of linear, "
            "long (steps at ever longer contexts)"
        ),
    )
    parser.add_argument("--peers", help="comma-separated choice of what to compare with")
    parser.add_argument(
        "--repeats",
        type=int,
        default=_REPEATS,
        help=f"rounds of an operator; a step has a fifth of them (default: {_REPEATS})",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help=(
            "Parquet to write (default: results/bench/NAME.parquet; NAME-cpu with --device cpu, "
            "and -choice after it with --shapes, --scales, --only, --peers or --repeats)"
        ),
    )
    parser.add_argument(
        "--config", type=Path, default=Path("config.yaml"), help="configuration file"
    )


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _default_output(options: argparse.Namespace) -> Path:
    """Where a benchmark goes: what was restricted never replaces the whole."""
    choices = (options.shapes, options.scales, options.only, options.peers)
    chosen = any(choice is not None for choice in choices) or options.repeats != _REPEATS
    device = "-cpu" if options.device == "cpu" else ""
    return Path("results", "bench", f"{options.name}{device}{'-choice' if chosen else ''}.parquet")


def _bench(options: argparse.Namespace) -> None:
    from relation.systems.bench.run import run
    from relation.systems.bench.table import notes, sections

    shapes = options.shapes or ("paper" if options.device == "cuda" else "smoke")
    campaign = resolve(load_config(options.config), campaign=shapes, scales=options.scales)
    output = _default_output(options) if options.output is None else options.output
    found = run(
        options.name,
        campaign,
        options.device,
        output,
        measures=_names(options.only),
        peers=_names(options.peers),
        repeats=options.repeats,
    )
    print(found.title)
    for section in sections(found.rows):
        print(f"\n{section.title}")
        print_table(section.header, section.rows)
    print()
    for line in notes(found.subject, found.rows, found.gpu_states):
        print(line)
    print(output)
