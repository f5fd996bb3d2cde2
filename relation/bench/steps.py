"""Throughput of whole training updates (Appendix F; Tables 5, 15, 16 and 17).

A side is a variant with its backends and its micro-batch; an update is forward, backward, clipping
and AdamW over all its micro-batches, as training runs it.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relation import machine
from relation.bench.rounds import median_columns, record, synchronize
from relation.data.tokenizer import TOKEN_TYPE
from relation.errors import InputError, RunError
from relation.jobs import Bench, Side
from relation.nn import Decoder, Execution
from relation.train.step import UpdateStep, build_optimizer
from relation.variants import backend_names

# The first update of a process compiles, the second captures CUDA graphs.
_LEAST_WARM_UPDATES = 2


def updates(bench: Bench, side: Side, tokens: Path, device: torch.device):
    """A side: seconds of its updates, each launched while the device works on the one before.

    tokens: a file of 16-bit ids. At least two updates warm up; a round on a GPU starts with one
    that does not count. The last facts are the peak memory and the raw rate. Raises RunError for a
    loss that is not finite.
    """
    on_gpu = device.type == "cuda"
    model = Decoder(side.model, Execution(**side.backends, compiled=bench.compile), device=device)
    options = dict(bench.optimizer)
    rate, clip = options["learning_rate"], options.pop("gradient_clip")
    adamw = build_optimizer(model, **options)
    step = UpdateStep(model, adamw, device, bench.precision, bench.compile, clip)
    size, numbers = side.micro * side.context, itertools.count()  # tokens of a micro-batch
    text = np.memmap(tokens, TOKEN_TYPE, mode="r")

    def batch() -> tuple[Tensor, ...]:
        """The next inputs and targets, (micro, context) int64, sent as training does."""
        start = next(numbers) % max(1, (len(text) - 1) // size) * size
        ids = text[start : start + size + 1].astype(np.int64)
        halves = (x.reshape(side.micro, -1) for x in (ids[:-1], ids[1:]))
        return tuple(machine.to_device(x, device) for x in halves)

    def run(count: int) -> Tensor:
        """Launch updates and return the last one's loss; a GPU may still be working."""
        for _ in range(count):
            batches = (batch() for _ in range(side.accumulation))
            loss, _ = step(batches, side.accumulation * size, rate)
        return loss

    synchronize(device)
    began = time.perf_counter()
    run(1)
    synchronize(device)
    if on_gpu:
        # Peaks are those after compilation: graphs' memory counts when they are captured.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    done = max(_LEAST_WARM_UPDATES, bench.warmup_updates)
    loss = run(done - 1)
    synchronize(device)
    wall = time.perf_counter() - began
    if not loss.isfinite():
        raise RunError(f"the loss is {loss.item()} at update {done}")
    answer = {}
    while (yield answer) is not None:
        began = time.perf_counter()
        if on_gpu:
            run(1)  # finds caches and allocator as another process left them
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            run(bench.measured_updates)
            last.record()
            last.synchronize()
            seconds = first.elapsed_time(last) / 1e3  # by the device's own clock
        else:
            run(bench.measured_updates)
            seconds = time.perf_counter() - began
        wall += time.perf_counter() - began
        done += bench.measured_updates + on_gpu
        answer = seconds / bench.measured_updates
    facts = {"raw_tokens_per_second": done * side.accumulation * size / wall}
    if on_gpu:
        facts["allocated_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
        facts["reserved_gib"] = torch.cuda.max_memory_reserved(device) / 2**30
    yield facts


def groups_of(sides: Sequence[Side]) -> list[list[Side]]:
    """Sides of a sweep over contexts, in groups that are measured together.

    Those up to an eighth of the longest are one group; they hold at most a quarter of its tokens.
    Each other one has the device's whole memory.
    """
    longest = max(side.context for side in sides)
    short = [side for side in sides if 8 * side.context <= longest]
    return [group for group in (short, *([s] for s in sides if s not in short)) if group]


def measure(bench: Bench, out: Path, data: Path) -> None:
    """Run one benchmark of a campaign on its prepared corpus; write the record of kind `steps`."""
    tokens = data / "train.bin"
    if not (tokens.is_file() and tokens.stat().st_size):
        raise InputError(f"{tokens} is missing or empty; prepare the corpus first")
    by_name = {side.side: side for side in bench.sides}
    groups = groups_of(bench.sides) if bench.benchmark == "linear-long" else [bench.sides]
    calls = [{side.side: partial(updates, bench, side, tokens) for side in x} for x in groups]

    def row(name: str, seconds: list[float]) -> dict:
        side = by_name[name]
        per_update = side.micro * side.accumulation * side.context
        rates = [per_update / each for each in seconds]
        return {
            **asdict(side),
            "backend": backend_names(side.model, side.backends),
            **median_columns("tokens_per_second", rates),
            "samples": rates,
            "measured_updates": len(rates) * bench.measured_updates,
            "tokens": "corpus",
        }

    # A round's first update settles what the others left: no rounds to warm up.
    record(bench, out, calls, [()], row, warm_rounds=0)
