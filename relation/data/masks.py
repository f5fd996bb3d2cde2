"""The documents in a run's windows: with the option `document_mask` a token sees only its own."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from relation.data.tokenizer import end_of_text_id
from relation.data.windows import IGNORED, TrainingWindows, Update
from relation.kernels.documents import Documents

# A mask returns the documents of inputs (B, T), or None if tokens may see other documents.
Mask = Callable[[Tensor], Documents | None]


def document_mask(option: str | None, data: Path) -> Mask:
    """Return the mask for a run's option `document_mask`: "documents", or None for no mask.

    With "documents", a token sees only the tokens of its own document. A document begins with the
    end-of-text before it, so its first token is predicted from end-of-text alone, as in generation,
    and no target is predicted from another document. The start of a window also begins a document.
    Each call of the mask waits once for a GPU.
    """
    if option is None:
        return lambda inputs: None
    end = end_of_text_id(data)
    return lambda inputs: Documents.of((inputs == end).cumsum(1))


def bounded_mask(
    option: str | None, data: Path, windows: TrainingWindows, updates: Sequence[Update], micro: int
) -> Callable[[Tensor, Tensor], Documents] | None:
    """Return `document_mask` as a function of training inputs and targets (B, T), or None.

    A CUDA graph can capture it: the number of documents is bounded by the most in any micro-batch
    of these updates, so every process and every start builds the same graph. Reads the split once.
    """
    if option is None:
        return None
    end, most = end_of_text_id(data), 0
    inputs = windows.tokens[: windows.count * windows.context].reshape(windows.count, -1)
    ends = (inputs == end).sum(1)  # (windows,)
    for update in updates:
        counts = ends[windows.window_ids(update.first, update.windows)]
        batches = np.add.reduceat(counts, np.arange(0, len(counts), micro))
        most = max(most, int(batches.max()))
    # Ignored tokens begin no document: a row without a window is all 0, which can be `end`.
    return lambda inputs, targets: Documents.bounded(
        (inputs == end) & (targets != IGNORED), most + micro
    )
