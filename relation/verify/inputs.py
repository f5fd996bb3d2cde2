"""What an operator is called with: its shapes, and random inputs by name."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from relation.variants import ModelConfig

Operator = Callable[..., Tensor]
Inputs = dict[str, Tensor]
COORDINATES = ("p1", "p2", "info")


@dataclass(frozen=True)
class Shape:
    """One call of an operator, (B, H, T, D) with the scale whose geometry it is."""

    scale: str
    batch: int
    heads: int
    length: int
    width: int

    @property
    def dimensions(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.length, self.width


def stored_by_token(
    shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Tensor:
    """Standard normal (B, H, T, D) that requires gradients, stored (B, T, H, D) as in a model."""
    batch, heads, length, width = shape.dimensions
    stored = torch.randn(
        batch, length, heads, width, dtype=dtype, device=device, generator=generator
    )
    return stored.transpose(1, 2).detach().requires_grad_()


def draw(
    shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    """p1, p2, info and dy, (B, H, T, D) of `dtype`, and lam, a scalar in FP32."""
    inputs = {
        name: stored_by_token(shape, dtype, device, generator) for name in (*COORDINATES, "dy")
    }
    lam = torch.tensor(ModelConfig.lambda_init, device=device, requires_grad=True)
    return {**inputs, "dy": inputs["dy"].detach(), "lam": lam}
