"""Systems measurements."""

import pandas as pd

from report.compute.run_rates import SPANS
from report.compute.systems import (
    PAPER_CONTEXTS,
    TILED,
    efficient,
    linear_long,
    linear_steady,
    production,
)
from report.layout import (
    SCALE_ROWS,
    Column,
    Note,
    Number,
    Panel,
    Part,
    Row,
    Table,
    Words,
    value,
)

RATE = Number(grouped=True, significant=4, own=True)
SPEEDUP = Number(2, "×")
RATIO = Number(3, "×", own=True)
MEMORY = Number(2, significant=3)
SHARE = Number(1, "%")
CONTEXT = Number()
PAPER_PRECISION = "BF16"


# Of each setting: its key, its sentence, and whether that stands below the table, as what a value
# was measured under does; what a value means stands before it.
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


def settings(cells: pd.DataFrame) -> list[Note]:
    """What the device was and did while the campaign measured, one sentence each."""
    found = cells[cells["row"] == "setting"].set_index("column")["text"]
    notes = [
        Note(sentence.format(found[key]), below)
        for key, sentence, below in _SETTINGS
        if key in found
    ]
    if "precision" in found:
        notes.insert(0, Note(_measured(found), below=found["precision"] == PAPER_PRECISION))
    if "random" in found.get("tokens", ""):
        notes.append(Note("Measured on random tokens: the corpus was not prepared."))
    return notes


def _measured(found: pd.Series) -> str:
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
    notes = []
    fixed = cells[(cells["column"] == "fixed.context") & (cells["status"] == "ok")]
    differing = fixed[fixed["value"] != 1024]
    if len(differing):
        contexts = ", ".join(
            f"{context:.0f} ({row})"
            for row, context in zip(differing["row"], differing["value"], strict=True)
        )
        notes.append(Note(f"The fixed context of (a) is {contexts} here."))
    return settings(cells) + notes


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
    stubs=("Scale",),
    rows=SCALE_ROWS,
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
    stubs=("Scale",),
    rows=SCALE_ROWS,
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
    stubs=("Scale",),
    rows=SCALE_ROWS,
    panels=(
        Panel(
            "",
            (
                value("$T$", "context", CONTEXT),
                value("Micro/GA", "micro_ga", Words()),
                value("Steady-state tok/s", "steady", RATE, "full"),
                value("Raw mean tok/s", "raw", RATE, "full"),
            ),
        ),
    ),
    measure=linear_steady,
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
    panels=(
        Panel(
            "",
            (
                value("Micro", "micro", Number()),
                value("GA", "accumulation", Number()),
                value("Status", "status", Words()),
                value("tok/s", "throughput", RATE),
                value("Allocated GiB", "allocated", Number(3, significant=3)),
            ),
        ),
    ),
    measure=linear_long,
    systems=True,
    notes=_notes,
    extra_row=lambda key: Row(key, (f"{int(key):,}",), group="campaign"),
    label_column="context",
)
