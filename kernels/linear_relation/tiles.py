"""Loads and stores of masked tiles: tokens by channels, and states by two blocks of channels."""

import triton
import triton.language as tl

from relation.kernels.common import offset_of_head

# What `Prepared.kinds` holds of a chunk; 0 of those by levels.
IS_WEAK = tl.constexpr(1)
IS_MIXED = tl.constexpr(2)


@triton.jit
def offset_of(head, H, stride_b, stride_h, ALIGNED: tl.constexpr):
    """Elements, 64-bit, from a (B, H, ...) tensor's start to `head` of its B H.

    ALIGNED divides the strides of batch and heads. Triton finds out about 16 alone, and without any
    divisor loads each number by itself: heads of 60 channels are aligned to 4. Of tokens the stride
    is as Triton finds it.
    """
    if ALIGNED < 16:
        stride_b, stride_h = stride_b // ALIGNED * ALIGNED, stride_h // ALIGNED * ALIGNED
    return offset_of_head(head, H, stride_b, stride_h)


@triton.jit
def own_offset(H, stride_b, stride_h, ALIGNED: tl.constexpr):
    """`offset_of` this program's head."""
    return offset_of(tl.program_id(0), H, stride_b, stride_h, ALIGNED)


@triton.jit
def shared_offset(H, GROUP: tl.constexpr, stride_b, stride_h, ALIGNED: tl.constexpr):
    """`offset_of` the head that this program's shares with its GROUP - 1 neighbours."""
    return offset_of(tl.program_id(0) // GROUP, H // GROUP, stride_b, stride_h, ALIGNED)


@triton.jit
def _inside(t_start, T, d, D: tl.constexpr, BLOCK_T: tl.constexpr, WHOLE: tl.constexpr):
    if WHOLE:
        return (d < D)[None, :]
    else:
        return (t_start + tl.arange(0, BLOCK_T) < T)[:, None] & (d < D)[None, :]


@triton.jit
def load_tokens(
    head, t_start, T, stride_t, d_start, stride_d,
    D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr = False,
):  # fmt: skip
    """Zeros outside. WHOLE: T is a multiple of BLOCK_T, so that no row needs a mask."""
    t, d = tl.arange(0, BLOCK_T), d_start + tl.arange(0, BLOCK_D)
    pointers = head + tl.cast(t_start, tl.int64) * stride_t
    pointers += t[:, None] * stride_t + d[None, :] * stride_d
    if WHOLE and D % BLOCK_D == 0:
        return tl.load(pointers)
    else:
        inside = _inside(t_start, T, d, D, BLOCK_T, WHOLE)
        return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def store_tokens(
    head, tile, t_start, T, stride_t, d_start, stride_d,
    D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr = False,
):  # fmt: skip
    t, d = tl.arange(0, BLOCK_T), d_start + tl.arange(0, BLOCK_D)
    pointers = head + tl.cast(t_start, tl.int64) * stride_t
    pointers += t[:, None] * stride_t + d[None, :] * stride_d
    tile = tile.to(head.dtype.element_ty)
    if WHOLE and D % BLOCK_D == 0:
        tl.store(pointers, tile)
    else:
        tl.store(pointers, tile, mask=_inside(t_start, T, d, D, BLOCK_T, WHOLE))


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
    """S and what normalises p1 and p2, each (BLOCK_T,), of (heads, 3, T)."""
    S = load_row(selves, 3 * head, t_start, T, BLOCK_T)
    inverse_norm1 = load_row(selves, 3 * head + 1, t_start, T, BLOCK_T)
    inverse_norm2 = load_row(selves, 3 * head + 2, t_start, T, BLOCK_T)
    return S, inverse_norm1, inverse_norm2


@triton.jit
def load_half(halves, half, d_start, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """A row of D numbers: of `Prepared.halves`, or of what a chunk gives to all of its dg."""
    d = d_start + tl.arange(0, BLOCK_D)
    return tl.load(halves + half * D + d, mask=d < D, other=0.0)


@triton.jit
def state_tile(d_start, v_start, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr):
    """Offsets of a (BLOCK_D, BLOCK_V) tile inside a contiguous (D, D) state, and their mask."""
    d, v = d_start + tl.arange(0, BLOCK_D), v_start + tl.arange(0, BLOCK_V)
    return d[:, None] * D + v[None, :], (d < D)[:, None] & (v < D)[None, :]


@triton.jit
def states_of_chunk(chunk, head, chunks, segment_chunks, segments, D: tl.constexpr):
    """Where `load_state` finds C before and dC after a chunk; see `channels` there."""
    last = tl.minimum(chunks, (chunk // segment_chunks + 1) * segment_chunks) - 1
    own_past = tl.where(chunk % segment_chunks > 0, D, 0)
    own_future = tl.where(chunk < last, D, 0)
    segment = head * segments + chunk // segment_chunks
    return head * chunks + chunk, segment, own_past, own_future


@triton.jit
def chunk_of_program(turn, chunks):
    """The index among the chunks of all heads that this program takes at its `turn`.

    Of another head at every turn, where there are enough: the chunks that ask for work are those of
    some heads, as a rule. 32 bits have to hold turn * chunks (`launches.py`).
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    return turn * programs + (program + turn * chunks) % programs


@triton.jit
def all_taken(kinds, chunks, all_chunks, SHARE: tl.constexpr):
    """Whether others take all SHARE chunks of this program: one read tells, not one each."""
    index = chunk_of_program(tl.arange(0, SHARE), chunks)
    flags = tl.load(kinds + index, mask=index < all_chunks, other=1)
    return tl.min(flags.to(tl.int32), 0) != 0


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
