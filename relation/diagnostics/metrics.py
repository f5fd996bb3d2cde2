"""Metrics of a normalised flow matrix (Appendix B.4).

A flow is (..., T, T), lower triangular, rows summing to 1; each metric returns (...), so that
heads and sequences are computed together. Spectra are of singular values (..., T), descending.
"""

import torch
from torch import Tensor

_FLOOR = 1e-20


def self_flow(flow: Tensor) -> Tensor:
    """Mean diagonal entry: Relation's Self flow, MHA's diagonal flow."""
    return flow.diagonal(dim1=-2, dim2=-1).mean(-1)


def exchange_flow(flow: Tensor) -> Tensor:
    """Mean over rows of the mass on history, g."""
    return flow.tril(-1).sum(-1).mean(-1)


def conditional_history(flow: Tensor) -> Tensor:
    """pi^E = F_ij / g_i for j < i, (..., T, T); rows without historical mass are zero."""
    history = flow.tril(-1)
    mass = history.sum(-1, keepdim=True)
    return torch.where(mass > 0, history / mass, torch.zeros_like(history))


def distance_mass(flow: Tensor, distance: int) -> Tensor:
    """Mean over all rows of the conditional historical mass with i - j > distance."""
    return conditional_history(flow).tril(-distance - 1).sum(-1).mean(-1)


def sink_mass(flow: Tensor, first: int) -> Tensor:
    """Mean over all rows of the conditional historical mass on the first `first` positions."""
    return conditional_history(flow)[..., :first].sum(-1).mean(-1)


def singular_values(flow: Tensor) -> Tensor:
    """Singular values in FP32, descending."""
    return torch.linalg.svdvals(flow.float())


def effective_rank(flow: Tensor) -> Tensor:
    """exp of the entropy of the normalised singular values, with the paper's clamps."""
    return spectrum_effective_rank(singular_values(flow))


def spectrum_effective_rank(sigma: Tensor) -> Tensor:
    """`effective_rank` of singular values already at hand."""
    p = sigma / sigma.sum(-1, keepdim=True).clamp(min=_FLOOR)
    p = p.clamp(min=_FLOOR)
    return torch.exp(-(p * p.log()).sum(-1))


def _energy(sigma: Tensor) -> Tensor:
    return sigma.square().sum(-1).clamp(min=_FLOOR)


def stable_rank(flow: Tensor) -> Tensor:
    """Total energy over the energy of the largest singular value."""
    return spectrum_stable_rank(singular_values(flow))


def spectrum_stable_rank(sigma: Tensor) -> Tensor:
    """`stable_rank` of singular values already at hand."""
    return _energy(sigma) / sigma[..., 0].square().clamp(min=_FLOOR)


def energy_dims(flow: Tensor, fraction: float) -> Tensor:
    """Fewest leading singular directions that hold `fraction` of the energy, int64."""
    return spectrum_energy_dims(singular_values(flow), fraction)


def spectrum_energy_dims(sigma: Tensor, fraction: float) -> Tensor:
    """`energy_dims` of singular values already at hand."""
    held = sigma.square().cumsum(-1) / _energy(sigma)[..., None]
    # Rounding can leave the whole sum a little short of 1: then all directions are needed.
    return ((held < fraction).sum(-1) + 1).clamp(max=sigma.shape[-1])


def top_singular_energy(flow: Tensor) -> Tensor:
    """Share of the energy in the largest singular value."""
    return spectrum_top_energy(singular_values(flow))


def spectrum_top_energy(sigma: Tensor) -> Tensor:
    """`top_singular_energy` of singular values already at hand."""
    return sigma[..., 0].square() / _energy(sigma)
