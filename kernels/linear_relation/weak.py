"""Chunks of weak retention, forward and backward: one pair of factors serves all pairs of tokens.

The factors exp(G) between the tokens and the chunk's middle also join the chunk to its states, once
these carry the retention between the middle and the chunk's ends. So a block of channels takes one
matrix of exponents and its reciprocal.
"""

import triton
import triton.language as tl

from relation.kernels.linear_relation.decays import exp, product, project, split
from relation.kernels.linear_relation.tiles import (
    IS_WEAK,
    load_half,
    load_row,
    load_selves,
    load_state,
    load_tokens,
    own_offset,
    shared_offset,
    states_of_chunk,
    store_row,
    store_tokens,
)


@triton.jit
def rounded(tile, like):
    """The tile in BF16 where the inputs are: for results that are stored in it."""
    if like.dtype.element_ty == tl.bfloat16:
        return tile.to(tl.bfloat16)
    else:
        return tile


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks", "segments"])
def weak_output_kernel(
    p1, p2, info, selves, kinds, exponents, halves, within, log_decay, entry, y,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    H, T, chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr, GROUP: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    chunk = tl.program_id(1)
    here, segment, own_past, _ = states_of_chunk(chunk, head, chunks, segment_chunks, segments, D)
    if tl.load(kinds + here) != IS_WEAK:
        return
    t_start = chunk * CHUNK
    p1 += own_offset(H, stride_p1_b, stride_p1_h, ALIGNED)
    p2 += shared_offset(H, GROUP, stride_p2_b, stride_p2_h, ALIGNED)
    info += shared_offset(H, GROUP, stride_info_b, stride_info_h, ALIGNED)
    exponents += head * T * D
    y += own_offset(H, stride_y_b, stride_y_h, ALIGNED)

    S, inverse_norm1, inverse_norm2 = load_selves(selves, head, t_start, T, CHUNK)
    t = tl.arange(0, CHUNK)
    scores = tl.zeros([CHUNK, CHUNK], tl.float32)
    y_t = tl.zeros([CHUNK, BLOCK_V], tl.float32)
    for d_start in range(0, D, BLOCK_D):
        exponent = load_tokens(exponents, t_start, T, D, d_start, 1, D, CHUNK, BLOCK_D, WHOLE)
        left = load_half(halves, 2 * here, d_start, D, BLOCK_D)
        p1_d = load_tokens(
            p1, t_start, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D, WHOLE
        )
        p2_d = load_tokens(
            p2, t_start, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D, WHOLE
        )
        past = load_state(
            within + here * D * D, log_decay + here * D, entry + segment * D * D,
            own_past, d_start, 0, D, BLOCK_D, BLOCK_V,
        )  # fmt: skip
        read = p1_d.to(tl.float32) * (S * inverse_norm1)[:, None] * exp(exponent, PRECISION)
        write = p2_d.to(tl.float32) * (S * inverse_norm2)[:, None] * exp(-exponent, PRECISION)
        read = rounded(read, p1)
        past *= exp(left, PRECISION)[:, None]
        scores += product(read, tl.trans(rounded(write, p1)), PRECISION)
        y_t += product(read, rounded(past, p1), PRECISION)
    info_t = load_tokens(
        info, t_start, T, stride_info_t, 0, stride_info_d, D, CHUNK, BLOCK_V, WHOLE
    )
    scores = rounded(tl.where(t[:, None] > t[None, :], scores, 0.0), p1)
    y_t += info_t.to(tl.float32) + product(scores, info_t, PRECISION)
    store_tokens(y, y_t, t_start, T, stride_y_t, 0, stride_y_d, D, CHUNK, BLOCK_V, WHOLE)


@triton.jit
def _square(start, CHUNK: tl.constexpr):
    t = tl.arange(0, CHUNK)
    return start + t[:, None] * CHUNK + t[None, :]


@triton.jit
def _store_scores(scores, tile, here, PRECISION: tl.constexpr, CHUNK: tl.constexpr):
    """Keep a chunk's FP32 (CHUNK, CHUNK): whole, or as the two BF16 parts that products take."""
    if PRECISION == "ieee":
        tl.store(_square(scores + here * CHUNK * CHUNK, CHUNK), tile)
    else:
        high, low = split(tile)
        scores += 2 * here * CHUNK * CHUNK
        tl.store(_square(scores, CHUNK), high)
        tl.store(_square(scores + CHUNK * CHUNK, CHUNK), low)


@triton.jit
def _load_scores(scores, here, PRECISION: tl.constexpr, CHUNK: tl.constexpr):
    """What `_store_scores` kept: the tile and zero, or its upper and lower part."""
    if PRECISION == "ieee":
        return tl.load(_square(scores + here * CHUNK * CHUNK, CHUNK)), 0.0
    else:
        scores += 2 * here * CHUNK * CHUNK
        high = tl.load(_square(scores, CHUNK))
        return high, tl.load(_square(scores + CHUNK * CHUNK, CHUNK))


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks", "segments"])
def weak_information_kernel(
    p1, p2, info, dy, selves, kinds, exponents, halves,
    within, log_decay, entry, dwithin, dlog_decay, dentry,
    dinfo, read_dread, write_dwrite, dscores_t, dread, dwrite, dtotal,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale, chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr, GROUP: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, KEEPS: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    chunk = tl.program_id(1)
    here, segment, own_past, own_future = states_of_chunk(
        chunk, head, chunks, segment_chunks, segments, D
    )
    if tl.load(kinds + here) != IS_WEAK:
        return
    t_start = chunk * CHUNK
    p1 += own_offset(H, stride_p1_b, stride_p1_h, ALIGNED)
    p2 += shared_offset(H, GROUP, stride_p2_b, stride_p2_h, ALIGNED)
    info += shared_offset(H, GROUP, stride_info_b, stride_info_h, ALIGNED)
    exponents += head * T * D
    dy += own_offset(H, stride_dy_b, stride_dy_h, ALIGNED)
    dinfo += own_offset(H, stride_out_b, stride_out_h, ALIGNED)

    S, inverse_norm1, inverse_norm2 = load_selves(selves, head, t_start, T, CHUNK)
    info_t = load_tokens(
        info, t_start, T, stride_info_t, 0, stride_info_d, D, CHUNK, BLOCK_V, WHOLE
    )
    dy_t = load_tokens(dy, t_start, T, stride_dy_t, 0, stride_dy_d, D, CHUNK, BLOCK_V, WHOLE)
    t = tl.arange(0, CHUNK)
    scores_t = tl.zeros([CHUNK, CHUNK], tl.float32)
    dinfo_t = tl.zeros([CHUNK, BLOCK_V], tl.float32)
    sum_read = tl.zeros([CHUNK], tl.float32)
    sum_write = tl.zeros([CHUNK], tl.float32)
    for d_start in range(0, D, BLOCK_D):
        exponent = load_tokens(exponents, t_start, T, D, d_start, 1, D, CHUNK, BLOCK_D, WHOLE)
        left = load_half(halves, 2 * here, d_start, D, BLOCK_D)
        right = load_half(halves, 2 * here + 1, d_start, D, BLOCK_D)
        p1_d = load_tokens(
            p1, t_start, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D, WHOLE
        )
        p2_d = load_tokens(
            p2, t_start, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D, WHOLE
        )
        past = load_state(
            within + here * D * D, log_decay + here * D, entry + segment * D * D,
            own_past, d_start, 0, D, BLOCK_D, BLOCK_V,
        )  # fmt: skip
        future = load_state(
            dwithin + here * D * D, dlog_decay + here * D, dentry + segment * D * D,
            own_future, d_start, 0, D, BLOCK_D, BLOCK_V,
        )  # fmt: skip
        read = p1_d.to(tl.float32) * (S * inverse_norm1)[:, None] * exp(exponent, PRECISION)
        write = p2_d.to(tl.float32) * (S * inverse_norm2)[:, None] * exp(-exponent, PRECISION)
        past *= exp(left, PRECISION)[:, None]
        future *= exp(right, PRECISION)[:, None]
        from_past = product(dy_t, tl.trans(past), PRECISION)
        # <w', F I>, most of dp1 at the last tokens: in dinfo_t both factors are rounded.
        from_future = product(info_t, tl.trans(future), PRECISION)
        sum_read += tl.sum(read * from_past, 1)
        sum_write += tl.sum(write * from_future, 1)
        if KEEPS:
            store_tokens(
                dread + head * T * D, from_past, t_start, T, D, d_start, 1,
                D, CHUNK, BLOCK_D, WHOLE,
            )  # fmt: skip
            store_tokens(
                dwrite + head * T * D, from_future, t_start, T, D, d_start, 1,
                D, CHUNK, BLOCK_D, WHOLE,
            )  # fmt: skip
            d = d_start + tl.arange(0, BLOCK_D)
            total = tl.sum(past * future, 1) + tl.sum(write * from_future, 0)
            tl.store(dtotal + here * D + d, total, mask=d < D)
        write = rounded(write, p1)
        scores_t += product(write, tl.trans(rounded(read, p1)), PRECISION)
        dinfo_t += product(write, rounded(future, p1), PRECISION)
    before = t[:, None] < t[None, :]
    scores_t = tl.where(before, scores_t, 0.0)
    dpairs = product(info_t, tl.trans(dy_t), PRECISION)
    if KEEPS:
        _store_scores(dscores_t, tl.where(before, dpairs, 0.0), here, PRECISION, CHUNK)
    pairs = scores_t * dpairs
    sum_read += tl.sum(pairs, 0)
    sum_write += tl.sum(pairs, 1)
    dinfo_t += product(rounded(scores_t, p1), dy_t, PRECISION)
    store_row(read_dread, sum_read, head, t_start, T, CHUNK)
    store_row(write_dwrite, sum_write, head, t_start, T, CHUNK)
    store_tokens(
        dinfo, dy_t.to(tl.float32) + dinfo_t, t_start, T, stride_out_t, 0, stride_out_d,
        D, CHUNK, BLOCK_V, WHOLE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["T", "chunks"])
def weak_coordinates_kernel(
    p1, p2, selves, kinds, exponents,
    read_dread, write_dwrite, dscores_t, dread, dwrite, dtotal, dp1, dp2, dlog_retention,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale, chunks,
    PRECISION: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr, GROUP: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_D: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    # All blocks of a chunk run at about the same time, and find what they share in the cache.
    chunk, d_start = tl.program_id(2), tl.program_id(1) * BLOCK_D
    here = head * chunks + chunk
    if tl.load(kinds + here) != IS_WEAK:
        return
    t_start = chunk * CHUNK
    p1 += own_offset(H, stride_p1_b, stride_p1_h, ALIGNED)
    p2 += shared_offset(H, GROUP, stride_p2_b, stride_p2_h, ALIGNED)
    of_head = head * T * D
    out = own_offset(H, stride_out_b, stride_out_h, ALIGNED)

    S, inverse_norm1, inverse_norm2 = load_selves(selves, head, t_start, T, CHUNK)
    exponent = load_tokens(exponents + of_head, t_start, T, D, d_start, 1, D, CHUNK, BLOCK_D, WHOLE)
    # What the states give to the gradients of r' and w'; the pairs' part is added here.
    dread_d = load_tokens(dread + of_head, t_start, T, D, d_start, 1, D, CHUNK, BLOCK_D, WHOLE)
    dwrite_d = load_tokens(dwrite + of_head, t_start, T, D, d_start, 1, D, CHUNK, BLOCK_D, WHOLE)
    total = load_half(dtotal, here, d_start, D, BLOCK_D)
    p1_d = load_tokens(p1, t_start, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D, WHOLE)
    p2_d = load_tokens(p2, t_start, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D, WHOLE)
    p1_d, p2_d = p1_d.to(tl.float32), p2_d.to(tl.float32)
    read_decay, write_decay = exp(exponent, PRECISION), exp(-exponent, PRECISION)
    read = p1_d * (S * inverse_norm1)[:, None] * read_decay
    write = p2_d * (S * inverse_norm2)[:, None] * write_decay
    # Loaded, not formed: wgmma with a left operand computed in registers was miscompiled here.
    upper, lower = _load_scores(dscores_t, here, PRECISION, CHUNK)
    dread_d += product(tl.trans(upper), write, PRECISION)
    dwrite_d += product(upper, read, PRECISION)
    if PRECISION != "ieee":
        dread_d += product(tl.trans(lower), split(write)[0], PRECISION)
        dwrite_d += product(lower, split(read)[0], PRECISION)

    dg = tl.cumsum(read * dread_d - write * dwrite_d, 0, reverse=True) + total[None, :]
    store_tokens(
        dlog_retention + out, dg, t_start, T, stride_out_t, d_start, stride_out_d,
        D, CHUNK, BLOCK_D, WHOLE,
    )  # fmt: skip
    sum_read = load_row(read_dread, head, t_start, T, CHUNK)
    sum_write = load_row(write_dwrite, head, t_start, T, CHUNK)
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    dlogit = ((sum_read + sum_write) * (1.0 - S) * tl.cast(scale, tl.float32))[:, None]
    dp1_d = project(dread_d * read_decay, p1_d, S, inverse_norm1, sum_read) + dlogit * p2_d
    dp2_d = project(dwrite_d * write_decay, p2_d, S, inverse_norm2, sum_write) + dlogit * p1_d
    store_tokens(
        dp1 + out, dp1_d, t_start, T, stride_out_t, d_start, stride_out_d, D, CHUNK, BLOCK_D, WHOLE
    )
    store_tokens(
        dp2 + out, dp2_d, t_start, T, stride_out_t, d_start, stride_out_d, D, CHUNK, BLOCK_D, WHOLE
    )
