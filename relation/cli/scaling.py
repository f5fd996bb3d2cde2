"""The command `scaling`: training throughput and memory of several processes beside one."""

import argparse
from dataclasses import asdict, replace

from relation.cli.options import add_campaign_options, chosen_campaign, chosen_run
from relation.cli.tables import print_table
from relation.errors import InputError


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "scaling",
        help="measure one run's throughput with 1 and more processes",
        description=(
            "Times whole updates of one run on random tokens, by one process and by several that "
            "share each update, and prints the scaling efficiency, which is throughput over that "
            "of as many single processes, and the peak memory of a GPU."
        ),
    )
    parser.set_defaults(call=_scaling)
    parser.add_argument("target", metavar="SCALE/VARIANT/SEED")
    add_campaign_options(parser)
    parser.add_argument(
        "--processes", default="2", help="comma-separated, besides 1 (default: 2); a GPU each"
    )
    parser.add_argument(
        "--warmup",
        type=int,
        default=5,
        help="updates before (default: 5); the first is compiled, the second captured on a GPU",
    )
    parser.add_argument("--updates", type=int, default=20, help="updates timed (default: 20)")
    parser.add_argument(
        "--shard", action="store_true", help="measure a model in shards too, beside copies of it"
    )
    parser.add_argument(
        "--planned", action="store_true", help="the model of `plan --scale 1B`, not the run's"
    )


def _scaling(options: argparse.Namespace) -> None:
    from relation.bench.scaling import launch

    counts = options.processes.split(",")
    if not all(count.isdecimal() and int(count) > 0 for count in counts):
        raise InputError(f"--processes {options.processes}: give whole numbers, as 2,4,8")
    if options.updates < 1 or options.warmup < 0:
        raise InputError("give --updates of at least 1 and --warmup of at least 0")
    spec = replace(chosen_run(options.target, chosen_campaign(options)), shard=False)
    if options.planned:
        from relation.pipeline.estimate import PLANNED

        shape = {"scale": PLANNED.scale, "model": asdict(PLANNED.model()), "micro": PLANNED.micro}
        spec = replace(spec, **shape, context=PLANNED.context)
        spec = replace(spec, tokens_per_update=spec.accumulation * spec.micro * spec.context)
    if max(map(int, counts)) > spec.accumulation:
        raise InputError(
            f"--processes {options.processes}: an update of {spec.name} has {spec.accumulation} "
            "micro-batches; give at most as many processes"
        )
    models = [spec, replace(spec, shard=True)] if options.shard else [spec]
    found = [
        launch(model, processes, options.warmup, options.updates)
        for processes in sorted({1, *map(int, counts)})
        for model in (models if processes > 1 else [spec])
    ]
    rows = [
        [
            str(s.processes),
            "in shards" if s.sharded else "whole",
            f"{s.tokens_per_second:,.0f}",
            f"{s.efficiency(found[0]):.1%}",
            "" if s.peak_gib is None else f"{s.peak_gib:.2f}",
        ]
        for s in found
    ]
    print_table(["processes", "model", "tok/s", "efficiency", "peak GiB"], rows)
