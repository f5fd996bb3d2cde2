"""Where documents come from: generated stories, local files, or the Hugging Face hub.

A source offers, for a split, one or more streams of documents. A stream yields texts, tells a
cursor that JSON can hold, and can be started again at a cursor, so that preparation can resume.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from relation.errors import InputError, RunError
from relation.files import sha256_of

END_OF_TEXT = "<|endoftext|>"
SPLITS = ("train", "validation")
_SUFFIXES = (".txt", ".jsonl", ".parquet")
_ROWS_AT_A_TIME = 256
_LONGEST_DOCUMENT = 1 << 24  # characters; encoding one takes some 50 bytes of memory for each
_LARGEST_COLUMN = 1 << 32  # bytes of a row group's texts, uncompressed


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
    characters = 0
    for number, line in _lines(path):
        if line.strip() == END_OF_TEXT:
            yield "".join(lines)
            lines, characters = [], 0
            continue
        lines.append(line)
        characters += len(line)
        if characters > _LONGEST_DOCUMENT:
            raise InputError(
                f"{path} line {number}: the document is longer than {_LONGEST_DOCUMENT:,} "
                f"characters; put lines of {END_OF_TEXT} between documents"
            )
    yield "".join(lines)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """A text file's lines with their numbers. Raises InputError for one beyond all bounds."""
    with path.open(encoding="utf-8") as file:
        for number in count(1):
            # Not the file's own iterator, which would read a line of any size into memory.
            line = file.readline(_LONGEST_DOCUMENT + 1)
            if not line:
                return
            if len(line) > _LONGEST_DOCUMENT:
                raise InputError(
                    f"{path} line {number} is longer than {_LONGEST_DOCUMENT:,} characters; "
                    "break it"
                )
            yield number, line


def _read_jsonl(path: Path) -> Iterator[str]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError, RecursionError):
            text = None
        if not isinstance(text, str):
            raise InputError(f'{path} line {number} is no JSON object with a string "text"')
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(
                f"{path} line {number} has half of a surrogate pair, which is no character; mend "
                "its escapes"
            )
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
        _check_column(path, file)
        # As a dictionary, so that a text that is repeated lies in memory once.
        file = pq.ParquetFile(path, read_dictionary=["text"])
        for batch in file.iter_batches(_ROWS_AT_A_TIME, columns=["text"]):
            column = batch.column(0)
            longest = pc.max(pc.utf8_length(column.dictionary)).as_py()
            if longest is not None and longest > _LONGEST_DOCUMENT:
                raise InputError(
                    f"{path} has a text longer than {_LONGEST_DOCUMENT:,} characters; split it"
                )
            yield from (text.as_py() for text in column if text.is_valid)
    except (pa.ArrowException, OSError, MemoryError) as error:
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} is not readable Parquet ({detail}); replace it") from None


def _check_column(path: Path, file: pq.ParquetFile) -> None:
    """Refuse a column that a small file unfolds to more than memory takes."""
    metadata = file.metadata
    # Of the leaves: a column before it may have several.
    index = next(i for i in range(metadata.num_columns) if file.schema.column(i).path == "text")
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).column(index).total_uncompressed_size
        if size > _LARGEST_COLUMN:
            raise InputError(
                f"{path} holds {size / 2**30:.0f} GiB of text in one row group; write it with "
                "smaller row groups"
            )


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
