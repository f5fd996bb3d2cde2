"""Validation NLL over the whole split (Appendix B.2): every token once, in order."""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from relation.data.mask import DocumentMask
from relation.data.tokens import TokenFile
from relation.data.windows import validation_windows
from relation.machine.devices import to_device
from relation.machine.progress import Progress
from relation.nn import Decoder
from relation.train.loss import summed_nll
from relation.train.step import autocast


def _batches(
    tokens: np.ndarray | TokenFile, context: int, rows: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Full windows `rows` at a time, then the ragged tail on its own."""
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    for inputs, targets in validation_windows(tokens, context):
        ragged = len(inputs) < context
        if waiting and (ragged or len(waiting) == rows):
            yield tuple(np.stack(part) for part in zip(*waiting, strict=True))
            waiting = []
        waiting.append((inputs, targets))
    yield tuple(np.stack(part) for part in zip(*waiting, strict=True))


@torch.no_grad()
def nll_of(
    model: Decoder,
    tokens: np.ndarray | TokenFile,
    context: int,
    rows: int,
    device: torch.device,
    precision: str,
    advance: Callable[[int], None] = lambda tokens: None,
    mask: DocumentMask | None = None,
) -> tuple[float, int]:
    """(NLL in nat/token, predicted tokens) over (N,) ids in windows of T = context.

    `rows` windows are evaluated at a time; the sum is taken in FP64. `advance(n)` is called when n
    more tokens are done. mask: that of the model's training.
    """
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    for batch in _batches(tokens, context, rows):
        inputs, targets = (to_device(part, device) for part in batch)
        documents = None if mask is None else mask.documents(inputs)
        with autocast(device, precision):
            total += summed_nll(model, inputs, targets, documents)
        advance(targets.numel())
    model.train()
    return total.item() / (len(tokens) - 1), len(tokens) - 1


def validation_nll(
    model: Decoder,
    tokens: np.ndarray | TokenFile,
    context: int,
    rows: int,
    device: torch.device,
    precision: str,
    mask: DocumentMask | None = None,
) -> tuple[float, int]:
    """`nll_of` a whole split, with its progress."""
    with Progress("validation", len(tokens) - 1, "tokens") as progress:
        return nll_of(model, tokens, context, rows, device, precision, progress.advance, mask)
