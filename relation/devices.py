"""Claiming devices: one process a GPU, whoever started it."""

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


def _lock_of(index: int) -> FileLock:
    # The identifier, not the index, so that CUDA_VISIBLE_DEVICES cannot make two jobs share one.
    return _lock(str(torch.cuda.get_device_properties(index).uuid))


def _acquired(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _acquired_together(locks: list[FileLock], count: int) -> list[int] | None:
    """Take the first `count` free locks and return their indices, or take none."""
    # One claim at a time looks: two that each held half of what they need would wait for ever.
    with _lock("claim"):
        taken: list[int] = []
        for index, lock in enumerate(locks):
            if len(taken) < count and _acquired(lock):
                taken.append(index)
        if len(taken) == count:
            return taken
        for index in taken:
            locks[index].release()
        return None


@contextmanager
def claim_gpus(count: int) -> Iterator[list[int]]:
    """Yield the indices of `count` GPUs, held alone while the context lasts.

    Takes the first free ones, all at once, and waits where too few are: two Snakemake processes
    share no resource limits. Raises InputError where there are not so many.
    """
    if not torch.cuda.is_available():
        raise InputError("this campaign runs on a CUDA GPU and PyTorch sees none here")
    if gpu_count() < count:
        raise InputError(f"{count} processes need {count} GPUs and PyTorch sees {gpu_count()} here")
    locks = [_lock_of(index) for index in range(gpu_count())]
    taken = _acquired_together(locks, count)
    if taken is None:
        wanted = "one" if count == 1 else str(count)
        print(f"too few GPUs are free; waiting for {wanted}", file=sys.stderr, flush=True)
    while taken is None:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        taken = _acquired_together(locks, count)
    try:
        yield taken
    finally:
        for index in taken:
            locks[index].release()


@contextmanager
def claim(kind: str) -> Iterator[torch.device]:
    """Yield a device of `kind` ("cpu" or "cuda"), held alone while the context lasts if a GPU.

    Raises InputError where there is no GPU.
    """
    if kind == "cpu":
        yield torch.device("cpu")
        return
    with claim_gpus(1) as (index,):
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)
