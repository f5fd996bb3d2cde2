"""Launchers of the Gluon kernels for Hopper. Only what has asked `hopper.chosen` imports this.

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
def sums_layout() -> gl.NVMMASharedLayout:
    """How row sums lie there: one after the other."""
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


def _configure(
    owned: Tensor, scanned: Tensor, transport_self: bool, tau: float | None, launch: GluonLaunch,
    *strides: int,
) -> Configuration:  # fmt: skip
    """Of a pass that owns blocks of `owned` and scans `scanned`; p2_info takes no tau."""
    _, H, T, D = owned.shape
    heads, blocks, groups = grid(owned, GLUON_BLOCK)
    all_blocks = heads * blocks * groups
    wide, rest = split_width(D)
    constants = {
        "TRANSPORT_SELF": transport_self,
        "D": D,
        "WIDE": wide,
        "REST": rest,
        "STAGES": launch.stages,
        "SCALED": scales_exactly(owned),
        "GROUP": max(H, scanned.shape[1]) // min(H, scanned.shape[1]),
        "PRODUCER_REGISTERS": PRODUCER_REGISTERS,
    }
    numbers = (heads, blocks, all_blocks, H, T, 1 / math.sqrt(D), *(() if tau is None else (tau,)))
    programs = min(all_blocks, launch.programs * multiprocessors(owned.device))
    return (programs,), (*strides, *numbers), constants | launch.options()


def launch_forward(
    plan: Launcher, launch: GluonLaunch, counter: Tensor, p1: Tensor, p2: Tensor, info: Tensor,
    lam: Tensor, y: Tensor, gate_logit: Tensor, log_norm: Tensor, tau: float, transport_self: bool,
) -> None:  # fmt: skip
    """`forward_kernel`'s work: Y and the two numbers a row of `forward.launch_forward`.

    counter: an int32, zero.
    """
    tensors = *_describe(p1, p2, info), counter, lam, y, gate_logit, log_norm
    plan.launch(
        hopper_forward_kernel,
        tensors,
        lambda: _configure(p1, p2, transport_self, tau, launch, *y.stride()),
    )


def launch_p1(
    plan: Launcher, launch: GluonLaunch, counters: Tensor, p1: Tensor, p2: Tensor, info: Tensor,
    y: Tensor, dy: Tensor, gate_logit: Tensor, log_norm: Tensor, row_sums: Tensor, du_self: Tensor,
    dlam_partial: Tensor, dp1: Tensor, tau: float, transport_self: bool,
) -> None:  # fmt: skip
    """`p1_kernel`'s work; row_sums in planes. counters: two int32, zeros, of which it takes one."""
    results = gate_logit, log_norm, row_sums, du_self, dlam_partial, dp1
    strides = *p2.stride(), *y.stride(), *dp1.stride()
    plan.launch(
        hopper_p1_kernel,
        (*_describe(p1, dy, p2, info), counters, p2, y, *results),
        lambda: _configure(p1, p2, transport_self, tau, launch, *strides),
    )


def launch_p2_info(
    plan: Launcher, launch: GluonLaunch, counters: Tensor, p1: Tensor, p2: Tensor, info: Tensor,
    dy: Tensor, gate_logit: Tensor, row_sums: Tensor, du_self: Tensor, dp2: Tensor, dinfo: Tensor,
    transport_self: bool,
) -> None:  # fmt: skip
    """`p2_info_kernel`'s work; counters as above, of which it takes the other."""
    heads, planes, stride = row_sums.shape
    shape = heads * planes, p1.shape[2]
    sums = GluonTiles(row_sums, shape, (stride, 1), [1, GLUON_BLOCK], sums_layout())
    plan.launch(
        hopper_p2_info_kernel,
        (*_describe(p2, info, p1, dy), sums, counters, gate_logit, du_self, dp2, dinfo),
        lambda: _configure(p2, p1, transport_self, None, launch, *dp2.stride()),
    )
