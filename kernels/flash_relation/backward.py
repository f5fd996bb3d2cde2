"""The backward pass of FlashRelation (Appendix A.1.7), in two passes without atomics.

`p1_kernel` owns blocks of rows: the gradient of p1 and, since it meets all history of a row, what
flows through the gate and lambda. `p2_info_kernel` owns blocks of history. Both compute the scores
again. The derivative of SiLU is (1 + t + E (1 - t)) / 2 with t = tanh(U/2).
"""

import math

import torch
import triton

from relation.kernels.common import interpreted
from relation.kernels.flash_relation.backward_p1 import p1_kernel
from relation.kernels.flash_relation.backward_p2_info import p2_info_kernel
from relation.kernels.flash_relation.descriptors import (
    aligned,
    describe,
    describe_row_sums,
    empty_row_sums,
    scales_exactly,
)
from relation.kernels.flash_relation.launches import Launches, grid, select_launches, split_width


def launch_backward(
    dy: torch.Tensor,
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    y: torch.Tensor,
    gate_logit: torch.Tensor,
    log_norm: torch.Tensor,
    tau: float,
    transport_self: bool,
    launches: Launches | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the backward passes; p1 to transport_self are the forward's inputs and results.

    Without `launches`, the device's are taken. Returns the gradients of p1, p2 and info in their
    dtype, and of lam as an FP32 scalar.
    """
    B, H, T, D = p1.shape
    # Without atomics and with one writer an element, every sum has one order: equal inputs give
    # bitwise equal gradients.
    dp1, dp2, dinfo = (
        torch.empty((B, T, H, D), dtype=x.dtype, device=x.device).transpose(1, 2)
        for x in (p1, p2, info)
    )
    launches = launches or select_launches(p1.device, p1.element_size(), D)
    described = launches.descriptors
    if described:
        p1, p2, info, dy = map(aligned, (p1, p2, info, dy))
    blocks = triton.cdiv(T, launches.p1.block_i)
    row_sums = empty_row_sums(B * H, T, described, p1.device)
    du_self = torch.empty((B, H, T), dtype=torch.float32, device=p1.device)
    dlam_partial = torch.empty(B * H * blocks, dtype=torch.float32, device=p1.device)
    strides = (*p1.stride(), *p2.stride(), *info.stride())
    options = {
        "TRANSPORT_SELF": transport_self,
        "D": D,
        "FAST": p1.element_size() == 2 and not interpreted(),
        "SCALED": described and scales_exactly(p1),
    }
    with torch.cuda.device_of(p1):
        tile = launches.p1
        wide, rest = split_width(D, described and tile.padded)
        history = [None] * 4
        if described:
            history = [describe(x, tile.block_j, w) for w in (wide, rest) for x in (p2, info)]
        p1_kernel[grid(p1, tile.block_i)](
            p1, p2, info, y, dy, *history,
            gate_logit, log_norm, row_sums, du_self, dlam_partial, dp1,
            *strides, *y.stride(), *dy.stride(), *dp1.stride(), H, T, 1 / math.sqrt(D), tau,
            WIDE=wide, REST=rest, BLOCK_I=tile.block_i, BLOCK_J=tile.block_j,
            WHOLE=T % tile.block_i == 0, **options, **tile.options(),
        )  # fmt: skip
        tile = launches.p2_info
        wide, rest = split_width(D, described and tile.padded)
        rows = [None] * 5
        if described:
            rows = [describe(x, tile.block_i, w) for w in (wide, rest) for x in (p1, dy)]
            rows.append(describe_row_sums(row_sums, T, tile.block_i))
        p2_info_kernel[grid(p2, tile.block_j)](
            p1, p2, info, dy, *rows, gate_logit, row_sums, du_self, dp2, dinfo,
            *strides, *dy.stride(), *dp2.stride(), H, T, 1 / math.sqrt(D),
            WIDE=wide, REST=rest, BLOCK_I=tile.block_i, BLOCK_J=tile.block_j,
            WHOLE=T % tile.block_j == 0, **options, **tile.options(),
        )  # fmt: skip
    return dp1, dp2, dinfo, dlam_partial.sum()
