"""Throughput of whole training updates (Appendix F; Tables 5, 15, 16 and 17).

A side is a variant with its backends and its micro-batch; an update is forward, backward, clipping
and AdamW over all its micro-batches, as training runs it. A profile of one more micro-batch proves
which attention kernels ran.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from relation import machine, records
from relation.bench.rounds import (
    Answers,
    Conditions,
    Sides,
    median_columns,
    synchronize,
)
from relation.errors import InputError, RunError
from relation.nn import Decoder, Execution
from relation.plan import Bench, Side
from relation.train.step import UpdateStep, build_optimizer
from relation.variants import ModelConfig

# The first update of a process compiles, the second captures CUDA graphs.
_LEAST_WARM_UPDATES = 2
_UPDATES_OF_RANDOM_TOKENS = 4

# Names of the kernels that each backend must run, by kind of device. A backend in plain PyTorch has
# none; on a CPU PyTorch's operations stand for kernels.
_KERNELS = {
    "cuda": {
        ("mha", "flash"): r"^(?!.*(cudnn|sdpa)).*flash_(fwd|bwd)",
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
# Inductor names a kernel after the operations whose tensors it moves; its templates (triton_tem_),
# FlexAttention's among them, do the work themselves.
_MOVER = re.compile(r"triton_(?!tem_)")


def attention_kernels(update: Callable[[], object], device: torch.device) -> list[str]:
    """The names of the attention and Relation kernels that ran in an update, each once."""
    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    # Without acc_events PyTorch warns that further cycles clear events; here is only one.
    with profile(activities=[activity], acc_events=True) as found:
        update()
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    names = [event.key for event in found.key_averages() if event.device_type == wanted]
    ours = re.compile("|".join((*_KERNELS[device.type].values(), _OTHERS)))
    return sorted({name for name in names if ours.search(name) and not _MOVER.match(name)})


def check_kernels(
    operator: str, backend: str, device: torch.device, kernels: Sequence[str]
) -> None:
    """Raise RunError unless a backend's own kernels ran, and no other one of attention."""
    own = _KERNELS[device.type].get((operator, backend))
    for name in kernels:
        if own is None or not re.search(own, name):
            raise RunError(f"{operator} by {backend!r} was asked for, and {name} ran")
    if own is not None and not kernels:
        raise RunError(f"{operator} by {backend!r} was asked for, and no kernel of its name ran")


@dataclass
class Updates:
    """Times whole updates, each launched while the device still works on the one before.

    tokens: a file of 16-bit ids, None for random ones. warmup: updates before the first timed one,
    at least two; updates: how many a round times, on a GPU after one that does not count.
    """

    model: ModelConfig
    operator: str
    backends: Mapping[str, str]
    optimizer: Mapping
    precision: str
    compile: bool
    context: int
    micro: int
    accumulation: int
    warmup: int
    updates: int
    device: torch.device
    tokens: Path | None = None

    def prepare(self) -> dict:
        """Build and warm up. Raises RunError for a loss that is not finite."""
        device, on_gpu = self.device, self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        execution = Execution(**self.backends, compiled=self.compile)
        execution.check(self.model, device)
        torch.manual_seed(0)
        model = Decoder(self.model, execution, seed=0)
        options = dict(self.optimizer)
        clip = options.pop("gradient_clip")
        adamw = build_optimizer(model.to(device), **options)
        self._step = UpdateStep(model, adamw, device, self.precision, self.compile, clip)
        self._done, self._text = 0, self._open_text()
        synchronize(device)
        began = time.perf_counter()
        self._run(1)
        synchronize(device)
        if on_gpu:
            # Peaks are those after compilation: graphs' memory counts when they are captured.
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        loss = self._run(max(_LEAST_WARM_UPDATES, self.warmup) - 1)
        synchronize(device)
        self._wall = time.perf_counter() - began
        if not loss.isfinite():
            raise RunError(f"the loss is {loss.item()} at update {self._done}")
        return {}

    def _open_text(self) -> np.ndarray:
        if self.tokens is not None:
            return np.memmap(self.tokens, "<u2", mode="r")
        per_update = self.micro * self.accumulation * self.context
        count = _UPDATES_OF_RANDOM_TOKENS * per_update + 1
        return np.random.default_rng(0).integers(0, self.model.vocab_size, count, np.uint16)

    def _batches(self, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Micro-batches of inputs and targets, (micro, context) int64, sent as training does."""
        size = self.micro * self.context
        room = max(1, (len(self._text) - 1) // size)
        for number in range(first, first + count):
            start = number % room * size
            ids = self._text[start : start + size + 1].astype(np.int64)
            inputs, targets = (x.reshape(self.micro, -1) for x in (ids[:-1], ids[1:]))
            yield tuple(machine.to_device(x, self.device) for x in (inputs, targets))

    def _update(self, first: int, count: int) -> Tensor:
        tokens = count * self.micro * self.context
        loss, _ = self._step(self._batches(first, count), tokens, self.optimizer["learning_rate"])
        return loss

    def _run(self, updates: int) -> Tensor:
        """Launch updates and return the last one's loss; a GPU may still be working."""
        for _ in range(updates):
            loss = self._update(self._done * self.accumulation, self.accumulation)
            self._done += 1
        return loss

    def seconds(self, measure: str) -> float:
        """Seconds of an update, the mean of a round's, by the device's own clock."""
        began = time.perf_counter()
        if self.device.type == "cuda":
            self._run(1)  # finds caches and allocator as another process left them
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            self._run(self.updates)
            last.record()
            last.synchronize()
            found = first.elapsed_time(last) / 1e3
        else:
            self._run(self.updates)
            found = time.perf_counter() - began
        self._wall += time.perf_counter() - began
        return found / self.updates

    def proof(self) -> dict:
        """Peak memory, the raw rate, and the attention kernels of one more micro-batch.

        Raises RunError where another kernel ran than the one that was asked for.
        """
        facts, device = {}, self.device
        if device.type == "cuda":
            facts["allocated_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
            facts["reserved_gib"] = torch.cuda.max_memory_reserved(device) / 2**30
        tokens = self._done * self.micro * self.accumulation * self.context
        facts["raw_tokens_per_second"] = tokens / self._wall

        backend = self.operator, self.backends[self.operator]
        if device.type != "cuda" and backend not in _KERNELS["cpu"]:
            return facts | {"kernels": []}  # plain PyTorch

        def one_micro_batch() -> None:
            self._update(0, 1)
            synchronize(device)

        kernels = attention_kernels(one_micro_batch, device)
        if not kernels and device.type == "cuda":
            # A profiler that does not see into graphs sees the same kernels launched one by one.
            self._step = self._step.uncaptured()
            one_micro_batch()
            kernels = attention_kernels(one_micro_batch, device)
        check_kernels(*backend, device, kernels)
        return facts | {"kernels": kernels}

    def release(self) -> None:
        self._step = self._text = None


def groups_of(sides: Sequence[Side]) -> list[list[Side]]:
    """Sides of a sweep over contexts, in groups that are measured together.

    Those up to an eighth of the longest hold at most a quarter of its tokens, and are one group.
    The others are one each, so that each can have the device's whole memory.
    """
    longest = max(side.context for side in sides)
    short = [side for side in sides if 8 * side.context <= longest]
    return [group for group in (short, *([s] for s in sides if s not in short)) if group]


def _row(bench: Bench, side: Side, answers: Answers, tokens: Path | None) -> dict:
    per_update = side.micro * side.accumulation * side.context
    rates = [per_update / seconds for seconds in answers.samples.get("update", [])]
    geometry = ("side", "variant", "context", "micro", "accumulation", "position")
    facts = ("raw_tokens_per_second", "allocated_gib", "reserved_gib")
    return {
        **{name: getattr(bench, name) for name in ("campaign", "scale", "variation", "benchmark")},
        **{name: getattr(side, name) for name in geometry},
        "backend": side.backends[side.variant],
        **answers.status("update"),
        **median_columns("tokens_per_second", rates),
        **{name: answers.facts.get(name) for name in facts},
        "measured_updates": len(rates) * bench.measured_updates,
        "samples": rates,
        "alone": answers.alone,
        "kernels": answers.facts.get("kernels", []),
        "tokens": "random" if tokens is None else "corpus",
    }


def measure(bench: Bench, out: Path, data: Path | None = None) -> None:
    """Run one benchmark of a campaign and write its record of kind `steps`.

    data: the folder of the prepared corpus, None for random tokens. Whatever a side meets, out of
    memory, a crash or a missing backend, is its row's status. Raises InputError where the device
    or the corpus is missing.
    """
    tokens = None if data is None else data / "train.bin"
    if tokens is not None and not (tokens.is_file() and tokens.stat().st_size):
        raise InputError(f"{tokens} is missing or empty; prepare the corpus first")
    long = bench.benchmark == "linear-long"
    rows: list[dict] = []
    with machine.claim(bench.device) as device:
        conditions = Conditions(device)
        fixed = bench.optimizer, bench.precision, bench.compile
        counts = bench.warmup_updates, bench.measured_updates, device, tokens
        for group in groups_of(bench.sides) if long else [bench.sides]:
            sides = {
                side.side: Updates(
                    side.model, side.variant, side.backends, *fixed,
                    side.context, side.micro, side.accumulation, *counts,
                )
                for side in group
            }  # fmt: skip
            with Sides(sides, conditions) as processes:
                # A round's first update settles what the others left: no rounds to warm up.
                found = processes.compare((), ["update"], bench.rounds, warm_rounds=0)
            seen = conditions.columns()
            rows += [_row(bench, side, found[side.side], tokens) | seen for side in group]
        origin = records.origin(bench.hash, machine.describe(device))
    records.write(out, "steps", rows, origin)
