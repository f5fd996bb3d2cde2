"""RoPE rotates the coordinates (Appendix B.3); Givens mixing rotates information heads (A.2)."""

import torch
from torch import Tensor
from torch.library import define, impl, register_fake

from relation.errors import InputError
from relation.kernels.available import is_eager, why_unavailable
from relation.kernels.checks import check_device, check_floating, check_states
from relation.ops.precision import cast, once_differentiable

# A PyTorch operator computes cosines and sines. Otherwise torch.compile would fuse them into the
# kernel that multiplies by them and compute them again for each of B x H x T x D numbers. It is not
# made by `custom_op`, whose operators import torch._dynamo at their first call in every process.
define("relation::cos_sin", "(Tensor angle) -> (Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)


@impl("relation::cos_sin", "default")
def _cos_sin(angle: Tensor) -> tuple[Tensor, Tensor]:
    return angle.cos(), angle.sin()


@register_fake("relation::cos_sin")
def _(angle: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(angle), torch.empty_like(angle)


def rope_angles(places: Tensor, width: int, base: float) -> tuple[Tensor, Tensor]:
    """Return RoPE's cosine and sine tables, both (..., width) FP32, for integer positions (...).

    Channels c and c + width/2 form a pair and have the same angle, place * base^(-2c / width). The
    width is even and the base positive, as `ModelConfig` checks.
    """
    exponent = torch.arange(0, width, 2, device=places.device, dtype=torch.float32) / width
    angle = places[..., None].float() * base**-exponent  # (..., width / 2)
    return torch.ops.relation.cos_sin(torch.cat((angle, angle), dim=-1))


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x (B, H, T, D) by tables (T, D), or (B, T, D) if positions differ between rows.

    Computed in the tables' FP32 (FP64 for FP64 inputs) and rounded to x's dtype. Differentiable
    once, only in x.
    """
    return _Rotation.apply(x, cos, sin)


class _Rotation(torch.autograd.Function):
    """The rotation with a one-pass backward, the inverse rotation; autograd's takes several."""

    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        return _rotate(dy, *ctx.saved_tensors, back=True), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    """Rotate by a Triton kernel in eager PyTorch on an NVIDIA GPU, otherwise in plain PyTorch."""
    single = x.is_cuda and torch.promote_types(x.dtype, cos.dtype) == torch.float32
    if single and is_eager(x, cos, sin) and why_unavailable(x.device) is None:
        from relation.kernels.rotation import rotate

        return rotate(x, cos, sin, back)
    sin = -sin if back else sin
    # As (B, T, H, D), the layout of projections and kernels, so no copy is needed afterwards.
    wide = x.transpose(1, 2).to(torch.promote_types(x.dtype, cos.dtype))
    first, second = wide.chunk(2, dim=-1)
    rotated = wide * cos.unsqueeze(-2) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(-2)
    return cast(rotated, x.dtype).transpose(1, 2)


def givens_mix(info: Tensor, theta: Tensor, layer_index: int) -> Tensor:
    """Rotate each pair of information heads by its angle, I to I-tilde (equation 4).

    info: (B, H, T, D), theta: (H/2,) in radians, any floating dtypes. layer_index chooses the pairs
    of heads: M_A = (0,1)(2,3)... in even layers, M_B = (1,2)...(H-1,0) in odd ones. Layers and
    heads count from 0. Returns (B, H, T, D) in info's dtype, computed in FP32 at least (FP64 if
    info or theta is FP64) and rounded once. Raises InputError for odd H and bad arguments.
    """
    check_states(info=info)
    check_floating(theta=theta)
    check_device(info, theta)
    heads = info.shape[1]
    if heads % 2:
        raise InputError(f"Givens mixing pairs heads, and H = {heads} is odd; use an even H")
    if theta.shape != (heads // 2,):
        raise InputError(f"theta has shape {tuple(theta.shape)}; H = {heads} needs ({heads // 2},)")
    shift = layer_index % 2
    wide = torch.promote_types(torch.promote_types(info.dtype, theta.dtype), torch.float32)
    # As (B, T, H, D), the order in memory. Rolling the heads by one turns M_B into M_A.
    x = info.to(wide).transpose(1, 2).roll(-shift, dims=2)
    # (B, T, H/2, D) each. A compiled backward recomputes slices; `unbind` it would store.
    a, b = x[:, :, ::2], x[:, :, 1::2]
    angle = theta.to(wide)[:, None]
    cos, sin = angle.cos(), angle.sin()
    mixed = torch.stack((cos * a - sin * b, sin * a + cos * b), dim=3).flatten(2, 3)
    return mixed.roll(shift, dims=2).transpose(1, 2).to(info.dtype)
