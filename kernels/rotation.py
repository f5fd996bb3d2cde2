"""RoPE's rotation in one pass, for eager mode. PyTorch's own takes ten passes over FP32 copies.

Compiled code uses the definition, because torch.compile fuses it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from relation.kernels.common import cdiv, empty_tokens, next_power_of_2

_NUMBERS = 2048  # per program, in each half of the channels


@triton.jit
def rotation_kernel(
    x, cos, sin, out,
    x_b, x_h, x_t, table_b, table_t, N, T, H, HALF, SIGN: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    # Rows have the order of out, (B, T, H): the heads of a token are next to one another.
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, WIDTH)
    b, t, h = row // (T * H), row // H % T, row % H
    here = (row < N)[:, None] & (c < HALF)[None, :]
    first = (b * x_b + h * x_h + t * x_t)[:, None] + c[None, :]
    angle = (b * table_b + t * table_t)[:, None] + c[None, :]
    cosine = tl.load(cos + angle, mask=here, other=0.0)
    sine = SIGN * tl.load(sin + angle, mask=here, other=0.0)
    a = tl.load(x + first, mask=here, other=0.0).to(tl.float32)
    z = tl.load(x + first + HALF, mask=here, other=0.0).to(tl.float32)
    written = (row * (2 * HALF))[:, None] + c[None, :]
    kind = out.dtype.element_ty
    tl.store(out + written, (a * cosine - z * sine).to(kind), mask=here)
    tl.store(out + written + HALF, (z * cosine + a * sine).to(kind), mask=here)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    """Rotate x (B, H, T, D), BF16, FP16 or FP32, by FP32 tables (T, D) or (B, T, D); or undo it.

    Channels c and c + D/2 rotate together, by channel c of the tables. Computed in FP32 and rounded
    once to x's dtype. Returns (B, H, T, D), stored as (B, T, H, D).
    """
    B, H, T, D = x.shape
    if x.stride(-1) != 1:
        x = x.contiguous()
    shape = (B, T, D)[-cos.ndim :]
    if cos.shape != shape or sin.shape != shape:  # of one row or position: broadcast, as in PyTorch
        cos, sin = cos.expand(shape), sin.expand(shape)
    cos, sin = cos.contiguous(), sin.contiguous()
    out = empty_tokens(x, H)
    rows, width = B * T * H, next_power_of_2(D // 2)
    rows_per_program = max(1, _NUMBERS // width)  # a row is one head of one token
    with torch.cuda.device_of(x):
        rotation_kernel[(cdiv(rows, rows_per_program),)](
            x, cos, sin, out, *x.stride()[:3], T * D if cos.ndim == 3 else 0, D, rows, T, H, D // 2,
            SIGN=-1 if back else 1, ROWS=rows_per_program, WIDTH=width,
        )  # fmt: skip
    return out
