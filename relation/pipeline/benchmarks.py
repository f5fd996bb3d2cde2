"""The systems benchmarks of a campaign, resolved to one specification a job (Appendix F)."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from relation.errors import InputError
from relation.pipeline.matrix import Matrix, taken
from relation.pipeline.sections import Rounds
from relation.spec import GradientsSpec, SystemsSpec, VerificationSpec
from relation.variants import VARIANTS, model_values


def _sides(matrix: Matrix) -> Iterator[tuple[str, str, Iterable[tuple]]]:
    """Every benchmark: its name, its scale, and its sides.

    A side is its name, variant, backends, context, (micro, accumulation), and its position in the
    paper's order where that matters.
    """
    campaign, settings = matrix.campaign, matrix.campaign.systems
    baseline, linear = settings.baseline, campaign.backends
    reference, flash = {"full": "reference"}, {"full": settings.flash}

    for scale, batch in settings.fixed.batches.items():
        context = settings.fixed.context
        operators = {"reference": reference, "full": flash}
        if campaign.compile:
            operators["reference-compiled"] = {"full": "materialised"}
        sides = [(name, "full", on, context, batch) for name, on in operators.items()]
        yield "fixed", scale, sides
    for scale, batch in settings.matched.batches.items():
        context = _known(matrix, "matched.batches", scale).context
        peers = {f"mha-{peer}": {"mha": peer} for peer in settings.matched.peers}
        sides = [("mha", "mha", baseline, context, batch), ("full", "full", flash, context, batch)]
        sides += [(name, "mha", on, context, batch) for name, on in peers.items()]
        yield "matched", scale, sides
    for scale, batch in settings.linear_steady.batches.items():
        side = ("linear", "linear", linear, settings.linear_steady.context, batch)
        yield "linear-steady", scale, [side]

    sides = []
    for position, context in enumerate(settings.linear_long.contexts):
        batch = (1, max(1, campaign.tokens_per_update // context))
        sides.append((f"T={context}", "linear", linear, context, batch, position))
    yield "linear-long", settings.linear_long.scale, sides

    operators = (
        ("mha", "mha", baseline),
        ("full-reference", "full", reference),
        ("full-flash", "full", flash),
        ("linear", "linear", linear),
    )
    contexts = settings.complexity.contexts
    sides = [(*operator, context, (1, 1)) for operator in operators for context in contexts]
    yield "complexity", settings.complexity.scale, sides


def _known(matrix: Matrix, place: str, scale: str):
    """A scale of the campaign. Raises InputError where it has none of that name."""
    if scale not in matrix.campaign.scales:
        raise InputError(
            f"config: campaigns.{matrix.name}.systems.{place} names {scale!r}; "
            f"choose among {', '.join(matrix.campaign.scales)}"
        )
    return matrix.campaign.scales[scale]


def systems_specs(matrix: Matrix) -> tuple[SystemsSpec, ...]:
    """Every benchmark of the whole campaign. Raises InputError for an unknown scale."""
    campaign = matrix.campaign
    specs = []
    for benchmark, scale, sides in _sides(matrix):
        rate = _known(matrix, benchmark.replace("-", "_"), scale).learning_rate
        specs.append(
            SystemsSpec(
                campaign=matrix.name,
                benchmark=benchmark,
                scale=scale,
                sides=[
                    {
                        "side": name,
                        "variant": variant,
                        "backends": backends,
                        "model": model_values(matrix.model(scale, variant)),
                        "context": context,
                        "micro": micro,
                        "accumulation": accumulation,
                        "position": position[0] if position else 0,
                    }
                    for name, variant, backends, context, (micro, accumulation), *position in sides
                ],
                optimizer={**matrix.optimizer(), "learning_rate": rate},
                precision=campaign.precision,
                compile=campaign.compile,
                device=campaign.device,
                **taken(Rounds, campaign.systems),
            )
        )
    return tuple(specs)


# Heads do not meet in the operator: two are enough, and leave room for T x T matrices in FP64.
_VERIFIED_HEADS, _VERIFIED_DRAWS = 2, 16


def verification_spec(matrix: Matrix) -> VerificationSpec:
    """The check of FlashRelation's backend at every scale's T and head width, and of Linear's."""
    campaign = matrix.campaign
    shapes = [
        {
            "scale": name,
            "heads": min(_VERIFIED_HEADS, scale.heads),
            "length": scale.context,
            "width": scale.d_model // scale.heads,
        }
        for name, scale in campaign.scales.items()
    ]
    return VerificationSpec(
        campaign=matrix.name,
        backend=campaign.systems.flash,
        shapes=shapes,
        draws=_VERIFIED_DRAWS,
        precision=campaign.precision,
        device=campaign.device,
        linear=campaign.backends["linear"],
    )


# Two layers hold both pairings of heads. So many tokens and draws lift lambda's gradient above
# BF16's noise, and the T x T matrices in FP64 fit on the GPU.
_CHECKED_LAYERS, _CHECKED_LENGTH, _CHECKED_MICRO, _CHECKED_ACCUMULATION = 2, 512, 8, 2
_CHECKED_DRAWS = {"bf16": 32, "fp32": 16}


def gradients_spec(matrix: Matrix) -> GradientsSpec:
    """The check of the training step's gradients, of every variant that the paper has.

    Each has the widths of the first scale that trains it, or of the first one of all, and as few
    layers as hold its pattern.
    """
    campaign, variants = matrix.campaign, []
    for variant, known in VARIANTS.items():
        scales = campaign.scales
        name = next((n for n, s in scales.items() if variant in s.variants), next(iter(scales)))
        whole, layers = matrix.model(name, variant), max(_CHECKED_LAYERS, len(known.pattern))
        variants.append(
            {
                "variant": variant,
                "scale": name,
                "model": model_values(replace(whole, layout=whole.layout[:layers])),
                "length": min(_CHECKED_LENGTH, scales[name].context),
                "micro": min(_CHECKED_MICRO, scales[name].micro),
                "backends": matrix.backends(variant),
            }
        )
    return GradientsSpec(
        campaign=matrix.name,
        variants=variants,
        accumulation=_CHECKED_ACCUMULATION,
        draws=_CHECKED_DRAWS[campaign.precision],
        precision=campaign.precision,
        compile=campaign.compile,
        device=campaign.device,
    )
