"""One token of a mixer: MHA and Full Relation with a history, Linear Relation with a state.

A program of `piece_kernel` reads PIECE tokens of one head's history, all at once. `token_kernel`
adds up the pieces of a head: BLOCK_S lanes in parallel, each in order, then the lanes, then the new
token. It also writes the new token into the history, where no program of the step reads. Scores are
stored times log2(e), and sums relative to the largest score so far. A program of `linear_kernel`
reads, updates and writes BLOCK_V columns of one head's C.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from relation.kernels.common import cdiv, offset_of_head, padded_width
from relation.kernels.decoding.chain import options, wait_for_chain

# Fixed, so that a row's sums have the same order in every batch and at every capacity.
PIECE = 128
# A head has few sums: more lanes or warps would cost more in waiting than they save.
_BLOCK_S, _TOKEN_WARPS, _STAGES = 16, 2, 4
LOG2E = tl.constexpr(1.4426950408889634)
# Below every score, and finite: the difference of two infinities is NaN.
LEAST = tl.constexpr(-1.0e30)
# Of `linear_kernel`: information channels per program, and warps.
_BLOCK_V, _WARPS = 32, 4
_SHORTEST = tl.constexpr(1.0e-12)  # norms are clamped to this, as in the definition


@triton.jit
def load_row(row, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load D neighbouring numbers as FP32, with zeros up to BLOCK_D."""
    d = tl.arange(0, BLOCK_D)
    return tl.load(row + d, mask=d < D, other=0.0).to(tl.float32)


@triton.jit
def load_angles(cos, sin, place, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load RoPE's cosines and sines of a place; the first half of the sines is negated."""
    d = tl.arange(0, BLOCK_D)
    angle = tl.cast(place, tl.int64) * D + d
    c = tl.load(cos + angle, mask=d < D, other=0.0)
    s = tl.load(sin + angle, mask=d < D, other=0.0)
    return c, tl.where(d < D // 2, -s, s)


@triton.jit
def load_rotated(row, angles, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load a row rotated by `load_angles`' result: rounded to its dtype as in RoPE, then FP32."""
    d = tl.arange(0, BLOCK_D)
    partner = tl.where(d < D // 2, d + D // 2, d - D // 2)
    x = tl.load(row + d, mask=d < D, other=0.0).to(tl.float32)
    other = tl.load(row + partner, mask=d < D, other=0.0).to(tl.float32)
    turned = x * angles[0] + other * angles[1]
    return turned.to(row.dtype.element_ty).to(tl.float32)


@triton.jit
def _score2(u, RELATION: tl.constexpr):
    if RELATION:
        return u * tl.sigmoid(u) * LOG2E
    else:
        return u * LOG2E


# Capacity and pieces are not specialised: a history that grows needs no new compilation.
@triton.jit(do_not_specialize=["capacity", "pieces"])
def piece_kernel(
    projected, cos, sin, first, second, lengths, tops, sums,
    H, capacity, pieces, scale,
    RELATION: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    PIECE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    piece = tl.program_id(1)
    length = tl.load(lengths + head // H)
    d = tl.arange(0, BLOCK_D)
    t = piece * PIECE + tl.arange(0, PIECE)
    shared = tl.cast(head // GROUP, tl.int64)
    at = shared * capacity * D + tl.cast(t, tl.int64)[:, None] * D + d[None, :]
    inside = (t < length)[:, None] & (d < D)[None, :]
    p2 = tl.load(first + at, mask=inside, other=0.0)
    info = tl.load(second + at, mask=inside, other=0.0)
    angles = load_angles(cos, sin, length, D, BLOCK_D)
    wait_for_chain(CHAINED)
    if piece * PIECE >= length:
        return

    p1 = load_rotated(
        projected + offset_of_head(head, H, (H + 2 * (H // GROUP)) * D, D), angles, D, BLOCK_D
    )
    # top = max e_j over the piece, then sum of exp(e_j - top) and of exp(e_j - top) I_j, (D,).
    score = _score2(tl.sum(p1[None, :] * p2.to(tl.float32), 1) * scale, RELATION)
    score = tl.where(t < length, score, LEAST)
    top = tl.max(score, 0)
    weight = tl.where(t < length, tl.exp2(score - top), 0.0)
    here = tl.cast(head, tl.int64) * pieces + piece
    tl.store(tops + 2 * here, top)
    tl.store(tops + 2 * here + 1, tl.sum(weight, 0))
    tl.store(sums + here * D + d, tl.sum(weight[:, None] * info.to(tl.float32), 0), mask=d < D)


@triton.jit(do_not_specialize=["capacity", "pieces"])
def token_kernel(
    projected, cos, sin, first, second, lengths, lam, tops, sums, y,
    H, capacity, pieces, scale, tau,
    RELATION: tl.constexpr, GROUP: tl.constexpr, CARRIES_SELF: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr, STAGES: tl.constexpr, PIECE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    length = tl.load(lengths + head // H)
    d = tl.arange(0, BLOCK_D)
    lane = tl.arange(0, BLOCK_S)
    angles = load_angles(cos, sin, length, D, BLOCK_D)
    wait_for_chain(CHAINED)
    # A batch row holds H heads of p1, then K heads of p2, then K heads of information.
    K, shared = H // GROUP, head // GROUP
    p1 = load_rotated(projected + offset_of_head(head, H, (H + 2 * K) * D, D), angles, D, BLOCK_D)
    row = projected + H * D + offset_of_head(shared, K, (H + 2 * K) * D, D)
    p2 = load_rotated(row, angles, D, BLOCK_D)
    info = load_row(row + K * D, D, BLOCK_D)

    # Add the pieces' sums, each rescaled to the largest score; carried: (BLOCK_S, BLOCK_D).
    here = tl.cast(head, tl.int64) * pieces
    filled = tl.cdiv(length, PIECE)
    largest = tl.full([BLOCK_S], LEAST, tl.float32)
    total = tl.zeros([BLOCK_S], tl.float32)
    carried = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    for s_start in tl.range(0, filled, BLOCK_S, num_stages=STAGES):
        s = s_start + lane
        top = tl.load(tops + 2 * (here + s), mask=s < filled, other=LEAST)
        part = tl.load(tops + 2 * (here + s) + 1, mask=s < filled, other=0.0)
        inside = (s < filled)[:, None] & (d < D)[None, :]
        sums_s = tl.load(sums + (here + s)[:, None] * D + d[None, :], mask=inside, other=0.0)
        new = tl.maximum(largest, top)
        kept, weight = tl.exp2(largest - new), tl.exp2(top - new)
        total = total * kept + part * weight
        carried = carried * kept[:, None] + sums_s * weight[:, None]
        largest = new

    u = tl.sum(p1 * p2, 0) * scale
    if RELATION:
        # R_ij = E_ij - lam log i: the history's scores are shifted, Self's is not.
        shift = tl.load(lam) * tl.log2((length + 1).to(tl.float32))
        self2 = tl.sigmoid(u / tau) * LOG2E
    else:
        shift = 0.0
        self2 = u * LOG2E
    top = tl.maximum(tl.max(largest, 0) - shift, self2)
    kept = tl.exp2(largest - shift - top)
    self_weight = tl.exp2(self2 - top)
    normaliser = tl.sum(total * kept, 0) + self_weight
    answer = tl.sum(carried * kept[:, None], 0)
    if CARRIES_SELF:
        answer += self_weight * info
    out = y + tl.cast(head, tl.int64) * D + d
    tl.store(out, (answer / normaliser).to(y.dtype.element_ty), mask=d < D)

    at = (tl.cast(shared, tl.int64) * capacity + length) * D + d
    fits = (d < D) & (length < capacity) & (head % GROUP == 0)
    tl.store(first + at, p2.to(first.dtype.element_ty), mask=fits)
    tl.store(second + at, info.to(second.dtype.element_ty), mask=fits)


def history_token(
    projected: Tensor,
    tables: tuple[Tensor, Tensor],
    history: tuple[Tensor, Tensor],
    lengths: Tensor,
    lam: Tensor | None = None,
    tau: float = 2.0,
    transport_self: bool = True,
    *,
    chained: bool = False,
) -> Tensor:
    """Return Full Relation, or attention if lam is None, of one token per row; append the token.

    projected: (B, H + 2 K, D), contiguous, BF16, FP16 or FP32, before RoPE: H heads of p1, K of p2
    and K of mixed information (or queries, keys and values). Head h reads the shared head
    h // (H / K). history: two tensors (B, K, capacity, D), contiguous, in projected's dtype: p2 and
    information of earlier tokens (or keys and values); CUDA takes at most 65,535 pieces. Row b has
    lengths[b]; the next place is written. tables: RoPE's cosines and sines, (places, D) FP32. lam:
    one FP32 number. tau: the Self temperature. transport_self: as in `flash_relation`. Returns
    (B, H D) in projected's dtype.
    """
    _, K, capacity, _ = history[0].shape
    B, rows, D = projected.shape
    H = rows - 2 * K
    pieces = cdiv(capacity, PIECE)
    tops = projected.new_empty(B * H, pieces, 2, dtype=torch.float32)
    sums = projected.new_empty(B * H, pieces, D, dtype=torch.float32)
    y = projected.new_empty(B, H * D)
    common = dict(RELATION=lam is not None, GROUP=H // K, D=D, BLOCK_D=padded_width(D), PIECE=PIECE)
    # A piece fits the registers of 4 warps if its rows have at most 128 bytes.
    warps = 4 if D * projected.itemsize <= 128 else 8
    with torch.cuda.device_of(projected):
        piece_kernel[(B * H, pieces)](
            projected, *tables, *history, lengths, tops, sums, H, capacity, pieces, D**-0.5,
            num_warps=warps, **common, **options(chained),
        )  # fmt: skip
        token_kernel[(B * H,)](
            projected, *tables, *history, lengths, tables[0] if lam is None else lam, tops, sums, y,
            H, capacity, pieces, D**-0.5, float(tau),
            CARRIES_SELF=transport_self, BLOCK_S=_BLOCK_S, STAGES=_STAGES,
            num_warps=_TOKEN_WARPS, **common, **options(chained),
        )  # fmt: skip
    return y


@triton.jit
def softplus(x):
    """Return log(1 + exp x), accurate also if it is small: the retention is then close to 1."""
    e = tl.exp(-tl.abs(x))
    u = 1.0 + e
    log1p = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.maximum(x, 0.0) + log1p


@triton.jit
def linear_kernel(
    projected, down, up, a_log, dt_bias, cos, sin, state, lengths, active, y,
    stride_projected, stride_down, H, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    b = head // H
    h = head % H
    length = tl.load(lengths + b)
    d = tl.arange(0, BLOCK_D)
    v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    angles = load_angles(cos, sin, length, D, BLOCK_D)
    square = (d < D)[:, None] & (d < D)[None, :]
    matrix = tl.load(up + (h * D + d[:, None]) * D + d[None, :], mask=square, other=0.0)
    bias = tl.load(dt_bias + h * D + d, mask=d < D, other=0.0)
    rate = tl.exp(tl.load(a_log + h * D + d, mask=d < D, other=0.0))
    at = state + tl.cast(head, tl.int64) * D * D + d[:, None] * D + v[None, :]
    inside = (d < D)[:, None] & (v < D)[None, :]
    before = tl.load(at, mask=inside, other=0.0)
    lives = tl.load(active + b) != 0
    wait_for_chain(CHAINED)

    # alpha = exp(-exp(A_log) softplus(up down + dt_bias)), (BLOCK_D,).
    row = projected + offset_of_head(head, H, stride_projected, D)
    p1 = load_rotated(row, angles, D, BLOCK_D)
    p2 = load_rotated(row + H * D, angles, D, BLOCK_D)
    info = tl.load(row + 2 * H * D + v, mask=v < D, other=0.0).to(tl.float32)
    inner = load_row(down + offset_of_head(head, H, stride_down, D), D, BLOCK_D)
    raw = tl.sum(matrix.to(tl.float32) * inner[None, :], 1)
    raw = raw.to(up.dtype.element_ty).to(tl.float32)
    retention = tl.exp(-rate * softplus(raw + bias))

    # y = I + (Diag(alpha) C)^T r and C = Diag(alpha) C + w I^T, for BLOCK_V columns of C.
    S = tl.sigmoid(tl.sum(p1 * p2, 0) * scale)
    read = p1 * (S / tl.maximum(tl.sqrt(tl.sum(p1 * p1, 0)), _SHORTEST))
    write = p2 * (S / tl.maximum(tl.sqrt(tl.sum(p2 * p2, 0)), _SHORTEST))
    retained = retention[:, None] * before
    answer = info + tl.sum(read[:, None] * retained, 0)
    tl.store(y + tl.cast(head, tl.int64) * D + v, answer.to(y.dtype.element_ty), mask=v < D)
    tl.store(at, retained + write[:, None] * info[None, :], mask=inside & lives)


def linear_token(
    projected: Tensor,
    down: Tensor,
    retention: tuple[Tensor, Tensor, Tensor],
    tables: tuple[Tensor, Tensor],
    state: Tensor,
    lengths: Tensor,
    active: Tensor,
    tau: float = 2.0,
    *,
    chained: bool = False,
) -> Tensor:
    """Return Linear Relation (Section 5.2) of one token per row; update the state in place.

    projected: (B, n >= 3, H, D), contiguous; it begins with p1 and p2 before RoPE, then mixed
    information. down: the inner projection of the retention path, (B, H, D), with its last two
    dimensions contiguous. retention: that path's second matrix, (H, D, D) in projected's dtype, and
    A_log and dt_bias, (H D,) FP32. state: C, (B, H, D, D) FP32, contiguous. active: (B,) int32; 0
    keeps C. tables, lengths, tau: as in `history_token`. Returns (B, H D) in projected's dtype.
    """
    B, _, H, D = projected.shape
    y = projected.new_empty(B, H * D)
    with torch.cuda.device_of(projected):
        linear_kernel[(B * H, cdiv(D, _BLOCK_V))](
            projected, down, *retention, *tables, state, lengths, active, y,
            projected.stride(0), down.stride(0), H, 1 / (tau * math.sqrt(D)),
            D=D, BLOCK_D=padded_width(D), BLOCK_V=_BLOCK_V, num_warps=_WARPS,
            **options(chained),
        )  # fmt: skip
    return y
