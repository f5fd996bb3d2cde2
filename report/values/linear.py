"""Throughput and memory of Linear Relation's training step: Tables 16 and 17 (Appendices G, H)."""

from report.values.conditions import put_retention, put_setting, setting_notes
from report.values.frames import CampaignRecords
from report.values.layout import SCALES, Needs, Number, Row, Table, Words, block, value
from report.values.likeness import Likeness
from report.values.measured import Measurements, no_counterpart, select, worded
from report.values.side_rates import CONTEXT, RATE, absent_rate, batches_of, rate_of, setting_of

PAPER_CONTEXTS = ("1024", "2048", "4096", "8192", "16384", "32768", "65536")


def linear_steady(records: CampaignRecords) -> Measurements:
    """Table 16: Linear Relation's throughput once warm, and over the whole run."""
    found = Measurements()
    measured = select(records.throughput, benchmark="linear-steady")
    for scale in SCALES:
        rows = select(measured, scale=scale)
        none = absent_rate(records, "linear-steady", scale, "linear")
        columns = {
            "context": setting_of(rows, "context", none),
            "micro_ga": batches_of(rows, none),
            "steady": rate_of(rows, "tokens_per_second", none),
            "raw": rate_of(rows, "raw_tokens_per_second", none),
        }
        found.put(scale, columns)
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
        absent_rate(records, "linear-long", None, "linear")
        if rows.empty
        else no_counterpart(f"this campaign measures {rows['position'].nunique()} contexts")
    )
    likeness = Likeness(records.page)
    others = bool(likeness.other_models(set(rows["scale"]), budget=False))
    found = Measurements()
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
            **{name: setting_of(here, name, none) for name in ("context", "micro", "accumulation")},
            "status": status,
            "throughput": rate_of(here, "tokens_per_second", none),
            "allocated": rate_of(here, "allocated_gib", none),
        }
        found.put(key, columns)
    put_setting(found, rows, records.page)
    put_retention(found, records, rows)
    tokens = rows["micro"] * rows["accumulation"] * rows["context"]
    larger = rows[tokens > tokens.min()]["context"] if len(rows) else []
    if len(larger):
        contexts = ", ".join(f"{context:,.0f}" for context in sorted(set(larger)))
        found["setting", "update", "value"] = worded(f"T = {contexts}")
    return found


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
    notes=(setting_notes,),
)

LINEAR_LONG = Table(
    label="app-linear-long",
    number="17",
    title="Linear Relation at long contexts",
    summary="Throughput and memory as the context grows.",
    caption=(
        "Linear Relation against the context $T$, one window a micro-batch. On a GPU the rate "
        "grows with $T$: a short window gives it too little to do at a time. Rates are medians of "
        "rounds. The campaign’s contexts meet the paper’s in their order; further ones follow "
        "below."
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
    notes=(setting_notes,),
    extra_row=lambda key: Row(key, (f"{int(key):,}",), group="campaign"),
    label_column="context",
)
