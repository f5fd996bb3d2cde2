"""The systems benchmarks of a campaign, resolved to one specification a job (Appendix F)."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from relation.errors import InputError
from relation.geometry import VARIANTS, ModelConfig, model_values
from relation.spec import GradientsSpec, SystemsSpec, VerificationSpec


def _side(
    name: str,
    model: ModelConfig,
    variant: str,
    backends: dict,
    context: int,
    batch,
    position: int = 0,
) -> dict:
    return {
        "side": name,
        "variant": variant,
        "backends": backends,
        "model": model_values(model),
        "context": context,
        "micro": batch[0],
        "accumulation": batch[1],
        "position": position,
    }


def systems_specs(
    campaign: Mapping,
    name: str,
    optimizer: dict,
    model: Callable[[str, str], ModelConfig],
) -> tuple[SystemsSpec, ...]:
    """Every benchmark of the whole campaign; `model(scale, variant)` builds the models."""
    settings = campaign["systems"]
    baseline, flash, linear = settings["baseline"], settings["flash"], campaign["backends"]
    specs: list[SystemsSpec] = []

    def add(benchmark: str, scale: str, sides: list[dict], **rest) -> None:
        specs.append(
            SystemsSpec(
                campaign=name,
                benchmark=benchmark,
                scale=scale,
                sides=sides,
                warmup_updates=settings["warmup_updates"],
                measured_updates=settings["measured_updates"],
                rounds=settings["rounds"],
                optimizer={
                    **optimizer,
                    "learning_rate": campaign["scales"][scale]["learning_rate"],
                },
                precision=campaign["precision"],
                compile=campaign["compile"],
                device=campaign["device"],
                **rest,
            )
        )

    def batches(section: str) -> dict:
        given = settings[section]["batches"]
        for scale in given:
            if scale not in campaign["scales"]:
                raise InputError(f"config: systems.{section}.batches names unknown scale {scale!r}")
        return given

    for scale, batch in batches("fixed").items():
        context, full = settings["fixed"]["context"], model(scale, "full")
        sides = [
            _side("reference", full, "full", {"full": "reference"}, context, batch),
            _side("full", full, "full", {"full": flash}, context, batch),
        ]
        if campaign["compile"]:
            compiled = {"full": "materialised"}
            sides.append(_side("reference-compiled", full, "full", compiled, context, batch))
        add("fixed", scale, sides)
    for scale, batch in batches("matched").items():
        context = campaign["scales"][scale]["context"]
        mha = model(scale, "mha")
        sides = [
            _side("mha", mha, "mha", baseline, context, batch),
            _side("full", model(scale, "full"), "full", {"full": flash}, context, batch),
        ]
        for peer in settings["matched"]["peers"]:
            sides.append(_side(f"mha-{peer}", mha, "mha", {"mha": peer}, context, batch))
        add("matched", scale, sides)
    for scale, batch in batches("linear_steady").items():
        context = settings["linear_steady"]["context"]
        add(
            "linear-steady",
            scale,
            [_side("linear", model(scale, "linear"), "linear", linear, context, batch)],
        )

    long, complexity = settings["linear_long"], settings["complexity"]
    for section, scale in (("linear_long", long["scale"]), ("complexity", complexity["scale"])):
        if scale not in campaign["scales"]:
            raise InputError(f"config: systems.{section}.scale is {scale!r}, not a scale")
    sides = [
        _side(
            f"T={context}",
            model(long["scale"], "linear"),
            "linear",
            linear,
            context,
            (1, max(1, campaign["tokens_per_update"] // context)),
            position,
        )
        for position, context in enumerate(long["contexts"])
    ]
    add("linear-long", long["scale"], sides)

    scale = complexity["scale"]
    operators = (
        ("mha", "mha", baseline),
        ("full-reference", "full", {"full": "reference"}),
        ("full-flash", "full", {"full": flash}),
        ("linear", "linear", linear),
    )
    sides = [
        _side(operator, model(scale, variant), variant, backends, context, (1, 1))
        for operator, variant, backends in operators
        for context in complexity["contexts"]
    ]
    add("complexity", scale, sides)
    return tuple(specs)


# Heads do not meet in the operator: two are enough, and leave room for T x T matrices in FP64.
_VERIFIED_HEADS, _VERIFIED_DRAWS = 2, 16


def verification_spec(campaign: Mapping, name: str) -> VerificationSpec:
    """The check of FlashRelation's backend at every scale's T and head width, and of Linear's."""
    shapes = [
        {
            "scale": scale,
            "heads": min(_VERIFIED_HEADS, values["heads"]),
            "length": values["context"],
            "width": values["d_model"] // values["heads"],
        }
        for scale, values in campaign["scales"].items()
    ]
    return VerificationSpec(
        campaign=name,
        backend=campaign["systems"]["flash"],
        shapes=shapes,
        draws=_VERIFIED_DRAWS,
        precision=campaign["precision"],
        device=campaign["device"],
        linear=campaign["backends"]["linear"],
    )


# Two layers hold both pairings of heads. So many tokens and draws lift lambda's gradient above
# BF16's noise, and the T x T matrices in FP64 fit on the GPU.
_CHECKED_LAYERS, _CHECKED_LENGTH, _CHECKED_MICRO, _CHECKED_ACCUMULATION = 2, 512, 8, 2
_CHECKED_DRAWS = {"bf16": 32, "fp32": 16}


def gradients_spec(
    campaign: Mapping, name: str, model: Callable[[str, str], ModelConfig]
) -> GradientsSpec:
    """The check of the training step's gradients, of every variant that the paper has.

    Each has the widths of the first scale that trains it, or of the first one of all, and as few
    layers as hold its pattern.
    """
    variants = []
    for variant, known in VARIANTS.items():
        scales = campaign["scales"]
        scale = next((s for s, v in scales.items() if variant in v["variants"]), next(iter(scales)))
        whole, layers = model(scale, variant), max(_CHECKED_LAYERS, len(known.pattern))
        overrides = campaign.get("backend_overrides", {}).get(variant, {})
        variants.append(
            {
                "variant": variant,
                "scale": scale,
                "model": model_values(replace(whole, layout=whole.layout[:layers])),
                "length": min(_CHECKED_LENGTH, scales[scale]["context"]),
                "micro": min(_CHECKED_MICRO, scales[scale]["micro"]),
                "backends": {**campaign["backends"], **overrides},
            }
        )
    return GradientsSpec(
        campaign=name,
        variants=variants,
        accumulation=_CHECKED_ACCUMULATION,
        draws=_CHECKED_DRAWS[campaign["precision"]],
        precision=campaign["precision"],
        compile=campaign["compile"],
        device=campaign["device"],
    )
