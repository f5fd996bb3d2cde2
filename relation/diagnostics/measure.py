"""The diagnostics of one checkpoint, layer by layer, so that memory does not grow with depth."""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relation.data.tokens import open_tokens, token_file
from relation.data.windows import validation_windows
from relation.devices import claim, describe
from relation.diagnostics import metrics
from relation.errors import InputError
from relation.model import Decoder, Execution
from relation.origin import origin
from relation.parquet import write_parquet
from relation.progress import Progress
from relation.schemas import FLOW
from relation.spec import DiagnosticsSpec, RunSpec
from relation.training.checkpoint import load_model

SINKS = (1, 2, 4, 8, 16, 32)
# The paper's 128, 256 and 512 tokens are these fractions of its sequences of 1024.
DISTANCES = {"beyond_eighth": 8, "beyond_quarter": 4, "beyond_half": 2}


def first_windows(tokens: np.ndarray, context: int, count: int) -> Tensor:
    """The first `count` full windows of a split as model inputs, (count, T) int64.

    Raises InputError where the split holds fewer.
    """
    full = (len(tokens) - 1) // context
    if full < count:
        raise InputError(
            f"the validation split holds {full} windows of {context} tokens and the "
            f"diagnostics read {count}; give more validation text"
        )
    rows = [inputs for inputs, _ in islice(validation_windows(tokens, context), count)]
    return torch.from_numpy(np.stack(rows))


def flow_metrics(flow: Tensor) -> dict[str, Tensor]:
    """Flow, distance and sink metrics of (B, H, T, T), each (B, H)."""
    length = flow.shape[-1]
    values = {"self_flow": metrics.self_flow(flow), "exchange_flow": metrics.exchange_flow(flow)}
    for name, part in DISTANCES.items():
        values[name] = metrics.distance_mass(flow, length // part)
    for first in SINKS:
        values[f"sink_{first}"] = metrics.sink_mass(flow, first)
    return values


def rank_metrics(flow: Tensor) -> dict[str, Tensor]:
    """Spectrum metrics of (B, H, T, T), each (B, H), from one decomposition."""
    sigma = metrics.singular_values(flow)
    return {
        "effective_rank": metrics.spectrum_effective_rank(sigma),
        "stable_rank": metrics.spectrum_stable_rank(sigma),
        "dims_90": metrics.spectrum_energy_dims(sigma, 0.90),
        "dims_95": metrics.spectrum_energy_dims(sigma, 0.95),
        "top_singular_energy": metrics.spectrum_top_energy(sigma),
    }


@torch.no_grad()
def _layers(model: Decoder, tokens: Tensor, measure) -> Iterator[dict]:
    """Rows (layer, head, sequence, length, metric, value) of every layer's flow on (B, T) ids."""
    for layer, flow in enumerate(model.flows(tokens)):
        for metric, values in measure(flow).items():
            for (sequence, head), value in np.ndenumerate(values.double().cpu().numpy()):
                yield {
                    "layer": layer,
                    "head": head,
                    "sequence": sequence,
                    "length": tokens.shape[1],
                    "metric": metric,
                    "value": float(value),
                }


def diagnose(
    spec: DiagnosticsSpec, run: RunSpec, checkpoint: Path, data: Path, output: Path
) -> None:
    """Diagnose one checkpoint and write its Parquet, one row a layer, head, sequence and metric.

    Computes in FP32. Raises InputError where the checkpoint or the validation split will not do.
    """
    with claim(spec.device) as device:
        # The reference operators: diagnostics read F itself, whatever executed the training.
        model = load_model(checkpoint, device, Execution()).eval()
        tokens = open_tokens(token_file(data, "validation"))
        windows = first_windows(tokens, run.context, spec.sequences).to(device)
        key = {"scale": run.scale, "variant": run.variant, "seed": run.seed}
        rows: list[dict] = []
        with Progress(f"diagnose {run.name}", 2, "passes") as progress:
            for length, measure in (
                (spec.flow_length, flow_metrics),
                (spec.rank_length, rank_metrics),
            ):
                rows += [{**key, **row} for row in _layers(model, windows[:, :length], measure)]
                progress.advance(1)
        sequences = windows[:, : spec.flow_length].cpu().numpy()
        written = origin(
            run.campaign,
            spec.config_hash,
            "diagnostics",
            describe(device),
            seed=run.seed,
            run_hash=spec.run_hash,
            sequences_hash=hash_of_sequences(sequences),
        )
    write_parquet(output, FLOW, rows, written)


def hash_of_sequences(tokens: np.ndarray) -> str:
    """SHA-256 of the diagnosed sequences, (B, T) int64: equal for checkpoints that compare."""
    return hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest()
