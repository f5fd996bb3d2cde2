"""Loading a campaign's records, with what is missing and why."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

from relation.config import Campaign
from relation.errors import InputError
from relation.geometry import PAIRED
from relation.parquet import read_origin, read_parquet
from relation.records.efficiency import smoothed_loss, token_crossing
from relation.results import Results
from relation.schemas import COMPLEXITY, FLOW, LOG, MODELS, RUN, THROUGHPUT
from relation.spec import Spec


@dataclass(frozen=True)
class CampaignRecords:
    """Tidy frames of one campaign.

    models: a row a scale and variant; runs: a row a finished run (with device and source); logs: a
    row an update; efficiency: a row a pair (target nat/token, crossing_tokens, reduction); flow: a
    row a metric of a head; throughput and complexity: a row a measurement; missing: a row a
    planned thing that is not there (kind, scale, variant, seed, reason); page: what the report
    says about the campaign.
    """

    models: pd.DataFrame
    runs: pd.DataFrame
    logs: pd.DataFrame
    efficiency: pd.DataFrame
    flow: pd.DataFrame
    throughput: pd.DataFrame
    complexity: pd.DataFrame
    missing: pd.DataFrame
    page: dict


def _frame(parts: list[pd.DataFrame], schema: pa.Schema, *extra: str) -> pd.DataFrame:
    """Concatenate, or an empty frame with the schema's columns."""
    if parts:
        return pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns=[*schema.names, *extra])


def _own_origin(path: Path, spec: Spec) -> dict:
    """A record's origin. Raises InputError where another configuration made it."""
    origin = read_origin(path)
    if origin["config_hash"] != spec.config_hash:
        raise InputError(
            f"{path} was made with another configuration; run snakemake to make it again"
        )
    return origin


def check_order(runs: pd.DataFrame) -> None:
    """Raise InputError unless all runs of one scale and seed read the same windows in one order."""
    for (scale, seed), group in runs.groupby(["scale", "seed"]):
        if group["order_hash"].nunique() > 1:
            hashes = ", ".join(
                f"{v} {h[:12]}" for v, h in zip(group["variant"], group["order_hash"], strict=True)
            )
            raise InputError(
                f"runs of {scale} seed {seed} read different data ({hashes}): they cannot be "
                "compared; delete the older ones and run snakemake again"
            )


def _efficiency(runs: pd.DataFrame, logs: pd.DataFrame, window: float) -> pd.DataFrame:
    rows = []
    for (scale, seed), pair in runs[runs["variant"].isin(PAIRED)].groupby(["scale", "seed"]):
        if set(pair["variant"]) != set(PAIRED):
            continue
        budget = int(pair["budget_tokens"].iloc[0])
        smooth = {}
        for variant in PAIRED:
            log = logs[
                (logs["scale"] == scale) & (logs["seed"] == seed) & (logs["variant"] == variant)
            ].sort_values("update")
            tokens = log["tokens"].to_numpy()
            smooth[variant] = (
                tokens,
                smoothed_loss(
                    tokens, log["update_tokens"].to_numpy(), log["loss"].to_numpy(), window * budget
                ),
            )
        crossing = token_crossing(smooth["mha"][1][-1], *smooth["full"], budget)
        rows.append(
            {
                "scale": scale,
                "seed": seed,
                "target": crossing.target,
                "crossing_tokens": crossing.tokens,
                "reduction": crossing.reduction,
            }
        )
    columns = ["scale", "seed", "target", "crossing_tokens", "reduction"]
    types = {"target": float, "crossing_tokens": float, "reduction": float}
    return pd.DataFrame(rows, columns=columns).astype(types)


def _missing(campaign: Campaign, results: Results) -> pd.DataFrame:
    rows = []
    for left in campaign.omitted:
        key = {"scale": left.scale, "variant": left.variant, "seed": left.seed}
        rows.append({"kind": "run", **key, "reason": left.reason})
        if left.variant in PAIRED:
            rows.append({"kind": "flow", **key, "reason": left.reason})
    for run in campaign.paired_runs:
        if results.diagnostics(run) is None:
            key = {"scale": run.scale, "variant": run.variant, "seed": run.seed}
            reason = "the run was published without diagnostics and checkpoints are not shipped"
            rows.append({"kind": "flow", **key, "reason": reason})
    for spec in campaign.planned_systems:
        if spec not in campaign.systems:
            kind = "complexity" if spec.benchmark == "complexity" else "throughput"
            key = {"kind": kind, "scale": spec.scale, "variant": spec.benchmark, "seed": -1}
            left_out = " ".join(f"{k}={v}" for k, v in campaign.restrictions.items())
            rows.append({**key, "reason": f"left out by {left_out}"})
    return pd.DataFrame(rows, columns=["kind", "scale", "variant", "seed", "reason"])


def _as_given(value: object) -> str:
    """A choice as the command line takes it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _origins(origins: Iterable[dict]) -> dict:
    """The commits and versions behind a campaign's records; several where they differ."""
    commits, versions = [], {}
    for origin in origins:
        commits.append(origin["commit"])
        for package, version in origin["versions"].items():
            versions.setdefault(package, []).append(version)
    return {
        "commit": ", ".join(dict.fromkeys(commits)),
        "versions": {name: " and ".join(dict.fromkeys(v)) for name, v in versions.items()},
    }


def _page(campaign: Campaign, devices: Iterable[str], origins: Iterable[dict]) -> dict:
    choices = {"campaign": campaign.name, **campaign.restrictions}
    if campaign.corpus is not None:
        choices["corpus"] = campaign.corpus
    given = " ".join(shlex.quote(f"{key}={_as_given(value)}") for key, value in choices.items())
    everything = f"snakemake --cores all --config {given}"
    record = f"results/{campaign.name}/runs/{campaign.runs[0].name}/record.parquet"
    commands = {
        "Everything": everything,
        "One seed of one variant, and what depends on it": f"{everything} -R {record} -- all",
    }
    return {
        "campaign": campaign.name,
        "title": campaign.title,
        "description": campaign.description,
        "comparable": campaign.comparable,
        "notice": campaign.notice,
        "miniature": campaign.miniature,
        "devices": sorted(set(devices)),
        "seeds": list(campaign.seeds),
        "scales": list(campaign.scales),
        "efficiency_window": campaign.efficiency_window,
        "restrictions": {k: str(v) for k, v in campaign.restrictions.items()},
        "assumptions": [dict(a) for a in campaign.assumptions],
        "origin": _origins(origins),
        "commands": commands,
    }


def load_records(campaign: Campaign, results: Results) -> CampaignRecords:
    """Read every record of a campaign.

    Raises InputError for a missing or damaged file, or runs that read different data.
    """
    runs, logs, flow, throughput, complexity = [], [], [], [], []
    origins = [read_origin(results.models)]
    for run in campaign.runs:
        folder = results.run(run)
        source: Path = folder / "record.parquet"
        origins.append(_own_origin(source, run))
        device = origins[-1]["device"]
        row = read_parquet(source, RUN).to_pandas()
        runs.append(row.assign(device=device, source=source.as_posix()))
        log = read_parquet(folder / "log.parquet", LOG).to_pandas()
        logs.append(log.assign(scale=run.scale, variant=run.variant, seed=run.seed))
    for run in campaign.paired_runs:
        path = results.diagnostics(run)
        if path is not None:
            origins.append(_own_origin(path, campaign.diagnostics_spec(run)))
            flow.append(read_parquet(path, FLOW).to_pandas().assign(source=path.as_posix()))
    for spec in campaign.systems:
        path = results.systems(spec)
        origins.append(_own_origin(path, spec))
        if spec.benchmark == "complexity":
            table = read_parquet(path, COMPLEXITY).to_pandas()
            complexity.append(table.assign(scale=spec.scale, source=path.as_posix()))
        else:
            table = read_parquet(path, THROUGHPUT).to_pandas()
            throughput.append(table.assign(source=path.as_posix()))

    run_frame = _frame(runs, RUN, "device", "source")
    log_frame = _frame(logs, LOG, "scale", "variant", "seed")
    check_order(run_frame)
    devices = [*run_frame["device"], *(d for f in throughput for d in f["device"])]
    return CampaignRecords(
        models=read_parquet(results.models, MODELS).to_pandas(),
        runs=run_frame,
        logs=log_frame,
        efficiency=_efficiency(run_frame, log_frame, campaign.efficiency_window),
        flow=_frame(flow, FLOW, "source"),
        throughput=_frame(throughput, THROUGHPUT, "source"),
        complexity=_frame(complexity, COMPLEXITY, "scale", "source"),
        missing=_missing(campaign, results),
        page=_page(campaign, devices, origins),
    )
