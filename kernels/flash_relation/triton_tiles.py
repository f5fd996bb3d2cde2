"""Shared by FlashRelation's kernels in Triton: their constants, tiles, products and documents.

These kernels run on NVIDIA GPUs from Ampere on and in Triton's interpreter. Rows i and history j
count from zero; the paper's one-based row is i + 1. Exponents are base 2.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from relation.kernels.common import interpreted, offset_of_head
from relation.kernels.flash_relation.launches import Launch, split_width

LOG2_E = tl.constexpr(math.log2(math.e))
_INTERPRETED = tl.constexpr(interpreted())


class Constants(NamedTuple):
    """The compile-time constants of every kernel, its argument K.

    A tile of D columns is a pair: WIDE columns and, if that saves padding, REST more (80 is
    64 + 16, not 128). If REST is 0, the pair's second element is unused. WHOLE: T is a multiple of
    both block sizes, so loads of tiles mask no rows (never in the repair). ONLINE: the
    forward keeps a running maximum. GROUP: heads of p1 per head of p2.
    """

    TRANSPORT_SELF: bool
    D: int
    WIDE: int
    REST: int
    BLOCK_I: int
    BLOCK_J: int
    WHOLE: bool
    ONLINE: bool
    GROUP: int


def keeps_maximum(dtype: torch.dtype) -> bool:
    """Whether the scan keeps a running maximum: FP16 (up to 65504) must, and FP32 can afford it."""
    return dtype != torch.bfloat16


def options(
    launch: Launch, p1: Tensor, p2: Tensor, transport_self: bool, repairs: bool = False
) -> dict:
    """Return the kernel's K and Triton's options."""
    D = p1.shape[3]
    wide, rest = split_width(D)
    constants = Constants(
        TRANSPORT_SELF=transport_self,
        D=D,
        WIDE=wide,
        REST=rest,
        BLOCK_I=launch.block_i,
        BLOCK_J=launch.block_j,
        WHOLE=not repairs and p1.shape[2] % max(launch.block_i, launch.block_j) == 0,
        ONLINE=repairs or keeps_maximum(p1.dtype),
        GROUP=p1.shape[1] // p2.shape[1],
    )
    return {"K": constants} | launch.options()


# Tiles


@triton.jit
def head_of_program():
    """Return which of the B H heads a program works on (`launches.grid`, and `repair`)."""
    return tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)


@triton.jit
def head_at(x, strides, head, H):
    """Return (pointer, stride_t, stride_d) of one of the B H heads of x (B, H, T, D)."""
    return x + offset_of_head(head, H, strides[0], strides[1]), strides[2], strides[3]


@triton.jit
def _tile(at, start, T, D, FIRST: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Return pointers to a tile, and masks of the rows and columns that are inside the tensor."""
    pointer, stride_t, stride_d = at
    t = tl.arange(0, BLOCK)
    d = FIRST + tl.arange(0, WIDTH)
    # The tile's start may be beyond 2^31 elements, so it has 64 bits. Inside a tile 32 bits are
    # enough unless a stride exceeds 2^24.
    inside = t[:, None] * stride_t + d[None, :] * stride_d
    places = pointer + (tl.cast(start, tl.int64) * stride_t + inside)
    return places, (start + t < T)[:, None], (d < D)[None, :]


@triton.jit
def _load_part(
    at, start, T, D: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    places, rows, columns = _tile(at, start, T, D, FIRST, BLOCK, WIDTH)
    if not WHOLE:
        return tl.load(places, mask=rows & columns, other=0.0)
    elif FIRST + WIDTH <= D:
        return tl.load(places)
    else:
        return tl.load(places, mask=columns, other=0.0)


@triton.jit
def load(at, start, T, K: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Load BLOCK rows of a head from `start` on, with zeros past T and D."""
    wide = _load_part(at, start, T, K.D, 0, BLOCK, K.WIDE, WHOLE)
    rest = wide
    if K.REST > 0:
        rest = _load_part(at, start, T, K.D, K.WIDE, BLOCK, K.REST, WHOLE)
    return wide, rest


@triton.jit
def _store_part(
    at, tile, start, T, D: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    places, rows, columns = _tile(at, start, T, D, FIRST, BLOCK, WIDTH)
    tl.store(places, tile.to(at[0].dtype.element_ty), mask=rows & columns)


@triton.jit
def store(at, tile, start, T, K: tl.constexpr, BLOCK: tl.constexpr):
    _store_part(at, tile[0], start, T, K.D, 0, BLOCK, K.WIDE)
    if K.REST > 0:
        _store_part(at, tile[1], start, T, K.D, K.WIDE, BLOCK, K.REST)


@triton.jit
def zeros(K: tl.constexpr, BLOCK: tl.constexpr):
    wide = tl.full([BLOCK, K.WIDE], 0.0, tl.float32)
    rest = 0.0
    if K.REST > 0:
        rest = tl.full([BLOCK, K.REST], 0.0, tl.float32)
    return wide, rest


@triton.jit
def scores(left, right, K: tl.constexpr):
    """Return left right^T in FP32."""
    product = tl.dot(left[0], tl.trans(right[0]), input_precision="ieee")
    if K.REST > 0:
        product = tl.dot(left[1], tl.trans(right[1]), product, input_precision="ieee")
    return product


@triton.jit
def add_product(sums, weights, tile, K: tl.constexpr):
    """Return sums + weights tile, with weights rounded to the tile's dtype."""
    wide, rest = sums
    weights = weights.to(tile[0].dtype)
    wide = tl.dot(weights, tile[0], wide, input_precision="ieee")
    if K.REST > 0:
        rest = tl.dot(weights, tile[1], rest, input_precision="ieee")
    return wide, rest


@triton.jit
def times(tile, factor, K: tl.constexpr):
    wide, rest = tile
    if K.REST > 0:
        rest = rest.to(tl.float32) * factor
    return wide.to(tl.float32) * factor, rest


@triton.jit
def plus(a, b, K: tl.constexpr):
    wide, rest = a
    if K.REST > 0:
        rest += b[1]
    return wide + b[0], rest


@triton.jit
def half_tanh(h, like):
    """Return tanh of h = U/2. SiLU(U) is h + h tanh(h), and sigma(U) is (1 + tanh(h)) / 2.

    If `like` has 16 bits, this is the GPU's own instruction, with a relative error of at most
    2^-11. For comparison, the materialised operator rounds BF16 scores to 2^-9.
    """
    if like.dtype.primitive_bitwidth == 16 and not _INTERPRETED:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [h], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 2.0 * tl.sigmoid(2.0 * h) - 1.0


# Documents


@triton.jit
def document_starts(starts, b, i_start, T, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr):
    """Return (start_i, first, bound) for the BLOCK_I tokens from i_start on of the batch's row b.

    start_i: where their documents begin (BLOCK_I,). first: where the first tile of their history
    begins. bound: from here to i_start, all tokens see all tiles. Starts never decrease in a row.
    """
    if starts is None:
        return 0, 0, 0
    else:
        starts += tl.cast(b, tl.int64) * T
        i = i_start + tl.arange(0, BLOCK_I)
        start_i = tl.load(starts + i, mask=i < T, other=0)
        first = tl.load(starts + i_start) // BLOCK_J * BLOCK_J
        last = tl.load(starts + tl.minimum(i_start + BLOCK_I, T) - 1)
        return start_i, first, tl.minimum(tl.cdiv(last, BLOCK_J) * BLOCK_J, i_start)


@triton.jit
def document_ends(ends, b, j_start, T, BLOCK_J: tl.constexpr, BLOCK_I: tl.constexpr):
    """Return (end_j, unmasked_end, end) for the BLOCK_J tokens at j_start of the batch's row b.

    end_j: where their documents end (BLOCK_J,). unmasked_end: blocks of rows up to here, after the
    diagonal, see all of this history. end: no row from here on sees any of it.
    """
    if ends is None:
        return 0, T, T
    else:
        ends += tl.cast(b, tl.int64) * T
        j = j_start + tl.arange(0, BLOCK_J)
        end_j = tl.load(ends + j, mask=j < T, other=0)
        unmasked_end = tl.load(ends + j_start) // BLOCK_I * BLOCK_I
        return end_j, unmasked_end, tl.load(ends + tl.minimum(j_start + BLOCK_J, T) - 1)
