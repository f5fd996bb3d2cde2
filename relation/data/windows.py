"""Token files, the windows that a run reads from them, and the order of the windows.

A window predicts T tokens; its last token is the first token of the next window. Each epoch reads
every window once. Seed and epoch alone fix the order, so it is the same in both runs of a pair.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from relation import records
from relation.data.tokenizer import PREPARE_AGAIN, TOKEN_TYPE
from relation.errors import InputError

IGNORED = -100  # the target that cross-entropy skips, PyTorch's convention


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def data_rows(data: Path) -> dict[str, dict]:
    """Return the rows of a prepared corpus's data.parquet by split."""
    rows = records.read(data / "data.parquet", "data").to_dict("records")
    return {row["split"]: row for row in rows}


def open_tokens(data: Path, split: str) -> np.ndarray:
    """Memory-map a split's ids, (N,) uint16. Raises InputError if data.parquet has another hash."""
    path = data / f"{split}.bin"
    if not path.exists() or path.stat().st_size == 0:
        raise InputError(f"{path} is missing or empty; {PREPARE_AGAIN}")
    if sha256_of(path) != data_rows(data)[split]["sha256"]:
        raise InputError(f"{path} is not the file of data.parquet; {PREPARE_AGAIN}")
    return np.memmap(path, TOKEN_TYPE, mode="r")


def epoch_order(windows: int, seed: int, epoch: int) -> np.ndarray:
    """Return a permutation of range(windows), int64, fixed by (seed, epoch).

    It sorts the raw words of a bit generator, because NumPy guarantees that these are the same in
    every version. NumPy does not guarantee this for `permutation`.
    """
    keys = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(windows)
    return np.argsort(keys, kind="stable")


@dataclass(frozen=True)
class Update:
    """The windows of one update, from position `first` of the run's order, and their tokens."""

    index: int
    first: int
    windows: int
    tokens: int


def plan_updates(budget: int, tokens_per_update: int, context: int) -> list[Update]:
    """Split a budget of predicted tokens into updates.

    If the budget does not divide evenly, the last update is smaller and its last window may be cut.
    """
    per_update = tokens_per_update // context
    full, remainder = divmod(budget, tokens_per_update)
    updates = [Update(i, i * per_update, per_update, tokens_per_update) for i in range(full)]
    if remainder:
        updates.append(Update(full, full * per_update, -(-remainder // context), remainder))
    return updates


class TrainingWindows:
    """The windows of a training split in the order of one seed. tokens: (N,) ids; context: T."""

    def __init__(self, tokens: np.ndarray, context: int, seed: int):
        self.count = (len(tokens) - 1) // context
        if self.count < 1:
            raise InputError(
                f"the training split holds {len(tokens):,} tokens, fewer than one window of "
                f"{context + 1:,}; add text"
            )
        self.context, self.tokens = context, tokens
        self._order = lru_cache(maxsize=1)(partial(epoch_order, self.count, seed))

    def window_ids(self, first: int, count: int) -> np.ndarray:
        """Return the ids of the windows at positions first .. first + count - 1, (count,) int64."""
        places = (divmod(position, self.count) for position in range(first, first + count))
        return np.array([self._order(epoch)[place] for epoch, place in places], np.int64)

    def batch(self, ids: np.ndarray, tokens: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets, (rows, T) int64 each, of the windows `ids`.

        Only the first `tokens` targets count. Later targets and rows without a window are IGNORED,
        so a partial update has the shape of a full update.
        """
        context = self.context
        inputs = np.zeros((rows, context), np.int64)
        targets = np.full((rows, context), IGNORED, np.int64)
        for row, window in enumerate(ids):
            start = int(window) * context
            chunk = self.tokens[start : start + context + 1].astype(np.int64)
            inputs[row], targets[row] = chunk[:-1], chunk[1:]
        targets.reshape(-1)[tokens:] = IGNORED
        return inputs, targets


def order_hash(before: str, ids: np.ndarray, tokens: int) -> str:
    """Return the SHA-256 of all windows read so far: equal for two runs that read the same data.

    before: the hash before this update; the first hash covers the token file and the context.
    ids: the update's windows, (n,) int64. tokens: how many tokens the update predicted.
    """
    windows = ids.astype("<i8").tobytes() + tokens.to_bytes(8, "little")
    return hashlib.sha256(bytes.fromhex(before) + windows).hexdigest()


def validation_batches(
    tokens: np.ndarray, context: int, rows: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield inputs and targets, (rows, T) int64, that predict every token but the first once.

    Full windows come first, `rows` at a time, then the rest of the tokens as one shorter window.
    """
    full = (len(tokens) - 1) // context
    spans = [(n * context, min(rows, full - n), context) for n in range(0, full, rows)]
    if tail := (len(tokens) - 1) % context:
        spans.append((full * context, 1, tail))
    for start, count, length in spans:
        chunk = np.asarray(tokens[start : start + count * length + 1]).astype(np.int64)
        yield chunk[:-1].reshape(count, length), chunk[1:].reshape(count, length)


def first_windows(tokens: np.ndarray, length: int, count: int, prefix: int) -> np.ndarray:
    """Return the first `prefix` tokens of a split's first `count` full windows, (count, prefix).

    They are int64. Raises InputError if the split has fewer windows.
    """
    full = (len(tokens) - 1) // length
    if full < count:
        raise InputError(
            f"the validation split holds {full} windows of {length} tokens, but the "
            f"diagnostics read {count}; add validation text"
        )
    return np.asarray(tokens[: count * length]).reshape(count, length)[:, :prefix].astype(np.int64)
