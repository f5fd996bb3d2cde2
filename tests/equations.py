"""The paper's equations written out in float64, and the allowed error of a result."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from relation.ops.rotations import apply_rope, rope_angles

TAU = 2.0


def draw(*shape: int, count: int = 3) -> Tensor:
    """`count` standard normal float64 tensors (B, H, T, D), the same for the same arguments."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64)


def normal(*shape: int, seed: int = 1) -> Tensor:
    """A standard normal float64 tensor."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def rope(x: Tensor, base: float = 1e4, offset: int = 0) -> Tensor:
    """Rotate x (B, H, T, D) at positions offset .. offset + T - 1."""
    places = torch.arange(offset, offset + x.shape[2])
    return apply_rope(x, *rope_angles(places, x.shape[3], base))


def draw_linear(*shape: int) -> tuple[Tensor, ...]:
    """p1, p2, info and g; a third of the channels keep all (g = 0) or forget all (g = -50)."""
    p1, p2, info, g = draw(*shape, count=4)
    g = torch.where(g > 1, torch.zeros_like(g), torch.where(g < -1, -50.0, -g.abs()))
    return p1, p2, info, g


def assert_close(actual: Tensor, expected: Tensor, terms: float, scale: float = 1.0) -> None:
    """Allow 8 roundings per term, for sums of `terms` terms of size `scale` times the result."""
    bound = 8 * terms * scale * torch.finfo(actual.dtype).eps * expected.abs().max().item()
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=bound)


def differentiate(operator, inputs: Iterable[Tensor], *dy: Tensor, **options) -> tuple[Tensor, ...]:
    """Return the outputs, then the gradient of every input; dy: the outputs' gradients."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = operator(*leaves, **options)
    outputs = y if isinstance(y, tuple) else (y,)
    return (*(x.detach() for x in outputs), *torch.autograd.grad(outputs, leaves, dy))


def flow_rows(p1: Tensor, p2: Tensor, lam: float, tau: float = TAU, silu: bool = True) -> Tensor:
    """Return F of Section 3.1, row by row, (B, H, T, T).

    Without SiLU, Exchange is U itself: MHA with Relation's count and Self.
    """
    B, H, T, D = p1.shape
    flow = torch.zeros(B, H, T, T, dtype=torch.float64)
    for i in range(1, T + 1):
        U = (p1[:, :, i - 1, None] * p2[:, :, :i]).sum(-1) / math.sqrt(D)  # j from 1 to i
        R = (U * torch.sigmoid(U) if silu else U) - lam * math.log(i)
        R[..., -1] = torch.sigmoid(U[..., -1] / tau)
        flow[:, :, i - 1, :i] = R.softmax(-1)
    return flow


def expanded_sum(p1, p2, info, g, tau: float, C0: Tensor) -> tuple[Tensor, Tensor]:
    """Y and C_T as Appendix A.4's sums over j, plus the term of C_0 (zero in the paper)."""
    alpha, (T, D) = g.exp(), p1.shape[2:]
    S = torch.sigmoid((p1 * p2).sum(-1) / (tau * D**0.5))
    h1, h2 = (p / p.square().sum(-1, keepdim=True).sqrt() for p in (p1, p2))

    def history(before: int, t: int) -> Tensor:
        """Writes of tokens j < before, and C_0, retained through D_t ... D_{j+1}: (B, H, D, D)."""
        total = alpha[:, :, : t + 1].prod(2)[..., None] * C0
        for j in range(before):
            written = S[:, :, j, None] * h2[:, :, j] * alpha[:, :, j + 1 : t + 1].prod(2)
            total = total + written[..., None] * info[:, :, j, None]
        return total

    read = (S[..., None] * h1)[..., None]
    exchange = [(read[:, :, t] * history(t, t)).sum(2) for t in range(T)]
    return info + torch.stack(exchange, 2), history(T, T - 1)
