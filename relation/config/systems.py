"""The systems benchmarks of a campaign, resolved to one specification a job (Appendix F)."""

from collections.abc import Callable, Mapping

from relation.errors import InputError
from relation.geometry import ModelConfig, model_values
from relation.spec import SystemsSpec


def _side(model: ModelConfig, variant: str, backends: dict, context: int, batch, position=0):
    return {
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
            _side(full, "full", {"full": "reference"}, context, batch),
            _side(full, "full", {"full": flash}, context, batch),
        ]
        add("fixed", scale, sides)
    for scale, batch in batches("matched").items():
        context = campaign["scales"][scale]["context"]
        sides = [
            _side(model(scale, "mha"), "mha", baseline, context, batch),
            _side(model(scale, "full"), "full", {"full": flash}, context, batch),
        ]
        add("matched", scale, sides)
    for scale, batch in batches("linear_steady").items():
        context = settings["linear_steady"]["context"]
        add(
            "linear-steady",
            scale,
            [_side(model(scale, "linear"), "linear", linear, context, batch)],
        )

    long, complexity = settings["linear_long"], settings["complexity"]
    for section, scale in (("linear_long", long["scale"]), ("complexity", complexity["scale"])):
        if scale not in campaign["scales"]:
            raise InputError(f"config: systems.{section}.scale is {scale!r}, not a scale")
    sides = [
        _side(
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
        {**_side(model(scale, variant), variant, backends, context, (1, 1)), "operator": operator}
        for operator, variant, backends in operators
        for context in complexity["contexts"]
    ]
    add("complexity", scale, sides, repeats=complexity["repeats"])
    return tuple(specs)
