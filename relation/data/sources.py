"""Where documents come from: generated stories, local files, or the Hugging Face hub.

A source offers, for a split, one or more streams of documents. A stream yields texts, tells a
cursor that JSON can hold, and can be started again at a cursor, so that preparation can resume.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from relation.errors import InputError
from relation.files import sha256_of

END_OF_TEXT = "<|endoftext|>"
SPLITS = ("train", "validation")
_SUFFIXES = (".txt", ".jsonl", ".parquet")
_ROWS_AT_A_TIME = 256


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


def _stories(source: dict, split: str) -> list[Stream]:
    from relation.data.stories import story

    # The splits never share a story: each has a seed of its own.
    seed = 2 * source["seed"] + SPLITS.index(split)
    count = source[f"{split}_documents"]
    return [CountedStream(lambda start: (story(seed, i) for i in range(start, count)))]


def text_files(path: str | None) -> dict[str, list[Path]]:
    """The files of a `files` source by split, in name order.

    Files named validation* are the validation split. Raises InputError where there are no texts.
    """
    if path is None:
        raise InputError(
            "this campaign reads local texts; say where they are: --config corpus=FILE_OR_FOLDER"
        )
    root = Path(path)
    if not root.exists():
        raise InputError(f"corpus {root} does not exist; give a file or folder of texts")
    found = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
    texts = [p for p in found if p.suffix in _SUFFIXES]
    if not texts:
        raise InputError(f"corpus {root} holds no {', '.join(_SUFFIXES)} file")
    validation = [p for p in texts if p.stem.startswith("validation")]
    train = [p for p in texts if p not in validation]
    if not train:
        raise InputError(f"corpus {root} holds only validation files; add files to train on")
    return {"train": train, "validation": validation}


@cache
def corpus_fingerprint(path: str | None) -> str | None:
    """SHA-256 over names and contents of a local corpus; None where none is given or there."""
    if path is None or not Path(path).exists():
        return None
    digest = hashlib.sha256()
    for split, files in text_files(path).items():
        for file in files:
            digest.update(f"{split}/{file.name}/{sha256_of(file)};".encode())
    return digest.hexdigest()


def _read_text(path: Path) -> Iterator[str]:
    """Documents of a .txt file: the whole, or what lies between lines of end-of-text."""
    lines: list[str] = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip() == END_OF_TEXT:
                yield "".join(lines)
                lines = []
            else:
                lines.append(line)
    yield "".join(lines)


def _read_jsonl(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
            except (json.JSONDecodeError, KeyError, TypeError):
                text = None
            if not isinstance(text, str):
                raise InputError(f'{path} line {number} is no JSON object with a string "text"')
            yield text


def _read_parquet(path: Path) -> Iterator[str]:
    try:
        file = pq.ParquetFile(path)
        if "text" not in file.schema_arrow.names:
            names = ", ".join(file.schema_arrow.names)
            raise InputError(f"{path} has no column `text`, only {names}")
        kind = file.schema_arrow.field("text").type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InputError(f"{path} has a column `text` of {kind}; it must hold strings")
        for batch in file.iter_batches(_ROWS_AT_A_TIME, columns=["text"]):
            yield from (text for text in batch.column(0).to_pylist() if text is not None)
    except (pa.ArrowInvalid, OSError) as error:
        detail = str(error).splitlines()[0]
        raise InputError(f"{path} is not readable Parquet ({detail}); replace it") from None


def _read_file(path: Path) -> Iterator[str]:
    readers = {".txt": _read_text, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    try:
        yield from readers[path.suffix](path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}; convert it") from None


def _files(source: dict, split: str, path: str | None) -> list[Stream]:
    files = text_files(path)
    by_hash = not files["validation"]
    chosen = files["train"] if by_hash else files[split]

    def documents(start: int) -> Iterator[str]:
        texts = (text for file in chosen for text in _read_file(file))
        if by_hash:
            texts = _split_by_hash(texts, split, source["validation_modulus"])
        return islice(texts, start, None)

    return [CountedStream(documents)]


class HubStream:
    """A data set of the Hugging Face hub, or of a local folder, streamed by `datasets`."""

    def __init__(self, stream: dict, split: str, modulus: int | None):
        import datasets

        self._column = stream.get("column", "text")
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
        for row in self._data:
            text = row.get(self._column)
            if not isinstance(text, str):
                raise InputError(f"a row of the data set has no string column {self._column!r}")
            if self._modulus is None or (
                is_held_out(text, self._modulus) == (self._split == "validation")
            ):
                yield text

    def cursor(self) -> Any:
        return self._data.state_dict()

    def seek(self, cursor: Any) -> None:
        self._data.load_state_dict(cursor)


def open_streams(source: dict, split: str, path: str | None) -> list[Stream]:
    """The streams of a split ("train" or "validation"), to be mixed in equal shares of tokens.

    source: the `source` mapping of a corpus in config.yaml; path: the local corpus, for `files`.
    Raises InputError where the source cannot be read.
    """
    if source["kind"] == "stories":
        return _stories(source, split)
    if source["kind"] == "files":
        return _files(source, split, path)
    return [HubStream(s, split, source["validation_modulus"]) for s in source["streams"]]
