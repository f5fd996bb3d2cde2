"""What the diagnostics read off the flow of one layer: metrics a head and sequence, and curves."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from relation.data.mask import DocumentMask
from relation.errors import InputError
from relation.flow import metrics
from relation.nn import Decoder

SINKS = (1, 2, 4, 8, 16, 32)
# The paper's 128, 256 and 512 tokens are these fractions of its sequences of 1024.
DISTANCES = {"beyond_eighth": 8, "beyond_quarter": 4, "beyond_half": 2}


class Reading(NamedTuple):
    """Of a layer's flow: metrics (B, H) by name, the curves (B, H, T) behind them, all FP64.

    count: how many rows, or matrices, each metric's value is the mean over.
    """

    values: dict[str, Tensor]
    curves: dict[str, Tensor]
    length: int
    count: int


def read_flow(flow: Tensor, places: Tensor | None = None) -> Reading:
    """Flow, distance and sink metrics of (B, H, T, T); curves `self` by position and `distance`.

    places: where each token stands in its document, (B, T) int64; sinks are then documents'.
    """
    length = flow.shape[-1]
    # Small from here on, and a GPU has no cumulative sum that gives the same bits every time.
    by_distance, by_source = (p.double().cpu() for p in metrics.history_profiles(flow))
    if places is not None:
        by_source = metrics.by_place(by_source, places.cpu())
    values = {"self_flow": metrics.self_flow(flow), "exchange_flow": metrics.exchange_flow(flow)}
    for name, part in DISTANCES.items():
        values[name] = by_distance[..., length // part + 1 :].sum(-1)
    for first in SINKS:
        values[f"sink_{first}"] = by_source[..., :first].sum(-1)
    curves = {"self": flow.diagonal(dim1=-2, dim2=-1), "distance": by_distance}
    return Reading(_small(values), _small(curves), length, length)


def read_spectrum(flow: Tensor) -> Reading:
    """Spectrum metrics of (B, H, T, T) from one decomposition; the curve `sigma`, descending."""
    sigma = metrics.singular_values(flow).cpu()
    values = {
        "effective_rank": metrics.spectrum_effective_rank(sigma),
        "stable_rank": metrics.spectrum_stable_rank(sigma),
        "dims_90": metrics.spectrum_energy_dims(sigma, 0.90),
        "dims_95": metrics.spectrum_energy_dims(sigma, 0.95),
        "top_singular_energy": metrics.spectrum_top_energy(sigma),
    }
    return Reading(_small(values), _small({"sigma": sigma}), flow.shape[-1], 1)


def _small(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.double().cpu() for name, tensor in tensors.items()}


class Layer(NamedTuple):
    """One layer: its index, its flow (B, H, T, T) FP32 on the device, and what was read off it."""

    index: int
    flow: Tensor
    readings: tuple[Reading, Reading]


@torch.no_grad()
def read_layers(
    model: Decoder,
    tokens: Tensor,
    flow_length: int,
    rank_length: int,
    mask: DocumentMask | None = None,
) -> Iterator[Layer]:
    """Read every layer's flow on (B, T) ids, T at least both lengths, one layer at a time.

    A causal flow of the first tokens of a sequence is the corner of the whole flow, so one pass
    serves both lengths. mask: the flow stays within the documents that it finds. Raises InputError
    for a model with Linear layers, or a flow that is not finite.
    """
    documents = None if mask is None else mask.documents(tokens)
    places = None if documents is None else documents.positions[:, :flow_length]
    for index, flow in enumerate(model.flows(tokens, documents)):
        if not flow.isfinite().all():
            raise InputError(
                f"the flow of layer {index} is not finite: the model diverged; train it anew with "
                "a lower learning_rate"
            )
        corner = flow[..., :flow_length, :flow_length]
        spectrum = read_spectrum(flow[..., :rank_length, :rank_length])
        yield Layer(index, corner, (read_flow(corner, places), spectrum))
