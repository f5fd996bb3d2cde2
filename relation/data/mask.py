"""The document mask: a token of a window sees the tokens of its own document alone.

A document begins with the end-of-text before it. Its first token is so predicted from end-of-text
alone, as generation starts a document, its last one predicts end-of-text, and no target is
predicted from another document. A window begins a document too. The token file thus says where
documents begin, and its SHA-256 vouches for that: nothing else is stored.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from relation.data.windows import IGNORED, TrainingWindows, UpdatePlan
from relation.kernels.documents import Documents


@dataclass(frozen=True)
class DocumentMask:
    """The mask of windows whose token `end` is end-of-text."""

    end: int

    @classmethod
    def of(cls, reading: str | None, data: Path) -> "DocumentMask | None":
        """The mask that a specification's `document_mask` asks for; None for none.

        data: a prepared corpus. Raises InputError where its tokenizer is missing or damaged.
        """
        if reading is None:
            return None
        # Imported on use: most runs mask nothing.
        from relation.data.tokenizer import end_of_text_id

        return cls(end_of_text_id(data))

    def documents(self, inputs: Tensor) -> Documents:
        """The documents of windows (B, T); waits for a GPU once."""
        return Documents.of((inputs == self.end).cumsum(1))

    def of_updates(
        self, windows: TrainingWindows, plans: Iterable[UpdatePlan], micro: int
    ) -> "BoundedMask":
        """The mask of every micro-batch of `micro` windows in these updates; reads the split."""
        ends, most = windows.count_of(self.end), 0
        for plan in plans:
            own = ends[windows.window_ids(plan.first, plan.windows)]
            batches = np.add.reduceat(own, np.arange(0, len(own), micro))
            most = max(most, int(batches.max()))
        return BoundedMask(self.end, most + micro)


@dataclass(frozen=True)
class BoundedMask:
    """The mask of micro-batches of at most `most` documents each, which a CUDA graph can hold."""

    end: int
    most: int

    def __call__(self, inputs: Tensor, targets: Tensor) -> Documents:
        """The documents of a micro-batch, both (B, T).

        A token that predicts nothing begins none: a row without a window may be all `end`.
        """
        first = (inputs == self.end) & (targets != IGNORED)
        return Documents.bounded(first, self.most)
