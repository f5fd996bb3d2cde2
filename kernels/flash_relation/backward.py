"""The backward pass of FlashRelation (Appendix A.1.7), in two passes without atomics.

`p1_kernel` owns blocks of rows: the gradient of p1 and, since it meets all history of a row, what
flows through the gate and lambda. `p2_info_kernel` owns blocks of history. Both compute the scores
again. The derivative of SiLU is (1 + t + E (1 - t)) / 2 with t = tanh(U/2).
"""

import math

import torch

from relation.kernels.checks import layout
from relation.kernels.common import empty_rows, empty_tokens, interpreted
from relation.kernels.flash_relation.backward_p1 import p1_kernel
from relation.kernels.flash_relation.backward_p2_info import p2_info_kernel
from relation.kernels.flash_relation.descriptors import (
    aligned,
    describe,
    describe_row_sums,
    empty_row_sums,
    scales_exactly,
)
from relation.kernels.flash_relation.hopper import chosen
from relation.kernels.flash_relation.launches import (
    GLUON_BLOCK,
    Launch,
    Launches,
    grid,
    select_launches,
    split_width,
)
from relation.kernels.plans import Configuration, plan_of


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
    *,
    starts: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the backward passes; p1 to transport_self are the forward's inputs and results.

    starts and ends: (B, T) int32, contiguous, where each token's document begins and ends in its
    row. Without `launches`, the device's are taken. Returns the gradients of p1, p2 and info in
    their dtype, and of lam as an FP32 scalar.
    """
    B, H, T, D = p1.shape
    # Without atomics and with one writer an element, every sum has one order: equal inputs give
    # bitwise equal gradients.
    dp1, dp2, dinfo = (empty_tokens(x, x.shape[1]) for x in (p1, p2, info))
    launches = launches or select_launches(p1.device, p1.element_size(), D)
    described = launches.descriptors
    documents = starts is not None
    gluon_p1, gluon_p2_info = (
        chosen(name, launches, p1.dtype, documents) for name in ("p1", "p2_info")
    )
    if described:
        p1, p2, info, dy = map(aligned, (p1, p2, info, dy))
    # triton.cdiv takes two microseconds.
    blocks = -(-T // (GLUON_BLOCK if gluon_p1 else launches.p1.block_i))
    row_sums = empty_row_sums(B * H, T, described, log_norm)
    du_self = empty_rows(p1)
    dlam_partial = log_norm.new_empty(B * H * blocks)
    inputs = (p1, p2, info, y, dy)
    by_rows, by_history = launches.p1, launches.p2_info

    def tiles(tile: Launch, block: int, *scanned: torch.Tensor) -> list:
        if not described:
            return [None] * (2 * len(scanned))
        parts = split_width(D, tile.padded)
        return [describe(x, block, width) for width in parts for x in scanned]

    def configure(tile: Launch, whole: int, *numbers: float) -> tuple:
        wide, rest = split_width(D, described and tile.padded)
        constants = {
            "TRANSPORT_SELF": transport_self,
            "D": D,
            "GROUP": H // p2.shape[1],
            "WIDE": wide,
            "REST": rest,
            "BLOCK_I": tile.block_i,
            "BLOCK_J": tile.block_j,
            "WHOLE": T % whole == 0,
            "FAST": p1.element_size() == 2 and not interpreted(),
            "SCALED": described and scales_exactly(p1),
        }
        strides = (*p1.stride(), *p2.stride(), *info.stride())
        return (*strides, *numbers), constants | tile.options()

    def configure_p1() -> Configuration:
        strides = (*y.stride(), *dy.stride(), *dp1.stride())
        block = by_rows.block_i
        numbers = (*strides, H, T, 1 / math.sqrt(D), tau)
        return grid(p1, block), *configure(by_rows, block, *numbers)

    def configure_p2_info() -> Configuration:
        block = by_history.block_j
        numbers = (*dy.stride(), *dp2.stride(), H, T, 1 / math.sqrt(D))
        return grid(p2, block), *configure(by_history, block, *numbers)

    facts = tau, transport_self, *map(layout, (gate_logit, log_norm, starts, ends))
    plan = plan_of(launch_backward, launches, *facts, *map(layout, inputs))
    with torch.cuda.device_of(p1):
        if gluon_p1 or gluon_p2_info:
            from relation.kernels.flash_relation import hopper_launch

            # Cleared on the stream and in a CUDA graph with it, so that no launch shares its own.
            counters = p1.new_zeros(2, dtype=torch.int32)
        results = (gate_logit, log_norm, row_sums, du_self, dlam_partial, dp1)
        if gluon_p1:
            given = plan, gluon_p1, counters, *inputs, *results, tau, transport_self
            hopper_launch.launch_p1(*given)
        else:
            history = tiles(by_rows, by_rows.block_j, p2, info)
            plan.launch(p1_kernel, (*inputs, *history, starts, *results), configure_p1)
        results = (gate_logit, row_sums, du_self, dp2, dinfo)
        if gluon_p2_info:
            given = plan, gluon_p2_info, counters, p1, p2, info, dy, *results, transport_self
            hopper_launch.launch_p2_info(*given)
        else:
            rows = tiles(by_history, by_history.block_i, p1, dy)
            rows.append(describe_row_sums(row_sums, T, by_history.block_i) if described else None)
            given = p1, p2, info, dy, *rows, ends, *results
            plan.launch(p2_info_kernel, given, configure_p2_info)
    return dp1, dp2, dinfo, dlam_partial.sum()
