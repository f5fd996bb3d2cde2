"""Readings of the paper that the code fixes: the decoder around the operator, and how it is read.

They stand apart from relation/config/readings.py, which benchmarks and verification import: a
sentence added there would make their records those of other code.
"""

from relation.config import Campaign

OTHER_BACKENDS = "backend_overrides"
NO_OTHER_BACKEND = "none"
LINEAR_LAUNCHES = "backends.linear"
# What the Triton kernel launches; tests hold it to kernels/linear_relation/launches.py.
_CHUNKS = {
    "flash": "chunks of 64 tokens for 16-bit states, 32 for FP32; tiles, warps and stages by "
    "architecture and head width",
    "chunked": "chunks of 32 tokens",
}


def fixed_readings(campaign: Campaign) -> tuple[dict, ...]:
    """One mapping (name, value, question) a reading."""
    usual: dict[str, str] = {}
    others: dict[str, str] = {}
    for run in campaign.planned_runs:
        for operator, backend in run.backends.items():
            if usual.setdefault(operator, backend) != backend:
                others[run.variant] = f"{run.variant} on {backend}"
    timed = next((s for s in campaign.planned_systems if s.benchmark == "matched"), None)
    readings = [
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
    ]
    linear = campaign.verification.linear
    readings.append(
        (
            LINEAR_LAUNCHES,
            ", ".join(filter(None, (linear, _CHUNKS.get(linear)))),
            "How Linear Relation is executed. The paper's long-context runs use its production "
            "schedule K_L60 (chunk 128, block 64, four warps, one stage, row tile 1); it gives no "
            "kernel to which these belong, and this one has no row tile, so they are not set",
        )
    )
    if timed is not None:
        readings.append(
            (
                "systems.rounds",
                f"{timed.warmup_updates} updates, then {timed.rounds} rounds of "
                f"{timed.measured_updates} more",
                "How a rate is measured: sides that are compared take turns, on a GPU each round's "
                "first update does not count, and the median round is the rate; the paper times "
                "steps in a row",
            )
        )
    return tuple({"name": n, "value": v, "question": q} for n, v, q in readings)
