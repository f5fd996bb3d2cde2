"""The forward pass: prepare, states between chunks, then every chunk's output."""

import torch

from relation.kernels.common import empty_tokens
from relation.kernels.linear_relation.general import output_kernel
from relation.kernels.linear_relation.launches import Call
from relation.kernels.linear_relation.prepare import prepare_kernel
from relation.kernels.linear_relation.states import carry_states
from relation.kernels.linear_relation.tiles import Prepared, States, strided
from relation.kernels.linear_relation.weak import weak_output_kernel

Kept = tuple[torch.Tensor, ...]


def empty_states(call: Call, like: torch.Tensor) -> States:
    """Memory for the states that chunks meet. A segment of one chunk has no part of its own."""
    D, inner = call.width, call.chunks if call.segment_chunks > 1 else 0
    shapes = (inner, D, D), (inner, D), (call.segments, D, D)
    return States(*(like.new_empty(call.heads, *x, dtype=torch.float32) for x in shapes))


def empty_kept(p1: torch.Tensor, p2: torch.Tensor) -> Kept:
    """Memory for what the backward pass takes beside the inputs: `Prepared`, then `States`."""
    call, (B, H, T, D) = Call.of(p1, p2), p1.shape
    wide = torch.float64 if call.launches.precision == "ieee" else torch.float32
    prepared = Prepared(
        selves=p1.new_empty(B, H, 3, T, dtype=torch.float32),
        weak=p1.new_empty(B, H, call.chunks, dtype=torch.uint8),
        exponents=p1.new_empty(B, H, T, D, dtype=wide),
        halves=p1.new_empty(B, H, call.chunks, 2, D, dtype=wide),
    )
    return *prepared, *empty_states(call, p1)


def launch_forward(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    state: torch.Tensor | None,
    tau: float,
) -> tuple[torch.Tensor, torch.Tensor, Kept]:
    """Run the forward passes: y (B, H, T, D) in info's dtype, and C_T (B, H, D, D), FP32.

    After these two comes what the backward pass takes (`empty_kept`).
    """
    (B, H, T, D), call = p1.shape, Call.of(p1, p2)
    launches, kept = call.launches, empty_kept(p1, p2)
    prepared, met, y = Prepared(*kept[:4]), States(*kept[4:]), empty_tokens(info, H)
    weak_output = launches.weak_output
    with torch.cuda.device_of(p1):
        prepare_kernel[(B * H, call.chunks)](
            *map(strided, (p1, p2, log_retention)), prepared, H, T, 1 / (tau * D**0.5), call.chunks,
            SEES_WEAK=weak_output is not None,
            **call.options(launches.prepare, p1, p2, log_retention),
        )  # fmt: skip
        final = carry_states(call, p1, p2, info, prepared, state, met, backward=False)
        given = *map(strided, (p1, p2, info, y)), prepared, met, H, T, call.chunks
        segments = call.segment_chunks, call.segments
        if weak_output is not None:
            options = call.options(weak_output, p1, p2, info, y)
            weak_output_kernel[(B * H, call.chunks)](*given, *segments, **options)
        programs, share = call.share_out(launches.output)
        options = call.options(launches.output, p1, p2, info, y) | share
        output_kernel[(programs,)](*given, B * H * call.chunks, *segments, **options)
    return y, final, kept
