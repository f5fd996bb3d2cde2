"""Metrics of a normalised flow matrix (Appendix B.4).

A flow M is (..., T, T), floating, lower triangular, rows summing to 1; each metric returns (...),
so that heads and sequences are computed together. Sums keep the flow's dtype; singular values are
FP32 and their sums FP64. Each public function raises InputError for a matrix that is not square or
not floating, and for a distance, count or fraction out of range.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.errors import InputError

_FLOOR = 1e-20


def _check(flow: Tensor) -> Tensor:
    if flow.ndim < 2 or flow.shape[-1] != flow.shape[-2] or flow.shape[-1] == 0:
        raise InputError(f"a flow has shape {tuple(flow.shape)}; give (..., T, T) with T >= 1")
    if not flow.is_floating_point():
        raise InputError(f"a flow is {flow.dtype}; give floating-point numbers")
    return flow


def self_flow(flow: Tensor) -> Tensor:
    """Mean diagonal entry: Relation's Self flow, MHA's diagonal flow."""
    return _check(flow).diagonal(dim1=-2, dim2=-1).mean(-1)


def exchange_flow(flow: Tensor) -> Tensor:
    """Mean over rows of the mass on history, g."""
    return _check(flow).tril(-1).sum(-1).mean(-1)


def conditional_history(flow: Tensor) -> Tensor:
    """pi^E = F_ij / g_i for j < i, (..., T, T); rows without historical mass are zero."""
    history = _check(flow).tril(-1)
    mass = history.sum(-1, keepdim=True)
    return torch.where(mass > 0, history / mass, torch.zeros_like(history))


def distance_mass(flow: Tensor, distance: int) -> Tensor:
    """Mean over all rows of the conditional historical mass with i - j > distance.

    Rows without historical mass, the first token's among them, count and contribute zero.
    """
    if distance < 0:
        raise InputError(f"distance is {distance} tokens; give at least 0")
    return conditional_history(flow).tril(-distance - 1).sum(-1).mean(-1)


def sink_mass(flow: Tensor, first: int) -> Tensor:
    """Mean over all rows of the conditional historical mass on the first `first` positions.

    Rows without historical mass, the first token's among them, count and contribute zero.
    """
    if first < 1:
        raise InputError(f"first is {first} positions; give at least 1")
    return conditional_history(flow)[..., :first].sum(-1).mean(-1)


def by_place(by_source: Tensor, places: Tensor) -> Tensor:
    """Mass by source, (B, H, T), summed by the source's place in its document, (B, H, T).

    places: (B, T) int64. Within documents the sink is that of their first tokens.
    """
    places = places[:, None].expand_as(by_source)
    return torch.zeros_like(by_source).scatter_add(-1, places, by_source)


def history_profiles(flow: Tensor) -> tuple[Tensor, Tensor]:
    """The conditional historical mass by distance and by source, (..., T) each, means over rows.

    Entry d of the first is the mass with i - j = d, entry j of the second that on position j:
    `distance_mass` sums the first beyond a distance, `sink_mass` the second up to a position.
    """
    history = conditional_history(flow)
    rows = history.shape[-1]
    by_source = history.mean(-2)
    # With T empty rows beneath, diagonal d starts at row d and steps by T + 1 for T entries.
    padded = F.pad(history, (0, 0, 0, rows)).contiguous()
    strides = (*padded.stride()[:-2], rows, rows + 1)
    by_distance = padded.as_strided(history.shape, strides, padded.storage_offset()).sum(-1) / rows
    return by_distance, by_source


def singular_values(flow: Tensor) -> Tensor:
    """Singular values, (..., T) FP32, descending.

    On a CPU the FP32 SVD; on a GPU, where that takes the matrices one after the other,
    `gram_singular_values`.
    """
    flow = _check(flow)
    return gram_singular_values(flow) if flow.is_cuda else torch.linalg.svdvals(flow.float())


def gram_singular_values(flow: Tensor) -> Tensor:
    """Singular values as roots of the eigenvalues of M M^T in FP64, (..., T) FP32, descending.

    A root loses half of the digits of the smallest eigenvalues; half of FP64's keep every value
    within one FP32 rounding, 2^-23, of the largest.
    """
    wide = flow.double()
    return torch.linalg.eigvalsh(wide @ wide.mT).clamp(min=0).sqrt().flip(-1).float()


def effective_rank(flow: Tensor) -> Tensor:
    """exp of the entropy of the normalised singular values, with the paper's clamps."""
    return spectrum_effective_rank(singular_values(flow))


def spectrum_effective_rank(sigma: Tensor) -> Tensor:
    """`effective_rank` of singular values already at hand, (..., T) descending; returns FP64."""
    sigma = sigma.double()
    p = sigma / sigma.sum(-1, keepdim=True).clamp(min=_FLOOR)
    p = p.clamp(min=_FLOOR)
    return torch.exp(-(p * p.log()).sum(-1))


def _energy(sigma: Tensor) -> Tensor:
    return sigma.double().square().sum(-1).clamp(min=_FLOOR)


def stable_rank(flow: Tensor) -> Tensor:
    """Total energy over the energy of the largest singular value."""
    return spectrum_stable_rank(singular_values(flow))


def spectrum_stable_rank(sigma: Tensor) -> Tensor:
    """`stable_rank` of singular values already at hand, (..., T) descending; returns FP64."""
    return _energy(sigma) / sigma[..., 0].double().square().clamp(min=_FLOOR)


def energy_dims(flow: Tensor, fraction: float) -> Tensor:
    """Fewest leading singular directions that hold `fraction` of the energy, int64."""
    return spectrum_energy_dims(singular_values(flow), fraction)


def spectrum_energy_dims(sigma: Tensor, fraction: float) -> Tensor:
    """`energy_dims` of singular values already at hand, (..., T) descending."""
    if not 0 < fraction <= 1:
        raise InputError(f"fraction is {fraction}; give more than 0 and at most 1")
    held = sigma.double().square().cumsum(-1) / _energy(sigma)[..., None]
    # Rounding can leave the whole sum a little short of 1: then all directions are needed.
    return ((held < fraction).sum(-1) + 1).clamp(max=sigma.shape[-1])


def top_singular_energy(flow: Tensor) -> Tensor:
    """Share of the energy in the largest singular value."""
    return spectrum_top_energy(singular_values(flow))


def spectrum_top_energy(sigma: Tensor) -> Tensor:
    """`top_singular_energy` of singular values already at hand, (..., T); returns FP64."""
    return sigma[..., 0].double().square() / _energy(sigma)
