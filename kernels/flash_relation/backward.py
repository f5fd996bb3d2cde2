"""The backward pass of FlashRelation (Appendix A.1.7), in two passes without atomics.

`p1_kernel` owns blocks of rows: the gradient of p1 and, since it meets all history of a row, what
flows through the gate and lambda. `p2_info_kernel` owns blocks of history. Both compute the scores
again. The derivative of SiLU is (1 + t + E (1 - t)) / 2 with t = tanh(U/2).
"""

import math
from typing import NamedTuple

import torch
import triton

from relation.kernels.checks import layout
from relation.kernels.common import Parts, tokens_layout
from relation.kernels.flash_relation.backward_p1 import p1_kernel
from relation.kernels.flash_relation.backward_p2_info import p2_info_kernel
from relation.kernels.flash_relation.descriptors import (
    ALIGNMENT,
    aligned,
    aligned_rows,
    describe,
    describe_row_sums,
    empty_aligned,
    fits,
    row_sums_shape,
    scales_exactly,
)
from relation.kernels.flash_relation.hopper import chosen
from relation.kernels.flash_relation.launches import (
    GLUON_BLOCK,
    GluonLaunch,
    Launch,
    Launches,
    constants_of,
    grid,
    select_launches,
    split_width,
)
from relation.kernels.plans import Configuration, Launcher, plan_of


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
    launches = launches or select_launches(p1.device, p1.element_size(), p1.shape[3])
    rows, documents = (gate_logit, log_norm), (starts, ends)
    facts = map(layout, (p1, p2, info, y, dy, *rows, *documents))
    plan = plan_of(launch_backward, launches, tau, transport_self, *facts)
    recipe = plan.recipe or plan.keep(_Recipe.of(launches, p1, p2, info, dy, starts is not None))
    if not recipe.fit:
        p1, p2, info, dy = map(aligned, (p1, p2, info, dy))
    # Without atomics and with one writer an element, every sum has one order: equal inputs give
    # bitwise equal gradients.
    dp1 = p1.new_empty_strided(*recipe.dp1)
    dp2 = p2.new_empty_strided(*recipe.shared)
    dinfo = info.new_empty_strided(*recipe.shared)
    dlam_partial = log_norm.new_empty(recipe.blocks)
    memory, places = recipe.temporaries.allocate(log_norm), (dp1, dp2, dinfo)
    counters = dlam = None
    if recipe.gluon:
        # Cleared on the stream and in a CUDA graph with it, so that no launch shares its own.
        counters = log_norm.new_zeros(2, dtype=torch.int32)
        dlam = log_norm.new_empty(())
        y, rows = aligned(y), tuple(map(aligned_rows, rows))
        if not recipe.stored:
            places = tuple(map(empty_aligned, places))

    def launch(launcher: Launcher, *tensors: torch.Tensor | None) -> None:
        inputs, rows, (starts, ends) = tensors[:5], tensors[5:7], tensors[7:9]
        dp1, dp2, dinfo, memory, dlam_partial, dlam, counters = tensors[9:]
        parts = recipe.temporaries.views(memory)
        if recipe.gluon:
            from relation.kernels.flash_relation import hopper_launch

            results = *parts, dlam_partial, dp1, dp2, dinfo, dlam
            given = *recipe.gluon, counters, *inputs, *rows, *results, tau, transport_self
            hopper_launch.launch_backward(launcher, *given)
            return
        given = launcher, launches, inputs
        results = (*rows, *parts, dlam_partial, dp1)
        _launch_p1(*given, starts, results, tau, transport_self)
        results = (rows[0], *parts, dp2, dinfo)
        _launch_p2_info(*given, ends, results, transport_self)

    with torch.cuda.device_of(p1):
        given = p1, p2, info, y, dy, *rows, *documents
        plan.run((*given, *places, memory, dlam_partial, dlam, counters), launch)
    if not recipe.stored:
        for x, place in zip((dp1, dp2, dinfo), places, strict=True):
            x.copy_(place)
    return dp1, dp2, dinfo, dlam_partial.sum() if dlam is None else dlam


class _Recipe(NamedTuple):
    """What the layout decides of a call.

    fit: whether tiles can come from the inputs and dy as they are, and `stored` go to the
    gradients; gluon: how p1 and p2_info run in Gluon, where they do, both or neither; dp1 and
    shared: shape and strides of its gradient, and of those of p2 and info; blocks: parts of lam's;
    temporaries: row sums, and for Triton's kernels Self's dU a row.
    """

    fit: bool
    stored: bool
    gluon: tuple[GluonLaunch, GluonLaunch] | None
    dp1: tuple
    shared: tuple
    blocks: int
    temporaries: Parts

    @classmethod
    def of(
        cls, launches: Launches, p1: torch.Tensor, p2: torch.Tensor, info: torch.Tensor,
        dy: torch.Tensor, documents: bool,
    ) -> "_Recipe":  # fmt: skip
        B, H, T, D = p1.shape
        described = launches.descriptors
        p1_launch, p2_info_launch = (
            chosen(name, launches, p1.dtype, documents) for name in ("p1", "p2_info")
        )
        gluon = (p1_launch, p2_info_launch) if p1_launch else None
        blocks = triton.cdiv(T, GLUON_BLOCK if gluon else launches.p1.block_i)
        temporaries = [row_sums_shape(B * H, T, 3 if gluon else 2 if described else 0)]
        if not gluon:
            temporaries.append((B, H, T))
        return cls(
            not described or all(map(fits, (p1, p2, info, dy))),
            not gluon or D * p1.element_size() % ALIGNMENT == 0,
            gluon,
            tokens_layout(p1, H),
            tokens_layout(p2, p2.shape[1]),
            B * H * blocks,
            Parts(*((shape, torch.float32) for shape in temporaries)),
        )


def _tiles(launches: Launches, tile: Launch, block: int, *scanned: torch.Tensor) -> list:
    if not launches.descriptors:
        return [None] * (2 * len(scanned))
    parts = split_width(scanned[0].shape[3], tile.padded)
    return [describe(x, block, width) for width in parts for x in scanned]


def _configure(
    launches: Launches, tile: Launch, whole: int, inputs: tuple, transport_self: bool,
    *numbers: float,
) -> tuple[tuple, dict]:  # fmt: skip
    """The numbers and constants of a pass; inputs: p1, p2 and info."""
    p1, p2, info = inputs
    described = launches.descriptors
    constants = constants_of(tile, described and tile.padded, p1, p2, transport_self)
    own = {"WHOLE": p1.shape[2] % whole == 0, "SCALED": described and scales_exactly(p1)}
    strides = (*p1.stride(), *p2.stride(), *info.stride())
    return (*strides, *numbers), constants | own


def _launch_p1(
    launcher: Launcher, launches: Launches, inputs: tuple, starts: torch.Tensor | None,
    results: tuple, tau: float, transport_self: bool,
) -> None:  # fmt: skip
    p1, p2, info, y, dy = inputs
    tile, dp1 = launches.p1, results[-1]

    def configure() -> Configuration:
        _, H, T, D = p1.shape
        numbers = (*y.stride(), *dy.stride(), *dp1.stride(), H, T, 1 / math.sqrt(D), tau)
        given = tile, tile.block_i, inputs[:3], transport_self
        return grid(p1, tile.block_i), *_configure(launches, *given, *numbers)

    history = _tiles(launches, tile, tile.block_j, p2, info)
    launcher.launch(p1_kernel, (*inputs, *history, starts, *results), configure)


def _launch_p2_info(
    launcher: Launcher, launches: Launches, inputs: tuple, ends: torch.Tensor | None,
    results: tuple, transport_self: bool,
) -> None:  # fmt: skip
    p1, p2, info, _, dy = inputs
    tile, (_, row_sums, _, dp2, _) = launches.p2_info, results

    def configure() -> Configuration:
        _, H, T, D = p1.shape
        numbers = (*dy.stride(), *dp2.stride(), H, T, 1 / math.sqrt(D))
        given = tile, tile.block_j, inputs[:3], transport_self
        return grid(p2, tile.block_j), *_configure(launches, *given, *numbers)

    rows = _tiles(launches, tile, tile.block_i, p1, dy)
    described = launches.descriptors
    rows.append(describe_row_sums(row_sums, p1.shape[2], tile.block_i) if described else None)
    launcher.launch(p2_info_kernel, (p1, p2, info, dy, *rows, ends, *results), configure)
