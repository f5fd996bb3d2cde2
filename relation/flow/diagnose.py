"""The diagnostics of one checkpoint, layer by layer, so that memory does not grow with depth."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relation.data.mask import DocumentMask
from relation.data.tokens import open_tokens, token_file
from relation.data.windows import validation_windows
from relation.errors import InputError
from relation.flow.codes import encode
from relation.flow.layers import Layer, Reading, read_layers
from relation.flow.maps import pooled
from relation.machine.devices import claim, describe
from relation.machine.progress import Progress
from relation.nn import Decoder, Execution
from relation.spec import DiagnosticsSpec, RunSpec
from relation.store.files import beside, sha256_of
from relation.store.layouts import FLOW, FLOW_CURVES, FLOW_MAPS
from relation.store.parquet import write_parquet
from relation.store.stamp import UNKNOWN, Stamp, origin
from relation.train.checkpoint import load_model


def first_windows(tokens: np.ndarray, window: int, count: int) -> Tensor:
    """The first `count` full windows of a split as model inputs, (count, window) int64.

    Raises InputError where the split holds fewer.
    """
    full = (len(tokens) - 1) // window
    if full < count:
        raise InputError(
            f"the validation split holds {full} windows of {window} tokens and the "
            f"diagnostics read {count}; give more validation text"
        )
    rows = [inputs for inputs, _ in islice(validation_windows(tokens, window), count)]
    return torch.from_numpy(np.stack(rows))


def sequences_of(spec: DiagnosticsSpec, data: Path, vocabulary: int) -> Tensor:
    """The fixed sequences that a specification reads, (B, T) int64, T the longer of its lengths.

    data: a prepared corpus, whose validation split is read, or a token file. Raises InputError
    where there are too few tokens, or one that the model does not know.
    """
    path = data if data.suffix == ".bin" else token_file(data, "validation")
    length = max(spec.flow_length, spec.rank_length)
    if length > spec.window:
        raise InputError(
            f"sequences of {length} tokens do not fit a window of {spec.window}; give a longer one"
        )
    sequences = first_windows(open_tokens(path), spec.window, spec.sequences)[:, :length]
    if int(sequences.max()) >= vocabulary:
        raise InputError(
            f"{path} holds token {int(sequences.max())} and the model knows {vocabulary}; give "
            "tokens of the tokenizer that it was trained with"
        )
    return sequences


def hash_of_sequences(tokens: Tensor) -> str:
    """SHA-256 of the diagnosed sequences, (B, T) int64: equal for checkpoints that compare."""
    return hashlib.sha256(tokens.numpy().astype("<i8").tobytes()).hexdigest()


@dataclass
class Diagnosis:
    """Rows of the three records of a checkpoint, in the columns of their schemas."""

    flow: list[dict] = field(default_factory=list)
    curves: list[dict] = field(default_factory=list)
    maps: list[dict] = field(default_factory=list)

    def write(self, output: Path, written: Mapping[str, Any]) -> None:
        """Write `output`, and the curves and maps beside it, with their origin."""
        write_parquet(beside(output, "curves"), FLOW_CURVES, self.curves, written)
        write_parquet(beside(output, "maps"), FLOW_MAPS, self.maps, written)
        write_parquet(output, FLOW, self.flow, written)


def _metric_rows(layer: int, reading: Reading) -> Iterator[dict]:
    for metric, values in reading.values.items():
        for (sequence, head), value in np.ndenumerate(values.numpy()):
            yield {
                "layer": layer,
                "head": head,
                "sequence": sequence,
                "length": reading.length,
                "count": reading.count,
                "metric": metric,
                "value": float(value),
            }


def _curve_rows(layer: int, reading: Reading) -> Iterator[dict]:
    for curve, values in reading.curves.items():
        mean = _short(values.mean((0, 1)).numpy())
        yield {"layer": layer, "curve": curve, "length": reading.length, "values": mean}


def _short(values: np.ndarray) -> np.ndarray:
    """FP32 rounded to 11 bits of mantissa, to within 1/4096: the zeros behind them compress."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x800) & 0xFFFFF000).view(np.float32)


def _map_rows(layer: Layer) -> Iterator[dict]:
    """The first sequence's flow, a row a head."""
    for head, flow in enumerate(pooled(layer.flow[0]).cpu().numpy()):
        yield {
            "layer": layer.index,
            "head": head,
            "length": layer.flow.shape[-1],
            "side": len(flow),
            "codes": encode(flow).tobytes(),
        }


def diagnosis_of(
    model: Decoder,
    spec: DiagnosticsSpec,
    sequences: Tensor,
    key: Mapping[str, Any],
    name: str,
    mask: DocumentMask | None = None,
) -> Diagnosis:
    """Diagnose a model on sequences (B, T) on its device; `key` goes into every row.

    mask: that of the model's training. Raises InputError for a model with Linear layers, or one
    whose flow is not finite.
    """
    found = Diagnosis()
    layers = read_layers(model, sequences, spec.flow_length, spec.rank_length, mask)
    with Progress(f"diagnose {name}", model.config.layers, "layers") as progress:
        for layer in layers:
            for reading in layer.readings:
                found.flow += [{**key, **row} for row in _metric_rows(layer.index, reading)]
                found.curves += [{**key, **row} for row in _curve_rows(layer.index, reading)]
            found.maps += [{**key, **row} for row in _map_rows(layer)]
            progress.advance(1)
    return found


def diagnose(
    spec: DiagnosticsSpec,
    run: RunSpec,
    checkpoint: Path,
    data: Path,
    output: Path,
    sharing: int = 1,
    stamp: Stamp = UNKNOWN,
) -> None:
    """Diagnose a run's checkpoint and write `output`, and its curves and maps beside it.

    data: the run's prepared corpus; sharing: how many such jobs may share a GPU. Computes in FP32.
    Raises InputError where the checkpoint or the validation split will not do.
    """
    with claim(spec.device, sharing) as device:
        model = load_model(checkpoint, device, Execution()).eval()
        sequences = sequences_of(spec, data, model.config.vocab_size)
        key = {"scale": run.scale, "variant": run.variant, "seed": run.seed}
        mask = DocumentMask.of(spec.document_mask, data)
        found = diagnosis_of(model, spec, sequences.to(device), key, run.name, mask)
        written = origin(
            run.campaign,
            spec.config_hash,
            "diagnostics",
            describe(device),
            stamp,
            seed=run.seed,
            run_hash=spec.run_hash,
            sequences_hash=hash_of_sequences(sequences),
        )
    found.write(output, written)


def diagnose_file(
    checkpoint: Path,
    data: Path,
    output: Path | None,
    device_kind: str,
    stamp: Stamp = UNKNOWN,
    document_mask: str | None = None,
    **sampling: int,
) -> Diagnosis:
    """Diagnose any checkpoint of MHA or Full layers; write its records where `output` is given.

    data: a prepared corpus or a token file. document_mask, sampling: the fields of DiagnosticsSpec
    of these names; "documents" takes the tokenizer beside the tokens.
    The rows' scale, variant and seed are null; the origin holds the file's SHA-256. Raises
    InputError as `diagnose` does.
    """
    with claim(device_kind) as device:
        model = load_model(checkpoint, device, Execution()).eval()
        given = {"device": device_kind, "document_mask": document_mask, **sampling}
        spec = DiagnosticsSpec(run_hash=sha256_of(checkpoint), **given)
        sequences = sequences_of(spec, data, model.config.vocab_size)
        key = dict.fromkeys(("scale", "variant", "seed"))
        mask = DocumentMask.of(document_mask, data.parent if data.suffix == ".bin" else data)
        found = diagnosis_of(model, spec, sequences.to(device), key, checkpoint.name, mask)
        if output is not None:
            written = origin(
                "none",
                spec.config_hash,
                "diagnostics",
                describe(device),
                stamp,
                checkpoint_sha256=spec.run_hash,
                sequences_hash=hash_of_sequences(sequences),
            )
            found.write(output, written)
    return found
