"""Chunks of any retention, forward and backward: pairs of tokens by halves of blocks.

At every level a chunk's blocks of tokens are halved, and all pairs across their middles are one
product: of each token's coordinate, of reads right of the middle and of writes left of it, times
its retention up to the middle. That product is symmetric, and so is the gradient of all scores, so
a level takes one tile of coordinates and one exponential a number. No exponent is above zero, and
the time does not depend on how strong the retention is. README.md has the equations.

A program takes up to SHARE chunks and leaves weak ones to their own kernels. Its views start at the
chunk: t_start is 0, and `rest` tokens are left.
"""

import triton
import triton.language as tl

from relation.kernels.linear_relation.tiles import (
    dlogit_of,
    exp,
    load_channels,
    load_row,
    load_selves,
    load_state,
    load_tokens,
    of_head,
    of_rows,
    places_of,
    product,
    project,
    rounded,
    split,
    square_of,
    store_row,
    store_tokens,
    zeros,
    zeros_and_ones,
)


@triton.jit
def _chunk_of_program(turn, chunks):
    """The index among the chunks of all heads that this program takes at its `turn`.

    Of another head at every turn, where there are enough: the chunks that are not weak are those of
    some heads, as a rule. 32 bits have to hold turn * chunks (`Call.share_out`).
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    return turn * programs + (program + turn * chunks) % programs


@triton.jit
def _all_weak(weak, chunks, all_chunks, K: tl.constexpr):
    """Whether no chunk of this program is for these kernels: one read tells, not one each."""
    index = _chunk_of_program(tl.arange(0, K.SHARE), chunks)
    flags = tl.load(weak + index, mask=index < all_chunks, other=1)
    return tl.min(flags.to(tl.int32), 0) != 0


@triton.jit
def _from(x, head, H, t_start, rest, K: tl.constexpr):
    """`of_head`, starting at token t_start."""
    pointer, stride_t, stride_d, _, _ = of_head(x, head, H, t_start, rest, K)
    return pointer + tl.cast(t_start, tl.int64) * stride_t, stride_t, stride_d, 0, rest


@triton.jit
def _rows(x, t, taken, d_start, BLOCK: tl.constexpr, K: tl.constexpr):
    """Rows of tokens; zeros where none is taken."""
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
    """Coordinates of a level and their retention, both FP32, (CHUNK, BLOCK).

    Of tokens right of the middle of their block of 2^(level + 1) p1, times the retention from the
    middle; of the others p2, times that up to it.
    """
    t = tl.arange(0, K.CHUNK)
    right = ((t >> level) & 1) == 1
    read = _rows(p1, t, right, d_start, BLOCK, K)
    write = _rows(p2, t, ~right, d_start, BLOCK, K)
    # The last token left of the middle. Where T cuts it off, no token stands right of it, and the
    # level gives nothing to its block.
    middle = (((t >> level) | 1) << level) - 1
    border = _rows(exponents, middle, middle >= 0, d_start, BLOCK, K)
    own = load_tokens(exponents, d_start, BLOCK, K)
    retained = exp(-tl.abs(own - border), K)
    return (read + write).to(tl.float32) * retained, retained


@triton.jit
def _scores(p1, p2, exponents, of_read, of_write, K: tl.constexpr):
    """A chunk's scores, symmetric: A_tj in row t and in row j. What is on the diagonal is nothing.

    of_read, of_write: what normalises p1 and p2, times Self.
    """
    t = tl.arange(0, K.CHUNK)
    scores = zeros(K.CHUNK, K.CHUNK)
    # A level also forms pairs of one half of a block, which the levels below replace.
    for below in tl.range(0, K.LEVELS, disable_licm=True):
        level = K.LEVELS - 1 - below
        of_level = tl.where(((t >> level) & 1) == 1, of_read, of_write)[:, None]
        new = zeros(K.CHUNK, K.CHUNK)
        for d_start in range(0, K.D, K.BLOCK_S):
            x, _ = _to_middle(p1, p2, exponents, level, d_start, K.BLOCK_S, K)
            x = rounded(x * of_level, p1)
            pairs = product(x, tl.trans(x), K)
            new = pairs if K.BLOCK_S >= K.D else new + pairs
        block = t >> (level + 1)
        scores = tl.where(block[:, None] == block[None, :], new, scores)
    return scores


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def output_kernel(
    p1, p2, info, y, prepared, met, H, T, chunks, all_chunks, segment_chunks, segments,
    K: tl.constexpr,
):  # fmt: skip
    """y = I + A I + C^T (r exp G(0, t))."""
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
            here, past_place, _ = places_of(chunk, head, chunks, segment_chunks, segments, K)
            exponents = of_rows(prepared.exponents, (head * T + t_start) * K.D, 0, rest, K.D)
            S, inverse_norm1, inverse_norm2 = load_selves(prepared, head, t_start, T, K)
            of_read, of_write = S * inverse_norm1, S * inverse_norm2
            scores = _scores(p1_c, p2_c, exponents, of_read, of_write, K)
            scores = rounded(tl.where(t[:, None] > t[None, :], scores, 0.0), p1)
            info_t = load_tokens(info_c, 0, K.BLOCK_V, K)
            y_t = info_t.to(tl.float32) + product(scores, info_t, K)
            for d_start in range(0, K.D, K.BLOCK_D):
                read = load_tokens(p1_c, d_start, K.BLOCK_D, K)
                exponent = load_tokens(exponents, d_start, K.BLOCK_D, K)
                left = load_channels(prepared.halves, 2 * here, d_start, K)
                since_start = exp(left[None, :] + exponent, K)
                read = read.to(tl.float32) * of_read[:, None] * since_start
                past = load_state(met, past_place, d_start, K)
                y_t += product(rounded(read, p1), rounded(past, p1), K)
            store_tokens(y_c, y_t, 0, K.BLOCK_V, K)


@triton.jit
def _store_pairs(dscores, tile, here, K: tl.constexpr):
    """Keep a chunk's FP32 gradient of scores: whole, or two BF16 parts of each in one word."""
    if K.PRECISION == "ieee":
        tl.store(square_of(dscores, here, K), tile)
    else:
        high, low = split(tile)
        high, low = high.to(tl.uint16, bitcast=True), low.to(tl.uint16, bitcast=True)
        words = dscores.to(tl.pointer_type(tl.uint32), bitcast=True)
        tl.store(square_of(words, here, K), (high.to(tl.uint32) << 16) | low.to(tl.uint32))


@triton.jit
def _times_pairs(dscores, x, here, level, K: tl.constexpr):
    """What `_store_pairs` kept, of a level's pairs, @ the FP32 tile x."""
    half = tl.arange(0, K.CHUNK) >> level
    across = half[:, None] == (half ^ 1)[None, :]
    if K.PRECISION == "ieee":
        return product(tl.where(across, tl.load(square_of(dscores, here, K)), 0.0), x, K)
    else:
        words = dscores.to(tl.pointer_type(tl.uint32), bitcast=True)
        words = tl.where(across, tl.load(square_of(words, here, K)), 0)
        high = (words >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        low = (words & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        x_high, x_low = split(x)
        # In this order: another let ptxas 12.8 lose an address.
        result = tl.dot(low, x_high)
        result = tl.dot(high, x_high, result)
        return tl.dot(high, x_low, result)


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def information_kernel(
    p1, p2, info, dy, dinfo, prepared, met, dmet, between,
    H, T, chunks, all_chunks, segment_chunks, segments, K: tl.constexpr,
):  # fmt: skip
    """dI, and what `coordinates_kernel` takes."""
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
            here, past_place, future_place = places_of(
                chunk, head, chunks, segment_chunks, segments, K
            )
            start = (head * T + t_start) * K.D
            exponents = of_rows(prepared.exponents, start, 0, rest, K.D)
            dread = of_rows(between.dread, start, 0, rest, K.D)
            dwrite = of_rows(between.dwrite, start, 0, rest, K.D)
            S, inverse_norm1, inverse_norm2 = load_selves(prepared, head, t_start, T, K)
            of_read, of_write = S * inverse_norm1, S * inverse_norm2
            scores = _scores(p1_c, p2_c, exponents, of_read, of_write, K)
            is_last = (t == tl.minimum(rest, K.CHUNK) - 1)[:, None]
            info_t = load_tokens(info_c, 0, K.BLOCK_V, K)
            dy_t = load_tokens(dy_c, 0, K.BLOCK_V, K)
            # <dY_t, I_j> in row t and in row j, as the scores are.
            dpairs = product(dy_t, tl.trans(info_t), K)
            dpairs_t = product(info_t, tl.trans(dy_t), K)
            later, earlier = t[:, None] > t[None, :], t[:, None] < t[None, :]
            dpairs = tl.where(later, dpairs, dpairs_t)
            _store_pairs(between.dscores, dpairs, here, K)
            dpairs *= scores
            sum_read = tl.sum(tl.where(later, dpairs, 0.0), 1)
            sum_write = tl.sum(tl.where(earlier, dpairs, 0.0), 1)
            scores_t = rounded(tl.where(earlier, scores, 0.0), p1)
            dinfo_t = dy_t.to(tl.float32) + product(scores_t, dy_t, K)
            for d_start in range(0, K.D, K.BLOCK_D):
                exponent = load_tokens(exponents, d_start, K.BLOCK_D, K)
                left = load_channels(prepared.halves, 2 * here, d_start, K)
                right = load_channels(prepared.halves, 2 * here + 1, d_start, K)
                past = load_state(met, past_place, d_start, K)
                since_start = exp(left[None, :] + exponent, K)
                dread_d = since_start * product(dy_t, tl.trans(past), K)
                read = load_tokens(p1_c, d_start, K.BLOCK_D, K)
                sum_read += tl.sum(read.to(tl.float32) * of_read[:, None] * dread_d, 1)
                future = load_state(dmet, future_place, d_start, K)
                total = exp(left + right, K) * tl.sum(past * future, 1)
                to_end = exp(right[None, :] - exponent, K)
                dwrite_d = to_end * product(info_t, tl.trans(future), K)
                write = load_tokens(p2_c, d_start, K.BLOCK_D, K)
                write = write.to(tl.float32) * of_write[:, None]
                given = write * dwrite_d
                sum_write += tl.sum(given, 1)
                total += tl.sum(tl.where(is_last, 0.0, given), 0)
                dinfo_t += product(rounded(write * to_end, p1), rounded(future, p1), K)
                d = d_start + tl.arange(0, K.BLOCK_D)
                tl.store(between.dtotal + here * K.D + d, total, mask=d < K.D)
                store_tokens(dread, dread_d, d_start, K.BLOCK_D, K)
                store_tokens(dwrite, dwrite_d, d_start, K.BLOCK_D, K)
            store_tokens(dinfo_c, dinfo_t, 0, K.BLOCK_V, K)
            store_row(between.read_dread, sum_read, head, t_start, T, K)
            store_row(between.write_dwrite, sum_write, head, t_start, T, K)


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks"])
def coordinates_kernel(
    p1, p2, dp1, dp2, dlog_retention, out, prepared, between, H, T, scale, chunks, all_chunks,
    K: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of channels of p1, p2 and g."""
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
            exponents = of_rows(prepared.exponents, start, 0, rest, K.D)
            S, inverse_norm1, inverse_norm2 = load_selves(prepared, head, t_start, T, K)
            # What the states give; a level adds to half of the reads and to half of the writes.
            dread = of_rows(between.dread, start, 0, rest, K.D)
            dwrite = of_rows(between.dwrite, start, 0, rest, K.D)
            dread_d = load_tokens(dread, d_start, K.BLOCK_D, K)
            dwrite_d = load_tokens(dwrite, d_start, K.BLOCK_D, K)
            for level in tl.range(0, K.LEVELS, disable_licm=True):
                x, retained = _to_middle(p1_c, p2_c, exponents, level, d_start, K.BLOCK_D, K)
                right = ((t >> level) & 1) == 1
                x *= (S * tl.where(right, inverse_norm1, inverse_norm2))[:, None]
                given = retained * _times_pairs(between.dscores, x, here, level, K)
                right = right[:, None]
                dread_d = tl.where(right, dread_d + given, dread_d)
                dwrite_d = tl.where(right, dwrite_d, dwrite_d + given)
            p1_d = load_tokens(p1_c, d_start, K.BLOCK_D, K).to(tl.float32)
            p2_d = load_tokens(p2_c, d_start, K.BLOCK_D, K).to(tl.float32)
            # dg_u is the sum over t >= u of <r_t, dr_t> less <w_t, dw_t>, and what a chunk gives to
            # all of its steps. Of the last token, whose write no step of the chunk retains, neither
            # takes <w, dw>. So each term retains what some step does, and dg is right also where
            # all steps are strong.
            is_last = (t == tl.minimum(rest, K.CHUNK) - 1)[:, None]
            dg = tl.where(is_last, 0.0, p2_d * (S * inverse_norm2)[:, None] * dwrite_d)
            dg = p1_d * (S * inverse_norm1)[:, None] * dread_d - dg
            dg = product(zeros_and_ones(t[:, None] <= t[None, :], K), dg, K)
            dg += load_channels(between.dtotal, here, d_start, K)[None, :]
            store_tokens(dg_c, dg, d_start, K.BLOCK_D, K)
            sum_read = load_row(between.read_dread, head, t_start, T, K)
            sum_write = load_row(between.write_dwrite, head, t_start, T, K)
            dlogit = dlogit_of(sum_read, sum_write, S, scale)
            dp1_d = project(dread_d, p1_d, S, inverse_norm1, sum_read) + dlogit * p2_d
            store_tokens(dp1_c, dp1_d, d_start, K.BLOCK_D, K)
            dp2_d = project(dwrite_d, p2_d, S, inverse_norm2, sum_write) + dlogit * p1_d
            store_tokens(dp2_c, dp2_d, d_start, K.BLOCK_D, K)
