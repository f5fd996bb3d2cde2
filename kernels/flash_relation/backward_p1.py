"""The backward pass over rows: the gradient of p1, of lambda, and what flows through the gate.

A program owns a block of rows of one head and scans their history (Appendix A.1.7).
"""

import triton
import triton.language as tl

from relation.kernels.common import offset_of_head
from relation.kernels.flash_relation.forward import LOG2_E
from relation.kernels.flash_relation.tiles import (
    PAST_END,
    document_starts,
    half_tanh,
    load_tile,
    program_head,
    read_tile,
    row_sums_at,
    store_tile,
)


@triton.jit
def _p1_tile(
    p1_i, p1_i_rest, dy_i, dy_i_rest, p2, info, p2_tiles, info_tiles, p2_rests, info_rests,
    b, head, start_i, i_start, j_start, T,
    norm_i, mean_h_i, from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest,
    stride_p2_t, stride_p2_d, stride_info_t, stride_info_d, scale,
    D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
    SCALED: tl.constexpr, DIAGONAL: tl.constexpr, BOUND: tl.constexpr,
):  # fmt: skip
    """Add the tile of history at j_start to the sums of the rows at i_start."""
    p2_j = read_tile(
        p2_tiles, b, head, p2, j_start, T, stride_p2_t, stride_p2_d, D, 0, BLOCK_J, WIDE,
        WHOLE or not DIAGONAL,
    )  # fmt: skip
    info_j = read_tile(
        info_tiles, b, head, info, j_start, T, stride_info_t, stride_info_d, D, 0, BLOCK_J, WIDE,
        WHOLE or not DIAGONAL,
    )  # fmt: skip
    u = tl.dot(p1_i, tl.trans(p2_j), input_precision="ieee")
    if REST > 0:
        p2_j_rest = read_tile(
            p2_rests, b, head, p2, j_start, T, stride_p2_t, stride_p2_d, D, WIDE, BLOCK_J, REST,
            WHOLE or not DIAGONAL,
        )  # fmt: skip
        u = tl.dot(p1_i_rest, tl.trans(p2_j_rest), u, input_precision="ieee")
    h = tl.dot(dy_i, tl.trans(info_j), input_precision="ieee")
    if REST > 0:
        info_j_rest = read_tile(
            info_rests, b, head, info, j_start, T, stride_info_t, stride_info_d, D, WIDE, BLOCK_J,
            REST, WHOLE or not DIAGONAL,
        )  # fmt: skip
        h = tl.dot(dy_i_rest, tl.trans(info_j_rest), h, input_precision="ieee")
    half_u = u if SCALED else u * (0.5 * scale)
    t = half_tanh(half_u, FAST)
    e = half_u * t + half_u
    log2_f = e * LOG2_E - norm_i[:, None]
    if DIAGONAL:
        i = i_start + tl.arange(0, BLOCK_I)
        j = j_start + tl.arange(0, BLOCK_J)
        own = j[None, :] == i[:, None]
        log2_f = tl.where(j[None, :] < i[:, None], log2_f, float("-inf"))
        if BOUND:
            log2_f = tl.where(j[None, :] >= start_i[:, None], log2_f, float("-inf"))
        u_self_i += tl.sum(tl.where(own, u, 0.0), 1)
        h_self_i += tl.sum(tl.where(own, h, 0.0), 1)
    elif BOUND:
        j = j_start + tl.arange(0, BLOCK_J)
        log2_f = tl.where(j[None, :] >= start_i[:, None], log2_f, float("-inf"))
    f = tl.exp2(log2_f)
    from_history_i += tl.sum(f * h, 1)
    de = f * (h - mean_h_i[:, None])
    # Twice dU / scale: the factor is applied once, to the sum.
    du = (de * ((e - e * t) + t) + de).to(p2_j.dtype)
    dp1_i = tl.dot(du, p2_j, dp1_i, input_precision="ieee")
    if REST > 0:
        dp1_i_rest = tl.dot(du, p2_j_rest, dp1_i_rest, input_precision="ieee")
    return from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest


@triton.jit(do_not_specialize=["T"])
def p1_kernel(
    p1, p2, info, y, dy, p2_tiles, info_tiles, p2_rests, info_rests, starts,
    gate_logit, log_norm, row_sums, du_self, dlam_partial, dp1,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_dp1_b, stride_dp1_h, stride_dp1_t, stride_dp1_d,
    H, T, scale, tau,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
    SCALED: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    scale, tau = tl.cast(scale, tl.float32), tl.cast(tau, tl.float32)
    # The last rows have the longest history, so they start first.
    i_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_I
    i = i_start + tl.arange(0, BLOCK_I)
    head = program_head()
    row = tl.cast(head, tl.int64) * T + i
    p1 += offset_of_head(head, H, stride_p1_b, stride_p1_h)
    p2 += offset_of_head(head // GROUP, H // GROUP, stride_p2_b, stride_p2_h)
    info += offset_of_head(head // GROUP, H // GROUP, stride_info_b, stride_info_h)
    y += offset_of_head(head, H, stride_y_b, stride_y_h)
    dy += offset_of_head(head, H, stride_dy_b, stride_dy_h)
    dp1 += offset_of_head(head, H, stride_dp1_b, stride_dp1_h)

    dy_i = load_tile(dy, i_start, T, stride_dy_t, stride_dy_d, D, 0, BLOCK_I, WIDE, WHOLE)
    y_i = load_tile(y, i_start, T, stride_y_t, stride_y_d, D, 0, BLOCK_I, WIDE, WHOLE)
    mean_h_i = tl.sum(dy_i.to(tl.float32) * y_i.to(tl.float32), 1)
    p1_i = load_tile(p1, i_start, T, stride_p1_t, stride_p1_d, D, 0, BLOCK_I, WIDE, WHOLE)
    dy_i_rest, p1_i_rest, dp1_i_rest = dy_i, p1_i, 0.0
    if REST > 0:
        dy_i_rest = load_tile(
            dy, i_start, T, stride_dy_t, stride_dy_d, D, WIDE, BLOCK_I, REST, WHOLE
        )
        y_i_rest = load_tile(y, i_start, T, stride_y_t, stride_y_d, D, WIDE, BLOCK_I, REST, WHOLE)
        mean_h_i += tl.sum(dy_i_rest.to(tl.float32) * y_i_rest.to(tl.float32), 1)
        p1_i_rest = load_tile(
            p1, i_start, T, stride_p1_t, stride_p1_d, D, WIDE, BLOCK_I, REST, WHOLE
        )
        dp1_i_rest = tl.zeros([BLOCK_I, REST], tl.float32)
    if SCALED:
        p1_i = (p1_i * (0.5 * scale)).to(p1_i.dtype)
    norm_i = tl.load(log_norm + row, mask=i < T, other=PAST_END)
    tl.store(
        row_sums + row_sums_at(head, i, T, p2_tiles is not None),
        tl.join(norm_i, mean_h_i),
        mask=(i < T)[:, None],
    )

    dp1_i = tl.zeros([BLOCK_I, WIDE], tl.float32)
    from_history_i = tl.zeros([BLOCK_I], tl.float32)
    u_self_i = tl.zeros([BLOCK_I], tl.float32)
    h_self_i = tl.zeros([BLOCK_I], tl.float32)
    DOCUMENTS: tl.constexpr = starts is not None
    start_i, first, bound = document_starts(starts, head // H, i_start, T, BLOCK_I, BLOCK_J)
    # As in the forward pass, the diagonal first and in a loop of its own.
    for step in tl.range(0, tl.minimum(BLOCK_I, T - i_start), BLOCK_J, num_stages=1):
        from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest = _p1_tile(
            p1_i, p1_i_rest, dy_i, dy_i_rest, p2, info, p2_tiles, info_tiles, p2_rests, info_rests,
            head // H, head % H // GROUP, start_i, i_start, i_start + step, T,
            norm_i, mean_h_i, from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest,
            stride_p2_t, stride_p2_d, stride_info_t, stride_info_d, scale,
            D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, SCALED, True, DOCUMENTS,
        )  # fmt: skip
    if DOCUMENTS:
        for j_start in tl.range(first, bound, BLOCK_J, num_stages=1):
            from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest = _p1_tile(
                p1_i, p1_i_rest, dy_i, dy_i_rest, p2, info, p2_tiles, info_tiles, p2_rests,
                info_rests, head // H, head % H // GROUP, start_i, i_start, j_start, T,
                norm_i, mean_h_i, from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest,
                stride_p2_t, stride_p2_d, stride_info_t, stride_info_d, scale,
                D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, SCALED, False, True,
            )  # fmt: skip
    for j_start in range(bound, i_start, BLOCK_J):
        from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest = _p1_tile(
            p1_i, p1_i_rest, dy_i, dy_i_rest, p2, info, p2_tiles, info_tiles, p2_rests, info_rests,
            head // H, head % H // GROUP, start_i, i_start, j_start, T,
            norm_i, mean_h_i, from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest,
            stride_p2_t, stride_p2_d, stride_info_t, stride_info_d, scale,
            D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, SCALED, False, False,
        )  # fmt: skip

    # dA = (1 - g) (sum_j F_ij H_ij - g H_ii): in FP32 from the scores. From the rounded Y it would
    # lose its digits where Y is close to I.
    logit = tl.load(gate_logit + row, mask=i < T, other=0.0)
    da = from_history_i
    if TRANSPORT_SELF:
        da -= tl.sigmoid(logit) * h_self_i
    da *= tl.sigmoid(-logit)
    s = tl.sigmoid(u_self_i * (2.0 / tau if SCALED else scale / tau))
    du_self_i = -da * s * (1.0 - s) * (scale / tau)
    tl.store(du_self + row, du_self_i, mask=i < T)
    block = tl.cast(head, tl.int64) * tl.num_programs(1) + tl.program_id(1)
    dlam_i = tl.where(i < T, -da * tl.log((i + 1 - start_i).to(tl.float32)), 0.0)
    tl.store(dlam_partial + block, tl.sum(dlam_i, 0))

    p2_i = load_tile(p2, i_start, T, stride_p2_t, stride_p2_d, D, 0, BLOCK_I, WIDE, WHOLE)
    dp1_i = dp1_i * (0.5 * scale) + du_self_i[:, None] * p2_i.to(tl.float32)
    store_tile(dp1, dp1_i, i_start, T, stride_dp1_t, stride_dp1_d, D, 0, BLOCK_I, WIDE)
    if REST > 0:
        p2_i_rest = load_tile(
            p2, i_start, T, stride_p2_t, stride_p2_d, D, WIDE, BLOCK_I, REST, WHOLE
        )
        dp1_i_rest = dp1_i_rest * (0.5 * scale) + du_self_i[:, None] * p2_i_rest.to(tl.float32)
        store_tile(dp1, dp1_i_rest, i_start, T, stride_dp1_t, stride_dp1_d, D, WIDE, BLOCK_I, REST)
