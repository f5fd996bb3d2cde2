"""The systems benchmarks of a campaign, resolved to one specification a job (Appendix F)."""

from dataclasses import replace

from relation.errors import InputError
from relation.pipeline.matrix import Matrix, taken
from relation.pipeline.systems import Side
from relation.sections import Rounds
from relation.spec import GradientsSpec, SystemsSpec, VerificationSpec
from relation.variants import VARIANTS, model_values


def systems_specs(matrix: Matrix) -> tuple[SystemsSpec, ...]:
    """Every benchmark of the whole campaign. Raises InputError for an unknown scale."""
    campaign = matrix.campaign
    specs = []
    for benchmark, section in campaign.systems.benchmarks:
        for scale in section.scales:
            if scale not in campaign.scales:
                raise InputError(
                    f"config: campaigns.{matrix.name}.systems.{benchmark} names {scale!r}; "
                    f"choose among {', '.join(campaign.scales)}"
                )
            sides = section.sides(campaign, scale)
            learning_rate = campaign.scales[scale].learning_rate
            specs.append(
                SystemsSpec(
                    campaign=matrix.name,
                    benchmark=benchmark.replace("_", "-"),
                    scale=scale,
                    sides=[_resolved(matrix, scale, side) for side in sides],
                    optimizer={**matrix.optimizer(), "learning_rate": learning_rate},
                    precision=campaign.precision,
                    compile=campaign.compile,
                    device=campaign.device,
                    **taken(Rounds, campaign.systems),
                )
            )
    return tuple(specs)


def _resolved(matrix: Matrix, scale: str, side: Side) -> dict:
    """A side as its specification has it."""
    micro, accumulation = side.batch
    return {
        "side": side.name,
        "variant": side.variant,
        "backends": side.backends,
        "model": model_values(matrix.model(scale, side.variant)),
        "context": side.context,
        "micro": micro,
        "accumulation": accumulation,
        "position": side.position,
    }


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


# Two layers hold both pairings of heads.
_CHECKED_LAYERS, _CHECKED_ACCUMULATION = 2, 2
# T, micro-batch and draws at most. In BF16 so many lift lambda's gradient above the noise, and the
# T x T matrices in FP64 fit on the GPU; FP32's noise is 2^-16 of that, so few tokens do.
_CHECKED = {"bf16": (512, 8, 32), "fp32": (32, 2, 16)}


def gradients_spec(matrix: Matrix) -> GradientsSpec:
    """The check of the training step's gradients, of every variant that the paper has.

    Each has the widths of the first scale that trains it, or of the first one of all, and as few
    layers as hold its pattern.
    """
    campaign, variants = matrix.campaign, []
    length, micro, draws = _CHECKED[campaign.precision]
    for variant, known in VARIANTS.items():
        scales = campaign.scales
        name = next((n for n, s in scales.items() if variant in s.variants), next(iter(scales)))
        whole, layers = matrix.model(name, variant), max(_CHECKED_LAYERS, len(known.pattern))
        variants.append(
            {
                "variant": variant,
                "scale": name,
                "model": model_values(replace(whole, layout=whole.layout[:layers])),
                "length": min(length, scales[name].context),
                "micro": min(micro, scales[name].micro),
                "backends": matrix.backends(variant),
            }
        )
    return GradientsSpec(
        campaign=matrix.name,
        variants=variants,
        accumulation=_CHECKED_ACCUMULATION,
        draws=draws,
        precision=campaign.precision,
        compile=campaign.compile,
        device=campaign.device,
    )
