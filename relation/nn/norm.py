"""RMSNorm whose scale the projections behind it take into their weights.

A projection of a scaled state is that of the unscaled one by weights whose columns are scaled: so
many numbers as a weight has instead of so many as there are states, and the scale's gradient is a
sum over a weight instead of over all tokens.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relation.kernels.checks import projection_dtype


class Normed(NamedTuple):
    """States (B, T, d) and the scale (d,) that their readers owe them; None owes nothing."""

    states: Tensor
    scale: Tensor | None = None

    def project(self, weight: Tensor) -> Tensor:
        """The scaled states through a linear map without bias, weight (n, d): (B, T, n)."""
        return F.linear(self.states, weight if self.scale is None else weight * self.scale)

    def through(self, linear: nn.Module) -> Tensor:
        """The scaled states through a projection, (B, T, n).

        Where no scale is owed the module is called, and with it its hooks and what replaces it:
        LoRA, quantised weights. Else its weight takes the scale.
        """
        return linear(self.states) if self.scale is None else self.project(linear.weight)

    def scaled(self) -> Tensor:
        """The scaled states themselves, (B, T, d), in the scale's dtype or a wider one.

        Under autocast the states are rounded before they are scaled.
        """
        return self.states if self.scale is None else self.states * self.scale


class FoldedRMSNorm(nn.RMSNorm):
    """RMSNorm of (B, T, d), d its only dimension, as `Normed`: the scale is not yet applied.

    Computed in the wider of x's dtype and FP32. Under autocast the states are rounded to its
    dtype, in which every projection reads them.
    """

    def forward(self, x: Tensor) -> Normed:
        return Normed(_OverRMS.apply(x, self.eps, projection_dtype(x)), self.weight)


class PlainRMSNorm(nn.RMSNorm):
    """PyTorch's RMSNorm of (B, T, d) as `Normed`: the scale is applied, its readers owe nothing."""

    def forward(self, x: Tensor) -> Normed:
        return Normed(super().forward(x))


class _OverRMS(torch.autograd.Function):
    """x over its root mean square, with a backward that needs only the result and 1 / RMS.

    The projections keep the result anyway, so that nothing of the residual stream, which is FP32
    under autocast, is kept or read again.
    """

    @staticmethod
    def forward(ctx, x: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        states = wide * inverse
        # Compiled by PyTorch 2.11, a result cast to the dtype that it has gets gradients of zero.
        states = states if states.dtype == dtype else states.to(dtype)
        ctx.save_for_backward(states, inverse)
        ctx.dtype = x.dtype
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dstates: Tensor):
        states, inverse = ctx.saved_tensors
        wide, dwide = states.to(inverse.dtype), dstates.to(inverse.dtype)
        dx = (dwide - wide * (dwide * wide).mean(-1, keepdim=True)) * inverse
        return dx.to(ctx.dtype), None, None
