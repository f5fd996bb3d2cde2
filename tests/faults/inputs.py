"""Bad inputs: corpora that nobody should trust."""

import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from sample import documents

from faults.registry import case
from faults.sandbox import DATA, Done, Sandbox

bad = partial(case, "input")
REFUSED = "refused; nothing is written"
_MEMORY = 6 << 30  # bytes a command may take; a bomb takes more


def bounded() -> None:
    """In a process: no more memory than a small machine has."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))


def _write_texts(folder: Path) -> None:
    """A corpus that nothing is wrong with."""
    folder.mkdir()
    (folder / "books.txt").write_text("\n<|endoftext|>\n".join(documents(60)), encoding="utf-8")


def _prepare(box: Sandbox, corpus: Path) -> Done:
    command = ("prepare", DATA, "--campaign", "texts", "--corpus", str(corpus))
    return box.run(*command, before=bounded)


def refused(box: Sandbox, done: Done, *said: str) -> tuple[str, str]:
    """Told in one line with status 2, and nothing but that line."""
    assert done.status == 2, done.output
    errors = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.output
    assert all(word in errors[0] for word in said), errors[0]
    assert len(errors[0]) < 500, errors[0]
    assert not (box.folder / "results/texts/data" / DATA / "data.parquet").exists()
    return errors[0].replace(str(box.folder), "FOLDER"), REFUSED


def _handled(box: Sandbox, extra: Callable[[Path], None], how: str) -> tuple[str, str]:
    """A corpus of books and something odd is prepared, and trains."""
    folder = box.folder / "corpus"
    _write_texts(folder)
    extra(folder)
    done = _prepare(box, folder)
    assert done.status == 0, done.output
    run = ("train", "10M/mha/42", "--campaign", "texts", "--corpus", str(folder))
    assert box.run(*run).status == 0
    return done.last.split("\r")[-1], how


@bad("A text of control characters and NULs", quick=True)
def control_characters(box: Sandbox) -> tuple[str, str]:
    text = "".join(map(chr, range(32))) * 50 + "\x7f\u202e\ufeff\u2028 \x1b[31mred"
    return _handled(
        box, lambda f: (f / "odd.txt").write_text(text, encoding="utf-8"), "tokenised as any text"
    )


@bad("Empty documents, and empty files of each kind", quick=True)
def empty_documents(box: Sandbox) -> tuple[str, str]:
    def extra(folder: Path) -> None:
        (folder / "empty.txt").touch()
        (folder / "empty.jsonl").touch()
        (folder / "blank.jsonl").write_text('{"text": ""}\n\n{"text": " "}\n', encoding="utf-8")
        pq.write_table(pa.table({"text": ["", None, " "]}), folder / "empty.parquet")
        (folder / "separators.txt").write_text("<|endoftext|>\n" * 99, encoding="utf-8")

    return _handled(box, extra, "left out; the rest is prepared")


@bad("A corpus folder with names of odd characters")
def odd_names(box: Sandbox) -> tuple[str, str]:
    def extra(folder: Path) -> None:
        (folder / "a\nb'\"$(touch x);猫.txt").write_text("A cat sat.", encoding="utf-8")

    return _handled(box, extra, "read as any file")


@bad("A line of 200 MB")
def line_of_200_mb(box: Sandbox) -> tuple[str, str]:
    path = box.folder / "long.txt"
    with path.open("wb") as file:
        for _ in range(200):
            file.write(b"word " * 200_000)
    return refused(box, _prepare(box, path), "line 1 is longer than")


@bad("A JSON line of 200 MB")
def json_line_of_200_mb(box: Sandbox) -> tuple[str, str]:
    path = box.folder / "long.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "')
        for _ in range(200):
            file.write(b"word " * 200_000)
        file.write(b'"}\n')
    return refused(box, _prepare(box, path), "line 1 is longer than")


@bad("One document of 18 MB in short lines")
def endless_document(box: Sandbox) -> tuple[str, str]:
    path = box.folder / "long.txt"
    path.write_bytes(b"A line of a book that never ends.\n" * 540_000)
    return refused(box, _prepare(box, path), "the document is longer than")


@bad("A Parquet bomb: 1 MB that unfolds to texts of 20 TB")
def parquet_bomb(box: Sandbox) -> tuple[str, str]:
    path = box.folder / "bomb.parquet"
    text = pa.array(["a" * (200 << 20)])
    indices = pa.array([0] * 100_000, pa.int32())
    table = pa.table({"text": pa.DictionaryArray.from_arrays(indices, text)})
    pq.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1 << 20
    return refused(box, _prepare(box, path), "a text longer than")


@bad("A Parquet file that says it holds 8 GiB in one row group")
def parquet_that_claims(box: Sandbox) -> tuple[str, str]:
    path = box.folder / "claims.parquet"
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())]), use_dictionary=False) as file:
        batch = pa.record_batch({"text": ["a" * (64 << 20)] * 16})
        table = pa.Table.from_batches([batch] * 5)
        file.write_table(table, row_group_size=80)
    return refused(box, _prepare(box, path), "in one row group")
