"""The backward pass: the gradient's states, what the information carries, then what selects it."""

from typing import NamedTuple

import torch

from relation.kernels.common import empty_tokens
from relation.kernels.linear_relation.forward import Kept, empty_states
from relation.kernels.linear_relation.general import coordinates_kernel, information_kernel
from relation.kernels.linear_relation.launches import Call, cdiv
from relation.kernels.linear_relation.states import carry_states
from relation.kernels.linear_relation.tiles import Prepared, States, strided
from relation.kernels.linear_relation.weak import (
    weak_coordinates_kernel,
    weak_gradients_kernel,
    weak_information_kernel,
)


class Between(NamedTuple):
    """What the passes over information leave for those over coordinates.

    read_dread, write_dwrite: (B, H, T), <r, dr> and <w, dw>. dscores: a chunk's <dY_t, I_j>, FP32
    or two BF16 parts. dread, dwrite: (B, H, T, D), what the states give to dr and dw. dtotal:
    (B, H, chunks, D), what a chunk gives to all of its dg.
    """

    read_dread: torch.Tensor
    write_dwrite: torch.Tensor
    dscores: torch.Tensor
    dread: torch.Tensor
    dwrite: torch.Tensor
    dtotal: torch.Tensor

    @classmethod
    def empty(cls, call: Call, p1: torch.Tensor) -> "Between":
        B, H, T, D = p1.shape
        square = call.chunks, call.launches.chunk, call.launches.chunk
        shapes = (T,), (T,), square, (T, D), (T, D), (call.chunks, D)
        return cls(*(p1.new_empty(B, H, *shape, dtype=torch.float32) for shape in shapes))


def launch_backward(
    dy: torch.Tensor,
    dfinal: torch.Tensor | None,
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    kept: Kept,
    tau: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the backward passes on the inputs and what `launch_forward` kept.

    Returns the gradients of p1, p2, info and log_retention, each in its dtype, and dC_0
    (B, H, D, D), FP32.
    """
    (B, H, T, D), call = p1.shape, Call.of(p1, p2)
    launches, prepared, met = call.launches, Prepared(*kept[:4]), States(*kept[4:])
    dmet, between = empty_states(call, p1), Between.empty(call, p1)
    # Heads that share p2 and info have gradients of their own until the end: of one chunk some may
    # be weak and others not, and no kernel has both.
    dp1, dp2, dinfo, dg = (empty_tokens(x, H) for x in (p1, p2, info, log_retention))
    scale, all_chunks = 1 / (tau * D**0.5), B * H * call.chunks
    segments = call.segment_chunks, call.segments
    of_information = *map(strided, (p1, p2, info, dy, dinfo)), prepared, met, dmet, between, H, T
    of_coordinates = (
        *map(strided, (p1, p2)),
        dp1,
        dp2,
        dg,
        dp1.stride(),
        prepared,
        between,
        H,
        T,
        scale,
    )

    def options(launch):
        return call.options(launch, p1, p2, info, dy, dp1)

    with torch.cuda.device_of(p1):
        dinitial = carry_states(call, p1, p2, dy, prepared, dfinal, dmet, backward=True)
        if launches.weak_gradients is not None:
            weak_gradients_kernel[(B * H, call.chunks)](
                *map(strided, (p1, p2, info, dy)), dp1, dp2, dinfo, dg, dp1.stride(),
                prepared, met, dmet, H, T, scale, call.chunks, *segments,
                **options(launches.weak_gradients),
            )  # fmt: skip
        if launches.weak_information is not None:
            weak_information_kernel[(B * H, call.chunks)](
                *of_information, call.chunks, *segments, **options(launches.weak_information)
            )
            own = options(launches.weak_coordinates)
            weak_coordinates_kernel[(B * H, cdiv(D, own["BLOCK_D"]), call.chunks)](
                *of_coordinates, call.chunks, **own
            )
        programs, share = call.share_out(launches.information)
        # Scores are formed as the forward forms them, by more channels than the states allow.
        block = call.options(launches.output)["BLOCK_D"]
        information_kernel[(programs,)](
            *of_information, call.chunks, all_chunks, *segments, BLOCK_S=block,
            **options(launches.information), **share,
        )  # fmt: skip
        programs, share = call.share_out(launches.coordinates)
        own = options(launches.coordinates)
        coordinates_kernel[(programs, cdiv(D, own["BLOCK_D"]))](
            *of_coordinates, call.chunks, all_chunks, **own, **share
        )
    if call.group > 1:
        dp2, dinfo = (_sum_over_groups(x, p2.shape[1]) for x in (dp2, dinfo))
    return dp1, dp2, dinfo, dg, dinitial


def _sum_over_groups(gradient: torch.Tensor, shared: int) -> torch.Tensor:
    """Of (B, H, T, D), stored as (B, T, H, D), the sums of each H / shared neighbouring heads.

    PyTorch adds 16-bit numbers in FP32, in an order that the shape decides.
    """
    return gradient.transpose(1, 2).unflatten(2, (shared, -1)).sum(3).transpose(1, 2)
