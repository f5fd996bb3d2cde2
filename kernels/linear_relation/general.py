"""Chunks of any retention, forward and backward: pairs of tokens by halves of blocks.

At every level a chunk's blocks of tokens are halved, and all pairs across their middles are one
product: of each token's coordinate, of reads right of the middle and of writes left of it, times
its retention up to the middle. That product is symmetric, and so is the gradient of all scores, so
a level takes one tile of coordinates and one exponential a number. No exponent is above zero, and
the time does not depend on how strong the retention is. README.md has the equations.

A program takes up to SHARE chunks and leaves weak ones to their own kernels.
"""

import triton
import triton.language as tl

from relation.kernels.linear_relation.arithmetic import (
    dlogit_of,
    exp,
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


@triton.jit
def _chunk_of_program(turn, chunks):
    """The index among the chunks of all heads that this program takes at its `turn`.

    Of another head at every turn, where there are enough: the chunks that are not weak are those of
    some heads, as a rule. 32 bits have to hold turn * chunks (`Call.share_out`).
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    return turn * programs + (program + turn * chunks) % programs


@triton.jit
def _all_weak(weak, chunks, all_chunks, SHARE: tl.constexpr):
    """Whether no chunk of this program is for these kernels: one read tells, not one each."""
    index = _chunk_of_program(tl.arange(0, SHARE), chunks)
    flags = tl.load(weak + index, mask=index < all_chunks, other=1)
    return tl.min(flags.to(tl.int32), 0) != 0


@triton.jit
def _from(x, t_start):
    """A view that starts at token t_start."""
    pointer, stride_t, stride_d = x
    return pointer + tl.cast(t_start, tl.int64) * stride_t, stride_t, stride_d


@triton.jit
def _rows(
    x, t, taken, T, d_start, D: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr
):  # fmt: skip
    """Rows of tokens; zeros where none is taken."""
    pointer, stride_t, stride_d = x
    d = d_start + tl.arange(0, BLOCK_D)
    pointers = pointer + t[:, None] * stride_t + d[None, :] * stride_d
    if not WHOLE:
        taken &= t < T
    if D % BLOCK_D == 0:
        return tl.load(pointers, mask=taken[:, None], other=0.0)
    else:
        return tl.load(pointers, mask=taken[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def _to_middle(
    p1, p2, exponents, level, T, d_start, PRECISION: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Coordinates of a level and their retention, both FP32, (CHUNK, BLOCK_D).

    Of tokens right of the middle of their block of 2^(level + 1) p1, times the retention from the
    middle; of the others p2, times that up to it. All views start at the chunk.
    """
    t = tl.arange(0, CHUNK)
    right = ((t >> level) & 1) == 1
    read = _rows(p1, t, right, T, d_start, D, BLOCK_D, WHOLE)
    write = _rows(p2, t, ~right, T, d_start, D, BLOCK_D, WHOLE)
    # The last token left of the middle. Where T cuts it off, no token stands right of it, and the
    # level gives nothing to its block.
    middle = (((t >> level) | 1) << level) - 1
    border = _rows(exponents, middle, middle >= 0, T, d_start, D, BLOCK_D, WHOLE)
    own = load_tokens(exponents, 0, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
    retained = exp(-tl.abs(own - border), PRECISION)
    return (read + write).to(tl.float32) * retained, retained


@triton.jit
def _scores(
    p1, p2, exponents, of_read, of_write, T, PRECISION: tl.constexpr, LEVELS: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """A chunk's scores, symmetric: A_tj in row t and in row j. What is on the diagonal is nothing.

    of_read, of_write: what normalises p1 and p2, times Self.
    """
    t = tl.arange(0, CHUNK)
    scores = tl.zeros([CHUNK, CHUNK], tl.float32)
    # A level also forms pairs of one half of a block, which the levels below replace.
    for below in tl.range(0, LEVELS, disable_licm=True):
        level = LEVELS - 1 - below
        of_level = tl.where(((t >> level) & 1) == 1, of_read, of_write)[:, None]
        new = tl.zeros([CHUNK, CHUNK], tl.float32)
        for d_start in range(0, D, BLOCK_D):
            x, _ = _to_middle(
                p1, p2, exponents, level, T, d_start, PRECISION, D, CHUNK, BLOCK_D, WHOLE
            )
            x = rounded(x * of_level, p1)
            pairs = product(x, tl.trans(x), PRECISION)
            new = pairs if BLOCK_D >= D else new + pairs
        block = t >> (level + 1)
        scores = tl.where(block[:, None] == block[None, :], new, scores)
    return scores


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def output_kernel(
    p1, p2, info, y, prepared, met, H, T, chunks, all_chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    LEVELS: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """y = I + A I + C^T (r exp G(0, t))."""
    if _all_weak(prepared.weak, chunks, all_chunks, SHARE):
        return
    t = tl.arange(0, CHUNK)
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = _chunk_of_program(turn, chunks)
        if tl.load(prepared.weak + index, mask=index < all_chunks, other=1) == 0:
            head, chunk = index // chunks, index % chunks
            t_start = chunk * CHUNK
            rest = T - t_start
            p1_c = _from(of_head(p1, head, H, ALIGNED), t_start)
            p2_c = _from(of_head(p2, head // GROUP, H // GROUP, ALIGNED), t_start)
            info_c = _from(of_head(info, head // GROUP, H // GROUP, ALIGNED), t_start)
            y_c = _from(of_head(y, head, H, ALIGNED), t_start)
            head = tl.cast(head, tl.int64)
            here, segment, own_past, _ = place_of_chunk(
                chunk, head, chunks, segment_chunks, segments, D
            )
            exponents = prepared.exponents + (head * T + t_start) * D, D, 1
            S, inverse_norm1, inverse_norm2 = load_selves(prepared.selves, head, t_start, T, CHUNK)
            of_read, of_write = S * inverse_norm1, S * inverse_norm2
            scores = _scores(
                p1_c, p2_c, exponents, of_read, of_write, rest, PRECISION, LEVELS,
                D, CHUNK, BLOCK_D, WHOLE,
            )  # fmt: skip
            scores = rounded(tl.where(t[:, None] > t[None, :], scores, 0.0), p1)
            info_t = load_tokens(info_c, 0, rest, 0, D, CHUNK, BLOCK_V, WHOLE)
            y_t = info_t.to(tl.float32) + product(scores, info_t, PRECISION)
            for d_start in range(0, D, BLOCK_D):
                read = load_tokens(p1_c, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
                exponent = load_tokens(exponents, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
                left = load_channels(prepared.halves, 2 * here, d_start, D, BLOCK_D)
                since_start = exp(left[None, :] + exponent, PRECISION)
                read = read.to(tl.float32) * of_read[:, None] * since_start
                past = load_state(met, here, segment, own_past, d_start, D, BLOCK_D, BLOCK_V)
                y_t += product(rounded(read, p1), rounded(past, p1), PRECISION)
            store_tokens(y_c, y_t, 0, rest, 0, D, CHUNK, BLOCK_V, WHOLE)


@triton.jit
def _store_pairs(dscores, tile, here, PRECISION: tl.constexpr, CHUNK: tl.constexpr):
    """Keep a chunk's FP32 gradient of scores: whole, or two BF16 parts of each in one word."""
    if PRECISION == "ieee":
        tl.store(square_of(dscores, here, CHUNK), tile)
    else:
        high, low = split(tile)
        high, low = high.to(tl.uint16, bitcast=True), low.to(tl.uint16, bitcast=True)
        words = dscores.to(tl.pointer_type(tl.uint32), bitcast=True)
        tl.store(square_of(words, here, CHUNK), (high.to(tl.uint32) << 16) | low.to(tl.uint32))


@triton.jit
def _times_pairs(dscores, x, here, level, PRECISION: tl.constexpr, CHUNK: tl.constexpr):
    """What `_store_pairs` kept, of a level's pairs, @ the FP32 tile x."""
    t = tl.arange(0, CHUNK)
    half = t >> level
    across = half[:, None] == (half ^ 1)[None, :]
    if PRECISION == "ieee":
        return product(
            tl.where(across, tl.load(square_of(dscores, here, CHUNK)), 0.0), x, PRECISION
        )
    else:
        words = dscores.to(tl.pointer_type(tl.uint32), bitcast=True)
        words = tl.where(across, tl.load(square_of(words, here, CHUNK)), 0)
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
    H, T, chunks, all_chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    LEVELS: tl.constexpr, SHARE: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """dI, and what `coordinates_kernel` takes. BLOCK_S: channels at a time of the scores."""
    if _all_weak(prepared.weak, chunks, all_chunks, SHARE):
        return
    t = tl.arange(0, CHUNK)
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = _chunk_of_program(turn, chunks)
        if tl.load(prepared.weak + index, mask=index < all_chunks, other=1) == 0:
            head, chunk = index // chunks, index % chunks
            t_start = chunk * CHUNK
            rest = T - t_start
            p1_c = _from(of_head(p1, head, H, ALIGNED), t_start)
            p2_c = _from(of_head(p2, head // GROUP, H // GROUP, ALIGNED), t_start)
            info_c = _from(of_head(info, head // GROUP, H // GROUP, ALIGNED), t_start)
            dy_c = _from(of_head(dy, head, H, ALIGNED), t_start)
            dinfo_c = _from(of_head(dinfo, head, H, ALIGNED), t_start)
            head = tl.cast(head, tl.int64)
            here, segment, own_past, own_future = place_of_chunk(
                chunk, head, chunks, segment_chunks, segments, D
            )
            start = (head * T + t_start) * D
            exponents = prepared.exponents + start, D, 1
            dread, dwrite = (between.dread + start, D, 1), (between.dwrite + start, D, 1)
            S, inverse_norm1, inverse_norm2 = load_selves(prepared.selves, head, t_start, T, CHUNK)
            of_read, of_write = S * inverse_norm1, S * inverse_norm2
            scores = _scores(
                p1_c, p2_c, exponents, of_read, of_write, rest, PRECISION, LEVELS,
                D, CHUNK, BLOCK_S, WHOLE,
            )  # fmt: skip
            is_last = (t == tl.minimum(rest, CHUNK) - 1)[:, None]
            info_t = load_tokens(info_c, 0, rest, 0, D, CHUNK, BLOCK_V, WHOLE)
            dy_t = load_tokens(dy_c, 0, rest, 0, D, CHUNK, BLOCK_V, WHOLE)
            # <dY_t, I_j> in row t and in row j, as the scores are.
            dpairs = product(dy_t, tl.trans(info_t), PRECISION)
            dpairs_t = product(info_t, tl.trans(dy_t), PRECISION)
            later, earlier = t[:, None] > t[None, :], t[:, None] < t[None, :]
            dpairs = tl.where(later, dpairs, dpairs_t)
            _store_pairs(between.dscores, dpairs, here, PRECISION, CHUNK)
            dpairs *= scores
            sum_read = tl.sum(tl.where(later, dpairs, 0.0), 1)
            sum_write = tl.sum(tl.where(earlier, dpairs, 0.0), 1)
            scores_t = rounded(tl.where(earlier, scores, 0.0), p1)
            dinfo_t = dy_t.to(tl.float32) + product(scores_t, dy_t, PRECISION)
            for d_start in range(0, D, BLOCK_D):
                exponent = load_tokens(exponents, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
                left = load_channels(prepared.halves, 2 * here, d_start, D, BLOCK_D)
                right = load_channels(prepared.halves, 2 * here + 1, d_start, D, BLOCK_D)
                past = load_state(met, here, segment, own_past, d_start, D, BLOCK_D, BLOCK_V)
                since_start = exp(left[None, :] + exponent, PRECISION)
                dread_d = since_start * product(dy_t, tl.trans(past), PRECISION)
                read = load_tokens(p1_c, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
                sum_read += tl.sum(read.to(tl.float32) * of_read[:, None] * dread_d, 1)
                future = load_state(dmet, here, segment, own_future, d_start, D, BLOCK_D, BLOCK_V)
                total = exp(left + right, PRECISION) * tl.sum(past * future, 1)
                to_end = exp(right[None, :] - exponent, PRECISION)
                dwrite_d = to_end * product(info_t, tl.trans(future), PRECISION)
                write = load_tokens(p2_c, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
                write = write.to(tl.float32) * of_write[:, None]
                given = write * dwrite_d
                sum_write += tl.sum(given, 1)
                total += tl.sum(tl.where(is_last, 0.0, given), 0)
                dinfo_t += product(rounded(write * to_end, p1), rounded(future, p1), PRECISION)
                d = d_start + tl.arange(0, BLOCK_D)
                tl.store(between.dtotal + here * D + d, total, mask=d < D)
                store_tokens(dread, dread_d, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
                store_tokens(dwrite, dwrite_d, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
            store_tokens(dinfo_c, dinfo_t, 0, rest, 0, D, CHUNK, BLOCK_V, WHOLE)
            store_row(between.read_dread, sum_read, head, t_start, T, CHUNK)
            store_row(between.write_dwrite, sum_write, head, t_start, T, CHUNK)


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks"])
def coordinates_kernel(
    p1, p2, dp1, dp2, dlog_retention, out, prepared, between, H, T, scale, chunks, all_chunks,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    LEVELS: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of channels of p1, p2 and g."""
    if _all_weak(prepared.weak, chunks, all_chunks, SHARE):
        return
    d_start, t = tl.program_id(1) * BLOCK_D, tl.arange(0, CHUNK)
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = _chunk_of_program(turn, chunks)
        if tl.load(prepared.weak + index, mask=index < all_chunks, other=1) == 0:
            head, chunk = index // chunks, index % chunks
            t_start = chunk * CHUNK
            rest = T - t_start
            p1_c = _from(of_head(p1, head, H, ALIGNED), t_start)
            p2_c = _from(of_head(p2, head // GROUP, H // GROUP, ALIGNED), t_start)
            dp1_c = _from(of_head((dp1, out), head, H, ALIGNED), t_start)
            dp2_c = _from(of_head((dp2, out), head, H, ALIGNED), t_start)
            dg_c = _from(of_head((dlog_retention, out), head, H, ALIGNED), t_start)
            head = tl.cast(head, tl.int64)
            here, start = head * chunks + chunk, (head * T + t_start) * D
            exponents = prepared.exponents + start, D, 1
            S, inverse_norm1, inverse_norm2 = load_selves(prepared.selves, head, t_start, T, CHUNK)
            # What the states give; a level adds to half of the reads and to half of the writes.
            dread_s, dwrite_s = (between.dread + start, D, 1), (between.dwrite + start, D, 1)
            dread_d = load_tokens(dread_s, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
            dwrite_d = load_tokens(dwrite_s, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
            for level in tl.range(0, LEVELS, disable_licm=True):
                x, retained = _to_middle(
                    p1_c, p2_c, exponents, level, rest, d_start, PRECISION, D, CHUNK, BLOCK_D, WHOLE
                )
                right = ((t >> level) & 1) == 1
                x *= (S * tl.where(right, inverse_norm1, inverse_norm2))[:, None]
                given = retained * _times_pairs(between.dscores, x, here, level, PRECISION, CHUNK)
                right = right[:, None]
                dread_d = tl.where(right, dread_d + given, dread_d)
                dwrite_d = tl.where(right, dwrite_d, dwrite_d + given)
            p1_d = load_tokens(p1_c, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE).to(tl.float32)
            p2_d = load_tokens(p2_c, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE).to(tl.float32)
            # dg_u is the sum over t >= u of <r_t, dr_t> less <w_t, dw_t>, and what a chunk gives to
            # all of its steps. Of the last token, whose write no step of the chunk retains, neither
            # takes <w, dw>. So each term retains what some step does, and dg is right also where
            # all steps are strong.
            is_last = (t == tl.minimum(rest, CHUNK) - 1)[:, None]
            dg = tl.where(is_last, 0.0, p2_d * (S * inverse_norm2)[:, None] * dwrite_d)
            dg = p1_d * (S * inverse_norm1)[:, None] * dread_d - dg
            later = zeros_and_ones(t[:, None] <= t[None, :], PRECISION)
            dg = product(later, dg, PRECISION)
            dg += load_channels(between.dtotal, here, d_start, D, BLOCK_D)[None, :]
            store_tokens(dg_c, dg, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
            sum_read = load_row(between.read_dread, head, t_start, T, CHUNK)
            sum_write = load_row(between.write_dwrite, head, t_start, T, CHUNK)
            dlogit = dlogit_of(sum_read, sum_write, S, scale)
            dp1_d = project(dread_d, p1_d, S, inverse_norm1, sum_read) + dlogit * p2_d
            store_tokens(dp1_c, dp1_d, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
            dp2_d = project(dwrite_d, p2_d, S, inverse_norm2, sum_write) + dlogit * p1_d
            store_tokens(dp2_c, dp2_d, 0, rest, d_start, D, CHUNK, BLOCK_D, WHOLE)
