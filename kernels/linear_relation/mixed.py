"""Chunks of which some channels forget too much for one pair of factors, and others little.

At every level a chunk's blocks of tokens are halved, and all pairs across their middles are one
product: of each token's coordinate, of reads right of the middle and of writes left of it, times
its retention up to the middle. That product is symmetric, and so is the gradient of all scores, so
a level takes one tile of coordinates and one exponential a number. No exponent is above zero, and
the time does not depend on how strong the retention is.
"""

import triton
import triton.language as tl

from relation.kernels.linear_relation.decays import exp, product, project, split
from relation.kernels.linear_relation.tiles import (
    IS_MIXED,
    chunk_of_program,
    load_half,
    load_row,
    load_selves,
    load_state,
    load_tokens,
    offset_of,
    states_of_chunk,
    store_row,
    store_tokens,
)
from relation.kernels.linear_relation.weak import rounded


@triton.jit
def _none_mixed(kinds, chunks, all_chunks, SHARE: tl.constexpr):
    """Whether no chunk of this program is for these kernels: one read tells, not one each."""
    index = chunk_of_program(tl.arange(0, SHARE), chunks)
    flags = tl.load(kinds + index, mask=index < all_chunks, other=0)
    return tl.max((flags == IS_MIXED).to(tl.int32), 0) == 0


@triton.jit
def _rows(
    x, t, taken, stride_t, d_start, stride_d, D: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """Rows of a chunk's tokens; zeros where none is taken."""
    d = d_start + tl.arange(0, BLOCK_D)
    pointers = x + t[:, None] * stride_t + d[None, :] * stride_d
    if D % BLOCK_D == 0:
        return tl.load(pointers, mask=taken[:, None], other=0.0)
    else:
        return tl.load(pointers, mask=taken[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def _to_middle(
    p1, p2, since, level, d_start, stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d,
    PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Coordinates of a level and their retention, both FP32, (CHUNK, BLOCK_D).

    Of tokens right of the middle of their block of 2^(level + 1) p1, times the retention from the
    middle; of the others p2, times that up to it. since: G(0, t) of the chunk, with which p1 and p2
    start, too.
    """
    t = tl.arange(0, CHUNK)
    right = ((t >> level) & 1) == 1
    read = _rows(p1, t, right, stride_p1_t, d_start, stride_p1_d, D, BLOCK_D)
    write = _rows(p2, t, ~right, stride_p2_t, d_start, stride_p2_d, D, BLOCK_D)
    middle = (((t >> level) | 1) << level) - 1
    border = _rows(since, middle, middle >= 0, D, d_start, 1, D, BLOCK_D)
    own = load_tokens(since, 0, 0, D, d_start, 1, D, CHUNK, BLOCK_D, True)
    retained = exp(-tl.abs(own - border), PRECISION)
    return (read + write).to(tl.float32) * retained, retained


@triton.jit
def _scores(
    p1, p2, since, stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d, of_read, of_write,
    PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,
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
                p1, p2, since, level, d_start, stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d,
                PRECISION, D, BLOCK_D, CHUNK,
            )  # fmt: skip
            x = rounded(x * of_level, p1)
            pairs = product(x, tl.trans(x), PRECISION)
            new = pairs if BLOCK_D >= D else new + pairs
        block = t >> (level + 1)
        scores = tl.where(block[:, None] == block[None, :], new, scores)
    return scores


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def mixed_output_kernel(
    p1, p2, info, selves, kinds, exponents, halves, within, log_decay, entry, y,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    H, T, chunks, all_chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
    ALIGNED: tl.constexpr, LEVELS: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    if _none_mixed(kinds, chunks, all_chunks, SHARE):
        return
    t = tl.arange(0, CHUNK)
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = chunk_of_program(turn, chunks)
        if tl.load(kinds + index, mask=index < all_chunks, other=0) == IS_MIXED:
            head, chunk = index // chunks, index % chunks
            # Mixed chunks are full: from here on rows are the chunk's.
            t_start = tl.cast(chunk * CHUNK, tl.int64)
            shared = head // GROUP
            p1_c = (
                p1 + offset_of(head, H, stride_p1_b, stride_p1_h, ALIGNED) + t_start * stride_p1_t
            )
            p2_c = p2 + offset_of(shared, H // GROUP, stride_p2_b, stride_p2_h, ALIGNED)
            p2_c += t_start * stride_p2_t
            info_head = info + offset_of(shared, H // GROUP, stride_info_b, stride_info_h, ALIGNED)
            y_head = y + offset_of(head, H, stride_y_b, stride_y_h, ALIGNED)
            head = tl.cast(head, tl.int64)
            here, segment, own_past, _ = states_of_chunk(
                chunk, head, chunks, segment_chunks, segments, D
            )
            since = exponents + (head * T + t_start) * D
            S, inverse_norm1, inverse_norm2 = load_selves(selves, head, t_start, T, CHUNK)
            of_read, of_write = S * inverse_norm1, S * inverse_norm2
            scores = _scores(
                p1_c, p2_c, since, stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d,
                of_read, of_write, PRECISION, D, BLOCK_D, CHUNK, LEVELS,
            )  # fmt: skip
            scores = rounded(tl.where(t[:, None] > t[None, :], scores, 0.0), p1)
            info_t = load_tokens(
                info_head, t_start, T, stride_info_t, 0, stride_info_d, D, CHUNK, BLOCK_V, True
            )
            y_t = info_t.to(tl.float32) + product(scores, info_t, PRECISION)
            for d_start in range(0, D, BLOCK_D):
                read = load_tokens(
                    p1_c, 0, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D, True
                ).to(tl.float32)
                exponent = load_tokens(since, 0, T, D, d_start, 1, D, CHUNK, BLOCK_D, True)
                read *= of_read[:, None] * exp(exponent, PRECISION)
                past = load_state(
                    within + here * D * D, log_decay + here * D, entry + segment * D * D,
                    own_past, d_start, 0, D, BLOCK_D, BLOCK_V,
                )  # fmt: skip
                y_t += product(rounded(read, p1), rounded(past, p1), PRECISION)
            store_tokens(
                y_head, y_t, t_start, T, stride_y_t, 0, stride_y_d, D, CHUNK, BLOCK_V, True
            )


@triton.jit
def _square(scores, here, CHUNK: tl.constexpr):
    """Pointers to a (CHUNK, CHUNK) that as many as `here` come before."""
    t = tl.arange(0, CHUNK)
    return scores + here * CHUNK * CHUNK + t[:, None] * CHUNK + t[None, :]


@triton.jit
def _store_pairs(dscores, tile, here, PRECISION: tl.constexpr, CHUNK: tl.constexpr):
    """Keep a chunk's FP32 gradient of scores: whole, or two BF16 parts of each in one word."""
    if PRECISION == "ieee":
        tl.store(_square(dscores, here, CHUNK), tile)
    else:
        high, low = split(tile)
        high, low = high.to(tl.uint16, bitcast=True), low.to(tl.uint16, bitcast=True)
        words = dscores.to(tl.pointer_type(tl.uint32), bitcast=True)
        tl.store(_square(words, here, CHUNK), (high.to(tl.uint32) << 16) | low.to(tl.uint32))


@triton.jit
def _times_pairs(dscores, x, here, level, PRECISION: tl.constexpr, CHUNK: tl.constexpr):
    """What `_store_pairs` kept, of a level's pairs, @ the FP32 tile x."""
    t = tl.arange(0, CHUNK)
    half = t >> level
    across = half[:, None] == (half ^ 1)[None, :]
    if PRECISION == "ieee":
        return product(tl.where(across, tl.load(_square(dscores, here, CHUNK)), 0.0), x, PRECISION)
    else:
        words = dscores.to(tl.pointer_type(tl.uint32), bitcast=True)
        words = tl.where(across, tl.load(_square(words, here, CHUNK)), 0)
        high = (words >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        low = (words & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        x_high, x_low = split(x)
        # In this order: another let ptxas 12.8 lose an address (`relation.kernels.uniforms`).
        result = tl.dot(low, x_high)
        result = tl.dot(high, x_high, result)
        return tl.dot(high, x_low, result)


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def mixed_information_kernel(
    p1, p2, info, dy, selves, kinds, exponents, halves,
    within, log_decay, entry, dwithin, dlog_decay, dentry,
    dinfo, read_dread, write_dwrite, dscores, dread, dwrite, dtotal,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, chunks, all_chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
    ALIGNED: tl.constexpr, LEVELS: tl.constexpr, SHARE: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    if _none_mixed(kinds, chunks, all_chunks, SHARE):
        return
    t = tl.arange(0, CHUNK)
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = chunk_of_program(turn, chunks)
        if tl.load(kinds + index, mask=index < all_chunks, other=0) == IS_MIXED:
            head, chunk = index // chunks, index % chunks
            t_start = tl.cast(chunk * CHUNK, tl.int64)
            shared = head // GROUP
            p1_c = (
                p1 + offset_of(head, H, stride_p1_b, stride_p1_h, ALIGNED) + t_start * stride_p1_t
            )
            p2_c = p2 + offset_of(shared, H // GROUP, stride_p2_b, stride_p2_h, ALIGNED)
            p2_c += t_start * stride_p2_t
            info_head = info + offset_of(shared, H // GROUP, stride_info_b, stride_info_h, ALIGNED)
            dy_head = dy + offset_of(head, H, stride_dy_b, stride_dy_h, ALIGNED)
            out = offset_of(head, H, stride_out_b, stride_out_h, ALIGNED) + t_start * stride_out_t
            head = tl.cast(head, tl.int64)
            here, segment, own_past, own_future = states_of_chunk(
                chunk, head, chunks, segment_chunks, segments, D
            )
            of_head = (head * T + t_start) * D
            since = exponents + of_head
            S, inverse_norm1, inverse_norm2 = load_selves(selves, head, t_start, T, CHUNK)
            of_read, of_write = S * inverse_norm1, S * inverse_norm2
            scores = _scores(
                p1_c, p2_c, since, stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d,
                of_read, of_write, PRECISION, D, BLOCK_S, CHUNK, LEVELS,
            )  # fmt: skip
            info_t = load_tokens(
                info_head, t_start, T, stride_info_t, 0, stride_info_d, D, CHUNK, BLOCK_V, True
            )
            dy_t = load_tokens(
                dy_head, t_start, T, stride_dy_t, 0, stride_dy_d, D, CHUNK, BLOCK_V, True
            )
            # <dY_t, I_j> in row t and in row j, as the scores are.
            dpairs = product(dy_t, tl.trans(info_t), PRECISION)
            dpairs_t = product(info_t, tl.trans(dy_t), PRECISION)
            later, earlier = t[:, None] > t[None, :], t[:, None] < t[None, :]
            dpairs = tl.where(later, dpairs, dpairs_t)
            _store_pairs(dscores, dpairs, here, PRECISION, CHUNK)
            dpairs *= scores
            sum_read = tl.sum(tl.where(later, dpairs, 0.0), 1)
            sum_write = tl.sum(tl.where(earlier, dpairs, 0.0), 1)
            scores_t = rounded(tl.where(earlier, scores, 0.0), p1)
            dinfo_t = dy_t.to(tl.float32) + product(scores_t, dy_t, PRECISION)
            for d_start in range(0, D, BLOCK_D):
                exponent = load_tokens(since, 0, T, D, d_start, 1, D, CHUNK, BLOCK_D, True)
                whole = load_half(halves, 2 * here + 1, d_start, D, BLOCK_D)
                past = load_state(
                    within + here * D * D, log_decay + here * D, entry + segment * D * D,
                    own_past, d_start, 0, D, BLOCK_D, BLOCK_V,
                )  # fmt: skip
                dread_d = exp(exponent, PRECISION) * product(dy_t, tl.trans(past), PRECISION)
                read = load_tokens(
                    p1_c, 0, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D, True
                ).to(tl.float32)
                sum_read += tl.sum(read * of_read[:, None] * dread_d, 1)
                future = load_state(
                    dwithin + here * D * D, dlog_decay + here * D, dentry + segment * D * D,
                    own_future, d_start, 0, D, BLOCK_D, BLOCK_V,
                )  # fmt: skip
                total = exp(whole, PRECISION) * tl.sum(past * future, 1)
                to_end = exp(whole[None, :] - exponent, PRECISION)
                dwrite_d = to_end * product(info_t, tl.trans(future), PRECISION)
                write = load_tokens(
                    p2_c, 0, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D, True
                ).to(tl.float32)
                write *= of_write[:, None]
                given = write * dwrite_d
                sum_write += tl.sum(given, 1)
                total += tl.sum(given, 0)
                dinfo_t += product(rounded(write * to_end, p1), rounded(future, p1), PRECISION)
                d = d_start + tl.arange(0, BLOCK_D)
                tl.store(dtotal + here * D + d, total, mask=d < D)
                store_tokens(dread + of_head, dread_d, 0, T, D, d_start, 1, D, CHUNK, BLOCK_D, True)
                store_tokens(
                    dwrite + of_head, dwrite_d, 0, T, D, d_start, 1, D, CHUNK, BLOCK_D, True
                )
            store_tokens(
                dinfo + out, dinfo_t, 0, T, stride_out_t, 0, stride_out_d, D, CHUNK, BLOCK_V, True
            )
            store_row(read_dread, sum_read, head, t_start, T, CHUNK)
            store_row(write_dwrite, sum_write, head, t_start, T, CHUNK)


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks"])
def mixed_coordinates_kernel(
    p1, p2, selves, kinds, exponents,
    read_dread, write_dwrite, dscores, dread, dwrite, dtotal, dp1, dp2, dlog_retention,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale, chunks, all_chunks,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
    ALIGNED: tl.constexpr, LEVELS: tl.constexpr,
    BLOCK_D: tl.constexpr, CHUNK: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    if _none_mixed(kinds, chunks, all_chunks, SHARE):
        return
    d_start, t = tl.program_id(1) * BLOCK_D, tl.arange(0, CHUNK)
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = chunk_of_program(turn, chunks)
        if tl.load(kinds + index, mask=index < all_chunks, other=0) == IS_MIXED:
            head, chunk = index // chunks, index % chunks
            t_start = tl.cast(chunk * CHUNK, tl.int64)
            p1_c = (
                p1 + offset_of(head, H, stride_p1_b, stride_p1_h, ALIGNED) + t_start * stride_p1_t
            )
            p2_c = p2 + offset_of(head // GROUP, H // GROUP, stride_p2_b, stride_p2_h, ALIGNED)
            p2_c += t_start * stride_p2_t
            out = offset_of(head, H, stride_out_b, stride_out_h, ALIGNED) + t_start * stride_out_t
            head = tl.cast(head, tl.int64)
            here, of_head = head * chunks + chunk, (head * T + t_start) * D
            S, inverse_norm1, inverse_norm2 = load_selves(selves, head, t_start, T, CHUNK)
            # What the states give; a level adds to half of the reads and to half of the writes.
            dread_d = load_tokens(dread + of_head, 0, T, D, d_start, 1, D, CHUNK, BLOCK_D, True)
            dwrite_d = load_tokens(dwrite + of_head, 0, T, D, d_start, 1, D, CHUNK, BLOCK_D, True)
            for level in tl.range(0, LEVELS, disable_licm=True):
                x, retained = _to_middle(
                    p1_c, p2_c, exponents + of_head, level, d_start,
                    stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d,
                    PRECISION, D, BLOCK_D, CHUNK,
                )  # fmt: skip
                right = ((t >> level) & 1) == 1
                x *= (S * tl.where(right, inverse_norm1, inverse_norm2))[:, None]
                given = retained * _times_pairs(dscores, x, here, level, PRECISION, CHUNK)
                right = right[:, None]
                dread_d = tl.where(right, dread_d + given, dread_d)
                dwrite_d = tl.where(right, dwrite_d, dwrite_d + given)
            p1_d = load_tokens(
                p1_c, 0, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D, True
            ).to(tl.float32)
            p2_d = load_tokens(
                p2_c, 0, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D, True
            ).to(tl.float32)
            dg = p1_d * (S * inverse_norm1)[:, None] * dread_d
            dg -= p2_d * (S * inverse_norm2)[:, None] * dwrite_d
            total = load_half(dtotal, here, d_start, D, BLOCK_D)
            later = (t[:, None] <= t[None, :]).to(
                tl.float32 if PRECISION == "ieee" else tl.bfloat16
            )
            dg = product(later, dg, PRECISION) + total[None, :]
            store_tokens(
                dlog_retention + out, dg, 0, T, stride_out_t, d_start, stride_out_d,
                D, CHUNK, BLOCK_D, True,
            )  # fmt: skip
            sum_read = load_row(read_dread, head, t_start, T, CHUNK)
            sum_write = load_row(write_dwrite, head, t_start, T, CHUNK)
            # torch.compile passes Python numbers in FP64, which would widen everything they touch.
            dlogit = ((sum_read + sum_write) * (1.0 - S) * tl.cast(scale, tl.float32))[:, None]
            dp1_d = project(dread_d, p1_d, S, inverse_norm1, sum_read) + dlogit * p2_d
            store_tokens(
                dp1 + out, dp1_d, 0, T, stride_out_t, d_start, stride_out_d,
                D, CHUNK, BLOCK_D, True,
            )  # fmt: skip
            dp2_d = project(dwrite_d, p2_d, S, inverse_norm2, sum_write) + dlogit * p1_d
            store_tokens(
                dp2 + out, dp2_d, 0, T, stride_out_t, d_start, stride_out_d,
                D, CHUNK, BLOCK_D, True,
            )  # fmt: skip
