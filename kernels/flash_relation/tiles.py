"""Tiles of (BLOCK, WIDTH) numbers in (B, H, T, D) tensors of any strides, and SiLU's tanh.

A head width D is cut into WIDE columns and, where that saves padding, REST more: 80 is 64 + 16, two
tiles, rather than one of 128. A tile begins at column FIRST and is masked beyond D. WHOLE says that
T is a multiple of every block, so that no row needs a mask.
"""

import triton
import triton.language as tl

# Larger than any log_norm: rows past the end get F = 2^(E - PAST_END) = 0, and no inf - inf.
PAST_END = tl.constexpr(1e30)


@triton.jit
def program_head():
    """Which of the B H heads a program of `launches.grid` works on."""
    return tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)


@triton.jit
def document_starts(starts, b, i_start, T, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr):
    """Where the documents of row b's tokens at i_start begin; the tiles of history that they need.

    Returns the starts (BLOCK_I,), where the first tile with history begins and from where on, up to
    i_start, every tile is history of every row. Starts never decrease along a row.
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
    """Where the documents of row b's history at j_start end; the tokens that need it.

    Returns the ends (BLOCK_J,), up to where every block of rows may read all of it, and the end of
    the last row that reads some.
    """
    if ends is None:
        return 0, T, T
    else:
        ends += tl.cast(b, tl.int64) * T
        j = j_start + tl.arange(0, BLOCK_J)
        end_j = tl.load(ends + j, mask=j < T, other=0)
        whole = tl.load(ends + j_start) // BLOCK_I * BLOCK_I
        return end_j, whole, tl.load(ends + tl.minimum(j_start + BLOCK_J, T) - 1)


@triton.jit
def _offsets(
    start, stride_t, stride_d, FIRST: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr
):
    t = tl.arange(0, BLOCK)
    d = FIRST + tl.arange(0, WIDTH)
    # The tile's start may lie beyond 2^31 elements; inside a tile, 32 bits reach unless a stride is
    # above 2^24.
    return tl.cast(start, tl.int64) * stride_t + (t[:, None] * stride_t + d[None, :] * stride_d)


@triton.jit
def _inside(
    start, T, D: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr
):
    t = start + tl.arange(0, BLOCK)
    d = FIRST + tl.arange(0, WIDTH)
    return (t < T)[:, None] & (d < D)[None, :]


@triton.jit
def load_tile(
    head, start, T, stride_t, stride_d,
    D: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    at = head + _offsets(start, stride_t, stride_d, FIRST, BLOCK, WIDTH)
    if WHOLE:
        if FIRST + WIDTH <= D:
            return tl.load(at)
        else:
            d = FIRST + tl.arange(0, WIDTH)
            return tl.load(at, mask=(d < D)[None, :], other=0.0)
    else:
        return tl.load(at, mask=_inside(start, T, D, FIRST, BLOCK, WIDTH), other=0.0)


@triton.jit
def read_tile(
    tiles, b, h, head, start, T, stride_t, stride_d,
    D: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """`load_tile` of head h of batch b, through the descriptor `tiles` unless that is None."""
    if tiles is None:
        return load_tile(head, start, T, stride_t, stride_d, D, FIRST, BLOCK, WIDTH, WHOLE)
    else:
        return tl.reshape(tiles.load([b, h, start, FIRST]), [BLOCK, WIDTH])


@triton.jit
def row_sums_at(head, i, T, PLANES: tl.constexpr):
    """Offsets (rows, 2) of log_norm and mean_h of the rows i of a head.

    Side by side, because two vectors through pointers would be copied number by number; with
    PLANES, for TMA, one behind the other in rows of a multiple of 16 bytes.
    """
    which = tl.arange(0, 2)[None, :]
    head = tl.cast(head, tl.int64)
    if PLANES:
        length = tl.cdiv(T, 4) * 4
        return head * 2 * length + which * length + i[:, None]
    else:
        return 2 * (head * T + i)[:, None] + which


@triton.jit
def read_row_sums(tiles, head, row_sums, start, T, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """log_norm and mean_h of BLOCK rows of a head, through the descriptor `tiles` unless None.

    Past the last row they give F = 0; a descriptor's zeros do no harm, since its tiles of p1 and dy
    are zeros there too.
    """
    if tiles is None:
        i = start + tl.arange(0, BLOCK)
        at = row_sums + row_sums_at(head, i, T, False)
        both = tl.load(at) if WHOLE else tl.load(at, mask=(i < T)[:, None], other=PAST_END)
        norm, mean_h = tl.split(both)
    else:
        norm = tl.reshape(tiles.load([2 * head, start]), [BLOCK])
        mean_h = tl.reshape(tiles.load([2 * head + 1, start]), [BLOCK])
    return norm, mean_h


@triton.jit
def store_tile(
    head, tile, start, T, stride_t, stride_d,
    D: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    at = head + _offsets(start, stride_t, stride_d, FIRST, BLOCK, WIDTH)
    inside = _inside(start, T, D, FIRST, BLOCK, WIDTH)
    tl.store(at, tile.to(head.dtype.element_ty), mask=inside)


@triton.jit
def half_tanh(h, FAST: tl.constexpr):
    """tanh of h = U/2, from which SiLU is h + h tanh(h) and sigma is (1 + tanh(h)) / 2.

    FAST is the GPU's own instruction, with a relative error of at most 2^-11: for 16-bit inputs,
    whose scores the materialised operator rounds to 2^-9 or 2^-11.
    """
    if FAST:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [h], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 2.0 * tl.sigmoid(2.0 * h) - 1.0
