"""Every reading of the paper that a campaign rests on, as the report lists them.

They are the assumptions, what other keys of the configuration set, and what the code fixes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields

from relation.pipeline.matrix import Matrix
from relation.spec import RunSpec

OTHER_BACKENDS = "backend_overrides"
NO_OTHER_BACKEND = "none"
# What the Triton kernel launches; tests hold it to kernels/linear_relation/launches.py.
_CHUNKS = {
    "flash": "chunks of 64 tokens for 16-bit states, 32 for FP32; tiles, warps and stages by "
    "architecture and head width",
    "chunked": "chunks of 32 tokens",
}


def _words(value: object) -> str:
    """Nested values on one line: "name: key value, key value; name: ..."."""
    if isinstance(value, Mapping):
        nested = any(isinstance(item, Mapping | list) for item in value.values())
        join, mark = ("; ", ": ") if nested else (", ", " ")
        return join.join(f"{key}{mark}{_words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " and ".join(f"({_words(item)})" for item in value)
    return str(value)


def _readings(matrix: Matrix, planned: Iterable[RunSpec]) -> list[tuple[str, str, str]]:
    """Name, value and question of every reading that is no assumption."""
    campaign = matrix.campaign
    scales, systems, linear = campaign.scales, campaign.systems, campaign.backends["linear"]
    batches = ", ".join(f"{n} {micro}/{ga}" for n, (micro, ga) in systems.fixed.batches.items())
    usual: dict[str, str] = {}
    others: dict[str, str] = {}
    for run in planned:
        for operator, backend in run.backends.items():
            if usual.setdefault(operator, backend) != backend:
                others[run.variant] = f"{run.variant} on {backend}"

    def by_scale(read) -> str:
        return ", ".join(f"{name} {read(scale)}" for name, scale in scales.items())

    return [
        (
            "scales.*.budget_tokens",
            by_scale(lambda s: f"{s.budget_tokens:,}"),
            "Predicted tokens of a run; the paper's 100M budget follows from its 1% warm-up",
        ),
        (
            "scales.*.warmup_tokens",
            by_scale(lambda s: f"{s.warmup_tokens:,}"),
            "Tokens of the linear warm-up; its rate counts the tokens after an update, the decay's "
            "those before it, so that no update has rate zero",
        ),
        (
            "scales.*.overrides",
            _words({n: s.overrides for n, s in scales.items() if s.overrides}) or "none",
            "What single variants change of their scale; Hybrid keeps the 30M rate, warm-up, data "
            "and context",
        ),
        (
            "precision",
            campaign.precision,
            "FP32 master weights; under bf16 the model runs in BF16 autocast, and lambda, angles, "
            "A_log, dt_bias and every softmax and normaliser stay FP32",
        ),
        (
            "corpora.*.source",
            _words({name: corpus.source for name, corpus in campaign.corpora.items()}),
            "Where documents come from, at which revision, and how validation is split off",
        ),
        (
            "fixed",
            "byte-level BPE, 256 bytes and one end-of-text token among the entries",
            "The tokenizer, trained on the training split",
        ),
        (
            "fixed",
            "windows of T predicted tokens with stride T, epoch e ordered by (seed, e)",
            "How documents, joined by end-of-text, are packed and ordered",
        ),
        (
            "fixed",
            "trailing mean, linear interpolation, no crossing is left out of the mean",
            "How matched-loss token efficiency is read; efficiency.window sets the window",
        ),
        (
            "fixed",
            "H = 1, d_h = d, no head pair and so no Givens mixing",
            "What the single-head ablation is",
        ),
        (
            "fixed",
            "I = X, the normalised mixer input; W_I does not exist",
            "What the Raw-X ablation is",
        ),
        ("fixed", "full head, base 1e4, rotate-half", "How RoPE pairs channels"),
        (
            "fixed",
            "a metric of every sequence's own flow matrix, then their mean",
            "How the metrics of a head pool the fixed sequences",
        ),
        (
            "fixed",
            "by its rows for flow, distance and sink, by its matrices for spectra",
            "By what heads and layers are count-weighted; rows without history count, as zero",
        ),
        (
            "systems.fixed",
            f"T = {systems.fixed.context}, micro/GA {batches}",
            "Reference against FlashRelation; the reference is the materialised operator run "
            "eagerly inside the otherwise identical model",
        ),
        (
            "systems.linear_long",
            f"{systems.linear_long.scale} geometry, micro 1",
            "Geometry of the long-context sweep, which the paper does not print",
        ),
        (
            "fixed",
            "all tokens over the wall time from the first update, compilation included",
            "What the raw mean throughput is; the paper's number of updates is not printed",
        ),
        (
            "fixed",
            "X + Mixer(RMSNorm(X)), then X + SwiGLU(RMSNorm(X)); RMSNorm before the output, which "
            "is the embedding's transpose; no biases",
            "The decoder around the operator, which the paper does not describe; with this one its "
            "counts of parameters come out exactly",
        ),
        (
            "fixed",
            "drawn by seed and parameter name",
            "Initial weights: those that two variants share start equal",
        ),
        ("fixed", "global L2 norm", "What gradient clipping at 1.0 bounds"),
        (
            OTHER_BACKENDS,
            ", ".join(others.values()) or NO_OTHER_BACKEND,
            "Variants that run on another backend than the others",
        ),
        (
            "fixed",
            "FP32 from the FP32 master weights; validation NLL in the precision of training",
            "In what precision a checkpoint is diagnosed and evaluated",
        ),
        (
            "backends.linear",
            ", ".join(filter(None, (linear, _CHUNKS.get(linear)))),
            "How Linear Relation is executed. The paper's long-context runs use its production "
            "schedule K_L60 (chunk 128, block 64, four warps, one stage, row tile 1); it gives no "
            "kernel to which these belong, and this one has no row tile, so they are not set",
        ),
        (
            "systems.rounds",
            f"{systems.warmup_updates} updates, then {systems.rounds} rounds of "
            f"{systems.measured_updates} more",
            "How a rate is measured: sides that are compared take turns, on a GPU each round's "
            "first update does not count, and the median round is the rate; the paper times "
            "steps in a row",
        ),
    ]


def stated_assumptions(matrix: Matrix, planned: Iterable[RunSpec]) -> tuple[dict, ...]:
    """One mapping (name, value, question) a reading, with the campaign's own values."""
    assumed = matrix.assumptions
    rows = [
        (each.name, getattr(assumed, each.name), each.metadata["description"])
        for each in fields(assumed)
    ]
    rows += _readings(matrix, planned)
    return tuple({"name": n, "value": v, "question": q} for n, v, q in rows)
