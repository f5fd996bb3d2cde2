"""Preparing a corpus: train the tokenizer, then write both splits as token files.

Outputs in one folder: tokenizer.json, train.bin, validation.bin (little-endian unsigned 16-bit
token ids, documents joined by end-of-text) and data.parquet. Encoding goes on where it was killed:
a journal outside the outputs says how much of the partial file counts.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path

import numpy as np

from relation.code import code_hash
from relation.data.sources import END_OF_TEXT, SPLITS, open_streams
from relation.data.tokenizer import load_tokenizer, train_tokenizer
from relation.data.tokens import TOKEN_TYPE, token_file
from relation.errors import InputError
from relation.files import sha256_of, write_text
from relation.origin import origin
from relation.parquet import write_parquet
from relation.progress import Progress
from relation.schemas import DATA
from relation.spec import DataSpec

_DOCUMENTS_AT_A_TIME = 256
_BATCHES_BETWEEN_JOURNALS = 16


def _sample(spec: DataSpec) -> Iterator[str]:
    """Training documents for the tokenizer, the streams in turn, up to the character limit."""
    streams = [iter(s) for s in open_streams(spec.source, "train", spec.path)]
    characters = 0
    while streams:
        for stream in list(streams):
            text = next(stream, None)
            if text is None:
                streams.remove(stream)
                continue
            yield text
            characters += len(text)
            if spec.tokenizer_characters and characters >= spec.tokenizer_characters:
                return


class _Split:
    """The encoding of one split: a partial token file and the journal that makes it resumable."""

    def __init__(self, spec: DataSpec, split: str, work: Path, tokenizer):
        self.spec, self.split, self.tokenizer = spec, split, tokenizer
        self.path = token_file(work, split)
        self.journal = work / f"{split}.json"
        self.limit = spec.train_tokens if split == "train" else spec.validation_tokens
        self.streams = open_streams(spec.source, split, spec.path)
        self.state = {
            "tokens": 0,
            "documents": 0,
            "characters": 0,
            "stream_tokens": [0] * len(self.streams),
            "exhausted": [False] * len(self.streams),
        }

    def resume(self) -> None:
        """Take up the journal of a killed preparation, cutting off what it does not vouch for."""
        if not self.journal.exists():
            self.path.unlink(missing_ok=True)
            return
        self.state = json.loads(self.journal.read_text(encoding="utf-8"))
        for stream, cursor in zip(self.streams, self.state.pop("cursors"), strict=True):
            stream.seek(cursor)
        with self.path.open("r+b") as file:
            file.truncate(self.state["tokens"] * TOKEN_TYPE.itemsize)
        print(
            f"{self.spec.name}: {self.split} goes on at {self.state['tokens']:,} tokens",
            file=sys.stderr,
        )

    def _save(self) -> None:
        state = {**self.state, "cursors": [s.cursor() for s in self.streams]}
        write_text(self.journal, json.dumps(state))

    def encode(self) -> dict:
        """Encode until the streams end or the limit is reached; returns the counts."""
        iterators = [iter(s) for s in self.streams]
        state, end = self.state, self.tokenizer.token_to_id(END_OF_TEXT)
        total = self.limit or 0
        with (
            self.path.open("ab") as file,
            Progress(
                f"{self.spec.name} {self.split}",
                max(total, 1),
                "tokens",
                min(state["tokens"], total),
            ) as progress,
        ):
            for batch in count():
                open_ones = [i for i, done in enumerate(state["exhausted"]) if not done]
                if not open_ones or (self.limit and state["tokens"] >= self.limit):
                    break
                # The stream that is behind goes next, so that shares are equal by tokens.
                turn = min(open_ones, key=lambda i: state["stream_tokens"][i])
                texts = list(islice(iterators[turn], _DOCUMENTS_AT_A_TIME))
                state["exhausted"][turn] = len(texts) < _DOCUMENTS_AT_A_TIME
                ids = self._ids(texts, end)
                if self.limit:
                    ids = ids[: self.limit - state["tokens"]]
                ids.tofile(file)
                state["tokens"] += len(ids)
                state["stream_tokens"][turn] += len(ids)
                state["documents"] += len(texts)
                state["characters"] += sum(map(len, texts))
                if self.limit:
                    progress.advance(len(ids))
                if batch % _BATCHES_BETWEEN_JOURNALS == _BATCHES_BETWEEN_JOURNALS - 1:
                    file.flush()
                    self._save()
        return state

    def _ids(self, texts: list[str], end: int) -> np.ndarray:
        # A document that spells the end-of-text token would smuggle one in: it ends there too.
        parts = [part for text in texts for part in text.split(END_OF_TEXT) if part.strip()]
        encoded = self.tokenizer.encode_batch(parts, add_special_tokens=False)
        return np.fromiter(
            chain.from_iterable(chain(e.ids, (end,)) for e in encoded), dtype=TOKEN_TYPE
        )


def unigram_entropy(tokens: np.ndarray) -> float:
    """Entropy in nats of the predicted tokens' frequencies (all but the first), (N,) ids."""
    counts = np.bincount(tokens[1:])
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def prepare(spec: DataSpec, folder: Path, work: Path, campaign: str) -> None:
    """Prepare a corpus into `folder`, keeping partial work in `work` until it is complete.

    Raises InputError for a missing or empty corpus, one smaller than a window, or one that cannot
    fill the vocabulary.
    """
    key = {"config_hash": spec.config_hash, "path": spec.path, "code": code_hash("data")}
    stamp = work / "key.json"
    if not stamp.exists() or json.loads(stamp.read_text(encoding="utf-8")) != key:
        shutil.rmtree(work, ignore_errors=True)
        write_text(stamp, json.dumps(key))

    tokenizer_path = work / "tokenizer.json"
    if not tokenizer_path.exists():
        print(f"{spec.name}: training a tokenizer of {spec.vocabulary} entries", file=sys.stderr)
        tokenizer = train_tokenizer(_sample(spec), spec.vocabulary, spec.name)
        write_text(tokenizer_path, tokenizer.to_str())
    tokenizer = load_tokenizer(tokenizer_path)

    rows = []
    for split in SPLITS:
        encoding = _Split(spec, split, work, tokenizer)
        encoding.resume()
        counts = encoding.encode()
        if counts["tokens"] <= spec.largest_context:
            raise InputError(
                f"{spec.name}: the {split} split holds {counts['tokens']:,} tokens, fewer than one "
                f"window of {spec.largest_context + 1:,}; give more text"
            )
        tokens = np.memmap(encoding.path, TOKEN_TYPE, mode="r")
        rows.append(
            {
                "split": split,
                "tokens": counts["tokens"],
                "documents": counts["documents"],
                "characters": counts["characters"],
                "unigram_entropy": unigram_entropy(tokens),
                "sha256": sha256_of(encoding.path),
            }
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", *(token_file(work, s).name for s in SPLITS)):
        (work / name).replace(folder / name)
    details = {"vocabulary": spec.vocabulary, "title": spec.title, "source": spec.source}
    written = origin(campaign, spec.config_hash, "data", "cpu", **details)
    write_parquet(folder / "data.parquet", DATA, rows, written)
    shutil.rmtree(work)
