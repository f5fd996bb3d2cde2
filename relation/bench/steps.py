"""Throughput of whole training updates (Appendix F; Tables 5, 15, 16 and 17).

A side is a variant with its backends and its micro-batch; an update is forward, backward, clipping
and AdamW over all its micro-batches, as training runs it. A profile of one more micro-batch proves
which attention kernels ran.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from relation import machine, records
from relation.bench.rounds import Answers, Conditions, Sides, claimed, median_columns, synchronize
from relation.errors import InputError, RunError
from relation.jobs import Bench, Side
from relation.nn import Decoder, Execution
from relation.train.step import UpdateStep, build_optimizer

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
            r"^(prepare|chunk_states|segment_scan|output|information|coordinates|"
            r"weak_(output|information|coordinates|gradients))_kernel"
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
    others = [name for name in kernels if own is None or not re.search(own, name)]
    if others or (own and not kernels):
        ran = others[0] if others else "no kernel of its name"
        raise RunError(f"{operator} by {backend!r} was asked for, and {ran} ran")


@dataclass
class Updates:
    """Times a side's updates, each launched while the device still works on the one before.

    tokens: a file of 16-bit ids, None for random ones. At least two updates warm up; a round on a
    GPU starts with one that does not count.
    """

    bench: Bench
    side: Side
    device: torch.device
    tokens: Path | None = None

    def prepare(self) -> dict:
        """Build and warm up. Raises RunError for a loss that is not finite."""
        bench, side, device = self.bench, self.side, self.device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        execution = Execution(**side.backends, compiled=bench.compile)
        execution.check(side.model, device)
        model = Decoder(side.model, execution, seed=0)
        options = dict(bench.optimizer)
        clip = options.pop("gradient_clip")
        adamw = build_optimizer(model.to(device), **options)
        self._step = UpdateStep(model, adamw, device, bench.precision, bench.compile, clip)
        self._micro_tokens = side.micro * side.context
        if self.tokens is not None:
            self._text = np.memmap(self.tokens, "<u2", mode="r")
        else:
            count = _UPDATES_OF_RANDOM_TOKENS * side.accumulation * self._micro_tokens + 1
            drawn = np.random.default_rng(0)
            self._text = drawn.integers(0, side.model.vocab_size, count, np.uint16)
        self._done = 0
        synchronize(device)
        began = time.perf_counter()
        self._run(1)
        synchronize(device)
        if device.type == "cuda":
            # Peaks are those after compilation: graphs' memory counts when they are captured.
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        loss = self._run(max(_LEAST_WARM_UPDATES, bench.warmup_updates) - 1)
        synchronize(device)
        self._wall = time.perf_counter() - began
        if not loss.isfinite():
            raise RunError(f"the loss is {loss.item()} at update {self._done}")
        return {}

    def _batches(self, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Micro-batches of inputs and targets, (micro, context) int64, sent as training does."""
        size = self._micro_tokens
        for number in range(first, first + count):
            start = number % max(1, (len(self._text) - 1) // size) * size
            ids = self._text[start : start + size + 1].astype(np.int64)
            inputs, targets = (x.reshape(self.side.micro, -1) for x in (ids[:-1], ids[1:]))
            yield tuple(machine.to_device(x, self.device) for x in (inputs, targets))

    def _update(self, first: int, count: int) -> Tensor:
        rate, tokens = self.bench.optimizer["learning_rate"], count * self._micro_tokens
        return self._step(self._batches(first, count), tokens, rate)[0]

    def _run(self, updates: int) -> Tensor:
        """Launch updates and return the last one's loss; a GPU may still be working."""
        for _ in range(updates):
            loss = self._update(self._done * self.side.accumulation, self.side.accumulation)
            self._done += 1
        return loss

    def seconds(self, measure: str) -> float:
        """Seconds of an update, the mean of a round's, by the device's own clock."""
        began = time.perf_counter()
        if self.device.type == "cuda":
            self._run(1)  # finds caches and allocator as another process left them
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            self._run(self.bench.measured_updates)
            last.record()
            last.synchronize()
            found = first.elapsed_time(last) / 1e3
        else:
            self._run(self.bench.measured_updates)
            found = time.perf_counter() - began
        self._wall += time.perf_counter() - began
        return found / self.bench.measured_updates

    def proof(self) -> dict:
        """Peak memory, the raw rate, and the attention kernels of one more micro-batch.

        Raises RunError where another kernel ran than the one that was asked for.
        """
        device, tokens = self.device, self._done * self.side.accumulation * self._micro_tokens
        facts = {"raw_tokens_per_second": tokens / self._wall}
        if device.type == "cuda":
            facts["allocated_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
            facts["reserved_gib"] = torch.cuda.max_memory_reserved(device) / 2**30
        backend = self.side.variant, self.side.backends[self.side.variant]
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


def groups_of(sides: Sequence[Side]) -> list[list[Side]]:
    """Sides of a sweep over contexts, in groups that are measured together.

    Those up to an eighth of the longest are one group; they hold at most a quarter of its tokens.
    Each other one has the device's whole memory.
    """
    longest = max(side.context for side in sides)
    short = [side for side in sides if 8 * side.context <= longest]
    return [group for group in (short, *([s] for s in sides if s not in short)) if group]


def _row(bench: Bench, side: Side, answers: Answers, tokens: Path | None) -> dict:
    per_update = side.micro * side.accumulation * side.context
    rates = [per_update / seconds for seconds in answers.samples.get("update", [])]
    geometry = ("side", "variant", "context", "micro", "accumulation", "position")
    return {
        **{name: getattr(bench, name) for name in ("campaign", "scale", "variation", "benchmark")},
        **{name: getattr(side, name) for name in geometry},
        "backend": side.backends[side.variant],
        **answers.status("update"),
        **median_columns("tokens_per_second", rates),
        **dict.fromkeys(("allocated_gib", "reserved_gib", "raw_tokens_per_second")),
        "measured_updates": len(rates) * bench.measured_updates,
        "samples": rates,
        "alone": answers.alone,
        "kernels": [],
        "tokens": "random" if tokens is None else "corpus",
        **answers.facts,
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
    with claimed(bench.device) as device:
        conditions = Conditions(device)
        for group in groups_of(bench.sides) if long else [bench.sides]:
            sides = {side.side: Updates(bench, side, device, tokens) for side in group}
            with Sides(sides, conditions) as processes:
                # A round's first update settles what the others left: no rounds to warm up.
                found = processes.compare((), ["update"], bench.rounds, warm_rounds=0)
            seen = conditions.columns()
            rows += [_row(bench, side, found[side.side], tokens) | seen for side in group]
        origin = records.origin(bench.hash, machine.describe(device))
    records.write(out, "steps", rows, origin)
