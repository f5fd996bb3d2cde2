"""FlashRelation in Triton, for NVIDIA GPUs from Ampere on and for Triton's interpreter.

`forward_kernel` scans the history of a block of rows and adds Self (Appendix A.3). `repair_kernel`
recomputes rows whose sums were too large for it. The backward pass (Appendix A.1.7) has two kernels
without atomics, which recompute the scores. `p1_kernel` owns blocks of rows. It computes the
gradient of p1 and, since it sees all history of a row, the gradients of the gate and of lambda.
`p2_info_kernel` owns blocks of history and scans the rows of every head that reads it.

Rows i and history j count from zero; the paper's one-based row is i + 1. Exponents are base 2: `e2`
is E log2(e). The derivative of SiLU is (1 + t + E (1 - t)) / 2 with t = tanh(U/2). Sums are over
j < i, G = dL/dY, and Self's weight is w_i = exp(S_i + lam log i):

    l_i = sum of exp(E_ij)            n_i = log2(l_i + w_i)
    F_ij = 2^(E_ij log2(e) - n_i)     F_ii = 1 - g_i,  g_i = sigmoid(A_i - S_i) = l_i / (l_i + w_i)
    H_ij = G_i . I_j                  mean_h_i = G_i . Y_i
    dE_ij = F_ij (H_ij - mean_h_i)    dA_i = -dS_i = (1 - g_i) (sum of F_ij H_ij - g_i H_ii)

`gate_logit` is A - S and `log_norm` is n: the forward saves both for the backward.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from relation.kernels.common import cdiv, interpreted, offset_of_head, start
from relation.kernels.flash_relation.launches import Launch, Launches, grid, split_width

LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2))
# SiLU is never below -0.2785, so the running maximum may start here and is always finite.
SILU_FLOOR = tl.constexpr(-0.28 * math.log2(math.e))
# Without a running maximum, sums of exp(E) are used up to 2^64: they, and their products with
# information below 2^60, then fit FP32. `repair_kernel` recomputes rows with larger sums.
LARGEST_LOG_NORM = tl.constexpr(64.0)
REPAIRED_ROWS = 1024
# Larger than any log_norm, but finite: rows past T get F = 2^(E - PAST_END) = 0, not inf - inf.
PAST_END = tl.constexpr(1e30)
_INTERPRETED = tl.constexpr(interpreted())


class Constants(NamedTuple):
    """The compile-time constants of every kernel, its argument K.

    A tile of D columns is a pair: WIDE columns and, if that saves padding, REST more (80 is
    64 + 16, not 128). If REST is 0, the pair's second element is unused. WHOLE: T is a multiple of
    both block sizes, so no row needs a mask. ONLINE: the forward keeps a running maximum. GROUP:
    heads of p1 per head of p2.
    """

    TRANSPORT_SELF: bool
    D: int
    WIDE: int
    REST: int
    BLOCK_I: int
    BLOCK_J: int
    WHOLE: bool
    ONLINE: bool
    GROUP: int


# Tiles


@triton.jit
def _program_head():
    """Return which of the B H heads a program of `launches.grid` works on."""
    return tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)


@triton.jit
def _head(x, strides, head, H):
    """Return (pointer, stride_t, stride_d) of one of the B H heads of x (B, H, T, D)."""
    return x + offset_of_head(head, H, strides[0], strides[1]), strides[2], strides[3]


@triton.jit
def _tile(at, start, T, D, FIRST: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Return pointers to a tile, and masks of the rows and columns that are inside the tensor."""
    pointer, stride_t, stride_d = at
    t = tl.arange(0, BLOCK)
    d = FIRST + tl.arange(0, WIDTH)
    # The tile's start may be beyond 2^31 elements, so it has 64 bits. Inside a tile 32 bits are
    # enough unless a stride exceeds 2^24.
    inside = t[:, None] * stride_t + d[None, :] * stride_d
    places = pointer + (tl.cast(start, tl.int64) * stride_t + inside)
    return places, (start + t < T)[:, None], (d < D)[None, :]


@triton.jit
def _load_part(
    at, start, T, D: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    places, rows, columns = _tile(at, start, T, D, FIRST, BLOCK, WIDTH)
    if not WHOLE:
        return tl.load(places, mask=rows & columns, other=0.0)
    elif FIRST + WIDTH <= D:
        return tl.load(places)
    else:
        return tl.load(places, mask=columns, other=0.0)


@triton.jit
def _load(at, start, T, K: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Load BLOCK rows of a head from `start` on, with zeros past T and D."""
    wide = _load_part(at, start, T, K.D, 0, BLOCK, K.WIDE, WHOLE)
    rest = wide
    if K.REST > 0:
        rest = _load_part(at, start, T, K.D, K.WIDE, BLOCK, K.REST, WHOLE)
    return wide, rest


@triton.jit
def _store_part(
    at, tile, start, T, D: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    places, rows, columns = _tile(at, start, T, D, FIRST, BLOCK, WIDTH)
    tl.store(places, tile.to(at[0].dtype.element_ty), mask=rows & columns)


@triton.jit
def _store(at, tile, start, T, K: tl.constexpr, BLOCK: tl.constexpr):
    _store_part(at, tile[0], start, T, K.D, 0, BLOCK, K.WIDE)
    if K.REST > 0:
        _store_part(at, tile[1], start, T, K.D, K.WIDE, BLOCK, K.REST)


@triton.jit
def _zeros(K: tl.constexpr, BLOCK: tl.constexpr):
    wide = tl.full([BLOCK, K.WIDE], 0.0, tl.float32)
    rest = 0.0
    if K.REST > 0:
        rest = tl.full([BLOCK, K.REST], 0.0, tl.float32)
    return wide, rest


@triton.jit
def _scores(left, right, K: tl.constexpr):
    """Return left right^T in FP32."""
    found = tl.dot(left[0], tl.trans(right[0]), input_precision="ieee")
    if K.REST > 0:
        found = tl.dot(left[1], tl.trans(right[1]), found, input_precision="ieee")
    return found


@triton.jit
def _add_product(sums, weights, tile, K: tl.constexpr):
    """Return sums + weights tile, with weights rounded to the tile's dtype."""
    wide, rest = sums
    weights = weights.to(tile[0].dtype)
    wide = tl.dot(weights, tile[0], wide, input_precision="ieee")
    if K.REST > 0:
        rest = tl.dot(weights, tile[1], rest, input_precision="ieee")
    return wide, rest


@triton.jit
def _times(tile, factor, K: tl.constexpr):
    wide, rest = tile
    if K.REST > 0:
        rest = rest.to(tl.float32) * factor
    return wide.to(tl.float32) * factor, rest


@triton.jit
def _plus(a, b, K: tl.constexpr):
    wide, rest = a
    if K.REST > 0:
        rest += b[1]
    return wide + b[0], rest


@triton.jit
def _half_tanh(h, like):
    """Return tanh of h = U/2. SiLU(U) is h + h tanh(h), and sigma(U) is (1 + tanh(h)) / 2.

    If `like` has 16 bits, this is the GPU's own instruction, with a relative error of at most
    2^-11. For comparison, the materialised operator rounds BF16 scores to 2^-9.
    """
    if like.dtype.primitive_bitwidth == 16 and not _INTERPRETED:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [h], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 2.0 * tl.sigmoid(2.0 * h) - 1.0


# Documents


@triton.jit
def _document_starts(starts, b, i_start, T, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr):
    """Return (start_i, first, bound) for the BLOCK_I tokens from i_start on of the batch's row b.

    start_i: where their documents begin (BLOCK_I,). first: where the first tile of their history
    begins. bound: from here to i_start, all tokens see all tiles. Starts never decrease in a row.
    """
    if starts is None:
        return 0, 0, 0
    else:
        starts += tl.cast(b, tl.int64) * T
        i = i_start + tl.arange(0, BLOCK_I)
        start_i = tl.load(starts + i, mask=i < T, other=0)
        first = tl.load(starts + i_start) // BLOCK_J * BLOCK_J
        last = tl.load(starts + tl.minimum(i_start + BLOCK_I, T) - 1)
        return start_i, first, tl.minimum(tl.cdiv(last, BLOCK_J) * BLOCK_J, i_start)


@triton.jit
def _document_ends(ends, b, j_start, T, BLOCK_J: tl.constexpr, BLOCK_I: tl.constexpr):
    """Return (end_j, whole, end) for the BLOCK_J tokens of history at j_start of the batch's row b.

    end_j: where their documents end (BLOCK_J,). whole: blocks of rows up to here, after the
    diagonal, see all of this history. end: no row from here on sees any of it.
    """
    if ends is None:
        return 0, T, T
    else:
        ends += tl.cast(b, tl.int64) * T
        j = j_start + tl.arange(0, BLOCK_J)
        end_j = tl.load(ends + j, mask=j < T, other=0)
        whole = tl.load(ends + j_start) // BLOCK_I * BLOCK_I
        return end_j, whole, tl.load(ends + tl.minimum(j_start + BLOCK_J, T) - 1)


# Forward


@triton.jit
def _forward_tile(
    sums, rows, p2, info, lam, j_start, T, K: tl.constexpr, scale, tau,
    DIAGONAL: tl.constexpr, BOUND: tl.constexpr,
):  # fmt: skip
    """Add the tile of history at j_start to the sums of a block of rows.

    BOUND: some of the tile may be before start_i, the start of a row's document.

    l_i sums exp(E_ij) over j < i. z_i sums exp(E_ij) I_j and, on the diagonal, Self's share: in the
    softmax of row i, history weighs exp(E_ij) and Self weighs exp(S_i + lam log i).
    """
    z_i, l_i, m_i, self2_i = sums
    p1_i, i_start, start_i = rows
    # Only the diagonal reaches past the last row.
    p2_j = _load(p2, j_start, T, K, K.BLOCK_J, K.WHOLE or not DIAGONAL)
    info_j = _load(info, j_start, T, K, K.BLOCK_J, K.WHOLE or not DIAGONAL)
    # Scores P1 P2^T = U sqrt(D) (BLOCK_I, BLOCK_J). Then E = SiLU(U).
    u = _scores(p1_i, p2_j, K)
    h2 = u * (0.5 * LOG2_E * scale)
    e2 = h2 * _half_tanh(u * (0.5 * scale), p2_j[0]) + h2
    i = i_start + tl.arange(0, K.BLOCK_I)
    j = j_start + tl.arange(0, K.BLOCK_J)
    own = j[None, :] == i[:, None]
    # Self: S_i = sigma(U_ii / tau), and self2 = (S_i + lam log i) log2(e). Keep only j < i.
    if DIAGONAL:
        s = tl.sigmoid(tl.sum(tl.where(own, u, 0.0), 1) * (scale / tau))
        place = i - start_i
        self2 = s * LOG2_E + tl.load(lam) * tl.log2((place + 1).to(tl.float32))
        # Without history only Self is left. Any weight divides out; 1 does so exactly.
        self2 = tl.where(place == 0, 0.0, self2)
        self2_i = tl.where((i >= j_start) & (i < j_start + K.BLOCK_J), self2, self2_i)
        e2 = tl.where(j[None, :] < i[:, None], e2, float("-inf"))
    if BOUND:
        e2 = tl.where(j[None, :] >= start_i[:, None], e2, float("-inf"))
    if DIAGONAL:
        e2 = tl.where(own, self2[:, None], e2)
    # Appendix A.3: m' = max(m, E), l' = e^(m-m') l + sum e^(E-m'), z' likewise; m, z include Self.
    if K.ONLINE:
        m_new = tl.maximum(m_i, tl.max(e2, 1))
        weight = tl.exp2(e2 - m_new[:, None])
        kept = tl.exp2(m_i - m_new)
        l_i = l_i * kept
        z_i = _times(z_i, kept[:, None], K)
        m_i = m_new
    else:
        weight = tl.exp2(e2)
    of_history = tl.where(own, 0.0, weight) if DIAGONAL else weight
    l_i += tl.sum(of_history, 1)
    z_i = _add_product(z_i, weight if K.TRANSPORT_SELF else of_history, info_j, K)
    return z_i, l_i, m_i, self2_i


@triton.jit
def _forward_rows(
    p1, p2, info, y, lam, starts, gate_logit, log_norm, b, i_start, T, K: tl.constexpr, scale, tau,
):  # fmt: skip
    """Store Y, gate_logit and log_norm of the rows at i_start of a head of batch b."""
    p1_i = _load(p1, i_start, T, K, K.BLOCK_I, K.WHOLE)
    DOCUMENTS: tl.constexpr = starts is not None
    start_i, first, bound = _document_starts(starts, b, i_start, T, K.BLOCK_I, K.BLOCK_J)
    rows = p1_i, i_start, start_i
    l_i = tl.full([K.BLOCK_I], 0.0, tl.float32)
    m_i = tl.full([K.BLOCK_I], SILU_FLOOR if K.ONLINE else 0.0, tl.float32)
    sums = _zeros(K, K.BLOCK_I), l_i, m_i, l_i
    # The diagonal comes first, in a separate loop: ptxas then keeps the matrix products of both
    # loops asynchronous, and the second loop needs no mask.
    for step in tl.range(0, tl.minimum(K.BLOCK_I, T - i_start), K.BLOCK_J, num_stages=1):
        sums = _forward_tile(
            sums, rows, p2, info, lam, i_start + step, T, K, scale, tau,
            DIAGONAL=True, BOUND=DOCUMENTS,
        )  # fmt: skip
    if DOCUMENTS:
        for j_start in tl.range(first, bound, K.BLOCK_J, num_stages=1):
            sums = _forward_tile(
                sums, rows, p2, info, lam, j_start, T, K, scale, tau, DIAGONAL=False, BOUND=True
            )
    for j_start in range(bound, i_start, K.BLOCK_J):
        sums = _forward_tile(
            sums, rows, p2, info, lam, j_start, T, K, scale, tau, DIAGONAL=False, BOUND=False
        )

    # Y = z / (l + Self's weight); A - S = log l - (S + lam log i); n = log2(l + Self's weight).
    z_i, l_i, m_i, self2_i = sums
    l_all = l_i + tl.exp2(self2_i - m_i)
    _store(y, _times(z_i, (1.0 / l_all)[:, None], K), i_start, T, K, K.BLOCK_I)
    i = i_start + tl.arange(0, K.BLOCK_I)
    tl.store(gate_logit + i, (tl.log2(l_i) + m_i - self2_i) * LN_2, mask=i < T)
    tl.store(log_norm + i, tl.log2(l_all) + m_i, mask=i < T)


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    p1, p2, info, lam, starts, y, gate_logit, log_norm,
    p1_strides, p2_strides, info_strides, y_strides, H, T, scale, tau, K: tl.constexpr,
):  # fmt: skip
    # Triton's interpreter passes Python numbers in FP64, which would widen everything they touch.
    scale, tau = tl.cast(scale, tl.float32), tl.cast(tau, tl.float32)
    # The last rows have the longest history, so they start first.
    i_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * K.BLOCK_I
    head = _program_head()
    rows = tl.cast(head, tl.int64) * T
    _forward_rows(
        _head(p1, p1_strides, head, H),
        _head(p2, p2_strides, head // K.GROUP, H // K.GROUP),
        _head(info, info_strides, head // K.GROUP, H // K.GROUP),
        _head(y, y_strides, head, H),
        lam, starts, gate_logit + rows, log_norm + rows, head // H, i_start, T, K, scale, tau,
    )  # fmt: skip


@triton.jit
def _left_the_range(log_norm, start, T, ROWS: tl.constexpr):
    i = start + tl.arange(0, ROWS)
    log_norms = tl.load(log_norm + i, mask=i < T, other=0.0)
    # A NaN, of infinite sums, fails the comparison.
    return tl.sum(tl.where(log_norms < LARGEST_LOG_NORM, 0, 1), 0) > 0


@triton.jit(do_not_specialize=["T"])
def repair_kernel(
    p1, p2, info, lam, starts, y, gate_logit, log_norm,
    p1_strides, p2_strides, info_strides, y_strides, H, T, scale, tau,
    K: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Recompute, with a running maximum, the blocks of rows whose sums left the safe range.

    A program reads ROWS numbers of log_norm. Usually all are in range, and it ends.
    """
    scale, tau = tl.cast(scale, tl.float32), tl.cast(tau, tl.float32)
    first = tl.program_id(1) * ROWS
    head = _program_head()
    rows = tl.cast(head, tl.int64) * T
    if _left_the_range(log_norm + rows, first, T, ROWS):
        for i_start in range(first, tl.minimum(first + ROWS, T), K.BLOCK_I):
            if _left_the_range(log_norm + rows, i_start, T, K.BLOCK_I):
                _forward_rows(
                    _head(p1, p1_strides, head, H),
                    _head(p2, p2_strides, head // K.GROUP, H // K.GROUP),
                    _head(info, info_strides, head // K.GROUP, H // K.GROUP),
                    _head(y, y_strides, head, H), lam, starts, gate_logit + rows, log_norm + rows,
                    head // H, i_start, T, K, scale, tau,
                )  # fmt: skip


# Backward


@triton.jit
def _flow(u, norm, scale, like):
    """Return log2 F of the scores u, E and tanh(U/2)."""
    half_u = u * (0.5 * scale)
    t = _half_tanh(half_u, like)
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
    p2_j = _load(p2, j_start, T, K, K.BLOCK_J, K.WHOLE or not DIAGONAL)
    # U = P1 P2^T and H = G I^T (BLOCK_I, BLOCK_J). Where info is loaded was chosen by width on
    # Hopper, with tiles that TMA brought (commit 0e50ff2c): no spills, no serialised products.
    if K.REST == 0:
        info_j = _load(info, j_start, T, K, K.BLOCK_J, K.WHOLE or not DIAGONAL)
    u = _scores(p1_i, p2_j, K)
    if K.REST > 0:
        info_j = _load(info, j_start, T, K, K.BLOCK_J, K.WHOLE or not DIAGONAL)
    h = _scores(dy_i, info_j, K)
    log2_f, e, t = _flow(u, norm_i[:, None], scale, p2_j[0])
    i = i_start + tl.arange(0, K.BLOCK_I)
    j = j_start + tl.arange(0, K.BLOCK_J)
    if DIAGONAL:
        own = j[None, :] == i[:, None]
        log2_f = tl.where(j[None, :] < i[:, None], log2_f, float("-inf"))
        u_self_i += tl.sum(tl.where(own, u, 0.0), 1)
        h_self_i += tl.sum(tl.where(own, h, 0.0), 1)
    if BOUND:
        log2_f = tl.where(j[None, :] >= start_i[:, None], log2_f, float("-inf"))
    # dE_ij = F_ij (H_ij - G_i . Y_i), and dU_ij = dE_ij (1 + t + E_ij (1 - t)) / 2.
    f = tl.exp2(log2_f)
    from_history_i += tl.sum(f * h, 1)
    de = f * (h - mean_h_i[:, None])
    # dP1 += 2 dU P2. The factor scale / 2 is applied once, to the sum.
    dp1_i = _add_product(dp1_i, de * ((e - e * t) + t) + de, p2_j, K)
    return dp1_i, from_history_i, u_self_i, h_self_i


@triton.jit
def _row_products(a, b, K: tl.constexpr):
    """Return, in FP32, the dot product of each row of a with the same row of b."""
    found = tl.sum(a[0].to(tl.float32) * b[0].to(tl.float32), 1)
    if K.REST > 0:
        found += tl.sum(a[1].to(tl.float32) * b[1].to(tl.float32), 1)
    return found


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
    head = _program_head()
    row = tl.cast(head, tl.int64) * T + i
    p1 = _head(p1, p1_strides, head, H)
    p2 = _head(p2, p2_strides, head // K.GROUP, H // K.GROUP)
    info = _head(info, info_strides, head // K.GROUP, H // K.GROUP)
    y = _head(y, y_strides, head, H)
    dy = _head(dy, dy_strides, head, H)

    # Per row: mean_h = G . Y, stored together with n for `p2_info_kernel`.
    dy_i = _load(dy, i_start, T, K, K.BLOCK_I, K.WHOLE)
    mean_h_i = _row_products(dy_i, _load(y, i_start, T, K, K.BLOCK_I, K.WHOLE), K)
    p1_i = _load(p1, i_start, T, K, K.BLOCK_I, K.WHOLE)
    norm_i = tl.load(log_norm + row, mask=i < T, other=PAST_END)
    at = row_sums + _row_sums_at(head, i, T)
    tl.store(at, tl.join(norm_i, mean_h_i), mask=(i < T)[:, None])

    DOCUMENTS: tl.constexpr = starts is not None
    start_i, first, bound = _document_starts(starts, head // H, i_start, T, K.BLOCK_I, K.BLOCK_J)
    rows = p1_i, dy_i, norm_i, mean_h_i, i_start, start_i
    zeros = tl.full([K.BLOCK_I], 0.0, tl.float32)
    sums = _zeros(K, K.BLOCK_I), zeros, zeros, zeros
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
    p2_i = _times(_load(p2, i_start, T, K, K.BLOCK_I, K.WHOLE), du_self_i[:, None], K)
    dp1_i = _plus(_times(dp1_i, 0.5 * scale, K), p2_i, K)
    dp1 = _head(dp1, dp1_strides, head, H)
    _store(dp1, dp1_i, i_start, T, K, K.BLOCK_I)


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
    p1_i = _load(p1, i_start, T, K, K.BLOCK_I, K.WHOLE)
    dy_i = _load(dy, i_start, T, K, K.BLOCK_I, K.WHOLE)
    at = row_sums + _row_sums_at(head, i, T)
    # Past T, PAST_END gives F = 0.
    both = tl.load(at) if K.WHOLE else tl.load(at, mask=(i < T)[:, None], other=PAST_END)
    norm_i, mean_h_i = tl.split(both)
    # U^T = P2 P1^T and H^T = I G^T (BLOCK_J, BLOCK_I) are formed transposed: some Triton versions
    # miscompile, for Hopper, a dot result that is transposed into another dot. REST products follow
    # their WIDE ones directly: ptxas then waits twice before the first tanh, not four times.
    ut = _scores(p2_j, p1_i, K)
    ht = _scores(info_j, dy_i, K)
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
        own = j[:, None] == i[None, :]
        ft = tl.where(past, ft, 0.0)
        if K.TRANSPORT_SELF:
            ft = tl.where(own, f_self_j[:, None], ft)
        dut = tl.where(past, dut, tl.where(own, du_self_j[:, None], 0.0))
    # dI += F^T G, and dP2 += 2 dU^T P1 (the factor scale / 2 comes at the end).
    dinfo_j = _add_product(dinfo_j, ft, dy_i, K)
    return _add_product(dp2_j, dut, p1_i, K), dinfo_j


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

    end_j, whole, end = _document_ends(ends, head // H, j_start, T, K.BLOCK_J, K.BLOCK_I)
    first = j_start // K.BLOCK_I * K.BLOCK_I
    owned = p2_j, info_j, du_self_j, f_self_j, end_j
    p1 = _head(p1[0], p1[1], head, H)
    dy = _head(dy[0], dy[1], head, H)
    for i_start in range(first, whole, K.BLOCK_I):
        sums = _p2_info_tile(
            sums, owned, p1, dy, head, row_sums, i_start, j_start, T, K, scale, BOUND=False
        )
    if ends is not None:
        for i_start in tl.range(tl.maximum(first, whole), end, K.BLOCK_I, num_stages=1):
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
    shared = _program_head()
    p2 = _head(p2, p2_strides, shared, H // K.GROUP)
    info = _head(info, info_strides, shared, H // K.GROUP)
    p2_j = _load(p2, j_start, T, K, K.BLOCK_J, K.WHOLE)
    info_j = _load(info, j_start, T, K, K.BLOCK_J, K.WHOLE)
    # Sums of dP2 and dI (BLOCK_J, D) over the rows of all GROUP heads that read this history.
    zeros = _zeros(K, K.BLOCK_J)
    sums = zeros, zeros
    for member in range(K.GROUP):
        sums = _scan_head(
            sums, p2_j, info_j, (p1, p1_strides), (dy, dy_strides), ends, shared * K.GROUP + member,
            gate_logit, row_sums, du_self, j_start, H, T, K, scale,
        )  # fmt: skip
    dp2_j, dinfo_j = sums
    dp2 = _head(dp2, out_strides, shared, H // K.GROUP)
    dinfo = _head(dinfo, out_strides, shared, H // K.GROUP)
    _store(dp2, _times(dp2_j, 0.5 * scale, K), j_start, T, K, K.BLOCK_J)
    _store(dinfo, dinfo_j, j_start, T, K, K.BLOCK_J)


# Launches


def _options(
    launch: Launch, p1: Tensor, p2: Tensor, transport_self: bool, repairs: bool = False
) -> dict:
    """Return the kernel's K and Triton's options."""
    D = p1.shape[3]
    wide, rest = split_width(D)
    constants = Constants(
        TRANSPORT_SELF=transport_self,
        D=D,
        WIDE=wide,
        REST=rest,
        BLOCK_I=launch.block_i,
        BLOCK_J=launch.block_j,
        WHOLE=not repairs and p1.shape[2] % max(launch.block_i, launch.block_j) == 0,
        ONLINE=repairs or keeps_maximum(p1.dtype),
        GROUP=p1.shape[1] // p2.shape[1],
    )
    return {"K": constants} | launch.options()


def keeps_maximum(dtype: torch.dtype) -> bool:
    """Whether the scan keeps a running maximum: FP16 (up to 65504) must, and FP32 can afford it."""
    return dtype != torch.bfloat16


def forward(
    launches: Launches, p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor, starts: Tensor | None,
    y: Tensor, gate_logit: Tensor, log_norm: Tensor, tau: float, transport_self: bool,
) -> None:  # fmt: skip
    """Fill y, gate_logit and log_norm. Without a maximum, `repair` must redo rows out of range."""
    _, H, T, D = p1.shape
    start(
        forward_kernel, grid(p1, launches.forward.block_i),
        p1, p2, info, lam, starts, y, gate_logit, log_norm,
        p1.stride(), p2.stride(), info.stride(), y.stride(), H, T, 1 / math.sqrt(D), tau,
        **_options(launches.forward, p1, p2, transport_self),
    )  # fmt: skip


def repair(
    launches: Launches, p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor, starts: Tensor | None,
    y: Tensor, gate_logit: Tensor, log_norm: Tensor, tau: float, transport_self: bool,
) -> None:  # fmt: skip
    """Recompute the rows whose sums left the range of a forward without a running maximum."""
    B, H, T, D = p1.shape
    start(
        repair_kernel, (B * H, cdiv(T, REPAIRED_ROWS)),
        p1, p2, info, lam, starts, y, gate_logit, log_norm,
        p1.stride(), p2.stride(), info.stride(), y.stride(), H, T, 1 / math.sqrt(D), tau,
        ROWS=REPAIRED_ROWS, **_options(launches.repair, p1, p2, transport_self, repairs=True),
    )  # fmt: skip


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
        **_options(launch, p1, p2, transport_self),
    )  # fmt: skip
    launch = launches.p2_info
    start(
        p2_info_kernel, grid(p2, launch.block_j),
        p1, p2, info, dy, ends, gate_logit, row_sums, du_self, dp2, dinfo,
        *(x.stride() for x in (p1, p2, info, dy, dp2)), H, T, scale,
        **_options(launch, p1, p2, transport_self),
    )  # fmt: skip
    return dlam_partial.sum()
