"""RMSNorm before a mixer, and QK-norm of its coordinates, as a training step computes them fastest.

Both are PyTorch's `nn.RMSNorm` in what they compute; their backward passes are written by hand.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relation.kernels.checks import cast, once_differentiable, projection_dtype


class Normed(NamedTuple):
    """States (B, T, d) over their root mean square, and the scale (d,) that is still to multiply.

    A projection takes the scale into its weight W (n, d), as (states * scale) W^T is
    states (W * scale)^T: n x d products in place of B x T x d, and the scale's gradient is a sum
    over a weight. A training step saves a pass over the states a norm.
    """

    states: Tensor
    scale: Tensor | None = None

    def scaled(self) -> Tensor:
        """RMSNorm's output, (B, T, d), in the scale's dtype or a wider one."""
        return self.states if self.scale is None else self.states * self.scale

    def folds(self, linear: nn.Module) -> bool:
        """Whether a projection's weight should take in what would else be done to its states.

        Not where calling the module does more than multiply (LoRA, quantised weights, hooks), nor
        while decoding, where the states are fewer than the weight's numbers.
        """
        many = torch.is_grad_enabled() or self.states.shape[:-1].numel() >= self.states.shape[-1]
        return many and is_bare(linear)

    def through(self, linear: nn.Module) -> Tensor:
        """The scaled states through a projection: (B, T, d) to (B, T, n)."""
        if self.scale is None or not self.folds(linear):
            return linear(self.scaled())
        return self.project(linear.weight)

    def project(self, weight: Tensor) -> Tensor:
        """The scaled states by a weight (n, d) that takes the scale: (B, T, n)."""
        return F.linear(self.states, weight if self.scale is None else weight * self.scale)


def is_bare(linear: nn.Module) -> bool:
    """Whether calling a module is its weight's product and nothing else."""
    return type(linear) is nn.Linear and linear.bias is None and not is_patched(linear)


def is_patched(module: nn.Module) -> bool:
    """Whether calling a module does more than its class says: hooks, or a forward of its own.

    accelerate's offloading puts one on the instance.
    """
    hooks = module._forward_hooks or module._forward_pre_hooks
    hooks = hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module)


class RMSNorm(nn.RMSNorm):
    """RMSNorm of (B, T, d) that leaves its scale to its readers: `Normed`."""

    def forward(self, x: Tensor) -> Normed:
        return Normed(_OverRMS.apply(x, self.eps, projection_dtype(x)), self.weight)


class _OverRMS(torch.autograd.Function):
    """x over its root mean square; the backward needs only the result and 1 / RMS.

    Computed in FP32 at least and rounded once, to the dtype in which projections read it: nothing
    of the residual stream, FP32 under autocast, is kept or read again.
    """

    @staticmethod
    def forward(ctx, x: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)  # (B, T, 1)
        states = cast(wide * inverse, dtype)
        ctx.save_for_backward(states, inverse)
        ctx.dtype = x.dtype
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx, dstates: Tensor):
        states, inverse = ctx.saved_tensors
        wide, dwide = states.to(inverse.dtype), dstates.to(inverse.dtype)
        dx = (dwide - wide * (dwide * wide).mean(-1, keepdim=True)) * inverse
        return dx.to(ctx.dtype), None, None


class HeadRMSNorm(nn.RMSNorm):
    """QK-norm: RMSNorm of every head's coordinate (B, H, T, d_h), in its dtype.

    Its gains, (d_h,), are shared by the layer's heads, as common practice has it.
    """

    def forward(self, x: Tensor) -> Tensor:
        return _HeadNorm.apply(x, self.weight, self.eps)


class _HeadNorm(torch.autograd.Function):
    """QK-norm and its gradient, in FP32 at least; compiled, autograd's takes more passes.

    As (B, T, H, d_h), as projections store it, so that the gains' gradient adds up whole rows.
    """

    @staticmethod
    def forward(ctx, x: Tensor, gains: Tensor, eps: float) -> Tensor:
        wide = x.transpose(1, 2).to(torch.promote_types(x.dtype, torch.float32))
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)  # (B, T, H, 1)
        ctx.save_for_backward(x, gains, inverse)
        y = wide * inverse * gains
        return cast(y, x.dtype).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        x, gains, inverse = ctx.saved_tensors
        unit = x.transpose(1, 2).to(inverse.dtype) * inverse
        dy = dy.transpose(1, 2).to(inverse.dtype)
        dgains = (dy * unit).flatten(2).sum((0, 1))  # (H d_h,), then over the heads
        dunit = dy * gains
        dx = (dunit - unit * (dunit * unit).mean(-1, keepdim=True)) * inverse
        dgains = dgains.unflatten(0, (-1, len(gains))).sum(0).to(gains.dtype)
        return cast(dx, x.dtype).transpose(1, 2), dgains, None
