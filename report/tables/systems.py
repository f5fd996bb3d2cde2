"""Throughput and memory of whole training steps: Tables 5 and 15 to 17 (Appendices G, H)."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from relation.variants import PAIRED, VARIANTS
from report import stats
from report.paper import SCALES
from report.table import Column, Panel, Table, cell, estimate, means, sources
from report.tables.configs import micro_ga

LONG_CONTEXTS = ("1024", "2048", "4096", "8192", "16384", "32768", "65536")
ATTENTION_NAMES = {"cudnn": "cuDNN’s attention"}


def select(frame: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """The rows whose columns equal the values."""
    kept = pd.Series(True, index=frame.index)
    for column, value in wanted.items():
        kept &= frame[column] == value
    return frame[kept]


def outcome(row: dict[str, Any]) -> dict[str, Any]:
    """Status and reason of a measurement without a value."""
    told = str(row["reason"])
    if "context" in row:
        told += f", on {row['device']}, T = {row['context']:.0f}"
    if row["status"] == "OOM":
        return {"status": "oom", "reason": told, "n": 0}
    return {"status": "failed", "reason": f"{row['status']}: {told}", "n": 0}


def measured(row: str, column: str, side: pd.DataFrame, field: str) -> Iterator[dict[str, Any]]:
    """One number of a side of a benchmark, with its rounds; or why the side has none."""
    for found in side.head(1).to_dict("records"):
        known: dict[str, Any] = {"sources": sources(side)}
        if found["status"] != "PASS":
            yield cell(row, column, **known, **outcome(found))
        elif pd.isna(found[field]):
            reason = f"not counted on this device: {found['device']}"
            yield cell(row, column, status="no counterpart", reason=reason, n=0, **known)
        else:
            backend = f"{VARIANTS[found['variant']].title} on backend {found['backend']}"
            reason = f"{backend}, {found['device']}"
            yield cell(row, column, found[field], n=len(found["samples"]), reason=reason, **known)


def ratio(row: str, column: str, over: pd.DataFrame, under: pd.DataFrame) -> Iterator[dict]:
    """Two sides' ratio, round by round where they took turns, with its 95% interval."""
    if over.empty or under.empty:
        return
    sides = [side.iloc[0] for side in (over, under)]
    known: dict[str, Any] = {"sources": sources(pd.concat([under, over]))}
    lacking = [side for side in sides if side["status"] != "PASS"]
    if lacking:
        yield cell(row, column, **known, **outcome(lacking[0].to_dict()))
        return
    together = not any(side["alone"] for side in sides)
    found = stats.median_ratio(*(list(side["samples"]) for side in sides), together)
    yield estimate(row, column, found, n=len(sides[0]["samples"]), **known)


def setting_of(row: str, column: str, rows: pd.DataFrame, field: str) -> Iterator[dict[str, Any]]:
    """A number that was set; it holds even where the measurement ran out of memory."""
    if len(rows):
        yield cell(row, column, float(rows[field].iloc[0]), sources=sources(rows))


def batches_of(row: str, column: str, rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Micro-batch and accumulation of a side, as 8/4."""
    if len(rows):
        told = dict.fromkeys(micro_ga(each) for each in rows.to_dict("records"))
        yield cell(row, column, text=", ".join(told), sources=sources(rows))


def conditions(rows: pd.DataFrame, precision: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What the rows of a table were measured on and under, in words, in the row "setting"."""
    if rows.empty:
        return
    told: dict[str, Sequence[object]] = {
        "device": rows["device"].unique(),
        "precision": [name.upper() for name in precision],
        "driver": rows["driver"].unique(),
        "disturbed": list(_disturbed(rows)),
    }
    clocks = rows["sm_clock_least"].dropna()
    if len(clocks):
        told["clock"] = [f"{clocks.min():.0f} of {rows['sm_clock_limit'].max():.0f} MHz"]
    if "kernels" in rows:
        passed = select(rows, status="PASS").groupby("side", sort=False)["kernels"].last()
        names = passed.map(lambda each: ", ".join(dict.fromkeys(map(_kernel, each))))
        sides = names.index.to_series().groupby(names, sort=False).agg(", ".join)
        told["kernels"] = [f"{side}: {name}" for name, side in sides.items() if name]
        backends = rows.groupby("variant", sort=False)["backend"].unique()
        told["backends"] = [
            f"{VARIANTS[name].title} on {' and '.join(used)}" for name, used in backends.items()
        ]
        told["tokens"] = rows["tokens"].unique()
        alone = rows[rows["alone"].astype(bool)]
        told["alone"] = list(alone["scale"] + " " + alone["side"])
    for column, texts in told.items():
        text = "; ".join(dict.fromkeys(str(each) for each in texts if pd.notna(each)))
        if text:
            yield cell("setting", column, text=text, sources=sources(rows))


def _kernel(name: str) -> str:
    """A kernel without its namespaces, template arguments and parameters."""
    return re.split(r"[<(]", name.removeprefix("void "))[0].split("::")[-1]


def _disturbed(rows: pd.DataFrame) -> Iterator[str]:
    """What disturbed each measurement, with its contexts where not all were disturbed alike."""
    names = ["benchmark", "scale"] if "benchmark" in rows else ["scale"]
    for name, of in rows.groupby(names, sort=False):
        contexts = of.groupby("disturbed", sort=False, dropna=False)["context"].unique()
        for told, found in contexts.items():
            if pd.notna(told):
                at = ", ".join(f"{context:,.0f}" for context in sorted(found))
                yield f"{' '.join(name)}{f' at T = {at}' if len(contexts) > 1 else ''}: {told}"


def efficient(steps: pd.DataFrame, campaign: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Table 5: the materialised operator against FlashRelation, the matched pair, and peers."""
    rate = "tokens_per_second"
    rows = steps[steps["benchmark"].isin(["fixed", "matched"])]
    for scale, of_scale in rows.groupby("scale", sort=False):
        fixed, matched = (select(of_scale, benchmark=name) for name in ("fixed", "matched"))
        reference, flash = select(fixed, side="reference"), select(fixed, side="full")
        compiled = select(fixed, side="reference-compiled")
        mha, full = select(matched, side="mha"), select(matched, side="full")
        other = matched[matched["side"].str.startswith("mha-")].head(1)
        yield from setting_of(scale, "fixed.context", fixed, "context")
        yield from setting_of(scale, "matched.context", matched, "context")
        for column, side in (
            ("fixed.reference", reference),
            ("fixed.flash", flash),
            ("matched.mha", mha),
            ("matched.full", full),
            ("peers.compiled", compiled),
            ("peers.other", other),
        ):
            yield from measured(scale, column, side, rate)
        yield from ratio(scale, "fixed.speedup", flash, reference)
        yield from ratio(scale, "matched.ratio", full, mha)
        yield from ratio(scale, "peers.compiled_ratio", flash, compiled)
        yield from ratio(scale, "peers.other_ratio", full, other)
        for backend in other["backend"]:
            name = ATTENTION_NAMES.get(backend, f"MHA, {backend}")
            yield cell(scale, "peers.name", text=name, sources=sources(other))
    yield from conditions(rows, campaign["precision"])


def production(
    steps: pd.DataFrame, runs: pd.DataFrame, models: pd.DataFrame, campaign: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Table 15: FlashAttention and FlashRelation at each scale's context, and the runs' rates."""
    rows = select(steps, benchmark="matched")
    alone: dict[tuple[str, str], tuple[float, str, tuple[str, ...]]] = {}
    for scale, matched in rows.groupby("scale", sort=False):
        yield from setting_of(scale, "context", matched, "context")
        for side in PAIRED:
            of_side = select(matched, side=side)
            for column, field in (
                ("throughput", "tokens_per_second"),
                ("allocated", "allocated_gib"),
                ("reserved", "reserved_gib"),
            ):
                yield from measured(scale, f"{column}.{side}", of_side, field)
            yield from batches_of(scale, f"micro_ga.{side}", of_side)
            for row in select(of_side, status="PASS").head(1).to_dict("records"):
                alone[scale, side] = (
                    math.nan if "cpu" in row["device"].lower() else row["tokens_per_second"],
                    micro_ga(row),
                    sources(of_side),
                )
        full, mha = (select(matched, side=side) for side in ("full", "mha"))
        yield from ratio(scale, "ratio", full, mha)
    for model in models[models["variant"].isin(PAIRED)].to_dict("records"):
        text = micro_ga(model)
        column = f"run_micro_ga.{model['variant']}"
        yield cell(model["scale"], column, text=text, sources=(model["source"],))
    yield from run_rates(runs[runs["variant"].isin(PAIRED) & ~runs["further"]], alone)
    yield from conditions(rows, campaign["precision"])


def run_rates(runs: pd.DataFrame, alone: dict[tuple[str, str], tuple]) -> Iterator[dict[str, Any]]:
    """The runs' own rates, of each process, and their share of the benchmark's.

    alone: rate, micro/GA and sources of the benchmark by scale and variant.
    """
    runs = runs[runs["processes"].notna() & runs["median_tokens_per_second"].notna()]
    runs = runs.assign(
        row=runs["scale"],
        column="run_rate." + runs["variant"],
        value=runs["median_tokens_per_second"] / runs["processes"],
        batches=[micro_ga(run) for run in runs.to_dict("records")],
    )
    for found in means(runs):
        yield found
        scale, variant = found["row"], found["column"].removeprefix("run_rate.")
        rate, batches, behind = alone.get((scale, variant), (math.nan, "", ()))
        used = runs[(runs["row"] == scale) & (runs["column"] == found["column"])]["batches"]
        share, known = f"run_share.{variant}", {"sources": (*found["sources"], *behind)}
        if set(used) == {batches} and rate == rate:
            by_seed = {seed: value / rate for seed, value in found["by_seed"].items()}
            known |= {name: found[name] / rate for name in ("sd", "low", "high")}
            yield cell(scale, share, found["value"] / rate, n=found["n"], by_seed=by_seed, **known)
        elif behind:
            why = f"micro/GA is {', '.join(set(used))} in the runs and {batches} in the benchmark"
            yield cell(scale, share, status="no counterpart", reason=why, n=0)
    for scale, of_scale in runs.groupby("scale", sort=False):
        counts = ", ".join(f"{count:.0f}" for count in sorted(of_scale["processes"].unique()))
        yield cell(scale, "processes", text=counts, sources=sources(of_scale))
        wide = of_scale.pivot(index="seed", columns="variant", values=["value", "processes"])
        if set(PAIRED) <= set(of_scale["variant"]):
            wide = wide.dropna()
            alike = wide[wide["processes"]["mha"] == wide["processes"]["full"]]["value"]
            paired = (alike["full"] / alike["mha"]).rename("value").reset_index()
            known = {"row": scale, "column": "run_ratio", "source": of_scale["source"].iloc[0]}
            yield from means(paired.assign(**known))


def linear_steady(steps: pd.DataFrame, campaign: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Table 16: Linear Relation's throughput once warm, and over the whole run."""
    rows = select(steps, benchmark="linear-steady")
    for scale, of_scale in rows.groupby("scale", sort=False):
        yield from setting_of(scale, "context", of_scale, "context")
        yield from batches_of(scale, "micro_ga", of_scale)
        yield from measured(scale, "steady", of_scale, "tokens_per_second")
        yield from measured(scale, "raw", of_scale, "raw_tokens_per_second")
    yield from conditions(rows, campaign["precision"])
    updates = rows["measured_updates"].dropna()
    if len(updates):
        counts = dict.fromkeys(f"{count:.0f}" for count in (updates.min(), updates.max()))
        yield cell("setting", "raw", text=" to ".join(counts), sources=sources(rows))


def linear_long(steps: pd.DataFrame, campaign: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Table 17: Linear Relation's throughput and memory against T."""
    rows = select(steps, benchmark="linear-long")
    for context, of_context in rows.groupby("context"):
        row = str(int(context)) if str(int(context)) in LONG_CONTEXTS else f"+{context:.0f}"
        for column in ("micro", "accumulation"):
            yield from setting_of(row, column, of_context, column)
        status = ", ".join(dict.fromkeys(of_context["status"]))
        yield cell(row, "status", text=status, sources=sources(of_context))
        yield from measured(row, "throughput", of_context, "tokens_per_second")
        yield from measured(row, "allocated", of_context, "allocated_gib")
    yield from conditions(rows, campaign["precision"])
    tokens = rows["micro"] * rows["accumulation"] * rows["context"]
    larger = sorted(set(rows[tokens > tokens.min()]["context"]))
    if larger:
        text = f"T = {', '.join(f'{context:,.0f}' for context in larger)}"
        yield cell("setting", "update", text=text, sources=sources(rows))


RATE, MEMORY = ",.0f", ".2f"
_FIXED, _MATCHED = ("fixed",), ("matched",)


def _rate(key: str, title: str, benchmark: str) -> Column:
    return Column(key, title, RATE, "tok/s", (benchmark,))


EFFICIENT = Table(
    label="efficient-relation",
    number="5",
    title="FlashRelation throughput",
    caption=(
        "Whole training steps in tokens per second: FlashRelation against the materialised "
        "operator at a fixed context (T = 1024 in the paper), against FlashAttention at each "
        "scale's own, and against what the paper leaves out: the reference compiled with its "
        "model, and another attention. Rates are medians of rounds in which the sides take turns, "
        "in processes of their own; ratios are those of single rounds, with the 95% interval of "
        "their median."
    ),
    panels=(
        Panel(
            "Fixed context",
            (
                _rate("fixed.reference", "Ref. Full", "fixed"),
                _rate("fixed.flash", "FlashRelation", "fixed"),
                Column("fixed.speedup", "Speedup", ".2f", "x", _FIXED, interval=True),
            ),
            SCALES,
        ),
        Panel(
            "Scale-matched production",
            (
                Column("matched.context", "T", ".0f", "tokens", _MATCHED),
                _rate("matched.mha", "FlashAttention", "matched"),
                _rate("matched.full", "FlashRelation", "matched"),
                Column("matched.ratio", "FR / FA", ".3f", "x", _MATCHED, interval=True),
            ),
            SCALES,
        ),
        Panel(
            "Beyond the paper",
            (
                Column("fixed.context", "Fixed context", ".0f", "tokens", _FIXED),
                _rate("peers.compiled", "Ref. Full, compiled", "fixed"),
                Column("peers.compiled_ratio", "FR / compiled", ".2f", "x", _FIXED, interval=True),
                Column("peers.name", "Other attention", variants=_MATCHED),
                _rate("peers.other", "Other attention", "matched"),
                Column("peers.other_ratio", "FR / other", ".3f", "x", _MATCHED, interval=True),
            ),
        ),
    ),
    frames=("steps", "campaign"),
    compute=efficient,
)

PRODUCTION = Table(
    label="app-prod-fr-fa",
    number="15",
    title="Production throughput and memory",
    caption=(
        "FlashAttention and FlashRelation at each scale's own context. Whole training steps: rates "
        "are medians of rounds in which the sides take turns, FR/FA is the median of single "
        "rounds' ratios with its 95% interval, memory is the peak. Training runs: tokens per "
        "second of each process, the median update of a run, its mean over seeds; FR/FA in pairs "
        "of one seed; and the share of the benchmark's rate, which includes what is lost where "
        "several processes share a run, or several runs a GPU."
    ),
    panels=(
        Panel(
            "Whole training steps",
            (
                Column("context", "T", ".0f", "tokens", _MATCHED),
                _rate("throughput.mha", "FlashAttention", "matched"),
                _rate("throughput.full", "FlashRelation", "matched"),
                Column("ratio", "FR / FA", ".3f", "x", _MATCHED, interval=True),
                Column("micro_ga.full", "Micro/GA, FR", variants=_MATCHED),
                Column("micro_ga.mha", "Micro/GA, FA", variants=_MATCHED),
                Column("allocated.full", "Allocated, FR", MEMORY, "GiB", _MATCHED),
                Column("reserved.full", "Reserved, FR", MEMORY, "GiB", _MATCHED),
                Column("allocated.mha", "Allocated, FA", MEMORY, "GiB", _MATCHED),
                Column("reserved.mha", "Reserved, FA", MEMORY, "GiB", _MATCHED),
            ),
            SCALES,
        ),
        Panel(
            "Training runs",
            (
                Column("processes", "Processes a run"),
                Column("run_rate.mha", "FlashAttention", RATE, "tok/s"),
                Column("run_rate.full", "FlashRelation", RATE, "tok/s"),
                Column("run_ratio", "FR / FA", ".3f", "x", interval=True),
                Column("run_micro_ga.full", "Micro/GA, FR"),
                Column("run_micro_ga.mha", "Micro/GA, FA"),
                Column("run_share.full", "Share of the benchmark's rate, FR", ".1f", "%"),
                Column("run_share.mha", "Share of the benchmark's rate, FA", ".1f", "%"),
            ),
        ),
    ),
    frames=("steps", "runs", "models", "campaign"),
    compute=production,
)

LINEAR_STEADY = Table(
    label="app-linear-steady",
    number="16",
    title="Linear Relation throughput",
    caption=(
        "Linear Relation in whole training steps: once warm, as the median of rounds, and over all "
        "the time from the first update on, in which compilation weighs more than in a run of "
        "thousands. It was timed untrained; where training makes retention forget faster, more "
        "chunks take slower kernels."
    ),
    panels=(
        Panel(
            "",
            (
                Column("context", "T", ".0f", "tokens", ("linear-steady",)),
                Column("micro_ga", "Micro/GA", variants=("linear-steady",)),
                _rate("steady", "Steady-state", "linear-steady"),
                _rate("raw", "Raw mean", "linear-steady"),
            ),
            SCALES,
        ),
    ),
    frames=("steps", "campaign"),
    compute=linear_steady,
)

LINEAR_LONG = Table(
    label="app-linear-long",
    number="17",
    title="Linear Relation at long contexts",
    caption=(
        "Linear Relation against the context T, one window a micro-batch. On a GPU the rate grows "
        "with T: a short window gives it too little to do at a time. Rates are medians of rounds, "
        "timed untrained."
    ),
    panels=(
        Panel(
            "",
            (
                Column("micro", "Micro", ".0f", "1", ("linear-long",)),
                Column("accumulation", "GA", ".0f", "1", ("linear-long",)),
                Column("status", "Status", variants=("linear-long",)),
                _rate("throughput", "Rate", "linear-long"),
                Column("allocated", "Allocated", ".3f", "GiB", ("linear-long",)),
            ),
            LONG_CONTEXTS,
        ),
    ),
    frames=("steps", "campaign"),
    compute=linear_long,
    names={context: f"T = {int(context):,}" for context in LONG_CONTEXTS},
)
