"""FlashRelation's forward pass in Triton (Appendix A.3), and its repair.

`forward_kernel` scans the history of a block of rows and adds Self. `repair_kernel` recomputes rows
whose sums were too large for it. `e2` is E log2(e). Sums are over j < i, and Self's weight is
w_i = exp(S_i + lam log i):

    l_i = sum of exp(E_ij)              Y_i = (sum of exp(E_ij) I_j + w_i I_i) / (l_i + w_i)
    n_i = log2(l_i + w_i)               A_i - S_i = log(l_i / w_i)

`gate_logit` is A - S and `log_norm` is n: the forward saves both for the backward.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from relation.kernels.common import cdiv, start
from relation.kernels.flash_relation import triton_tiles as tiles
from relation.kernels.flash_relation.launches import Launches, grid
from relation.kernels.flash_relation.triton_tiles import LOG2_E

LN_2 = tl.constexpr(math.log(2))
# SiLU is never below -0.2785, so the running maximum may start here and is always finite.
SILU_FLOOR = tl.constexpr(-0.28 * math.log2(math.e))
# Without a running maximum, sums of exp(E) are used up to 2^64: they, and their products with
# information below 2^60, then fit FP32. `repair_kernel` recomputes rows with larger sums.
LARGEST_LOG_NORM = tl.constexpr(64.0)
REPAIRED_ROWS = 1024


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
    p2_j = tiles.load(p2, j_start, T, K, K.BLOCK_J, K.WHOLE or not DIAGONAL)
    info_j = tiles.load(info, j_start, T, K, K.BLOCK_J, K.WHOLE or not DIAGONAL)
    # Scores P1 P2^T = U sqrt(D) (BLOCK_I, BLOCK_J). Then E = SiLU(U).
    u = tiles.scores(p1_i, p2_j, K)
    h2 = u * (0.5 * LOG2_E * scale)
    e2 = h2 * tiles.half_tanh(u * (0.5 * scale), p2_j[0]) + h2
    i = i_start + tl.arange(0, K.BLOCK_I)
    j = j_start + tl.arange(0, K.BLOCK_J)
    is_self = j[None, :] == i[:, None]
    # Self: S_i = sigma(U_ii / tau), and self2 = (S_i + lam log i) log2(e). Keep only j < i.
    if DIAGONAL:
        s = tl.sigmoid(tl.sum(tl.where(is_self, u, 0.0), 1) * (scale / tau))
        place = i - start_i
        self2 = s * LOG2_E + tl.load(lam) * tl.log2((place + 1).to(tl.float32))
        # A row without history has Y = w I / w for any weight w of Self. w = 1 makes it exact.
        self2 = tl.where(place == 0, 0.0, self2)
        self2_i = tl.where((i >= j_start) & (i < j_start + K.BLOCK_J), self2, self2_i)
        e2 = tl.where(j[None, :] < i[:, None], e2, float("-inf"))
    if BOUND:
        e2 = tl.where(j[None, :] >= start_i[:, None], e2, float("-inf"))
    if DIAGONAL:
        e2 = tl.where(is_self, self2[:, None], e2)
    # Appendix A.3: m' = max(m, E), l' = e^(m-m') l + sum e^(E-m'), z' likewise. At j = i, m and z
    # include Self and l does not: `_forward_rows` adds it at the end.
    if K.ONLINE:
        m_new = tl.maximum(m_i, tl.max(e2, 1))
        weight = tl.exp2(e2 - m_new[:, None])
        kept = tl.exp2(m_i - m_new)
        l_i = l_i * kept
        z_i = tiles.times(z_i, kept[:, None], K)
        m_i = m_new
    else:
        weight = tl.exp2(e2)
    of_history = tl.where(is_self, 0.0, weight) if DIAGONAL else weight
    l_i += tl.sum(of_history, 1)
    z_i = tiles.add_product(z_i, weight if K.TRANSPORT_SELF else of_history, info_j, K)
    return z_i, l_i, m_i, self2_i


@triton.jit
def _forward_rows(
    p1, p2, info, y, lam, starts, gate_logit, log_norm, b, i_start, T, K: tl.constexpr, scale, tau,
):  # fmt: skip
    """Store Y, gate_logit and log_norm of the rows at i_start of a head of batch b."""
    p1_i = tiles.load(p1, i_start, T, K, K.BLOCK_I, K.WHOLE)
    DOCUMENTS: tl.constexpr = starts is not None
    start_i, first, bound = tiles.document_starts(starts, b, i_start, T, K.BLOCK_I, K.BLOCK_J)
    rows = p1_i, i_start, start_i
    l_i = tl.full([K.BLOCK_I], 0.0, tl.float32)
    m_i = tl.full([K.BLOCK_I], SILU_FLOOR if K.ONLINE else 0.0, tl.float32)
    sums = tiles.zeros(K, K.BLOCK_I), l_i, m_i, l_i
    # The diagonal comes first, in a separate loop: ptxas then keeps the matrix products of both
    # loops asynchronous, and the second loop needs no mask.
    for step in tl.range(0, tl.minimum(K.BLOCK_I, T - i_start), K.BLOCK_J, num_stages=1):
        sums = _forward_tile(
            sums, rows, p2, info, lam, i_start + step, T, K, scale, tau,
            DIAGONAL=True, BOUND=DOCUMENTS,
        )  # fmt: skip
    # Tiles from `first` to `bound` also hold tokens of earlier documents, later tiles do not.
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
    tiles.store(y, tiles.times(z_i, (1.0 / l_all)[:, None], K), i_start, T, K, K.BLOCK_I)
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
    head = tiles.head_of_program()
    rows = tl.cast(head, tl.int64) * T
    _forward_rows(
        tiles.head_at(p1, p1_strides, head, H),
        tiles.head_at(p2, p2_strides, head // K.GROUP, H // K.GROUP),
        tiles.head_at(info, info_strides, head // K.GROUP, H // K.GROUP),
        tiles.head_at(y, y_strides, head, H),
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
    head = tiles.head_of_program()
    rows = tl.cast(head, tl.int64) * T
    if _left_the_range(log_norm + rows, first, T, ROWS):
        for i_start in range(first, tl.minimum(first + ROWS, T), K.BLOCK_I):
            if _left_the_range(log_norm + rows, i_start, T, K.BLOCK_I):
                _forward_rows(
                    tiles.head_at(p1, p1_strides, head, H),
                    tiles.head_at(p2, p2_strides, head // K.GROUP, H // K.GROUP),
                    tiles.head_at(info, info_strides, head // K.GROUP, H // K.GROUP),
                    tiles.head_at(y, y_strides, head, H),
                    lam, starts, gate_logit + rows, log_norm + rows, head // H, i_start, T, K,
                    scale, tau,
                )  # fmt: skip


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
        **tiles.options(launches.forward, p1, p2, transport_self),
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
        ROWS=REPAIRED_ROWS, **tiles.options(launches.repair, p1, p2, transport_self, repairs=True),
    )  # fmt: skip
