"""Throughput and memory of whole training steps: Tables 5 and 15 to 17 (Appendices G, H)."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from relation.variants import PAIRED, VARIANTS
from report import stats
from report.table import Cells, cell, columns, means, sources, table, versus
from report.tables.configs import micro_ga

LONG = {str(2**k): f"T = {2**k:,}" for k in range(10, 17)}
ATTENTION_NAMES = {"cudnn": "cuDNN’s attention"}
RATE = "tokens_per_second"


def select(frame: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """The rows whose columns equal the values."""
    kept = pd.Series(True, index=frame.index)
    for column, value in wanted.items():
        kept &= frame[column] == value
    return frame[kept]


def outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    """Status and reason of a measurement without a value."""
    told = f"{row['reason']}, on {row['device']}, T = {row['context']:.0f}"
    if row["status"] == "OOM":
        return {"status": "oom", "reason": told, "n": 0}
    return {"status": "failed", "reason": f"{row['status']}: {told}", "n": 0}


def of_steps(steps: pd.DataFrame, label: str, row: str = "") -> Cells:
    """The cells of a table's columns that show a field of a benchmark: a row a scale, or `row`."""
    for scale, rows in steps.groupby("scale", sort=False):
        for column in (each for each in columns(label) if each.measured):
            *side, field = column.measured.split()
            of = select(rows, benchmark=column.of[0], **dict(zip(["side"], side, strict=False)))
            yield from measured(row or scale, column.column, of, field)


def measured(row: str, column: str, side: pd.DataFrame, field: str) -> Cells:
    """One number of a side of a benchmark, with its rounds; or why the side has none.

    What was set, and not measured, holds even where the measurement ran out of memory.
    """
    for found in side.head(1).to_dict("records"):
        known: dict[str, Any] = {"sources": sources(side)}
        if field == "batches":
            text = ", ".join(dict.fromkeys(map(micro_ga, side.to_dict("records"))))
            yield cell(row, column, text=text, **known)
        elif field in ("context", "micro", "accumulation"):
            yield cell(row, column, float(found[field]), **known)
        elif found["status"] != "PASS":
            yield cell(row, column, **known, **outcome(found))
        elif pd.isna(found[field]):
            reason = f"not counted on this device: {found['device']}"
            yield cell(row, column, status="no counterpart", reason=reason, n=0, **known)
        else:
            backend = f"{VARIANTS[found['variant']].title} on backend {found['backend']}"
            known |= {"n": len(found["samples"]), "reason": f"{backend}, {found['device']}"}
            yield cell(row, column, found[field], **known)


def ratio(row: str, column: str, over: pd.DataFrame, under: pd.DataFrame) -> Cells:
    """Two sides' ratio, round by round where they took turns, with its 95% interval."""
    if over.empty or under.empty:
        return
    sides = [side.iloc[0].to_dict() for side in (over, under)]
    known: dict[str, Any] = {"sources": sources(pd.concat([under, over]))}
    if lacking := [side for side in sides if side["status"] != "PASS"]:
        yield cell(row, column, **known, **outcome(lacking[0]))
        return
    together = not any(side["alone"] for side in sides)
    found = stats.median_ratio(*(list(side["samples"]) for side in sides), together)
    known["reason"] = "" if together else "measured apart, because together they did not fit"
    yield cell(row, column, found, n=len(sides[0]["samples"]), **known)


def conditions(rows: pd.DataFrame, precision: Sequence[str]) -> Cells:
    """What the rows of a table were measured on and under, in words, in the row "setting"."""
    clock, limit = rows["sm_clock_least"].min(), rows["sm_clock_limit"].max()
    told: dict[str, Iterable[object]] = {
        "device": rows["device"],
        "precision": [name.upper() for name in precision if len(rows)],
        "driver": rows["driver"],
        "clock": [f"{clock:.0f} of {limit:.0f} MHz"] if pd.notna(clock) else [],
        "disturbed": _disturbed(rows),
    }
    if "backend" in rows:
        sides = rows.groupby("backend", sort=False)["side"].unique()
        told["sides"] = [f"{', '.join(names)} on {backend}" for backend, names in sides.items()]
        told["tokens"] = rows["tokens"]
    for column, texts in told.items():
        text = "; ".join(dict.fromkeys(str(each) for each in texts if pd.notna(each)))
        if text:
            yield cell("setting", column, text=text, sources=sources(rows))


def _disturbed(rows: pd.DataFrame) -> Iterator[str]:
    """What disturbed each measurement."""
    rows = rows[rows["disturbed"].notna()]
    names = [name for name in ("benchmark", "scale", "disturbed") if name in rows]
    for (*name, told), of in rows.groupby(names, sort=False):
        at = ", ".join(f"{context:,.0f}" for context in sorted(of["context"].unique()))
        yield f"{' '.join(name)} at T = {at}: {told}"


@table("5", "efficient-relation", "FlashRelation throughput")
def efficient(steps: pd.DataFrame, precision: Sequence[str]) -> Cells:
    """Whole training steps in tokens per second: FlashRelation against the materialised operator
    at a fixed context (T = 1024 in the paper), against FlashAttention at each scale's own, and
    against what the paper leaves out: the reference compiled with its model, and another
    attention. Rates are medians of rounds in which the sides take turns, in processes of their
    own; ratios are those of single rounds, with the 95% interval of their median."""
    rows = steps[steps["benchmark"].isin(["fixed", "matched"])]
    yield from of_steps(rows, "efficient-relation")
    for scale, of_scale in rows.groupby("scale", sort=False):
        fixed, matched = (select(of_scale, benchmark=name) for name in ("fixed", "matched"))
        flash, full = select(fixed, side="full"), select(matched, side="full")
        other = matched[(matched["variant"] == "mha") & (matched["side"] != "mha")].head(1)
        compiled = select(fixed, side="reference-compiled")
        yield from ratio(scale, "fixed.speedup", flash, select(fixed, side="reference"))
        yield from ratio(scale, "matched.ratio", full, select(matched, side="mha"))
        yield from ratio(scale, "peers.compiled_ratio", flash, compiled)
        yield from ratio(scale, "peers.other_ratio", full, other)
        yield from measured(scale, "peers.other", other, RATE)
        for backend in other["backend"]:
            name = ATTENTION_NAMES.get(backend, f"MHA, {backend}")
            yield cell(scale, "peers.name", text=name, sources=sources(other))
    yield from conditions(rows, precision)


@table("15", "app-prod-fr-fa", "Production throughput and memory")
def production(
    steps: pd.DataFrame, runs: pd.DataFrame, models: pd.DataFrame, precision: Sequence[str]
) -> Cells:
    """FlashAttention and FlashRelation at each scale's own context. Whole training steps: rates
    are medians of rounds in which the sides take turns, FR/FA is the median of single rounds'
    ratios with its 95% interval, memory is the peak. Training runs: tokens per second of each
    process, the median update of a run, its mean over seeds; FR/FA in pairs of one seed; and the
    share of the benchmark's rate, which includes what is lost where several processes share a run,
    or several runs a GPU."""
    rows = select(steps, benchmark="matched")
    yield from of_steps(rows, "app-prod-fr-fa")
    for scale, matched in rows.groupby("scale", sort=False):
        yield from ratio(scale, "ratio", *(select(matched, side=s) for s in ("full", "mha")))
    for model in models[models["variant"].isin(PAIRED)].to_dict("records"):
        column, behind = f"run_micro_ga.{model['variant']}", (model["source"],)
        yield cell(model["scale"], column, text=micro_ga(model), sources=behind)
    yield from run_rates(runs[runs["variant"].isin(PAIRED) & ~runs["further"]], rows)
    yield from conditions(rows, precision)


def run_rates(runs: pd.DataFrame, matched: pd.DataFrame) -> Cells:
    """The runs' own rates, of each process, and their share of the benchmark's."""
    runs = runs[runs["processes"].notna() & runs["median_tokens_per_second"].notna()]
    runs = runs.assign(
        row=runs["scale"],
        column=runs["variant"],
        value=runs["median_tokens_per_second"] / runs["processes"],
        batches=list(map(micro_ga, runs.to_dict("records"))),
    )
    yield from means(runs.assign(column="run_rate." + runs["variant"]))
    alone = select(matched, status="PASS").drop_duplicates(["scale", "variant"])
    alone = alone.assign(batches=list(map(micro_ga, alone.to_dict("records"))))
    both = runs.merge(alone, on=["scale", "variant"], suffixes=("", "_alone"))
    shares = both.assign(
        column="run_share." + both["variant"], value=both["value"] / both[f"{RATE}_alone"]
    )
    on_cpu = both["device_alone"].str.contains("cpu", case=False)
    same = both["batches"] == both["batches_alone"]
    yield from means(shares[same & ~on_cpu])
    for run in shares[~same | on_cpu].drop_duplicates(["row", "column"]).to_dict("records"):
        why = "a CPU's cores are shared otherwise"
        if run["batches"] != run["batches_alone"]:
            why = f"micro/GA is {run['batches']} in the runs and {run['batches_alone']} in the "
            why += "benchmark"
        yield cell(run["row"], run["column"], status="no counterpart", reason=why, n=0)
    for scale, of_scale in runs.groupby("scale", sort=False):
        counts = ", ".join(f"{count:.0f}" for count in sorted(of_scale["processes"].unique()))
        yield cell(scale, "processes", text=counts, sources=sources(of_scale))
    # Pairs of one seed that as many processes trained.
    alike = runs.groupby(["scale", "seed"])["processes"].transform("nunique") == 1
    yield from means(versus(runs[alike], "full", "mha", "run_ratio", operator.truediv))


@table("16", "app-linear-steady", "Linear Relation throughput")
def linear_steady(steps: pd.DataFrame, precision: Sequence[str]) -> Cells:
    """Linear Relation in whole training steps: once warm, as the median of rounds, and over all
    the time from the first update on, in which compilation weighs more than in a run of thousands.
    It was timed untrained; where training makes retention forget faster, more chunks take slower
    kernels."""
    rows = select(steps, benchmark="linear-steady")
    yield from of_steps(rows, "app-linear-steady")
    yield from conditions(rows, precision)


@table("17", "app-linear-long", "Linear Relation at long contexts", names=LONG)
def linear_long(steps: pd.DataFrame, precision: Sequence[str]) -> Cells:
    """Linear Relation against the context T, one window a micro-batch. On a GPU the rate grows
    with T: a short window gives it too little to do at a time. Rates are medians of rounds, timed
    untrained."""
    rows = select(steps, benchmark="linear-long")
    for context, of_context in rows.groupby("context"):
        row = str(int(context)) if str(int(context)) in LONG else f"+{context:.0f}"
        status = ", ".join(dict.fromkeys(of_context["status"]))
        yield cell(row, "status", text=status, sources=sources(of_context))
        yield from of_steps(of_context, "app-linear-long", row)
    yield from conditions(rows, precision)
