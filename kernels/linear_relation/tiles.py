"""Shared by all passes: a kernel's constants, views of heads, masked tiles, exp and products.

A kernel gets a (B, H, T, D) tensor from `strided`, as a pointer and four strides. `of_head` returns
a view of one head: (pointer, stride of tokens, stride of channels, t_start, T). `load_tokens` and
`store_tokens` access the chunk of a view that begins at t_start.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from relation.kernels.common import offset_of_head

LOG2_E = tl.constexpr(1.4426950408889634)
# F.normalize divides by the norm or by this, whichever is larger.
NORM_FLOOR = tl.constexpr(1e-12)


class Constants(NamedTuple):
    """K, the compile-time constants of every kernel.

    IEEE, for FP32 inputs and in the interpreter: products are IEEE products of FP32 numbers, and
    exponents are FP64.
    Otherwise, for 16-bit inputs, FP32 operands of products are split into BF16 parts (`product`),
    and exponents are FP32. D: channels per head. GROUP: heads of p1 per head of p2 and info.
    ALIGNED: a divisor of the strides of batch and heads. CHUNK: tokens per chunk. WHOLE: T is a
    multiple of CHUNK, so rows need no mask. BLOCK_D, BLOCK_V: relation and information channels per
    tile. For `general` only: BLOCK_S, the relation channels per step of the scores, equal in both
    directions; SHARE, the most chunks per program; LEVELS, the halvings from a chunk down to single
    tokens.
    """

    IEEE: bool
    D: int
    GROUP: int
    ALIGNED: int
    CHUNK: int
    WHOLE: bool
    BLOCK_D: int
    BLOCK_V: int
    BLOCK_S: int
    SHARE: int
    LEVELS: int


class Prepared(NamedTuple):
    """What `prepare_kernel` stores; all contiguous.

    selves: (B, H, 3, T), FP32: S and the inverse norms of p1 and p2. weak: (B, H, chunks), uint8:
    1 if the weak kernels process the chunk. exponents: (B, H, T, D): G(m, t) right of the chunk's
    middle m, -G(t, m) left of it. halves: (B, H, chunks, 2, D): G(0, m) and G(m, n), the sums of g
    over a chunk's halves. exponents and halves are FP32 for 16-bit inputs and FP64 for FP32 inputs.
    """

    selves: torch.Tensor
    weak: torch.Tensor
    exponents: torch.Tensor
    halves: torch.Tensor


class States(NamedTuple):
    """The parts of every chunk's incoming state, which `load_state` adds; contiguous, FP32.

    The incoming state is C before the chunk, or dC after it. within: (B, H, chunks, D, D), the part
    from the chunk's own segment. log_decay: (B, H, chunks, D), the sum of g from the segment's
    start to the chunk. entry: (B, H, segments, D, D), the segment's incoming state.
    """

    within: torch.Tensor
    log_decay: torch.Tensor
    entry: torch.Tensor


class Between(NamedTuple):
    """What the information passes leave for the coordinates passes; contiguous, FP32.

    read_dread, write_dwrite: (B, H, T), <r, dr> and <w, dw>. dscores: (B, H, chunks, CHUNK, CHUNK),
    <dY_t, I_j> as FP32 or two BF16 parts. dread, dwrite: (B, H, T, D), the states' parts of dr and
    dw. dtotal: (B, H, chunks, D), the part of dg that all steps of a chunk have in common.
    """

    read_dread: torch.Tensor
    write_dwrite: torch.Tensor
    dscores: torch.Tensor
    dread: torch.Tensor
    dwrite: torch.Tensor
    dtotal: torch.Tensor


def strided(x: torch.Tensor) -> tuple:
    """Return x with its strides, as the kernels take it."""
    return x, x.stride()


@triton.jit
def of_head(x, head, H, t_start, T, K: tl.constexpr):
    """Return the view of head `head`, of B H, of a strided (B, H, T, D) tensor.

    Triton detects only strides that are multiples of 16. Without a known divisor it would load
    number by number; K.ALIGNED states one, 4 for heads of 60 channels.
    """
    pointer, strides = x
    stride_b, stride_h, stride_t, stride_d = strides
    if K.ALIGNED < 16:
        stride_b, stride_h = stride_b // K.ALIGNED * K.ALIGNED, stride_h // K.ALIGNED * K.ALIGNED
    return pointer + offset_of_head(head, H, stride_b, stride_h), stride_t, stride_d, t_start, T


@triton.jit
def of_inputs(p1, p2, info, head, H, t_start, T, K: tl.constexpr):
    """Return the views of p1 and of the heads of p2 and info that it reads."""
    p1 = of_head(p1, head, H, t_start, T, K)
    shared, fewer = head // K.GROUP, H // K.GROUP
    p2 = of_head(p2, shared, fewer, t_start, T, K)
    return p1, p2, of_head(info, shared, fewer, t_start, T, K)


@triton.jit
def of_rows(rows, start, t_start, T, D: tl.constexpr):
    """Return a view of contiguous rows of D numbers that begin at element `start`."""
    return rows + start, D, 1, t_start, T


@triton.jit
def zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr = 0):
    """FP32 zeros, (ROWS, COLUMNS) or (ROWS,). Triton before 3.8 rejects K.CHUNK in the list."""
    return tl.zeros([ROWS] if COLUMNS == 0 else [ROWS, COLUMNS], tl.float32)


@triton.jit
def at(x, t_start):
    """Return the view with another t_start."""
    pointer, stride_t, stride_d, _, T = x
    return pointer, stride_t, stride_d, t_start, T


@triton.jit
def load_tokens(x, d_start, BLOCK: tl.constexpr, K: tl.constexpr):
    """Load (CHUNK, BLOCK) of a view, from channel d_start on; zeros outside."""
    pointers, inside = _tile(x, d_start, BLOCK, K)
    if K.WHOLE and K.D % BLOCK == 0:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def store_tokens(x, tile, d_start, BLOCK: tl.constexpr, K: tl.constexpr):
    pointers, inside = _tile(x, d_start, BLOCK, K)
    tile = tile.to(x[0].dtype.element_ty)
    if K.WHOLE and K.D % BLOCK == 0:
        tl.store(pointers, tile)
    else:
        tl.store(pointers, tile, mask=inside)


@triton.jit
def _tile(x, d_start, BLOCK: tl.constexpr, K: tl.constexpr):
    pointer, stride_t, stride_d, t_start, T = x
    t, d = tl.arange(0, K.CHUNK), d_start + tl.arange(0, BLOCK)
    pointers = pointer + tl.cast(t_start, tl.int64) * stride_t
    pointers += t[:, None] * stride_t + d[None, :] * stride_d
    if K.WHOLE:
        return pointers, (d < K.D)[None, :]
    else:
        return pointers, (t_start + t < T)[:, None] & (d < K.D)[None, :]


@triton.jit
def load_row(rows, head, t_start, T, K: tl.constexpr):
    """Load one FP32 number per token, (CHUNK,), of a contiguous (heads, T); zeros past T."""
    t = t_start + tl.arange(0, K.CHUNK)
    return tl.load(rows + head * T + t, mask=t < T, other=0.0)


@triton.jit
def store_row(rows, row, head, t_start, T, K: tl.constexpr):
    t = t_start + tl.arange(0, K.CHUNK)
    tl.store(rows + head * T + t, row, mask=t < T)


@triton.jit
def load_selves(prepared, head, t_start, T, K: tl.constexpr):
    """Load S and the inverse norms of p1 and p2, each (CHUNK,)."""
    S = load_row(prepared.selves, 3 * head, t_start, T, K)
    inverse_norm1 = load_row(prepared.selves, 3 * head + 1, t_start, T, K)
    inverse_norm2 = load_row(prepared.selves, 3 * head + 2, t_start, T, K)
    return S, inverse_norm1, inverse_norm2


@triton.jit
def load_channels(rows, row, d_start, K: tl.constexpr):
    """Load one number per channel, (BLOCK_D,), of row `row` of a contiguous (rows, D)."""
    d = d_start + tl.arange(0, K.BLOCK_D)
    return tl.load(rows + row * K.D + d, mask=d < K.D, other=0.0)


@triton.jit
def square_of(squares, number, K: tl.constexpr):
    """Return pointers to matrix `number` of contiguous (CHUNK, CHUNK) matrices."""
    t = tl.arange(0, K.CHUNK)
    return squares + number * K.CHUNK * K.CHUNK + t[:, None] * K.CHUNK + t[None, :]


@triton.jit
def state_tile(d_start, v_start, K: tl.constexpr):
    """Return offsets of a (BLOCK_D, BLOCK_V) tile in a contiguous (D, D) state, and their mask."""
    d, v = d_start + tl.arange(0, K.BLOCK_D), v_start + tl.arange(0, K.BLOCK_V)
    return d[:, None] * K.D + v[None, :], (d < K.D)[:, None] & (v < K.D)[None, :]


@triton.jit
def places_of(chunk, head, chunks, segment_chunks, segments, K: tl.constexpr):
    """Return a chunk's index over all heads, and `load_state`'s places of incoming C and dC."""
    last = tl.minimum(chunks, (chunk // segment_chunks + 1) * segment_chunks) - 1
    # The first chunk of a segment, in either direction, has no `within`: it loads 0 channels.
    past = tl.where(chunk % segment_chunks > 0, K.D, 0)
    future = tl.where(chunk < last, K.D, 0)
    segment = head * segments + chunk // segment_chunks
    here = head * chunks + chunk
    return here, (here, segment, past), (here, segment, future)


@triton.jit
def load_state(states, place, d_start, K: tl.constexpr):
    """Load BLOCK_D rows of a chunk's incoming state: within + exp(log_decay) entry."""
    here, segment, channels = place
    offsets, inside = state_tile(d_start, 0, K)
    d = d_start + tl.arange(0, K.BLOCK_D)
    exists = d < channels
    part = tl.load(
        states.within + here * K.D * K.D + offsets, mask=inside & exists[:, None], other=0.0
    )
    decay = tl.exp(tl.load(states.log_decay + here * K.D + d, mask=exists, other=0.0))
    entry = tl.load(states.entry + segment * K.D * K.D + offsets, mask=inside, other=0.0)
    return part + decay[:, None] * entry


@triton.jit
def exp(x, K: tl.constexpr):
    """Return exp(x) in FP32. Without IEEE the relative error is at most 2^-22 + 2^-24 |x|."""
    if K.IEEE:
        return tl.exp(x.to(tl.float32))
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * LOG2_E], dtype=tl.float32, is_pure=True,
            pack=1,
        )  # fmt: skip


@triton.jit
def rounded(tile, like):
    """Return the tile in BF16 if view `like` is BF16: for factors of results stored in BF16."""
    if like[0].dtype.element_ty == tl.bfloat16:
        return tile.to(tl.bfloat16)
    else:
        return tile


@triton.jit
def split(tile):
    """Return two BF16 tiles whose sum is the tile to 16 bits."""
    tile = tile.to(tl.float32)
    bits = tile.to(tl.uint32, bitcast=True)
    # high is cut, not rounded: mask and shift cost less than a conversion. tile - high is exact.
    high = (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True), (tile - high).to(tl.bfloat16)


@triton.jit
def product(a, b, K: tl.constexpr):
    """Return a @ b in FP32. BF16 operands, and two FP16 ones, enter as they are.

    Other operands are split into two BF16 parts; low part times low part, below 2^-16, is left out.
    """
    if K.IEEE:
        result = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif a.dtype == b.dtype and a.dtype != tl.float32:
        result = tl.dot(a, b)
    elif a.dtype == tl.bfloat16:
        b_high, b_low = split(b)
        result = tl.dot(a, b_low)
        result = tl.dot(a, b_high, result)
    elif b.dtype == tl.bfloat16:
        a_high, a_low = split(a)
        result = tl.dot(a_low, b)
        result = tl.dot(a_high, b, result)
    else:
        a_high, a_low = split(a)
        b_high, b_low = split(b)
        result = tl.dot(a_low, b_high)
        result = tl.dot(a_high, b_low, result)
        result = tl.dot(a_high, b_high, result)
    return result


@triton.jit
def zeros_and_ones(where, K: tl.constexpr):
    """Return a mask as an exact left factor of `product`."""
    return where.to(tl.float32 if K.IEEE else tl.bfloat16)


@triton.jit
def dlogit_of(sum_read, sum_write, S, scale):
    """Return the gradient of <p1, p2> through Self, (CHUNK, 1), from <r, dr> and <w, dw>."""
    # Triton's interpreter passes Python numbers in FP64, which would widen the result.
    return ((sum_read + sum_write) * (1.0 - S) * tl.cast(scale, tl.float32))[:, None]


@triton.jit
def project(dcoordinate, p, S, inverse_norm, along):
    """Return dp. dcoordinate: the gradient dx of x = S p / max(|p|, NORM_FLOOR); along: <x, dx>."""
    along = tl.where(inverse_norm < 1.0 / NORM_FLOOR, along * inverse_norm, 0.0)
    return inverse_norm[:, None] * (S[:, None] * dcoordinate - along[:, None] * p)
