"""Throughput and memory of whole training steps: Tables 5 and 15 to 17 (Appendices G, H)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from relation.variants import VARIANTS
from report import stats
from report.table import Cells, cell, read_columns, table
from report.tables.configs import micro_ga

# Contexts; a plus marks those that the paper does not have.
LONG = {str(2**k): f"T = {2**k:,}" for k in range(10, 17)}
LONG |= {f"+{2**k}": f"T = {2**k:,}" for k in range(17, 25)}
ATTENTION_NAMES = {"cudnn": "cuDNN’s attention"}


def failure(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return status and reason of a measurement without a value."""
    where = f"{row['reason']}, on {row['device']}, T = {row['context']:.0f}"
    if row["status"] == "OOM":
        return {"status": "oom", "reason": where}
    return {"status": "failed", "reason": f"{row['status']}: {where}"}


def step_cells(steps: pd.DataFrame, label: str, row: str = "") -> Cells:
    """Yield the cells of columns that show a field of a benchmark: one row per scale, or `row`."""
    for scale, rows in steps.groupby("scale", sort=False):
        for column in (each for each in read_columns(label) if each.measured):
            side, _, field = column.measured.rpartition(" ")
            of_side = (rows["benchmark"] == column.of[0]) & (not side or rows["side"] == side)
            yield from measured(row or scale, column.column, rows[of_side], field)


def measured(row: str, column: str, side: pd.DataFrame, field: str) -> Cells:
    """Yield one number of a benchmark's side, with its rounds, or the reason for a missing one.

    Fields that were set, such as the context, have a value even if the side ran out of memory.
    """
    steps = side.to_dict("records")
    if not steps:
        return
    step = steps[0]
    if field == "batches":
        result = {"text": ", ".join(dict.fromkeys(map(micro_ga, steps)))}
    elif field in ("context", "micro", "accumulation"):
        result = {"value": float(step[field])}
    elif step["status"] != "PASS":
        result = failure(step)
    elif pd.isna(step[field]):
        result = {"status": "no counterpart"}
        result["reason"] = f"not counted on this device: {step['device']}"
    else:
        backend = f"{VARIANTS[step['variant']].title} on backend {step['backend']}"
        result = {"value": step[field], "n": len(step["samples"])}
        result["reason"] = f"{backend}, {step['device']}"
    yield cell(row, column, of=side, **result)


def ratio(row: str, column: str, steps: pd.DataFrame, over: str, under: str) -> Cells:
    """Yield the ratio of two sides with its 95% interval, by round if the sides took turns."""
    rows = steps[steps["side"].isin([over, under])]
    if rows["side"].nunique() < 2:
        return
    sides = [rows[rows["side"] == name].iloc[0] for name in (over, under)]
    if lacking := [side for side in sides if side["status"] != "PASS"]:
        yield cell(row, column, of=rows, **failure(lacking[0]))
        return
    alone = any(side["alone"] for side in sides)
    why = "measured separately, because both did not fit into memory" if alone else ""
    n = len(sides[0]["samples"])
    yield cell(row, column, stats.median_ratio(*sides), of=rows, n=n, reason=why)


def condition_cells(rows: pd.DataFrame, precision: Sequence[str]) -> Cells:
    """Yield texts on the conditions of a table's measurements, in the row "setting"."""
    clock, limit = rows["sm_clock_least"].min(), rows["sm_clock_limit"].max()
    texts: dict[str, Iterable[object]] = {
        "measured": commits_by_day(rows),
        "device": rows["device"],
        "precision": [name.upper() for name in precision if len(rows)],
        "driver": rows["driver"],
        "clock": [f"{clock:.0f} of {limit:.0f} MHz"] if pd.notna(clock) else [],
        "disturbed": _disturbed(rows),
    }
    if "backend" in rows:
        sides = rows.groupby("backend", sort=False)["side"].unique()
        texts["sides"] = [f"{', '.join(names)} on {backend}" for backend, names in sides.items()]
        texts["tokens"] = rows["tokens"]
    for column, values in texts.items():
        text = "; ".join(dict.fromkeys(str(each) for each in values if pd.notna(each)))
        if text:
            yield cell("setting", column, text=text, of=rows)


def commits_by_day(rows: pd.DataFrame) -> Iterator[str]:
    """Yield each day of measurements with its commits; + marks uncommitted changes."""
    rows = rows[rows["created"].notna()].sort_values("created")
    for day, group in rows.groupby(rows["created"].str[:10]):
        commits = (f"{each[:7]}{'+' if '+' in each else ''}" for each in group["commit"].unique())
        yield f"{day} at {', '.join(commits)}"


def _disturbed(rows: pd.DataFrame) -> Iterator[str]:
    """Yield what disturbed each measurement."""
    rows = rows[rows["disturbed"].notna()]
    names = [name for name in ("benchmark", "scale", "disturbed") if name in rows]
    for (*name, disturbance), group in rows.groupby(names, sort=False):
        at = ", ".join(f"{context:,.0f}" for context in sorted(group["context"].unique()))
        yield f"{' '.join(name)} at T = {at}: {disturbance}"


@table("5", "efficient-relation", "FlashRelation throughput")
def efficient(steps: pd.DataFrame, precision: Sequence[str]) -> Cells:
    """Whole training steps in tokens per second. FlashRelation is compared with the materialised
    operator at a fixed context (T = 1024 in the paper) and with FlashAttention at each scale's own
    context. Beyond the paper, it is compared with the reference compiled with its model, and with
    another attention. The sides run in separate processes and take turns in rounds. A rate is the
    median over rounds. A ratio is the median of the rounds' ratios, with its 95% interval."""
    rows = steps[steps["benchmark"].isin(["fixed", "matched"])]
    yield from step_cells(rows, "efficient-relation")
    for scale, of_scale in rows.groupby("scale", sort=False):
        fixed, matched = (of_scale[of_scale["benchmark"] == name] for name in ("fixed", "matched"))
        yield from ratio(scale, "fixed.speedup", fixed, "full", "reference")
        yield from ratio(scale, "matched.ratio", matched, "full", "mha")
        yield from ratio(scale, "peers.compiled_ratio", fixed, "full", "reference-compiled")
        other = matched.query("variant == 'mha' and side != 'mha'")[:1]
        if len(other):
            side, backend = other[["side", "backend"]].iloc[0]
            yield from ratio(scale, "peers.other_ratio", matched, "full", side)
            yield from measured(scale, "peers.other", other, "tokens_per_second")
            name = ATTENTION_NAMES.get(backend, f"MHA, {backend}")
            yield cell(scale, "peers.name", text=name, of=other)
    yield from condition_cells(rows, precision)


@table("15", "app-prod-fr-fa", "Production throughput and memory")
def production(steps: pd.DataFrame, precision: Sequence[str]) -> Cells:
    """FlashAttention and FlashRelation at each scale's own context, in whole training steps. A rate
    is the median over rounds in which the sides take turns, FR/FA is the median of the rounds'
    ratios with its 95% interval, memory is PyTorch's peak."""
    rows = steps.query("benchmark == 'matched'")
    yield from step_cells(rows, "app-prod-fr-fa")
    for scale, matched in rows.groupby("scale", sort=False):
        yield from ratio(scale, "ratio", matched, "full", "mha")
    yield from condition_cells(rows, precision)


@table("16", "app-linear-steady", "Linear Relation throughput")
def linear_steady(steps: pd.DataFrame, precision: Sequence[str]) -> Cells:
    """Linear Relation in whole training steps: the median of rounds after warm-up, and the rate
    over all the time from the first update on. That time includes compilation, which weighs less in
    a run of thousands of updates. The model is untrained. If training makes retention forget
    faster, more chunks take slower kernels."""
    rows = steps.query("benchmark == 'linear-steady'")
    yield from step_cells(rows, "app-linear-steady")
    yield from condition_cells(rows, precision)


@table("17", "app-linear-long", "Linear Relation at long contexts", names=LONG)
def linear_long(steps: pd.DataFrame, precision: Sequence[str]) -> Cells:
    """Linear Relation against T, one window per micro-batch. The paper does not say which model it
    measured; ours is 30M's unless the configuration names another. On a GPU the rate grows with T,
    because short windows give it too little work. Rates are medians, of an untrained model."""
    rows = steps.query("benchmark == 'linear-long'")
    for context, of_context in rows.groupby("context"):
        row = str(int(context)) if str(int(context)) in LONG else f"+{context:.0f}"
        status = ", ".join(dict.fromkeys(of_context["status"]))
        yield cell(row, "status", text=status, of=of_context)
        yield from step_cells(of_context, "app-linear-long", row)
    yield from condition_cells(rows, precision)
