"""Products of a few rows with a weight, with the norm before and the sum or gate after them.

BLOCK_B rows make one tile whatever the batch, so that a row's sums are the same in every batch.
With one row a tile is mostly padding, which costs nothing: the weight's bytes take the time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_B, _BYTES_K = 16, 256
_WARPS, _STAGES = 4, 3


@triton.jit
def _load_x(x, b, k, B, inverse, K: tl.constexpr, NORM: tl.constexpr, kind: tl.constexpr):
    inside = (b < B)[:, None] & (k < K)[None, :]
    tile = tl.load(x + tl.cast(b, tl.int64)[:, None] * K + k[None, :], mask=inside, other=0.0)
    if NORM:
        tile = tile * inverse[:, None]
    return tile.to(kind)


@triton.jit(do_not_specialize=["B"])
def project_kernel(
    x, weight, out, B, N, eps,
    K: tl.constexpr, NORM: tl.constexpr, ADD: tl.constexpr, GATE: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = weight.dtype.element_ty
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    b = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    columns = tl.arange(0, BLOCK_K)
    inverse = tl.zeros([BLOCK_B], tl.float32)
    if NORM:
        square = tl.zeros([BLOCK_B, BLOCK_K], tl.float32)
        for k_start in range(0, K, BLOCK_K):
            tile = _load_x(x, b, k_start + columns, B, inverse, K, False, tl.float32)
            square += tile * tile
        inverse = tl.rsqrt(tl.sum(square, 1) / K + eps)
    result = tl.zeros([BLOCK_B, BLOCK_N], tl.float32)
    gated = tl.zeros([BLOCK_B, BLOCK_N], tl.float32)
    rows = weight + tl.cast(n, tl.int64)[:, None] * K
    for k_start in range(0, K, BLOCK_K):
        k = k_start + columns
        tile = _load_x(x, b, k, B, inverse, K, NORM, kind)
        inside = (n < N)[:, None] & (k < K)[None, :]
        part = tl.load(rows + k[None, :], mask=inside, other=0.0)
        result = tl.dot(tile, tl.trans(part), result, input_precision="ieee")
        if GATE:
            part = tl.load(rows + N * K + k[None, :], mask=inside, other=0.0)
            gated = tl.dot(tile, tl.trans(part), gated, input_precision="ieee")
    if GATE:
        result = result * tl.sigmoid(result) * gated
    at = out + tl.cast(b, tl.int64)[:, None] * N + n[None, :]
    inside = (b < B)[:, None] & (n < N)[None, :]
    if ADD:
        before = tl.load(at, mask=inside, other=0.0)
        tl.store(at, before + result.to(kind).to(tl.float32), mask=inside)
    else:
        tl.store(at, result.to(out.dtype.element_ty), mask=inside)


def launch(x: Tensor, weight: Tensor, eps: float | None, out: Tensor, then: str) -> None:
    """See `relation.kernels.decoding.project`, which checks what it passes on."""
    (B, K), N = x.shape, out.shape[1]
    # Narrow blocks spread a small weight over the chip; a wide one fills it anyway.
    block_n = 16 if N < 4096 else 32
    with torch.cuda.device_of(x):
        project_kernel[(triton.cdiv(N, block_n), triton.cdiv(B, _BLOCK_B))](
            x, weight, out, B, N, 0.0 if eps is None else eps,
            K=K, NORM=eps is not None, ADD=then == "add", GATE=then == "gate",
            BLOCK_B=_BLOCK_B, BLOCK_N=block_n, BLOCK_K=_BYTES_K // weight.element_size(),
            num_warps=_WARPS, num_stages=_STAGES,
        )  # fmt: skip
