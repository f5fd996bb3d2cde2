"""Claiming a device: one process a GPU, whoever started it."""

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from relation.errors import InputError


def describe(device: torch.device) -> str:
    """The device's name as records carry it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({platform.machine()}, {threads} thread{'s' if threads > 1 else ''})"


def _lock_of(index: int) -> FileLock:
    # The identifier, not the index, so that CUDA_VISIBLE_DEVICES cannot make two jobs share one.
    uuid = torch.cuda.get_device_properties(index).uuid
    return FileLock(Path(tempfile.gettempdir()) / f"relation-gpu-{uuid}.lock", mode=0o666)


def _acquired(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


@contextmanager
def claim(kind: str) -> Iterator[torch.device]:
    """Yield a device of `kind` ("cpu" or "cuda"), held alone while the context lasts if a GPU.

    Takes the first free GPU and waits where all are busy: two Snakemake processes share no
    resource limits. Raises InputError where there is no GPU.
    """
    if kind == "cpu":
        yield torch.device("cpu")
        return
    if not torch.cuda.is_available():
        raise InputError("this campaign runs on a CUDA GPU and PyTorch sees none here")
    locks = [_lock_of(i) for i in range(torch.cuda.device_count())]
    index = next((i for i, lock in enumerate(locks) if _acquired(lock)), None)
    if index is None:
        # Spread the waiting over the GPUs; which one frees first cannot be known.
        index = os.getpid() % len(locks)
        print(f"all GPUs are busy; waiting for GPU {index}", file=sys.stderr, flush=True)
        locks[index].acquire()
    try:
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)
    finally:
        locks[index].release()
