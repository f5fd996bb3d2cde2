"""Ablations and the Hybrid: Tables 3, 13 and 14 (Appendices D and E.2)."""

from collections.abc import Iterator

import pandas as pd

from relation.pipeline.assumptions import NO_OTHER_BACKEND, OTHER_BACKENDS
from relation.spec import RunSpec
from relation.variants import ABLATIONS, VARIANTS
from report.values.frames import CampaignRecords
from report.values.layout import (
    SEEDS,
    Column,
    Needs,
    Note,
    Part,
    Row,
    Table,
    block,
    settings,
    value,
)
from report.values.measured import Measurements, worded
from report.values.quality import (
    DELTA,
    FULL_PRECISION,
    MEAN_ROW,
    ROUNDED,
    all_seeds,
    epoch_notes,
    epochs,
    final_nll,
    nll_difference,
)

# Of which Table 3 has a column.
PRINTED_ABLATIONS = ("exchange-only", "raw-x", "no-count", "single-head")
ABLATION_SCALE = "10M"
HYBRID_SCALE = "30M"


def structural_ablations(records: CampaignRecords) -> Measurements:
    """Table 3: mean NLL of each ablation at 10M and its difference to Full Relation."""
    found = Measurements()
    for variant in ("full", *PRINTED_ABLATIONS):
        found.put_mean("nll", variant, final_nll(records, ABLATION_SCALE, variant))
        if variant != "full":
            difference = nll_difference(records, ABLATION_SCALE, variant, "full")
            found.put_with_interval("delta", variant, difference)
    found.put("nll", epochs(records, ABLATION_SCALE, "full", *PRINTED_ABLATIONS))
    _put_other_backends(found, records)
    return found


def _put_other_backends(found: Measurements, records: CampaignRecords) -> None:
    """Which variants another backend computes than the others, in the row "setting"."""
    for reading in records.page["assumptions"]:
        if reading["name"] == OTHER_BACKENDS and reading["value"] != NO_OTHER_BACKEND:
            found["setting", "backends", "value"] = worded(reading["value"])


def ablation_seeds(records: CampaignRecords) -> Measurements:
    """Table 13: NLL of every ablation run, their means, and the differences to Full Relation."""
    found = Measurements()
    for variant in ("full", *ABLATIONS):
        for seed in all_seeds(records, ABLATION_SCALE, variant):
            nll = final_nll(records, ABLATION_SCALE, variant, seed)
            found[variant, f"seed_{seed}", "value"] = nll
        found.put_mean(variant, "mean", final_nll(records, ABLATION_SCALE, variant))
        difference = nll_difference(records, ABLATION_SCALE, variant, "full")
        found.put_with_interval(variant, "delta", difference)
        found.put(variant, epochs(records, ABLATION_SCALE, variant))
    _put_other_backends(found, records)
    return found


def hybrid_seeds(records: CampaignRecords) -> Measurements:
    """Table 14: NLL of every Hybrid run and their mean (Appendix E.2)."""
    found = Measurements()
    for seed in all_seeds(records, HYBRID_SCALE, "hybrid"):
        found.put(str(seed), {"nll": final_nll(records, HYBRID_SCALE, "hybrid", seed)})
    found.put_mean("mean", "nll", final_nll(records, HYBRID_SCALE, "hybrid"))
    found.put("mean", epochs(records, HYBRID_SCALE, "hybrid"))
    return found


def _backend_notes(cells: pd.DataFrame) -> Iterator[Note]:
    """What ran on another backend than the rest."""
    others = settings(cells).get("backends")
    if others:
        yield Note(f"On another backend than the rest: {others}.")


def _of_ablations(run: RunSpec) -> bool:
    base = run.variant == "full" and run.scale == ABLATION_SCALE
    return base or run.variant in ABLATIONS


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
    notes=(epoch_notes, _backend_notes),
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
    rows=tuple(Row(variant, (VARIANTS[variant].title,)) for variant in ("full", *ABLATIONS)),
    panels=block(
        *(value(f"Seed {seed}", f"seed_{seed}", FULL_PRECISION) for seed in SEEDS),
        Column(MEAN_ROW, (Part("mean", FULL_PRECISION),)),
        value("Δ vs Full", "delta", DELTA),
    ),
    measure=ablation_seeds,
    needs=Needs(_of_ablations),
    notes=(epoch_notes, _backend_notes),
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
    notes=(epoch_notes,),
    extra_row=lambda key: Row(key, (key,)),
)
