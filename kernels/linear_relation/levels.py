"""The backward pass in two kernels: what the information carries, then what selects it.

The first one differentiates the information and forms two sums a token, <r, dr> = <dY, E> and
<w, dw>, which the normalisation and Self need. The second one differentiates the coordinates and
the retention, one block of channels a program.
"""

import triton
import triton.language as tl

from relation.kernels.linear_relation.decays import (
    decays_at_level,
    load_retention,
    pairs_in_blocks,
    product,
    project,
    steps_to_middle,
    sum_steps,
)
from relation.kernels.linear_relation.tiles import (
    all_taken,
    chunk_of_program,
    load_row,
    load_selves,
    load_state,
    load_tokens,
    offset_of,
    states_of_chunk,
    store_row,
    store_tokens,
)


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def information_backward_kernel(
    p1, p2, info, log_retention, dy, selves, kinds,
    within, log_decay, entry, dwithin, dlog_decay, dentry,
    dinfo, read_dread, write_dwrite,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_g_b, stride_g_h, stride_g_t, stride_g_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale, chunks, all_chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
    GROUP: tl.constexpr, ALIGNED: tl.constexpr, SKIP_TAKEN: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    if SKIP_TAKEN and all_taken(kinds, chunks, all_chunks, SHARE):
        return
    t = tl.arange(0, CHUNK)
    t_rows, t_columns = t[:, None], t[None, :]
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = chunk_of_program(turn, chunks)
        is_taken = tl.load(kinds + index, mask=index < all_chunks, other=1) != 0
        if (index < all_chunks) & (not (SKIP_TAKEN and is_taken)):
            head, chunk = index // chunks, index % chunks
            t_start = chunk * CHUNK
            p1_head = p1 + offset_of(head, H, stride_p1_b, stride_p1_h, ALIGNED)
            p2_head = p2 + offset_of(head // GROUP, H // GROUP, stride_p2_b, stride_p2_h, ALIGNED)
            info_head = info + offset_of(
                head // GROUP, H // GROUP, stride_info_b, stride_info_h, ALIGNED
            )
            g_head = log_retention + offset_of(head, H, stride_g_b, stride_g_h, ALIGNED)
            dy_head = dy + offset_of(head, H, stride_dy_b, stride_dy_h, ALIGNED)
            dinfo_head = dinfo + offset_of(head, H, stride_out_b, stride_out_h, ALIGNED)
            head = tl.cast(head, tl.int64)
            here, segment, own_past, own_future = states_of_chunk(
                chunk, head, chunks, segment_chunks, segments, D
            )
            S, inverse_norm1, inverse_norm2 = load_selves(selves, head, t_start, T, CHUNK)
            scores = tl.zeros([CHUNK, CHUNK], tl.float32)
            # Formed as products of their own: a transposed dot result is miscompiled on Hopper.
            scores_t = tl.zeros([CHUNK, CHUNK], tl.float32)
            for d_start in range(0, D, BLOCK_D):
                p1_d = load_tokens(
                    p1_head, t_start, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D
                )
                p2_d = load_tokens(
                    p2_head, t_start, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D
                )
                g = load_retention(
                    g_head, t_start, T, stride_g_t, d_start, stride_g_d, D, CHUNK, BLOCK_D
                )
                read = p1_d.to(tl.float32) * (S * inverse_norm1)[:, None]
                write = p2_d.to(tl.float32) * (S * inverse_norm2)[:, None]
                level = LEVELS - 1
                while level >= 0:
                    read_decay, write_decay, complete = decays_at_level(g, level, PRECISION, CHUNK)
                    read_now, write_now = read * read_decay, write * write_decay
                    new = product(read_now, tl.trans(write_now), PRECISION)
                    new_t = product(write_now, tl.trans(read_now), PRECISION)
                    scores += tl.where(pairs_in_blocks(t_rows, t_columns, level), new, 0.0)
                    scores_t += tl.where(pairs_in_blocks(t_columns, t_rows, level), new_t, 0.0)
                    level = tl.where(complete, -1, level - 1)

            sum_read = tl.zeros([CHUNK], tl.float32)
            sum_write = tl.zeros([CHUNK], tl.float32)
            for v_start in range(0, D, BLOCK_V):
                info_v = load_tokens(
                    info_head, t_start, T, stride_info_t, v_start, stride_info_d, D, CHUNK, BLOCK_V
                )
                dy_v = load_tokens(
                    dy_head, t_start, T, stride_dy_t, v_start, stride_dy_d, D, CHUNK, BLOCK_V
                )
                exchange = product(scores, info_v, PRECISION)
                dexchanged = product(scores_t, dy_v, PRECISION)
                for d_start in range(0, D, BLOCK_D):
                    p1_d = load_tokens(
                        p1_head, t_start, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D
                    )
                    p2_d = load_tokens(
                        p2_head, t_start, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D
                    )
                    g = load_retention(
                        g_head, t_start, T, stride_g_t, d_start, stride_g_d, D, CHUNK, BLOCK_D
                    )
                    since_start = tl.exp(sum_steps(t_columns <= t_rows, g, PRECISION))
                    to_end = tl.exp(sum_steps(t_columns > t_rows, g, PRECISION))
                    read = p1_d.to(tl.float32) * (S * inverse_norm1)[:, None] * since_start
                    write = p2_d.to(tl.float32) * (S * inverse_norm2)[:, None] * to_end
                    past = load_state(
                        within + here * D * D, log_decay + here * D, entry + segment * D * D,
                        own_past, d_start, v_start, D, BLOCK_D, BLOCK_V,
                    )  # fmt: skip
                    exchange += product(read, past, PRECISION)
                    future = load_state(
                        dwithin + here * D * D, dlog_decay + here * D, dentry + segment * D * D,
                        own_future, d_start, v_start, D, BLOCK_D, BLOCK_V,
                    )  # fmt: skip
                    dexchanged += product(write, future, PRECISION)
                dy_v = dy_v.to(tl.float32)
                sum_read += tl.sum(dy_v * exchange, 1)
                sum_write += tl.sum(info_v.to(tl.float32) * dexchanged, 1)
                store_tokens(
                    dinfo_head, dy_v + dexchanged, t_start, T, stride_out_t, v_start, stride_out_d,
                    D, CHUNK, BLOCK_V,
                )  # fmt: skip
            store_row(read_dread, sum_read, head, t_start, T, CHUNK)
            store_row(write_dwrite, sum_write, head, t_start, T, CHUNK)


@triton.jit
def outer_products(
    rows, columns, t_start, T, stride_rows_t, stride_rows_d, stride_columns_t, stride_columns_d,
    PRECISION: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """<rows_t, columns_u> for all pairs of tokens t, u of a chunk."""
    result = tl.zeros([CHUNK, CHUNK], tl.float32)
    for v_start in range(0, D, BLOCK_V):
        rows_v = load_tokens(
            rows, t_start, T, stride_rows_t, v_start, stride_rows_d, D, CHUNK, BLOCK_V
        )
        columns_v = load_tokens(
            columns, t_start, T, stride_columns_t, v_start, stride_columns_d, D, CHUNK, BLOCK_V
        )
        result += product(rows_v, tl.trans(columns_v), PRECISION)
    return result


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def coordinates_backward_kernel(
    p1, p2, info, log_retention, dy, selves, kinds,
    within, log_decay, entry, dwithin, dlog_decay, dentry, read_dread, write_dwrite,
    dp1, dp2, dlog_retention,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_g_b, stride_g_h, stride_g_t, stride_g_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale, chunks, all_chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
    GROUP: tl.constexpr, ALIGNED: tl.constexpr, SKIP_TAKEN: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    if SKIP_TAKEN and all_taken(kinds, chunks, all_chunks, SHARE):
        return
    t = tl.arange(0, CHUNK)
    t_rows, t_columns = t[:, None], t[None, :]
    d_start = tl.program_id(1) * BLOCK_D
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = chunk_of_program(turn, chunks)
        is_taken = tl.load(kinds + index, mask=index < all_chunks, other=1) != 0
        if (index < all_chunks) & (not (SKIP_TAKEN and is_taken)):
            head, chunk = index // chunks, index % chunks
            t_start = chunk * CHUNK
            p1_head = p1 + offset_of(head, H, stride_p1_b, stride_p1_h, ALIGNED)
            p2_head = p2 + offset_of(head // GROUP, H // GROUP, stride_p2_b, stride_p2_h, ALIGNED)
            info_head = info + offset_of(
                head // GROUP, H // GROUP, stride_info_b, stride_info_h, ALIGNED
            )
            g_head = log_retention + offset_of(head, H, stride_g_b, stride_g_h, ALIGNED)
            dy_head = dy + offset_of(head, H, stride_dy_b, stride_dy_h, ALIGNED)
            out = offset_of(head, H, stride_out_b, stride_out_h, ALIGNED)
            head = tl.cast(head, tl.int64)
            here, segment, own_past, own_future = states_of_chunk(
                chunk, head, chunks, segment_chunks, segments, D
            )
            S, inverse_norm1, inverse_norm2 = load_selves(selves, head, t_start, T, CHUNK)
            dread = tl.zeros([CHUNK, BLOCK_D], tl.float32)
            dwrite = tl.zeros([CHUNK, BLOCK_D], tl.float32)
            dtotal = tl.zeros([BLOCK_D], tl.float32)
            for v_start in range(0, D, BLOCK_V):
                info_v = load_tokens(
                    info_head, t_start, T, stride_info_t, v_start, stride_info_d, D, CHUNK, BLOCK_V
                )
                dy_v = load_tokens(
                    dy_head, t_start, T, stride_dy_t, v_start, stride_dy_d, D, CHUNK, BLOCK_V
                )
                past = load_state(
                    within + here * D * D, log_decay + here * D, entry + segment * D * D,
                    own_past, d_start, v_start, D, BLOCK_D, BLOCK_V,
                )  # fmt: skip
                future = load_state(
                    dwithin + here * D * D, dlog_decay + here * D, dentry + segment * D * D,
                    own_future, d_start, v_start, D, BLOCK_D, BLOCK_V,
                )  # fmt: skip
                dread += product(dy_v, tl.trans(past), PRECISION)
                dwrite += product(info_v, tl.trans(future), PRECISION)
                dtotal += tl.sum(past * future, 1)

            p1_d = load_tokens(
                p1_head, t_start, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D
            )
            p2_d = load_tokens(
                p2_head, t_start, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D
            )
            g = load_retention(
                g_head, t_start, T, stride_g_t, d_start, stride_g_d, D, CHUNK, BLOCK_D
            )
            read = p1_d.to(tl.float32) * (S * inverse_norm1)[:, None]
            write = p2_d.to(tl.float32) * (S * inverse_norm2)[:, None]
            # Every exponent is a sum over steps; dg sums over the same steps, without differences.
            dread *= tl.exp(sum_steps(t_columns <= t_rows, g, PRECISION))
            dwrite *= tl.exp(sum_steps(t_columns > t_rows, g, PRECISION))
            exact = info.dtype.element_ty
            dg = product((t_rows <= t_columns).to(exact), read * dread, PRECISION)
            dg += product((t_rows > t_columns).to(exact), write * dwrite, PRECISION)
            dg += (tl.exp(tl.sum(g, 0)) * dtotal)[None, :]

            level = LEVELS - 1
            while level >= 0:
                read_decay, write_decay, complete = decays_at_level(g, level, PRECISION, CHUNK)
                # Formed again at every level, one after the other: registers hold no two.
                dscores = outer_products(
                    dy_head, info_head, t_start, T, stride_dy_t, stride_dy_d,
                    stride_info_t, stride_info_d, PRECISION, D, CHUNK, BLOCK_V,
                )  # fmt: skip
                dscores = tl.where(pairs_in_blocks(t_rows, t_columns, level), dscores, 0.0)
                dread_now = product(dscores, write * write_decay, PRECISION) * read_decay
                dscores_t = outer_products(
                    info_head, dy_head, t_start, T, stride_info_t, stride_info_d,
                    stride_dy_t, stride_dy_d, PRECISION, D, CHUNK, BLOCK_V,
                )  # fmt: skip
                dscores_t = tl.where(pairs_in_blocks(t_columns, t_rows, level), dscores_t, 0.0)
                dwrite_now = product(dscores_t, read * read_decay, PRECISION) * write_decay
                dread += dread_now
                dwrite += dwrite_now
                dto_middle = read * dread_now - write * dwrite_now
                dto_middle = tl.where((((t >> level) & 1) == 1)[:, None], dto_middle, -dto_middle)
                steps_t = steps_to_middle(t_columns, t_rows, level)
                dg += product(steps_t.to(exact), dto_middle, PRECISION)
                level = tl.where(complete, -1, level - 1)
            store_tokens(
                dlog_retention + out, dg, t_start, T, stride_out_t, d_start, stride_out_d,
                D, CHUNK, BLOCK_D,
            )  # fmt: skip

            sum_read = load_row(read_dread, head, t_start, T, CHUNK)
            sum_write = load_row(write_dwrite, head, t_start, T, CHUNK)
            # torch.compile passes Python numbers in FP64, which would widen everything they touch.
            dlogit = ((sum_read + sum_write) * (1.0 - S) * tl.cast(scale, tl.float32))[:, None]
            p1_d, p2_d = p1_d.to(tl.float32), p2_d.to(tl.float32)
            dp1_d = project(dread, p1_d, S, inverse_norm1, sum_read) + dlogit * p2_d
            dp2_d = project(dwrite, p2_d, S, inverse_norm2, sum_write) + dlogit * p1_d
            store_tokens(
                dp1 + out, dp1_d, t_start, T, stride_out_t, d_start, stride_out_d, D, CHUNK, BLOCK_D
            )
            store_tokens(
                dp2 + out, dp2_d, t_start, T, stride_out_t, d_start, stride_out_d, D, CHUNK, BLOCK_D
            )
