"""Reading local files of texts: .txt, .jsonl and .parquet, a document at a time."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from relation.data.splits import END_OF_TEXT
from relation.errors import InputError
from relation.store.files import sha256_of

_ROWS_AT_A_TIME = 256
_LONGEST_DOCUMENT = 1 << 24  # characters; encoding one takes some 50 bytes of memory for each
_LARGEST_COLUMN = 1 << 32  # bytes of a row group's texts, uncompressed


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


_READERS = {".txt": _read_text, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
SUFFIXES = tuple(_READERS)


def reader_hash() -> str:
    """SHA-256 of this module: of other code the same bytes may be other documents."""
    return sha256_of(Path(__file__))


def read_texts(path: Path) -> Iterator[str]:
    """The documents of one file in order, without empty ones.

    Memory holds one document, or 256 rows of Parquet and their row group. Raises InputError for a
    file that cannot be read or does not hold what its suffix says.
    """
    try:
        # A .txt that ends with end-of-text yields one more, empty document; it is no text.
        yield from filter(None, _READERS[path.suffix](path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}; convert it") from None
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> InputError:
    """The error to raise where the operating system refuses to read a file."""
    return InputError(f"{path} cannot be read ({error.strerror}); mend or remove it")
