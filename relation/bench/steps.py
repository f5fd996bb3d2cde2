"""Throughput of complete optimiser updates, after the paper's protocol (Appendix F.2).

With the proof of which attention kernels ran: their names in a profile.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from relation.bench.timing import mark, seconds_between, synchronize
from relation.data.tokens import open_tokens
from relation.data.windows import TrainingWindows
from relation.errors import RunError
from relation.kernels.documents import Documents
from relation.machine.devices import to_device
from relation.nn import Decoder, Execution
from relation.spec import SystemsSpec
from relation.train.optimizer import build_optimizer
from relation.train.shards import shard
from relation.train.step import UpdateStep
from relation.variants import ModelConfig

# Names of the kernels that each backend must run, by kind of device; PyTorch's and cuDNN's carry
# more. On a CPU the operations of PyTorch stand for kernels; what is written in PyTorch has none.
_KERNELS = {
    "cuda": {
        ("mha", "flash"): r"flash_(fwd|bwd)",
        ("mha", "cudnn"): r"cudnn|sdpa",
        ("full", "flash"): r"^(hopper_)?(forward|p1|p2_info|repair)_kernel",
        ("linear", "flash"): (
            r"^(prepare|chunk_states|segment_scan|output|information_backward|"
            r"coordinates_backward|weak_(output|information|coordinates|gradients)|"
            r"mixed_(output|information|coordinates))_kernel"
        ),
    },
    "cpu": {("mha", "flash"): r"scaled_dot_product_flash_attention_for_cpu"},
}
_OTHERS = r"fmha|efficient_attention|flex_attention|_scaled_dot_product_"
# Inductor names a kernel after the operations whose inputs and results it moves. Its templates
# (triton_tem_), FlexAttention's among them, do the work themselves.
_MOVER = re.compile(r"triton_(?!tem_)")


def named_kernels(names: Sequence[str], device: torch.device) -> list[str]:
    """Those of attention or of a Relation operator, in order, each once."""
    any_of = re.compile("|".join((*_KERNELS[device.type].values(), _OTHERS)))
    return sorted({name for name in names if any_of.search(name) and not _MOVER.match(name)})


def attention_kernels(update: Callable[[], object], device: torch.device) -> list[str]:
    """The names of the attention kernels that ran in an update; on a CPU, PyTorch's operations."""
    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    # Without acc_events PyTorch warns that further cycles clear events; here there is only one.
    with profile(activities=[activity], acc_events=True) as found:
        update()
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    names = [event.key for event in found.key_averages() if event.device_type == wanted]
    return named_kernels(names, device)


def check_kernels(
    operator: str, backend: str, device: torch.device, kernels: Sequence[str]
) -> None:
    """Raise RunError unless a backend's own kernels ran and no other one of attention.

    kernels: as `attention_kernels` gives them. A backend in plain PyTorch must have run none.
    """
    own = _KERNELS[device.type].get((operator, backend))
    # cuDNN's kernels have "flash" in their names.
    cudnn = _KERNELS["cuda"]["mha", "cudnn"] if (operator, backend) == ("mha", "flash") else None
    for name in kernels:
        if own is None or not re.search(own, name) or (cudnn and re.search(cudnn, name)):
            raise RunError(f"{operator} by {backend!r} was asked for, and {name} ran")
    if own is not None and not kernels:
        raise RunError(f"{operator} by {backend!r} was asked for, and no kernel of its name ran")


UPDATE = "update"
# The first update of a process compiles, the second captures graphs.
_LEAST_WARM_UPDATES = 2
_UPDATES_OF_RANDOM_TOKENS = 4


@dataclass(frozen=True)
class Setup:
    """A model and how it is trained, from which a step is built.

    optimizer: learning_rate, betas, eps, weight_decay, decay_embedding and gradient_clip.
    documents: of how many equal ones every window is packed, which the operators keep apart.
    """

    model: ModelConfig
    execution: Execution
    optimizer: Mapping
    precision: str
    compile: bool
    device: torch.device
    documents: int = 1

    @classmethod
    def of(
        cls,
        spec: SystemsSpec,
        model: ModelConfig,
        backends: Mapping[str, str],
        device: torch.device,
        documents: int = 1,
    ) -> "Setup":
        """A model of a systems benchmark, trained as the benchmark says."""
        execution = Execution(**backends, compiled=spec.compile)
        given = spec.optimizer, spec.precision, spec.compile, device, documents
        return cls(model, execution, *given)


def equal_documents(count: int, inputs: Tensor, targets: Tensor) -> Documents:
    """`count` documents in every row of a micro-batch, (B, T) both, as equal as T allows."""
    batch, length = inputs.shape
    number = torch.arange(length, device=inputs.device) * count // length
    first = number.diff(prepend=number[:1]) != 0
    return Documents.bounded(first.expand(batch, length), batch * count)


def build_step(setup: Setup, processes: int = 1) -> UpdateStep:
    """The update of a fresh model, or of this process's part of one that `processes` share.

    Raises InputError where the device cannot run a backend, torch.OutOfMemoryError.
    """
    setup.execution.check(setup.model, setup.device)
    torch.manual_seed(0)
    model = Decoder(setup.model, setup.execution)
    model.initialise(seed=0)
    if processes > 1:
        shard(model, setup.device, processes, setup.compile)
    else:
        model.to(setup.device)
    settings = dict(setup.optimizer)
    gradient_clip = settings.pop("gradient_clip")
    adamw = build_optimizer(model, **settings)
    # The layers of a sharded model are compiled by themselves.
    given = setup.device, setup.precision, setup.compile and processes == 1, gradient_clip
    documents = partial(equal_documents, setup.documents) if setup.documents > 1 else None
    return UpdateStep(model, adamw, *given, documents=documents)


@dataclass
class WholeUpdates:
    """Times whole updates, each started while the device still works on the one before.

    So they run in training. An update takes micro x accumulation windows of `context` tokens, from
    the token file `tokens` or, without one, random. At least two updates are warm-up; a round times
    `updates` of them, on a GPU after one that does not count. proves: the operator and backend
    whose kernel the record must show, None for a step that is not this project's. The peaks are
    those after compilation: the graphs' memory is counted when they are captured.
    """

    setup: Setup
    context: int
    micro: int
    accumulation: int
    warmup: int
    updates: int
    tokens: Path | None = None
    proves: tuple[str, str] | None = None
    build: Callable[[Setup], Callable] = build_step

    @classmethod
    def of(
        cls,
        spec: SystemsSpec,
        model: ModelConfig,
        backends: Mapping[str, str],
        device: torch.device,
        documents: int = 1,
        **rest: Any,
    ) -> "WholeUpdates":
        """Updates of a model as a systems benchmark trains and warms it up; rest: the fields."""
        setup = Setup.of(spec, model, backends, device, documents)
        return cls(setup, warmup=spec.warmup_updates, **rest)

    @property
    def tokens_per_update(self) -> int:
        return self.micro * self.accumulation * self.context

    @property
    def _on_gpu(self) -> bool:
        return self.setup.device.type == "cuda"

    def _open_windows(self) -> TrainingWindows:
        if self.tokens is not None:
            return TrainingWindows(open_tokens(self.tokens), self.context, seed=0)
        count = _UPDATES_OF_RANDOM_TOKENS * self.tokens_per_update + 1
        drawn = np.random.default_rng(0).integers(0, self.setup.model.vocab_size, count)
        return TrainingWindows(drawn, self.context, seed=0)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The next update's micro-batches, sent to the device as training sends them."""
        first, device = self._updates * self.micro * self.accumulation, self.setup.device
        for part in range(self.accumulation):
            ids = self._windows.window_ids(first + part * self.micro, self.micro)
            inputs, targets = self._windows.batch(ids, self.micro * self.context, self.micro)
            yield to_device(inputs, device), to_device(targets, device)

    def _update(self, batches: Iterable[tuple[Tensor, Tensor]], tokens: int) -> Tensor:
        loss, _ = self._step(batches, tokens, self.setup.optimizer["learning_rate"])
        return loss

    def _run(self, updates: int) -> Tensor:
        """Start updates and return the last one's loss; a GPU may still be working."""
        for _ in range(updates):
            loss = self._update(self._batches(), self.tokens_per_update)
            self._updates += 1
        return loss

    def prepare(self) -> dict:
        """Build and warm up. Raises RunError for a loss that is not finite."""
        device = self.setup.device
        if self._on_gpu:
            torch.cuda.set_device(device)
        self._updates, self._windows = 0, self._open_windows()
        self._step = self.build(self.setup)
        synchronize(device)
        began = time.perf_counter()
        self._run(1)
        synchronize(device)
        if self._on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        loss = self._run(max(_LEAST_WARM_UPDATES, self.warmup) - 1)
        synchronize(device)
        self._wall = time.perf_counter() - began
        if not loss.isfinite():
            raise RunError(f"the loss is {loss.item()} at update {self._updates}")
        return {}

    def seconds(self, measure: str) -> float:
        """Seconds of an update, the mean of a round's, on the device's own clock."""
        began = time.perf_counter()
        if self._on_gpu:
            # It finds caches and allocator as another process left them; a CPU's fill at once.
            self._run(1)
        first = mark(self.setup.device)
        self._run(self.updates)
        last = mark(self.setup.device)
        synchronize(self.setup.device)
        self._wall += time.perf_counter() - began
        return seconds_between(first, last) / self.updates

    def proof(self) -> dict:
        """Peak bytes, the raw rate, and the attention kernels of one more micro-batch.

        Raises RunError where another kernel ran than the one that was asked for.
        """
        peaks = {"peak_bytes": None, "reserved_bytes": None}
        if self._on_gpu:
            peaks = {
                "peak_bytes": torch.cuda.max_memory_allocated(self.setup.device),
                "reserved_bytes": torch.cuda.max_memory_reserved(self.setup.device),
            }
        raw = self._updates * self.tokens_per_update / self._wall
        kernels = []
        if self.proves is not None:
            kernels = self._attention_kernels()
            check_kernels(*self.proves, self.setup.device, kernels)
        return {**peaks, "raw_tokens_per_second": raw, "kernels": kernels}

    def _one_micro_batch(self) -> None:
        """An update of one micro-batch alone, all of whose kernels any other one launches too."""
        self._update([next(self._batches())], self.micro * self.context)
        synchronize(self.setup.device)

    def _attention_kernels(self) -> list[str]:
        kernels = attention_kernels(self._one_micro_batch, self.setup.device)
        if not kernels and self._on_gpu and isinstance(self._step, UpdateStep):
            # A profiler that does not see into graphs sees the same kernels launched one by one.
            self._step = self._step.uncaptured()
            self._one_micro_batch()
            kernels = attention_kernels(self._one_micro_batch, self.setup.device)
        return kernels
