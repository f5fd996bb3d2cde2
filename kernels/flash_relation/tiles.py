"""Addresses of (BLOCK, D) tiles in (B, H, T, D) tensors of any strides, ragged edges masked."""

import triton
import triton.language as tl


@triton.jit
def head_offset(H, stride_b, stride_h):
    batch_head = tl.program_id(0)
    b = tl.cast(batch_head // H, tl.int64)
    h = tl.cast(batch_head % H, tl.int64)
    return b * stride_b + h * stride_h


@triton.jit
def _tile_offsets(
    start, T, stride_t, stride_d, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):
    t = tl.arange(0, BLOCK)
    d = tl.arange(0, BLOCK_D)
    offsets = tl.cast(start, tl.int64) * stride_t + (t[:, None] * stride_t + d[None, :] * stride_d)
    return offsets, (start + t < T)[:, None] & (d < D)[None, :]


@triton.jit
def load_tile(
    head, start, T, stride_t, stride_d, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):
    offsets, inside = _tile_offsets(start, T, stride_t, stride_d, D, BLOCK, BLOCK_D)
    return tl.load(head + offsets, mask=inside, other=0.0)


@triton.jit
def store_tile(
    head,
    tile,
    start,
    T,
    stride_t,
    stride_d,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    offsets, inside = _tile_offsets(start, T, stride_t, stride_d, D, BLOCK, BLOCK_D)
    tl.store(head + offsets, tile.to(head.dtype.element_ty), mask=inside)
