"""What `plan --scale` prints: the arithmetic of one training run of any size."""

import argparse
import json
import re
from dataclasses import replace

from relation.cli.options import CHOICES, count, positive
from relation.cli.tables import print_table
from relation.errors import InputError

_SHAPE = ("layers", "d_model", "heads", "d_ff", "vocabulary", "context", "micro")
_DEFAULTS = {"tokens": 20 * 10**9, "gpus": 64, "accumulation": 4, "link": 50.0, "price": 3.0}
_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `plan` that plan one run in place of a campaign."""
    group = parser.add_argument_group(
        "one run of any size", "--scale plans it; the others change what it is planned with"
    )
    group.add_argument("--scale", help="10M, 30M, 100M or 1B; the shape that the rest changes")
    for name in _SHAPE:
        group.add_argument(f"--{name.replace('_', '-')}", type=count, metavar="N")
    group.add_argument("--tokens", type=_count, help="default: 20B")
    group.add_argument("--gpus", type=count, metavar="N", help="default: 64")
    group.add_argument(
        "--accumulation",
        type=count,
        metavar="N",
        help="micro-batches a GPU and update (default: 4)",
    )
    group.add_argument(
        "--link",
        type=positive,
        help="GB/s a GPU between machines (default: 50, one 400 Gb/s adapter each)",
    )
    group.add_argument("--price", type=positive, help="USD a GPU-hour (default: 3, an assumption)")


def _count(text: str) -> int:
    match = re.fullmatch(r"([0-9.]+)([KMBT]?)", text)
    try:
        return round(float(match[1]) * _SUFFIXES[match[2]])
    except (TypeError, ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no count; give one as 20B") from None


def check_unmixed(options: argparse.Namespace) -> None:
    """Raise InputError for options of one run beside a campaign's, which would say nothing."""
    given = {name for name in (*_SHAPE, *_DEFAULTS) if getattr(options, name) is not None}
    chosen = {
        name for name in ("campaign", "spent", *CHOICES) if getattr(options, name) is not None
    }
    if options.scale is None and given:
        name = sorted(given)[0].replace("_", "-")
        raise InputError(f"--{name} plans one run of any size; give --scale with it")
    if options.scale is not None and chosen:
        name = sorted(chosen)[0]
        raise InputError(
            f"--scale plans one run of any size, --{name} a campaign; give one of the two "
            "(--scales chooses among a campaign's)"
        )


def print_scale(options: argparse.Namespace) -> None:
    """Print the plan of one run. Raises InputError for an unknown scale or an impossible shape."""
    from relation.pipeline.estimate import PLANNED, plan_scale, rates

    measured = rates()
    shapes = {rate.geometry.scale: rate.geometry for rate in measured} | {PLANNED.scale: PLANNED}
    if options.scale not in shapes:
        raise InputError(f"--scale {options.scale}: choose among {', '.join(shapes)}")
    changes = {name: getattr(options, name) for name in _SHAPE}
    given = {name: value for name, value in changes.items() if value is not None}
    asked = {name: getattr(options, name) for name in _DEFAULTS}
    settings = {name: _DEFAULTS[name] if value is None else value for name, value in asked.items()}
    plan = plan_scale(replace(shapes[options.scale], **given), *settings.values(), measured)
    if options.json:
        print(json.dumps(plan.as_dict(), indent=2))
        return
    g = plan.geometry
    share = plan.exchange_seconds / (plan.compute_seconds + plan.exchange_seconds)
    rows = [
        ["shape", f"{g.layers} layers, d {g.d_model}, {g.heads} heads, d_ff {g.d_ff}"],
        ["", f"vocabulary {g.vocabulary:,}, T {g.context:,}, micro-batch {g.micro}"],
        ["parameters", f"{plan.parameters:,}"],
        ["operations", f"{plan.operations_per_token:.3e} a token, {plan.operations:.3e} in all"],
        ["one GPU", f"{plan.operations_per_second / 1e12:.0f} TFLOP/s as measured"],
        ["", f"{plan.tokens_per_second:,.0f} tok/s of this model"],
        ["an update", f"{plan.tokens_per_update:,} tokens on {plan.gpus} GPUs"],
        ["", f"{plan.compute_seconds:.2f} s computing, {plan.exchange_seconds:.2f} s exchanging"],
        ["efficiency", f"{plan.efficiency:.1%}; gradients take {share:.1%} of the time"],
        ["time", f"{plan.hours:,.1f} h, {plan.gpu_hours:,.0f} GPU-hours"],
        ["cost", f"{plan.cost:,.0f} USD at {settings['price']:g} a GPU-hour"],
        ["memory", f"{plan.memory_gib:.1f} GiB a GPU: states {plan.state_gib:.1f}"],
        ["", f"activations {plan.activation_gib:.1f}"],
        ["disk", f"corpus {plan.corpus_gib:.1f} GiB, resume states {plan.resume_gib:.1f} GiB"],
        ["", f"checkpoint {plan.checkpoint_gib:.1f} GiB"],
    ]
    print(f"{g.scale} {g.variant} on {plan.tokens:,} tokens")
    print_table(["what", "how much"], rows)
    print(f"\nRate: {plan.source}. Activations: fitted to the measured peaks of all scales.")
