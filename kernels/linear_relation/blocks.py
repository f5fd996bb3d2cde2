"""Chunks in which some channels forget too much for one pair of factors, and others little.

A chunk is cut into blocks. Between two blocks all exponents run by way of a border between them, so
none is above zero, and the columns of scores of a block are one product. Inside a block every pair
has its own exponential. So the time does not depend on how strong the retention is.
"""

import triton
import triton.language as tl

from relation.kernels.common import offset_of_head
from relation.kernels.linear_relation.decays import exp, product, project, split
from relation.kernels.linear_relation.tiles import (
    IN_BLOCKS,
    chunk_of_program,
    load_half,
    load_row,
    load_state,
    load_tokens,
    states_of_chunk,
    store_row,
    store_tokens,
)
from relation.kernels.linear_relation.weak import rounded


@triton.jit
def _none_in_blocks(weak, chunks, all_chunks, SHARE: tl.constexpr):
    """Whether no chunk of this program is for these kernels: one read tells, not one each."""
    index = chunk_of_program(tl.arange(0, SHARE), chunks)
    flags = tl.load(weak + index, mask=index < all_chunks, other=0)
    return tl.max((flags == IN_BLOCKS).to(tl.int32), 0) == 0


@triton.jit
def _rows(x, rows, stride_t, d_start, stride_d, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows of a tensor with channels, by their tokens: of full chunks, so that all exist."""
    d = d_start + tl.arange(0, BLOCK_D)
    pointers = x + tl.cast(rows, tl.int64)[:, None] * stride_t + d[None, :] * stride_d
    return tl.load(pointers, mask=(d < D)[None, :], other=0.0)


@triton.jit
def _coordinates(
    p, selves, which: tl.constexpr, head, T, rows, stride_t, d_start, stride_d,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """S p-hat of some tokens and channels, FP32; which: 0 for p1 and 1 for p2."""
    S = tl.load(selves + 3 * head * T + rows)
    factor = S * tl.load(selves + (3 * head + 1 + which) * T + rows)
    return _rows(p, rows, stride_t, d_start, stride_d, D, BLOCK_D).to(tl.float32) * factor[:, None]


@triton.jit
def _by_token(head, rows, d_start, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows of one head of a contiguous (heads, T, D), FP32: G(0, t), or parts of gradients."""
    return _rows(head, rows, D, d_start, 1, D, BLOCK_D)


@triton.jit
def _border(exponents, before, d_start, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """G(0, t) of one token, (1, BLOCK_D)."""
    d = d_start + tl.arange(0, BLOCK_D)
    return tl.load(exponents + tl.cast(before, tl.int64) * D + d, mask=d < D, other=0.0)[None, :]


@triton.jit
def _exp_where(inside, exponent, PRECISION: tl.constexpr):
    """exp of the exponents of some tokens, and 0 of the others."""
    return exp(tl.where(inside[:, None], exponent, float("-inf")), PRECISION)


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def output_by_blocks(
    p1, p2, info, selves, weak, exponents, halves, near, within, log_decay, entry, y,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    H, T, chunks, all_chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    if _none_in_blocks(weak, chunks, all_chunks, SHARE):
        return
    t, u = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = chunk_of_program(turn, chunks)
        if tl.load(weak + index, mask=index < all_chunks, other=0) == IN_BLOCKS:
            head, chunk = index // chunks, index % chunks
            t_start = chunk * CHUNK
            p1_head = p1 + offset_of_head(head, H, stride_p1_b, stride_p1_h)
            p2_head = p2 + offset_of_head(head // GROUP, H // GROUP, stride_p2_b, stride_p2_h)
            info_head = info + offset_of_head(
                head // GROUP, H // GROUP, stride_info_b, stride_info_h
            )
            y_head = y + offset_of_head(head, H, stride_y_b, stride_y_h)
            head = tl.cast(head, tl.int64)
            here, segment, own_past, _ = states_of_chunk(
                chunk, head, chunks, segment_chunks, segments, D
            )
            since = exponents + head * T * D
            tokens = t_start + t
            info_t = load_tokens(
                info_head, t_start, T, stride_info_t, 0, stride_info_d, D, CHUNK, BLOCK_V, True
            )
            y_t = info_t.to(tl.float32)
            for d_start in range(0, D, BLOCK_D):
                read = _coordinates(
                    p1_head, selves, 0, head, T, tokens, stride_p1_t, d_start, stride_p1_d,
                    D, BLOCK_D,
                )  # fmt: skip
                read *= exp(_by_token(since, tokens, d_start, D, BLOCK_D), PRECISION)
                past = load_state(
                    within + here * D * D, log_decay + here * D, entry + segment * D * D,
                    own_past, d_start, 0, D, BLOCK_D, BLOCK_V,
                )  # fmt: skip
                y_t += product(rounded(read, p1), rounded(past, p1), PRECISION)
            # Scores of the pairs inside blocks, (CHUNK, WIDTH): a write of its block a column.
            inside = tl.zeros([CHUNK, WIDTH], tl.float32)
            for column in tl.range(0, WIDTH, disable_licm=True):
                writes = t_start + t // WIDTH * WIDTH + column
                score = tl.zeros([CHUNK], tl.float32)
                for d_start in range(0, D, BLOCK_D):
                    read = _coordinates(
                        p1_head, selves, 0, head, T, tokens, stride_p1_t, d_start, stride_p1_d,
                        D, BLOCK_D,
                    )  # fmt: skip
                    write = _coordinates(
                        p2_head, selves, 1, head, T, writes, stride_p2_t, d_start, stride_p2_d,
                        D, BLOCK_D,
                    )  # fmt: skip
                    exponent = _by_token(since, tokens, d_start, D, BLOCK_D)
                    exponent -= _by_token(since, writes, d_start, D, BLOCK_D)
                    pair = read * write * _exp_where(writes < tokens, exponent, PRECISION)
                    score += tl.sum(pair, 1)
                inside = tl.where((u == column)[None, :], score[:, None], inside)
            tl.store(near + (head * T + tokens)[:, None] * WIDTH + u[None, :], inside)
            for block in tl.range(0, CHUNK // WIDTH, disable_licm=True):
                after = block * WIDTH + WIDTH
                writes = t_start + block * WIDTH + u
                scores = tl.zeros([CHUNK, WIDTH], tl.float32)
                for d_start in range(0, D, BLOCK_D):
                    border = _border(since, t_start + after - 1, d_start, D, BLOCK_D)
                    read = _coordinates(
                        p1_head, selves, 0, head, T, tokens, stride_p1_t, d_start, stride_p1_d,
                        D, BLOCK_D,
                    )  # fmt: skip
                    exponent = _by_token(since, tokens, d_start, D, BLOCK_D) - border
                    read *= _exp_where(t >= after, exponent, PRECISION)
                    write = _coordinates(
                        p2_head, selves, 1, head, T, writes, stride_p2_t, d_start, stride_p2_d,
                        D, BLOCK_D,
                    )  # fmt: skip
                    write *= exp(border - _by_token(since, writes, d_start, D, BLOCK_D), PRECISION)
                    scores += product(rounded(read, p1), tl.trans(rounded(write, p1)), PRECISION)
                scores = tl.where((t // WIDTH == block)[:, None], inside, scores)
                info_b = load_tokens(
                    info_head, t_start + block * WIDTH, T, stride_info_t, 0, stride_info_d,
                    D, WIDTH, BLOCK_V, True,
                )  # fmt: skip
                y_t += product(rounded(scores, p1), info_b, PRECISION)
            store_tokens(
                y_head, y_t, t_start, T, stride_y_t, 0, stride_y_d, D, CHUNK, BLOCK_V, True
            )


@triton.jit
def _places(scores, here, rows, columns, CHUNK: tl.constexpr):
    """Pointers into the (CHUNK, CHUNK) matrix number `here`, by rows and columns that broadcast."""
    return scores + here * CHUNK * CHUNK + rows * CHUNK + columns


@triton.jit
def _store_part(scores, tile, here, rows, columns, PRECISION: tl.constexpr, CHUNK: tl.constexpr):
    """Keep some rows and columns of a chunk's FP32 scores: whole, or as two BF16 parts."""
    rows, columns = rows[:, None], columns[None, :]
    if PRECISION == "ieee":
        tl.store(_places(scores, here, rows, columns, CHUNK), tile)
    else:
        high, low = split(tile)
        places = _places(scores, 2 * here, rows, columns, CHUNK)
        tl.store(places, high)
        tl.store(places + CHUNK * CHUNK, low)


@triton.jit
def _kept(scores, here, rows, columns, PRECISION: tl.constexpr, CHUNK: tl.constexpr):
    """One kept score a row, FP32."""
    if PRECISION == "ieee":
        return tl.load(_places(scores, here, rows, columns, CHUNK))
    else:
        places = _places(scores, 2 * here, rows, columns, CHUNK)
        return tl.load(places).to(tl.float32) + tl.load(places + CHUNK * CHUNK).to(tl.float32)


@triton.jit
def _times_part(
    scores, tile, here, rows, columns, TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The product of kept scores, by their rows and columns or transposed, with an FP32 tile."""
    rows, columns = rows[:, None], columns[None, :]
    if PRECISION == "ieee":
        upper = tl.load(_places(scores, here, rows, columns, CHUNK))
        return product(tl.trans(upper) if TRANSPOSED else upper, tile, PRECISION)
    else:
        places = _places(scores, 2 * here, rows, columns, CHUNK)
        upper, lower = tl.load(places), tl.load(places + CHUNK * CHUNK)
        if TRANSPOSED:
            upper, lower = tl.trans(upper), tl.trans(lower)
        return product(lower, split(tile)[0], PRECISION) + product(upper, tile, PRECISION)


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def information_by_blocks(
    p1, p2, info, dy, selves, weak, exponents, halves, near,
    within, log_decay, entry, dwithin, dlog_decay, dentry,
    dinfo, read_dread, write_dwrite, dscores_t, dread, dwrite, dtotal,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, chunks, all_chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    if _none_in_blocks(weak, chunks, all_chunks, SHARE):
        return
    t, u = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = chunk_of_program(turn, chunks)
        if tl.load(weak + index, mask=index < all_chunks, other=0) == IN_BLOCKS:
            head, chunk = index // chunks, index % chunks
            t_start = chunk * CHUNK
            p1_head = p1 + offset_of_head(head, H, stride_p1_b, stride_p1_h)
            p2_head = p2 + offset_of_head(head // GROUP, H // GROUP, stride_p2_b, stride_p2_h)
            info_head = info + offset_of_head(
                head // GROUP, H // GROUP, stride_info_b, stride_info_h
            )
            dy_head = dy + offset_of_head(head, H, stride_dy_b, stride_dy_h)
            dinfo_head = dinfo + offset_of_head(head, H, stride_out_b, stride_out_h)
            head = tl.cast(head, tl.int64)
            here, segment, own_past, own_future = states_of_chunk(
                chunk, head, chunks, segment_chunks, segments, D
            )
            of_head = head * T * D
            since, tokens = exponents + of_head, t_start + t
            info_t = load_tokens(
                info_head, t_start, T, stride_info_t, 0, stride_info_d, D, CHUNK, BLOCK_V, True
            )
            dy_t = load_tokens(
                dy_head, t_start, T, stride_dy_t, 0, stride_dy_d, D, CHUNK, BLOCK_V, True
            )
            dinfo_t = dy_t.to(tl.float32)
            sum_read = tl.zeros([CHUNK], tl.float32)
            sum_write = tl.zeros([CHUNK], tl.float32)
            for d_start in range(0, D, BLOCK_D):
                exponent = _by_token(since, tokens, d_start, D, BLOCK_D)
                whole = load_half(halves, 2 * here + 1, d_start, D, BLOCK_D)
                from_start = exp(exponent, PRECISION)
                to_end = exp(whole[None, :] - exponent, PRECISION)
                past = load_state(
                    within + here * D * D, log_decay + here * D, entry + segment * D * D,
                    own_past, d_start, 0, D, BLOCK_D, BLOCK_V,
                )  # fmt: skip
                future = load_state(
                    dwithin + here * D * D, dlog_decay + here * D, dentry + segment * D * D,
                    own_future, d_start, 0, D, BLOCK_D, BLOCK_V,
                )  # fmt: skip
                read = _coordinates(
                    p1_head, selves, 0, head, T, tokens, stride_p1_t, d_start, stride_p1_d,
                    D, BLOCK_D,
                )  # fmt: skip
                dread_d = from_start * product(dy_t, tl.trans(past), PRECISION)
                sum_read += tl.sum(read * dread_d, 1)
                store_tokens(
                    dread + of_head, dread_d, t_start, T, D, d_start, 1, D, CHUNK, BLOCK_D, True
                )
                write = _coordinates(
                    p2_head, selves, 1, head, T, tokens, stride_p2_t, d_start, stride_p2_d,
                    D, BLOCK_D,
                )  # fmt: skip
                dwrite_d = to_end * product(info_t, tl.trans(future), PRECISION)
                given = write * dwrite_d
                sum_write += tl.sum(given, 1)
                store_tokens(
                    dwrite + of_head, dwrite_d, t_start, T, D, d_start, 1, D, CHUNK, BLOCK_D, True
                )
                total = exp(whole, PRECISION) * tl.sum(past * future, 1) + tl.sum(given, 0)
                d = d_start + tl.arange(0, BLOCK_D)
                tl.store(dtotal + here * D + d, total, mask=d < D)
                dinfo_t += product(rounded(write * to_end, p1), rounded(future, p1), PRECISION)
            for block in tl.range(0, CHUNK // WIDTH, disable_licm=True):
                first = block * WIDTH
                reads = t_start + first + u
                scores_t = tl.zeros([CHUNK, WIDTH], tl.float32)
                for d_start in range(0, D, BLOCK_D):
                    # The first block has no earlier one: then no token takes the border.
                    last = t_start + tl.maximum(first - 1, 0)
                    border = _border(since, last, d_start, D, BLOCK_D)
                    write = _coordinates(
                        p2_head, selves, 1, head, T, tokens, stride_p2_t, d_start, stride_p2_d,
                        D, BLOCK_D,
                    )  # fmt: skip
                    exponent = border - _by_token(since, tokens, d_start, D, BLOCK_D)
                    write *= _exp_where(t < first, exponent, PRECISION)
                    read = _coordinates(
                        p1_head, selves, 0, head, T, reads, stride_p1_t, d_start, stride_p1_d,
                        D, BLOCK_D,
                    )  # fmt: skip
                    read *= exp(_by_token(since, reads, d_start, D, BLOCK_D) - border, PRECISION)
                    scores_t += product(rounded(write, p1), tl.trans(rounded(read, p1)), PRECISION)
                own = (t // WIDTH == block)[:, None]
                inside = tl.load(
                    near + (head * T + reads)[None, :] * WIDTH + (t - first)[:, None],
                    mask=own, other=0.0,
                )  # fmt: skip
                scores_t = tl.where(own, inside, scores_t)
                dy_b = load_tokens(
                    dy_head, t_start + first, T, stride_dy_t, 0, stride_dy_d,
                    D, WIDTH, BLOCK_V, True,
                )  # fmt: skip
                before = tokens[:, None] < reads[None, :]
                dpairs = tl.where(before, product(info_t, tl.trans(dy_b), PRECISION), 0.0)
                _store_part(dscores_t, dpairs, here, t, first + u, PRECISION, CHUNK)
                pairs = scores_t * dpairs
                sum_write += tl.sum(pairs, 1)
                of_block = tl.where(
                    tokens[:, None] == reads[None, :], tl.sum(pairs, 0)[None, :], 0.0
                )
                sum_read += tl.sum(of_block, 1)
                dinfo_t += product(rounded(scores_t, p1), dy_b, PRECISION)
            store_row(read_dread, sum_read, head, t_start, T, CHUNK)
            store_row(write_dwrite, sum_write, head, t_start, T, CHUNK)
            store_tokens(
                dinfo_head, dinfo_t, t_start, T, stride_out_t, 0, stride_out_d,
                D, CHUNK, BLOCK_V, True,
            )  # fmt: skip


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks"])
def coordinates_by_blocks(
    p1, p2, selves, weak, exponents,
    read_dread, write_dwrite, dscores_t, dread, dwrite, dtotal, dp1, dp2, dlog_retention,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale, chunks, all_chunks,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr, CHUNK: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    if _none_in_blocks(weak, chunks, all_chunks, SHARE):
        return
    d_start = tl.program_id(1) * BLOCK_D
    t, u = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = chunk_of_program(turn, chunks)
        if tl.load(weak + index, mask=index < all_chunks, other=0) == IN_BLOCKS:
            head, chunk = index // chunks, index % chunks
            t_start = chunk * CHUNK
            p1_head = p1 + offset_of_head(head, H, stride_p1_b, stride_p1_h)
            p2_head = p2 + offset_of_head(head // GROUP, H // GROUP, stride_p2_b, stride_p2_h)
            out = offset_of_head(head, H, stride_out_b, stride_out_h)
            head = tl.cast(head, tl.int64)
            here, of_head = head * chunks + chunk, head * T * D
            since, tokens = exponents + of_head, t_start + t
            exponent = _by_token(since, tokens, d_start, D, BLOCK_D)
            # What the states give; what pairs of two blocks give, by a block of the others.
            dread_d = _by_token(dread + of_head, tokens, d_start, D, BLOCK_D)
            dwrite_d = _by_token(dwrite + of_head, tokens, d_start, D, BLOCK_D)
            for block in tl.range(0, CHUNK // WIDTH, disable_licm=True):
                first, after = block * WIDTH, block * WIDTH + WIDTH
                others = t_start + first + u
                own = _by_token(since, others, d_start, D, BLOCK_D)
                write = _coordinates(
                    p2_head, selves, 1, head, T, others, stride_p2_t, d_start, stride_p2_d,
                    D, BLOCK_D,
                )  # fmt: skip
                border = _border(since, t_start + after - 1, d_start, D, BLOCK_D)
                write *= exp(border - own, PRECISION)
                given = _times_part(dscores_t, write, here, first + u, t, True, PRECISION, CHUNK)
                dread_d += given * _exp_where(t >= after, exponent - border, PRECISION)
                read = _coordinates(
                    p1_head, selves, 0, head, T, others, stride_p1_t, d_start, stride_p1_d,
                    D, BLOCK_D,
                )  # fmt: skip
                border = _border(since, t_start + tl.maximum(first - 1, 0), d_start, D, BLOCK_D)
                read *= exp(own - border, PRECISION)
                given = _times_part(dscores_t, read, here, t, first + u, False, PRECISION, CHUNK)
                dwrite_d += given * _exp_where(t < first, border - exponent, PRECISION)
            # Pairs inside a block, by the place of the other token.
            for place in tl.range(0, WIDTH, disable_licm=True):
                other = t // WIDTH * WIDTH + place
                others = t_start + other
                own = _by_token(since, others, d_start, D, BLOCK_D)
                write = _coordinates(
                    p2_head, selves, 1, head, T, others, stride_p2_t, d_start, stride_p2_d,
                    D, BLOCK_D,
                )  # fmt: skip
                score = _kept(dscores_t, here, other, t, PRECISION, CHUNK)[:, None]
                dread_d += score * write * _exp_where(other < t, exponent - own, PRECISION)
                read = _coordinates(
                    p1_head, selves, 0, head, T, others, stride_p1_t, d_start, stride_p1_d,
                    D, BLOCK_D,
                )  # fmt: skip
                score = _kept(dscores_t, here, t, other, PRECISION, CHUNK)[:, None]
                dwrite_d += score * read * _exp_where(other > t, own - exponent, PRECISION)
            S = load_row(selves, 3 * head, t_start, T, CHUNK)
            inverse_norm1 = load_row(selves, 3 * head + 1, t_start, T, CHUNK)
            inverse_norm2 = load_row(selves, 3 * head + 2, t_start, T, CHUNK)
            p1_d = _rows(p1_head, tokens, stride_p1_t, d_start, stride_p1_d, D, BLOCK_D)
            p2_d = _rows(p2_head, tokens, stride_p2_t, d_start, stride_p2_d, D, BLOCK_D)
            p1_d, p2_d = p1_d.to(tl.float32), p2_d.to(tl.float32)
            read_dread_d = p1_d * (S * inverse_norm1)[:, None] * dread_d
            write_dwrite_d = p2_d * (S * inverse_norm2)[:, None] * dwrite_d
            total = load_half(dtotal, here, d_start, D, BLOCK_D)
            dg = tl.cumsum(read_dread_d - write_dwrite_d, 0, reverse=True) + total[None, :]
            store_tokens(
                dlog_retention + out, dg, t_start, T, stride_out_t, d_start, stride_out_d,
                D, CHUNK, BLOCK_D, True,
            )  # fmt: skip
            sum_read = load_row(read_dread, head, t_start, T, CHUNK)
            sum_write = load_row(write_dwrite, head, t_start, T, CHUNK)
            # torch.compile passes Python numbers in FP64, which would widen what they touch.
            dlogit = ((sum_read + sum_write) * (1.0 - S) * tl.cast(scale, tl.float32))[:, None]
            dp1_d = project(dread_d, p1_d, S, inverse_norm1, sum_read) + dlogit * p2_d
            dp2_d = project(dwrite_d, p2_d, S, inverse_norm2, sum_write) + dlogit * p1_d
            store_tokens(
                dp1 + out, dp1_d, t_start, T, stride_out_t, d_start, stride_out_d,
                D, CHUNK, BLOCK_D, True,
            )  # fmt: skip
            store_tokens(
                dp2 + out, dp2_d, t_start, T, stride_out_t, d_start, stride_out_d,
                D, CHUNK, BLOCK_D, True,
            )  # fmt: skip
