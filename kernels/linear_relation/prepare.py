"""What every pass takes of a chunk: Self, the norms, sums of retention, and whether it is weak."""

import triton
import triton.language as tl

from relation.kernels.linear_relation.arithmetic import NORM_FLOOR, product
from relation.kernels.linear_relation.tiles import (
    load_channels,
    load_tokens,
    of_head,
    store_row,
    store_tokens,
)

# exp(-105) is 0 in FP32, so a stronger step changes nothing. It keeps sums finite and small: over
# half a chunk of 64 below 4096, where FP32 rounds by 1.2e-4.
STRONGEST = tl.constexpr(-105.0)
# The factors of a weak chunk's halves are at most exp(60): a pair of tokens that no result takes
# may overflow, and is masked. In FP32 dg would be too small beside what cancels in it.
LARGEST_OF_16_BITS, LARGEST_OF_FP32 = tl.constexpr(60.0), tl.constexpr(40.0)


@triton.jit
def _load_retention(
    g, t_start, T, d_start, PRECISION: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    tile = load_tokens(g, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE).to(tl.float32)
    tile = tl.where(tile < STRONGEST, STRONGEST, tile)
    return tile.to(tl.float64) if PRECISION == "ieee" else tile


@triton.jit(do_not_specialize=["T", "chunks"])
def prepare_kernel(
    p1, p2, log_retention, prepared, H, T, scale, chunks,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    SEES_WEAK: tl.constexpr,
):  # fmt: skip
    """Read p1, p2 and g once. SEES_WEAK: there are kernels for weak chunks."""
    head = tl.cast(tl.program_id(0), tl.int64)
    chunk = tl.program_id(1)
    t_start = chunk * CHUNK
    p1 = of_head(p1, tl.program_id(0), H, ALIGNED)
    p2 = of_head(p2, tl.program_id(0) // GROUP, H // GROUP, ALIGNED)
    log_retention = of_head(log_retention, tl.program_id(0), H, ALIGNED)

    pair = tl.zeros([CHUNK], tl.float32)
    square1 = tl.zeros([CHUNK], tl.float32)
    square2 = tl.zeros([CHUNK], tl.float32)
    for d_start in tl.static_range(0, D, BLOCK_D):
        p1_d = load_tokens(p1, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE).to(tl.float32)
        p2_d = load_tokens(p2, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE).to(tl.float32)
        pair += tl.sum(p1_d * p2_d, 1)
        square1 += tl.sum(p1_d * p1_d, 1)
        square2 += tl.sum(p2_d * p2_d, 1)
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    S = tl.sigmoid(pair * tl.cast(scale, tl.float32))
    inverse_norm1 = 1.0 / tl.maximum(tl.sqrt(square1), NORM_FLOOR)
    inverse_norm2 = 1.0 / tl.maximum(tl.sqrt(square2), NORM_FLOOR)
    store_row(prepared.selves, S, 3 * head, t_start, T, CHUNK)
    store_row(prepared.selves, inverse_norm1, 3 * head + 1, t_start, T, CHUNK)
    store_row(prepared.selves, inverse_norm2, 3 * head + 2, t_start, T, CHUNK)

    here = head * chunks + chunk
    halves = prepared.halves + here * 2 * D
    t = tl.arange(0, CHUNK)
    is_left = (t < CHUNK // 2)[:, None]
    strongest = 0.0
    for d_start in tl.static_range(0, D, BLOCK_D):
        g = _load_retention(log_retention, t_start, T, d_start, PRECISION, D, CHUNK, BLOCK_D, WHOLE)
        left = tl.sum(tl.where(is_left, g, 0.0), 0)
        right = tl.sum(tl.where(is_left, 0.0, g), 0)
        d = d_start + tl.arange(0, BLOCK_D)
        tl.store(halves + d, left, mask=d < D)
        tl.store(halves + D + d, right, mask=d < D)
        strongest = tl.minimum(strongest, tl.min(tl.minimum(left, right), 0))
    largest = LARGEST_OF_FP32 if PRECISION == "ieee" else LARGEST_OF_16_BITS
    is_weak = SEES_WEAK and strongest >= -largest
    tokens = tl.minimum(T - t_start, CHUNK)
    if is_weak & (tokens < CHUNK):
        # The weak kernels form dg from terms of order one, which cancel to the size of exp(g). In
        # a full weak chunk every channel's mean step is at least -largest / (CHUNK / 2). Of a few
        # tokens all may be stronger, and dg smaller than the rounding of its terms. One token
        # without a state has dg = 0, which these terms only round to.
        weakest = float("-inf")
        for d_start in tl.static_range(0, D, BLOCK_D):
            g = _load_retention(
                log_retention, t_start, T, d_start, PRECISION, D, CHUNK, BLOCK_D, WHOLE
            )
            d = d_start + tl.arange(0, BLOCK_D)
            total = tl.where(d < D, tl.sum(g, 0), float("-inf")).to(tl.float32)
            weakest = tl.maximum(weakest, tl.max(total, 0))
        is_weak = (weakest * (CHUNK // 2) >= -largest * tokens) & (tokens > 1)
    tl.store(prepared.weak + here, is_weak.to(tl.uint8))

    # A product sums g over intervals: after the middle up to t, and, negative, after t up to it.
    right_of = (t >= CHUNK // 2).to(tl.float32)
    steps = tl.where(t[None, :] <= t[:, None], right_of[None, :], (right_of - 1)[None, :])
    for d_start in tl.static_range(0, D, BLOCK_D):
        if D > BLOCK_D:
            g = _load_retention(
                log_retention, t_start, T, d_start, PRECISION, D, CHUNK, BLOCK_D, WHOLE
            )
        if PRECISION == "ieee":
            left = tl.sum(tl.where(is_left, g, 0.0), 0)
            exponent = tl.cumsum(g, 0) - left[None, :]
        else:
            exponent = product(steps.to(tl.bfloat16), g, PRECISION)
        exponents = prepared.exponents + head * T * D, D, 1
        store_tokens(exponents, exponent, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
    if PRECISION != "ieee" and not is_weak:
        # Sums that the exponents start and end with, so that what the product has rounded cancels.
        tl.debug_barrier()
        rows, first = prepared.exponents + head * T * D, tl.cast(t_start, tl.int64)
        pointer, stride_t, stride_d = log_retention
        for d_start in tl.static_range(0, D, BLOCK_D):
            d = d_start + tl.arange(0, BLOCK_D)
            g_first = tl.load(pointer + first * stride_t + d * stride_d, mask=d < D, other=0.0)
            g_first = tl.maximum(g_first.to(tl.float32), STRONGEST)
            from_start = g_first - load_channels(rows, first, d_start, D, BLOCK_D)
            to_end = load_channels(rows, first + tokens - 1, d_start, D, BLOCK_D)
            tl.store(halves + d, from_start, mask=d < D)
            tl.store(halves + D + d, to_end, mask=d < D)
