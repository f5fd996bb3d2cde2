"""Texts longer than the training context: NLL by position in windows of several contexts.

Each window is part of one document. Positions, counts and states continue through the window and
are never reset. For comparison, the same tokens are read in windows of one training context.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from relation import records
from relation.config import Length
from relation.data.tokenizer import end_of_text_id
from relation.data.windows import open_tokens
from relation.jobs import Run
from relation.machine import claim, describe
from relation.nn import Decoder, Execution
from relation.train.checkpoint import load_model
from relation.train.step import autocast

PIECES = 4  # parts of a training context; each row averages the NLL over one part


def document_windows(
    tokens: np.ndarray, end: int, context: int, contexts: int, count: int
) -> np.ndarray:
    """Return windows of L tokens and the next token, each in one document, (n, L + 1) int64.

    tokens: (N,) ids. end: the id of end-of-text, which begins a document. L is `contexts` training
    contexts, halved until a document is that long. The first windows of all documents come first,
    then the second windows, and so on, up to `count`. n is 0 if no document holds a context.
    """
    starts = np.concatenate([[0], np.flatnonzero(tokens == end), [len(tokens)]])
    sizes = np.diff(starts) - 1
    while contexts > 1 and max(sizes) < contexts * context:
        contexts //= 2
    length = contexts * context
    windows = sizes // length
    places = [
        start + turn * length
        for turn in range(max(windows))
        for start in starts[:-1][windows > turn]
    ]
    rows = [tokens[place : place + length + 1] for place in places[:count]]
    return np.stack(rows).astype(np.int64) if rows else np.empty((0, length + 1), np.int64)


@torch.no_grad()
def token_nll(model: Decoder, windows: Tensor, context: int) -> Tensor:
    """Return the NLL of every predicted token in nats, (n, L) FP32; windows: (n, L + 1) int64.

    Reads one window at a time, and computes the logits of `context` tokens at a time.
    """
    rows = []
    for window in windows:
        states = model.states(window[None, :-1])[0].split(context)
        pairs = zip(states, window[1:].split(context), strict=True)
        nll = [F.cross_entropy(model.logits(s).float(), t, reduction="none") for s, t in pairs]
        rows.append(torch.cat(nll))
    return torch.stack(rows)


def length_rows(model: Decoder, windows: Tensor, context: int) -> Iterator[dict]:
    """Yield rows of kind `lengths` without their key: the mean NLL of each quarter of a context.

    windows: (n, contexts T + 1) int64 on the model's device; context: the T of its training.
    """
    whole = token_nll(model, windows, context)  # (n, contexts T), as is `apart`
    # A window's last token is the next one's first: (n contexts, T + 1).
    short_windows = windows.unfold(1, context + 1, context).flatten(0, 1)
    apart = token_nll(model, short_windows, context).view(whole.shape)
    piece = math.ceil(context / PIECES)
    for reading, nll in {"whole": whole, "apart": apart}.items():
        for place, part in enumerate(nll.double().cpu().split(piece, dim=1)):
            row = {"reading": reading, "first": place * piece, "count": part.numel()}
            yield row | {"nll": part.mean().item()}


def measure(
    run: Run, data: Path, checkpoint: Path, out: Path, section: Length, runs_per_gpu: int = 1
) -> None:
    """Measure a run's checkpoint on long windows and write lengths.parquet into `out`.

    data: the run's prepared corpus. The model uses the run's backends and precision. There are no
    rows if no document is as long as one training context.
    """
    with claim(run.device, runs_per_gpu) as device:
        model = load_model(checkpoint, device, Execution(**run.backends))
        tokens, end = open_tokens(data, "validation"), end_of_text_id(data)
        windows = document_windows(tokens, end, run.context, section.contexts, section.windows)
        with autocast(device, run.precision):
            long = torch.from_numpy(windows).to(device)
            rows = list(length_rows(model, long, run.context)) if len(windows) else []
        shared = records.key(run) | records.origin(section.hash(run), describe(device))
        records.write(out / "lengths.parquet", "lengths", rows, shared)
