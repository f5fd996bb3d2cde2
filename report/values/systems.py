"""Throughput and memory of a step by FlashAttention and by FlashRelation: Tables 5 and 15."""

from collections.abc import Iterator

import pandas as pd

from relation.variants import PAIRED
from report.values.conditions import put_setting, setting_notes
from report.values.frames import CampaignRecords
from report.values.layout import (
    SCALES,
    Column,
    Needs,
    Note,
    Number,
    Panel,
    Part,
    Table,
    Words,
    shown,
    value,
)
from report.values.measured import Measured, Measurements, no_counterpart, select, worded
from report.values.run_rates import put_run_rates
from report.values.side_rates import (
    CONTEXT,
    RATE,
    absent_rate,
    batches_of,
    rate_of,
    ratio_of,
    setting_of,
)

FIXED_CONTEXT = 1024  # of the comparison with the materialised operator
# Of MHA backends that a reader knows by a name of their own.
ATTENTION_NAME = {"cudnn": "cuDNN’s attention"}


def _matched_ratio(
    records: CampaignRecords, matched: pd.DataFrame, scale: str
) -> dict[str, Measured]:
    full, mha = (select(matched, side=side) for side in ("full", "mha"))
    return ratio_of(full, mha, absent_rate(records, "matched", scale, "full"))


def production(records: CampaignRecords) -> Measurements:
    """Table 15: FlashAttention and FlashRelation at each scale's own context, with memory."""
    found = Measurements()
    measured = select(records.throughput, benchmark="matched")
    for scale in SCALES:
        matched = select(measured, scale=scale)
        none = absent_rate(records, "matched", scale, *PAIRED)
        found.put(scale, {"context": setting_of(matched, "context", none)})
        for side in PAIRED:
            rows, none = select(matched, side=side), absent_rate(records, "matched", scale, side)
            columns = {
                f"throughput.{side}": rate_of(rows, "tokens_per_second", none),
                f"allocated.{side}": rate_of(rows, "allocated_gib", none),
                f"reserved.{side}": rate_of(rows, "reserved_gib", none),
                f"micro_ga.{side}": batches_of(rows, none),
            }
            found.put(scale, columns)
        found.put_statistics(scale, "ratio", _matched_ratio(records, matched, scale))
        put_run_rates(found, records, scale)
    put_setting(found, measured, records.page)
    return found


def efficient(records: CampaignRecords) -> Measurements:
    """Table 5: the materialised operator against FlashRelation, the matched pair, and peers."""
    found = Measurements()
    measured = select(records.throughput, benchmark=("fixed", "matched"))
    for scale in SCALES:
        fixed, matched = (
            select(measured, scale=scale, benchmark=name) for name in ("fixed", "matched")
        )
        none = absent_rate(records, "fixed", scale, "full")
        reference, flash = select(fixed, side="reference"), select(fixed, side="full")
        columns = {
            "fixed.reference": rate_of(reference, "tokens_per_second", none),
            "fixed.flash": rate_of(flash, "tokens_per_second", none),
            "fixed.context": setting_of(fixed, "context", none),
        }
        found.put(scale, columns)
        found.put_statistics(scale, "fixed.speedup", ratio_of(flash, reference, none))
        none = absent_rate(records, "matched", scale, *PAIRED)
        columns = {"matched.context": setting_of(matched, "context", none)}
        for side in PAIRED:
            rows, none = select(matched, side=side), absent_rate(records, "matched", scale, side)
            columns[f"matched.{side}"] = rate_of(rows, "tokens_per_second", none)
        found.put(scale, columns)
        found.put_statistics(scale, "matched.ratio", _matched_ratio(records, matched, scale))
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
            none = absent_rate(records, benchmark, scale, "full")
        found.put(scale, {f"peers.{column}": rate_of(rows, "tokens_per_second", none)})
        found.put_statistics(scale, f"peers.{column}_ratio", ratio_of(flash, rows, none))
    name = other = found[scale, "peers.other", "value"]
    if len(others):
        backend = others.iloc[0]["backend"]
        # Without sources it would rest on every record of its table.
        name = worded(ATTENTION_NAME.get(backend, f"MHA, {backend}"), sources=other.sources)
    found.put(scale, {"peers.name": name})


SPEEDUP = Number(2, "×")
RATIO = Number(3, "×", own=True)
MEMORY = Number(2, significant=3)
SHARE = Number(1, "%")


def _context_notes(cells: pd.DataFrame) -> Iterator[Note]:
    """A fixed context other than the paper’s."""
    contexts = shown(cells, "fixed.context")
    others = [f"{context:.0f} ({row})" for row, context in contexts if context != FIXED_CONTEXT]
    if others:
        yield Note(f"The fixed context of (a) is {', '.join(others)} here.")


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
    notes=(setting_notes, _context_notes),
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
        "campaign’s training runs, in tokens per second of each process: the median update of a "
        "run, its mean over seeds; FR/FA in pairs of one seed, with the 95% interval of their "
        "mean; and the share of (a)’s rate, which includes what is lost where several processes "
        "share a run, or several runs a GPU."
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
    notes=(setting_notes,),
)
