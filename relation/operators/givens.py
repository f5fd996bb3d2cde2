"""Givens mixing of adjacent information heads (Section 3.2, Appendix A.2)."""

import torch

from relation.errors import InputError


def givens_mix(info: torch.Tensor, theta: torch.Tensor, layer_index: int) -> torch.Tensor:
    """Rotate each pair of information heads by its angle.

    info: (B, H, T, D), any floating dtype; theta: (H/2,) radians. `layer_index` (from 0) chooses
    the pairing, zero-based: M_A = (0,1)(2,3)... on even layers, M_B = (1,2)(3,4)...(H-1,0) on odd
    ones. The rotation is computed in FP32 (FP64 for FP64) and rounded once; returns (B, H, T, D)
    in info's dtype. Raises InputError for odd H or a theta of another length.
    """
    heads = info.shape[1]
    if heads % 2:
        raise InputError(f"Givens mixing pairs heads, and H = {heads} is odd; use an even H")
    if theta.shape != (heads // 2,):
        raise InputError(f"theta has shape {tuple(theta.shape)}; H = {heads} needs ({heads // 2},)")
    shift = layer_index % 2
    # Rolling by one turns M_B into M_A, so that both pairings are the same reshape.
    pairs = info.roll(-shift, dims=1).unflatten(1, (heads // 2, 2))
    wide = torch.promote_types(info.dtype, theta.dtype)
    a, b = pairs.to(wide).unbind(2)
    cos, sin = (f(theta).to(wide)[None, :, None, None] for f in (torch.cos, torch.sin))
    mixed = torch.stack((cos * a - sin * b, sin * a + cos * b), dim=2)
    return mixed.flatten(1, 2).roll(shift, dims=1).to(info.dtype)
