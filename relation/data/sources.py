"""Where documents come from: local files or the Hugging Face hub.

A source offers, for a split, one or more streams of documents. A stream yields texts, tells a
cursor that JSON can hold, and can be started again at a cursor, so that preparation can resume.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from relation.data.pieces import shuffled_pieces
from relation.data.splits import END_OF_TEXT
from relation.data.texts import SUFFIXES, read_texts, reader_hash, unreadable
from relation.errors import InputError, RunError
from relation.registry import Registry
from relation.store.files import recall, remember, sha256_of

_CACHE = "corpora"  # its file in the user's cache folder


class Stream(Protocol):
    """Documents in a fixed order that can be taken up again."""

    def __iter__(self) -> Iterator[str]: ...
    def cursor(self) -> Any: ...
    def seek(self, cursor: Any) -> None: ...


class CountedStream:
    """A stream whose cursor is the number of documents read; `documents(n)` starts after n."""

    def __init__(self, documents: Callable[[int], Iterator[str]]):
        self._documents, self._read = documents, 0

    def __iter__(self) -> Iterator[str]:
        for text in self._documents(self._read):
            self._read += 1
            yield text

    def cursor(self) -> int:
        return self._read

    def seek(self, cursor: int) -> None:
        self._read = cursor


def is_held_out(text: str, modulus: int) -> bool:
    """Whether a document belongs to validation: its text's SHA-256 is 0 modulo `modulus`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big") % modulus == 0


def _split_by_hash(texts: Iterator[str], split: str, modulus: int) -> Iterator[str]:
    return (text for text in texts if is_held_out(text, modulus) == (split == "validation"))


def text_files(path: str | None) -> dict[str, list[Path]]:
    """The files of a `files` source by split, in name order.

    Files named validation* are the validation split. Raises InputError where there are no texts.
    """
    if path is None:
        raise InputError(
            "this campaign reads local texts; give --config corpus=books for the published corpus, "
            "or corpus=FILE_OR_FOLDER"
        )
    root = Path(path)
    if not root.exists():
        raise InputError(f"corpus {root} does not exist; give a file or folder of texts")
    found = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
    texts = [p for p in found if p.suffix in SUFFIXES]
    if not texts:
        raise InputError(f"corpus {root} holds no {', '.join(SUFFIXES)} file")
    validation = [p for p in texts if p.stem.startswith("validation")]
    train = [p for p in texts if p not in validation]
    if not train:
        raise InputError(f"corpus {root} holds only validation files; add files to train on")
    return {"train": train, "validation": validation}


@cache
def corpus_fingerprint(path: str | None) -> str | None:
    """SHA-256, hexadecimal, of a local corpus's texts; None where `path` is None or missing.

    It covers every document in order and which files are validation, and nothing else: the same
    texts in another format, under other names in the same order, or in other shards are the same
    corpus. Every process hashes the files' bytes, so it notices any changed byte; the user's cache
    maps that hash to the fingerprint, so the texts are parsed once. Raises InputError where they
    cannot be read or are empty.
    """
    if path is None or not Path(path).exists():
        return None
    files = text_files(path)
    key = _hash_of_bytes(files)
    found = recall(_CACHE, key)
    # A damaged cache may hold anything.
    if isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found):
        return found
    texts = chain.from_iterable(map(read_texts, files["train"]))
    if not any(text.replace(END_OF_TEXT, "").strip() for text in texts):
        raise InputError(f"corpus {path} is empty: no file to train on holds a word; give texts")
    fingerprint = _hash_of_texts(files)
    if _hash_of_bytes(text_files(path)) != key:
        raise InputError(f"corpus {path} changed while it was read; wait until it is whole")
    remember(_CACHE, key, fingerprint)
    return fingerprint


def _hash_of_bytes(files: Mapping[str, Sequence[Path]]) -> str:
    """SHA-256 of the files as they lie on disk, and of the code that makes documents of them."""
    digest = hashlib.sha256(reader_hash().encode())
    for split, paths in files.items():
        for path in paths:
            try:
                digest.update(f"{split}{path.suffix}:{sha256_of(path)};".encode())
            except OSError as error:
                raise unreadable(path, error) from None
    return digest.hexdigest()


def _hash_of_texts(files: Mapping[str, Sequence[Path]]) -> str:
    """SHA-256 of the documents by split, each behind its length: 8 bytes, little-endian."""
    whole = hashlib.sha256()
    for split, paths in files.items():
        digest = hashlib.sha256()
        for path in paths:
            for text in read_texts(path):
                encoded = text.encode()
                digest.update(len(encoded).to_bytes(8, "little"))
                digest.update(encoded)
        if paths:
            whole.update(f"{split}:{digest.hexdigest()};".encode())
    return whole.hexdigest()


def _files(source: dict, split: str, path: str | None) -> list[Stream]:
    files = text_files(path)
    by_hash = not files["validation"]
    chosen = files["train"] if by_hash else files[split]

    def documents(start: int) -> Iterator[str]:
        texts = (text for file in chosen for text in read_texts(file))
        if by_hash:
            texts = _split_by_hash(texts, split, source["validation_modulus"])
        # After the split, so that all pieces of a document are in one split.
        if "document_characters" in source:
            texts = shuffled_pieces(texts, source["document_characters"])
        return islice(texts, start, None)

    return [CountedStream(documents)]


class HubStream:
    """A data set of the Hugging Face hub, or of a local folder, streamed by `datasets`."""

    def __init__(self, stream: dict, split: str, modulus: int | None):
        import datasets

        self._path, self._column = stream["path"], stream.get("column", "text")
        self._split, self._modulus = split, modulus
        source_split = split if modulus is None else "train"
        try:
            # `datasets` runs no code of the repository: version 4 removed loading scripts.
            self._data = datasets.load_dataset(
                stream["path"],
                stream.get("name"),
                split=source_split,
                revision=stream.get("revision"),
                streaming=True,
            )
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise InputError(
                f"data set {stream['path']} ({stream.get('name') or 'default'}, {source_split}) "
                f"cannot be loaded: {str(error).splitlines()[0]}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        for row in self._rows():
            text = row.get(self._column)
            if not isinstance(text, str):
                raise InputError(f"a row of the data set has no string column {self._column!r}")
            if self._modulus is None or (
                is_held_out(text, self._modulus) == (self._split == "validation")
            ):
                yield text

    def _rows(self) -> Iterator[dict]:
        """The data set's rows. Raises RunError where the hub or the way to it fails."""
        rows = iter(self._data)
        while True:
            try:
                row = next(rows, None)
            except Exception as error:  # what the transports of `datasets` raise has no base
                first = (str(error).splitlines() or [""])[0]
                raise RunError(
                    f"the download of {self._path} broke off ({type(error).__name__}: {first}); "
                    "run the same command again to go on where it was"
                ) from error
            if row is None:
                return
            yield row

    def cursor(self) -> Any:
        return self._data.state_dict()

    def seek(self, cursor: Any) -> None:
        self._data.load_state_dict(cursor)


def _hub(source: dict, split: str, path: str | None) -> list[Stream]:
    return [HubStream(s, split, source["validation_modulus"]) for s in source["streams"]]


class Source(NamedTuple):
    """A kind of corpus, and what opens it: its arguments are those of `open_streams`."""

    key: str
    streams: Callable[[dict, str, str | None], list[Stream]]


SOURCES: Registry[str, Source] = Registry(
    Source("files", _files),
    Source("huggingface", _hub),
)


def open_streams(source: dict, split: str, path: str | None) -> list[Stream]:
    """The streams of a split ("train" or "validation"), to be mixed in equal shares of tokens.

    source: the `source` mapping of a corpus in config.yaml; path: the local corpus, for `files`.
    Raises InputError where the source cannot be read.
    """
    return SOURCES[source["kind"]].streams(source, split, path)
