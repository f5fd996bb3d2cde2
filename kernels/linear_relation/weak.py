"""Chunks of weak retention, forward and backward: one pair of factors serves all pairs of tokens.

The factors exp(G) between the tokens and the chunk's middle also join the chunk to its states, once
these carry the retention between the middle and the chunk's ends. So a block of channels takes one
matrix of exponents and its reciprocal. README.md has the equations (*Weak chunks*).
"""

import triton
import triton.language as tl

from relation.kernels.linear_relation.arithmetic import (
    add_product,
    dlogit_of,
    exp,
    parts,
    product,
    project,
    rounded,
    split,
    zeros_and_ones,
)
from relation.kernels.linear_relation.tiles import (
    load_channels,
    load_row,
    load_selves,
    load_state,
    load_tokens,
    of_head,
    place_of_chunk,
    square_of,
    store_row,
    store_tokens,
)


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks", "segments"])
def weak_output_kernel(
    p1, p2, info, y, prepared, met, H, T, chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    chunk = tl.program_id(1)
    here, segment, own_past, _ = place_of_chunk(chunk, head, chunks, segment_chunks, segments, D)
    if tl.load(prepared.weak + here) == 0:
        return
    t_start = chunk * CHUNK
    p1 = of_head(p1, tl.program_id(0), H, ALIGNED)
    p2 = of_head(p2, tl.program_id(0) // GROUP, H // GROUP, ALIGNED)
    info = of_head(info, tl.program_id(0) // GROUP, H // GROUP, ALIGNED)
    exponents = prepared.exponents + head * T * D, D, 1
    y = of_head(y, tl.program_id(0), H, ALIGNED)

    S, inverse_norm1, inverse_norm2 = load_selves(prepared.selves, head, t_start, T, CHUNK)
    t = tl.arange(0, CHUNK)
    scores = tl.zeros([CHUNK, CHUNK], tl.float32)
    y_t = tl.zeros([CHUNK, BLOCK_V], tl.float32)
    for d_start in range(0, D, BLOCK_D):
        exponent = load_tokens(exponents, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
        left = load_channels(prepared.halves, 2 * here, d_start, D, BLOCK_D)
        p1_d = load_tokens(p1, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
        p2_d = load_tokens(p2, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
        past = load_state(met, here, segment, own_past, d_start, D, BLOCK_D, BLOCK_V)
        read = p1_d.to(tl.float32) * (S * inverse_norm1)[:, None] * exp(exponent, PRECISION)
        write = p2_d.to(tl.float32) * (S * inverse_norm2)[:, None] * exp(-exponent, PRECISION)
        read = rounded(read, p1)
        past *= exp(left, PRECISION)[:, None]
        scores += product(read, tl.trans(rounded(write, p1)), PRECISION)
        y_t += product(read, rounded(past, p1), PRECISION)
    info_t = load_tokens(info, t_start, T, 0, D, CHUNK, BLOCK_V, WHOLE)
    scores = rounded(tl.where(t[:, None] > t[None, :], scores, 0.0), p1)
    y_t += info_t.to(tl.float32) + product(scores, info_t, PRECISION)
    store_tokens(y, y_t, t_start, T, 0, D, CHUNK, BLOCK_V, WHOLE)


@triton.jit
def _store_scores(scores, tile, here, PRECISION: tl.constexpr, CHUNK: tl.constexpr):
    """Keep a chunk's FP32 (CHUNK, CHUNK): whole, or as the two BF16 parts that products take."""
    if PRECISION == "ieee":
        tl.store(square_of(scores, here, CHUNK), tile)
    else:
        high, low = split(tile)
        scores = scores.to(tl.pointer_type(tl.bfloat16), bitcast=True)
        tl.store(square_of(scores, 2 * here, CHUNK), high)
        tl.store(square_of(scores, 2 * here + 1, CHUNK), low)


@triton.jit
def _load_scores(scores, here, PRECISION: tl.constexpr, CHUNK: tl.constexpr):
    """What `_store_scores` kept: the tile and zero, or its upper and lower part."""
    if PRECISION == "ieee":
        return tl.load(square_of(scores, here, CHUNK)), 0.0
    else:
        scores = scores.to(tl.pointer_type(tl.bfloat16), bitcast=True)
        high = tl.load(square_of(scores, 2 * here, CHUNK))
        return high, tl.load(square_of(scores, 2 * here + 1, CHUNK))


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks", "segments"])
def weak_information_kernel(
    p1, p2, info, dy, dinfo, prepared, met, dmet, between,
    H, T, chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    chunk = tl.program_id(1)
    here, segment, own_past, own_future = place_of_chunk(
        chunk, head, chunks, segment_chunks, segments, D
    )
    if tl.load(prepared.weak + here) == 0:
        return
    t_start = chunk * CHUNK
    p1 = of_head(p1, tl.program_id(0), H, ALIGNED)
    p2 = of_head(p2, tl.program_id(0) // GROUP, H // GROUP, ALIGNED)
    info = of_head(info, tl.program_id(0) // GROUP, H // GROUP, ALIGNED)
    exponents = prepared.exponents + head * T * D, D, 1
    dy = of_head(dy, tl.program_id(0), H, ALIGNED)
    dinfo = of_head(dinfo, tl.program_id(0), H, ALIGNED)
    dread, dwrite = (between.dread + head * T * D, D, 1), (between.dwrite + head * T * D, D, 1)

    S, inverse_norm1, inverse_norm2 = load_selves(prepared.selves, head, t_start, T, CHUNK)
    info_t = load_tokens(info, t_start, T, 0, D, CHUNK, BLOCK_V, WHOLE)
    dy_t = load_tokens(dy, t_start, T, 0, D, CHUNK, BLOCK_V, WHOLE)
    t = tl.arange(0, CHUNK)
    scores_t = tl.zeros([CHUNK, CHUNK], tl.float32)
    dinfo_t = tl.zeros([CHUNK, BLOCK_V], tl.float32)
    sum_read = tl.zeros([CHUNK], tl.float32)
    sum_write = tl.zeros([CHUNK], tl.float32)
    for d_start in range(0, D, BLOCK_D):
        exponent = load_tokens(exponents, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
        left = load_channels(prepared.halves, 2 * here, d_start, D, BLOCK_D)
        right = load_channels(prepared.halves, 2 * here + 1, d_start, D, BLOCK_D)
        p1_d = load_tokens(p1, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
        p2_d = load_tokens(p2, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
        past = load_state(met, here, segment, own_past, d_start, D, BLOCK_D, BLOCK_V)
        future = load_state(dmet, here, segment, own_future, d_start, D, BLOCK_D, BLOCK_V)
        read = p1_d.to(tl.float32) * (S * inverse_norm1)[:, None] * exp(exponent, PRECISION)
        write = p2_d.to(tl.float32) * (S * inverse_norm2)[:, None] * exp(-exponent, PRECISION)
        past *= exp(left, PRECISION)[:, None]
        future *= exp(right, PRECISION)[:, None]
        from_past = product(dy_t, tl.trans(past), PRECISION)
        # <w', F I>, most of dp1 at the last tokens: in dinfo_t both factors are rounded.
        from_future = product(info_t, tl.trans(future), PRECISION)
        sum_read += tl.sum(read * from_past, 1)
        sum_write += tl.sum(write * from_future, 1)
        store_tokens(dread, from_past, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
        store_tokens(dwrite, from_future, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
        d = d_start + tl.arange(0, BLOCK_D)
        total = tl.sum(past * future, 1) + tl.sum(write * from_future, 0)
        tl.store(between.dtotal + here * D + d, total, mask=d < D)
        write = rounded(write, p1)
        scores_t += product(write, tl.trans(rounded(read, p1)), PRECISION)
        dinfo_t += product(write, rounded(future, p1), PRECISION)
    before = t[:, None] < t[None, :]
    scores_t = tl.where(before, scores_t, 0.0)
    dpairs = product(info_t, tl.trans(dy_t), PRECISION)
    _store_scores(between.dscores, tl.where(before, dpairs, 0.0), here, PRECISION, CHUNK)
    pairs = scores_t * dpairs
    sum_read += tl.sum(pairs, 0)
    sum_write += tl.sum(pairs, 1)
    dinfo_t += product(rounded(scores_t, p1), dy_t, PRECISION)
    store_row(between.read_dread, sum_read, head, t_start, T, CHUNK)
    store_row(between.write_dwrite, sum_write, head, t_start, T, CHUNK)
    dinfo_t += dy_t.to(tl.float32)
    store_tokens(dinfo, dinfo_t, t_start, T, 0, D, CHUNK, BLOCK_V, WHOLE)


@triton.jit(do_not_specialize=["T", "chunks"])
def weak_coordinates_kernel(
    p1, p2, dp1, dp2, dlog_retention, out, prepared, between, H, T, scale, chunks,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    # All blocks of a chunk run at about the same time, and find what they share in the cache.
    chunk, d_start = tl.program_id(2), tl.program_id(1) * BLOCK_D
    here = head * chunks + chunk
    if tl.load(prepared.weak + here) == 0:
        return
    t_start = chunk * CHUNK
    p1 = of_head(p1, tl.program_id(0), H, ALIGNED)
    p2 = of_head(p2, tl.program_id(0) // GROUP, H // GROUP, ALIGNED)
    dp1 = of_head((dp1, out), tl.program_id(0), H, ALIGNED)
    dp2 = of_head((dp2, out), tl.program_id(0), H, ALIGNED)
    dg_head = of_head((dlog_retention, out), tl.program_id(0), H, ALIGNED)
    exponents = prepared.exponents + head * T * D, D, 1
    dread, dwrite = (between.dread + head * T * D, D, 1), (between.dwrite + head * T * D, D, 1)

    S, inverse_norm1, inverse_norm2 = load_selves(prepared.selves, head, t_start, T, CHUNK)
    exponent = load_tokens(exponents, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
    # What the states give to the gradients of r' and w'; the pairs' part is added here.
    dread_d = load_tokens(dread, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
    dwrite_d = load_tokens(dwrite, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
    total = load_channels(between.dtotal, here, d_start, D, BLOCK_D)
    p1_d = load_tokens(p1, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
    p2_d = load_tokens(p2, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
    p1_d, p2_d = p1_d.to(tl.float32), p2_d.to(tl.float32)
    read_decay, write_decay = exp(exponent, PRECISION), exp(-exponent, PRECISION)
    read = p1_d * (S * inverse_norm1)[:, None] * read_decay
    write = p2_d * (S * inverse_norm2)[:, None] * write_decay
    # Loaded, not formed: wgmma with a left operand computed in registers was miscompiled here.
    upper, lower = _load_scores(between.dscores, here, PRECISION, CHUNK)
    dread_d += product(tl.trans(upper), write, PRECISION)
    dwrite_d += product(upper, read, PRECISION)
    if PRECISION != "ieee":
        dread_d += product(tl.trans(lower), split(write)[0], PRECISION)
        dwrite_d += product(lower, split(read)[0], PRECISION)

    dg = tl.cumsum(read * dread_d - write * dwrite_d, 0, reverse=True) + total[None, :]
    store_tokens(dg_head, dg, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
    sum_read = load_row(between.read_dread, head, t_start, T, CHUNK)
    sum_write = load_row(between.write_dwrite, head, t_start, T, CHUNK)
    dlogit = dlogit_of(sum_read, sum_write, S, scale)
    dp1_d = project(dread_d * read_decay, p1_d, S, inverse_norm1, sum_read) + dlogit * p2_d
    dp2_d = project(dwrite_d * write_decay, p2_d, S, inverse_norm2, sum_write) + dlogit * p1_d
    store_tokens(dp1, dp1_d, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
    store_tokens(dp2, dp2_d, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks", "segments"])
def weak_gradients_kernel(
    p1, p2, info, dy, dp1, dp2, dinfo, dlog_retention, out, prepared, met, dmet,
    H, T, scale, chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The whole backward pass, for heads whose channels all fit.

    It ends one gradient after the other with a store, and loads the coordinates again for the next:
    held in registers over all of them, they were spilled, which moves more than loading does.
    """
    head = tl.cast(tl.program_id(0), tl.int64)
    chunk = tl.program_id(1)
    here, segment, own_past, own_future = place_of_chunk(
        chunk, head, chunks, segment_chunks, segments, D
    )
    if tl.load(prepared.weak + here) == 0:
        return
    t_start = chunk * CHUNK
    p1 = of_head(p1, tl.program_id(0), H, ALIGNED)
    p2 = of_head(p2, tl.program_id(0) // GROUP, H // GROUP, ALIGNED)
    info = of_head(info, tl.program_id(0) // GROUP, H // GROUP, ALIGNED)
    exponents = prepared.exponents + head * T * D, D, 1
    dy = of_head(dy, tl.program_id(0), H, ALIGNED)
    dp1 = of_head((dp1, out), tl.program_id(0), H, ALIGNED)
    dp2 = of_head((dp2, out), tl.program_id(0), H, ALIGNED)
    dinfo = of_head((dinfo, out), tl.program_id(0), H, ALIGNED)
    dg_head = of_head((dlog_retention, out), tl.program_id(0), H, ALIGNED)

    t = tl.arange(0, CHUNK)
    t_rows, t_columns = t[:, None], t[None, :]
    S, inverse_norm1, inverse_norm2 = load_selves(prepared.selves, head, t_start, T, CHUNK)
    dy_t = load_tokens(dy, t_start, T, 0, D, CHUNK, BLOCK_V, WHOLE)
    info_t = load_tokens(info, t_start, T, 0, D, CHUNK, BLOCK_V, WHOLE)
    exponent = load_tokens(exponents, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)
    p1_t = load_tokens(p1, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)
    p2_t = load_tokens(p2, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)
    read = p1_t.to(tl.float32) * (S * inverse_norm1)[:, None] * exp(exponent, PRECISION)
    write = p2_t.to(tl.float32) * (S * inverse_norm2)[:, None] * exp(-exponent, PRECISION)
    write = rounded(write, p1)
    scores_t = product(write, tl.trans(rounded(read, p1)), PRECISION)
    scores_t = rounded(tl.where(t_rows < t_columns, scores_t, 0.0), p1)
    dinfo_t = product(scores_t, dy_t, PRECISION)
    sum_write = tl.sum(info_t.to(tl.float32) * dinfo_t, 1)
    future = load_state(dmet, here, segment, own_future, 0, D, BLOCK_D, BLOCK_V)
    future *= exp(load_channels(prepared.halves, 2 * here + 1, 0, D, BLOCK_D), PRECISION)[:, None]
    dinfo_t += product(write, rounded(future, p1), PRECISION)
    dinfo_t += dy_t.to(tl.float32)
    store_tokens(dinfo, dinfo_t, t_start, T, 0, D, CHUNK, BLOCK_V, WHOLE)

    past = load_state(met, here, segment, own_past, 0, D, BLOCK_D, BLOCK_V)
    past *= exp(load_channels(prepared.halves, 2 * here, 0, D, BLOCK_D), PRECISION)[:, None]
    dtotal = tl.sum(past * future, 1)
    dread = product(dy_t, tl.trans(past), PRECISION)
    dwrite = product(info_t, tl.trans(future), PRECISION)

    exponent = load_tokens(exponents, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)
    p2_t = load_tokens(p2, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)
    write = p2_t.to(tl.float32) * (S * inverse_norm2)[:, None] * exp(-exponent, PRECISION)
    # <w', F I>, most of dp1 at the last tokens: in dinfo_t both factors are rounded.
    sum_write += tl.sum(write * dwrite, 1)
    # Split before the scores are formed: three tiles in FP32 would not fit.
    high, low = parts(write, PRECISION)
    dscores = product(dy_t, tl.trans(info_t), PRECISION)
    dscores = tl.where(t_rows > t_columns, dscores, 0.0)
    dread = add_product(dread, dscores, high, low, PRECISION)
    p1_t = load_tokens(p1, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)
    dread *= exp(exponent, PRECISION)
    read_dread = p1_t.to(tl.float32) * (S * inverse_norm1)[:, None] * dread
    sum_read = tl.sum(read_dread, 1)
    dlogit = dlogit_of(sum_read, sum_write, S, scale)
    p1_t, p2_t = p1_t.to(tl.float32), p2_t.to(tl.float32)
    dp1_t = project(dread, p1_t, S, inverse_norm1, sum_read) + dlogit * p2_t
    store_tokens(dp1, dp1_t, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)

    exponent = load_tokens(exponents, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)
    p1_t = load_tokens(p1, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)
    read = p1_t.to(tl.float32) * (S * inverse_norm1)[:, None] * exp(exponent, PRECISION)
    high, low = parts(read, PRECISION)
    p2_t = load_tokens(p2, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)
    write_decay = exp(-exponent, PRECISION)
    write = p2_t.to(tl.float32) * (S * inverse_norm2)[:, None] * write_decay
    dtotal += tl.sum(write * dwrite, 0)
    dscores_t = product(info_t, tl.trans(dy_t), PRECISION)
    dscores_t = tl.where(t_rows < t_columns, dscores_t, 0.0)
    dwrite = add_product(dwrite, dscores_t, high, low, PRECISION)
    read_dread -= write * dwrite
    p1_t, p2_t = p1_t.to(tl.float32), p2_t.to(tl.float32)
    dp2_t = project(dwrite * write_decay, p2_t, S, inverse_norm2, sum_write) + dlogit * p1_t
    store_tokens(dp2, dp2_t, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)
    later = zeros_and_ones(t_rows <= t_columns, PRECISION)
    dg = product(later, read_dread, PRECISION) + dtotal[None, :]
    store_tokens(dg_head, dg, t_start, T, 0, D, CHUNK, BLOCK_D, WHOLE)
