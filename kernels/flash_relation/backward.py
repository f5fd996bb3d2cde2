"""The backward pass of FlashRelation (Appendix A.1.7), in two passes without atomics.

`p1_kernel` owns blocks of rows: the gradient of p1 and, since it meets all history of a row, what
flows through the gate and lambda. `p2_info_kernel` owns blocks of history. Both compute the scores
again. The derivative of SiLU is (1 + t + E (1 - t)) / 2 with t = tanh(U/2).
"""

import math

import torch
import triton
import triton.language as tl

from kernels.common import head_offset, interpreted
from kernels.flash_relation.forward import LOG2_E
from kernels.flash_relation.launches import Launches, select_launches, split_width
from kernels.flash_relation.tiles import half_tanh, load_tile, store_tile

# Larger than any log_norm: rows past the end get F = 2^(E - PAST_END) = 0, and no inf - inf.
PAST_END = tl.constexpr(1e30)


@triton.jit
def _p1_tile(
    p1_i, p1_i_rest, dy_i, dy_i_rest, p2, info, i_start, j_start, T, norm_i, mean_h_i,
    from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest,
    stride_p2_t, stride_p2_d, stride_info_t, stride_info_d, scale,
    D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
    DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Add the tile of history at j_start to the sums of the rows at i_start."""
    p2_j = load_tile(
        p2, j_start, T, stride_p2_t, stride_p2_d, D, 0, BLOCK_J, WIDE, WHOLE or not DIAGONAL
    )
    info_j = load_tile(
        info, j_start, T, stride_info_t, stride_info_d, D, 0, BLOCK_J, WIDE, WHOLE or not DIAGONAL
    )
    u = tl.dot(p1_i, tl.trans(p2_j), input_precision="ieee")
    if REST > 0:
        p2_j_rest = load_tile(
            p2, j_start, T, stride_p2_t, stride_p2_d, D, WIDE, BLOCK_J, REST, WHOLE or not DIAGONAL
        )
        u = tl.dot(p1_i_rest, tl.trans(p2_j_rest), u, input_precision="ieee")
    h = tl.dot(dy_i, tl.trans(info_j), input_precision="ieee")
    if REST > 0:
        info_j_rest = load_tile(
            info, j_start, T, stride_info_t, stride_info_d, D, WIDE, BLOCK_J, REST,
            WHOLE or not DIAGONAL,
        )  # fmt: skip
        h = tl.dot(dy_i_rest, tl.trans(info_j_rest), h, input_precision="ieee")
    half_u = u * (0.5 * scale)
    t = half_tanh(half_u, FAST)
    e = half_u * t + half_u
    log2_f = e * LOG2_E - norm_i[:, None]
    if DIAGONAL:
        i = i_start + tl.arange(0, BLOCK_I)
        j = j_start + tl.arange(0, BLOCK_J)
        own = j[None, :] == i[:, None]
        log2_f = tl.where(j[None, :] < i[:, None], log2_f, float("-inf"))
        u_self_i += tl.sum(tl.where(own, u, 0.0), 1)
        h_self_i += tl.sum(tl.where(own, h, 0.0), 1)
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
    p1, p2, info, y, dy, gate_logit, log_norm, row_sums, du_self, dlam_partial, dp1,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_dp1_b, stride_dp1_h, stride_dp1_t, stride_dp1_d,
    H, T, scale, tau,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    scale, tau = tl.cast(scale, tl.float32), tl.cast(tau, tl.float32)
    # The last rows have the longest history, so they start first.
    i_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_I
    i = i_start + tl.arange(0, BLOCK_I)
    row = tl.cast(tl.program_id(0), tl.int64) * T + i
    p1 += head_offset(H, stride_p1_b, stride_p1_h)
    p2 += head_offset(H, stride_p2_b, stride_p2_h)
    info += head_offset(H, stride_info_b, stride_info_h)
    y += head_offset(H, stride_y_b, stride_y_h)
    dy += head_offset(H, stride_dy_b, stride_dy_h)
    dp1 += head_offset(H, stride_dp1_b, stride_dp1_h)

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
    norm_i = tl.load(log_norm + row, mask=i < T, other=PAST_END)
    # Side by side, because p2_info_kernel needs both of a row at once.
    which = tl.arange(0, 2)[None, :]
    tl.store(
        row_sums + 2 * row[:, None] + which,
        tl.where(which == 0, norm_i[:, None], mean_h_i[:, None]),
        mask=(i < T)[:, None],
    )

    dp1_i = tl.zeros([BLOCK_I, WIDE], tl.float32)
    from_history_i = tl.zeros([BLOCK_I], tl.float32)
    u_self_i = tl.zeros([BLOCK_I], tl.float32)
    h_self_i = tl.zeros([BLOCK_I], tl.float32)
    # As in the forward pass, the diagonal first and in a loop of its own.
    for step in tl.range(0, tl.minimum(BLOCK_I, T - i_start), BLOCK_J, num_stages=1):
        from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest = _p1_tile(
            p1_i, p1_i_rest, dy_i, dy_i_rest, p2, info, i_start, i_start + step, T,
            norm_i, mean_h_i, from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest,
            stride_p2_t, stride_p2_d, stride_info_t, stride_info_d, scale,
            D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, True,
        )  # fmt: skip
    for j_start in range(0, i_start, BLOCK_J):
        from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest = _p1_tile(
            p1_i, p1_i_rest, dy_i, dy_i_rest, p2, info, i_start, j_start, T,
            norm_i, mean_h_i, from_history_i, u_self_i, h_self_i, dp1_i, dp1_i_rest,
            stride_p2_t, stride_p2_d, stride_info_t, stride_info_d, scale,
            D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, False,
        )  # fmt: skip

    # dA = (1 - g) (sum_j F_ij H_ij - g H_ii): in FP32 from the scores. From the rounded Y it would
    # lose its digits where Y is close to I.
    logit = tl.load(gate_logit + row, mask=i < T, other=0.0)
    da = from_history_i
    if TRANSPORT_SELF:
        da -= tl.sigmoid(logit) * h_self_i
    da *= tl.sigmoid(-logit)
    s = tl.sigmoid(u_self_i * (scale / tau))
    du_self_i = -da * s * (1.0 - s) * (scale / tau)
    tl.store(du_self + row, du_self_i, mask=i < T)
    block = tl.cast(tl.program_id(0), tl.int64) * tl.num_programs(1) + tl.program_id(1)
    dlam_i = tl.where(i < T, -da * tl.log((i + 1).to(tl.float32)), 0.0)
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


@triton.jit(do_not_specialize=["T"])
def p2_info_kernel(
    p1, p2, info, dy, gate_logit, row_sums, du_self, dp2, dinfo,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    scale = tl.cast(scale, tl.float32)
    # The first of history is read by the most rows: program 0 starts first.
    j_start = tl.program_id(1) * BLOCK_J
    j = j_start + tl.arange(0, BLOCK_J)
    rows = tl.cast(tl.program_id(0), tl.int64) * T
    p1 += head_offset(H, stride_p1_b, stride_p1_h)
    p2 += head_offset(H, stride_p2_b, stride_p2_h)
    info += head_offset(H, stride_info_b, stride_info_h)
    dy += head_offset(H, stride_dy_b, stride_dy_h)
    out = head_offset(H, stride_out_b, stride_out_h)

    p2_j = load_tile(p2, j_start, T, stride_p2_t, stride_p2_d, D, 0, BLOCK_J, WIDE, WHOLE)
    info_j = load_tile(info, j_start, T, stride_info_t, stride_info_d, D, 0, BLOCK_J, WIDE, WHOLE)
    dp2_j = tl.zeros([BLOCK_J, WIDE], tl.float32)
    dinfo_j = tl.zeros([BLOCK_J, WIDE], tl.float32)
    if REST > 0:
        p2_j_rest = load_tile(
            p2, j_start, T, stride_p2_t, stride_p2_d, D, WIDE, BLOCK_J, REST, WHOLE
        )
        info_j_rest = load_tile(
            info, j_start, T, stride_info_t, stride_info_d, D, WIDE, BLOCK_J, REST, WHOLE
        )
        dp2_j_rest = tl.zeros([BLOCK_J, REST], tl.float32)
        dinfo_j_rest = tl.zeros([BLOCK_J, REST], tl.float32)
    # Self's entries of twice dU / scale and of F, put on the diagonal of their tiles.
    du_self_j = tl.load(du_self + rows + j, mask=j < T, other=0.0) * (2.0 / scale)
    if TRANSPORT_SELF:
        f_self_j = tl.sigmoid(-tl.load(gate_logit + rows + j, mask=j < T, other=0.0))
    which = tl.arange(0, 2)[None, :]

    for i_start in range(j_start // BLOCK_I * BLOCK_I, T, BLOCK_I):
        i = i_start + tl.arange(0, BLOCK_I)
        p1_i = load_tile(p1, i_start, T, stride_p1_t, stride_p1_d, D, 0, BLOCK_I, WIDE, WHOLE)
        dy_i = load_tile(dy, i_start, T, stride_dy_t, stride_dy_d, D, 0, BLOCK_I, WIDE, WHOLE)
        # One load of pairs: two vectors of BLOCK_I would be copied number by number.
        at = row_sums + 2 * (rows + i)[:, None] + which
        both = tl.load(at) if WHOLE else tl.load(at, mask=(i < T)[:, None], other=PAST_END)
        norm_i, mean_h_i = tl.split(both)
        # Formed transposed: a dot result transposed into another dot is miscompiled on Hopper.
        ut = tl.dot(p2_j, tl.trans(p1_i), input_precision="ieee")
        ht = tl.dot(info_j, tl.trans(dy_i), input_precision="ieee")
        if REST > 0:
            p1_i_rest = load_tile(
                p1, i_start, T, stride_p1_t, stride_p1_d, D, WIDE, BLOCK_I, REST, WHOLE
            )
            dy_i_rest = load_tile(
                dy, i_start, T, stride_dy_t, stride_dy_d, D, WIDE, BLOCK_I, REST, WHOLE
            )
            ut = tl.dot(p2_j_rest, tl.trans(p1_i_rest), ut, input_precision="ieee")
            ht = tl.dot(info_j_rest, tl.trans(dy_i_rest), ht, input_precision="ieee")
        half_u = ut * (0.5 * scale)
        t = half_tanh(half_u, FAST)
        e = half_u * t + half_u
        ft = tl.exp2(e * LOG2_E - norm_i[None, :])
        de = ft * (ht - mean_h_i[None, :])
        dut = de * ((e - e * t) + t) + de
        if i_start < j_start + BLOCK_J:
            past = j[:, None] < i[None, :]
            own = j[:, None] == i[None, :]
            ft = tl.where(past, ft, 0.0)
            if TRANSPORT_SELF:
                ft = tl.where(own, f_self_j[:, None], ft)
            dut = tl.where(past, dut, tl.where(own, du_self_j[:, None], 0.0))
        ft = ft.to(dy_i.dtype)
        dinfo_j = tl.dot(ft, dy_i, dinfo_j, input_precision="ieee")
        dut = dut.to(p1_i.dtype)
        dp2_j = tl.dot(dut, p1_i, dp2_j, input_precision="ieee")
        if REST > 0:
            dinfo_j_rest = tl.dot(ft, dy_i_rest, dinfo_j_rest, input_precision="ieee")
            dp2_j_rest = tl.dot(dut, p1_i_rest, dp2_j_rest, input_precision="ieee")

    dp2_j *= 0.5 * scale
    store_tile(dp2 + out, dp2_j, j_start, T, stride_out_t, stride_out_d, D, 0, BLOCK_J, WIDE)
    store_tile(dinfo + out, dinfo_j, j_start, T, stride_out_t, stride_out_d, D, 0, BLOCK_J, WIDE)
    if REST > 0:
        dp2_j_rest *= 0.5 * scale
        store_tile(
            dp2 + out, dp2_j_rest, j_start, T, stride_out_t, stride_out_d, D, WIDE, BLOCK_J, REST
        )
        store_tile(
            dinfo + out, dinfo_j_rest, j_start, T, stride_out_t, stride_out_d,
            D, WIDE, BLOCK_J, REST,
        )  # fmt: skip


def launch_backward(
    dy: torch.Tensor,
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    y: torch.Tensor,
    gate_logit: torch.Tensor,
    log_norm: torch.Tensor,
    tau: float,
    transport_self: bool,
    launches: Launches | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the backward passes; p1 to transport_self are the forward's inputs and results.

    Without `launches`, the device's are taken. Returns the gradients of p1, p2 and info in their
    dtype, and of lam as an FP32 scalar.
    """
    B, H, T, D = p1.shape
    # Without atomics and with one writer an element, every sum has one order: equal inputs give
    # bitwise equal gradients.
    dp1, dp2, dinfo = (
        torch.empty((B, T, H, D), dtype=x.dtype, device=x.device).transpose(1, 2)
        for x in (p1, p2, info)
    )
    launches = launches or select_launches(p1.device, p1.element_size(), D)
    blocks = triton.cdiv(T, launches.p1.block_i)
    row_sums = torch.empty((B, H, T, 2), dtype=torch.float32, device=p1.device)
    du_self = torch.empty((B, H, T), dtype=torch.float32, device=p1.device)
    dlam_partial = torch.empty(B * H * blocks, dtype=torch.float32, device=p1.device)
    strides = (*p1.stride(), *p2.stride(), *info.stride())
    wide, rest = split_width(D)
    options = {
        "TRANSPORT_SELF": transport_self,
        "D": D,
        "WIDE": wide,
        "REST": rest,
        "FAST": p1.element_size() == 2 and not interpreted(),
    }
    with torch.cuda.device_of(p1):
        tile = launches.p1
        p1_kernel[(B * H, blocks)](
            p1, p2, info, y, dy, gate_logit, log_norm, row_sums, du_self, dlam_partial, dp1,
            *strides, *y.stride(), *dy.stride(), *dp1.stride(), H, T, 1 / math.sqrt(D), tau,
            BLOCK_I=tile.block_i, BLOCK_J=tile.block_j, WHOLE=T % tile.block_i == 0,
            **options, **tile.options(),
        )  # fmt: skip
        tile = launches.p2_info
        p2_info_kernel[(B * H, triton.cdiv(T, tile.block_j))](
            p1, p2, info, dy, gate_logit, row_sums, du_self, dp2, dinfo,
            *strides, *dy.stride(), *dp2.stride(), H, T, 1 / math.sqrt(D),
            BLOCK_I=tile.block_i, BLOCK_J=tile.block_j, WHOLE=T % tile.block_j == 0,
            **options, **tile.options(),
        )  # fmt: skip
    return dp1, dp2, dinfo, dlam_partial.sum()
