"""Final validation NLL: every token of the split once, in order (Appendix B.4)."""

from collections.abc import Iterator

import numpy as np
import torch

from relation.data.tokens import TokenFile
from relation.data.windows import validation_windows
from relation.model import Decoder
from relation.progress import Progress
from relation.training.step import autocast, summed_nll


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
def validation_nll(
    model: Decoder,
    tokens: np.ndarray | TokenFile,
    context: int,
    rows: int,
    device: torch.device,
    precision: str,
) -> tuple[float, int]:
    """(NLL in nat/token, predicted tokens) over a whole split, (N,) ids, windows of T = context.

    `rows` windows are evaluated at a time; the sum is taken in FP64.
    """
    model.eval()
    total, count = 0.0, 0
    with Progress("validation", len(tokens) - 1, "tokens") as progress:
        for inputs, targets in _batches(tokens, context, rows):
            with autocast(device, precision):
                nll = summed_nll(
                    model, torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)
                )
            total += nll.double().item()
            count += targets.size
            progress.advance(targets.size)
    model.train()
    return total / count, count
