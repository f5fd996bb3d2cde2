"""Windows of a token file and the order in which a run reads them.

A window predicts T tokens; its last token is the next window's first. Epoch e of seed s visits all
windows in an order fixed by (s, e) alone, the same for both runs of a pair.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from relation.data.tokens import TokenFile
from relation.errors import InputError

IGNORED = -100  # the target that cross-entropy skips, PyTorch's convention
_WINDOWS_AT_A_TIME = 1024


def epoch_order(windows: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation of range(windows), int64, fixed by (seed, epoch).

    Sorting by a bit generator's raw words, whose stream NumPy guarantees, keeps it the same in
    every version; NumPy's `permutation` carries no such promise.
    """
    keys = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(windows)
    return np.argsort(keys, kind="stable")


@dataclass(frozen=True)
class UpdatePlan:
    """What one update reads: its first position in the run's window sequence, and its tokens."""

    index: int
    first: int
    windows: int
    tokens: int


def plan_updates(
    budget: int, tokens_per_update: int, context: int, last_update: str
) -> list[UpdatePlan]:
    """Split a budget of predicted tokens into updates; the last may be partial.

    "partial" trains the rest of the budget on its own windows, the last one truncated; "drop"
    leaves it out. Raises InputError where the budget holds no update.
    """
    per_update = tokens_per_update // context
    full, rest = divmod(budget, tokens_per_update)
    plans = [UpdatePlan(i, i * per_update, per_update, tokens_per_update) for i in range(full)]
    if rest and last_update == "partial":
        plans.append(UpdatePlan(full, full * per_update, -(-rest // context), rest))
    if not plans:
        raise InputError(f"a budget of {budget} tokens holds no update of {tokens_per_update}")
    return plans


class TrainingWindows:
    """The windows of a training split in the order of one seed.

    tokens: (N,) ids; context: T. Raises InputError where the split is smaller than one window.
    """

    def __init__(self, tokens: np.ndarray | TokenFile, context: int, seed: int):
        self.count = (len(tokens) - 1) // context
        if self.count < 1:
            raise InputError(
                f"the training split holds {len(tokens):,} tokens, fewer than one window of "
                f"{context + 1:,}; give more text"
            )
        self.context = context
        self._tokens, self._seed = tokens, seed
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def window_ids(self, first: int, count: int) -> np.ndarray:
        """Ids (count,) int64 of the windows at positions first .. first + count - 1."""
        ids = np.empty(count, np.int64)
        for i, position in enumerate(range(first, first + count)):
            epoch, place = divmod(position, self.count)
            if epoch != self._epoch:
                self._epoch, self._order = epoch, epoch_order(self.count, self._seed, epoch)
            ids[i] = self._order[place]
        return ids

    def count_of(self, token: int) -> np.ndarray:
        """How often every window's inputs hold a token, (windows,) int64; reads the whole split."""
        found = np.empty(self.count, np.int64)
        for first in range(0, self.count, _WINDOWS_AT_A_TIME):
            last = min(first + _WINDOWS_AT_A_TIME, self.count)
            inputs = self._tokens[first * self.context : last * self.context]
            found[first:last] = (inputs.reshape(-1, self.context) == token).sum(1)
        return found

    def batch(self, ids: np.ndarray, tokens: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, each (rows, T) int64, for windows `ids`.

        Only the first `tokens` targets count: those after them, and rows without a window, are
        IGNORED, so that a partial update keeps the shape of a full one.
        """
        context = self.context
        inputs = np.zeros((rows, context), np.int64)
        targets = np.full((rows, context), IGNORED, np.int64)
        for row, window in enumerate(ids):
            start = int(window) * context
            chunk = self._tokens[start : start + context + 1].astype(np.int64)
            inputs[row], targets[row] = chunk[:-1], chunk[1:]
        targets.reshape(-1)[tokens:] = IGNORED
        return inputs, targets


class OrderHash:
    """A running SHA-256 of the windows consumed: equal for two runs that read the same data."""

    def __init__(self, token_file_sha256: str, context: int, state: str | None = None):
        start = hashlib.sha256(f"{token_file_sha256}/{context}".encode()).hexdigest()
        self.value = state or start

    def update(self, ids: np.ndarray, tokens: int) -> None:
        """Add one update's windows, (n,) int64, and how many tokens of them were predicted."""
        digest = hashlib.sha256(bytes.fromhex(self.value))
        digest.update(ids.astype("<i8").tobytes())
        digest.update(tokens.to_bytes(8, "little"))
        self.value = digest.hexdigest()


def validation_windows(tokens: np.ndarray | TokenFile, context: int):
    """Yield (inputs, targets) that predict every token after the first once, in order.

    Each is (n,) int64 with n = T, but for the ragged tail.
    """
    for start in range(0, len(tokens) - 1, context):
        chunk = np.asarray(tokens[start : start + context + 1]).astype(np.int64)
        yield chunk[:-1], chunk[1:]
