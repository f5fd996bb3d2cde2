"""The backward pass: the gradient's states, what the information carries, then what selects it."""

import itertools

import torch
import triton

from relation.kernels.common import padded_width
from relation.kernels.linear_relation.fused import weak_gradients_kernel
from relation.kernels.linear_relation.launches import select_launches, split_chunks
from relation.kernels.linear_relation.levels import (
    coordinates_backward_kernel,
    information_backward_kernel,
)
from relation.kernels.linear_relation.prepare import launch_prepare
from relation.kernels.linear_relation.states import launch_states
from relation.kernels.linear_relation.weak import weak_coordinates_kernel, weak_information_kernel


def launch_backward(
    dy: torch.Tensor,
    dfinal: torch.Tensor | None,
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    within: torch.Tensor,
    log_decay: torch.Tensor,
    entry: torch.Tensor,
    tau: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the backward passes on the inputs and what `launch_forward` kept.

    Returns the gradients of p1, p2, info and log_retention, each in its dtype, and dC_0
    (B, H, D, D), FP32.
    """
    B, H, T, D = p1.shape
    launches = select_launches(p1.device, p1.element_size(), D)
    segments = split_chunks(B * H, T, launches)
    scale = 1 / (tau * D**0.5)
    # Formed again: kept, the exponents would double what g takes.
    prepared = launch_prepare(p1, p2, log_retention, scale, launches, segments, backward=True)
    dmet, dinitial = launch_states(p1, p2, dy, prepared, dfinal, launches, segments, backward=True)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=p1.device)

    def tokens(like: torch.Tensor) -> torch.Tensor:
        return empty(B, T, H, D, dtype=like.dtype).transpose(1, 2)

    read_dread, write_dwrite = empty(B, H, T), empty(B, H, T)
    dp1, dp2, dinfo, dlog_retention = tokens(p1), tokens(p2), tokens(info), tokens(log_retention)
    states = within, log_decay, entry, dmet.within, dmet.log_decay, dmet.entry
    inputs = p1, p2, info, log_retention, dy, prepared.selves, prepared.weak, *states
    strides = [x.stride() for x in (p1, p2, info, log_retention, dy, dp1)]
    after = H, T, scale, segments.chunks, segments.length, segments.count
    numbers = *itertools.chain(*strides), *after
    constants, by_chunk = launches.constants(D), (B * H, segments.chunks)
    sums, gradients = (read_dread, write_dwrite), (dp1, dp2, dlog_retention)
    weak_information, weak_coordinates = launches.weak_information, launches.weak_coordinates
    squares, kept = launches.kept_scores
    dscores_t = empty(B, H, segments.chunks if weak_coordinates else 0, *squares, dtype=kept)
    of_chunks = prepared.selves, prepared.weak, prepared.exponents, prepared.halves
    weak_inputs = p1, p2, info, dy, *of_chunks, *states
    weak_numbers = *itertools.chain(*strides[:3], *strides[4:]), *after
    weak_constants = {
        "PRECISION": launches.precision,
        "D": D,
        "CHUNK": launches.chunk,
        "WHOLE": segments.whole,
    }
    with torch.cuda.device_of(p1):
        if launches.weak_gradients is not None:
            weak_gradients_kernel[by_chunk](
                p1, p2, info, log_retention, dy, prepared.weak, *states,
                dp1, dp2, dinfo, dlog_retention, *numbers,
                WIDTH=padded_width(D), WHOLE=segments.whole, **constants,
                **launches.weak_gradients.without_block_d(D),
            )  # fmt: skip
        if weak_information is not None:
            weak_information_kernel[by_chunk](
                *weak_inputs, dinfo, *sums, dscores_t, *weak_numbers,
                KEEPS_DSCORES=weak_coordinates is not None,
                **weak_constants, **weak_information.options(D),
            )  # fmt: skip
        if weak_coordinates is not None:
            options = weak_coordinates.options(D)
            blocks = triton.cdiv(D, options["BLOCK_D"])
            weak_coordinates_kernel[B * H, blocks, segments.chunks](
                *weak_inputs, *sums, dscores_t, *gradients, *weak_numbers,
                **weak_constants, **options,
            )  # fmt: skip
        apart = launches.weak_gradients is not None
        information_backward_kernel[by_chunk](
            *inputs,
            dinfo,
            *sums,
            *numbers,
            SKIP_WEAK=apart or weak_information is not None,
            **constants,
            **launches.information.options(D),
        )
        options = launches.coordinates.options(D)
        coordinates_backward_kernel[*by_chunk, triton.cdiv(D, options["BLOCK_D"])](
            *inputs,
            *sums,
            *gradients,
            *numbers,
            SKIP_WEAK=apart or weak_coordinates is not None,
            **constants,
            **options,
        )
    return dp1, dp2, dinfo, dlog_retention, dinitial
