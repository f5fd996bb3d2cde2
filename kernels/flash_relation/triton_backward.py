"""FlashRelation's backward pass in Triton (Appendix A.1.7): two kernels without atomics.

Both recompute the scores. `p1_kernel` owns blocks of rows. It computes the gradient of p1 and,
since it sees all history of a row, the gradients of the gate and of lambda. `p2_info_kernel` owns
blocks of history and scans the rows of every head that reads it. The forward saved `gate_logit`,
A - S, and `log_norm`, n. The derivative of SiLU is (1 + t + E (1 - t)) / 2 with t = tanh(U/2). Sums
are over j < i, and G = dL/dY:

    F_ij = 2^(E_ij log2(e) - n_i)     F_ii = 1 - g_i,  g_i = sigmoid(A_i - S_i)
    H_ij = G_i . I_j                  mean_h_i = G_i . Y_i
    dE_ij = F_ij (H_ij - mean_h_i)    dA_i = -dS_i = (1 - g_i) (sum of F_ij H_ij - g_i H_ii)
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from relation.kernels.common import cdiv, start
from relation.kernels.flash_relation import triton_tiles as tiles
from relation.kernels.flash_relation.launches import Launches, grid
from relation.kernels.flash_relation.triton_tiles import LOG2_E

# Larger than any log_norm, but finite: rows past T get F = 2^(E - PAST_END) = 0, not inf - inf.
PAST_END = tl.constexpr(1e30)


@triton.jit
def _flow(u, norm, scale, like):
    """Return log2 F of the scores u, E and tanh(U/2)."""
    half_u = u * (0.5 * scale)
    t = tiles.half_tanh(half_u, like)
    e = half_u * t + half_u
    return e * LOG2_E - norm, e, t


@triton.jit
def _row_sums_at(head, i, T):
    """Return offsets (rows, 2) of log_norm and mean_h of the rows i of a head.

    The two numbers of a row are adjacent, because two vectors read through pointers would be copied
    number by number.
    """
    return 2 * (tl.cast(head, tl.int64) * T + i)[:, None] + tl.arange(0, 2)[None, :]


@triton.jit
def _p1_tile(
    sums, rows, p2, info, j_start, T, K: tl.constexpr, scale,
    DIAGONAL: tl.constexpr, BOUND: tl.constexpr,
):  # fmt: skip
    """Add the tile of history at j_start to the gradient sums of a block of rows."""
    dp1_i, from_history_i, u_self_i, h_self_i = sums
    p1_i, dy_i, norm_i, mean_h_i, i_start, start_i = rows
    p2_j = tiles.load(p2, j_start, T, K, K.BLOCK_J, K.WHOLE or not DIAGONAL)
    # U = P1 P2^T and H = G I^T (BLOCK_I, BLOCK_J). Where info is loaded was chosen by width for
    # tiles that TMA brought on Hopper (commit 0e50ff2c), and not again for pointers.
    if K.REST == 0:
        info_j = tiles.load(info, j_start, T, K, K.BLOCK_J, K.WHOLE or not DIAGONAL)
    u = tiles.scores(p1_i, p2_j, K)
    if K.REST > 0:
        info_j = tiles.load(info, j_start, T, K, K.BLOCK_J, K.WHOLE or not DIAGONAL)
    h = tiles.scores(dy_i, info_j, K)
    log2_f, e, t = _flow(u, norm_i[:, None], scale, p2_j[0])
    i = i_start + tl.arange(0, K.BLOCK_I)
    j = j_start + tl.arange(0, K.BLOCK_J)
    if DIAGONAL:
        is_self = j[None, :] == i[:, None]
        log2_f = tl.where(j[None, :] < i[:, None], log2_f, float("-inf"))
        u_self_i += tl.sum(tl.where(is_self, u, 0.0), 1)
        h_self_i += tl.sum(tl.where(is_self, h, 0.0), 1)
    if BOUND:
        log2_f = tl.where(j[None, :] >= start_i[:, None], log2_f, float("-inf"))
    # dE_ij = F_ij (H_ij - G_i . Y_i), and dU_ij = dE_ij (1 + t + E_ij (1 - t)) / 2.
    f = tl.exp2(log2_f)
    from_history_i += tl.sum(f * h, 1)
    de = f * (h - mean_h_i[:, None])
    # dP1 += 2 dU P2. The factor scale / 2 is applied once, to the sum.
    dp1_i = tiles.add_product(dp1_i, de * ((e - e * t) + t) + de, p2_j, K)
    return dp1_i, from_history_i, u_self_i, h_self_i


@triton.jit
def _row_products(a, b, K: tl.constexpr):
    """Return, in FP32, the dot product of each row of a with the same row of b."""
    product = tl.sum(a[0].to(tl.float32) * b[0].to(tl.float32), 1)
    if K.REST > 0:
        product += tl.sum(a[1].to(tl.float32) * b[1].to(tl.float32), 1)
    return product


@triton.jit(do_not_specialize=["T"])
def p1_kernel(
    p1, p2, info, y, dy, starts, gate_logit, log_norm, row_sums, du_self, dlam_partial, dp1,
    p1_strides, p2_strides, info_strides, y_strides, dy_strides, dp1_strides, H, T, scale, tau,
    K: tl.constexpr,
):  # fmt: skip
    scale, tau = tl.cast(scale, tl.float32), tl.cast(tau, tl.float32)
    # The last rows have the longest history, so they start first.
    i_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * K.BLOCK_I
    i = i_start + tl.arange(0, K.BLOCK_I)
    head = tiles.head_of_program()
    row = tl.cast(head, tl.int64) * T + i
    p1 = tiles.head_at(p1, p1_strides, head, H)
    p2 = tiles.head_at(p2, p2_strides, head // K.GROUP, H // K.GROUP)
    info = tiles.head_at(info, info_strides, head // K.GROUP, H // K.GROUP)
    y = tiles.head_at(y, y_strides, head, H)
    dy = tiles.head_at(dy, dy_strides, head, H)

    # Per row: mean_h = G . Y, stored together with n for `p2_info_kernel`.
    dy_i = tiles.load(dy, i_start, T, K, K.BLOCK_I, K.WHOLE)
    mean_h_i = _row_products(dy_i, tiles.load(y, i_start, T, K, K.BLOCK_I, K.WHOLE), K)
    p1_i = tiles.load(p1, i_start, T, K, K.BLOCK_I, K.WHOLE)
    norm_i = tl.load(log_norm + row, mask=i < T, other=PAST_END)
    at = row_sums + _row_sums_at(head, i, T)
    tl.store(at, tl.join(norm_i, mean_h_i), mask=(i < T)[:, None])

    DOCUMENTS: tl.constexpr = starts is not None
    start_i, first, bound = tiles.document_starts(
        starts, head // H, i_start, T, K.BLOCK_I, K.BLOCK_J
    )
    rows = p1_i, dy_i, norm_i, mean_h_i, i_start, start_i
    zeros = tl.full([K.BLOCK_I], 0.0, tl.float32)
    sums = tiles.zeros(K, K.BLOCK_I), zeros, zeros, zeros
    # As in the forward pass, the diagonal comes first, in a separate loop.
    for step in tl.range(0, tl.minimum(K.BLOCK_I, T - i_start), K.BLOCK_J, num_stages=1):
        sums = _p1_tile(
            sums, rows, p2, info, i_start + step, T, K, scale, DIAGONAL=True, BOUND=DOCUMENTS
        )
    if DOCUMENTS:
        for j_start in tl.range(first, bound, K.BLOCK_J, num_stages=1):
            sums = _p1_tile(sums, rows, p2, info, j_start, T, K, scale, DIAGONAL=False, BOUND=True)
    for j_start in range(bound, i_start, K.BLOCK_J):
        sums = _p1_tile(sums, rows, p2, info, j_start, T, K, scale, DIAGONAL=False, BOUND=False)

    # dA_i = (1 - g_i) (sum of F_ij H_ij over j < i, minus g_i H_ii) = -dS_i, in FP32 from the
    # scores. Computed from the rounded Y, it would lose its digits if Y is close to I.
    dp1_i, from_history_i, u_self_i, h_self_i = sums
    logit = tl.load(gate_logit + row, mask=i < T, other=0.0)
    if K.TRANSPORT_SELF:
        from_history_i -= tl.sigmoid(logit) * h_self_i
    da = from_history_i * tl.sigmoid(-logit)
    # du_self is dL/dU_ii D^-1/2, and dlam = -sum of dA_i log i.
    s = tl.sigmoid(u_self_i * (scale / tau))
    du_self_i = -da * s * (1.0 - s) * (scale / tau)
    tl.store(du_self + row, du_self_i, mask=i < T)
    block = tl.cast(head, tl.int64) * tl.num_programs(1) + tl.program_id(1)
    dlam_i = tl.where(i < T, -da * tl.log((i + 1 - start_i).to(tl.float32)), 0.0)
    tl.store(dlam_partial + block, tl.sum(dlam_i, 0))
    # dP1_i = D^-1/2 (sum of dU_ij P2_j over j < i, plus dU_ii P2_i).
    p2_i = tiles.times(tiles.load(p2, i_start, T, K, K.BLOCK_I, K.WHOLE), du_self_i[:, None], K)
    dp1_i = tiles.plus(tiles.times(dp1_i, 0.5 * scale, K), p2_i, K)
    dp1 = tiles.head_at(dp1, dp1_strides, head, H)
    tiles.store(dp1, dp1_i, i_start, T, K, K.BLOCK_I)


@triton.jit
def _p2_info_tile(
    sums, owned, p1, dy, head, row_sums, i_start, j_start, T, K: tl.constexpr, scale,
    BOUND: tl.constexpr,
):  # fmt: skip
    """Add the share of the rows at i_start to the gradients of the history at j_start.

    BOUND: some rows may be past end_j, the end of a history token's document.
    """
    dp2_j, dinfo_j = sums
    p2_j, info_j, du_self_j, f_self_j, end_j = owned
    i = i_start + tl.arange(0, K.BLOCK_I)
    j = j_start + tl.arange(0, K.BLOCK_J)
    p1_i = tiles.load(p1, i_start, T, K, K.BLOCK_I, K.WHOLE)
    dy_i = tiles.load(dy, i_start, T, K, K.BLOCK_I, K.WHOLE)
    at = row_sums + _row_sums_at(head, i, T)
    # Past T, PAST_END gives F = 0.
    both = tl.load(at) if K.WHOLE else tl.load(at, mask=(i < T)[:, None], other=PAST_END)
    norm_i, mean_h_i = tl.split(both)
    # U^T = P2 P1^T and H^T = I G^T (BLOCK_J, BLOCK_I) are formed transposed: some Triton versions
    # miscompile, for Hopper, a dot result that is transposed into another dot. REST products follow
    # their WIDE ones directly: ptxas then waits twice before the first tanh, not four times.
    ut = tiles.scores(p2_j, p1_i, K)
    ht = tiles.scores(info_j, dy_i, K)
    log2_f, e, t = _flow(ut, norm_i[None, :], scale, p1_i[0])
    if BOUND:
        log2_f = tl.where(i[None, :] < end_j[:, None], log2_f, float("-inf"))
    # F^T and 2 dU^T, as in `_p1_tile`.
    ft = tl.exp2(log2_f)
    de = ft * (ht - mean_h_i[None, :])
    dut = de * ((e - e * t) + t) + de
    meets_diagonal = i_start < j_start + K.BLOCK_J
    if meets_diagonal:
        past = j[:, None] < i[None, :]
        is_self = j[:, None] == i[None, :]
        ft = tl.where(past, ft, 0.0)
        if K.TRANSPORT_SELF:
            ft = tl.where(is_self, f_self_j[:, None], ft)
        dut = tl.where(past, dut, tl.where(is_self, du_self_j[:, None], 0.0))
    # dI += F^T G, and dP2 += 2 dU^T P1 (the factor scale / 2 comes at the end).
    dinfo_j = tiles.add_product(dinfo_j, ft, dy_i, K)
    return tiles.add_product(dp2_j, dut, p1_i, K), dinfo_j


@triton.jit
def _scan_head(
    sums, p2_j, info_j, p1, dy, ends, head, gate_logit, row_sums, du_self, j_start, H, T,
    K: tl.constexpr, scale,
):  # fmt: skip
    """Add the share of the rows of `head` to the gradients of the history at j_start."""
    j = j_start + tl.arange(0, K.BLOCK_J)
    rows = tl.cast(head, tl.int64) * T
    # Self's entries: 2 dU_jj, from the stored dU_jj D^-1/2, and F_jj = sigma(S - A).
    du_self_j = tl.load(du_self + rows + j, mask=j < T, other=0.0) * (2.0 / scale)
    f_self_j = 0.0
    if K.TRANSPORT_SELF:
        f_self_j = tl.sigmoid(-tl.load(gate_logit + rows + j, mask=j < T, other=0.0))

    end_j, unmasked_end, end = tiles.document_ends(
        ends, head // H, j_start, T, K.BLOCK_J, K.BLOCK_I
    )
    first = j_start // K.BLOCK_I * K.BLOCK_I
    owned = p2_j, info_j, du_self_j, f_self_j, end_j
    p1 = tiles.head_at(p1[0], p1[1], head, H)
    dy = tiles.head_at(dy[0], dy[1], head, H)
    for i_start in range(first, unmasked_end, K.BLOCK_I):
        sums = _p2_info_tile(
            sums, owned, p1, dy, head, row_sums, i_start, j_start, T, K, scale, BOUND=False
        )
    if ends is not None:
        for i_start in tl.range(tl.maximum(first, unmasked_end), end, K.BLOCK_I, num_stages=1):
            sums = _p2_info_tile(
                sums, owned, p1, dy, head, row_sums, i_start, j_start, T, K, scale, BOUND=True
            )
    return sums


@triton.jit(do_not_specialize=["T"])
def p2_info_kernel(
    p1, p2, info, dy, ends, gate_logit, row_sums, du_self, dp2, dinfo,
    p1_strides, p2_strides, info_strides, dy_strides, out_strides, H, T, scale, K: tl.constexpr,
):  # fmt: skip
    scale = tl.cast(scale, tl.float32)
    # The earliest history is read by the most rows. Programs with the lowest numbers start first.
    j_start = tl.program_id(1) * K.BLOCK_J
    shared = tiles.head_of_program()
    p2 = tiles.head_at(p2, p2_strides, shared, H // K.GROUP)
    info = tiles.head_at(info, info_strides, shared, H // K.GROUP)
    p2_j = tiles.load(p2, j_start, T, K, K.BLOCK_J, K.WHOLE)
    info_j = tiles.load(info, j_start, T, K, K.BLOCK_J, K.WHOLE)
    # Sums of dP2 and dI (BLOCK_J, D) over the rows of all GROUP heads that read this history.
    zeros = tiles.zeros(K, K.BLOCK_J)
    sums = zeros, zeros
    for member in range(K.GROUP):
        sums = _scan_head(
            sums, p2_j, info_j, (p1, p1_strides), (dy, dy_strides), ends, shared * K.GROUP + member,
            gate_logit, row_sums, du_self, j_start, H, T, K, scale,
        )  # fmt: skip
    dp2_j, dinfo_j = sums
    dp2 = tiles.head_at(dp2, out_strides, shared, H // K.GROUP)
    dinfo = tiles.head_at(dinfo, out_strides, shared, H // K.GROUP)
    tiles.store(dp2, tiles.times(dp2_j, 0.5 * scale, K), j_start, T, K, K.BLOCK_J)
    tiles.store(dinfo, dinfo_j, j_start, T, K, K.BLOCK_J)


def backward(
    launches: Launches, p1: Tensor, p2: Tensor, info: Tensor, y: Tensor, dy: Tensor,
    gate_logit: Tensor, log_norm: Tensor, starts: Tensor | None, ends: Tensor | None,
    dp1: Tensor, dp2: Tensor, dinfo: Tensor, tau: float, transport_self: bool,
) -> Tensor:  # fmt: skip
    """Fill the gradients of p1, p2 and info, and return lam's, a scalar."""
    B, H, T, D = p1.shape
    scale, launch = 1 / math.sqrt(D), launches.p1
    row_sums = log_norm.new_empty((B * H, T, 2))
    du_self = log_norm.new_empty((B, H, T))
    dlam_partial = log_norm.new_empty(B * H * cdiv(T, launch.block_i))
    start(
        p1_kernel, grid(p1, launch.block_i),
        p1, p2, info, y, dy, starts, gate_logit, log_norm, row_sums, du_self, dlam_partial, dp1,
        *(x.stride() for x in (p1, p2, info, y, dy, dp1)), H, T, scale, tau,
        **tiles.options(launch, p1, p2, transport_self),
    )  # fmt: skip
    launch = launches.p2_info
    start(
        p2_info_kernel, grid(p2, launch.block_j),
        p1, p2, info, dy, ends, gate_logit, row_sums, du_self, dp2, dinfo,
        *(x.stride() for x in (p1, p2, info, dy, dp2)), H, T, scale,
        **tiles.options(launch, p1, p2, transport_self),
    )  # fmt: skip
    return dlam_partial.sum()
