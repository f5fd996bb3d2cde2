"""Language-model results."""

import pandas as pd

from report.compute.further import further_pairs, further_row
from report.compute.quality import (
    ABLATIONS,
    ablation_seeds,
    hybrid_seeds,
    main_results,
    paired_nll,
    structural_ablations,
    token_efficiency,
)
from report.layout import (
    SCALE_ROWS,
    SCALES,
    SEEDS,
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
from report.numbers import MINUS

ROUNDED = Number(4)
FULL_PRECISION = Number(6)
# The paper prints six decimals of some; their 95% intervals over seeds tell no more than four.
DELTA = Number(4, signed=True, own=True)
PAPER_WINDOW = 1.0  # % of the budget (Appendix B.4)
MEAN_ROW = "Mean ± SD"

ABLATION_NAMES = {
    "full": "Full Relation",
    "exchange-only": "Exchange-only transport",
    "raw-x": "Raw-X communication",
    "no-count": "No count calibration",
    "no-givens": "No Givens mixing",
    "single-head": "Single head",
}


def _window_note(cells: pd.DataFrame) -> list[Note]:
    """Over what the loss is smoothed, as the tokens of a crossing depend on it."""
    found = cells[(cells["column"] == "window") & (cells["status"] == "ok")]["value"].unique()
    return [
        Note(
            f"The training loss is smoothed by a trailing mean over {window:g}% of the budget, "
            + ("as in the paper." if window == PAPER_WINDOW else f"{PAPER_WINDOW:g}% in the paper.")
        )
        for window in found
    ]


def _control_note(cells: pd.DataFrame) -> list[Note]:
    """What the measure gives MHA against itself, and which Relation runs end above the target."""
    told = []
    shown = cells[cells["value"].notna()]
    scales = shown["row"].str.split("/").str[0]
    for scale in SCALES:
        of_scale = shown[scales == scale]
        own = of_scale[of_scale["column"] == "own_reduction"]["value"]
        gaps = of_scale[of_scale["column"] == "end_gap"]["value"]
        if len(own):
            early = ", ".join(f"{value:.2f}" for value in own)
            ends = ", ".join(f"{value:+.4f}".replace("-", MINUS) for value in gaps)
            told.append(f"{scale}: {early}% and {ends} nat/token")
    if not told:
        return []
    return [
        Note(
            "A first crossing comes early by the noise of the curves: seed by seed, how early each "
            "MHA run first reaches its own final loss, and how far Relation’s final smoothed loss "
            f"lies above it. {'; '.join(told)}."
        )
    ]


def _epoch_note(cells: pd.DataFrame) -> list[Note]:
    """How often the runs saw their corpus, scale by scale where the table has several."""
    passes: dict[str, list[float]] = {}
    for row, count in cells.loc[cells["column"] == "epochs", ["row", "value"]].itertuples(False):
        scale = row.split("/")[0]
        passes.setdefault(f"{scale} " if scale in SCALES else "", []).append(count)
    told = [
        scale + " to ".join(dict.fromkeys(f"{count:.3g}" for count in (min(found), max(found))))
        for scale, found in passes.items()
    ]
    return [Note(f"Passes over the training windows: {', '.join(told)}.")] if told else []


def _ablation_notes(cells: pd.DataFrame) -> list[Note]:
    """The passes over the texts, and what ran on another backend than the rest."""
    others = cells[(cells["row"] == "setting") & (cells["column"] == "backends")]["text"]
    told = [Note(f"On another backend than the rest: {text}.") for text in others]
    return [*_epoch_note(cells), *told]


def _result_notes(cells: pd.DataFrame) -> list[Note]:
    return [*_window_note(cells), *_epoch_note(cells)]


def _nll_notes(cells: pd.DataFrame) -> list[Note]:
    """The passes over the texts, and which pairs stand apart from the table's own."""
    seeds = cells[cells["column"] == "further.seeds"]
    told = [
        f"{row.split('/')[0]}: {text}"
        for row, text in zip(seeds["row"], seeds["text"], strict=True)
    ]
    if not told:
        return _epoch_note(cells)
    return [
        *_epoch_note(cells),
        Note(
            f"(b) has pairs beyond the paper’s, of seeds apart from those of (a) "
            f"({'; '.join(told)}), to tell a difference from the spread of runs. No verdict counts "
            "them."
        ),
        Note(
            "(b) is over the pairs whose two runs are there: means ± sample standard deviation; "
            "differences with the 95% t interval of their mean; the mean share of tokens spared to "
            "MHA’s final smoothed training loss, none where a pair never reaches it; Pearson’s "
            "correlation of the two runs of a seed with Fisher’s 95% interval. A first crossing of "
            "noisy curves comes early by itself: beside Relation’s stands how early an MHA run "
            "reaches its own final loss, and the paired difference of both.",
            below=True,
        ),
    ]


def _seed_row(key: str) -> Row:
    scale, seed = key.split("/")
    return Row(key, (scale, seed), group=scale)


MAIN_RESULTS = Table(
    label="main-results",
    number="2",
    title="Main validation results",
    summary="Configurations and mean validation NLL of the pairs, and the tokens Relation spares.",
    caption=(
        "Final-validation NLL of the paired MHA and Full Relation models, mean ± sample standard "
        "deviation over seeds. Backbone reads layers / $d_{model}$ / heads × $d_h$ / $d_{ff}$. "
        "Token reduction is the share of the budget that Relation spares to reach the paired MHA "
        "run’s final smoothed training loss, over the seeds that reached it. "
        "Δ is the mean paired difference, with its 95% interval over seeds."
    ),
    stubs=("Scale",),
    rows=SCALE_ROWS,
    panels=(
        Panel(
            "",
            (
                value("Backbone", "backbone", Words("geometry")),
                value("Data/Vocab", "data", Words()),
                value("Ctx", "context", Number()),
                value("Tokens", "tokens", Words()),
                value("MHA NLL ↓", "mha_nll", ROUNDED, "mha"),
                value("Relation NLL ↓", "full_nll", ROUNDED, "full"),
                value("Δ", "delta", DELTA),
                value("Token\nreduction ↑", "token_reduction", Number(1, "%", count=True)),
            ),
        ),
    ),
    measure=main_results,
    notes=_result_notes,
)

STRUCTURAL_ABLATIONS = Table(
    label="structural-ablations",
    number="3",
    title="Structural ablations",
    summary="What each part of Full Relation is worth at 10M.",
    caption=(
        "Structural ablations of Full Relation in the 10M setting; NLL is mean ± sample standard "
        "deviation over seeds, Δ the mean over paired seeds of the difference to Full "
        "Relation, with its 95% interval."
    ),
    stubs=("Metric",),
    rows=(Row("nll", ("NLL ↓",)), Row("delta", ("Δ vs Full",))),
    panels=(
        Panel(
            "",
            (
                value("Full Relation", "full", ROUNDED, "full"),
                value(
                    "Exchange-only\ntransport\n$Y_i = Σ_{j<i} F_{ij} Ĩ_j$", "exchange-only", ROUNDED
                ),
                value("Raw-$X$\ncommunication\n$I = X$", "raw-x", ROUNDED),
                value("No count\ncalibration\n$λ_ℓ = 0$", "no-count", ROUNDED),
                value("Single head\n$H = 1$", "single-head", ROUNDED),
            ),
        ),
    ),
    measure=structural_ablations,
    notes=_ablation_notes,
)

PAIRED_NLL = Table(
    label="app-nll",
    number="11",
    title="Final validation NLL by seed",
    summary="Every pair, its difference, and the means.",
    caption=(
        "Final validation NLL of every pair, in nats per token, and the mean difference with its "
        "95% interval over seeds."
    ),
    stubs=("Scale", "Seed"),
    rows=tuple(
        Row(f"{scale}/{seed}", (scale, label), group=scale)
        for scale in SCALES
        for seed, label in (*((seed, str(seed)) for seed in SEEDS), ("mean", MEAN_ROW))
    ),
    panels=(
        Panel(
            "(a) Pairs of the matrix",
            (
                value("MHA NLL", "mha", FULL_PRECISION, "mha"),
                value("Full Relation NLL", "full", FULL_PRECISION, "full"),
                value("Full−MHA", "delta", DELTA),
            ),
        ),
        Panel(
            "(b) Further pairs",
            (
                Column(
                    "Pairs",
                    (Part("further.pairs", Number()), Part("further.planned", Number())),
                    "{} of {}",
                ),
                value("MHA NLL", "further.mha", ROUNDED, "mha"),
                value("Relation NLL", "further.full", ROUNDED, "full"),
                value("Full−MHA", "further.delta", DELTA),
                value("its SD", "further.spread", ROUNDED),
                value("Pairs\nwon", "further.won", Number()),
                value("Tokens\nspared:\nRelation", "further.spared.full", Number(1, "%"), "full"),
                value("MHA,\nitself", "further.spared.mha", Number(1, "%"), "mha"),
                value("less\nthat", "further.spared.difference", Number(1, "%", signed=True)),
                value("Correlation", "further.correlation", Number(2, signed=True)),
            ),
            rows=tuple(
                Row(further_row(scale), (scale, "further"), group=scale) for scale in SCALES
            ),
            measured=True,
        ),
    ),
    measure=lambda records: paired_nll(records) | further_pairs(records),
    notes=_nll_notes,
    extra_row=_seed_row,
)

TOKEN_EFFICIENCY = Table(
    label="app-token-efficiency",
    number="12",
    title="Token efficiency by seed",
    summary="Where each Relation run meets its MHA run’s final training loss.",
    caption=(
        "Tokens at which each Relation run first reaches the paired MHA run’s final smoothed "
        "training loss, and the share of the budget spared."
    ),
    stubs=("Scale", "Seed"),
    rows=tuple(
        Row(f"{scale}/{seed}", (scale, str(seed)), group=scale)
        for scale in SCALES
        for seed in SEEDS
    ),
    panels=(
        Panel(
            "",
            (
                value("MHA target", "target", FULL_PRECISION, "mha"),
                value("Relation crossing\ntokens", "crossing", Number(2, significant=4), "full"),
                value("Token reduction", "reduction", Number(2, "%")),
            ),
        ),
    ),
    measure=token_efficiency,
    notes=lambda cells: [*_window_note(cells), *_control_note(cells)],
    extra_row=_seed_row,
)

ABLATION_SEEDS = Table(
    label="app-ablation",
    number="13",
    title="Structural ablations by seed",
    summary="Every ablation run and the means.",
    caption=(
        "Final validation NLL of every structural ablation run in the 10M setting; Δ is the mean "
        "paired difference, with its 95% interval over seeds."
    ),
    stubs=("Ablation",),
    rows=tuple(Row(variant, (ABLATION_NAMES[variant],)) for variant in ("full", *ABLATIONS)),
    panels=(
        Panel(
            "",
            (
                *(value(f"Seed {seed}", f"seed_{seed}", FULL_PRECISION) for seed in SEEDS),
                Column(MEAN_ROW, (Part("mean", FULL_PRECISION),)),
                value("Δ vs Full", "delta", DELTA),
            ),
        ),
    ),
    measure=ablation_seeds,
    notes=_ablation_notes,
)

HYBRID = Table(
    label="app-hybrid",
    number="14",
    title="Hybrid Relation by seed",
    summary="Every Hybrid run and the mean.",
    caption="Final validation NLL of the Hybrid, three Full layers among nine Linear in the paper.",
    stubs=("Seed",),
    rows=(*(Row(str(seed), (str(seed),)) for seed in SEEDS), Row("mean", (MEAN_ROW,))),
    panels=(Panel("", (value("Final NLL", "nll", FULL_PRECISION, "full"),)),),
    measure=hybrid_seeds,
    notes=_epoch_note,
    extra_row=lambda key: Row(key, (key,)),
)
