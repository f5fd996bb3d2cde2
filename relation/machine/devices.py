"""Claiming devices: one process a GPU, or a few that agree to share it, whoever started them."""

import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout

from relation.errors import InputError

_SECONDS_BETWEEN_LOOKS = 0.5
# A GPU is claimed in twentieths, so that 1, 2, 4 or 5 jobs share it evenly; most take all.
_PARTS = 20


def describe(device: torch.device) -> str:
    """The device's name as records carry it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({platform.machine()}, {threads} thread{'s' if threads > 1 else ''})"


def gpu_count() -> int:
    """How many GPUs PyTorch sees here, which is how many jobs can claim one at a time."""
    return torch.cuda.device_count()


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A tensor of an array on a device; to a GPU through pinned memory, without waiting for it."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Where wanted, PyTorch runs only algorithms that give the same bits every time.

    Enter it before the first CUDA call: cuBLAS reads its workspace's size once. An operation
    without such an algorithm raises RuntimeError.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _lock(name: str) -> FileLock:
    return FileLock(Path(tempfile.gettempdir()) / f"relation-gpu-{name}.lock", mode=0o666)


def _locks_of(index: int) -> list[FileLock]:
    # The identifier, not the index, so that CUDA_VISIBLE_DEVICES cannot make two jobs share one.
    uuid = torch.cuda.get_device_properties(index).uuid
    return [_lock(f"{uuid}-{part}") for part in range(_PARTS)]


def _acquired(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _parts(locks: list[FileLock], wanted: int) -> list[FileLock]:
    """Take `wanted` of a GPU's locks, or none where fewer are free."""
    taken: list[FileLock] = []
    for lock in locks:
        if len(taken) < wanted and _acquired(lock):
            taken.append(lock)
    if len(taken) < wanted:
        _release(taken)
        return []
    return taken


def _release(locks: list[FileLock]) -> None:
    for lock in locks:
        lock.release()


def _acquired_together(
    locks: list[list[FileLock]], count: int, parts: int
) -> dict[int, list[FileLock]] | None:
    """Take so many parts of each of `count` GPUs, by their indices, or take none."""
    # One claim at a time looks: two that each held half of what they need would wait for ever.
    with _lock("claim"):
        taken: dict[int, list[FileLock]] = {}
        for index, own in enumerate(locks):
            if len(taken) < count and (found := _parts(own, parts)):
                taken[index] = found
        if len(taken) == count:
            return taken
        for found in taken.values():
            _release(found)
        return None


@contextmanager
def claim_gpus(count: int, sharing: int = 1) -> Iterator[list[int]]:
    """Yield the indices of `count` GPUs, held while the context lasts.

    sharing: among how many such claims a GPU may be shared, 1, 2, 4 or 5. Takes the first free
    ones, all at once, and waits where too few are: two Snakemake processes share no resource
    limits.
    Raises InputError where there are not so many.
    """
    if not torch.cuda.is_available():
        raise InputError("this campaign runs on a CUDA GPU and PyTorch sees none here")
    if gpu_count() < count:
        raise InputError(f"{count} processes need {count} GPUs and PyTorch sees {gpu_count()} here")
    locks, parts = [_locks_of(index) for index in range(gpu_count())], _PARTS // sharing
    taken = _acquired_together(locks, count, parts)
    if taken is None:
        wanted = "one" if count == 1 else str(count)
        print(f"too few GPUs are free; waiting for {wanted}", file=sys.stderr, flush=True)
    while taken is None:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        taken = _acquired_together(locks, count, parts)
    try:
        yield list(taken)
    finally:
        for found in taken.values():
            _release(found)


@contextmanager
def claim(kind: str, sharing: int = 1) -> Iterator[torch.device]:
    """Yield a device of `kind` ("cpu" or "cuda"), held while the context lasts if a GPU.

    sharing: as in claim_gpus. Raises InputError where there is no GPU.
    """
    if kind == "cpu":
        yield torch.device("cpu")
        return
    with claim_gpus(1, sharing) as (index,):
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)
