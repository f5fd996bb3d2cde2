"""Products of a few rows with a weight, with the norm before and the sum or gate after them.

A tile always has BLOCK_B rows, so a row's sums are the same in every batch. With one row the tile
is mostly padding. This costs nothing, because the kernel mostly waits for memory. To wait once, a
program loads its part of the weight at once, unless it is too large (`_WHOLE`). Each warp sums over
a part of the columns, and the warps' sums are added at the end.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents

from relation.kernels.common import cdiv, next_power_of_2
from relation.kernels.decoding.chain import can_chain, options, wait_for_chain

ADD, GATE = "add", "gate"
_BLOCK_B = 16
# By bytes per number. _WHOLE: the most columns of a warp that are loaded at once. _STEP: columns
# per warp and step if it has more. FP32 has no tensor cores, so threads hold its operands. Every
# warp adds a partial sum to exchange, so four warps take all columns if these fit. If not, eight
# warps step through 16-bit weights, four through FP32.
_WHOLE, _STEP = {2: 256, 4: 16}, {2: 64, 4: 16}


@triton.jit
def _load_x(x, b, k, B, K: tl.constexpr):
    """Load (SPLIT, BLOCK_B, BLOCK_K) of x (B, K), as FP32."""
    at = x + tl.cast(b, tl.int64)[None, :, None] * K + k[:, None, :]
    return tl.load(at, mask=(b < B)[None, :, None] & (k < K)[:, None, :], other=0.0).to(tl.float32)


@triton.jit
def _load_weight(rows, inside, k, K: tl.constexpr):
    """Load (SPLIT, BLOCK_K, BLOCK_N) of a weight whose rows start at `rows`."""
    at = rows[None, None, :] + k[:, :, None]
    return tl.load(at, mask=inside[None, None, :] & (k < K)[:, :, None], other=0.0)


@triton.jit(do_not_specialize=["B"])
def project_kernel(
    x, weight, out, B, N, eps,
    K: tl.constexpr, NORM: tl.constexpr, ADD: tl.constexpr, GATE: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = weight.dtype.element_ty
    STEP: tl.constexpr = SPLIT * BLOCK_K
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    b = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    k = tl.arange(0, SPLIT)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    rows = weight + tl.cast(n, tl.int64) * K
    part = _load_weight(rows, n < N, k, K)
    if GATE:
        gate_part = _load_weight(rows + N * K, n < N, k, K)
    wait_for_chain(CHAINED)

    # With NORM: 1 / sqrt(mean(x^2) + eps) of each row, (BLOCK_B,).
    tile = _load_x(x, b, k, B, K)
    at = out + tl.cast(b, tl.int64)[:, None] * N + n[None, :]
    inside = (b < B)[:, None] & (n < N)[None, :]
    if ADD:
        before = tl.load(at, mask=inside, other=0.0)
    if NORM:
        square = tile * tile
        for start in range(STEP, K, STEP):
            more = _load_x(x, b, start + k, B, K)
            square += more * more
        inverse = tl.rsqrt(tl.sum(tl.sum(square, 2), 0) / K + eps)
    else:
        inverse = tl.full([BLOCK_B], 1.0, tl.float32)
    result = tl.zeros([SPLIT, BLOCK_B, BLOCK_N], tl.float32)
    gated = tl.zeros([SPLIT, BLOCK_B, BLOCK_N], tl.float32)
    for start in range(0, K, STEP):
        # Load the next columns while these are multiplied. Past the end the mask loads none.
        following = start + STEP + k
        normed = (tile * inverse[None, :, None]).to(kind)
        result = tl.dot(normed, part, result, input_precision="ieee")
        part = _load_weight(rows, n < N, following, K)
        if GATE:
            gated = tl.dot(normed, gate_part, gated, input_precision="ieee")
            gate_part = _load_weight(rows + N * K, n < N, following, K)
        tile = _load_x(x, b, following, B, K)
    total = tl.sum(result, 0)
    if GATE:
        total = total * tl.sigmoid(total) * tl.sum(gated, 0)
    if ADD:
        tl.store(at, before + total.to(kind).to(tl.float32), mask=inside)
    else:
        tl.store(at, total.to(out.dtype.element_ty), mask=inside)


def project(
    x: Tensor,
    weight: Tensor,
    eps: float | None = None,
    out: Tensor | None = None,
    then: str = "",
    *,
    chained: bool = False,
) -> Tensor:
    """Return x W^T for x (B, K) and W = weight (N, K), both contiguous: one token per row.

    weight: BF16, FP16 or FP32. With eps, x is FP32 and is first divided by its root mean square;
    without, x has weight's dtype. then: "add" rounds x W^T to weight's dtype and adds it to `out`,
    (B, N) FP32, in place; "gate" returns silu(first half) times second half, (B, N / 2), in
    weight's dtype; "" returns x W^T in the dtype of `out`, or in weight's if `out` is None. Sums
    are FP32.
    """
    (N, K), B, kind = weight.shape, x.shape[0], weight.dtype
    if then == GATE:
        N //= 2
    if out is None:
        out = x.new_empty(B, N, dtype=kind)
    # Narrow blocks spread a small weight over the GPU. A large weight fills it with wide blocks.
    block_n = 32 if N >= 4096 and then != GATE else 16
    size = weight.element_size()
    share = next_power_of_2(cdiv(K, 4))
    at_once = share <= _WHOLE[size]
    warps = 4 if at_once or size == 4 else 8
    block_k = max(share, 16) if at_once else _STEP[size]
    with torch.cuda.device_of(x):
        project_kernel[(cdiv(N, block_n), cdiv(B, _BLOCK_B))](
            x, weight, out, B, N, 0.0 if eps is None else eps,
            K=K, NORM=eps is not None, ADD=then == ADD, GATE=then == GATE,
            BLOCK_B=_BLOCK_B, BLOCK_N=block_n, BLOCK_K=block_k,
            SPLIT=warps, num_warps=warps, num_stages=1, **options(chained),
        )  # fmt: skip
    return out


@triton.jit
def embed_kernel(ids, embedding, x, d_model, multiplier, BLOCK: tl.constexpr, CHAINS: tl.constexpr):
    if CHAINS:
        gdc_launch_dependents()
    row = tl.program_id(0)
    # A negative id comes from logits that were not finite: the row's text has ended.
    token = tl.maximum(tl.load(ids + row), 0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(embedding + token * d_model + c, mask=c < d_model, other=0.0)
    tl.store(x + tl.cast(row, tl.int64) * d_model + c, values * multiplier, mask=c < d_model)


def embed(ids: Tensor, embedding: Tensor, multiplier: float = 1.0) -> Tensor:
    """Return multiplier * embedding[ids], (B, d) FP32.

    ids: (B,) int64; embedding: (V, d) FP32; both contiguous. A negative id, which comes from logits
    that were not finite, takes row 0. This launch is never chained: it starts a chain.
    """
    B, d_model = ids.numel(), embedding.shape[1]
    x = embedding.new_empty(B, d_model)
    block = 512
    with torch.cuda.device_of(embedding):
        embed_kernel[(B, cdiv(d_model, block))](
            ids, embedding, x, d_model, float(multiplier), BLOCK=block, CHAINS=can_chain()
        )
    return x
