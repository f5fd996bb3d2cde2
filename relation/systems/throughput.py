"""Throughput of complete optimiser updates, after the paper's protocol (Appendix F.2)."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relation.data.tokens import open_tokens
from relation.data.windows import TrainingWindows
from relation.devices import to_device
from relation.errors import RunError
from relation.geometry import ModelConfig
from relation.model import Decoder, Execution
from relation.systems.attention_kernels import attention_kernels, check_kernels
from relation.training.optimizer import build_optimizer
from relation.training.step import UpdateStep

UPDATE = "update"
_GIB = 2**30
# The first update of a process compiles, the second captures graphs.
_LEAST_WARM_UPDATES = 2
_UPDATES_OF_RANDOM_TOKENS = 4


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mark(device: torch.device) -> torch.cuda.Event | float:
    """The moment at which the device has done what it was given; a GPU tells it later."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(first: torch.cuda.Event | float, last: torch.cuda.Event | float) -> float:
    """Seconds between two marks of one device, which has been waited for."""
    if isinstance(first, float):
        return last - first
    return first.elapsed_time(last) / 1e3


def release(device: torch.device) -> None:
    """Give back what the last measurement held, so that the next starts from an empty device."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def build_step(
    config: ModelConfig,
    execution: Execution,
    optimizer: Mapping,
    precision: str,
    compile: bool,
    device: torch.device,
) -> UpdateStep:
    """The update of a fresh model on a device.

    optimizer: learning_rate, betas, eps, weight_decay, decay_embedding and gradient_clip. Raises
    InputError where the device cannot run a backend, torch.OutOfMemoryError.
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


@dataclass(frozen=True)
class StepJob:
    """Whole updates of one model, to be timed in a process of their own.

    An update takes micro x accumulation windows of `context` tokens, from the token file `tokens`
    or, without one, random. At least two updates are warm-up; a round times `updates` of them.
    proves: the operator and backend whose kernel the record must show, None for a step that is not
    this project's. `build` makes the step, as `build_step`.
    """

    model: ModelConfig
    execution: Execution
    optimizer: Mapping
    precision: str
    compile: bool
    device: torch.device
    context: int
    micro: int
    accumulation: int
    warmup: int
    updates: int
    tokens: Path | None = None
    proves: tuple[str, str] | None = None
    build: Callable[..., Callable] = build_step

    def __call__(self) -> "StepMeasurement":
        return StepMeasurement(self)

    @property
    def tokens_per_update(self) -> int:
        return self.micro * self.accumulation * self.context


class StepMeasurement:
    """Times whole updates, each started while the device still works on the one before.

    So they run in training. `seconds` is the time of one update, the mean of a round's; on a GPU
    the first update of a round does not count. The peaks
    are those after compilation: the graphs' memory is counted when they are captured.
    """

    def __init__(self, job: StepJob):
        self.job, self.device = job, job.device
        self._on_gpu = job.device.type == "cuda"
        if self._on_gpu:
            torch.cuda.set_device(job.device)
        self._updates, self._wall = 0, 0.0

    def _open_windows(self) -> TrainingWindows:
        job = self.job
        if job.tokens is not None:
            return TrainingWindows(open_tokens(job.tokens), job.context, seed=0)
        count = _UPDATES_OF_RANDOM_TOKENS * job.tokens_per_update + 1
        drawn = np.random.default_rng(0).integers(0, job.model.vocab_size, count)
        return TrainingWindows(drawn, job.context, seed=0)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The next update's micro-batches, sent to the device as training sends them."""
        job = self.job
        first = self._updates * job.micro * job.accumulation
        for part in range(job.accumulation):
            ids = self._windows.window_ids(first + part * job.micro, job.micro)
            inputs, targets = self._windows.batch(ids, job.micro * job.context, job.micro)
            yield to_device(inputs, self.device), to_device(targets, self.device)

    def _run(self, updates: int) -> Tensor:
        """Start updates and return the last one's loss; a GPU may still be working."""
        for _ in range(updates):
            loss, _ = self._step(
                self._batches(), self.job.tokens_per_update, self.job.optimizer["learning_rate"]
            )
            self._updates += 1
        return loss

    def prepare(self) -> dict:
        """Build and warm up. Raises RunError for a loss that is not finite."""
        job = self.job
        self._windows = self._open_windows()
        self._step = job.build(
            job.model, job.execution, job.optimizer, job.precision, job.compile, job.device
        )
        synchronize(self.device)
        began = time.perf_counter()
        self._run(1)
        synchronize(self.device)
        if self._on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        loss = self._run(max(_LEAST_WARM_UPDATES, job.warmup) - 1)
        synchronize(self.device)
        self._wall += time.perf_counter() - began
        if not loss.isfinite():
            raise RunError(f"the loss is {loss.item()} at update {self._updates}")
        return {}

    def seconds(self, measure: str) -> float:
        """Seconds of an update, the mean of a round's, on the device's own clock."""
        began = time.perf_counter()
        if self._on_gpu:
            # It finds caches and allocator as another process left them; a CPU's fill at once.
            self._run(1)
        first = mark(self.device)
        self._run(self.job.updates)
        last = mark(self.device)
        synchronize(self.device)
        self._wall += time.perf_counter() - began
        return seconds_between(first, last) / self.job.updates

    def proof(self) -> dict:
        """Peak bytes, the raw rate, and the attention kernels of one more micro-batch.

        Raises RunError where another kernel ran than the one that was asked for.
        """
        peaks = {"peak_bytes": None, "reserved_bytes": None}
        if self._on_gpu:
            peaks = {
                "peak_bytes": torch.cuda.max_memory_allocated(self.device),
                "reserved_bytes": torch.cuda.max_memory_reserved(self.device),
            }
        raw = self._updates * self.job.tokens_per_update / self._wall
        kernels = []
        if self.job.proves is not None:
            kernels = self._attention_kernels()
            check_kernels(*self.job.proves, self.device, kernels)
        return {**peaks, "raw_tokens_per_second": raw, "kernels": kernels}

    def _one_micro_batch(self) -> None:
        """An update of one micro-batch alone, all of whose kernels any other one launches too."""
        tokens = self.job.micro * self.job.context
        self._step([next(self._batches())], tokens, self.job.optimizer["learning_rate"])
        synchronize(self.device)

    def _attention_kernels(self) -> list[str]:
        kernels = attention_kernels(self._one_micro_batch, self.device)
        if not kernels and self._on_gpu and isinstance(self._step, UpdateStep):
            # A profiler that does not see into graphs sees the same kernels launched one by one.
            self._step = self._step.uncaptured()
            self._one_micro_batch()
            kernels = attention_kernels(self._one_micro_batch, self.device)
        return kernels
