"""Givens mixing in one pass, and its gradient in one, for eager PyTorch, which takes dozens.

Pair k of the heads is 2k + shift and the head after it, modulo H; it turns by theta_k.
torch.compile fuses the definition, so compiled code uses that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from relation.kernels.checks import layout
from relation.kernels.plans import Configuration, plan_of

_NUMBERS = 2048  # of a program, in each head of its pair


@triton.jit
def _pair_places(stride_b, stride_h, stride_t, T, H, N, D, SHIFT, ROWS, WIDTH):
    """Where this program's numbers lie in both heads of its pair, and which of them exist."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    first = (2 * tl.program_id(2).to(tl.int64) + SHIFT) % H
    here = (row // T * stride_b + row % T * stride_t)[:, None] + c[None, :]
    exists = (row < N)[:, None] & (c < D)[None, :]
    return here + first * stride_h, here + (first + 1) % H * stride_h, exists


@triton.jit
def mixing_kernel(
    x, cos, sin, out, stride_b, stride_h, stride_t, out_b, out_h, out_t, T, H, N, D,
    SHIFT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    cosine, sine = tl.load(cos + tl.program_id(2)), tl.load(sin + tl.program_id(2))
    a, b, exists = _pair_places(stride_b, stride_h, stride_t, T, H, N, D, SHIFT, ROWS, WIDTH)
    x_a = tl.load(x + a, mask=exists, other=0.0).to(tl.float32)
    x_b = tl.load(x + b, mask=exists, other=0.0).to(tl.float32)
    a, b, exists = _pair_places(out_b, out_h, out_t, T, H, N, D, SHIFT, ROWS, WIDTH)
    kind = out.dtype.element_ty
    tl.store(out + a, (cosine * x_a - sine * x_b).to(kind), mask=exists)
    tl.store(out + b, (cosine * x_b + sine * x_a).to(kind), mask=exists)


@triton.jit
def mixing_backward_kernel(
    dmixed, mixed, cos, sin, dx, dtheta,
    stride_b, stride_h, stride_t, mixed_b, mixed_h, mixed_t, dx_b, dx_h, dx_t, T, H, N, D,
    SHIFT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    cosine, sine = tl.load(cos + tl.program_id(2)), tl.load(sin + tl.program_id(2))
    a, b, exists = _pair_places(stride_b, stride_h, stride_t, T, H, N, D, SHIFT, ROWS, WIDTH)
    d_a = tl.load(dmixed + a, mask=exists, other=0.0).to(tl.float32)
    d_b = tl.load(dmixed + b, mask=exists, other=0.0).to(tl.float32)
    a, b, exists = _pair_places(mixed_b, mixed_h, mixed_t, T, H, N, D, SHIFT, ROWS, WIDTH)
    m_a = tl.load(mixed + a, mask=exists, other=0.0).to(tl.float32)
    m_b = tl.load(mixed + b, mask=exists, other=0.0).to(tl.float32)
    a, b, exists = _pair_places(dx_b, dx_h, dx_t, T, H, N, D, SHIFT, ROWS, WIDTH)
    kind = dx.dtype.element_ty
    tl.store(dx + a, (cosine * d_a + sine * d_b).to(kind), mask=exists)
    tl.store(dx + b, (cosine * d_b - sine * d_a).to(kind), mask=exists)
    # d(mixed)/d(theta) is mixed, a quarter turn on.
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    programs = tl.num_programs(0) * tl.num_programs(1)
    total = tl.sum(tl.sum(d_b * m_a - d_a * m_b, 1), 0)
    tl.store(dtheta + tl.program_id(2) * programs + program, total)


def _tiles(x: Tensor) -> tuple[int, int, tuple[int, int, int]]:
    """Rows and channels of a program, and the grid, for x (B, H, T, D)."""
    B, H, T, D = x.shape
    width = min(triton.next_power_of_2(D), 1024)
    rows = _NUMBERS // width
    return rows, width, (triton.cdiv(B * T, rows), triton.cdiv(D, width), H // 2)


def mix(info: Tensor, theta: Tensor, shift: int) -> Tensor:
    """info (B, H, T, D), BF16, FP16 or FP32, its pairs turned by theta (H/2,), FP32; shift 0 or 1.

    Computed in FP32 and rounded once to info's dtype; returns (B, H, T, D), which lies in memory as
    info does where that is dense.
    """
    B, H, T, D = info.shape
    info = info if info.stride(-1) == 1 else info.contiguous()
    mixed, cos, sin = torch.empty_like(info), theta.cos(), theta.sin()

    def configure() -> Configuration:
        rows, width, grid = _tiles(info)
        numbers = (*info.stride()[:3], *mixed.stride()[:3], T, H, B * T, D)
        return grid, numbers, {"SHIFT": shift, "ROWS": rows, "WIDTH": width}

    plan = plan_of(mix, None, shift, layout(info))
    with torch.cuda.device_of(info):
        plan.launch(mixing_kernel, (info, cos, sin, mixed), configure)
    return mixed


def mix_backward(dmixed: Tensor, mixed: Tensor, theta: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """The gradients of `mix`'s info, in its dtype, and theta, FP32, from its result's and itself.

    theta's is summed in an order that the shape decides: equal inputs give bitwise equal gradients.
    """
    B, H, T, D = mixed.shape
    dmixed, mixed = (x if x.stride(-1) == 1 else x.contiguous() for x in (dmixed, mixed))
    dinfo, cos, sin = torch.empty_like(mixed), theta.cos(), theta.sin()
    rows, width, grid = _tiles(mixed)
    dtheta = theta.new_empty((H // 2, grid[0] * grid[1]))

    def configure() -> Configuration:
        strides = (*dmixed.stride()[:3], *mixed.stride()[:3], *dinfo.stride()[:3])
        own = {"SHIFT": shift, "ROWS": rows, "WIDTH": width}
        return grid, (*strides, T, H, B * T, D), own

    plan = plan_of(mix_backward, None, shift, layout(dmixed), layout(mixed))
    with torch.cuda.device_of(mixed):
        tensors = (dmixed, mixed, cos, sin, dinfo, dtheta)
        plan.launch(mixing_backward_kernel, tensors, configure)
    return dinfo, dtheta.sum(1)
