"""Launches the Gluon kernels for Hopper. Import it only if `launch.chosen` returns a launch.

Every launch allocates its counters and clears them on its stream, or in a node of its CUDA graph.
So concurrent launches never share a counter.
"""

import functools
import math

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from relation.kernels.common import cdiv, start
from relation.kernels.flash_relation.hopper_forward import hopper_forward_kernel
from relation.kernels.flash_relation.hopper_p1 import hopper_p1_kernel
from relation.kernels.flash_relation.hopper_p2_info import hopper_p2_info_kernel
from relation.kernels.flash_relation.hopper_tiles import Constants
from relation.kernels.flash_relation.launches import (
    GLUON_BLOCK,
    GluonLaunch,
    grid,
    multiprocessors,
    split_width,
)

# Registers per thread of the producer's warp and of the three idle warps that fill up its warp
# group: the fewest that the hardware allows. The consumers share the rest.
PRODUCER_REGISTERS = 24


@functools.cache
def tile_layout(width: int) -> gl.NVMMASharedLayout:
    """Return the shared-memory layout in which wgmma reads a 16-bit tile of `width` columns."""
    return gl.NVMMASharedLayout.get_default_for([1, 1, GLUON_BLOCK, width], gl.bfloat16)


@functools.cache
def numbers_layout() -> gl.NVMMASharedLayout:
    """Return the shared-memory layout of FP32 numbers, one per row of a tile: contiguous."""
    return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)


def _describe(x: Tensor) -> list[TensorDescriptor | None]:
    """Describe the WIDE and the REST columns of x (B, H, T, D) to TMA; None if REST is 0."""
    shape, strides = x.shape, x.stride()
    return [
        TensorDescriptor(x, shape, strides, [1, 1, GLUON_BLOCK, width], tile_layout(width))
        if width
        else None
        for width in split_width(shape[3])
    ]


def scales_exactly(D: int) -> bool:
    """Whether half of D^-1/2 is a power of two: a tile times it is exact unless FP16 underflows."""
    return math.frexp(0.5 / math.sqrt(D))[0] == 0.5


def _describe_numbers(x: Tensor, T: int) -> TensorDescriptor:
    """Describe FP32 numbers (B, H, T) or (heads, planes, >= T) as rows of T, with zeros past T."""
    shape, strides = (x.shape[0] * x.shape[1], T), (x.stride(1), 1)
    return TensorDescriptor(x, shape, strides, [1, GLUON_BLOCK], numbers_layout())


def consumer_registers(launch: GluonLaunch) -> int:
    """Return the registers per thread, in eights, of all but consumer 0, which gets the rest."""
    all_registers = launch.registers * (launch.groups + 1)
    return (all_registers - PRODUCER_REGISTERS) // launch.groups // 8 * 8


def _launch(
    kernel, launch: GluonLaunch, given: tuple, owned: Tensor, members: int, numbers: tuple,
    transport_self: bool,
) -> None:  # fmt: skip
    """Launch a pass whose programs own blocks of rows of `owned`.

    given: the kernel's tensors and descriptors. members: heads of p1 per head of p2. numbers: the
    kernel's last positional arguments.
    """
    _, H, _, D = owned.shape
    heads, blocks, rounds = grid(owned, GLUON_BLOCK * launch.groups)
    all_blocks = heads * blocks * rounds
    wide, rest = split_width(D)
    programs = min(all_blocks, launch.programs * multiprocessors(owned.device))
    constants = Constants(
        TRANSPORT_SELF=transport_self, WIDE=wide, REST=rest, SCALE=1 / math.sqrt(D),
        SCALED=scales_exactly(D), STAGES=launch.stages, SLOTS=launch.slots, GROUPS=launch.groups,
        MEMBERS=members, PRODUCER_REGISTERS=PRODUCER_REGISTERS,
        CONSUMER_REGISTERS=consumer_registers(launch), EMULATED=launch.emulated,
        HOLDS_P1=launch.holds_p1,
    )  # fmt: skip
    start(
        kernel, (programs,), *given, heads, blocks, all_blocks, H, *numbers, K=constants,
        **launch.options(),
    )  # fmt: skip


def launch_forward(
    launch: GluonLaunch, p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor, starts: Tensor | None,
    y: Tensor, gate_logit: Tensor, log_norm: Tensor, tau: float, transport_self: bool,
) -> None:  # fmt: skip
    """Do in Gluon what `triton_forward.forward` does in Triton."""
    counter = p1.new_zeros(1, dtype=torch.int32)
    tiles = [part for x in (p1, p2, info, y) for part in _describe(x)]
    given = *tiles, counter, lam, starts, gate_logit, log_norm
    members, numbers = p1.shape[1] // p2.shape[1], (p1.shape[2], tau)
    _launch(hopper_forward_kernel, launch, given, p1, members, numbers, transport_self)


def launch_backward(
    p1_launch: GluonLaunch, p2_info_launch: GluonLaunch, p1: Tensor, p2: Tensor, info: Tensor,
    y: Tensor, dy: Tensor, gate_logit: Tensor, log_norm: Tensor, starts: Tensor | None,
    ends: Tensor | None, dp1: Tensor, dp2: Tensor, dinfo: Tensor, tau: float, transport_self: bool,
) -> Tensor:  # fmt: skip
    """Do in Gluon what `triton_backward.backward` does; the second kernel also sums up dlam."""
    B, H, T, _ = p1.shape
    members = H // p2.shape[1]
    # Three planes per head, which the first kernel writes and the second reads: -n, -G . Y, and
    # Self's share of the gradient, dL/dU_ii D^-1/2.
    row_sums = log_norm.new_empty((B * H, 3, cdiv(T, 4) * 4))
    groups = p1_launch.groups
    parts = log_norm.new_empty(B * H * cdiv(T, GLUON_BLOCK * groups) * groups)
    dlam = log_norm.new_empty(())
    counters = p1.new_zeros(2, dtype=torch.int32)
    norms, logits, sums = (_describe_numbers(x, T) for x in (log_norm, gate_logit, row_sums))
    # Both kernels read these tensors, so they share the descriptors.
    p1_tiles, p2_tiles, info_tiles, dy_tiles = map(_describe, (p1, p2, info, dy))
    given = (
        *p1_tiles, *dy_tiles, *_describe(y), *p2_tiles, *info_tiles, *_describe(dp1),
        norms, logits, sums, counters, starts, parts,
    )  # fmt: skip
    numbers = None if starts is None else T, tau
    _launch(hopper_p1_kernel, p1_launch, given, p1, members, numbers, transport_self)
    given = (
        *p2_tiles, *info_tiles, *p1_tiles, *dy_tiles, *_describe(dp2), *_describe(dinfo),
        logits, sums, counters, ends, parts, dlam,
    )  # fmt: skip
    numbers = T, parts.numel()
    _launch(hopper_p2_info_kernel, p2_info_launch, given, p2, members, numbers, transport_self)
    return dlam
