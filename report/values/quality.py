"""NLL, paired differences, token efficiency: Tables 2, 3 and 11 to 14 (Appendices C, D, E)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pandas as pd

from relation.pipeline.assumptions import NO_OTHER_BACKEND, OTHER_BACKENDS
from relation.spec import RunSpec
from relation.variants import PAIRED
from report.values.architecture import (
    backbone,
    data_and_vocab,
    model_number,
    tokens,
    worded_models,
)
from report.values.frames import CampaignRecords
from report.values.further import FURTHER_PANEL, further_notes, further_pairs
from report.values.layout import (
    SCALES,
    SEEDS,
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
from report.values.measured import (
    Measured,
    Measurements,
    absent,
    is_number,
    logs_beside,
    over_seeds,
    put,
    put_mean,
    put_with_interval,
    select,
    worded,
)
from report.values.numbers import MINUS

ABLATION_NAMES = {
    "full": "Full Relation",
    "exchange-only": "Exchange-only transport",
    "raw-x": "Raw-X communication",
    "no-count": "No count calibration",
    "no-givens": "No Givens mixing",
    "single-head": "Single head",
}
ABLATIONS = tuple(variant for variant in ABLATION_NAMES if variant != "full")
# Of which Table 3 has a column.
PRINTED_ABLATIONS = ("exchange-only", "raw-x", "no-count", "single-head")
ABLATION_SCALE = "10M"
HYBRID_SCALE = "30M"
PAPER_WINDOW = 1.0  # % of the budget (Appendix B.4)
_NLL_ROWS = "final_nll"
_CURVE_ROWS = "loss against tokens, smoothed as efficiency.window says"


def _runs(
    records: CampaignRecords, scale: str, *variants: str, seed: int | None = None
) -> pd.DataFrame:
    """The finished runs of some variants, in their order."""
    keys = {"scale": scale} if seed is None else {"scale": scale, "seed": seed}
    found = select(records.runs[records.runs["final_nll"].notna()], **keys)
    return pd.concat([select(found, variant=variant) for variant in variants])


def _sources(records: CampaignRecords, scale: str, seed: int | None = None) -> tuple[str, ...]:
    """The records of a scale's pairs."""
    return tuple(_runs(records, scale, *PAIRED, seed=seed)["source"])


def final_nll(
    records: CampaignRecords, scale: str, variant: str, seed: int | None = None
) -> Measured:
    """Final validation NLL in nats a token: the mean over the seeds, or that of one seed."""
    runs = _runs(records, scale, variant, seed=seed)
    return over_seeds(
        dict(zip(runs["seed"], runs["final_nll"], strict=True)),
        records.page["seeds"] if seed is None else (),
        tuple(runs["source"]),
        lambda: absent(records, ("run",), scale, (variant,), seed),
        rows=_NLL_ROWS,
    )


def nll_difference(
    records: CampaignRecords, scale: str, variant: str, base: str, seed: int | None = None
) -> Measured:
    """The mean over the paired seeds of variant - base, or the difference of one seed."""
    terms = [final_nll(records, scale, name, seed) for name in (variant, base)]
    found = terms[0] - terms[1]
    if found.value is None:
        return absent(records, ("run",), scale, (variant, base), seed)
    unpaired = sorted(terms[0].by_seed.keys() ^ terms[1].by_seed.keys())
    reason = f"seeds without a pair: {', '.join(map(str, unpaired))}" if unpaired else ""
    return replace(found, reason=reason)


def _all_seeds(records: CampaignRecords, scale: str, *variants: str) -> list[int]:
    """The paper's seeds, the campaign's, and any other that a record here carries."""
    recorded = sorted(int(seed) for seed in _runs(records, scale, *variants)["seed"].unique())
    return list(dict.fromkeys([*SEEDS, *records.page["seeds"], *recorded]))


def _epochs(
    records: CampaignRecords, scale: str, *variants: str, seed: int | None = None
) -> dict[str, Measured]:
    """How often the runs pass over their training windows, under the name of its column, if known.

    Runs of one scale read alike; of those that do not, the most.
    """
    runs = _runs(records, scale, *variants, seed=seed)
    passes = runs["epochs"].dropna()
    if passes.empty:
        return {}
    found = Measured(
        float(passes.max()),
        unit="epochs",
        n=len(passes),
        sources=tuple(runs["source"]),
        rows="epochs",
    )
    return {"epochs": found}


def _window(records: CampaignRecords, sources: tuple[str, ...]) -> Measured:
    """Over how much of the budget the loss is smoothed."""
    share = records.page["efficiency_window"]
    return Measured(share, unit="%", n=1, sources=sources, rows=_CURVE_ROWS)


def main_results(records: CampaignRecords) -> Measurements:
    """Table 2: configuration, mean NLL of the pair, their difference, token reduction."""
    found: Measurements = {}
    for scale in SCALES:
        wordings = {"backbone": backbone, "data": data_and_vocab, "tokens": tokens}
        for column, wording in wordings.items():
            found[scale, column, "value"] = worded_models(records, scale, ("full", "mha"), wording)
        found[scale, "context", "value"] = model_number(records, scale, "full", "context", "tokens")
        for variant in PAIRED:
            put_mean(found, scale, f"{variant}_nll", final_nll(records, scale, variant))
        put_with_interval(found, scale, "delta", nll_difference(records, scale, "full", "mha"))
        put_mean(found, scale, "token_reduction", _mean_reduction(records, scale))
        put(found, scale, _epochs(records, scale, *PAIRED))
        if len(select(records.efficiency, scale=scale)):
            sources = logs_beside(_sources(records, scale))
            found[scale, "window", "value"] = _window(records, sources)
    return found


def _mean_reduction(records: CampaignRecords, scale: str) -> Measured:
    rows = select(records.efficiency, scale=scale)
    reached = rows[rows["reduction"].map(is_number).astype(bool)]

    def none() -> Measured:
        if rows.empty:
            return absent(records, ("run",), scale, PAIRED)
        reason = f"no seed of {len(rows)} reached the paired MHA run's final smoothed loss"
        return Measured(status="not reached", n=len(rows), reason=reason)

    return over_seeds(
        dict(zip(reached["seed"], reached["reduction"], strict=True)),
        records.page["seeds"],
        logs_beside(_sources(records, scale)),
        none,
        unit="%",
        rows=_CURVE_ROWS,
    )


def paired_nll(records: CampaignRecords) -> Measurements:
    """Table 11: final validation NLL of every pair, their means, and the further pairs."""
    found: Measurements = {}
    for scale in SCALES:
        for seed in _all_seeds(records, scale, *PAIRED):
            row = f"{scale}/{seed}"
            put(found, row, {v: final_nll(records, scale, v, seed) for v in PAIRED})
            put(found, row, {"delta": nll_difference(records, scale, "full", "mha", seed)})
            put(found, row, _epochs(records, scale, *PAIRED, seed=seed))
        mean = f"{scale}/mean"
        for variant in PAIRED:
            put_mean(found, mean, variant, final_nll(records, scale, variant))
        put_with_interval(found, mean, "delta", nll_difference(records, scale, "full", "mha"))
    return found | further_pairs(records)


def token_efficiency(records: CampaignRecords) -> Measurements:
    """Table 12: target loss, crossing and token reduction of every pair (section B.4)."""
    found: Measurements = {}
    for scale in SCALES:
        recorded = select(records.efficiency, scale=scale)
        by_seed = {int(row["seed"]): row for row in recorded.to_dict("records")}
        for seed in dict.fromkeys([*SEEDS, *records.page["seeds"], *sorted(by_seed)]):
            row = f"{scale}/{seed}"
            sources = logs_beside(_sources(records, scale, seed))
            if seed in by_seed:
                put(found, row, _crossing(by_seed[seed], sources))
                put(found, row, {"window": _window(records, sources)})
            else:
                none = absent(records, ("run",), scale, PAIRED, seed)
                put(found, row, dict.fromkeys(("target", "crossing", "reduction"), none))
    return found


def _crossing(row: dict[str, object], sources: tuple[str, ...]) -> dict[str, Measured]:
    behind = {"sources": sources, "rows": _CURVE_ROWS}
    never = Measured(
        status="not reached",
        reason="the Relation run's smoothed loss stayed above the target to its last token",
        **behind,
    )
    found = {
        "target": Measured(float(row["target"]), unit="nat/token", n=1, **behind),
        "own_reduction": Measured(row["own_reduction"], unit="%", n=1, sources=sources),
        "end_gap": Measured(row["end_gap"], unit="nat/token", n=1, sources=sources),
    }
    for column, field, unit in (
        ("crossing", "crossing_tokens", "M tokens"),
        ("reduction", "reduction", "%"),
    ):
        reached = is_number(row[field])
        found[column] = Measured(float(row[field]), unit=unit, n=1, **behind) if reached else never
    return found


def structural_ablations(records: CampaignRecords) -> Measurements:
    """Table 3: mean NLL of each ablation at 10M and its difference to Full Relation."""
    found: Measurements = {}
    for variant in ("full", *PRINTED_ABLATIONS):
        put_mean(found, "nll", variant, final_nll(records, ABLATION_SCALE, variant))
        if variant != "full":
            difference = nll_difference(records, ABLATION_SCALE, variant, "full")
            put_with_interval(found, "delta", variant, difference)
    put(found, "nll", _epochs(records, ABLATION_SCALE, "full", *PRINTED_ABLATIONS))
    _put_other_backends(found, records)
    return found


def _put_other_backends(found: Measurements, records: CampaignRecords) -> None:
    """Which variants another backend computes than the others, in the row "setting"."""
    for reading in records.page["assumptions"]:
        if reading["name"] == OTHER_BACKENDS and reading["value"] != NO_OTHER_BACKEND:
            found["setting", "backends", "value"] = worded(reading["value"])


def ablation_seeds(records: CampaignRecords) -> Measurements:
    """Table 13: NLL of every ablation run, their means, and the differences to Full Relation."""
    found: Measurements = {}
    for variant in ("full", *ABLATIONS):
        for seed in _all_seeds(records, ABLATION_SCALE, variant):
            nll = final_nll(records, ABLATION_SCALE, variant, seed)
            found[variant, f"seed_{seed}", "value"] = nll
        put_mean(found, variant, "mean", final_nll(records, ABLATION_SCALE, variant))
        difference = nll_difference(records, ABLATION_SCALE, variant, "full")
        put_with_interval(found, variant, "delta", difference)
        put(found, variant, _epochs(records, ABLATION_SCALE, variant))
    _put_other_backends(found, records)
    return found


def hybrid_seeds(records: CampaignRecords) -> Measurements:
    """Table 14: NLL of every Hybrid run and their mean (Appendix E.2)."""
    found: Measurements = {
        (str(seed), "nll", "value"): final_nll(records, HYBRID_SCALE, "hybrid", seed)
        for seed in _all_seeds(records, HYBRID_SCALE, "hybrid")
    }
    put_mean(found, "mean", "nll", final_nll(records, HYBRID_SCALE, "hybrid"))
    put(found, "mean", _epochs(records, HYBRID_SCALE, "hybrid"))
    return found


ROUNDED = Number(4)
FULL_PRECISION = Number(6)
# The paper prints six decimals of some; a 95% interval over seeds has no more than four.
DELTA = Number(4, signed=True, own=True)
MEAN_ROW = "Mean ± SD"


def _window_notes(cells: pd.DataFrame) -> Iterator[Note]:
    """Over what the loss is smoothed, as the tokens of a crossing depend on it."""
    for window in shown(cells, "window")["value"].unique():
        theirs = "as in the paper" if window == PAPER_WINDOW else f"{PAPER_WINDOW:g}% in the paper"
        yield Note(
            "The training loss is smoothed by a trailing mean over "
            f"{window:g}% of the budget, {theirs}."
        )


def _by_scale(cells: pd.DataFrame, column: str) -> dict[str, list[float]]:
    """The values of a column by scale; those of a row without a scale under ""."""
    found: dict[str, list[float]] = {}
    for row, number in shown(cells, column)[["row", "value"]].itertuples(False):
        scale = row.split("/")[0]
        found.setdefault(scale if scale in SCALES else "", []).append(number)
    return found


def _control_notes(cells: pd.DataFrame) -> Iterator[Note]:
    """What the measure gives MHA against itself, and which Relation runs end above the target."""
    gaps = _by_scale(cells, "end_gap")
    told = []
    for scale, own in _by_scale(cells, "own_reduction").items():
        early = ", ".join(f"{share:.2f}" for share in own)
        ends = ", ".join(f"{gap:+.4f}".replace("-", MINUS) for gap in gaps.get(scale, ()))
        told.append(f"{scale}: {early}% and {ends} nat/token")
    if told:
        yield Note(
            "A first crossing comes early by the noise of the curves: seed by seed, how early each "
            "MHA run first reaches its own final loss, and how far Relation’s final smoothed loss "
            f"lies above it. {'; '.join(told)}."
        )


def _epoch_notes(cells: pd.DataFrame) -> Iterator[Note]:
    """How often the runs saw their corpus, scale by scale where the table has several."""
    told = [
        f"{scale} ".lstrip() + " to ".join(dict.fromkeys(f"{n:.3g}" for n in (min(of), max(of))))
        for scale, of in _by_scale(cells, "epochs").items()
    ]
    if told:
        yield Note(f"Passes over the training windows: {', '.join(told)}.")


def _backend_notes(cells: pd.DataFrame) -> Iterator[Note]:
    """What ran on another backend than the rest."""
    others = cells[(cells["row"] == "setting") & (cells["column"] == "backends")]["text"]
    for text in others:
        yield Note(f"On another backend than the rest: {text}.")


def _notes(*parts: Callable[[pd.DataFrame], Iterator[Note]]) -> Callable[..., list[Note]]:
    return lambda cells: [note for part in parts for note in part(cells)]


def _seed_row(key: str) -> Row:
    scale, seed = key.split("/")
    return Row(key, (scale, seed), group=scale)


def _of_pairs(run: RunSpec) -> bool:
    return run.variant in PAIRED


def _of_ablations(run: RunSpec) -> bool:
    base = run.variant == "full" and run.scale == ABLATION_SCALE
    return base or run.variant in ABLATIONS


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
    panels=block(
        value("Backbone", "backbone", Words("geometry"), setting=True),
        value("Data/Vocab", "data", Words(), setting=True),
        value("Ctx", "context", Number(), setting=True),
        value("Tokens", "tokens", Words(), setting=True),
        value("MHA NLL ↓", "mha_nll", ROUNDED, "mha"),
        value("Relation NLL ↓", "full_nll", ROUNDED, "full"),
        value("Δ", "delta", DELTA),
        value("Token\nreduction ↑", "token_reduction", Number(1, "%", count=True)),
    ),
    measure=main_results,
    needs=Needs(_of_pairs),
    notes=_notes(_window_notes, _epoch_notes),
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
    panels=block(
        value("Full Relation", "full", ROUNDED, "full"),
        value("Exchange-only\ntransport\n$Y_i = Σ_{j<i} F_{ij} Ĩ_j$", "exchange-only", ROUNDED),
        value("Raw-$X$\ncommunication\n$I = X$", "raw-x", ROUNDED),
        value("No count\ncalibration\n$λ_ℓ = 0$", "no-count", ROUNDED),
        value("Single head\n$H = 1$", "single-head", ROUNDED),
    ),
    measure=structural_ablations,
    needs=Needs(_of_ablations),
    notes=_notes(_epoch_notes, _backend_notes),
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
        FURTHER_PANEL,
    ),
    measure=paired_nll,
    needs=Needs(_of_pairs, further=True),
    notes=_notes(_epoch_notes, further_notes),
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
    panels=block(
        value("MHA target", "target", FULL_PRECISION, "mha"),
        value("Relation crossing\ntokens", "crossing", Number(2, significant=4), "full"),
        value("Token reduction", "reduction", Number(2, "%")),
    ),
    measure=token_efficiency,
    needs=Needs(_of_pairs),
    notes=_notes(_window_notes, _control_notes),
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
    panels=block(
        *(value(f"Seed {seed}", f"seed_{seed}", FULL_PRECISION) for seed in SEEDS),
        Column(MEAN_ROW, (Part("mean", FULL_PRECISION),)),
        value("Δ vs Full", "delta", DELTA),
    ),
    measure=ablation_seeds,
    needs=Needs(_of_ablations),
    notes=_notes(_epoch_notes, _backend_notes),
)

HYBRID = Table(
    label="app-hybrid",
    number="14",
    title="Hybrid Relation by seed",
    summary="Every Hybrid run and the mean.",
    caption="Final validation NLL of the Hybrid, three Full layers among nine Linear in the paper.",
    stubs=("Seed",),
    rows=(*(Row(str(seed), (str(seed),)) for seed in SEEDS), Row("mean", (MEAN_ROW,))),
    panels=block(value("Final NLL", "nll", FULL_PRECISION, "full")),
    measure=hybrid_seeds,
    needs=Needs(lambda run: run.variant == "hybrid"),
    notes=_notes(_epoch_notes),
    extra_row=lambda key: Row(key, (key,)),
)
