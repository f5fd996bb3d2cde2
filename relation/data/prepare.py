"""Preparing a corpus: train the tokenizer, then write both splits as token files.

Outputs in one folder: tokenizer.json, train.bin, validation.bin (little-endian unsigned 16-bit
token ids, documents joined by end-of-text) and data.parquet. Partial work lies outside the outputs,
so that a killed preparation goes on where it was.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from relation.data.encode import SplitEncoder
from relation.data.sources import corpus_fingerprint, open_streams
from relation.data.splits import SPLITS
from relation.data.tokenizer import load_tokenizer, train_tokenizer
from relation.data.tokens import TOKEN_TYPE, token_file
from relation.errors import InputError
from relation.spec import DataSpec
from relation.store.files import make_folder, move, sha256_of, write_text
from relation.store.layouts import DATA
from relation.store.locks import held
from relation.store.parquet import write_parquet
from relation.store.stamp import UNKNOWN, Stamp, origin

_TOKENS_AT_A_TIME = 1 << 22


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


def _check_size(spec: DataSpec, split: str, tokens: int) -> None:
    """Refuse a split too small for what will read it, before anything is trained on it."""
    if tokens <= spec.largest_context:
        raise InputError(
            f"{spec.name}: the {split} split holds {tokens:,} tokens, fewer than one window of "
            f"{spec.largest_context + 1:,}; give more text"
        )
    if split == "validation" and tokens < spec.diagnosed_tokens:
        raise InputError(
            f"{spec.name}: the validation split holds {tokens:,} tokens and the diagnostics read "
            f"{spec.diagnosed_tokens:,}; give more validation text"
        )


def check_few_texts(spec: DataSpec) -> None:
    """Raise InputError, as `prepare` would, for texts that cannot be prepared; a MB takes a second.

    For a corpus that is to take the place of another: by the time that its job refuses it,
    Snakemake has deleted what was prepared before.
    """
    tokenizer = train_tokenizer(_sample(spec), spec.vocabulary, spec.name)
    for split in SPLITS:
        texts = (text for stream in open_streams(spec.source, split, spec.path) for text in stream)
        found = tokenizer.encode_batch_fast(list(texts))
        _check_size(spec, split, sum(len(encoding) + 1 for encoding in found))


def unigram_entropy(tokens: np.ndarray) -> float:
    """Entropy in nats of the predicted tokens' frequencies (all but the first), (N,) ids."""
    counts = np.zeros(np.iinfo(TOKEN_TYPE).max + 1, np.int64)
    # By slices: bincount widens its input to 8 bytes a token.
    for start in range(1, len(tokens), _TOKENS_AT_A_TIME):
        counts += np.bincount(tokens[start : start + _TOKENS_AT_A_TIME], minlength=len(counts))
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def prepare(
    spec: DataSpec, folder: Path, work: Path, campaign: str, stamp: Stamp = UNKNOWN
) -> None:
    """Prepare a corpus into `folder`, keeping partial work in `work` until it is complete.

    Partial work of other code, by the stamp's hash, is done again.
    Raises InputError for a missing or empty corpus, one smaller than a window, or one that cannot
    fill the vocabulary; RunError where another process prepares it or a download breaks off.
    """
    with held(work.with_name(f"{work.name}.lock"), spec.name):
        _prepare(spec, folder, work, campaign, stamp)


def _prepare(spec: DataSpec, folder: Path, work: Path, campaign: str, stamp: Stamp) -> None:
    fingerprint = corpus_fingerprint(spec.path)
    key = {"config": spec.config_hash, "corpus": fingerprint, "code": stamp.code_hash}
    key_file = work / "key.json"
    # A key that cannot be read is another's.
    if not key_file.exists() or key_file.read_bytes() != json.dumps(key).encode():
        shutil.rmtree(work, ignore_errors=True)
        write_text(key_file, json.dumps(key))

    tokenizer_path = work / "tokenizer.json"
    if not tokenizer_path.exists():
        print(f"{spec.name}: training a tokenizer of {spec.vocabulary} entries", file=sys.stderr)
        tokenizer = train_tokenizer(_sample(spec), spec.vocabulary, spec.name)
        write_text(tokenizer_path, tokenizer.to_str())
    tokenizer = load_tokenizer(tokenizer_path)

    rows = []
    for split in SPLITS:
        encoder = SplitEncoder(spec, split, work, tokenizer)
        counts = encoder.encode()
        _check_size(spec, split, counts["tokens"])
        tokens = np.memmap(encoder.path, TOKEN_TYPE, mode="r")
        rows.append(
            {
                "split": split,
                "tokens": counts["tokens"],
                "documents": counts["documents"],
                "characters": counts["characters"],
                "unigram_entropy": unigram_entropy(tokens),
                "sha256": sha256_of(encoder.path),
            }
        )
    make_folder(folder)
    for name in ("tokenizer.json", *(token_file(work, s).name for s in SPLITS)):
        move(work / name, folder / name)
    details = {
        "title": spec.title,
        "vocabulary": spec.vocabulary,
        "source": spec.source,
        "corpus_sha256": fingerprint,
        "tokenizer_sha256": sha256_of(folder / "tokenizer.json"),
    }
    written = origin(campaign, spec.config_hash, "data", "cpu", stamp, **details)
    write_parquet(folder / "data.parquet", DATA, rows, written)
    shutil.rmtree(work)
