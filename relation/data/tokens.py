"""Token files: little-endian unsigned 16-bit ids, one file a split."""

import os
import weakref
from pathlib import Path

import numpy as np

from relation.data.splits import SPLITS
from relation.errors import InputError
from relation.store.files import sha256_of
from relation.store.layouts import DATA
from relation.store.parquet import read_parquet

TOKEN_TYPE = np.dtype("<u2")


def token_file(folder: Path, split: str) -> Path:
    """Where a split's tokens lie in a prepared folder."""
    return folder / f"{split}.bin"


def data_rows(data: Path) -> dict[str, dict]:
    """The record of a prepared corpus by split. Raises InputError where one is missing."""
    path = data / "data.parquet"
    rows = {row["split"]: row for row in read_parquet(path, DATA).to_pylist()}
    if rows.keys() != set(SPLITS):
        raise InputError(f"{path} lacks a split; delete it and run snakemake again")
    return rows


def _token_count(path: Path) -> int:
    if not path.exists() or path.stat().st_size == 0:
        raise InputError(f"{path} is missing or empty; run snakemake to make it")
    if path.stat().st_size % TOKEN_TYPE.itemsize:
        raise InputError(f"{path} ends inside a token; delete it and run snakemake again")
    return path.stat().st_size // TOKEN_TYPE.itemsize


def open_tokens(path: Path) -> np.ndarray:
    """The token ids of a file, (N,) unsigned 16-bit, memory-mapped.

    Raises InputError where it is missing, or not the file that data.parquet beside it records.
    """
    _token_count(path)
    record = path.with_name("data.parquet")
    if record.exists():
        rows = read_parquet(record, DATA).to_pylist()
        _check_content(path, next((r["sha256"] for r in rows if r["split"] == path.stem), None))
    return np.memmap(path, TOKEN_TYPE, mode="r")


def _check_content(path: Path, sha256: str | None) -> None:
    if sha256_of(path) != sha256:
        raise InputError(f"{path} is not the file that data.parquet records; prepare it again")


class TokenFile:
    """The token ids of a file, read a slice at a time: `len` and slices of step 1, as an array has.

    A run reads through it for hours. A file that is deleted meanwhile stays readable, as it is
    held open; one that is cut or whose disk goes away raises InputError, where a memory map would
    end the process with SIGBUS.
    """

    def __init__(self, path: Path):
        self._count = _token_count(path)
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror}); change its permissions"
            ) from None
        weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self._count)
        size = TOKEN_TYPE.itemsize
        wanted = max(stop - start, 0) * size
        try:
            content = os.pread(self._descriptor, wanted, start * size)
        except OSError as error:
            raise InputError(
                f"{self._path} can no longer be read ({error.strerror}); bring it back and run "
                "the same command again"
            ) from None
        if len(content) < wanted:
            raise InputError(
                f"{self._path} lost its end while it was being read; prepare it again and run the "
                "same command"
            )
        return np.frombuffer(content, TOKEN_TYPE)


def open_prepared(folder: Path, split: str, sha256: str) -> TokenFile:
    """A prepared folder's split, checked against its record's SHA-256.

    A run's order hash vouches for this very file: one that was cut or changed is refused.
    """
    path = token_file(folder, split)
    tokens = TokenFile(path)
    _check_content(path, sha256)
    return tokens
