"""The backward pass of chunks of weak retention in one kernel, for heads whose channels all fit."""

import triton
import triton.language as tl

from relation.kernels.common import head_offset
from relation.kernels.linear_relation.decays import (
    exp,
    load_retention,
    product,
    project,
    self_and_norms_of,
    steps_to_middle,
    sum_halves,
    sum_steps,
)
from relation.kernels.linear_relation.tiles import (
    load_state,
    load_tokens,
    shared_offset,
    states_of_chunk,
    store_tokens,
)
from relation.kernels.linear_relation.weak import rounded


@triton.jit
def exponents_from_middle(g, PRECISION: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr):
    """(CHUNK, D): G(m, t) right of the chunk's middle m and -G(t, m) left of it, each a sum."""
    t = tl.arange(0, CHUNK)
    right = t >= CHUNK // 2
    steps = steps_to_middle(t[:, None], t[None, :], LEVELS - 1)
    return sum_steps(tl.where(right[:, None], 1.0, -1.0) * steps.to(tl.float32), g, PRECISION)


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks", "segments"])
def weak_gradients_kernel(
    p1, p2, info, log_retention, dy, weak,
    within, log_decay, entry, dwithin, dlog_decay, dentry,
    dp1, dp2, dinfo, dlog_retention,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_g_b, stride_g_h, stride_g_t, stride_g_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale, chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    chunk = tl.program_id(1)
    here, segment, own_past, own_future = states_of_chunk(
        chunk, head, chunks, segment_chunks, segments, D
    )
    if tl.load(weak + here) == 0:
        return
    t_start = chunk * CHUNK
    p1 += head_offset(H, stride_p1_b, stride_p1_h)
    p2 += shared_offset(H, GROUP, stride_p2_b, stride_p2_h)
    info += shared_offset(H, GROUP, stride_info_b, stride_info_h)
    log_retention += head_offset(H, stride_g_b, stride_g_h)
    dy += head_offset(H, stride_dy_b, stride_dy_h)
    out = head_offset(H, stride_out_b, stride_out_h)

    t = tl.arange(0, CHUNK)
    t_rows, t_columns = t[:, None], t[None, :]
    g = load_retention(log_retention, t_start, T, stride_g_t, 0, stride_g_d, D, CHUNK, WIDTH, WHOLE)
    p1_t = load_tokens(p1, t_start, T, stride_p1_t, 0, stride_p1_d, D, CHUNK, WIDTH, WHOLE)
    p2_t = load_tokens(p2, t_start, T, stride_p2_t, 0, stride_p2_d, D, CHUNK, WIDTH, WHOLE)
    p1_t, p2_t = p1_t.to(tl.float32), p2_t.to(tl.float32)
    S, inverse_norm1, inverse_norm2 = self_and_norms_of(p1_t, p2_t, scale)
    exponents = exponents_from_middle(g, PRECISION, CHUNK, LEVELS)
    to_middle, from_middle = sum_halves(g, CHUNK)
    # dg below is exact where a pair's terms in it cancel: these very factors form both terms.
    read = p1_t * (S * inverse_norm1)[:, None] * exp(exponents, PRECISION)
    write = p2_t * (S * inverse_norm2)[:, None] * exp(-exponents, PRECISION)
    scores_t = product(rounded(write, p1), tl.trans(rounded(read, p1)), PRECISION)
    scores_t = rounded(tl.where(t_rows < t_columns, scores_t, 0.0), p1)

    dread = tl.zeros([CHUNK, WIDTH], tl.float32)
    dwrite = tl.zeros([CHUNK, WIDTH], tl.float32)
    dscores = tl.zeros([CHUNK, CHUNK], tl.float32)
    dscores_t = tl.zeros([CHUNK, CHUNK], tl.float32)
    dtotal = tl.zeros([WIDTH], tl.float32)
    for v_start in range(0, D, BLOCK_V):
        info_v = load_tokens(
            info, t_start, T, stride_info_t, v_start, stride_info_d, D, CHUNK, BLOCK_V, WHOLE
        )
        dy_v = load_tokens(
            dy, t_start, T, stride_dy_t, v_start, stride_dy_d, D, CHUNK, BLOCK_V, WHOLE
        )
        past = load_state(
            within + here * D * D, log_decay + here * D, entry + segment * D * D,
            own_past, 0, v_start, D, WIDTH, BLOCK_V,
        )  # fmt: skip
        past *= exp(to_middle, PRECISION)[:, None]
        dread += product(dy_v, tl.trans(past), PRECISION)
        future = load_state(
            dwithin + here * D * D, dlog_decay + here * D, dentry + segment * D * D,
            own_future, 0, v_start, D, WIDTH, BLOCK_V,
        )  # fmt: skip
        future *= exp(from_middle, PRECISION)[:, None]
        dtotal += tl.sum(past * future, 1)
        dwrite += product(info_v, tl.trans(future), PRECISION)
        dinfo_v = product(scores_t, dy_v, PRECISION)
        dinfo_v += product(rounded(write, p1), rounded(future, p1), PRECISION)
        store_tokens(
            dinfo + out, dy_v.to(tl.float32) + dinfo_v, t_start, T, stride_out_t, v_start,
            stride_out_d, D, CHUNK, BLOCK_V, WHOLE,
        )  # fmt: skip
        dscores += product(dy_v, tl.trans(info_v), PRECISION)
        dscores_t += product(info_v, tl.trans(dy_v), PRECISION)
    dtotal += tl.sum(write * dwrite, 0)
    dread += product(tl.where(t_rows > t_columns, dscores, 0.0), write, PRECISION)
    dwrite += product(tl.where(t_rows < t_columns, dscores_t, 0.0), read, PRECISION)

    read_dread, write_dwrite = read * dread, write * dwrite
    later = (t_rows <= t_columns).to(info.dtype.element_ty)
    dg = product(later, read_dread - write_dwrite, PRECISION) + dtotal[None, :]
    store_tokens(
        dlog_retention + out, dg, t_start, T, stride_out_t, 0, stride_out_d,
        D, CHUNK, WIDTH, WHOLE,
    )  # fmt: skip
    sum_read, sum_write = tl.sum(read_dread, 1), tl.sum(write_dwrite, 1)
    p1_t = load_tokens(p1, t_start, T, stride_p1_t, 0, stride_p1_d, D, CHUNK, WIDTH, WHOLE)
    p2_t = load_tokens(p2, t_start, T, stride_p2_t, 0, stride_p2_d, D, CHUNK, WIDTH, WHOLE)
    p1_t, p2_t = p1_t.to(tl.float32), p2_t.to(tl.float32)
    dlogit = ((sum_read + sum_write) * (1.0 - S) * tl.cast(scale, tl.float32))[:, None]
    dp1_t = (
        project(dread * exp(exponents, PRECISION), p1_t, S, inverse_norm1, sum_read) + dlogit * p2_t
    )
    dp2_t = (
        project(dwrite * exp(-exponents, PRECISION), p2_t, S, inverse_norm2, sum_write)
        + dlogit * p1_t
    )
    store_tokens(
        dp1 + out, dp1_t, t_start, T, stride_out_t, 0, stride_out_d, D, CHUNK, WIDTH, WHOLE
    )
    store_tokens(
        dp2 + out, dp2_t, t_start, T, stride_out_t, 0, stride_out_d, D, CHUNK, WIDTH, WHOLE
    )
