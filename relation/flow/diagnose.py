"""The structural diagnostics of one checkpoint, layer by layer (Appendix B.4 and B.5)."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relation import records
from relation.data.masks import document_mask
from relation.data.windows import first_windows, open_tokens
from relation.flow.maps import encode
from relation.flow.metrics import Layer, read_layers
from relation.jobs import Run
from relation.machine import Progress, claim, describe, to_device
from relation.train.checkpoint import load_model

SIDE = 64  # blocks per side of a map; fewer if the flow has fewer tokens


def pooled(flow: Tensor) -> Tensor:
    """Pool a flow (..., T, T) over blocks of neighbouring tokens: (..., n, n), n = min(SIDE, T).

    Block a begins at token floor(a T / n). Entry (a, b) is the mass that a row of block a gives to
    all tokens of block b, averaged over the rows of block a.
    """
    length = flow.shape[-1]
    blocks = min(SIDE, length)
    block = (torch.arange(1, length + 1, device=flow.device) * blocks - 1) // length
    member = (block == torch.arange(blocks, device=flow.device)[:, None]).to(flow.dtype)  # (n, T)
    return (member / member.sum(-1, keepdim=True)) @ flow @ member.T


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round FP32 to 11 bits of mantissa (relative error up to 1/4096), so that files compress."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x800) & 0xFFFFF000).view(np.float32)


def _add_rows(layer: Layer, rows: dict[str, list[dict]]) -> None:
    """Add a layer's rows to the kinds flow, curves and maps, without the columns of their key."""
    for reading in layer.readings:
        columns = {"layer": layer.index, "length": reading.length}
        for metric, values in reading.values.items():  # (sequences, H)
            for (sequence, head), value in np.ndenumerate(values.numpy()):
                row = {"sequence": sequence, "head": head, "value": float(value)}
                rows["flow"].append(columns | {"count": reading.count, "metric": metric} | row)
        for curve, values in reading.curves.items():  # (sequences, H, T)
            mean = _rounded(values.mean((0, 1)).numpy())
            rows["curves"].append(columns | {"curve": curve, "values": mean})
    # Maps show the first sequence only, (H, T, T).
    for head, flow in enumerate(pooled(layer.flow[0]).cpu().numpy()):
        row = {"layer": layer.index, "head": head, "length": layer.flow.shape[-1]}
        rows["maps"].append(row | {"side": len(flow), "codes": encode(flow).tobytes()})


def diagnose(run: Run, data: Path, checkpoint: Path, out: Path, runs_per_gpu: int = 1) -> None:
    """Diagnose a run's checkpoint and write flow.parquet, curves.parquet and maps.parquet to `out`.

    data: the run's prepared corpus; the first windows of its validation split are read. Computes in
    FP32. Raises DivergedError if a flow is not finite, InputError for a model with Linear layers.
    """
    with claim(run.device, runs_per_gpu) as device:
        model = load_model(checkpoint, device)
        validation, lengths = open_tokens(data, "validation"), (run.flow_length, run.rank_length)
        sequences = first_windows(validation, run.flow_window, run.flow_sequences, max(lengths))
        tokens = to_device(sequences, device)
        documents = document_mask(run.document_mask, data)(tokens)
        layers = read_layers(model, tokens, *lengths, documents)
        rows_by_kind: dict[str, list[dict]] = {"flow": [], "curves": [], "maps": []}
        with Progress(f"diagnose {run.name}", model.config.layers, "layers") as progress:
            for layer in layers:
                _add_rows(layer, rows_by_kind)
                progress.advance(1)
        shared = records.key(run) | records.origin(run.flow_hash, describe(device))
        for kind, rows in rows_by_kind.items():
            records.write(out / f"{kind}.parquet", kind, rows, shared)
