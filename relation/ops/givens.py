"""Givens mixing of adjacent information heads (Section 3.2, Appendix A.2)."""

import torch
from torch import Tensor

from relation.errors import InputError
from relation.kernels.checks import check_device, check_floating, check_states
from relation.kernels.flash_relation import is_eager, why_unavailable


def givens_mix(info: Tensor, theta: Tensor, layer_index: int) -> Tensor:
    """Rotate each pair of information heads by its angle: I to I-tilde of eq:givens-rotation.

    info: (B, H, T, D) and theta: (H/2,) radians, any floating dtypes. `layer_index` (from 0)
    chooses the pairing, zero-based: M_A = (0,1)(2,3)... on even layers, M_B = (1,2)(3,4)...(H-1,0)
    on odd ones. The rotation is computed in FP32 at least (FP64 where info or theta is) and rounded
    once; returns (B, H, T, D) in info's dtype. Differentiable once. Raises InputError for odd H and
    for what does not fit.
    """
    check_states(info=info)
    check_floating(theta=theta)
    check_device(info, theta)
    heads = info.shape[1]
    if heads % 2:
        raise InputError(f"Givens mixing pairs heads, and H = {heads} is odd; use an even H")
    if theta.shape != (heads // 2,):
        raise InputError(f"theta has shape {tuple(theta.shape)}; H = {heads} needs ({heads // 2},)")
    return _GivensMix.apply(info, theta, layer_index % 2)


class _GivensMix(torch.autograd.Function):
    """The rotation, with a backward that needs only the mixed heads.

    Autograd's would keep both heads of every pair in FP32: twice the memory of the mixed heads, on
    top of them.
    """

    @staticmethod
    def forward(ctx, info: Tensor, theta: Tensor, shift: int) -> Tensor:
        if _takes_kernel(info, theta):
            from relation.kernels.mixing import mix

            mixed = mix(info, theta.float(), shift)
        else:
            mixed = _rotate(info, theta, shift)
        ctx.save_for_backward(mixed, theta)
        ctx.shift = shift
        return mixed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dmixed: Tensor):
        mixed, theta = ctx.saved_tensors
        if _takes_kernel(dmixed, theta):
            from relation.kernels.mixing import mix_backward

            dinfo, dtheta = mix_backward(dmixed, mixed, theta.float(), ctx.shift)
            return dinfo, dtheta.to(theta.dtype), None
        dinfo = _rotate(dmixed, -theta, ctx.shift)
        # d(mixed)/d(theta) is mixed, a quarter turn on. The contiguous head width is summed first.
        wide = _wide(mixed, theta)
        by_head = (dmixed.to(wide) * _quarter_turn(mixed.to(wide), ctx.shift)).sum(-1).sum((0, 2))
        dtheta = by_head.roll(-ctx.shift).unflatten(0, (-1, 2)).sum(-1)
        return dinfo, dtheta.to(theta.dtype), None


def _takes_kernel(info: Tensor, theta: Tensor) -> bool:
    """Whether Triton's kernels mix: in eager PyTorch on an NVIDIA GPU, all but FP64."""
    single = info.is_cuda and _wide(info, theta) == torch.float32
    return single and is_eager(info, theta) and why_unavailable(info.device) is None


def _wide(info: Tensor, theta: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(info.dtype, theta.dtype), torch.float32)


def _rotate(info: Tensor, theta: Tensor, shift: int) -> Tensor:
    wide = _wide(info, theta)
    angle = theta.to(wide).repeat_interleave(2).roll(shift)[:, None, None]
    x = info.to(wide)
    turned = angle.cos() * x + angle.sin() * _quarter_turn(x, shift)
    # Compiled by PyTorch 2.11, a result that is cast to the dtype it has gets gradients of zero.
    return turned if turned.dtype == info.dtype else turned.to(info.dtype)


def _quarter_turn(x: Tensor, shift: int) -> Tensor:
    """x (B, H, T, D) with each pair of heads (a, b) turned to (-b, a)."""
    # Over (B, T, H, D), as the heads lie in memory. Rolling by one turns M_B into M_A.
    heads = x.transpose(1, 2).roll(-shift, dims=2)
    a, b = heads.unflatten(2, (-1, 2)).unbind(3)
    turned = torch.stack((-b, a), dim=3).flatten(2, 3)
    return turned.roll(shift, dims=2).transpose(1, 2)
