"""Metrics of a normalised flow matrix (Appendix B.4 and B.5), and the metrics of a layer's flow.

A flow M is floating, (..., T, T), lower triangular, and each row sums to 1, with a null logit to
less. A metric returns (...), one value per matrix, for all heads and sequences at once. Sums keep
the flow's dtype. Singular values are FP32 and their sums FP64.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.errors import DivergedError
from relation.kernels.documents import Documents
from relation.nn import Decoder

SINKS = (1, 2, 4, 8, 16, 32)  # sink_n: conditional historical mass on the first n tokens
# The paper's distances of 128, 256 and 512 tokens are these fractions of its 1024 tokens.
DISTANCES = {"beyond_eighth": 8, "beyond_quarter": 4, "beyond_half": 2}
_FLOOR = 1e-20  # the paper clamps at this value


def self_flow(flow: Tensor) -> Tensor:
    """The mean diagonal entry: Self flow in Relation, diagonal flow in MHA."""
    return flow.diagonal(dim1=-2, dim2=-1).mean(-1)


def exchange_flow(flow: Tensor) -> Tensor:
    """The mean over rows of g, the mass on the history."""
    return flow.tril(-1).sum(-1).mean(-1)


def history_profiles(flow: Tensor) -> tuple[Tensor, Tensor]:
    """Return the conditional historical mass by distance and by source, (..., T) each, row means.

    The mass is pi^E = F_ij / g_i for j < i. Entry d of the first tensor is the mass at distance
    i - j = d. Entry j of the second is the mass on position j. The means include rows without
    historical mass, such as the first token's, as zeros.
    """
    history, rows = flow.tril(-1), flow.shape[-1]
    mass = history.sum(-1, keepdim=True)
    history = torch.where(mass > 0, history / mass, 0.0)  # (..., T, T)
    # With T zero rows added below, diagonal d starts at row d and has T entries, T + 1 apart.
    padded = F.pad(history, (0, 0, 0, rows)).contiguous()  # (..., 2T, T)
    strides = (*padded.stride()[:-2], rows, rows + 1)
    by_distance = padded.as_strided(history.shape, strides, padded.storage_offset()).sum(-1) / rows
    return by_distance, history.mean(-2)


def singular_values(flow: Tensor) -> Tensor:
    """Return the singular values, (..., T) FP32, descending: roots of FP64 eigenvalues of M M^T.

    The root of a small eigenvalue has only half of the digits. In FP64 these suffice: each error is
    at most 2^-23 of the largest value. An SVD on a GPU would take the matrices one by one.
    """
    wide = flow.double()
    return torch.linalg.eigvalsh(wide @ wide.mT).clamp(min=0).sqrt().flip(-1).float()


def effective_rank(sigma: Tensor) -> Tensor:
    """exp(entropy) of the normalised singular values (..., T), with the paper's clamps; FP64."""
    sigma = sigma.double()
    p = sigma / sigma.sum(-1, keepdim=True).clamp(min=_FLOOR)
    p = p.clamp(min=_FLOOR)
    return torch.exp(-(p * p.log()).sum(-1))


def _energy(sigma: Tensor) -> Tensor:
    return sigma.double().square().sum(-1).clamp(min=_FLOOR)


def stable_rank(sigma: Tensor) -> Tensor:
    """Energy of all singular values (..., T), descending, over the energy of the largest; FP64."""
    return _energy(sigma) / sigma[..., 0].double().square().clamp(min=_FLOOR)


def energy_dims(sigma: Tensor, fraction: float) -> Tensor:
    """How many leading singular directions hold `fraction`, in (0, 1], of the energy; int64."""
    share = sigma.double().square().cumsum(-1) / _energy(sigma)[..., None]
    # Rounding can leave the last share a little below 1. Then the answer is all T directions.
    return ((share < fraction).sum(-1) + 1).clamp(max=sigma.shape[-1])


def top_energy(sigma: Tensor) -> Tensor:
    """The largest singular value's share of the energy of (..., T); FP64."""
    return sigma[..., 0].double().square() / _energy(sigma)


class Reading(NamedTuple):
    """Metrics of a layer's flow, (B, H) by name, and their curves, (B, H, T) by name, all FP64.

    length: T. count: how many rows of a matrix each metric averages, or 1 for a whole matrix.
    """

    values: dict[str, Tensor]
    curves: dict[str, Tensor]
    length: int
    count: int


def read_flow(flow: Tensor, places: Tensor | None = None) -> Reading:
    """Flow, distance and sink metrics of (B, H, T, T); curves `self` by position and `distance`.

    places: positions in documents, (B, T) int64; a sink is then the first tokens of each document.
    """
    length = flow.shape[-1]
    # On the CPU, because a GPU's scatter_add does not give the same bits every time.
    by_distance, by_source = (p.double().cpu() for p in history_profiles(flow))
    if places is not None:  # add up the mass by the source's position in its document
        places = places.cpu()[:, None].expand_as(by_source)  # (B, H, T)
        by_source = torch.zeros_like(by_source).scatter_add(-1, places, by_source)
    values = {"self_flow": self_flow(flow), "exchange_flow": exchange_flow(flow)}
    for name, part in DISTANCES.items():
        values[name] = by_distance[..., length // part + 1 :].sum(-1)
    for first in SINKS:
        values[f"sink_{first}"] = by_source[..., :first].sum(-1)
    curves = {"self": flow.diagonal(dim1=-2, dim2=-1), "distance": by_distance}
    return Reading(_on_host(values), _on_host(curves), length, length)


def read_spectrum(flow: Tensor) -> Reading:
    """Spectrum metrics of (B, H, T, T) from one decomposition; the curve `sigma`, descending."""
    sigma = singular_values(flow).cpu()
    values = {
        "effective_rank": effective_rank(sigma),
        "stable_rank": stable_rank(sigma),
        "dims_90": energy_dims(sigma, 0.90),
        "dims_95": energy_dims(sigma, 0.95),
        "top_singular_energy": top_energy(sigma),
    }
    return Reading(_on_host(values), _on_host({"sigma": sigma}), flow.shape[-1], 1)


def _on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.double().cpu() for name, tensor in tensors.items()}


class Layer(NamedTuple):
    """One layer: its index, its flow (B, H, T, T) FP32 on the device, and the flow's readings."""

    index: int
    flow: Tensor
    readings: tuple[Reading, Reading]


@torch.no_grad()
def read_layers(
    model: Decoder,
    tokens: Tensor,
    flow_length: int,
    rank_length: int,
    documents: Documents | None,
) -> Iterator[Layer]:
    """Yield the readings of each layer's flow on (B, T) ids, T at least both lengths, in order.

    The flow is causal, so the flow of the first tokens is the corner of the whole flow, and one
    pass serves both lengths. documents: of the tokens, if the model was trained with a mask.
    """
    places = None if documents is None else documents.positions[:, :flow_length]
    for index, flow in enumerate(model.flows(tokens, documents)):
        if not flow.isfinite().all():
            raise DivergedError(f"the flow of layer {index} is not finite: the model diverged")
        corner = flow[..., :flow_length, :flow_length]
        spectrum = read_spectrum(flow[..., :rank_length, :rank_length])
        yield Layer(index, corner, (read_flow(corner, places), spectrum))
