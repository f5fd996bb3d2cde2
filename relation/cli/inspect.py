"""Commands a person runs: params, plan, backends, keys."""

import argparse
import json
import textwrap
from pathlib import Path

from relation.cli import scale
from relation.cli.options import (
    CHOICES,
    add_campaign_options,
    campaign_results,
    chosen_campaign,
)
from relation.cli.tables import print_table
from relation.errors import InputError
from relation.pipeline.results import Results
from relation.store.files import write_text


def add_commands(commands) -> None:
    """Register the commands."""
    params = commands.add_parser(
        "params",
        help="parameters of every model, counted when built",
        description="Prints the parameters of a campaign's models, counted on the built modules.",
    )
    add_campaign_options(params, "scales", "variants", default="paper")
    params.add_argument("--json", action="store_true", help="print JSON")
    params.set_defaults(call=_params)

    plan = commands.add_parser(
        "plan",
        help="what a campaign would run, and what it costs",
        description=(
            "Prints a campaign's jobs, tokens, hours and disk, by stage and by table, or with "
            "--scale those of one run of any size. Runs nothing."
        ),
    )
    add_campaign_options(plan, *CHOICES)
    scale.add_options(plan)
    plan.add_argument("--json", action="store_true", help="print JSON")
    plan.add_argument(
        "--spent",
        metavar="FILE",
        type=Path,
        help="write what examinations and recall took, shipped or by these records, as a CSV, and "
        "plan nothing",
    )
    plan.set_defaults(call=_plan)

    backends = commands.add_parser(
        "backends",
        help="implementations of each operator",
        description="Prints every implementation of an operator, and why one does not run here.",
    )
    backends.add_argument("--device", choices=("cpu", "cuda"), help="default: what there is")
    backends.set_defaults(call=_backends)

    keys = commands.add_parser(
        "keys",
        help="every key of config.yaml and what it means",
        description="Prints every key of config.yaml, the values it takes and what it means.",
    )
    keys.add_argument("place", nargs="?", default="", help="only those below, such as training")
    keys.add_argument("--schema", action="store_true", help="print the JSON Schema, for an editor")
    keys.set_defaults(call=_keys)


def _params(options: argparse.Namespace) -> None:
    from relation.pipeline.inventory import inventory_row

    campaign = chosen_campaign(options)
    models = campaign.inventory()
    if campaign.restrictions.keys() & {"scales", "variants"}:
        runs = (*campaign.trained_runs, *campaign.reading_runs)
        chosen = {(run.scale, run.variant) for run in runs}
        models = [(run, title) for run, title in models if (run.scale, run.variant) in chosen]
    rows = [inventory_row(run, title) for run, title in models]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    scales = ", ".join(dict.fromkeys(row["scale"] for row in rows))
    print(f"Models of campaign {campaign.name} ({campaign.title}), scales {scales}\n")
    header = ["scale", "variant", "parameters", "layers", "d", "heads", "d_ff", "vocabulary"]
    keys = ["scale", "variant", "parameters", "layers", "d_model", "heads", "d_ff", "vocab"]
    print_table(
        header, [[f"{r[k]:,}" if isinstance(r[k], int) else r[k] for k in keys] for r in rows]
    )


def _plan(options: argparse.Namespace) -> None:
    scale.check_unmixed(options)
    if options.scale is not None:
        scale.print_scale(options)
        return

    from relation.pipeline.cost import make_plan
    from relation.pipeline.preflight import check_corpus, check_unprepared
    from report.values.tables import TABLES

    results = campaign_results(options)
    campaign = results.campaign
    check_corpus(campaign)
    if options.spent is not None:
        _write_spent(options.spent, results)
        return
    check_unprepared(results)
    plan = make_plan(campaign, results, {table.label: table.needs for table in TABLES})
    if options.json:
        print(json.dumps(plan.as_dict(), indent=2))
        return
    print(f"{campaign.title}: {campaign.description}")
    if campaign.notice:
        print(campaign.notice)
    print()
    print_table(
        ["stage", "jobs", "done", "tokens", "hours", "disk"],
        [
            [
                s.stage,
                f"{s.jobs}",
                f"{s.done}",
                f"{s.tokens:,}" if s.tokens else "-",
                f"{s.hours:.2f}",
                f"{s.disk_gib:.2f} GiB",
            ]
            for s in (*plan.stages, plan.total)
        ],
    )
    print("\nThe cost of each table from nothing, jobs that are done included:")
    print_table(
        ["table", "runs", f"{campaign.device} hours", "disk"],
        [[t.label, f"{t.runs}", f"{t.hours:.2f}", f"{t.disk_gib:.2f} GiB"] for t in plan.tables],
    )
    if plan.beyond:
        print("\nThe cost of each job beyond the paper, done or not:")
        print_table(
            ["beyond the paper", "jobs", "seconds", "peak", "measured on"],
            [
                [
                    " ".join(filter(None, (b.job, b.scale, b.variant))),
                    f"{b.jobs}",
                    f"{b.seconds:.0f}",
                    "-" if b.peak_gib is None else f"{b.peak_gib:.2f} GiB",
                    b.device or "estimated",
                ]
                for b in plan.beyond
            ],
        )
    print(f"\nHours of one {'GPU' if campaign.device == 'cuda' else 'core'}. {plan.basis}")


def _write_spent(file: Path, results: Results) -> None:
    """The table that `plan` reads, with what the campaign's records say."""
    from relation.pipeline.ledger import Ledger
    from relation.pipeline.spent import as_csv, known, recorded

    ledger = Ledger(results)
    own = recorded(ledger)
    if not own:
        raise InputError(
            f"no record of campaign {results.campaign.name} says what it took; run its "
            "examinations or recall first"
        )
    write_text(file, as_csv(known(ledger).values()))
    print(f"{file}: {len(own)} kinds of work of campaign {results.campaign.name}")


def _backends(options: argparse.Namespace) -> None:
    import torch

    from relation.ops import BACKENDS

    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    rows = []
    for backend in BACKENDS.values():
        reason = backend.why_unavailable(device)
        rows.append([backend.operator, backend.name, reason or "runs here", backend.summary])
    print_table(["operator", "backend", str(device), "what it is"], rows)


def _keys(options: argparse.Namespace) -> None:
    from relation.pipeline.keys import documented_keys, schema

    if options.schema:
        print(json.dumps(schema(), indent=2))
        return
    place = f"{options.place}." if options.place else ""
    keys = [key for key in documented_keys() if f"{key.place}.".startswith(place)]
    if not keys:
        raise InputError(f"no key {options.place!r}; `python -m relation keys` lists every one")
    for key in keys:
        print(f"{key.place}: {key.takes}")
        if key.meaning:
            print(textwrap.fill(key.meaning, 100, initial_indent="    ", subsequent_indent="    "))
