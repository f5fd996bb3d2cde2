"""The backward pass of chunks of weak retention in one kernel, for heads whose channels all fit.

It ends one gradient after the other with a store, and loads the coordinates again for the next:
held in registers over all of them, they were spilled, and more was moved for that than is loaded.
"""

import triton
import triton.language as tl

from relation.kernels.linear_relation.decays import add_product, exp, parts, product, project
from relation.kernels.linear_relation.tiles import (
    IS_WEAK,
    load_half,
    load_selves,
    load_state,
    load_tokens,
    own_offset,
    shared_offset,
    states_of_chunk,
    store_tokens,
)
from relation.kernels.linear_relation.weak import rounded


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks", "segments"])
def weak_gradients_kernel(
    p1, p2, info, dy, selves, kinds, exponents, halves,
    within, log_decay, entry, dwithin, dlog_decay, dentry,
    dp1, dp2, dinfo, dlog_retention,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale, chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr, GROUP: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr,
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
    out = own_offset(H, stride_out_b, stride_out_h, ALIGNED)

    t = tl.arange(0, CHUNK)
    t_rows, t_columns = t[:, None], t[None, :]
    S, inverse_norm1, inverse_norm2 = load_selves(selves, head, t_start, T, CHUNK)
    dy_t = load_tokens(dy, t_start, T, stride_dy_t, 0, stride_dy_d, D, CHUNK, BLOCK_V, WHOLE)
    info_t = load_tokens(
        info, t_start, T, stride_info_t, 0, stride_info_d, D, CHUNK, BLOCK_V, WHOLE
    )
    exponent = load_tokens(exponents, t_start, T, D, 0, 1, D, CHUNK, BLOCK_D, WHOLE)
    p1_t = load_tokens(p1, t_start, T, stride_p1_t, 0, stride_p1_d, D, CHUNK, BLOCK_D, WHOLE)
    p2_t = load_tokens(p2, t_start, T, stride_p2_t, 0, stride_p2_d, D, CHUNK, BLOCK_D, WHOLE)
    read = p1_t.to(tl.float32) * (S * inverse_norm1)[:, None] * exp(exponent, PRECISION)
    write = p2_t.to(tl.float32) * (S * inverse_norm2)[:, None] * exp(-exponent, PRECISION)
    write = rounded(write, p1)
    scores_t = product(write, tl.trans(rounded(read, p1)), PRECISION)
    scores_t = rounded(tl.where(t_rows < t_columns, scores_t, 0.0), p1)
    dinfo_t = product(scores_t, dy_t, PRECISION)
    sum_write = tl.sum(info_t.to(tl.float32) * dinfo_t, 1)
    future = load_state(
        dwithin + here * D * D, dlog_decay + here * D, dentry + segment * D * D,
        own_future, 0, 0, D, BLOCK_D, BLOCK_V,
    )  # fmt: skip
    future *= exp(load_half(halves, 2 * here + 1, 0, D, BLOCK_D), PRECISION)[:, None]
    dinfo_t += product(write, rounded(future, p1), PRECISION)
    store_tokens(
        dinfo + out, dy_t.to(tl.float32) + dinfo_t, t_start, T, stride_out_t, 0, stride_out_d,
        D, CHUNK, BLOCK_V, WHOLE,
    )  # fmt: skip

    past = load_state(
        within + here * D * D, log_decay + here * D, entry + segment * D * D,
        own_past, 0, 0, D, BLOCK_D, BLOCK_V,
    )  # fmt: skip
    past *= exp(load_half(halves, 2 * here, 0, D, BLOCK_D), PRECISION)[:, None]
    dtotal = tl.sum(past * future, 1)
    dread = product(dy_t, tl.trans(past), PRECISION)
    dwrite = product(info_t, tl.trans(future), PRECISION)

    exponent = load_tokens(exponents, t_start, T, D, 0, 1, D, CHUNK, BLOCK_D, WHOLE)
    p2_t = load_tokens(p2, t_start, T, stride_p2_t, 0, stride_p2_d, D, CHUNK, BLOCK_D, WHOLE)
    write = p2_t.to(tl.float32) * (S * inverse_norm2)[:, None] * exp(-exponent, PRECISION)
    # <w', F I>, most of dp1 at the last tokens: in dinfo_t both factors are rounded.
    sum_write += tl.sum(write * dwrite, 1)
    # Split before the scores are formed: three tiles in FP32 would not fit.
    high, low = parts(write, PRECISION)
    dscores = product(dy_t, tl.trans(info_t), PRECISION)
    dscores = tl.where(t_rows > t_columns, dscores, 0.0)
    dread = add_product(dread, dscores, high, low, PRECISION)
    p1_t = load_tokens(p1, t_start, T, stride_p1_t, 0, stride_p1_d, D, CHUNK, BLOCK_D, WHOLE)
    dread *= exp(exponent, PRECISION)
    read_dread = p1_t.to(tl.float32) * (S * inverse_norm1)[:, None] * dread
    sum_read = tl.sum(read_dread, 1)
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    dlogit = ((sum_read + sum_write) * (1.0 - S) * tl.cast(scale, tl.float32))[:, None]
    p1_t, p2_t = p1_t.to(tl.float32), p2_t.to(tl.float32)
    dp1_t = project(dread, p1_t, S, inverse_norm1, sum_read) + dlogit * p2_t
    store_tokens(
        dp1 + out, dp1_t, t_start, T, stride_out_t, 0, stride_out_d, D, CHUNK, BLOCK_D, WHOLE
    )

    exponent = load_tokens(exponents, t_start, T, D, 0, 1, D, CHUNK, BLOCK_D, WHOLE)
    p1_t = load_tokens(p1, t_start, T, stride_p1_t, 0, stride_p1_d, D, CHUNK, BLOCK_D, WHOLE)
    read = p1_t.to(tl.float32) * (S * inverse_norm1)[:, None] * exp(exponent, PRECISION)
    high, low = parts(read, PRECISION)
    p2_t = load_tokens(p2, t_start, T, stride_p2_t, 0, stride_p2_d, D, CHUNK, BLOCK_D, WHOLE)
    write_decay = exp(-exponent, PRECISION)
    write = p2_t.to(tl.float32) * (S * inverse_norm2)[:, None] * write_decay
    dtotal += tl.sum(write * dwrite, 0)
    dscores_t = product(info_t, tl.trans(dy_t), PRECISION)
    dscores_t = tl.where(t_rows < t_columns, dscores_t, 0.0)
    dwrite = add_product(dwrite, dscores_t, high, low, PRECISION)
    read_dread -= write * dwrite
    p1_t, p2_t = p1_t.to(tl.float32), p2_t.to(tl.float32)
    dp2_t = project(dwrite * write_decay, p2_t, S, inverse_norm2, sum_write) + dlogit * p1_t
    store_tokens(
        dp2 + out, dp2_t, t_start, T, stride_out_t, 0, stride_out_d, D, CHUNK, BLOCK_D, WHOLE
    )
    later = (t_rows <= t_columns).to(info.dtype.element_ty)
    dg = product(later, read_dread, PRECISION) + dtotal[None, :]
    store_tokens(
        dlog_retention + out, dg, t_start, T, stride_out_t, 0, stride_out_d,
        D, CHUNK, BLOCK_D, WHOLE,
    )  # fmt: skip
