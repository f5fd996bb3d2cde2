"""Associative recall of a campaign, resolved to one specification a mixer."""

from dataclasses import replace

from relation.errors import InputError
from relation.pipeline.matrix import Matrix, taken
from relation.sections import ExecutionSection, RecallTraining
from relation.spec import RecallSpec
from relation.variants import VARIANTS, ModelConfig, model_values

# The layers of a mixer, and the variant whose assumptions and backends its models have. A peer
# replaces the mixers of MHA's decoder. Hybrid's four layers, LLLF, shrink to one of each.
_PEERS = ("gla", "kda")
_MODELS = {
    **{name: (2 * VARIANTS[name].pattern, name) for name in ("mha", "full", "linear")},
    "hybrid": ("LF", "linear"),
    **{name: (2 * VARIANTS["mha"].pattern, "mha") for name in _PEERS},
}


def recall_specs(matrix: Matrix) -> tuple[RecallSpec, ...]:
    """Associative recall of every mixer; none where the campaign has no such section.

    Raises InputError for sequences or models that cannot be.
    """
    section = matrix.campaign.recall
    if section is None:
        return ()
    place = f"config: campaigns.{matrix.name}.recall"
    plateau = matrix.assumptions.plateau_fraction
    _check(place, section, plateau)
    return tuple(
        RecallSpec(
            campaign=matrix.name,
            mixer=mixer,
            models=[model_values(_model(place, matrix, mixer, width)) for width in section.widths],
            optimizer={**matrix.optimizer(), "eps": section.adam_eps},
            plateau_fraction=plateau,
            **(
                taken(RecallTraining, section)
                | taken(ExecutionSection, matrix.campaign)
                | _execution(matrix, mixer)
            ),
        )
        for mixer in section.mixers
    )


def _check(place: str, section: RecallTraining, plateau: float) -> None:
    keys = section.vocabulary // 2 - 1
    for length, pairs in section.tasks:
        if length % 2 or length < 4 * pairs:
            raise InputError(
                f"{place}.tasks: {pairs} pairs and as many queries need an even length of at least "
                f"{4 * pairs}, and {length} is given"
            )
        if pairs > keys:
            raise InputError(
                f"{place}.tasks: {pairs} pairs need as many keys, and a vocabulary of "
                f"{section.vocabulary} has {keys}; give at least {2 * pairs + 2}"
            )
    if section.warmup_updates > plateau * section.updates:
        raise InputError(
            f"{place}: warmup_updates {section.warmup_updates} reach beyond the plateau of "
            f"{section.updates} updates; lower them"
        )


def _model(place: str, matrix: Matrix, mixer: str, width: int) -> ModelConfig:
    section, (layout, variant) = matrix.campaign.recall, _MODELS[mixer]
    like = matrix.model(next(iter(matrix.campaign.scales)), variant)
    shape = {"d_model": width, "heads": section.heads, "d_ff": 2 * width}
    try:
        return replace(like, layout=layout, vocab_size=section.vocabulary, **shape)
    except InputError as error:
        raise InputError(f"{place}: {mixer} at width {width}: {error}") from None


def _execution(matrix: Matrix, mixer: str) -> dict:
    """What a mixer's models run by: a peer's kernels keep out of torch.compile."""
    compiled = matrix.campaign.compile and mixer not in _PEERS
    return {"backends": matrix.backends(_MODELS[mixer][1]), "compile": compiled}
