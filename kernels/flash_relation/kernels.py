"""FlashRelation in Triton: the historical Exchange scan forward, three passes backward.

Rows i and history j count from zero here; the paper's one-based row is i + 1. Every program works
on one head of one sequence, with offsets that stay 64-bit until they are inside a tile.
"""

import math

import torch
import triton
import triton.language as tl

from kernels.flash_relation.launches import Launches, padded_width, select_launches
from kernels.flash_relation.tiles import head_offset, load_tile, store_tile

# SiLU is nowhere below -0.2785, so a running maximum may start here and stay finite.
SILU_FLOOR = tl.constexpr(-0.28)


def wrap_triton(kernel):
    """torch.library.wrap_triton, which not every PyTorch lets pass an interpreted kernel.

    PyTorch finds the kernels of an operator by calls of this very name in the launchers' source.
    """
    if isinstance(kernel, triton.JITFunction):
        return torch.library.wrap_triton(kernel)
    return kernel


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    p1, p2, info, lam, y, zbar, gate_logit, log_norm,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale, tau,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    scale, tau = tl.cast(scale, tl.float32), tl.cast(tau, tl.float32)
    # The last rows have the longest history, so they start first.
    i_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_I
    i = i_start + tl.arange(0, BLOCK_I)
    p1 += head_offset(H, stride_p1_b, stride_p1_h)
    p2 += head_offset(H, stride_p2_b, stride_p2_h)
    info += head_offset(H, stride_info_b, stride_info_h)
    out = head_offset(H, stride_out_b, stride_out_h)
    row = tl.cast(tl.program_id(0), tl.int64) * T + i

    p1_i = load_tile(p1, i_start, T, stride_p1_t, stride_p1_d, D, BLOCK_I, BLOCK_D)
    m_i = tl.full([BLOCK_I], SILU_FLOOR, tl.float32)
    l_i = tl.zeros([BLOCK_I], tl.float32)
    z_i = tl.zeros([BLOCK_I, BLOCK_D], tl.float32)
    for j_start in range(0, tl.minimum(i_start + BLOCK_I, T) - 1, BLOCK_J):
        j = j_start + tl.arange(0, BLOCK_J)
        p2_j = load_tile(p2, j_start, T, stride_p2_t, stride_p2_d, D, BLOCK_J, BLOCK_D)
        info_j = load_tile(info, j_start, T, stride_info_t, stride_info_d, D, BLOCK_J, BLOCK_D)
        u = tl.dot(p1_i, tl.trans(p2_j), input_precision="ieee") * scale
        e = tl.where(j[None, :] < i[:, None], u * tl.sigmoid(u), float("-inf"))
        m_new = tl.maximum(m_i, tl.max(e, 1))
        weight = tl.exp(e - m_new[:, None])
        kept = tl.exp(m_i - m_new)
        l_i = l_i * kept + tl.sum(weight, 1)
        z_i = z_i * kept[:, None]
        z_i += tl.dot(weight.to(info_j.dtype), info_j, input_precision="ieee")
        m_i = m_new

    # The first row has no history: l = 0, A = -inf and g = 0. Every other l is at least 1.
    has_history = l_i > 0.0
    l_i = tl.where(has_history, l_i, 1.0)
    lse = m_i + tl.log(l_i)
    p2_i = load_tile(p2, i_start, T, stride_p2_t, stride_p2_d, D, BLOCK_I, BLOCK_D)
    u_self = tl.sum(p1_i.to(tl.float32) * p2_i.to(tl.float32), 1) * scale
    s = tl.sigmoid(u_self / tau)
    a = tl.where(has_history, lse - tl.load(lam) * tl.log((i + 1).to(tl.float32)), float("-inf"))
    logit = a - s
    zbar_i = z_i / l_i[:, None]
    y_i = tl.sigmoid(logit)[:, None] * zbar_i
    if TRANSPORT_SELF:
        info_i = load_tile(info, i_start, T, stride_info_t, stride_info_d, D, BLOCK_I, BLOCK_D)
        y_i += tl.sigmoid(-logit)[:, None] * info_i.to(tl.float32)

    store_tile(y + out, y_i, i_start, T, stride_out_t, stride_out_d, D, BLOCK_I, BLOCK_D)
    store_tile(zbar + out, zbar_i, i_start, T, stride_out_t, stride_out_d, D, BLOCK_I, BLOCK_D)
    tl.store(gate_logit + row, logit, mask=i < T)
    # -log g, without the cancellation that L + S - A would have.
    minus_log_g = tl.maximum(-logit, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(logit)))
    tl.store(log_norm + row, lse + minus_log_g, mask=i < T)


@triton.jit(do_not_specialize=["T"])
def rows_backward_kernel(
    p1, p2, info, dy, zbar, gate_logit, mean_h, du_self, dlam_partial,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_zbar_b, stride_zbar_h, stride_zbar_t, stride_zbar_d,
    H, T, scale, tau,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    scale, tau = tl.cast(scale, tl.float32), tl.cast(tau, tl.float32)
    i_start = tl.program_id(1) * BLOCK_I
    i = i_start + tl.arange(0, BLOCK_I)
    row = tl.cast(tl.program_id(0), tl.int64) * T + i
    p1 += head_offset(H, stride_p1_b, stride_p1_h)
    p2 += head_offset(H, stride_p2_b, stride_p2_h)
    info += head_offset(H, stride_info_b, stride_info_h)
    dy += head_offset(H, stride_dy_b, stride_dy_h)
    zbar += head_offset(H, stride_zbar_b, stride_zbar_h)

    p1_i = load_tile(p1, i_start, T, stride_p1_t, stride_p1_d, D, BLOCK_I, BLOCK_D)
    p2_i = load_tile(p2, i_start, T, stride_p2_t, stride_p2_d, D, BLOCK_I, BLOCK_D)
    dy_i = load_tile(dy, i_start, T, stride_dy_t, stride_dy_d, D, BLOCK_I, BLOCK_D)
    zbar_i = load_tile(zbar, i_start, T, stride_zbar_t, stride_zbar_d, D, BLOCK_I, BLOCK_D)
    logit = tl.load(gate_logit + row, mask=i < T, other=float("-inf"))
    g, one_minus_g = tl.sigmoid(logit), tl.sigmoid(-logit)

    dy_i = dy_i.to(tl.float32)
    zbar_i = zbar_i.to(tl.float32)
    if TRANSPORT_SELF:
        info_i = load_tile(info, i_start, T, stride_info_t, stride_info_d, D, BLOCK_I, BLOCK_D)
        c = tl.sum(dy_i * (zbar_i - info_i.to(tl.float32)), 1)
    else:
        c = tl.sum(dy_i * zbar_i, 1)
    da = g * one_minus_g * c
    s = tl.sigmoid(tl.sum(p1_i.to(tl.float32) * p2_i.to(tl.float32), 1) * scale / tau)

    tl.store(mean_h + row, tl.sum(dy_i * zbar_i, 1) - one_minus_g * c, mask=i < T)
    tl.store(du_self + row, -da * s * (1.0 - s) / tau, mask=i < T)
    block = tl.cast(tl.program_id(0), tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(dlam_partial + block, -tl.sum(da * tl.log((i + 1).to(tl.float32)), 0))


@triton.jit(do_not_specialize=["T"])
def p2_info_backward_kernel(
    p1, p2, info, dy, gate_logit, log_norm, mean_h, du_self, dp2, dinfo,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    scale = tl.cast(scale, tl.float32)
    j_start = tl.program_id(1) * BLOCK_J
    j = j_start + tl.arange(0, BLOCK_J)
    head_row = tl.cast(tl.program_id(0), tl.int64) * T
    p1 += head_offset(H, stride_p1_b, stride_p1_h)
    p2 += head_offset(H, stride_p2_b, stride_p2_h)
    info += head_offset(H, stride_info_b, stride_info_h)
    dy += head_offset(H, stride_dy_b, stride_dy_h)
    out = head_offset(H, stride_out_b, stride_out_h)

    p2_j = load_tile(p2, j_start, T, stride_p2_t, stride_p2_d, D, BLOCK_J, BLOCK_D)
    info_j = load_tile(info, j_start, T, stride_info_t, stride_info_d, D, BLOCK_J, BLOCK_D)
    dp2_j = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    dinfo_j = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    for i_start in range(j_start // BLOCK_I * BLOCK_I, T, BLOCK_I):
        i = i_start + tl.arange(0, BLOCK_I)
        p1_i = load_tile(p1, i_start, T, stride_p1_t, stride_p1_d, D, BLOCK_I, BLOCK_D)
        dy_i = load_tile(dy, i_start, T, stride_dy_t, stride_dy_d, D, BLOCK_I, BLOCK_D)
        # Rows past the end have F = exp(E - inf) = 0, as the first row has.
        norm_i = tl.load(log_norm + head_row + i, mask=i < T, other=float("inf"))
        mean_h_i = tl.load(mean_h + head_row + i, mask=i < T, other=0.0)
        # Formed transposed: a dot result transposed into another dot is miscompiled on Hopper.
        ut = tl.dot(p2_j, tl.trans(p1_i), input_precision="ieee") * scale
        sigma = tl.sigmoid(ut)
        et = ut * sigma
        ft = tl.where(j[:, None] < i[None, :], tl.exp(et - norm_i[None, :]), 0.0)
        dinfo_j += tl.dot(ft.to(dy_i.dtype), dy_i, input_precision="ieee")
        dft = tl.dot(info_j, tl.trans(dy_i), input_precision="ieee")
        dut = ft * (dft - mean_h_i[None, :]) * (sigma + et * (1.0 - sigma))
        dp2_j += tl.dot(dut.to(p1_i.dtype), p1_i, input_precision="ieee")

    p1_j = load_tile(p1, j_start, T, stride_p1_t, stride_p1_d, D, BLOCK_J, BLOCK_D)
    du_self_j = tl.load(du_self + head_row + j, mask=j < T, other=0.0)
    dp2_j += du_self_j[:, None] * p1_j.to(tl.float32)
    if TRANSPORT_SELF:
        dy_j = load_tile(dy, j_start, T, stride_dy_t, stride_dy_d, D, BLOCK_J, BLOCK_D)
        logit_j = tl.load(gate_logit + head_row + j, mask=j < T, other=0.0)
        dinfo_j += tl.sigmoid(-logit_j)[:, None] * dy_j.to(tl.float32)
    dp2_j *= scale
    store_tile(dp2 + out, dp2_j, j_start, T, stride_out_t, stride_out_d, D, BLOCK_J, BLOCK_D)
    store_tile(dinfo + out, dinfo_j, j_start, T, stride_out_t, stride_out_d, D, BLOCK_J, BLOCK_D)


@triton.jit(do_not_specialize=["T"])
def p1_backward_kernel(
    p1, p2, info, dy, log_norm, mean_h, du_self, dp1,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    scale = tl.cast(scale, tl.float32)
    i_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_I
    i = i_start + tl.arange(0, BLOCK_I)
    row = tl.cast(tl.program_id(0), tl.int64) * T + i
    p1 += head_offset(H, stride_p1_b, stride_p1_h)
    p2 += head_offset(H, stride_p2_b, stride_p2_h)
    info += head_offset(H, stride_info_b, stride_info_h)
    dy += head_offset(H, stride_dy_b, stride_dy_h)
    out = head_offset(H, stride_out_b, stride_out_h)

    p1_i = load_tile(p1, i_start, T, stride_p1_t, stride_p1_d, D, BLOCK_I, BLOCK_D)
    dy_i = load_tile(dy, i_start, T, stride_dy_t, stride_dy_d, D, BLOCK_I, BLOCK_D)
    norm_i = tl.load(log_norm + row, mask=i < T, other=float("inf"))
    mean_h_i = tl.load(mean_h + row, mask=i < T, other=0.0)
    dp1_i = tl.zeros([BLOCK_I, BLOCK_D], tl.float32)
    for j_start in range(0, tl.minimum(i_start + BLOCK_I, T) - 1, BLOCK_J):
        j = j_start + tl.arange(0, BLOCK_J)
        p2_j = load_tile(p2, j_start, T, stride_p2_t, stride_p2_d, D, BLOCK_J, BLOCK_D)
        info_j = load_tile(info, j_start, T, stride_info_t, stride_info_d, D, BLOCK_J, BLOCK_D)
        u = tl.dot(p1_i, tl.trans(p2_j), input_precision="ieee") * scale
        sigma = tl.sigmoid(u)
        e = u * sigma
        f = tl.where(j[None, :] < i[:, None], tl.exp(e - norm_i[:, None]), 0.0)
        df = tl.dot(dy_i, tl.trans(info_j), input_precision="ieee")
        du = f * (df - mean_h_i[:, None]) * (sigma + e * (1.0 - sigma))
        dp1_i += tl.dot(du.to(p2_j.dtype), p2_j, input_precision="ieee")

    p2_i = load_tile(p2, i_start, T, stride_p2_t, stride_p2_d, D, BLOCK_I, BLOCK_D)
    du_self_i = tl.load(du_self + row, mask=i < T, other=0.0)
    dp1_i = (dp1_i + du_self_i[:, None] * p2_i.to(tl.float32)) * scale
    store_tile(dp1 + out, dp1_i, i_start, T, stride_out_t, stride_out_d, D, BLOCK_I, BLOCK_D)


def launch_forward(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    lam: torch.Tensor,
    tau: float,
    transport_self: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the forward pass.

    Returns Y and zbar (B, H, T, D) in info's dtype, and two FP32 (B, H, T): the gate's logit
    A - S, and the number n_i of which F_ij = exp(E_ij - n_i) for j < i.
    """
    B, H, T, D = p1.shape
    y, zbar = _empty_tokens(info), _empty_tokens(info)
    gate_logit, log_norm = _empty_rows(info), _empty_rows(info)
    tile = _launches(p1).forward
    with torch.cuda.device_of(p1):
        wrap_triton(forward_kernel)[(B * H, triton.cdiv(T, tile.block_i))](
            p1, p2, info, lam, y, zbar, gate_logit, log_norm,
            *p1.stride(), *p2.stride(), *info.stride(), *y.transpose(1, 2).stride(),
            H, T, 1 / math.sqrt(D), tau,
            TRANSPORT_SELF=transport_self, D=D, BLOCK_D=padded_width(D),
            BLOCK_I=tile.block_i, BLOCK_J=tile.block_j,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
    return y.transpose(1, 2), zbar.transpose(1, 2), gate_logit, log_norm


def launch_backward(
    dy: torch.Tensor,
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    zbar: torch.Tensor,
    gate_logit: torch.Tensor,
    log_norm: torch.Tensor,
    tau: float,
    transport_self: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the backward passes; the arguments after dy are the forward's inputs and results.

    Returns the gradients of p1, p2 and info in their dtype, and of lam as an FP32 scalar.
    """
    B, H, T, D = p1.shape
    launches = _launches(p1)
    heads, strides = B * H, (*p1.stride(), *p2.stride(), *info.stride(), *dy.stride())
    scale = 1 / math.sqrt(D)

    tile = launches.rows
    blocks = triton.cdiv(T, tile.block_i)
    mean_h, du_self = _empty_rows(p1), _empty_rows(p1)
    dlam_partial = torch.empty(heads * blocks, dtype=torch.float32, device=p1.device)
    with torch.cuda.device_of(p1):
        wrap_triton(rows_backward_kernel)[(heads, blocks)](
            p1, p2, info, dy, zbar, gate_logit, mean_h, du_self, dlam_partial,
            *strides, *zbar.stride(), H, T, scale, tau,
            TRANSPORT_SELF=transport_self, D=D, BLOCK_D=padded_width(D), BLOCK_I=tile.block_i,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip

        dp2, dinfo = _empty_tokens(p2), _empty_tokens(info)
        tile = launches.p2_info
        wrap_triton(p2_info_backward_kernel)[(heads, triton.cdiv(T, tile.block_j))](
            p1, p2, info, dy, gate_logit, log_norm, mean_h, du_self, dp2, dinfo,
            *strides, *dp2.transpose(1, 2).stride(), H, T, scale,
            TRANSPORT_SELF=transport_self, D=D, BLOCK_D=padded_width(D),
            BLOCK_I=tile.block_i, BLOCK_J=tile.block_j,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip

        dp1 = _empty_tokens(p1)
        tile = launches.p1
        wrap_triton(p1_backward_kernel)[(heads, triton.cdiv(T, tile.block_i))](
            p1, p2, info, dy, log_norm, mean_h, du_self, dp1,
            *strides, *dp1.transpose(1, 2).stride(), H, T, scale,
            D=D, BLOCK_D=padded_width(D), BLOCK_I=tile.block_i, BLOCK_J=tile.block_j,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
    return (*(x.transpose(1, 2) for x in (dp1, dp2, dinfo)), dlam_partial.sum())


def _launches(p1: torch.Tensor) -> Launches:
    return select_launches(p1.device, p1.element_size(), p1.shape[-1])


def _empty_tokens(like: torch.Tensor) -> torch.Tensor:
    """Memory for a (B, H, T, D) result, laid out (B, T, H, D): joining its heads copies nothing.

    From torch.empty, as all memory here: torch.compile merges equal calls of other factories, and
    two results in one buffer cost a copy.
    """
    B, H, T, D = like.shape
    return torch.empty((B, T, H, D), dtype=like.dtype, device=like.device)


def _empty_rows(like: torch.Tensor) -> torch.Tensor:
    """Memory for one FP32 number a row, (B, H, T)."""
    return torch.empty(like.shape[:3], dtype=torch.float32, device=like.device)
