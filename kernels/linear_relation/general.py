"""Chunks of any retention, forward and backward: pairs of tokens by halves of blocks.

At every level the chunk is cut into blocks of tokens, each with a middle. One matrix product forms
all pairs across the middles. Its factor x_t is the read times the retention from the middle to t if
t is right of the middle, and the write times the retention from t to the middle if it is left. The
product is symmetric, and so is the gradient of the scores: a level needs one tile of x and one
exponential per number. No exponent is positive. The time does not depend on how strong the
retention is. README.md has the equations.

A program takes up to SHARE chunks and skips the weak ones. Views start at the chunk: t_start is 0.
"""

import triton
import triton.language as tl

from relation.kernels.linear_relation import tiles


@triton.jit
def _chunk_of_program(turn, chunks):
    """Return the index, among the chunks of all heads, of this program's chunk at `turn`.

    Every turn takes another head if there are enough. This spreads the work, because only some
    heads usually have chunks that are not weak. turn * chunks must fit 32 bits (not
    checked).
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    return turn * programs + (program + turn * chunks) % programs


@triton.jit
def _all_weak(weak, chunks, all_chunks, K: tl.constexpr):
    """Return whether all chunks of this program are weak, by one load for all of them."""
    index = _chunk_of_program(tl.arange(0, K.SHARE), chunks)
    flags = tl.load(weak + index, mask=index < all_chunks, other=1)
    return tl.min(flags.to(tl.int32), 0) != 0


@triton.jit
def _from(x, head, H, t_start, rest, K: tl.constexpr):
    """Return the view of `of_head` moved to token t_start; `rest` tokens are left."""
    pointer, stride_t, stride_d, _, _ = tiles.of_head(x, head, H, t_start, rest, K)
    return pointer + tl.cast(t_start, tl.int64) * stride_t, stride_t, stride_d, 0, rest


@triton.jit
def _rows(x, t, taken, d_start, BLOCK: tl.constexpr, K: tl.constexpr):
    """Load rows t of view x, (CHUNK, BLOCK); zeros outside and for tokens that are not taken."""
    pointer, stride_t, stride_d, _, T = x
    d = d_start + tl.arange(0, BLOCK)
    pointers = pointer + t[:, None] * stride_t + d[None, :] * stride_d
    if not K.WHOLE:
        taken &= t < T
    if K.D % BLOCK == 0:
        return tl.load(pointers, mask=taken[:, None], other=0.0)
    else:
        return tl.load(pointers, mask=taken[:, None] & (d < K.D)[None, :], other=0.0)


@triton.jit
def _to_middle(p1, p2, exponents, level, d_start, BLOCK: tl.constexpr, K: tl.constexpr):
    """Return a level's factors, without Self and norms, and their retention; FP32, (CHUNK, BLOCK).

    Blocks have 2^(level + 1) tokens. Right of the middle the factor is p1 times the retention from
    the middle to the token; left of it, p2 times the retention from the token to the middle.
    """
    t = tl.arange(0, K.CHUNK)
    right = ((t >> level) & 1) == 1
    read = _rows(p1, t, right, d_start, BLOCK, K)
    write = _rows(p2, t, ~right, d_start, BLOCK, K)
    # The last token left of the middle: 11 for the tokens 8 to 15, a block of level 2. If T cuts it
    # off, its block has no token to the right, so the level has no pair there.
    middle = (((t >> level) | 1) << level) - 1
    border = _rows(exponents, middle, middle >= 0, d_start, BLOCK, K)
    exponent = tiles.load_tokens(exponents, d_start, BLOCK, K)
    retained = tiles.exp(-tl.abs(exponent - border), K)
    return (read + write).to(tl.float32) * retained, retained


@triton.jit
def _scores(p1, p2, exponents, of_read, of_write, K: tl.constexpr):
    """Return a chunk's scores, FP32: A_tj in row t and in row j. The diagonal has no meaning.

    of_read, of_write: (CHUNK,), Self over the norm of p1 and of p2.
    """
    t = tl.arange(0, K.CHUNK)
    scores = tiles.zeros(K.CHUNK, K.CHUNK)
    # From the top level down: a level also forms pairs inside a half, which lower levels replace.
    for below in tl.range(0, K.LEVELS, disable_licm=True):
        level = K.LEVELS - 1 - below
        of_level = tl.where(((t >> level) & 1) == 1, of_read, of_write)[:, None]
        new = tiles.zeros(K.CHUNK, K.CHUNK)
        for d_start in range(0, K.D, K.BLOCK_S):
            x, _ = _to_middle(p1, p2, exponents, level, d_start, K.BLOCK_S, K)
            x = tiles.rounded(x * of_level, p1)
            pairs = tiles.product(x, tl.trans(x), K)
            new = pairs if K.BLOCK_S >= K.D else new + pairs
        # Keep new, (CHUNK, CHUNK), for all pairs inside one block of this level.
        block = t >> (level + 1)
        scores = tl.where(block[:, None] == block[None, :], new, scores)
    return scores


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def output_kernel(
    p1, p2, info, y, prepared, met, H, T, chunks, all_chunks, segment_chunks, segments,
    K: tl.constexpr,
):  # fmt: skip
    """y_t = I_t + sum_{j<t} A_tj I_j + C^T (r_t exp G(0, t))."""
    if _all_weak(prepared.weak, chunks, all_chunks, K):
        return
    t = tl.arange(0, K.CHUNK)
    for turn in tl.range(0, K.SHARE, disable_licm=True):
        index = _chunk_of_program(turn, chunks)
        if tl.load(prepared.weak + index, mask=index < all_chunks, other=1) == 0:
            h, chunk = index // chunks, index % chunks
            t_start = chunk * K.CHUNK
            rest = T - t_start
            p1_c = _from(p1, h, H, t_start, rest, K)
            p2_c = _from(p2, h // K.GROUP, H // K.GROUP, t_start, rest, K)
            info_c = _from(info, h // K.GROUP, H // K.GROUP, t_start, rest, K)
            y_c = _from(y, h, H, t_start, rest, K)
            head = tl.cast(h, tl.int64)
            here, past_place, _ = tiles.places_of(chunk, head, chunks, segment_chunks, segments, K)
            exponents = tiles.of_rows(prepared.exponents, (head * T + t_start) * K.D, 0, rest, K.D)
            S, inverse_norm1, inverse_norm2 = tiles.load_selves(prepared, head, t_start, T, K)
            of_read, of_write = S * inverse_norm1, S * inverse_norm2
            # A_tj for j < t, (CHUNK, CHUNK).
            scores = _scores(p1_c, p2_c, exponents, of_read, of_write, K)
            scores = tiles.rounded(tl.where(t[:, None] > t[None, :], scores, 0.0), p1)
            # y = I + A I, (CHUNK, BLOCK_V).
            info_t = tiles.load_tokens(info_c, 0, K.BLOCK_V, K)
            y_t = info_t.to(tl.float32) + tiles.product(scores, info_t, K)
            # y += (r exp G(0, t)) C: (CHUNK, BLOCK_D) times (BLOCK_D, BLOCK_V), block by block.
            for d_start in range(0, K.D, K.BLOCK_D):
                read = tiles.load_tokens(p1_c, d_start, K.BLOCK_D, K)
                exponent = tiles.load_tokens(exponents, d_start, K.BLOCK_D, K)
                left = tiles.load_channels(prepared.halves, 2 * here, d_start, K)
                since_start = tiles.exp(left[None, :] + exponent, K)
                read = read.to(tl.float32) * of_read[:, None] * since_start
                past = tiles.load_state(met, past_place, d_start, K)
                y_t += tiles.product(tiles.rounded(read, p1), tiles.rounded(past, p1), K)
            tiles.store_tokens(y_c, y_t, 0, K.BLOCK_V, K)


@triton.jit
def _store_pairs(dscores, tile, here, K: tl.constexpr):
    """Store a chunk's FP32 gradient of A: as FP32, or as two BF16 parts in one 32-bit word."""
    if K.IEEE:
        tl.store(tiles.square_of(dscores, here, K), tile)
    else:
        high, low = tiles.split(tile)
        high, low = high.to(tl.uint16, bitcast=True), low.to(tl.uint16, bitcast=True)
        words = dscores.to(tl.pointer_type(tl.uint32), bitcast=True)
        tl.store(tiles.square_of(words, here, K), (high.to(tl.uint32) << 16) | low.to(tl.uint32))


@triton.jit
def _times_pairs(dscores, x, here, level, K: tl.constexpr):
    """Return M @ x, FP32. M: what `_store_pairs` stored, masked to the pairs of one level."""
    half = tl.arange(0, K.CHUNK) >> level
    across = half[:, None] == (half ^ 1)[None, :]
    if K.IEEE:
        return tiles.product(
            tl.where(across, tl.load(tiles.square_of(dscores, here, K)), 0.0), x, K
        )
    else:
        words = dscores.to(tl.pointer_type(tl.uint32), bitcast=True)
        words = tl.where(across, tl.load(tiles.square_of(words, here, K)), 0)
        high = (words >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        low = (words & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        x_high, x_low = tiles.split(x)
        # Keep this order of products: with another one ptxas 12.8 lost an address (NOTES.md).
        result = tl.dot(low, x_high)
        result = tl.dot(high, x_high, result)
        return tl.dot(high, x_low, result)


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def information_kernel(
    p1, p2, info, dy, dinfo, prepared, met, dmet, between,
    H, T, chunks, all_chunks, segment_chunks, segments, K: tl.constexpr,
):  # fmt: skip
    """Compute dI, and `between` for `coordinates_kernel`."""
    if _all_weak(prepared.weak, chunks, all_chunks, K):
        return
    t = tl.arange(0, K.CHUNK)
    for turn in tl.range(0, K.SHARE, disable_licm=True):
        index = _chunk_of_program(turn, chunks)
        if tl.load(prepared.weak + index, mask=index < all_chunks, other=1) == 0:
            h, chunk = index // chunks, index % chunks
            t_start = chunk * K.CHUNK
            rest = T - t_start
            p1_c = _from(p1, h, H, t_start, rest, K)
            p2_c = _from(p2, h // K.GROUP, H // K.GROUP, t_start, rest, K)
            info_c = _from(info, h // K.GROUP, H // K.GROUP, t_start, rest, K)
            dy_c = _from(dy, h, H, t_start, rest, K)
            dinfo_c = _from(dinfo, h, H, t_start, rest, K)
            head = tl.cast(h, tl.int64)
            here, past_place, future_place = tiles.places_of(
                chunk, head, chunks, segment_chunks, segments, K
            )
            start = (head * T + t_start) * K.D
            exponents = tiles.of_rows(prepared.exponents, start, 0, rest, K.D)
            dread = tiles.of_rows(between.dread, start, 0, rest, K.D)
            dwrite = tiles.of_rows(between.dwrite, start, 0, rest, K.D)
            S, inverse_norm1, inverse_norm2 = tiles.load_selves(prepared, head, t_start, T, K)
            of_read, of_write = S * inverse_norm1, S * inverse_norm2
            # A, symmetric, (CHUNK, CHUNK).
            scores = _scores(p1_c, p2_c, exponents, of_read, of_write, K)
            is_last = (t == tl.minimum(rest, K.CHUNK) - 1)[:, None]
            info_t = tiles.load_tokens(info_c, 0, K.BLOCK_V, K)
            dy_t = tiles.load_tokens(dy_c, 0, K.BLOCK_V, K)
            # M_tj = <dY_t, I_j> for j < t, (CHUNK, CHUNK), in row t and in row j as A is.
            dpairs = tiles.product(dy_t, tl.trans(info_t), K)
            dpairs_t = tiles.product(info_t, tl.trans(dy_t), K)
            later, earlier = t[:, None] > t[None, :], t[:, None] < t[None, :]
            dpairs = tl.where(later, dpairs, dpairs_t)
            _store_pairs(between.dscores, dpairs, here, K)
            # The pairs' parts: <r_t, dr_t> sums M_tj A_tj over j < t, <w_j, dw_j> over t > j.
            dpairs *= scores
            sum_read = tl.sum(tl.where(later, dpairs, 0.0), 1)
            sum_write = tl.sum(tl.where(earlier, dpairs, 0.0), 1)
            # dI = dY + A^T dY, (CHUNK, BLOCK_V).
            scores_t = tiles.rounded(tl.where(earlier, scores, 0.0), p1)
            dinfo_t = dy_t.to(tl.float32) + tiles.product(scores_t, dy_t, K)
            # The states' parts, BLOCK_D channels at a time; C and dC' are (BLOCK_D, BLOCK_V).
            for d_start in range(0, K.D, K.BLOCK_D):
                exponent = tiles.load_tokens(exponents, d_start, K.BLOCK_D, K)
                left = tiles.load_channels(prepared.halves, 2 * here, d_start, K)
                right = tiles.load_channels(prepared.halves, 2 * here + 1, d_start, K)
                past = tiles.load_state(met, past_place, d_start, K)
                # Of dr: exp G(0, t) C dY, (CHUNK, BLOCK_D).
                since_start = tiles.exp(left[None, :] + exponent, K)
                dread_d = since_start * tiles.product(dy_t, tl.trans(past), K)
                read = tiles.load_tokens(p1_c, d_start, K.BLOCK_D, K)
                sum_read += tl.sum(read.to(tl.float32) * of_read[:, None] * dread_d, 1)
                # dtotal = exp G(0, n) rowsum(C dC') + sum of w_j exp G(j, n) dC' I_j over j < n.
                future = tiles.load_state(dmet, future_place, d_start, K)
                total = tiles.exp(left + right, K) * tl.sum(past * future, 1)
                # Of dw: exp G(t, n) dC' I, (CHUNK, BLOCK_D).
                to_end = tiles.exp(right[None, :] - exponent, K)
                dwrite_d = to_end * tiles.product(info_t, tl.trans(future), K)
                write = tiles.load_tokens(p2_c, d_start, K.BLOCK_D, K)
                write = write.to(tl.float32) * of_write[:, None]
                given = write * dwrite_d
                sum_write += tl.sum(given, 1)
                total += tl.sum(tl.where(is_last, 0.0, given), 0)
                # dI += (w exp G(t, n)) dC'.
                dinfo_t += tiles.product(
                    tiles.rounded(write * to_end, p1), tiles.rounded(future, p1), K
                )
                d = d_start + tl.arange(0, K.BLOCK_D)
                tl.store(between.dtotal + here * K.D + d, total, mask=d < K.D)
                tiles.store_tokens(dread, dread_d, d_start, K.BLOCK_D, K)
                tiles.store_tokens(dwrite, dwrite_d, d_start, K.BLOCK_D, K)
            tiles.store_tokens(dinfo_c, dinfo_t, 0, K.BLOCK_V, K)
            tiles.store_row(between.read_dread, sum_read, head, t_start, T, K)
            tiles.store_row(between.write_dwrite, sum_write, head, t_start, T, K)


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks"])
def coordinates_kernel(
    p1, p2, dp1, dp2, dlog_retention, out, prepared, between, H, T, scale, chunks, all_chunks,
    K: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of p1, p2 and g for BLOCK_D channels."""
    if _all_weak(prepared.weak, chunks, all_chunks, K):
        return
    d_start, t = tl.program_id(1) * K.BLOCK_D, tl.arange(0, K.CHUNK)
    for turn in tl.range(0, K.SHARE, disable_licm=True):
        index = _chunk_of_program(turn, chunks)
        if tl.load(prepared.weak + index, mask=index < all_chunks, other=1) == 0:
            h, chunk = index // chunks, index % chunks
            t_start = chunk * K.CHUNK
            rest = T - t_start
            p1_c = _from(p1, h, H, t_start, rest, K)
            p2_c = _from(p2, h // K.GROUP, H // K.GROUP, t_start, rest, K)
            dp1_c = _from((dp1, out), h, H, t_start, rest, K)
            dp2_c = _from((dp2, out), h, H, t_start, rest, K)
            dg_c = _from((dlog_retention, out), h, H, t_start, rest, K)
            head = tl.cast(h, tl.int64)
            here, start = head * chunks + chunk, (head * T + t_start) * K.D
            exponents = tiles.of_rows(prepared.exponents, start, 0, rest, K.D)
            S, inverse_norm1, inverse_norm2 = tiles.load_selves(prepared, head, t_start, T, K)
            # Start with the states' parts of dr and dw, (CHUNK, BLOCK_D). Each level adds Z = M x,
            # times the retention, to dr right of the middles and to dw left of them.
            dread = tiles.of_rows(between.dread, start, 0, rest, K.D)
            dwrite = tiles.of_rows(between.dwrite, start, 0, rest, K.D)
            dread_d = tiles.load_tokens(dread, d_start, K.BLOCK_D, K)
            dwrite_d = tiles.load_tokens(dwrite, d_start, K.BLOCK_D, K)
            for level in tl.range(0, K.LEVELS, disable_licm=True):
                x, retained = _to_middle(p1_c, p2_c, exponents, level, d_start, K.BLOCK_D, K)
                right = ((t >> level) & 1) == 1
                x *= (S * tl.where(right, inverse_norm1, inverse_norm2))[:, None]
                given = retained * _times_pairs(between.dscores, x, here, level, K)
                right = right[:, None]
                dread_d = tl.where(right, dread_d + given, dread_d)
                dwrite_d = tl.where(right, dwrite_d, dwrite_d + given)
            p1_d = tiles.load_tokens(p1_c, d_start, K.BLOCK_D, K).to(tl.float32)
            p2_d = tiles.load_tokens(p2_c, d_start, K.BLOCK_D, K).to(tl.float32)
            # dg_u = sum over t >= u of (r_t dr_t - w_t dw_t), per channel, plus dtotal. Both sums
            # leave out w dw of the last token: no step of the chunk retains its write. So every
            # term contains the retention of some step, and dg is right even if all are strong.
            is_last = (t == tl.minimum(rest, K.CHUNK) - 1)[:, None]
            dg = tl.where(is_last, 0.0, p2_d * (S * inverse_norm2)[:, None] * dwrite_d)
            dg = p1_d * (S * inverse_norm1)[:, None] * dread_d - dg
            dg = tiles.product(tiles.zeros_and_ones(t[:, None] <= t[None, :], K), dg, K)
            dg += tiles.load_channels(between.dtotal, here, d_start, K)[None, :]
            tiles.store_tokens(dg_c, dg, d_start, K.BLOCK_D, K)
            # dp = (S dr - p-hat <r, dr>) / |p| + dlogit times the other coordinate.
            sum_read = tiles.load_row(between.read_dread, head, t_start, T, K)
            sum_write = tiles.load_row(between.write_dwrite, head, t_start, T, K)
            dlogit = tiles.dlogit_of(sum_read, sum_write, S, scale)
            dp1_d = tiles.project(dread_d, p1_d, S, inverse_norm1, sum_read) + dlogit * p2_d
            tiles.store_tokens(dp1_c, dp1_d, d_start, K.BLOCK_D, K)
            dp2_d = tiles.project(dwrite_d, p2_d, S, inverse_norm2, sum_write) + dlogit * p1_d
            tiles.store_tokens(dp2_c, dp2_d, d_start, K.BLOCK_D, K)
