"""Givens mixing of adjacent information heads (Section 3.2, Appendix A.2)."""

import torch
from torch import Tensor

from relation.errors import InputError
from relation.kernels.checks import check_device, check_floating, check_states


def givens_mix(info: Tensor, theta: Tensor, layer_index: int) -> Tensor:
    """Rotate each pair of information heads by its angle: I to I-tilde (Eq. 4).

    info: (B, H, T, D) and theta: (H/2,) radians, any floating dtypes. `layer_index` (from 0)
    chooses the pairing, zero-based: M_A = (0,1)(2,3)... on even layers, M_B = (1,2)(3,4)...(H-1,0)
    on odd ones. The rotation is computed in FP32 at least (FP64 where info or theta is) and rounded
    once; returns (B, H, T, D) in info's dtype. Raises InputError for odd H and what does not fit.
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
    # Over (B, T, H, D), as the heads lie in memory. Rolling by one turns M_B into M_A.
    x = info.to(wide).transpose(1, 2).roll(-shift, dims=2)
    a, b = x.unflatten(2, (-1, 2)).unbind(3)  # (B, T, H/2, D) each
    angle = theta.to(wide)[:, None]
    cos, sin = angle.cos(), angle.sin()
    mixed = torch.stack((cos * a - sin * b, sin * a + cos * b), dim=3).flatten(2, 3)
    return mixed.roll(shift, dims=2).transpose(1, 2).to(info.dtype)
