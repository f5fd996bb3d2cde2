"""RMSNorm before mixers and SwiGLU, and QK-norm of coordinates, in the form that trains fastest.

Both compute the same as PyTorch's `nn.RMSNorm`. Their backward passes are written by hand.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relation.ops.precision import cast, once_differentiable, projection_dtype


class Normed(NamedTuple):
    """States (B, T, d) divided by their root mean square, and the scale (d,), not applied yet.

    A projection multiplies the scale into its weight W (n, d), because (states * scale) W^T =
    states (W * scale)^T. This takes n x d products instead of B x T x d, and the scale's gradient
    is a sum over a weight. A training step saves one pass over the states per norm.
    """

    states: Tensor
    scale: Tensor | None = None

    def scaled(self) -> Tensor:
        """RMSNorm's output, (B, T, d), in the scale's dtype or a wider one."""
        return self.states if self.scale is None else self.states * self.scale

    def may_fold(self, linear: nn.Module) -> bool:
        """Whether to fold a scale or mixing into the projection's weight instead of the states.

        False if calling the module does more than multiply by a plain weight (LoRA, biases, hooks,
        torchao's quantised weights). Also false in decoding fewer tokens than channels, because the
        weight is then the larger one.
        """
        many = torch.is_grad_enabled() or self.states.shape[:-1].numel() >= self.states.shape[-1]
        is_plain = type(linear) is nn.Linear and type(linear.weight) in (nn.Parameter, Tensor)
        return many and is_plain and linear.bias is None and not is_patched(linear)

    def through(self, linear: nn.Module) -> Tensor:
        """The projection of the scaled states: (B, T, d) to (B, T, n)."""
        if self.scale is None or not self.may_fold(linear):
            return linear(self.scaled())
        return F.linear(self.states, self.fold(linear.weight))

    def fold(self, weight: Tensor) -> Tensor:
        """A projection's weight (n, d) with the scale multiplied in."""
        return weight if self.scale is None else weight * self.scale


def is_patched(module: nn.Module) -> bool:
    """Whether calling a module does more than its class defines: it has hooks, or its own forward.

    For example, accelerate's offloading sets `forward` on the instance.
    """
    hooks = module._forward_hooks or module._forward_pre_hooks
    hooks = hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module)


class RMSNorm(nn.RMSNorm):
    """RMSNorm of (B, T, d) that returns a `Normed`: the projections apply the scale."""

    def forward(self, x: Tensor) -> Normed:
        return Normed(_OverRMS.apply(x, self.eps, projection_dtype(x)), self.weight)


class _OverRMS(torch.autograd.Function):
    """x divided by its root mean square (RMS).

    Computed in FP32 at least and rounded once, to the projections' dtype. The backward needs only
    this result and 1 / RMS, not the residual stream x, which is FP32 under autocast.
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

    All heads of the layer share the gains, (d_h,), as is common practice.
    """

    def forward(self, x: Tensor) -> Tensor:
        return _HeadNorm.apply(x, self.weight, self.eps)


class _HeadNorm(torch.autograd.Function):
    """QK-norm and its gradient, in FP32 at least. autograd takes more passes, even if compiled.

    Computed as (B, T, H, d_h), the layout of projections; the gains' gradient then sums whole rows.
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
        dgains = (dy * unit).flatten(2).sum((0, 1))  # (H d_h,); the sum over heads follows below
        dunit = dy * gains
        dx = (dunit - unit * (dunit * unit).mean(-1, keepdim=True)) * inverse
        dgains = dgains.unflatten(0, (-1, len(gains))).sum(0).to(gains.dtype)
        return cast(dx, x.dtype).transpose(1, 2), dgains, None
