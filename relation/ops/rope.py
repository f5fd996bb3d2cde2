"""Rotary position embedding over the full head width (Appendix B.3)."""

import math

import torch

from relation.errors import InputError
from relation.kernels.checks import check_states
from relation.kernels.flash_relation import is_eager, why_unavailable
from relation.ops.trigonometry import cos_sin


def rope_angles(
    length: int, width: int, base: float, offset: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine tables, both (length, width), FP32; positions start at `offset`.

    Channels c and c + width/2 turn by position * base^(-2c / width), so both hold that angle.
    Raises InputError for an odd width or a base that is not positive and finite.
    """
    if width % 2:
        raise InputError(f"head width {width} is odd; RoPE rotates pairs of channels: make it even")
    if not 0 < base < math.inf:
        raise InputError(f"RoPE's base is {base}; it must be positive and finite (the paper: 1e4)")
    exponent = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width
    position = torch.arange(offset, offset + length, device=device, dtype=torch.float32)
    angle = torch.outer(position, base**-exponent)
    return cos_sin(torch.cat((angle, angle), dim=-1))


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x (B, H, T, D) by `rope_angles`' tables; the halves of D are the pairs.

    The tables are (T, D), or (B, T, D) where the rows of a batch have places of their own.
    The rotation is computed in the tables' FP32 (FP64 for FP64 inputs); the result has x's dtype.
    Differentiable once, in x alone.
    """
    return _Rotation.apply(x, cos, sin)


class _Rotation(torch.autograd.Function):
    """The rotation, whose backward is the rotation back.

    Autograd's would go through both terms and the halves one by one, in FP32.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy: torch.Tensor):
        cos, sin = ctx.saved_tensors
        return _rotated(dy, cos, sin, back=True), None, None


def _rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, back: bool = False
) -> torch.Tensor:
    """By one Triton kernel in eager PyTorch on an NVIDIA GPU, else by the definition."""
    single = x.is_cuda and torch.promote_types(x.dtype, cos.dtype) == torch.float32
    if single and is_eager(x, cos, sin) and why_unavailable(x.device) is None:
        from relation.kernels.rotation import rotate

        return rotate(x, cos, sin, back)
    return _rotate(x, cos, -sin if back else sin)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    # As (B, T, H, D), as projections and kernels store it: nothing has to be moved afterwards.
    wide = x.transpose(1, 2).to(torch.promote_types(x.dtype, cos.dtype))
    first, second = wide.chunk(2, dim=-1)
    turned = wide * cos.unsqueeze(-2) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(-2)
    # Compiled by PyTorch 2.11, a result cast to the dtype that it has gets gradients of zero.
    return (turned if turned.dtype == x.dtype else turned.to(x.dtype)).transpose(1, 2)


def rope(x: torch.Tensor, base: float = 1e4, offset: int = 0) -> torch.Tensor:
    """Rotate x (B, H, T, D), any floating dtype, as positions offset .. offset + T - 1.

    Section 6: the full head width, base 1e4, no positional scaling. The angles are FP32; returns
    (B, H, T, D) in x's dtype. Raises InputError for odd D, another rank, an empty dimension or a
    base that is not positive and finite.
    """
    check_states(x=x)
    cos, sin = rope_angles(x.shape[-2], x.shape[-1], base, offset, x.device)
    return apply_rope(x, cos, sin)
