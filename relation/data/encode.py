"""Encoding one split to a token file, resumable after a kill at any moment."""

import json
import os
import sys
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from relation.data.sources import open_streams
from relation.data.splits import END_OF_TEXT
from relation.data.tokens import TOKEN_TYPE, token_file
from relation.machine.progress import Progress
from relation.spec import DataSpec
from relation.store.files import write_text

_DOCUMENTS_AT_A_TIME = 256
_CHARACTERS_AT_A_TIME = 1 << 24
_BATCHES_BETWEEN_JOURNALS = 16


def _batch(documents: Iterator[str]) -> tuple[list[str], bool]:
    """The next documents that memory takes at once, and whether there are no more."""
    texts: list[str] = []
    characters = 0
    while len(texts) < _DOCUMENTS_AT_A_TIME and characters < _CHARACTERS_AT_A_TIME:
        text = next(documents, None)
        if text is None:
            return texts, True
        texts.append(text)
        characters += len(text)
    return texts, False


class SplitEncoder:
    """A partial token file in `work`, and a journal that says how much of it counts.

    The journal holds the counts and each stream's cursor; it reaches the disk after the tokens it
    vouches for, so what lies beyond it can be cut off and written again.
    """

    def __init__(self, spec: DataSpec, split: str, work: Path, tokenizer: Tokenizer):
        self.spec, self.split, self.tokenizer = spec, split, tokenizer
        self.path = token_file(work, split)
        self.limit = spec.train_tokens if split == "train" else spec.validation_tokens
        self.streams = open_streams(spec.source, split, spec.path)
        self._journal = work / f"{split}.json"
        self.counts = {
            "tokens": 0,
            "documents": 0,
            "characters": 0,
            "stream_tokens": [0] * len(self.streams),
            "exhausted": [False] * len(self.streams),
        }
        self._resume()

    def _resume(self) -> None:
        """Take up a killed encoding, or start anew where its file is not all the journal says."""
        state = self._read_journal()
        if state is not None:
            size = state["tokens"] * TOKEN_TYPE.itemsize
            if self.path.exists() and self.path.stat().st_size >= size:
                os.truncate(self.path, size)
                for stream, cursor in zip(self.streams, state.pop("cursors"), strict=True):
                    stream.seek(cursor)
                self.counts = state
                print(
                    f"{self.spec.name}: {self.split} goes on at {state['tokens']:,} tokens",
                    file=sys.stderr,
                )
                return
        self._journal.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def _read_journal(self) -> dict | None:
        """The journal, or None where there is none or it is damaged."""
        if not self._journal.exists():
            return None
        try:
            state = json.loads(self._journal.read_bytes())
            whole = state.keys() == {*self.counts, "cursors"} and all(
                isinstance(state[name], type(empty)) for name, empty in self.counts.items()
            )
            whole &= len(state["cursors"]) == len(self.streams)
        except (ValueError, AttributeError, TypeError, RecursionError):
            whole = False
        if not whole:
            print(
                f"warning: {self._journal} is damaged; {self.split} is encoded from its start",
                file=sys.stderr,
            )
        return state if whole else None

    def encode(self) -> dict:
        """Encode until the streams end or the limit is reached.

        Returns the counts of tokens, documents and characters that are in the file; a document
        that the limit cuts counts whole.
        """
        counts, total = self.counts, self.limit or 0
        iterators = [iter(stream) for stream in self.streams]
        label = f"{self.spec.name} {self.split}"
        with (
            self.path.open("ab") as file,
            Progress(label, max(total, 1), "tokens", min(counts["tokens"], total)) as progress,
        ):
            for batch in count(1):
                waiting = [i for i, done in enumerate(counts["exhausted"]) if not done]
                room = self.limit - counts["tokens"] if self.limit else None
                if not waiting or room == 0:
                    break
                # The stream that is behind goes next, so that shares are equal by tokens.
                turn = min(waiting, key=lambda i: counts["stream_tokens"][i])
                texts, counts["exhausted"][turn] = _batch(iterators[turn])
                written = self._write(file, texts, room)
                counts["stream_tokens"][turn] += written
                if self.limit:
                    progress.advance(written)
                if batch % _BATCHES_BETWEEN_JOURNALS == 0:
                    file.flush()
                    os.fsync(file.fileno())
                    cursors = [stream.cursor() for stream in self.streams]
                    write_text(self._journal, json.dumps({**counts, "cursors": cursors}))
        return counts

    def _write(self, file, texts: list[str], room: int | None) -> int:
        """Append documents, at most `room` tokens, and count them; returns the tokens written."""
        # A document that spells the end-of-text token would smuggle one in: it ends there too.
        parts = [part for text in texts for part in text.split(END_OF_TEXT) if part.strip()]
        # Fast: without each token's place in the text.
        encoded = self.tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        end = self.tokenizer.token_to_id(END_OF_TEXT)
        starts = np.cumsum([0, *(len(e.ids) + 1 for e in encoded)])[:-1]
        kept = len(parts) if room is None else int(np.searchsorted(starts, room))
        ids = np.fromiter(
            chain.from_iterable(chain(e.ids, (end,)) for e in encoded[:kept]), dtype=TOKEN_TYPE
        )[:room]
        file.write(ids.tobytes())
        self.counts["tokens"] += len(ids)
        self.counts["documents"] += kept
        self.counts["characters"] += sum(len(part) for part in parts[:kept])
        return len(ids)
