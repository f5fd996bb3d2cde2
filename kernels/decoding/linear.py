"""One token of Linear Relation: a program reads, gates and writes BLOCK_V columns of one C."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from relation.errors import InputError
from relation.kernels.checks import check_device
from relation.kernels.common import offset_of_head, padded_width
from relation.kernels.decoding import dimensions, expect, expect_places
from relation.kernels.decoding.chain import options
from relation.kernels.decoding.rows import load_angles, load_rotated, load_row

_BLOCK_V = 32
_WARPS = 4
_SHORTEST = tl.constexpr(1.0e-12)  # a vector's length is at least that, as in the definition


@triton.jit
def softplus(x):
    """log(1 + exp x), to the last digits where it is small: a retention is close to one there."""
    e = tl.exp(-tl.abs(x))
    u = 1.0 + e
    log1p = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.maximum(x, 0.0) + log1p


@triton.jit
def linear_kernel(
    projected, down, up, a_log, dt_bias, cos, sin, state, lengths, active, y,
    stride_projected, stride_down, H, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    b = head // H
    h = head % H
    length = tl.load(lengths + b)
    d = tl.arange(0, BLOCK_D)
    v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    angles = load_angles(cos, sin, length, D, BLOCK_D)
    square = (d < D)[:, None] & (d < D)[None, :]
    matrix = tl.load(up + (h * D + d[:, None]) * D + d[None, :], mask=square, other=0.0)
    bias = tl.load(dt_bias + h * D + d, mask=d < D, other=0.0)
    rate = tl.exp(tl.load(a_log + h * D + d, mask=d < D, other=0.0))
    at = state + tl.cast(head, tl.int64) * D * D + d[:, None] * D + v[None, :]
    inside = (d < D)[:, None] & (v < D)[None, :]
    before = tl.load(at, mask=inside, other=0.0)
    lives = tl.load(active + b) != 0
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()

    row = projected + offset_of_head(head, H, stride_projected, D)
    p1 = load_rotated(row, angles, D, BLOCK_D)
    p2 = load_rotated(row + H * D, angles, D, BLOCK_D)
    info = tl.load(row + 2 * H * D + v, mask=v < D, other=0.0).to(tl.float32)
    inner = load_row(down + offset_of_head(head, H, stride_down, D), D, BLOCK_D)
    raw = tl.sum(matrix.to(tl.float32) * inner[None, :], 1)
    raw = raw.to(up.dtype.element_ty).to(tl.float32)
    retention = tl.exp(-rate * softplus(raw + bias))

    S = tl.sigmoid(tl.sum(p1 * p2, 0) * scale)
    read = p1 * (S / tl.maximum(tl.sqrt(tl.sum(p1 * p1, 0)), _SHORTEST))
    write = p2 * (S / tl.maximum(tl.sqrt(tl.sum(p2 * p2, 0)), _SHORTEST))
    retained = retention[:, None] * before
    answer = info + tl.sum(read[:, None] * retained, 0)
    tl.store(y + tl.cast(head, tl.int64) * D + v, answer.to(y.dtype.element_ty), mask=v < D)
    tl.store(at, retained + write[:, None] * info[None, :], mask=inside & lives)


def linear_token(
    projected: Tensor,
    down: Tensor,
    retention: tuple[Tensor, Tensor, Tensor],
    tables: tuple[Tensor, Tensor],
    state: Tensor,
    lengths: Tensor,
    active: Tensor,
    tau: float = 2.0,
    *,
    chained: bool = False,
) -> Tensor:
    """Linear Relation of one token a row (Section 5.2); the state takes it in, in place.

    projected: (B, n >= 3, H, D), contiguous: p1 and p2 before RoPE and mixed information first.
    down: the retention path's inner projection, (B, H, D), its last two dimensions contiguous.
    retention: its second matrix a head, (H, D, D), in projected's dtype, and A_log and dt_bias,
    (H D,) FP32. state: C, (B, H, D, D) FP32, contiguous. active: (B,) int32; where 0, the row's
    state stays. tables, lengths, tau: as `history_token`. Returns (B, H D) of projected's dtype.
    """
    B, n, H, D = dimensions("projected", projected, 4)
    if n < 3:
        raise InputError(f"projected has shape {tuple(projected.shape)}; give (B, 3 or more, H, D)")
    if tuple(down.shape) != (B, H, D) or down.stride()[1:] != (D, 1):
        raise InputError(f"down has shape {tuple(down.shape)}; give {(B, H, D)}, rows contiguous")
    up, a_log, dt_bias = retention
    for name, x, shape, dtype in (
        ("projected", projected, (B, n, H, D), projected.dtype),
        ("retention's matrices", up, (H, D, D), projected.dtype),
        ("A_log", a_log, (H * D,), torch.float32),
        ("dt_bias", dt_bias, (H * D,), torch.float32),
        ("state", state, (B, H, D, D), torch.float32),
        ("active", active, (B,), torch.int32),
    ):
        expect(name, x, shape, dtype)
    expect_places(tables, lengths, B, D)
    check_device(projected, down, *retention, *tables, state, lengths, active)
    y = projected.new_empty(B, H * D)
    with torch.cuda.device_of(projected):
        linear_kernel[(B * H, triton.cdiv(D, _BLOCK_V))](
            projected, down, *retention, *tables, state, lengths, active, y,
            projected.stride(0), down.stride(0), H, 1 / (tau * math.sqrt(D)),
            D=D, BLOCK_D=padded_width(D), BLOCK_V=_BLOCK_V, num_warps=_WARPS,
            **options(chained),
        )  # fmt: skip
    return y
