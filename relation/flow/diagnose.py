"""The structural diagnostics of one checkpoint, layer by layer (Appendix B.4 and B.5)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relation import records
from relation.data.windows import Mask, document_mask, first_windows, open_tokens
from relation.errors import InputError
from relation.flow.metrics import Layer, Reading, read_layers
from relation.machine import Progress, claim, describe, to_device
from relation.nn import Decoder
from relation.train.checkpoint import load_model

if TYPE_CHECKING:
    from relation.jobs import Run

SIDE = 64  # blocks a side of a map, fewer where the flow has fewer tokens
# A map's bytes: an entry x is round(63 + 62/5 log10 x), 0 below 10^-5. So few levels compress.
_DECADES, _TOP = 5.0, 63


def pooled(flow: Tensor, side: int = SIDE) -> Tensor:
    """The flow between blocks of neighbouring tokens, (..., n, n) of (..., T, T), n = min(side, T).

    Block a begins at token floor(a T / n). Entry (a, b) is the mass that a row of block a gives to
    all tokens of block b, mean over the rows: rows sum to 1, as the flow's do.
    """
    length = flow.shape[-1]
    blocks = min(side, length)
    tokens = torch.arange(length, device=flow.device)
    starts = torch.arange(blocks, device=flow.device) * length // blocks
    block = torch.searchsorted(starts, tokens, right=True) - 1
    member = (block == torch.arange(blocks, device=flow.device)[:, None]).to(flow.dtype)  # (n, T)
    return (member / member.sum(-1, keepdim=True)) @ flow @ member.T


def encode(entries: np.ndarray) -> np.ndarray:
    """Entries in [0, 1] as bytes of the same shape, uint8: to within 10% where 10^-5 or more."""
    with np.errstate(divide="ignore"):
        codes = np.rint(_TOP + (_TOP - 1) / _DECADES * np.log10(entries))
    return np.clip(codes, 0, _TOP).astype(np.uint8)


def _short(values: np.ndarray) -> np.ndarray:
    """FP32 rounded to 11 bits of mantissa, to within 1/4096: the zeros behind them compress."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x800) & 0xFFFFF000).view(np.float32)


def _metric_rows(layer: int, reading: Reading) -> Iterator[dict[str, Any]]:
    for metric, values in reading.values.items():
        for (sequence, head), value in np.ndenumerate(values.numpy()):
            where = {"layer": layer, "head": head, "sequence": sequence, "length": reading.length}
            yield {**where, "count": reading.count, "metric": metric, "value": float(value)}


def _curve_rows(layer: int, reading: Reading) -> Iterator[dict[str, Any]]:
    for curve, values in reading.curves.items():
        mean = _short(values.mean((0, 1)).numpy())
        yield {"layer": layer, "curve": curve, "length": reading.length, "values": mean}


def _map_rows(layer: Layer) -> Iterator[dict[str, Any]]:
    """The first sequence's flow, a row a head."""
    length = layer.flow.shape[-1]
    for head, flow in enumerate(pooled(layer.flow[0]).cpu().numpy()):
        where = {"layer": layer.index, "head": head, "length": length, "side": len(flow)}
        yield {**where, "codes": encode(flow).tobytes()}


def rows_of(
    model: Decoder, sequences: Tensor, flow_length: int, rank_length: int, mask: Mask, name: str
) -> dict[str, list[dict[str, Any]]]:
    """Rows of the kinds flow, curves and maps, without their key, of a model.

    sequences: (B, T) int64 on its device; flow_length, rank_length: tokens whose flow and whose
    spectra are measured; mask: that of the model's training. Raises InputError for a model with
    Linear layers, a token that it does not know, or a flow that is not finite.
    """
    if int(sequences.max()) >= model.config.vocab_size:
        raise InputError(
            f"{name}: the text holds token {int(sequences.max())} and the model knows "
            f"{model.config.vocab_size}; give tokens of the tokenizer that it was trained with"
        )
    found: dict[str, list[dict]] = {"flow": [], "curves": [], "maps": []}
    layers = read_layers(model, sequences, flow_length, rank_length, mask)
    with Progress(f"diagnose {name}", model.config.layers, "layers") as progress:
        for layer in layers:
            for reading in layer.readings:
                found["flow"] += _metric_rows(layer.index, reading)
                found["curves"] += _curve_rows(layer.index, reading)
            found["maps"] += _map_rows(layer)
            progress.advance(1)
    return found


def write(
    out: Path, found: Mapping[str, list[dict]], key: Mapping[str, Any], origin: Mapping[str, str]
) -> None:
    """Write flow, curves and maps.parquet into `out`; `key` and `origin` go into every row."""
    for kind, rows in found.items():
        records.write(out / f"{kind}.parquet", kind, [{**key, **row} for row in rows], origin)


def diagnose(run: "Run", data: Path, checkpoint: Path, out: Path) -> None:
    """Diagnose a run's checkpoint and write flow, curves and maps.parquet into `out`.

    data: the run's prepared corpus, of whose validation split the first windows are read. Computes
    in FP32. Raises InputError where the checkpoint or the validation split will not do.
    """
    with claim(run.device) as device:
        model = load_model(checkpoint, device).eval()
        validation = open_tokens(data, "validation")
        length = max(run.flow_length, run.rank_length)
        sequences = first_windows(validation, run.flow_window, run.flow_sequences)[:, :length]
        mask = document_mask(run.document_mask, data)
        lengths = (run.flow_length, run.rank_length)
        sequences = to_device(sequences.copy(), device)
        found = rows_of(model, sequences, *lengths, mask, run.name)
        names = ("campaign", "scale", "variation", "variant", "seed")
        key = {name: getattr(run, name) for name in names}
        write(out, found, key, records.origin(run.flow_hash, describe(device)))
