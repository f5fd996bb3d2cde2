"""The machine: its devices and their locks, progress bars, and determinism."""

import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from relation.errors import InputError


def check_gpu() -> None:
    """Raise InputError if PyTorch sees no GPU."""
    if not torch.cuda.is_available():
        raise InputError("this needs a CUDA GPU, and PyTorch sees none")


def describe(device: torch.device) -> str:
    """The device's name as records hold it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({platform.machine()}, {threads} thread{'s' if threads > 1 else ''})"


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy an array to a device, as a tensor; to a GPU asynchronously, through pinned memory."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


_SHARES = 60  # locks per GPU; 1 to 6 runs can share them equally


def _lock(name: str) -> FileLock:
    return FileLock(Path(tempfile.gettempdir()) / f"relation-gpu-{name}.lock", mode=0o666)


def _acquired(stack: ExitStack, locks: Iterable[FileLock], count: int) -> bool:
    """Acquire `count` of a GPU's locks into `stack`. If fewer are free, acquire none: False."""
    acquired = 0
    with ExitStack() as held:  # releases its locks at the end, unless `stack` takes them
        for lock in locks:
            with suppress(Timeout):
                held.enter_context(lock.acquire(timeout=0))
                acquired += 1
            if acquired == count:
                stack.push(held.pop_all())
                return True
    return False


@contextmanager
def gpu_lock(count: int = 1, runs_per_gpu: int = 1) -> Iterator[list[int]]:
    """Lock `count` GPUs of this machine, or one run's share of each, and yield their indices.

    Waits until they are free. It takes all or none, so two jobs can never block each other with
    half of the GPUs that both need. Raises InputError if the machine has fewer.
    """
    check_gpu()
    available = torch.cuda.device_count()
    if available < count:
        raise InputError(f"{count} processes need {count} GPUs, and PyTorch sees {available} here")
    # By UUID, because CUDA_VISIBLE_DEVICES can give a GPU different indices in different jobs.
    names = [torch.cuda.get_device_properties(i).uuid for i in range(available)]
    locks_by_gpu = [[_lock(f"{name}-{share}") for share in range(_SHARES)] for name in names]
    waits = False
    while True:
        indices: list[int] = []
        with ExitStack() as stack:
            with _lock("claim"):  # one job at a time looks for free GPUs
                for index, locks in enumerate(locks_by_gpu):
                    if len(indices) < count and _acquired(stack, locks, _SHARES // runs_per_gpu):
                        indices.append(index)
            if len(indices) == count:
                yield indices
                return
        if not waits:
            print(f"waiting for {count} free GPUs", file=sys.stderr)
        waits = True
        time.sleep(0.5)


@contextmanager
def claim(name: str, runs_per_gpu: int = 1, empty: bool = False) -> Iterator[torch.device]:
    """Yield the device "cpu", or "cuda" with a GPU that stays locked until the context ends.

    runs_per_gpu: how many jobs share the GPU. empty: this process takes no memory on the GPU,
    because other processes compute there.
    """
    if name == "cpu":
        yield torch.device("cpu")
        return
    with gpu_lock(runs_per_gpu=runs_per_gpu) as (index,):
        if not empty:
            torch.cuda.set_device(index)
        yield torch.device("cuda", index)


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """If enabled, let PyTorch run only algorithms that give the same bits every time.

    Enter it before the first CUDA call, because cuBLAS reads its workspace size only once. An
    operation without such an algorithm raises RuntimeError.
    """
    if not enabled:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class Progress(tqdm):
    """A bar of `total` units, drawn ten times a second on a terminal, every 15 s in a log file."""

    monitor_interval = 0  # no monitor thread, because benchmarks fork

    def __init__(self, label: str, total: int, unit: str, done: int = 0):
        interval = 0.1 if sys.stderr.isatty() else 15.0
        options = {"unit": f" {unit}", "unit_scale": True, "dynamic_ncols": True}
        options |= {"mininterval": interval, "maxinterval": interval}
        super().__init__(desc=label, total=total, initial=done, **options)

    def advance(self, step: int, note: str = "") -> None:
        """Add `step` units; `note` is a short reading such as the loss."""
        self.set_postfix_str(note, refresh=False)
        self.update(step)
