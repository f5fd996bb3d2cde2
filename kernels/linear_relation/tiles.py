"""Loads and stores of masked tiles: tokens by channels, and states by two blocks of channels."""

import triton
import triton.language as tl


@triton.jit
def load_tokens(
    head, t_start, T, stride_t, d_start, stride_d,
    D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    t, d = tl.arange(0, BLOCK_T), d_start + tl.arange(0, BLOCK_D)
    inside = (t_start + t < T)[:, None] & (d < D)[None, :]
    first = head + tl.cast(t_start, tl.int64) * stride_t
    return tl.load(first + (t[:, None] * stride_t + d[None, :] * stride_d), mask=inside, other=0.0)


@triton.jit
def store_tokens(
    head, tile, t_start, T, stride_t, d_start, stride_d,
    D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    t, d = tl.arange(0, BLOCK_T), d_start + tl.arange(0, BLOCK_D)
    inside = (t_start + t < T)[:, None] & (d < D)[None, :]
    pointers = head + tl.cast(t_start, tl.int64) * stride_t
    pointers += t[:, None] * stride_t + d[None, :] * stride_d
    tl.store(pointers, tile.to(head.dtype.element_ty), mask=inside)


@triton.jit
def state_tile(d_start, v_start, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr):
    """Offsets of a (BLOCK_D, BLOCK_V) tile inside a contiguous (D, D) state, and their mask."""
    d, v = d_start + tl.arange(0, BLOCK_D), v_start + tl.arange(0, BLOCK_V)
    return d[:, None] * D + v[None, :], (d < D)[:, None] & (v < D)[None, :]


@triton.jit
def load_state(
    within, log_decay, entry, channels, d_start, v_start,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The state that a chunk meets: its segment's own part, and what retention left of the entry.

    within, entry: one (D, D) state each; log_decay: (D,). The first chunk of a segment has no
    part of the segment's own and none is stored for it: there `channels` is 0, elsewhere D.
    """
    offsets, inside = state_tile(d_start, v_start, D, BLOCK_D, BLOCK_V)
    d = d_start + tl.arange(0, BLOCK_D)
    own = d < channels
    part = tl.load(within + offsets, mask=inside & own[:, None], other=0.0)
    decay = tl.exp(tl.load(log_decay + d, mask=own, other=0.0))
    return part + decay[:, None] * tl.load(entry + offsets, mask=inside, other=0.0)
