"""Token files: little-endian unsigned 16-bit ids, one file a split."""

from pathlib import Path

import numpy as np

from relation.errors import InputError
from relation.files import sha256_of

TOKEN_TYPE = np.dtype("<u2")


def token_file(folder: Path, split: str) -> Path:
    """Where a split's tokens lie in a prepared folder."""
    return folder / f"{split}.bin"


def open_tokens(path: Path) -> np.ndarray:
    """The token ids of a file, (N,) unsigned 16-bit, memory-mapped."""
    if not path.exists() or path.stat().st_size == 0:
        raise InputError(f"{path} is missing or empty; run snakemake to make it")
    if path.stat().st_size % TOKEN_TYPE.itemsize:
        raise InputError(f"{path} ends inside a token; delete it and run snakemake again")
    return np.memmap(path, TOKEN_TYPE, mode="r")


def open_prepared(folder: Path, split: str, sha256: str) -> np.ndarray:
    """`open_tokens` of a prepared folder's split, checked against its record's SHA-256.

    A run's order hash vouches for this very file: one that was cut or changed is refused.
    """
    path = token_file(folder, split)
    tokens = open_tokens(path)
    if sha256_of(path) != sha256:
        raise InputError(f"{path} is not the file that data.parquet records; prepare it again")
    return tokens
