"""What every pass takes of a chunk: Self, the norms, sums of retention, and whether it is weak."""

import triton
import triton.language as tl

from relation.kernels.linear_relation.tiles import (
    NORM_FLOOR,
    load_channels,
    load_tokens,
    of_head,
    of_rows,
    product,
    store_row,
    store_tokens,
    zeros,
)

# exp(-105) is 0 in FP32, so a stronger step changes nothing. It keeps sums finite and small: over
# half a chunk of 64 below 4096, where FP32 rounds by 1.2e-4.
STRONGEST = tl.constexpr(-105.0)
# The factors of a weak chunk's halves are at most exp(60): a pair of tokens that no result takes
# may overflow, and is masked. In FP32 dg would be too small beside what cancels in it.
LARGEST_OF_16_BITS, LARGEST_OF_FP32 = tl.constexpr(60.0), tl.constexpr(40.0)


@triton.jit
def _load_retention(g, d_start, K: tl.constexpr):
    tile = load_tokens(g, d_start, K.BLOCK_D, K).to(tl.float32)
    tile = tl.where(tile < STRONGEST, STRONGEST, tile)
    return tile.to(tl.float64) if K.PRECISION == "ieee" else tile


@triton.jit(do_not_specialize=["T", "chunks"])
def prepare_kernel(
    p1, p2, log_retention, prepared, H, T, scale, chunks, SEES_WEAK: tl.constexpr, K: tl.constexpr
):
    """Read p1, p2 and g once. SEES_WEAK: there are kernels for weak chunks."""
    D: tl.constexpr = K.D
    BLOCK_D: tl.constexpr = K.BLOCK_D
    h, head, chunk = tl.program_id(0), tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    t_start = chunk * K.CHUNK
    p1 = of_head(p1, h, H, t_start, T, K)
    p2 = of_head(p2, h // K.GROUP, H // K.GROUP, t_start, T, K)
    log_retention = of_head(log_retention, h, H, t_start, T, K)

    pair = zeros(K.CHUNK)
    square1 = zeros(K.CHUNK)
    square2 = zeros(K.CHUNK)
    for d_start in tl.static_range(0, D, BLOCK_D):
        p1_d = load_tokens(p1, d_start, BLOCK_D, K).to(tl.float32)
        p2_d = load_tokens(p2, d_start, BLOCK_D, K).to(tl.float32)
        pair += tl.sum(p1_d * p2_d, 1)
        square1 += tl.sum(p1_d * p1_d, 1)
        square2 += tl.sum(p2_d * p2_d, 1)
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    S = tl.sigmoid(pair * tl.cast(scale, tl.float32))
    inverse_norm1 = 1.0 / tl.maximum(tl.sqrt(square1), NORM_FLOOR)
    inverse_norm2 = 1.0 / tl.maximum(tl.sqrt(square2), NORM_FLOOR)
    store_row(prepared.selves, S, 3 * head, t_start, T, K)
    store_row(prepared.selves, inverse_norm1, 3 * head + 1, t_start, T, K)
    store_row(prepared.selves, inverse_norm2, 3 * head + 2, t_start, T, K)

    here = head * chunks + chunk
    halves = prepared.halves + here * 2 * D
    t = tl.arange(0, K.CHUNK)
    is_left = (t < K.CHUNK // 2)[:, None]
    strongest = 0.0
    for d_start in tl.static_range(0, D, BLOCK_D):
        g = _load_retention(log_retention, d_start, K)
        left = tl.sum(tl.where(is_left, g, 0.0), 0)
        right = tl.sum(tl.where(is_left, 0.0, g), 0)
        d = d_start + tl.arange(0, BLOCK_D)
        tl.store(halves + d, left, mask=d < D)
        tl.store(halves + D + d, right, mask=d < D)
        strongest = tl.minimum(strongest, tl.min(tl.minimum(left, right), 0))
    largest = LARGEST_OF_FP32 if K.PRECISION == "ieee" else LARGEST_OF_16_BITS
    is_weak = SEES_WEAK and strongest >= -largest
    tokens = tl.minimum(T - t_start, K.CHUNK)
    if is_weak & (tokens < K.CHUNK):
        # The weak kernels form dg from terms of order one, which cancel to the size of exp(g). In
        # a full weak chunk every channel's mean step is at least -largest / (CHUNK / 2). Of a few
        # tokens all may be stronger, and dg smaller than the rounding of its terms. One token
        # without a state has dg = 0, which these terms only round to.
        weakest = float("-inf")
        for d_start in tl.static_range(0, D, BLOCK_D):
            g = _load_retention(log_retention, d_start, K)
            d = d_start + tl.arange(0, BLOCK_D)
            total = tl.where(d < D, tl.sum(g, 0), float("-inf")).to(tl.float32)
            weakest = tl.maximum(weakest, tl.max(total, 0))
        is_weak = (weakest * (K.CHUNK // 2) >= -largest * tokens) & (tokens > 1)
    tl.store(prepared.weak + here, is_weak.to(tl.uint8))

    # A product sums g over intervals: after the middle up to t, and, negative, after t up to it.
    right_of = (t >= K.CHUNK // 2).to(tl.float32)
    steps = tl.where(t[None, :] <= t[:, None], right_of[None, :], (right_of - 1)[None, :])
    for d_start in tl.static_range(0, D, BLOCK_D):
        if D > BLOCK_D:
            g = _load_retention(log_retention, d_start, K)
        if K.PRECISION == "ieee":
            left = tl.sum(tl.where(is_left, g, 0.0), 0)
            exponent = tl.cumsum(g, 0) - left[None, :]
        else:
            exponent = product(steps.to(tl.bfloat16), g, K)
        exponents = of_rows(prepared.exponents, head * T * K.D, t_start, T, K.D)
        store_tokens(exponents, exponent, d_start, BLOCK_D, K)
    if K.PRECISION != "ieee" and not is_weak:
        # Sums that the exponents start and end with, so that what the product has rounded cancels.
        tl.debug_barrier()
        rows, first = prepared.exponents + head * T * D, tl.cast(t_start, tl.int64)
        pointer, stride_t, stride_d, _, _ = log_retention
        for d_start in tl.static_range(0, D, BLOCK_D):
            d = d_start + tl.arange(0, BLOCK_D)
            g_first = tl.load(pointer + first * stride_t + d * stride_d, mask=d < D, other=0.0)
            g_first = tl.maximum(g_first.to(tl.float32), STRONGEST)
            from_start = g_first - load_channels(rows, first, d_start, K)
            to_end = load_channels(rows, first + tokens - 1, d_start, K)
            tl.store(halves + d, from_start, mask=d < D)
            tl.store(halves + D + d, to_end, mask=d < D)
