"""The command `diagnose`: the structural diagnostics of a run's checkpoint, or of any other."""

import argparse
from pathlib import Path

from relation.cli.options import (
    add_campaign_options,
    add_expect,
    add_threads,
    campaign_results,
    check_expected,
    checkpoint_of,
    chosen_run,
    count,
    given_checkpoint,
    set_threads,
    sharing_of,
)
from relation.cli.tables import print_table
from relation.errors import InputError
from relation.pipeline.origin import stamp
from relation.pipeline.places import diagnostics_path, with_pictures
from relation.pipeline.uses import uses_of_model

# The paper's sampling, as the options of a checkpoint of no campaign have it.
_SAMPLING = {"sequences": 4, "flow_length": 1024, "rank_length": 512}
_COLUMNS = {
    "self_flow": "Self",
    "exchange_flow": "Exchange",
    "effective_rank": "EffRank",
    "stable_rank": "stable",
    "dims_90": "90%",
    "dims_95": "95%",
    "top_singular_energy": "top",
    "beyond_eighth": ">T/8",
    "beyond_quarter": ">T/4",
    "beyond_half": ">T/2",
    "sink_1": "sink",
}


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "diagnose",
        help="structural diagnostics of a checkpoint, layer by layer",
        description=(
            "Prints Self or diagonal flow, Exchange, rank and routing of every layer's flow, means "
            "over heads and sequences. Of a run it writes records below "
            "results/CAMPAIGN/diagnostics/SCALE/VARIANT/; of another checkpoint of MHA or Full "
            "Relation layers, given with --checkpoint and --data, what --output names."
        ),
    )
    parser.set_defaults(call=_diagnose)
    parser.add_argument("target", metavar="SCALE/VARIANT/SEED", nargs="?", help="a trained run")
    add_campaign_options(parser)
    add_expect(parser)
    add_threads(parser)
    other = parser.add_argument_group("a checkpoint of no campaign")
    other.add_argument("--checkpoint", type=Path, help="a model.safetensors, in place of a run")
    other.add_argument(
        "--data", type=Path, help="a prepared corpus, whose validation split is read, or a .bin"
    )
    other.add_argument(
        "--output",
        type=Path,
        metavar="FILE.parquet",
        help="write metrics there, and FILE-curves.parquet and FILE-maps.parquet beside it",
    )
    for name, default in _SAMPLING.items():
        option = f"--{name.replace('_', '-')}"
        other.add_argument(option, type=count, help=f"default: {default}")
    other.add_argument(
        "--window",
        type=count,
        help="tokens from the start of one sequence to the next (default: the longest sequence)",
    )
    other.add_argument(
        "--document-mask",
        choices=("documents",),
        help="as the checkpoint was trained; documents: the flow stays within them",
    )
    other.add_argument("--device", choices=("cpu", "cuda"), help="default: cpu")


def _diagnose(options: argparse.Namespace) -> None:
    set_threads(options)
    diagnosed = _diagnose_run if options.checkpoint is None else _diagnose_file
    rows, output = diagnosed(options)
    if options.expect is None:  # a rule's job is for its records alone
        _print(rows)
        for path in () if output is None else with_pictures(output):
            print(path)


def _diagnose_run(options: argparse.Namespace) -> tuple[list[dict], Path]:
    from relation.flow.diagnose import diagnose
    from relation.store.parquet import read_parquet

    given = (*_SAMPLING, "data", "output", "window", "document_mask", "device")
    used = [f"--{n.replace('_', '-')}" for n in given if getattr(options, n) is not None]
    if used:
        raise InputError(f"{', '.join(used)}: only with --checkpoint; a run's are the campaign's")
    if options.target is None:
        raise InputError("give SCALE/VARIANT/SEED, or --checkpoint with --data")
    results = campaign_results(options)
    campaign = results.campaign
    run = chosen_run(options.target, campaign)
    spec = campaign.diagnostics_spec(run)
    check_expected(options.expect, spec.job_hash, f"diagnostics of {run.name}")
    checkpoint = checkpoint_of(run, results)
    data = results.data(campaign.data[run.data])
    output = results.folder / diagnostics_path(run)
    stamped = stamp("diagnostics", uses_of_model(run.model["layout"]))
    diagnose(spec, run, checkpoint, data, output, sharing_of(campaign, run), stamped)
    return read_parquet(output).to_pylist(), output


def _diagnose_file(options: argparse.Namespace) -> tuple[list[dict], Path | None]:
    from relation.flow.diagnose import diagnose_file

    if options.target is not None or options.data is None:
        raise InputError("give --checkpoint with --data, in place of SCALE/VARIANT/SEED")
    checkpoint = given_checkpoint(options, "expect")
    sampling = {name: getattr(options, name) or default for name, default in _SAMPLING.items()}
    longest = max(sampling["flow_length"], sampling["rank_length"])
    found = diagnose_file(
        checkpoint,
        options.data,
        options.output,
        options.device or "cpu",
        stamp("diagnostics"),
        document_mask=options.document_mask,
        window=options.window or longest,
        **sampling,
    )
    return found.flow, options.output


def _print(rows: list[dict]) -> None:
    """A line a layer and one of all; shares in percent."""
    import pandas as pd

    from relation.flow.pooled import by_checkpoint, by_layer

    layers = by_layer(pd.DataFrame(rows))
    table = [[f"L{layer}", *_numbers(found)] for layer, found in layers.groupby("layer", sort=True)]
    print_table(["layer", *_COLUMNS.values()], [*table, ["all", *_numbers(by_checkpoint(layers))]])


def _numbers(found) -> list[str]:
    values = found.set_index("metric")["value"]
    return [_number(metric, values[metric]) for metric in _COLUMNS]


def _number(metric: str, value: float) -> str:
    shared = metric.endswith("_flow") or metric.startswith(("beyond", "sink"))
    return f"{100 * value:.2f}%" if shared else f"{value:.4g}"
