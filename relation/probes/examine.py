"""The examination of one checkpoint: copying, texts longer than trained, the use of Self."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from relation.data.mask import DocumentMask
from relation.data.tokenizer import end_of_text_id
from relation.data.tokens import open_tokens, token_file
from relation.machine.devices import claim, describe
from relation.machine.progress import Progress
from relation.nn import Decoder, Execution
from relation.probes.copying import copying_rows
from relation.probes.length import length_rows, longest_windows
from relation.probes.self_use import first_windows, frequency_bands, use_rows
from relation.spec import ExaminationSpec, RunSpec
from relation.store.layouts import COPYING, LENGTHS, SELF_USE
from relation.store.parquet import write_parquet
from relation.store.stamp import UNKNOWN, Stamp, origin
from relation.train.checkpoint import load_model
from relation.train.probes import PeakMemory
from relation.train.step import autocast

LAYOUTS = {"copying": COPYING, "lengths": LENGTHS, "self_use": SELF_USE}


def examine(
    spec: ExaminationSpec,
    run: RunSpec,
    checkpoint: Path,
    data: Path,
    outputs: Mapping[str, Path],
    stamp: Stamp = UNKNOWN,
) -> None:
    """Examine a run's checkpoint and write the records of LAYOUTS to `outputs`, by name.

    data: the run's prepared corpus. The model runs as the run validated it, by its backends and in
    its precision; the origin has the seconds it took and the peak of memory. Raises InputError
    where the checkpoint or the corpus will not do.
    """
    with claim(spec.device) as device:
        peak, began = PeakMemory(device), time.perf_counter()
        execution = Execution(**run.backends)
        execution.check(run.model_config(), device)
        model = load_model(checkpoint, device, execution).eval()
        with autocast(device, run.precision), Progress(f"examine {run.name}", 3, "parts") as shown:
            found, details = examination_of(model, spec, run, data, shown.advance)
        details |= {"seconds": time.perf_counter() - began, "peak_gib": peak.gib()}
        written = origin(
            run.campaign,
            spec.config_hash,
            "examination",
            describe(device),
            stamp,
            seed=run.seed,
            run_hash=spec.run_hash,
            **details,
        )
    key = {"scale": run.scale, "variant": run.variant, "seed": run.seed}
    for name, rows in found.items():
        write_parquet(outputs[name], LAYOUTS[name], [{**key, **row} for row in rows], written)


def examination_of(
    model: Decoder, spec: ExaminationSpec, run: RunSpec, data: Path, advance=lambda parts: None
) -> tuple[dict[str, list[dict]], dict[str, Any]]:
    """Rows of LAYOUTS by name, without their key, and what the origin says of the texts.

    `advance(1)` is called when another of them is done.
    """
    tokens, end = open_tokens(token_file(data, "validation")), end_of_text_id(data)
    vocabulary, context = model.config.vocab_size, run.context
    device = model.embedding.weight.device
    copied = list(copying_rows(model, context, vocabulary, end, spec.sequences))
    advance(1)
    windows, contexts = longest_windows(tokens, end, context, spec.contexts, spec.windows)
    long = torch.from_numpy(windows).to(device)
    lengths = list(length_rows(model, long, context)) if len(windows) else []
    advance(1)
    text = first_windows(tokens, context, spec.windows)
    bands = frequency_bands(tokens, vocabulary)
    mask = DocumentMask.of(run.document_mask, data)
    used = list(use_rows(model, text, bands, mask))
    advance(1)
    details = {"contexts": contexts if len(windows) else 0, "long_windows": len(windows)}
    return {"copying": copied, "lengths": lengths, "self_use": used}, details
