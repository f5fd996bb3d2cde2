"""Where a head's tokens and states lie, and loads and stores of masked tiles.

A kernel takes a (B, H, T, D) tensor as `strided` gives it, a pointer with four strides. `of_head`
makes of it a view of one head: (pointer, stride of tokens, stride of channels).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from relation.kernels.common import offset_of_head


class Prepared(NamedTuple):
    """What `prepare_kernel` stores of each chunk; all contiguous.

    selves: (B, H, 3, T), FP32: S and the inverse norms of p1 and p2. weak: (B, H, chunks), uint8:
    1 where the weak kernels take the chunk. exponents: (B, H, T, D): with the chunk's middle m,
    G(m, t) right of it and -G(t, m) left of it. halves: (B, H, chunks, 2, D): the sums of g over a
    chunk's halves. Both are FP32, of FP32 inputs FP64.
    """

    selves: torch.Tensor
    weak: torch.Tensor
    exponents: torch.Tensor
    halves: torch.Tensor


class States(NamedTuple):
    """Where `load_state` finds the state that each chunk meets; contiguous, FP32.

    within: (B, H, chunks, D, D), the part from the chunk's own segment; log_decay:
    (B, H, chunks, D), the sum of g since the segment's start; entry: (B, H, segments, D, D), the
    state there.
    """

    within: torch.Tensor
    log_decay: torch.Tensor
    entry: torch.Tensor


def strided(x: torch.Tensor) -> tuple:
    """A kernel's argument for a tensor of any strides."""
    return x, x.stride()


@triton.jit
def of_head(x, head, H, ALIGNED: tl.constexpr):
    """The view of head `head` of B H of a strided (B, H, T, D) tensor.

    ALIGNED divides the strides of batch and heads. Triton recognises multiples of 16 alone, and
    without a divisor it loads each number by itself: heads of 60 channels are aligned to 4.
    """
    pointer, strides = x
    stride_b, stride_h, stride_t, stride_d = strides
    if ALIGNED < 16:
        stride_b, stride_h = stride_b // ALIGNED * ALIGNED, stride_h // ALIGNED * ALIGNED
    return pointer + offset_of_head(head, H, stride_b, stride_h), stride_t, stride_d


@triton.jit
def load_tokens(
    x, t_start, T, d_start,
    D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Zeros outside. WHOLE: T is a multiple of BLOCK_T, so that no row needs a mask."""
    pointers, inside = _tile(x, t_start, T, d_start, D, BLOCK_T, BLOCK_D, WHOLE)
    if WHOLE and D % BLOCK_D == 0:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def store_tokens(
    x, tile, t_start, T, d_start,
    D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    pointers, inside = _tile(x, t_start, T, d_start, D, BLOCK_T, BLOCK_D, WHOLE)
    tile = tile.to(x[0].dtype.element_ty)
    if WHOLE and D % BLOCK_D == 0:
        tl.store(pointers, tile)
    else:
        tl.store(pointers, tile, mask=inside)


@triton.jit
def _tile(
    x, t_start, T, d_start,
    D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    pointer, stride_t, stride_d = x
    t, d = tl.arange(0, BLOCK_T), d_start + tl.arange(0, BLOCK_D)
    pointers = pointer + tl.cast(t_start, tl.int64) * stride_t
    pointers += t[:, None] * stride_t + d[None, :] * stride_d
    if WHOLE:
        return pointers, (d < D)[None, :]
    else:
        return pointers, (t_start + t < T)[:, None] & (d < D)[None, :]


@triton.jit
def load_row(rows, head, t_start, T, BLOCK_T: tl.constexpr):
    """One FP32 number a token of a contiguous (heads, T); zeros outside."""
    t = t_start + tl.arange(0, BLOCK_T)
    return tl.load(rows + head * T + t, mask=t < T, other=0.0)


@triton.jit
def store_row(rows, row, head, t_start, T, BLOCK_T: tl.constexpr):
    t = t_start + tl.arange(0, BLOCK_T)
    tl.store(rows + head * T + t, row, mask=t < T)


@triton.jit
def load_selves(selves, head, t_start, T, BLOCK_T: tl.constexpr):
    """S and the inverse norms of p1 and p2, each (BLOCK_T,)."""
    S = load_row(selves, 3 * head, t_start, T, BLOCK_T)
    inverse_norm1 = load_row(selves, 3 * head + 1, t_start, T, BLOCK_T)
    inverse_norm2 = load_row(selves, 3 * head + 2, t_start, T, BLOCK_T)
    return S, inverse_norm1, inverse_norm2


@triton.jit
def load_channels(rows, row, d_start, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """One number a channel, of row `row` of a contiguous (rows, D)."""
    d = d_start + tl.arange(0, BLOCK_D)
    return tl.load(rows + row * D + d, mask=d < D, other=0.0)


@triton.jit
def square_of(squares, number, CHUNK: tl.constexpr):
    """Pointers to one of many contiguous (CHUNK, CHUNK)."""
    t = tl.arange(0, CHUNK)
    return squares + number * CHUNK * CHUNK + t[:, None] * CHUNK + t[None, :]


@triton.jit
def state_tile(d_start, v_start, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr):
    """Offsets of a (BLOCK_D, BLOCK_V) tile inside a contiguous (D, D) state, and their mask."""
    d, v = d_start + tl.arange(0, BLOCK_D), v_start + tl.arange(0, BLOCK_V)
    return d[:, None] * D + v[None, :], (d < D)[:, None] & (v < D)[None, :]


@triton.jit
def place_of_chunk(chunk, head, chunks, segment_chunks, segments, D: tl.constexpr):
    """Of a chunk its number, that of its segment, and `channels` of `load_state` for C and dC."""
    last = tl.minimum(chunks, (chunk // segment_chunks + 1) * segment_chunks) - 1
    own_past = tl.where(chunk % segment_chunks > 0, D, 0)
    own_future = tl.where(chunk < last, D, 0)
    segment = head * segments + chunk // segment_chunks
    return head * chunks + chunk, segment, own_past, own_future


@triton.jit
def load_state(
    states, here, segment, channels, d_start,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """BLOCK_D rows of the state that a chunk meets: its segment's part, and what is left of entry.

    channels: D, or 0 for the first chunk of a segment, which has no part of its segment's.
    """
    offsets, inside = state_tile(d_start, 0, D, BLOCK_D, BLOCK_V)
    d = d_start + tl.arange(0, BLOCK_D)
    own = d < channels
    part = tl.load(states.within + here * D * D + offsets, mask=inside & own[:, None], other=0.0)
    decay = tl.exp(tl.load(states.log_decay + here * D + d, mask=own, other=0.0))
    entry = tl.load(states.entry + segment * D * D + offsets, mask=inside, other=0.0)
    return part + decay[:, None] * entry
