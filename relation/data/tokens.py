"""Token files: little-endian unsigned 16-bit ids, one file a split."""

from pathlib import Path

import numpy as np

from relation.errors import InputError

TOKEN_TYPE = np.dtype("<u2")


def token_file(folder: Path, split: str) -> Path:
    """Where a split's tokens lie in a prepared folder."""
    return folder / f"{split}.bin"


def open_tokens(path: Path) -> np.ndarray:
    """The token ids of a file, (N,) unsigned 16-bit, memory-mapped."""
    if not path.exists() or path.stat().st_size == 0:
        raise InputError(f"{path} is missing or empty; run snakemake to make it")
    return np.memmap(path, TOKEN_TYPE, mode="r")
