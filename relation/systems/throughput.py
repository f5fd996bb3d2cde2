"""Throughput of complete optimiser updates, by the paper's protocol (Appendix F.2)."""

import gc
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from relation.data.windows import TrainingWindows
from relation.geometry import ModelConfig
from relation.model import Decoder, Execution
from relation.progress import Progress
from relation.training.optimizer import build_optimizer
from relation.training.step import UpdateStep

_GIB = 2**30


@dataclass(frozen=True)
class Timing:
    """Seconds of each update in order, warm-up first, and of all with their batches; peak GiB."""

    seconds: list[float]
    wall_seconds: float
    warmup: int
    tokens_per_update: int
    allocated_gib: float | None
    reserved_gib: float | None

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the measured updates over their time; initialisation and warm-up are out."""
        measured = self.seconds[self.warmup :]
        return self.tokens_per_update * len(measured) / sum(measured)

    @property
    def raw_tokens_per_second(self) -> float:
        """All tokens over the wall time from before the first update to after the last.

        Compilation, warm-up and the preparation of batches are in it.
        """
        return self.tokens_per_update * len(self.seconds) / self.wall_seconds


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def build_step(
    config: ModelConfig,
    execution: Execution,
    optimizer: Mapping,
    precision: str,
    compile: bool,
    device: torch.device,
) -> UpdateStep:
    """The update of a fresh model on a device; `optimizer` as `time_updates` takes it.

    Raises InputError where the device cannot run a backend, torch.OutOfMemoryError.
    """
    execution.check(config, device)
    torch.manual_seed(0)
    model = Decoder(config, execution)
    model.initialise(seed=0)
    model.to(device)
    settings = dict(optimizer)
    gradient_clip = settings.pop("gradient_clip")
    adamw = build_optimizer(model, **settings)
    return UpdateStep(model, adamw, device, precision, compile, gradient_clip)


def time_updates(
    config: ModelConfig,
    execution: Execution,
    windows: TrainingWindows,
    micro: int,
    accumulation: int,
    warmup: int,
    measured: int,
    optimizer: Mapping,
    precision: str,
    compile: bool,
    device: torch.device,
    label: str,
) -> Timing:
    """Time `warmup + measured` whole updates of micro x accumulation windows of T tokens.

    optimizer: learning_rate, betas, eps, weight_decay, decay_embedding and gradient_clip. On a GPU
    with `compile` the first update compiles and the second captures graphs: a warm-up of two keeps
    both out of the measured ones. The peaks are those of all updates: what a graph needs is counted
    when it is captured. Raises torch.OutOfMemoryError where the device's memory does not suffice.
    """
    step = build_step(config, execution, optimizer, precision, compile, device)
    learning_rate = optimizer["learning_rate"]
    rows, context = micro * accumulation, windows.context
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)

    seconds, started = [], time.perf_counter()
    with Progress(label, warmup + measured, "updates") as progress:
        for update in range(warmup + measured):
            batches = []
            for part in range(accumulation):
                ids = windows.window_ids(update * rows + part * micro, micro)
                inputs, targets = windows.batch(ids, micro * context, micro)
                batches.append((torch.from_numpy(inputs), torch.from_numpy(targets)))
            synchronize(device)
            began = time.perf_counter()
            step(batches, rows * context, learning_rate)
            synchronize(device)
            seconds.append(time.perf_counter() - began)
            progress.advance(1)
    return Timing(
        seconds,
        time.perf_counter() - started,
        warmup,
        rows * context,
        torch.cuda.max_memory_allocated(device) / _GIB if on_gpu else None,
        torch.cuda.max_memory_reserved(device) / _GIB if on_gpu else None,
    )


def release(device: torch.device) -> None:
    """Give back what the last measurement held, so that the next starts from an empty device."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def median_seconds(call, repeats: int, device: torch.device) -> tuple[float, float, float]:
    """(median, fastest, slowest) seconds of a call after one that does not count."""
    times = []
    for repeat in range(repeats + 1):
        synchronize(device)
        began = time.perf_counter()
        call()
        synchronize(device)
        if repeat:
            times.append(time.perf_counter() - began)
    return statistics.median(times), min(times), max(times)
