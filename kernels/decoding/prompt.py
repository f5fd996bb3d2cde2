"""What reading a prompt takes beside products and operators, each one pass over the states.

The host launches a prompt's kernels while the GPU runs them, so that a launch must not cost it
more than they take: launches repeat by a plan.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from relation.kernels.checks import layout
from relation.kernels.common import padded_width
from relation.kernels.decoding.linear import softplus
from relation.kernels.plans import Configuration, plan_of

_NUMBERS, _ROWS, _WARPS = 4096, 64, 4


@triton.jit
def norm_kernel(
    x, y, out, M, eps, d_model, ADDS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, WIDTH)
    inside = (row < M)[:, None] & (c < d_model)[None, :]
    at = tl.cast(row, tl.int64)[:, None] * d_model + c[None, :]
    states = tl.load(x + at, mask=inside, other=0.0)
    if ADDS:
        states += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(x + at, states, mask=inside)
    inverse = tl.rsqrt(tl.sum(states * states, 1) / d_model + eps)
    tl.store(out + at, (states * inverse[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate_kernel(joined, out, N, d_ff, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, c = at // d_ff, at % d_ff
    gate = tl.load(joined + row * 2 * d_ff + c, mask=at < N, other=0.0).to(tl.float32)
    up = tl.load(joined + row * 2 * d_ff + d_ff + c, mask=at < N, other=0.0).to(tl.float32)
    tl.store(out + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=at < N)


@triton.jit
def retention_kernel(
    down, up, a_log, dt_bias, out, stride_row, M, H,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = up.dtype.element_ty
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    h = tl.program_id(1)
    c = tl.arange(0, BLOCK_D)
    raw = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for start in range(0, D, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        at = down + tl.cast(row, tl.int64)[:, None] * stride_row + h * D + k[None, :]
        inner = tl.load(at, mask=(row < M)[:, None] & (k < D)[None, :], other=0.0)
        # A channel's inputs down, the channels across.
        square = (k < D)[:, None] & (c < D)[None, :]
        matrix = tl.load(up + (h * D + c[None, :]) * D + k[:, None], mask=square, other=0.0)
        raw = tl.dot(inner, matrix, raw, input_precision="ieee")
    raw = raw.to(kind).to(tl.float32)
    bias = tl.load(dt_bias + h * D + c, mask=c < D, other=0.0)
    rate = tl.exp(tl.load(a_log + h * D + c, mask=c < D, other=0.0))
    g = -rate[None, :] * softplus(raw + bias[None, :])
    written = (tl.cast(row, tl.int64)[:, None] * H + h) * D + c[None, :]
    tl.store(out + written, g, mask=(row < M)[:, None] & (c < D)[None, :])


def launch_norm(x: Tensor, eps: float, out: Tensor, y: Tensor | None) -> None:
    """See `relation.kernels.decoding.norm`, which checks what it passes on."""

    def configure() -> Configuration:
        d_model = x.shape[-1]
        M, width = x.numel() // d_model, triton.next_power_of_2(d_model)
        rows = max(1, _NUMBERS // width)
        constants = {"ADDS": y is not None, "ROWS": rows, "WIDTH": width, "num_warps": _WARPS}
        return (triton.cdiv(M, rows),), (M, eps, d_model), constants

    tensors = x, x if y is None else y, out
    plan = plan_of(launch_norm, norm_kernel, eps, y is None, *map(layout, tensors))
    with torch.cuda.device_of(x):
        plan.launch(norm_kernel, tensors, configure)


def launch_gate(joined: Tensor, out: Tensor) -> None:
    """See `relation.kernels.decoding.gate`, which checks what it passes on."""

    def configure() -> Configuration:
        constants = {"BLOCK": _NUMBERS, "num_warps": _WARPS}
        return (triton.cdiv(out.numel(), _NUMBERS),), (out.numel(), out.shape[-1]), constants

    plan = plan_of(launch_gate, gate_kernel, layout(joined), layout(out))
    with torch.cuda.device_of(joined):
        plan.launch(gate_kernel, (joined, out), configure)


def launch_retention(down: Tensor, retention: tuple[Tensor, Tensor, Tensor], out: Tensor) -> None:
    """See `relation.kernels.decoding.log_retention`, which checks what it passes on."""

    def configure() -> Configuration:
        B, T, H, D = down.shape
        width = padded_width(D)
        # Without tensor cores a thread holds what it multiplies: few columns at a time.
        constants = {"D": D, "BLOCK_D": width, "BLOCK_K": 16 if down.itemsize == 4 else width}
        constants |= {"ROWS": _ROWS, "num_warps": 8, "num_stages": 1}
        return (triton.cdiv(B * T, _ROWS), H), (down.stride(1), B * T, H), constants

    tensors = down, *retention, out
    plan = plan_of(launch_retention, retention_kernel, *map(layout, tensors))
    with torch.cuda.device_of(down):
        plan.launch(retention_kernel, tensors, configure)
