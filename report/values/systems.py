"""Throughput and memory of training steps: Tables 5, 15 to 17 (Section 6.3, Appendices F to H)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from relation.bench.statistics import ratio, ratio_apart
from relation.variants import PAIRED
from report.values.architecture import micro_ga
from report.values.layout import (
    SCALES,
    Column,
    Needs,
    Note,
    Number,
    Panel,
    Part,
    Row,
    Table,
    Words,
    block,
    shown,
    value,
)
from report.values.likeness import Likeness
from report.values.measured import (
    Measured,
    Measurements,
    absent,
    is_number,
    no_counterpart,
    put,
    select,
    worded,
)
from report.values.run_rates import SPANS, hybrid_rates, put_run_rates

if TYPE_CHECKING:
    from report.values.frames import CampaignRecords

PAPER_CONTEXTS = ("1024", "2048", "4096", "8192", "16384", "32768", "65536")
FIXED_CONTEXT = 1024  # of the comparison with the materialised operator
UNITS = {
    "tokens_per_second": "tok/s",
    "raw_tokens_per_second": "tok/s",
    "allocated_gib": "GiB",
    "reserved_gib": "GiB",
    "context": "tokens",
    "micro": "1",
    "accumulation": "1",
}
OPERATOR_NAME = {"mha": "MHA", "full": "Full Relation", "linear": "Linear Relation"}
# Of MHA backends that a reader knows by a name of their own.
ATTENTION_NAME = {"cudnn": "cuDNN’s attention"}
# What the backend `tiled` is, where it stands for FlashRelation.
TILED = "FlashRelation’s tiling in plain PyTorch, not the kernel"


def _absent(
    records: CampaignRecords, benchmark: str, scale: str | None, *variants: str
) -> Measured:
    """Missing pieces are listed by the benchmark that would have measured them, or by variant."""
    return absent(records, ("throughput",), scale, (benchmark, *variants))


def failed(rows: pd.DataFrame) -> Measured:
    """Why a side that was measured has no value."""
    row, devices = rows.iloc[0], ", ".join(dict.fromkeys(rows["device"]))
    told = f"{row['reason']}, on {devices}, T = {row['context']:.0f}"
    sources = tuple(dict.fromkeys(rows["source"])) if "source" in rows else ()
    if row["status"] == "OOM":
        return Measured(status="oom", reason=told, sources=sources)
    return Measured(status="failed", reason=f"{row['status']}: {told}", sources=sources)


def _measured(rows: pd.DataFrame, field: str, none: Measured) -> Measured:
    """A field of one side's measurement, with how many rounds stand behind it."""
    if rows.empty:
        return none
    passed = rows[rows["status"] == "PASS"]
    if passed.empty:
        return failed(rows)
    row = passed.iloc[0]
    if not is_number(row[field]):
        return no_counterpart(f"not counted on this device: {row['device']}")
    return Measured(
        float(row[field]),
        unit=UNITS[field],
        n=len(row["samples"]),
        reason=f"{OPERATOR_NAME[row['variant']]} on backend {row['backend']}, {row['device']}",
        sources=tuple(dict.fromkeys(rows["source"])),
    )


def _setting(rows: pd.DataFrame, field: str, none: Measured) -> Measured:
    """A setting of a measurement; it holds even where the measurement ran out of memory."""
    return none if rows.empty else Measured(float(rows[field].iloc[0]), unit=UNITS[field], n=1)


def _batches(rows: pd.DataFrame, none: Measured) -> Measured:
    """Micro-batch and accumulation of a side, as "8/4"."""
    if rows.empty:
        return none
    readings = dict.fromkeys(micro_ga(row) for row in rows.to_dict("records"))
    return worded(", ".join(readings), sources=tuple(dict.fromkeys(rows["source"])))


def _ratio(over: pd.DataFrame, under: pd.DataFrame, none: Measured) -> dict[str, Measured]:
    """The ratio of two sides' rates, round by round where they took turns, with its interval."""
    terms = [_measured(rows, "tokens_per_second", none) for rows in (over, under)]
    for term in terms:
        if term.value is None:
            return {"value": term}
    sides = [rows.iloc[0] for rows in (over, under)]
    taken = ratio_apart if any(side["alone"] for side in sides) else ratio
    ratios = taken(*(list(side["samples"]) for side in sides))
    sources = tuple(dict.fromkeys((*terms[1].sources, *terms[0].sources)))
    return {
        statistic: replace(terms[0], value=float(ratios[name]), unit="x", sources=sources)
        for statistic, name in (("value", "ratio"), ("low", "ratio_low"), ("high", "ratio_high"))
        if ratios[name] is not None
    }


def _matched_ratio(
    records: CampaignRecords, matched: pd.DataFrame, scale: str
) -> dict[str, Measured]:
    full, mha = (select(matched, side=side) for side in ("full", "mha"))
    return _ratio(full, mha, _absent(records, "matched", scale, "full"))


def _put_ratio(
    found: Measurements, row: str, column: str, statistics: Mapping[str, Measured]
) -> None:
    found.update({(row, column, statistic): value for statistic, value in statistics.items()})


def _kernel_name(name: str) -> str:
    """A kernel without its namespaces, template arguments and parameters."""
    return re.split(r"[<(]", name.removeprefix("void "))[0].split("::")[-1]


def _disturbed(rows: pd.DataFrame) -> Iterable[str]:
    """What disturbed each measurement, with its contexts where they were not disturbed alike."""
    names = ["benchmark", "scale"] if "benchmark" in rows else ["scale"]
    for name, measured in rows.groupby(names, sort=False):
        where = " ".join(name)
        readings = measured.groupby("disturbed", sort=False, dropna=False)["context"].unique()
        for told, contexts in readings.items():
            if pd.isna(told):
                continue
            at = ", ".join(f"{context:,.0f}" for context in sorted(contexts))
            yield f"{where}{f' at T = {at}' if len(readings) > 1 else ''}: {told}"


def put_setting(found: Measurements, rows: pd.DataFrame, page: Mapping[str, Any]) -> None:
    """What the rows of a table were measured on and under, in the row "setting".

    page: what the campaign says of itself.
    """
    if rows.empty:
        return

    def put(column: str, texts: Iterable[object]) -> None:
        told = "; ".join(dict.fromkeys(str(text) for text in texts if pd.notna(text)))
        if told:
            found["setting", column, "value"] = worded(told)

    put("device", rows["device"])
    put("precision", (precision.upper() for precision in page["systems"]["precision"]))
    sides = set(rows["variant"] if "variant" in rows else rows["operator"])
    if page["systems"]["flash"] != "flash" and sides & {"full", "full-flash"}:
        put("flash", [page["systems"]["flash"]])
    put("driver", rows["driver"])
    clocks = rows["sm_clock_least"].dropna()
    if len(clocks):
        put("clock", [f"{clocks.min():.0f} of {rows['sm_clock_limit'].max():.0f} MHz"])
    put("disturbed", _disturbed(rows))
    if "kernels" in rows:
        passed = rows[rows["status"] == "PASS"].to_dict("records")
        ran = {row["side"]: map(_kernel_name, row["kernels"]) for row in passed}
        sides_of: dict[str, list[str]] = {}
        for side, kernels in ran.items():
            sides_of.setdefault(", ".join(dict.fromkeys(kernels)), []).append(side)
        told = {kernels: ", ".join(sides) for kernels, sides in sides_of.items() if kernels}
        put("kernels", [f"{sides}: {kernels}" for kernels, sides in told.items()])
        by_operator = rows.groupby("variant", sort=False)["backend"].unique()
        put(
            "backends",
            [
                f"{OPERATOR_NAME[name]} on {' and '.join(backends)}"
                for name, backends in by_operator.items()
            ],
        )
        put("tokens", rows["tokens"])
        alone = rows[rows["alone"].astype(bool)]
        put("alone", alone["scale"] + " " + alone["side"])


def put_retention(found: Measurements, records: CampaignRecords, rows: pd.DataFrame) -> None:
    """That Linear Relation was timed untrained, and what training did to the rate of Hybrid runs.

    The kernels leave work out where retention keeps much of the past; training changes how much.
    """
    if rows.empty or rows["device"].str.contains("cpu", case=False).any():
        return
    found["setting", "retention", "value"] = worded("untrained")
    trained = hybrid_rates(records)
    if trained is not None:
        found["setting", "trained", "value"] = trained


def production(records: CampaignRecords) -> Measurements:
    """Table 15: FlashAttention and FlashRelation at each scale's own context, with memory."""
    found: Measurements = {}
    measured = select(records.throughput, benchmark="matched")
    for scale in SCALES:
        matched = select(measured, scale=scale)
        none = _absent(records, "matched", scale, *PAIRED)
        put(found, scale, {"context": _setting(matched, "context", none)})
        for side in PAIRED:
            rows, none = select(matched, side=side), _absent(records, "matched", scale, side)
            columns = {
                f"throughput.{side}": _measured(rows, "tokens_per_second", none),
                f"allocated.{side}": _measured(rows, "allocated_gib", none),
                f"reserved.{side}": _measured(rows, "reserved_gib", none),
                f"micro_ga.{side}": _batches(rows, none),
            }
            put(found, scale, columns)
        _put_ratio(found, scale, "ratio", _matched_ratio(records, matched, scale))
        put_run_rates(found, records, scale)
    put_setting(found, measured, records.page)
    return found


def efficient(records: CampaignRecords) -> Measurements:
    """Table 5: the materialised operator against FlashRelation, the matched pair, and peers."""
    found: Measurements = {}
    measured = select(records.throughput, benchmark=("fixed", "matched"))
    for scale in SCALES:
        fixed, matched = (
            select(measured, scale=scale, benchmark=name) for name in ("fixed", "matched")
        )
        none = _absent(records, "fixed", scale, "full")
        reference, flash = select(fixed, side="reference"), select(fixed, side="full")
        columns = {
            "fixed.reference": _measured(reference, "tokens_per_second", none),
            "fixed.flash": _measured(flash, "tokens_per_second", none),
            "fixed.context": _setting(fixed, "context", none),
        }
        put(found, scale, columns)
        _put_ratio(found, scale, "fixed.speedup", _ratio(flash, reference, none))
        none = _absent(records, "matched", scale, *PAIRED)
        columns = {"matched.context": _setting(matched, "context", none)}
        for side in PAIRED:
            rows, none = select(matched, side=side), _absent(records, "matched", scale, side)
            columns[f"matched.{side}"] = _measured(rows, "tokens_per_second", none)
        put(found, scale, columns)
        _put_ratio(found, scale, "matched.ratio", _matched_ratio(records, matched, scale))
        _put_peers(found, records, scale, fixed, matched)
    put_setting(found, measured, records.page)
    return found


def _put_peers(
    found: Measurements,
    records: CampaignRecords,
    scale: str,
    fixed: pd.DataFrame,
    matched: pd.DataFrame,
) -> None:
    """What the paper does not compare with: the compiled reference, and other attention."""
    others = matched[matched["side"].str.startswith("mha-")].head(1)
    for column, rows, base, benchmark in (
        ("compiled", select(fixed, side="reference-compiled"), fixed, "fixed"),
        ("other", others, matched, "matched"),
    ):
        flash = select(base, side="full")
        none = no_counterpart("this campaign measures no such side")
        if flash.empty:
            none = _absent(records, benchmark, scale, "full")
        put(found, scale, {f"peers.{column}": _measured(rows, "tokens_per_second", none)})
        _put_ratio(found, scale, f"peers.{column}_ratio", _ratio(flash, rows, none))
    found[scale, "peers.name", "value"] = found[scale, "peers.other", "value"]
    if len(others):
        backend = others.iloc[0]["backend"]
        name = worded(ATTENTION_NAME.get(backend, f"MHA, {backend}"))
        found[scale, "peers.name", "value"] = name


def linear_steady(records: CampaignRecords) -> Measurements:
    """Table 16: Linear Relation's throughput once warm, and over the whole run."""
    found: Measurements = {}
    measured = select(records.throughput, benchmark="linear-steady")
    for scale in SCALES:
        rows = select(measured, scale=scale)
        none = _absent(records, "linear-steady", scale, "linear")
        columns = {
            "context": _setting(rows, "context", none),
            "micro_ga": _batches(rows, none),
            "steady": _measured(rows, "tokens_per_second", none),
            "raw": _measured(rows, "raw_tokens_per_second", none),
        }
        put(found, scale, columns)
    put_setting(found, measured, records.page)
    put_retention(found, records, measured)
    updates = measured["measured_updates"].dropna()
    if len(updates):
        counts = dict.fromkeys(f"{count:.0f}" for count in (updates.min(), updates.max()))
        found["setting", "raw", "value"] = worded(" to ".join(counts))
    return found


def linear_long(records: CampaignRecords) -> Measurements:
    """Table 17: Linear Relation's throughput and memory against T.

    A campaign's contexts meet the paper's by T; those of other models by position, the first with
    T = 1024 and so on. The rest get a row of their own, keyed ``+<T>``.
    """
    rows = select(records.throughput, benchmark="linear-long")
    none = (
        _absent(records, "linear-long", None, "linear")
        if rows.empty
        else no_counterpart(f"this campaign measures {rows['position'].nunique()} contexts")
    )
    likeness = Likeness(records.page)
    others = bool(likeness.other_models(set(rows["scale"]), budget=False))
    found: Measurements = {}
    counterpart = {}
    for row in rows.sort_values("context").to_dict("records"):
        context, position = int(row["context"]), int(row["position"])
        if others:
            meets = PAPER_CONTEXTS[position] if position < len(PAPER_CONTEXTS) else None
        else:
            meets = str(context) if str(context) in PAPER_CONTEXTS else None
        counterpart[meets or f"+{context}"] = context
    for key in dict.fromkeys((*PAPER_CONTEXTS, *counterpart)):
        here = select(rows, context=counterpart.get(key, -1))
        status = none if here.empty else worded(", ".join(dict.fromkeys(here["status"])))
        columns = {
            **{name: _setting(here, name, none) for name in ("context", "micro", "accumulation")},
            "status": status,
            "throughput": _measured(here, "tokens_per_second", none),
            "allocated": _measured(here, "allocated_gib", none),
        }
        put(found, key, columns)
    put_setting(found, rows, records.page)
    put_retention(found, records, rows)
    tokens = rows["micro"] * rows["accumulation"] * rows["context"]
    larger = rows[tokens > tokens.min()]["context"] if len(rows) else []
    if len(larger):
        contexts = ", ".join(f"{context:,.0f}" for context in sorted(set(larger)))
        found["setting", "update", "value"] = worded(f"T = {contexts}")
    return found


RATE = Number(grouped=True, significant=4, own=True)
SPEEDUP = Number(2, "×")
RATIO = Number(3, "×", own=True)
MEMORY = Number(2, significant=3)
SHARE = Number(1, "%")
CONTEXT = Number()
PAPER_PRECISION = "BF16"

# Of each setting: its key, its sentence, and whether that stands below the table. What a value
# means stands before the table, what it was measured under below it.
_SETTINGS = (
    ("driver", "GPU driver {}.", True),
    ("clock", "Lowest SM clock while it was measured: {}.", True),
    ("kernels", "Attention and Relation kernels that a profile of the updates saw: {}.", True),
    ("update", "One window is a whole update, of more tokens than the others have, at {}.", False),
    (
        "raw",
        "The raw mean is over {} timed updates and the few before them, so compilation weighs "
        "more than in a run of thousands.",
        False,
    ),
    ("alone", "Measured apart from the others, because together they did not fit: {}.", True),
    (
        "retention",
        "Linear Relation was timed {}; where training makes retention forget faster, more chunks "
        "take slower kernels (kernels/linear_relation/README.md, Weak chunks).",
        False,
    ),
    (
        "trained",
        "The rate of Hybrid runs in training, tok/s, the median of the updates from "
        f"{SPANS[0][0]:.0%} to {SPANS[0][1]:.0%} and that of the last "
        f"{SPANS[1][1] - SPANS[1][0]:.0%}: {{}}.",
        True,
    ),
    ("oom", "Out of memory: {}.", True),
    (
        "flat",
        "No trend of a token’s time with T is resolved: the 95% intervals at the first and the "
        "last T overlap ({}).",
        False,
    ),
    ("disturbed", "What disturbed the measurement: {}.", True),
)


def setting_notes(cells: pd.DataFrame) -> list[Note]:
    """What the device was and did while the campaign measured, one sentence each."""
    found = cells[cells["row"] == "setting"].set_index("column")["text"]
    notes = [
        Note(sentence.format(found[key]), below)
        for key, sentence, below in _SETTINGS
        if key in found
    ]
    if "precision" in found:
        notes.insert(0, Note(_precision_note(found), below=found["precision"] == PAPER_PRECISION))
    if "random" in found.get("tokens", ""):
        notes.append(Note("Measured on random tokens: the corpus was not prepared."))
    return notes


def _precision_note(found: pd.Series) -> str:
    """In which precision, on which backends; the device stands in the table's last line."""
    precision = found["precision"]
    told = f"In {precision}"
    if precision != PAPER_PRECISION:
        told += f", the paper’s in {PAPER_PRECISION}"
    if "backends" in found:
        told += f": {found['backends']}"
    if "flash" in found:
        what = f", {TILED}" if found["flash"] == "tiled" else ""
        told += f". For FlashRelation stands the backend {found['flash']}{what}"
    return f"{told}."


def _notes(cells: pd.DataFrame) -> list[Note]:
    """What was measured and under what, and a fixed context other than the paper’s."""
    contexts = [
        f"{context:.0f} ({row})"
        for row, context in shown(cells, "fixed.context")[["row", "value"]].itertuples(False)
        if context != FIXED_CONTEXT
    ]
    notes = setting_notes(cells)
    if contexts:
        notes.append(Note(f"The fixed context of (a) is {', '.join(contexts)} here."))
    return notes


EFFICIENT = Table(
    label="efficient-relation",
    number="5",
    title="FlashRelation throughput",
    summary="Training throughput against the materialised operator and against FlashAttention.",
    caption=(
        "Whole training steps in tokens per second: (a) FlashRelation against the materialised "
        "operator at a fixed context ($T = 1024$ in the paper), (b) against FlashAttention at each "
        "scale’s own, (c) against what the paper leaves out: the reference compiled with its "
        "model, and another attention in the place of (b)’s. Rates are medians of rounds in which "
        "the sides take turns, in processes of their own; ratios are those of single rounds, with "
        "the 95% interval of their median."
    ),
    panels=(
        Panel(
            "(a) Fixed context",
            (
                value("Ref. Full", "fixed.reference", RATE),
                value("FlashRelation", "fixed.flash", RATE, "full"),
                value("Speedup", "fixed.speedup", SPEEDUP),
            ),
        ),
        Panel(
            "(b) Scale-matched production",
            (
                value("$T$", "matched.context", CONTEXT),
                value("FlashAttn.", "matched.mha", RATE, "mha"),
                value("FlashRelation", "matched.full", RATE, "full"),
                value("FR / FA", "matched.ratio", RATIO),
            ),
        ),
        Panel(
            "(c) Beyond the paper",
            (
                value("Ref. Full,\ncompiled", "peers.compiled", RATE),
                value("FR / compiled", "peers.compiled_ratio", SPEEDUP),
                value("Other\nattention", "peers.name", Words()),
                value("tok/s", "peers.other", RATE, "mha"),
                value("FR / other", "peers.other_ratio", RATIO),
            ),
            measured=True,
        ),
    ),
    measure=efficient,
    needs=Needs(benchmarks=("fixed", "matched")),
    systems=True,
    notes=_notes,
)


def _memory(header: str, variant: str) -> Column:
    return Column(
        header,
        (Part(f"allocated.{variant}", MEMORY), Part(f"reserved.{variant}", MEMORY)),
        "{}/{}",
        operator=variant,
    )


PRODUCTION = Table(
    label="app-prod-fr-fa",
    number="15",
    title="Production throughput and memory",
    summary="Throughput and memory of the pair at each scale’s own context.",
    caption=(
        "FlashAttention and FlashRelation at each scale’s own context. (a) Whole training steps: "
        "rates are medians of rounds in which the sides take turns, FR/FA is the median of single "
        "rounds’ ratios with its 95% interval, memory is allocated / reserved GiB. (b) The "
        "campaign’s training runs, in tokens per second of each process, of which a GPU has one: "
        "the median update of a run, its mean over seeds; FR/FA in pairs of one seed, with the "
        "95% interval of their mean; and the share of (a)’s rate, which includes what is lost "
        "where several processes share a run."
    ),
    panels=(
        Panel(
            "(a) Whole training steps",
            (
                value("$T$", "context", CONTEXT),
                value("FlashAttention\ntok/s", "throughput.mha", RATE, "mha"),
                value("FlashRelation\ntok/s", "throughput.full", RATE, "full"),
                value("FR/FA", "ratio", RATIO),
                value("FR\nmicro/GA", "micro_ga.full", Words(), "full"),
                value("FA\nmicro/GA", "micro_ga.mha", Words(), "mha"),
                _memory("FR\nalloc./res.", "full"),
                _memory("FA\nalloc./res.", "mha"),
            ),
        ),
        Panel(
            "(b) Training runs",
            (
                value("Processes\na run", "processes", Words()),
                value("FlashAttention\ntok/s", "run_rate.mha", RATE, "mha"),
                value("FlashRelation\ntok/s", "run_rate.full", RATE, "full"),
                value("FR/FA", "run_ratio", RATIO),
                value("FR\nmicro/GA", "run_micro_ga.full", Words(), "full"),
                value("FA\nmicro/GA", "run_micro_ga.mha", Words(), "mha"),
                value("FR, share\nof (a)", "run_share.full", SHARE, "full"),
                value("FA, share\nof (a)", "run_share.mha", SHARE, "mha"),
            ),
            measured=True,
        ),
    ),
    measure=production,
    needs=Needs(lambda run: run.variant in PAIRED, benchmarks=("matched",)),
    systems=True,
    notes=_notes,
)

LINEAR_STEADY = Table(
    label="app-linear-steady",
    number="16",
    title="Linear Relation throughput",
    summary="Tokens per second at each scale, warm and overall.",
    caption=(
        "Linear Relation in whole training steps: once warm, as the median of rounds, and over all "
        "the time from the first update on."
    ),
    panels=block(
        value("$T$", "context", CONTEXT),
        value("Micro/GA", "micro_ga", Words()),
        value("Steady-state tok/s", "steady", RATE, "full"),
        value("Raw mean tok/s", "raw", RATE, "full"),
    ),
    measure=linear_steady,
    needs=Needs(benchmarks=("linear-steady",)),
    systems=True,
    notes=_notes,
)

LINEAR_LONG = Table(
    label="app-linear-long",
    number="17",
    title="Linear Relation at long contexts",
    summary="Throughput and memory as the context grows.",
    caption=(
        "Linear Relation against the context $T$, one window a micro-batch: a short one gives a "
        "GPU too little to do at a time, so that the rate grows with $T$. Rates are medians of "
        "rounds. The campaign’s "
        "contexts meet the paper’s in their order; further ones follow below."
    ),
    stubs=("$T$",),
    rows=tuple(Row(context, (f"{int(context):,}",)) for context in PAPER_CONTEXTS),
    panels=block(
        value("Micro", "micro", Number()),
        value("GA", "accumulation", Number()),
        value("Status", "status", Words()),
        value("tok/s", "throughput", RATE),
        value("Allocated GiB", "allocated", Number(3, significant=3)),
    ),
    measure=linear_long,
    needs=Needs(benchmarks=("linear-long",)),
    systems=True,
    notes=_notes,
    extra_row=lambda key: Row(key, (f"{int(key):,}",), group="campaign"),
    label_column="context",
)
