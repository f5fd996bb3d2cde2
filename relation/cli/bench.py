"""The command `bench`: operators and training steps beside their peers, in turns."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from relation.cli.jobs import measure_benchmark
from relation.cli.tables import print_table, print_tables
from relation.errors import InputError
from relation.pipeline.campaign import Campaign, resolve
from relation.pipeline.config import load_config
from relation.pipeline.origin import stamp
from relation.pipeline.places import systems_path
from relation.pipeline.results import Results
from relation.pipeline.uses import uses_of
from relation.store.files import write_text

_REPEATS = 50
DECODE = "decode"


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "bench",
        help="measure an operator and its training step beside their peers",
        description=(
            "Times the project's kernels and their peers in turns, each in a process of its own. "
            "Prints times, ratios and peak memory, and writes Parquet below results/bench/; of "
            "systems where a campaign would, results/CAMPAIGN/systems/."
        ),
    )
    parser.set_defaults(call=_bench)
    parser.add_argument(
        "name",
        metavar="NAME",
        help=(
            "as flash, linear, decoder, layers, layers-eager; decode: a token by context and "
            "batch; systems: what the systems tables show; all: everything"
        ),
    )
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
            "comma-separated choice of forward, backward (with its forward), host (how long both "
            "keep the host, on a GPU), step and, of linear, long (steps at ever longer contexts); "
            "of systems, of its benchmarks; of decode, of token, prompt and agreement"
        ),
    )
    parser.add_argument("--peers", help="comma-separated choice of what to compare with")
    parser.add_argument("--contexts", help="of decode: tokens read before, comma-separated")
    parser.add_argument("--batches", help="of decode: sequences at a time, comma-separated")
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
            "and -choice after it with any option that changes what is measured)"
        ),
    )
    parser.add_argument(
        "--config", type=Path, default=Path("config.yaml"), help="configuration file"
    )


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _default_output(name: str, options: argparse.Namespace) -> Path:
    """Where a benchmark goes: what was restricted never replaces the whole."""
    names = ("shapes", "scales", "only", "peers", "contexts", "batches")
    choices = [getattr(options, name) for name in names]
    chosen = any(choice is not None for choice in choices) or options.repeats != _REPEATS
    device = "-cpu" if options.device == "cpu" else ""
    return Path("results", "bench", f"{name}{device}{'-choice' if chosen else ''}.parquet")


def _bench(options: argparse.Namespace) -> None:
    from relation.bench.run import BENCHMARKS, choose

    shapes = options.shapes or ("paper" if options.device == "cuda" else "smoke")
    campaign = resolve(load_config(options.config), campaign=shapes, scales=options.scales)
    choose("benchmark", [options.name], [*BENCHMARKS, DECODE, "systems", "all"])
    if options.name != DECODE and (options.contexts or options.batches):
        raise InputError(f"bench {options.name} takes no --contexts and --batches; decode does")
    if options.name in BENCHMARKS:
        _compare(options.name, options, campaign)
        return
    if options.name == DECODE:
        _decode(options, campaign)
        return
    _check_whole(options, campaign)
    _measure_systems(campaign, _names(options.only))
    if options.name == "all":
        for name in BENCHMARKS:
            print()
            _compare(name, options, campaign)
        print()
        _decode(options, campaign)


def _check_whole(options: argparse.Namespace, campaign: Campaign) -> None:
    """Raise InputError for choices that `systems` and `all` do not have."""
    given = {"--peers": options.peers, "--output": options.output}
    if options.name == "all":
        given["--only"] = options.only
    chosen = [name for name, value in given.items() if value is not None]
    chosen += ["--repeats"] * (options.repeats != _REPEATS and options.name == "systems")
    if chosen:
        raise InputError(
            f"bench {options.name} takes no {chosen[0]}; config.yaml says what it measures, and it "
            "writes where a campaign would"
        )
    if campaign.device != options.device:
        raise InputError(
            f"campaign {campaign.name} runs on {campaign.device}; give --device {campaign.device}"
        )


def _compare(name: str, options: argparse.Namespace, campaign: Campaign) -> None:
    """One benchmark of operators and steps beside their peers."""
    from relation.bench.run import run
    from relation.bench.table import notes, sections

    output = options.output or _default_output(name, options)
    found = run(
        name,
        campaign.systems,
        campaign.settings,
        options.device,
        output,
        measures=_names(options.only),
        peers=_names(options.peers),
        repeats=options.repeats,
        stamp=stamp("bench"),
    )
    print(found.title)
    lines = notes(found.subject, found.rows, found.conditions)
    print_tables(sections(found.rows), [*lines, *found.told])
    print(output)


def _numbers(name: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise InputError(f"--{name} {text}: give whole numbers, comma-separated") from None


def _decode(options: argparse.Namespace, campaign: Campaign) -> None:
    """How MHA, Full, Linear and Hybrid Relation decode: tokens, prompts, agreement."""
    from relation.bench.decode import TOKEN, run
    from relation.bench.decode_table import notes, of_measure, sections
    from report.figures.decode import decode_svg

    if options.name == DECODE and options.repeats != _REPEATS:
        raise InputError("bench decode takes no --repeats; give --peers, --only or --contexts")
    output = options.output or _default_output(DECODE, options)
    spec = next((each for each in campaign.systems if each.benchmark == DECODE), None)
    if spec is None:
        raise InputError("decode takes the scale of the systems benchmark decode; choose that")
    rows = run(
        spec,
        campaign.settings,
        options.device,
        output,
        _names(options.peers),
        _numbers("contexts", options.contexts),
        _numbers("batches", options.batches),
        _names(options.only),
        stamp(DECODE),
    )
    print(f"Decoding: {rows[0]['device']}, {rows[0]['precision']}")
    print_tables(sections(rows), notes(rows))
    print(output)
    if tokens := of_measure(rows, TOKEN):
        picture = output.with_suffix(".svg")
        write_text(picture, decode_svg(tokens))
        print(picture)


def _measure_systems(campaign: Campaign, only: Sequence[str] | None) -> None:
    """Measure a campaign's systems benchmarks, print each, and at last the ratios.

    They go where Snakemake would write them. Tokens are the prepared corpus's where it is there,
    else random, and each row says which. only: benchmarks by name, None for all. Raises InputError
    for an unknown name or where there is no such device.
    """
    from relation.bench.decode_table import notes, sections
    from relation.bench.run import choose
    from relation.bench.table import campaign_notes, complexity_section, throughput_section
    from relation.data.tokens import token_file

    known = dict.fromkeys(spec.benchmark for spec in campaign.systems)
    chosen = choose("systems benchmark", only, known)
    results, measured = Results(campaign), []
    for spec in campaign.systems:
        if spec.benchmark not in chosen:
            continue
        data = results.data(campaign.data_of_scale(spec.scale))
        prepared = data if token_file(data, "train").exists() else None
        path = results.folder / systems_path(spec)
        rows = measure_benchmark(spec, prepared, path, stamp(spec.stage, uses_of(spec)))
        title = f"{spec.benchmark} {spec.scale}: {rows[0]['device']}"
        if spec.benchmark == DECODE:
            print(title)
            print_tables(sections(rows), [*notes(rows), str(path)])
            continue
        if spec.benchmark == "complexity":
            tables, lines = [complexity_section(title, rows)], growth(rows)
        else:
            tables, lines = [throughput_section(title, rows)], []
            measured += rows
        print_tables(tables, [*lines, *campaign_notes(rows), str(path)])
    _print_ratios(measured)


def growth(rows: Sequence[Mapping]) -> list[str]:
    """How the time of each operator grows with T: a line each."""
    import pandas as pd

    from report.values.complexity import fitted_time, grown

    lines = []
    for operator, own in pd.DataFrame(rows).groupby("operator"):
        fit, why = fitted_time(own)
        if fit is None:
            told = f"undetermined, {why}" if why else "no time was measured"
        else:
            power = f"{fit.exponent:.3f} [{fit.low:.3f}, {fit.high:.3f}]"
            told = f"time grows as T^{power} from T = {grown(own)['context'].min():,} on"
        lines.append(f"{operator}: {told}")
    return lines


def _print_ratios(rows: Sequence[Mapping]) -> None:
    """Every ratio that the paper prints beside the one that was measured."""
    from relation.bench.table import MISSING, rate_ratio, with_interval
    from report.values.paper import load

    printed, table = load("efficient-relation"), []
    for benchmark, column, base in (
        ("fixed", "fixed.speedup", "reference"),
        ("matched", "matched.ratio", "mha"),
    ):
        of_scale: dict[str, dict[str, Mapping]] = {}
        for row in rows:
            if row["benchmark"] == benchmark:
                of_scale.setdefault(row["scale"], {})[row["side"]] = row
        for scale, own in of_scale.items():
            paper = printed.get((scale, column, "value"))
            table.append(
                [
                    f"{benchmark} {scale}: FlashRelation over {base}",
                    MISSING if paper is None else paper.printed,
                    with_interval(rate_ratio(own["full"], own[base]), "ratio", ".3f"),
                ]
            )
    if table:
        print("\nratios of tokens per second, with the 95% interval of the median")
        print_table(["", "paper (RTX 5090)", "here"], table)
