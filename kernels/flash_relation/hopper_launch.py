"""Launchers of the Gluon kernels for Hopper. To launch them, ask `hopper.chosen` before importing.

A launch's first arguments are descriptors and tensors, as `plans` wants them.
"""

import functools
import math

from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from relation.kernels.flash_relation.descriptors import scales_exactly
from relation.kernels.flash_relation.hopper_forward import hopper_forward_kernel
from relation.kernels.flash_relation.hopper_p1 import hopper_p1_kernel
from relation.kernels.flash_relation.hopper_p2_info import hopper_p2_info_kernel
from relation.kernels.flash_relation.launches import (
    GLUON_BLOCK,
    GluonLaunch,
    grid,
    multiprocessors,
    split_width,
)
from relation.kernels.plans import Configuration, Launcher

# The producer's warp, and the three idle ones that make it a warp group, keep the fewest that the
# hardware allows; the consumer takes what they leave.
PRODUCER_REGISTERS = 24


class GluonTiles(TensorDescriptor):
    """A descriptor without the checks that `descriptors.aligned` has made needless."""

    padding = "zero"
    round_f32_to_tf32 = False

    def __init__(self, base: Tensor, shape, strides, block_shape: list[int], layout):
        self.base, self.shape, self.strides = base, shape, strides
        self.block_shape, self.layout = block_shape, layout


@functools.cache
def tile_layout(width: int) -> gl.NVMMASharedLayout:
    """How a 16-bit tile of `width` columns lies in shared memory, for wgmma to read."""
    return gl.NVMMASharedLayout.get_default_for([1, 1, GLUON_BLOCK, width], gl.bfloat16)


@functools.cache
def numbers_layout() -> gl.NVMMASharedLayout:
    """How numbers, one a row, lie there: one after the other."""
    return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)


@functools.cache
def _parts(head_dim: int) -> list[tuple[list[int], gl.NVMMASharedLayout] | None]:
    """Shape and layout of tiles of WIDE and of REST columns, None where there is no rest."""
    parts = split_width(head_dim)
    return [([1, 1, GLUON_BLOCK, width], tile_layout(width)) if width else None for width in parts]


def _describe(*tensors: Tensor) -> list[GluonTiles | None]:
    """Of each tensor (B, H, T, D) its WIDE columns and the REST."""
    parts, found = _parts(tensors[0].shape[3]), []
    for x in tensors:
        shape, strides = x.shape, x.stride()
        found += [part and GluonTiles(x, shape, strides, *part) for part in parts]
    return found


def _describe_numbers(x: Tensor, T: int) -> GluonTiles:
    """Of FP32 numbers (B, H, T) or (heads, planes, T or a few more): a row each, zeros past T."""
    shape, strides = (x.shape[0] * x.shape[1], T), (x.stride(1), 1)
    return GluonTiles(x, shape, strides, [1, GLUON_BLOCK], numbers_layout())


def _configure(
    owned: Tensor, scanned: Tensor, transport_self: bool, launch: GluonLaunch,
    *numbers: float,
) -> Configuration:  # fmt: skip
    """Of a pass that owns blocks of `owned` and scans `scanned`; numbers: its last arguments."""
    _, H, _, D = owned.shape
    heads, blocks, groups = grid(owned, GLUON_BLOCK)
    all_blocks = heads * blocks * groups
    wide, rest = split_width(D)
    constants = {
        "TRANSPORT_SELF": transport_self,
        "WIDE": wide,
        "REST": rest,
        "SCALE": 1 / math.sqrt(D),
        "STAGES": launch.stages,
        "SCALED": scales_exactly(owned),
        "GROUP": max(H, scanned.shape[1]) // min(H, scanned.shape[1]),
        "PRODUCER_REGISTERS": PRODUCER_REGISTERS,
    }
    programs = launch.programs * multiprocessors(owned.device)
    return (
        (min(all_blocks, programs),),
        (heads, blocks, all_blocks, H, *numbers),
        constants | launch.options(),
    )


def launch_forward(
    launcher: Launcher, launch: GluonLaunch, counter: Tensor, p1: Tensor, p2: Tensor, info: Tensor,
    lam: Tensor, y: Tensor, gate_logit: Tensor, log_norm: Tensor, tau: float, transport_self: bool,
) -> None:  # fmt: skip
    """`forward_kernel`'s work: Y and the two numbers a row of `forward.launch_forward`.

    counter: an int32, zero.
    """
    launcher.launch(
        hopper_forward_kernel,
        (*_describe(p1, p2, info, y), counter, lam, gate_logit, log_norm),
        lambda: _configure(p1, p2, transport_self, launch, p1.shape[2], tau),
    )


def launch_backward(
    launcher: Launcher, p1_launch: GluonLaunch, p2_info_launch: GluonLaunch, counters: Tensor,
    p1: Tensor, p2: Tensor, info: Tensor, y: Tensor, dy: Tensor, gate_logit: Tensor,
    log_norm: Tensor, row_sums: Tensor, dlam_partial: Tensor, dp1: Tensor, dp2: Tensor,
    dinfo: Tensor, dlam: Tensor, tau: float, transport_self: bool,
) -> None:  # fmt: skip
    """The work of `p1_kernel` and `p2_info_kernel`, and the sum of dlam's parts.

    row_sums: of each head three planes, the first kernel's results for the second: -n and -G . Y of
    its rows, and what flows through Self. counters: an int32 for each kernel, zero.
    """
    T = p1.shape[2]
    norms, logits, sums = (_describe_numbers(x, T) for x in (log_norm, gate_logit, row_sums))
    launcher.launch(
        hopper_p1_kernel,
        (*_describe(p1, dy, y, p2, info, dp1), norms, logits, sums, counters, dlam_partial),
        lambda: _configure(p1, p2, transport_self, p1_launch, tau),
    )
    parts = dlam_partial.numel()
    launcher.launch(
        hopper_p2_info_kernel,
        (*_describe(p2, info, p1, dy, dp2, dinfo), logits, sums, counters, dlam_partial, dlam),
        lambda: _configure(p2, p1, transport_self, p2_info_launch, T, parts),
    )
