"""What reading a prompt takes beside products and operators, each one pass over the states.

The host launches a prompt's kernels while the GPU runs them, so that a launch must not cost it
more than they take: launches repeat by a plan.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from relation.kernels.plans import Configuration, layout, plan_of

_NUMBERS, _WARPS = 4096, 4


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
