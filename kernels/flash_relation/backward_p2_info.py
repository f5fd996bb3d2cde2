"""The backward pass over history: the gradients of p2 and information.

A program owns a block of history of one head and scans the rows that read it (Appendix A.1.7): of
every head of p1 in turn, where some share it.
"""

import triton
import triton.language as tl

from relation.kernels.common import offset_of_head
from relation.kernels.flash_relation.forward import LOG2_E
from relation.kernels.flash_relation.tiles import (
    document_ends,
    half_tanh,
    load_tile,
    program_head,
    read_row_sums,
    read_tile,
    store_tile,
)


@triton.jit
def _p2_info_tile(
    p2_j, p2_j_rest, info_j, info_j_rest, p1, dy, p1_tiles, dy_tiles, p1_rests, dy_rests, row_tiles,
    head, b, h, row_sums, du_self_j, f_self_j, end_j, i_start, j_start, T,
    dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest,
    stride_p1_t, stride_p1_d, stride_dy_t, stride_dy_d, scale,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
    SCALED: tl.constexpr, SPLIT: tl.constexpr, DIAGONAL: tl.constexpr, BOUND: tl.constexpr,
):  # fmt: skip
    """Add what the rows at i_start give to the gradients of the history at j_start.

    With SPLIT, Self is not among it, and DIAGONAL says whether some of the rows lie in the block.
    With BOUND some of the rows may lie behind end_j, the end of their history's document.
    """
    i = i_start + tl.arange(0, BLOCK_I)
    j = j_start + tl.arange(0, BLOCK_J)
    p1_i = read_tile(
        p1_tiles, b, h, p1, i_start, T, stride_p1_t, stride_p1_d, D, 0, BLOCK_I, WIDE, WHOLE
    )
    dy_i = read_tile(
        dy_tiles, b, h, dy, i_start, T, stride_dy_t, stride_dy_d, D, 0, BLOCK_I, WIDE, WHOLE
    )
    norm_i, mean_h_i = read_row_sums(row_tiles, head, row_sums, i_start, T, BLOCK_I, WHOLE)
    # Formed transposed: a dot result transposed into another dot is miscompiled on Hopper.
    # Each rest directly behind its wide product: ptxas then waits twice before the first tanh and
    # not four times.
    ut = tl.dot(p2_j, tl.trans(p1_i), input_precision="ieee")
    if REST > 0:
        p1_i_rest = read_tile(
            p1_rests, b, h, p1, i_start, T, stride_p1_t, stride_p1_d, D, WIDE, BLOCK_I, REST, WHOLE
        )
        ut = tl.dot(p2_j_rest, tl.trans(p1_i_rest), ut, input_precision="ieee")
    ht = tl.dot(info_j, tl.trans(dy_i), input_precision="ieee")
    if REST > 0:
        dy_i_rest = read_tile(
            dy_rests, b, h, dy, i_start, T, stride_dy_t, stride_dy_d, D, WIDE, BLOCK_I, REST, WHOLE
        )
        ht = tl.dot(info_j_rest, tl.trans(dy_i_rest), ht, input_precision="ieee")
    half_u = ut if SCALED else ut * (0.5 * scale)
    t = half_tanh(half_u, FAST)
    e = half_u * t + half_u
    log2_f = e * LOG2_E - norm_i[None, :]
    if SPLIT and DIAGONAL:
        log2_f = tl.where(j[:, None] < i[None, :], log2_f, float("-inf"))
    if BOUND:
        log2_f = tl.where(i[None, :] < end_j[:, None], log2_f, float("-inf"))
    ft = tl.exp2(log2_f)
    de = ft * (ht - mean_h_i[None, :])
    dut = de * ((e - e * t) + t) + de
    if not SPLIT:
        meets_diagonal = i_start < j_start + BLOCK_J
        if meets_diagonal:
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
    return dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest


@triton.jit
def _scan_head(
    p2_j, p2_j_rest, info_j, info_j_rest, p1, dy, p1_tiles, dy_tiles, p1_rests, dy_rests, row_tiles,
    ends, head, gate_logit, row_sums, du_self, j_start,
    dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d, H, T, scale,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
    SCALED: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """Add what the rows of `head` give to the gradients of the history at j_start.

    ALONE: no other head reads this history, and the sums so far are zeros.
    """
    # At widths of two tiles, and through pointers, a second loop spills or takes longer.
    SPLIT: tl.constexpr = p1_tiles is not None and REST == 0
    j = j_start + tl.arange(0, BLOCK_J)
    b, h = head // H, head % H
    rows = tl.cast(head, tl.int64) * T
    p1 += offset_of_head(head, H, stride_p1_b, stride_p1_h)
    dy += offset_of_head(head, H, stride_dy_b, stride_dy_h)
    # Self's entries of twice dU / scale and of F.
    du_self_j = tl.load(du_self + rows + j, mask=j < T, other=0.0) * (2.0 / scale)
    f_self_j = 0.0
    if TRANSPORT_SELF:
        f_self_j = tl.sigmoid(-tl.load(gate_logit + rows + j, mask=j < T, other=0.0))

    DOCUMENTS: tl.constexpr = ends is not None
    end_j, whole, end = document_ends(ends, b, j_start, T, BLOCK_J, BLOCK_I)
    first = j_start // BLOCK_I * BLOCK_I
    if SPLIT:
        # The sums begin with Self's share: begun with zeros, as in the exchange-only ablation,
        # ptxas serialises the products (C7515).
        p1_j = load_tile(p1, j_start, T, stride_p1_t, stride_p1_d, D, 0, BLOCK_J, WIDE, WHOLE)
        dp2_self = du_self_j[:, None] * p1_j.to(tl.float32)
        dp2_j = dp2_self if ALONE else dp2_j + dp2_self
        if TRANSPORT_SELF:
            dy_j = load_tile(dy, j_start, T, stride_dy_t, stride_dy_d, D, 0, BLOCK_J, WIDE, WHOLE)
            dinfo_self = f_self_j[:, None] * dy_j.to(tl.float32)
            dinfo_j = dinfo_self if ALONE else dinfo_j + dinfo_self
        # As in the forward pass, the diagonal first and in a loop of its own.
        past = tl.minimum(tl.cdiv(j_start + BLOCK_J, BLOCK_I) * BLOCK_I, end)
        for i_start in tl.range(first, past, BLOCK_I, num_stages=1):
            dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest = _p2_info_tile(
                p2_j, p2_j_rest, info_j, info_j_rest, p1, dy, p1_tiles, dy_tiles, p1_rests,
                dy_rests, row_tiles, head, b, h, row_sums, du_self_j, f_self_j, end_j, i_start,
                j_start, T, dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest,
                stride_p1_t, stride_p1_d, stride_dy_t, stride_dy_d, scale,
                TRANSPORT_SELF, D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, SCALED, SPLIT, True,
                DOCUMENTS,
            )  # fmt: skip
        first = past
    for i_start in range(first, whole, BLOCK_I):
        dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest = _p2_info_tile(
            p2_j, p2_j_rest, info_j, info_j_rest, p1, dy, p1_tiles, dy_tiles, p1_rests,
            dy_rests, row_tiles, head, b, h, row_sums, du_self_j, f_self_j, end_j, i_start,
            j_start, T, dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest,
            stride_p1_t, stride_p1_d, stride_dy_t, stride_dy_d, scale,
            TRANSPORT_SELF, D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, SCALED, SPLIT, False,
            False,
        )  # fmt: skip
    if DOCUMENTS:
        for i_start in tl.range(tl.maximum(first, whole), end, BLOCK_I, num_stages=1):
            dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest = _p2_info_tile(
                p2_j, p2_j_rest, info_j, info_j_rest, p1, dy, p1_tiles, dy_tiles, p1_rests,
                dy_rests, row_tiles, head, b, h, row_sums, du_self_j, f_self_j, end_j, i_start,
                j_start, T, dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest,
                stride_p1_t, stride_p1_d, stride_dy_t, stride_dy_d, scale,
                TRANSPORT_SELF, D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, SCALED, SPLIT,
                False, True,
            )  # fmt: skip
    return dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest


@triton.jit(do_not_specialize=["T"])
def p2_info_kernel(
    p1, p2, info, dy, p1_tiles, dy_tiles, p1_rests, dy_rests, row_tiles, ends,
    gate_logit, row_sums, du_self, dp2, dinfo,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
    SCALED: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    scale = tl.cast(scale, tl.float32)
    # The first of history is read by the most rows: program 0 starts first.
    j_start = tl.program_id(1) * BLOCK_J
    shared = program_head()
    p2 += offset_of_head(shared, H // GROUP, stride_p2_b, stride_p2_h)
    info += offset_of_head(shared, H // GROUP, stride_info_b, stride_info_h)
    out = offset_of_head(shared, H // GROUP, stride_out_b, stride_out_h)

    p2_j = load_tile(p2, j_start, T, stride_p2_t, stride_p2_d, D, 0, BLOCK_J, WIDE, WHOLE)
    info_j = load_tile(info, j_start, T, stride_info_t, stride_info_d, D, 0, BLOCK_J, WIDE, WHOLE)
    if SCALED:
        p2_j = (p2_j * (0.5 * scale)).to(p2_j.dtype)
    p2_j_rest, info_j_rest, dp2_j_rest, dinfo_j_rest = p2_j, info_j, 0.0, 0.0
    if REST > 0:
        p2_j_rest = load_tile(
            p2, j_start, T, stride_p2_t, stride_p2_d, D, WIDE, BLOCK_J, REST, WHOLE
        )
        info_j_rest = load_tile(
            info, j_start, T, stride_info_t, stride_info_d, D, WIDE, BLOCK_J, REST, WHOLE
        )
        dp2_j_rest = tl.zeros([BLOCK_J, REST], tl.float32)
        dinfo_j_rest = tl.zeros([BLOCK_J, REST], tl.float32)
    dp2_j = tl.zeros([BLOCK_J, WIDE], tl.float32)
    dinfo_j = tl.zeros([BLOCK_J, WIDE], tl.float32)
    if GROUP == 1:
        dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest = _scan_head(
            p2_j, p2_j_rest, info_j, info_j_rest, p1, dy, p1_tiles, dy_tiles, p1_rests, dy_rests,
            row_tiles, ends, shared, gate_logit, row_sums, du_self, j_start,
            dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest,
            stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
            stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d, H, T, scale,
            TRANSPORT_SELF, D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, SCALED, True,
        )  # fmt: skip
    else:
        for member in range(GROUP):
            dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest = _scan_head(
                p2_j, p2_j_rest, info_j, info_j_rest, p1, dy, p1_tiles, dy_tiles, p1_rests,
                dy_rests, row_tiles, ends, shared * GROUP + member, gate_logit, row_sums, du_self,
                j_start, dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest,
                stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
                stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d, H, T, scale,
                TRANSPORT_SELF, D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, SCALED, False,
            )  # fmt: skip

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
