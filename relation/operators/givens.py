"""Givens mixing of adjacent information heads (Section 3.2, Appendix A.2)."""

import torch

from relation.errors import InputError


def pairing(heads: int, layer_index: int, device: torch.device | None = None) -> torch.Tensor:
    """Head order (H,) that puts each pair side by side: M_A on even layers, M_B on odd ones.

    Zero-based: M_A = (0,1)(2,3)..., M_B = (1,2)(3,4)...(H-1,0).
    """
    return (torch.arange(heads, device=device) + layer_index % 2) % heads


def givens_mix(info: torch.Tensor, theta: torch.Tensor, layer_index: int) -> torch.Tensor:
    """Rotate each pair of information heads by its angle.

    info: (B, H, T, D), any floating dtype; theta: (H/2,) radians, kept in FP32 by the models.
    `layer_index` (from 0) chooses the pairing. Returns (B, H, T, D) in info's dtype.
    Raises InputError for odd H or a theta of another length.
    """
    heads = info.shape[1]
    if heads % 2:
        raise InputError(f"Givens mixing pairs heads, and H = {heads} is odd; use an even H")
    if theta.shape != (heads // 2,):
        raise InputError(f"theta has shape {tuple(theta.shape)}; H = {heads} needs ({heads // 2},)")
    shift = layer_index % 2
    # Rolling by one turns M_B into M_A, so that both pairings are the same reshape.
    pairs = info.roll(-shift, dims=1).unflatten(1, (heads // 2, 2))
    cos = theta.cos().to(info.dtype)[None, :, None, None]
    sin = theta.sin().to(info.dtype)[None, :, None, None]
    a, b = pairs.unbind(2)
    mixed = torch.stack((cos * a - sin * b, sin * a + cos * b), dim=2)
    return mixed.flatten(1, 2).roll(shift, dims=1)
