"""Throughput of whole training updates (Appendix F; Tables 5, 15, 16 and 17).

A side is a variant with its backends and its micro-batch. An update runs forward and backward over
all micro-batches, then clipping and AdamW, as in training.
"""

import itertools
import time
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


def updates(bench: Bench, side: Side, tokens: Path, device: torch.device):
    """A workload that times updates. The host launches each while a GPU computes the previous one.

    tokens: a file of 16-bit ids. On a GPU, every round starts with an update that is not timed. The
    last facts are peak memory (on a GPU) and raw tokens per second. Raises RunError if the loss is
    not finite.
    """
    on_gpu = device.type == "cuda"
    model = Decoder(side.model, Execution(**side.backends, compiled=bench.compile), device=device)
    options = dict(bench.optimizer)
    rate, clip = options["learning_rate"], options.pop("gradient_clip")
    adamw = build_optimizer(model, **options)
    step = UpdateStep(model, adamw, device, bench.precision, bench.compile, clip)
    size = side.micro * side.context  # tokens of a micro-batch
    text = np.memmap(tokens, TOKEN_TYPE, mode="r")
    if len(text) <= size:
        raise InputError(f"the text has {len(text):,} tokens; a micro-batch reads {size + 1:,}")
    starts = itertools.cycle(range(0, (len(text) - 1) // size * size, size))

    def batch() -> tuple[Tensor, ...]:
        """Return the next inputs and targets, (micro, context) int64, on the device."""
        start = next(starts)
        ids = text[start : start + size + 1].astype(np.int64)
        halves = (x.reshape(side.micro, -1) for x in (ids[:-1], ids[1:]))
        return tuple(machine.to_device(x, device) for x in halves)

    def run(count: int) -> Tensor:
        """Launch updates and return the last loss, which a GPU may still be computing."""
        for _ in range(count):
            batches = (batch() for _ in range(side.accumulation))
            loss, _ = step(batches, side.accumulation * size, rate)
        return loss

    synchronize(device)
    began = time.perf_counter()
    run(1)
    synchronize(device)
    if on_gpu:
        # Peaks exclude compilation. They include the graphs, which the next update captures.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    done = bench.warmup_updates
    loss = run(done - 1)
    synchronize(device)
    wall = time.perf_counter() - began
    if not loss.isfinite():
        raise RunError(f"the loss is {loss.item()} at update {done}")
    answer = {}
    while (yield answer) is not None:
        began = time.perf_counter()
        if on_gpu:
            run(1)  # not timed: another process may have used the GPU's caches before
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


def measure(bench: Bench, out: Path, data: Path) -> None:
    """Run a benchmark of a campaign on its prepared corpus; write the record of kind `steps`."""
    tokens = data / "train.bin"
    if not (tokens.is_file() and tokens.stat().st_size):
        raise InputError(f"{tokens} is missing or empty; prepare the corpus first")
    by_name = {side.side: side for side in bench.sides}
    calls = {name: partial(updates, bench, side, tokens) for name, side in by_name.items()}
    # Contexts are not compared with one another, so each has the whole memory to itself.
    alone = bench.benchmark == "linear-long"
    groups = [{name: call} for name, call in calls.items()] if alone else [calls]

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

    # No warm-up rounds: on a GPU, the first update of each round is a warm-up.
    record(bench, out, groups, [()], row, warm_rounds=0)
