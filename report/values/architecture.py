"""Geometry, data and budget of the planned models, worded as the paper words them: Table 6."""

from collections.abc import Callable, Mapping
from typing import Any

from report.values.frames import CampaignRecords
from report.values.layout import SCALES, Column, Number, Part, Table, Words, block, value
from report.values.measured import Measured, Measurements, absent, select, worded
from report.values.numbers import quantity

Model = Mapping[str, Any]


def backbone(model: Model) -> str:
    """Layers / d_model / heads x head width / d_ff, as Table 2 prints it."""
    return f"{model['layers']}L/{_widths(model)}"


def geometry(model: Model) -> str:
    """The same without the letter, as the appendix prints it."""
    return f"{model['layers']}/{_widths(model)}"


def _widths(model: Model) -> str:
    return f"{model['d_model']}/{model['heads']}x{model['head_dim']}/{model['d_ff']}"


def vocab(model: Model) -> str:
    """4K for 4,096; a vocabulary that is no multiple of 1,024 in full."""
    size = int(model["vocab"])
    return f"{size // 1024}K" if size % 1024 == 0 else str(size)


def data(model: Model) -> str:
    """The corpus by its full title."""
    return str(model["data_title"])


def data_and_vocab(model: Model) -> str:
    """Corpus and vocabulary; Table 2 prints the SmolLM corpus by its name alone."""
    return f"{data(model).removesuffix(' corpus')}/{vocab(model)}"


def tokens(model: Model) -> str:
    """The training budget with at most four significant digits: 150M, 1.071B, 98.3K."""
    return quantity(int(model["budget_tokens"]))


def micro_ga(model: Model) -> str:
    """Sequences of a micro-batch / micro-batches of an update."""
    return f"{model['micro']}/{model['accumulation']}"


def planned_model(records: CampaignRecords, scale: str, variant: str) -> Model | None:
    """The inventory's row of a model; None where the campaign plans none."""
    found = select(records.models, scale=scale, variant=variant).to_dict("records")
    return found[0] if found else None


def no_model(records: CampaignRecords, scale: str, variants: tuple[str, ...]) -> Measured:
    """Why the inventory has no such model: it is not there itself, or the campaign plans none."""
    if records.models.empty:
        return absent(records, ("models",))
    return absent(records, ("run",), scale, variants)


def _behind(model: Model) -> dict[str, Any]:
    rows = f"scale = {model['scale']}, variant = {model['variant']}"
    return {"sources": (str(model["source"]),), "rows": rows}


def worded_models(
    records: CampaignRecords, scale: str, variants: tuple[str, ...], wording: Callable[[Model], str]
) -> Measured:
    """The wording of the first of ``variants`` that the campaign plans at this scale."""
    for variant in variants:
        model = planned_model(records, scale, variant)
        if model is not None:
            return worded(wording(model), **_behind(model))
    return no_model(records, scale, variants)


def model_number(
    records: CampaignRecords, scale: str, variant: str, field: str, unit: str
) -> Measured:
    """A number of a planned model: its context, its parameters."""
    model = planned_model(records, scale, variant)
    if model is None:
        return no_model(records, scale, (variant,))
    return Measured(float(model[field]), unit=unit, n=1, **_behind(model))


def configurations(records: CampaignRecords) -> Measurements:
    """Table 6: parameters are counted on the built models, not by formula."""
    found = Measurements()
    for scale in SCALES:
        for variant in ("mha", "full"):
            found[scale, f"params.{variant}", "value"] = model_number(
                records, scale, variant, "parameters", "parameters"
            )
            found[scale, f"micro_ga.{variant}", "value"] = worded_models(
                records, scale, (variant,), micro_ga
            )
        for column, wording in (
            ("geometry", geometry),
            ("vocab", vocab),
            ("data", data),
            ("tokens", tokens),
        ):
            found[scale, column, "value"] = worded_models(records, scale, ("full", "mha"), wording)
        found[scale, "context", "value"] = model_number(records, scale, "full", "context", "tokens")
    return found


CONFIGURATIONS = Table(
    label="app-configs",
    number="6",
    title="Model configurations",
    summary="Parameters, geometry, data and budget of every pair.",
    caption=(
        "Decoder configurations. The campaign’s parameters are counted on the models it builds. "
        "An update of the paper takes 131,072 tokens at every scale."
    ),
    panels=block(
        Column(
            "Params\nMHA/Rel.",
            tuple(Part(f"params.{variant}", Number(grouped=True)) for variant in ("mha", "full")),
            "{}/{}",
            operator="both",
        ),
        value("$L/d/H×d_h/d_{ff}$", "geometry", Words("geometry")),
        value("Vocab", "vocab", Words()),
        value("Data", "data", Words()),
        value("$T$", "context", Number()),
        value("Train", "tokens", Words()),
        Column(
            "Micro/GA",
            tuple(Part(f"micro_ga.{variant}", Words()) for variant in ("mha", "full")),
            "MHA {}; Rel. {}",
            merged=True,
        ),
    ),
    measure=configurations,
)
