"""Chunks of weak retention, forward and backward: one pair of factors serves all pairs of tokens.

The factors are r'_t = r_t exp(e_t) and w'_j = w_j exp(-e_j), with e relative to the chunk's middle
m. They also serve the states P = exp(G(0, m)) C and F = exp(G(m, n)) dC'. So a block of channels
needs one tile exp(e) and its reciprocal. README.md has the equations (*Weak chunks*).
"""

import triton
import triton.language as tl

from relation.kernels.linear_relation import tiles


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks", "segments"])
def weak_output_kernel(
    p1, p2, info, y, prepared, met, H, T, chunks, segment_chunks, segments, K: tl.constexpr
):
    """y_t = I_t + sum_{j<t} <r'_t, w'_j> I_j + P^T r'_t."""
    h, head, chunk = tl.program_id(0), tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    here, past_place, _ = tiles.places_of(chunk, head, chunks, segment_chunks, segments, K)
    if tl.load(prepared.weak + here) == 0:
        return
    t_start = chunk * K.CHUNK
    p1, p2, info = tiles.of_inputs(p1, p2, info, h, H, t_start, T, K)
    exponents = tiles.of_rows(prepared.exponents, head * T * K.D, t_start, T, K.D)
    y = tiles.of_head(y, h, H, t_start, T, K)

    S, inverse_norm1, inverse_norm2 = tiles.load_selves(prepared, head, t_start, T, K)
    # By blocks of channels: <r'_t, w'_j>, (CHUNK, CHUNK), and r' P, (CHUNK, BLOCK_V).
    t = tl.arange(0, K.CHUNK)
    scores = tiles.zeros(K.CHUNK, K.CHUNK)
    y_t = tiles.zeros(K.CHUNK, K.BLOCK_V)
    for d_start in range(0, K.D, K.BLOCK_D):
        exponent = tiles.load_tokens(exponents, d_start, K.BLOCK_D, K)
        left = tiles.load_channels(prepared.halves, 2 * here, d_start, K)
        p1_d = tiles.load_tokens(p1, d_start, K.BLOCK_D, K)
        p2_d = tiles.load_tokens(p2, d_start, K.BLOCK_D, K)
        past = tiles.load_state(met, past_place, d_start, K)
        read = p1_d.to(tl.float32) * (S * inverse_norm1)[:, None] * tiles.exp(exponent, K)
        write = p2_d.to(tl.float32) * (S * inverse_norm2)[:, None] * tiles.exp(-exponent, K)
        read = tiles.rounded(read, p1)
        past *= tiles.exp(left, K)[:, None]
        scores += tiles.product(read, tl.trans(tiles.rounded(write, p1)), K)
        y_t += tiles.product(read, tiles.rounded(past, p1), K)
    # Add I, and the scores of j < t times I.
    info_t = tiles.load_tokens(info, 0, K.BLOCK_V, K)
    scores = tiles.rounded(tl.where(t[:, None] > t[None, :], scores, 0.0), p1)
    y_t += info_t.to(tl.float32) + tiles.product(scores, info_t, K)
    tiles.store_tokens(y, y_t, 0, K.BLOCK_V, K)


@triton.jit
def _store_scores(scores, tile, here, K: tl.constexpr):
    """Store an FP32 (CHUNK, CHUNK) tile: as FP32, or as the two BF16 parts of a product."""
    if K.IEEE:
        tl.store(tiles.square_of(scores, here, K), tile)
    else:
        high, low = tiles.split(tile)
        scores = scores.to(tl.pointer_type(tl.bfloat16), bitcast=True)
        tl.store(tiles.square_of(scores, 2 * here, K), high)
        tl.store(tiles.square_of(scores, 2 * here + 1, K), low)


@triton.jit
def _load_scores(scores, here, K: tl.constexpr):
    """Load what `_store_scores` stored: the tile and zero, or its high and low part."""
    if K.IEEE:
        return tl.load(tiles.square_of(scores, here, K)), 0.0
    else:
        scores = scores.to(tl.pointer_type(tl.bfloat16), bitcast=True)
        high = tl.load(tiles.square_of(scores, 2 * here, K))
        return high, tl.load(tiles.square_of(scores, 2 * here + 1, K))


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks", "segments"])
def weak_information_kernel(
    p1, p2, info, dy, dinfo, prepared, met, dmet, between,
    H, T, chunks, segment_chunks, segments, K: tl.constexpr,
):  # fmt: skip
    """Compute dI, and `between` for `weak_coordinates_kernel`."""
    h, head, chunk = tl.program_id(0), tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    here, past_place, future_place = tiles.places_of(
        chunk, head, chunks, segment_chunks, segments, K
    )
    if tl.load(prepared.weak + here) == 0:
        return
    t_start = chunk * K.CHUNK
    p1, p2, info = tiles.of_inputs(p1, p2, info, h, H, t_start, T, K)
    exponents = tiles.of_rows(prepared.exponents, head * T * K.D, t_start, T, K.D)
    dy = tiles.of_head(dy, h, H, t_start, T, K)
    dinfo = tiles.of_head(dinfo, h, H, t_start, T, K)
    dread = tiles.of_rows(between.dread, head * T * K.D, t_start, T, K.D)
    dwrite = tiles.of_rows(between.dwrite, head * T * K.D, t_start, T, K.D)

    S, inverse_norm1, inverse_norm2 = tiles.load_selves(prepared, head, t_start, T, K)
    info_t = tiles.load_tokens(info, 0, K.BLOCK_V, K)
    dy_t = tiles.load_tokens(dy, 0, K.BLOCK_V, K)
    t = tl.arange(0, K.CHUNK)
    scores_t = tiles.zeros(K.CHUNK, K.CHUNK)
    dinfo_t = tiles.zeros(K.CHUNK, K.BLOCK_V)
    sum_read = tiles.zeros(K.CHUNK)
    sum_write = tiles.zeros(K.CHUNK)
    # By blocks of channels: the states' parts P dY and F I, (CHUNK, BLOCK_D), and F^T w'.
    for d_start in range(0, K.D, K.BLOCK_D):
        exponent = tiles.load_tokens(exponents, d_start, K.BLOCK_D, K)
        left = tiles.load_channels(prepared.halves, 2 * here, d_start, K)
        right = tiles.load_channels(prepared.halves, 2 * here + 1, d_start, K)
        p1_d = tiles.load_tokens(p1, d_start, K.BLOCK_D, K)
        p2_d = tiles.load_tokens(p2, d_start, K.BLOCK_D, K)
        past = tiles.load_state(met, past_place, d_start, K)
        future = tiles.load_state(dmet, future_place, d_start, K)
        read = p1_d.to(tl.float32) * (S * inverse_norm1)[:, None] * tiles.exp(exponent, K)
        write = p2_d.to(tl.float32) * (S * inverse_norm2)[:, None] * tiles.exp(-exponent, K)
        past *= tiles.exp(left, K)[:, None]
        future *= tiles.exp(right, K)[:, None]
        from_past = tiles.product(dy_t, tl.trans(past), K)
        # <w', F I> is most of dp1 at the last tokens, so its factors are not rounded as in dinfo_t.
        from_future = tiles.product(info_t, tl.trans(future), K)
        sum_read += tl.sum(read * from_past, 1)
        sum_write += tl.sum(write * from_future, 1)
        tiles.store_tokens(dread, from_past, d_start, K.BLOCK_D, K)
        tiles.store_tokens(dwrite, from_future, d_start, K.BLOCK_D, K)
        # dtotal = rowsum(P F) + sum over j of w'_j F I_j, (BLOCK_D,).
        d = d_start + tl.arange(0, K.BLOCK_D)
        total = tl.sum(past * future, 1) + tl.sum(write * from_future, 0)
        tl.store(between.dtotal + here * K.D + d, total, mask=d < K.D)
        write = tiles.rounded(write, p1)
        scores_t += tiles.product(write, tl.trans(tiles.rounded(read, p1)), K)
        dinfo_t += tiles.product(write, tiles.rounded(future, p1), K)
    # The pairs' parts: row j, column t of scores_t is <r'_t, w'_j>, of dpairs <dY_t, I_j>, j < t.
    before = t[:, None] < t[None, :]
    scores_t = tl.where(before, scores_t, 0.0)
    dpairs = tiles.product(info_t, tl.trans(dy_t), K)
    _store_scores(between.dscores, tl.where(before, dpairs, 0.0), here, K)
    pairs = scores_t * dpairs
    sum_read += tl.sum(pairs, 0)
    sum_write += tl.sum(pairs, 1)
    dinfo_t += tiles.product(tiles.rounded(scores_t, p1), dy_t, K)
    tiles.store_row(between.read_dread, sum_read, head, t_start, T, K)
    tiles.store_row(between.write_dwrite, sum_write, head, t_start, T, K)
    dinfo_t += dy_t.to(tl.float32)
    tiles.store_tokens(dinfo, dinfo_t, 0, K.BLOCK_V, K)


@triton.jit(do_not_specialize=["T", "chunks"])
def weak_coordinates_kernel(
    p1, p2, dp1, dp2, dlog_retention, out, prepared, between, H, T, scale, chunks, K: tl.constexpr
):
    """Compute the gradients of p1, p2 and g for BLOCK_D channels."""
    h, head = tl.program_id(0), tl.cast(tl.program_id(0), tl.int64)
    # In this order all blocks of a chunk run at about the same time and share loads in the cache.
    chunk, d_start = tl.program_id(2), tl.program_id(1) * K.BLOCK_D
    here = head * chunks + chunk
    if tl.load(prepared.weak + here) == 0:
        return
    t_start = chunk * K.CHUNK
    p1 = tiles.of_head(p1, h, H, t_start, T, K)
    p2 = tiles.of_head(p2, h // K.GROUP, H // K.GROUP, t_start, T, K)
    dp1 = tiles.of_head((dp1, out), h, H, t_start, T, K)
    dp2 = tiles.of_head((dp2, out), h, H, t_start, T, K)
    dg_head = tiles.of_head((dlog_retention, out), h, H, t_start, T, K)
    exponents = tiles.of_rows(prepared.exponents, head * T * K.D, t_start, T, K.D)
    dread = tiles.of_rows(between.dread, head * T * K.D, t_start, T, K.D)
    dwrite = tiles.of_rows(between.dwrite, head * T * K.D, t_start, T, K.D)

    S, inverse_norm1, inverse_norm2 = tiles.load_selves(prepared, head, t_start, T, K)
    exponent = tiles.load_tokens(exponents, d_start, K.BLOCK_D, K)
    # dr' and dw', (CHUNK, BLOCK_D): first the states' parts P dY and F I, below the pairs' parts.
    dread_d = tiles.load_tokens(dread, d_start, K.BLOCK_D, K)
    dwrite_d = tiles.load_tokens(dwrite, d_start, K.BLOCK_D, K)
    total = tiles.load_channels(between.dtotal, here, d_start, K)
    p1_d = tiles.load_tokens(p1, d_start, K.BLOCK_D, K)
    p2_d = tiles.load_tokens(p2, d_start, K.BLOCK_D, K)
    p1_d, p2_d = p1_d.to(tl.float32), p2_d.to(tl.float32)
    read_decay, write_decay = tiles.exp(exponent, K), tiles.exp(-exponent, K)
    read = p1_d * (S * inverse_norm1)[:, None] * read_decay
    write = p2_d * (S * inverse_norm2)[:, None] * write_decay
    # <dY_t, I_j> is loaded. With a left operand computed in registers wgmma was miscompiled here.
    upper, lower = _load_scores(between.dscores, here, K)
    dread_d += tiles.product(tl.trans(upper), write, K)
    dwrite_d += tiles.product(upper, read, K)
    if not K.IEEE:
        dread_d += tiles.product(tl.trans(lower), tiles.split(write)[0], K)
        dwrite_d += tiles.product(lower, tiles.split(read)[0], K)

    # dg_u = sum over t >= u of (r'_t dr'_t - w'_t dw'_t) + dtotal, per channel.
    dg = tl.cumsum(read * dread_d - write * dwrite_d, 0, reverse=True) + total[None, :]
    tiles.store_tokens(dg_head, dg, d_start, K.BLOCK_D, K)
    sum_read = tiles.load_row(between.read_dread, head, t_start, T, K)
    sum_write = tiles.load_row(between.write_dwrite, head, t_start, T, K)
    dlogit = tiles.dlogit_of(sum_read, sum_write, S, scale)
    dp1_d = tiles.project(dread_d * read_decay, p1_d, S, inverse_norm1, sum_read) + dlogit * p2_d
    dp2_d = tiles.project(dwrite_d * write_decay, p2_d, S, inverse_norm2, sum_write) + dlogit * p1_d
    tiles.store_tokens(dp1, dp1_d, d_start, K.BLOCK_D, K)
    tiles.store_tokens(dp2, dp2_d, d_start, K.BLOCK_D, K)


@triton.jit
def _parts(tile, K: tl.constexpr):
    """Return the right operand of `_add_product`: two BF16 parts, or with IEEE the tile twice."""
    if K.IEEE:
        return tile, tile
    else:
        return tiles.split(tile)


@triton.jit
def _add_product(result, a, high, low, K: tl.constexpr):
    """Return result + a @ b of FP32 tiles, as `product` forms it. high, low: b's `_parts`."""
    if K.IEEE:
        return tl.dot(a, high, result, input_precision="ieee")
    else:
        a_high, a_low = tiles.split(a)
        result = tl.dot(a_low, high, result)
        result = tl.dot(a_high, low, result)
        return tl.dot(a_high, high, result)


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks", "segments"])
def weak_gradients_kernel(
    p1, p2, info, dy, dp1, dp2, dinfo, dlog_retention, out, prepared, met, dmet,
    H, T, scale, chunks, segment_chunks, segments, K: tl.constexpr,
):  # fmt: skip
    """The whole backward pass, for heads whose channels fit one tile.

    It stores one gradient after the other and loads p1, p2 and e again for the next. Kept in
    registers they were spilled, which moves more bytes than loading does.
    """
    h, head, chunk = tl.program_id(0), tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    here, past_place, future_place = tiles.places_of(
        chunk, head, chunks, segment_chunks, segments, K
    )
    if tl.load(prepared.weak + here) == 0:
        return
    t_start = chunk * K.CHUNK
    p1, p2, info = tiles.of_inputs(p1, p2, info, h, H, t_start, T, K)
    exponents = tiles.of_rows(prepared.exponents, head * T * K.D, t_start, T, K.D)
    dy = tiles.of_head(dy, h, H, t_start, T, K)
    dp1 = tiles.of_head((dp1, out), h, H, t_start, T, K)
    dp2 = tiles.of_head((dp2, out), h, H, t_start, T, K)
    dinfo = tiles.of_head((dinfo, out), h, H, t_start, T, K)
    dg_head = tiles.of_head((dlog_retention, out), h, H, t_start, T, K)

    t = tl.arange(0, K.CHUNK)
    t_rows, t_columns = t[:, None], t[None, :]
    S, inverse_norm1, inverse_norm2 = tiles.load_selves(prepared, head, t_start, T, K)
    dy_t = tiles.load_tokens(dy, 0, K.BLOCK_V, K)
    info_t = tiles.load_tokens(info, 0, K.BLOCK_V, K)
    # dI_j = dY_j + F^T w'_j + sum over t > j of <r'_t, w'_j> dY_t, (CHUNK, BLOCK_V).
    exponent = tiles.load_tokens(exponents, 0, K.BLOCK_D, K)
    p1_t = tiles.load_tokens(p1, 0, K.BLOCK_D, K)
    p2_t = tiles.load_tokens(p2, 0, K.BLOCK_D, K)
    read = p1_t.to(tl.float32) * (S * inverse_norm1)[:, None] * tiles.exp(exponent, K)
    write = p2_t.to(tl.float32) * (S * inverse_norm2)[:, None] * tiles.exp(-exponent, K)
    write = tiles.rounded(write, p1)
    scores_t = tiles.product(write, tl.trans(tiles.rounded(read, p1)), K)
    scores_t = tiles.rounded(tl.where(t_rows < t_columns, scores_t, 0.0), p1)
    dinfo_t = tiles.product(scores_t, dy_t, K)
    sum_write = tl.sum(info_t.to(tl.float32) * dinfo_t, 1)
    future = tiles.load_state(dmet, future_place, 0, K)
    future *= tiles.exp(tiles.load_channels(prepared.halves, 2 * here + 1, 0, K), K)[:, None]
    dinfo_t += tiles.product(write, tiles.rounded(future, p1), K)
    dinfo_t += dy_t.to(tl.float32)
    tiles.store_tokens(dinfo, dinfo_t, 0, K.BLOCK_V, K)

    # The states' parts: rowsum(P F), P dY and F I, (BLOCK_D,) and twice (CHUNK, BLOCK_D).
    past = tiles.load_state(met, past_place, 0, K)
    past *= tiles.exp(tiles.load_channels(prepared.halves, 2 * here, 0, K), K)[:, None]
    dtotal = tl.sum(past * future, 1)
    dread = tiles.product(dy_t, tl.trans(past), K)
    dwrite = tiles.product(info_t, tl.trans(future), K)

    # dp1, from dr = exp(e) dr' with dr'_t = P dY_t + sum over j < t of <dY_t, I_j> w'_j.
    exponent = tiles.load_tokens(exponents, 0, K.BLOCK_D, K)
    p2_t = tiles.load_tokens(p2, 0, K.BLOCK_D, K)
    write = p2_t.to(tl.float32) * (S * inverse_norm2)[:, None] * tiles.exp(-exponent, K)
    # <w', F I> is most of dp1 at the last tokens, so its factors are not rounded as in dinfo_t.
    sum_write += tl.sum(write * dwrite, 1)
    # w' is split before the scores are formed: three FP32 tiles would not fit in registers.
    high, low = _parts(write, K)
    dscores = tiles.product(dy_t, tl.trans(info_t), K)
    dscores = tl.where(t_rows > t_columns, dscores, 0.0)
    dread = _add_product(dread, dscores, high, low, K)
    p1_t = tiles.load_tokens(p1, 0, K.BLOCK_D, K)
    dread *= tiles.exp(exponent, K)
    read_dread = p1_t.to(tl.float32) * (S * inverse_norm1)[:, None] * dread
    sum_read = tl.sum(read_dread, 1)
    dlogit = tiles.dlogit_of(sum_read, sum_write, S, scale)
    p1_t, p2_t = p1_t.to(tl.float32), p2_t.to(tl.float32)
    dp1_t = tiles.project(dread, p1_t, S, inverse_norm1, sum_read) + dlogit * p2_t
    tiles.store_tokens(dp1, dp1_t, 0, K.BLOCK_D, K)

    # dp2, from dw = exp(-e) dw' with dw'_j = F I_j + sum over t > j of <dY_t, I_j> r'_t.
    exponent = tiles.load_tokens(exponents, 0, K.BLOCK_D, K)
    p1_t = tiles.load_tokens(p1, 0, K.BLOCK_D, K)
    read = p1_t.to(tl.float32) * (S * inverse_norm1)[:, None] * tiles.exp(exponent, K)
    high, low = _parts(read, K)
    p2_t = tiles.load_tokens(p2, 0, K.BLOCK_D, K)
    write_decay = tiles.exp(-exponent, K)
    write = p2_t.to(tl.float32) * (S * inverse_norm2)[:, None] * write_decay
    dtotal += tl.sum(write * dwrite, 0)
    dscores_t = tiles.product(info_t, tl.trans(dy_t), K)
    dscores_t = tl.where(t_rows < t_columns, dscores_t, 0.0)
    dwrite = _add_product(dwrite, dscores_t, high, low, K)
    read_dread -= write * dwrite
    p1_t, p2_t = p1_t.to(tl.float32), p2_t.to(tl.float32)
    dp2_t = tiles.project(dwrite * write_decay, p2_t, S, inverse_norm2, sum_write) + dlogit * p1_t
    tiles.store_tokens(dp2, dp2_t, 0, K.BLOCK_D, K)
    # dg_u = sum over t >= u of (r'_t dr'_t - w'_t dw'_t) + dtotal, per channel.
    later = tiles.zeros_and_ones(t_rows <= t_columns, K)
    dg = tiles.product(later, read_dread, K) + dtotal[None, :]
    tiles.store_tokens(dg_head, dg, 0, K.BLOCK_D, K)
