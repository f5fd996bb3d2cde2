"""Throughput and memory of one run trained by several processes beside those of one."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from relation.bench.steps import Setup, build_step
from relation.bench.timing import synchronize
from relation.data.windows import TrainingWindows
from relation.errors import RelationError, RunError
from relation.machine.devices import deterministic_algorithms, to_device
from relation.nn import Execution
from relation.spec import RunSpec
from relation.train.launch import torchrun_options
from relation.train.parallel import SummedGradients, World
from relation.train.probes import PeakMemory
from relation.variants import model_config

_UPDATES_OF_DATA = 2  # random windows, read again and again


@dataclass(frozen=True)
class Scaling:
    """Whole updates of one run by a number of processes, tokens a second over all of them.

    peak_gib: the most memory that any of their GPUs had allocated, None on a CPU; sharded: whether
    they divided the model among them.
    """

    processes: int
    tokens_per_second: float
    peak_gib: float | None = None
    sharded: bool = False

    def efficiency(self, alone: "Scaling") -> float:
        """Throughput over that of as many processes that each work alone."""
        return self.tokens_per_second / (self.processes * alone.tokens_per_second)


def measure_updates(spec: RunSpec, warmup: int, updates: int) -> Scaling | None:
    """`updates` whole updates after `warmup`, on random windows.

    Called in each process that torchrun started; the time is from the moment that all are ready to
    the end of the last update, with its batches. The peak is that of all updates but the first,
    which compiles. None in all but the first process.
    """
    world = World(spec.name)
    with (
        world.one_voice(),
        deterministic_algorithms(spec.deterministic),
        world.device(spec.device) as device,
    ):
        world.check_enough(spec.accumulation)
        sharded = spec.shard and world.size > 1
        names = ("learning_rate", "betas", "weight_decay", "decay_embedding", "gradient_clip")
        optimizer = {name: getattr(spec, name) for name in names} | {"eps": spec.adam_eps}
        execution = Execution(**spec.backends, compiled=spec.compile)
        given = model_config(spec.model), execution, optimizer, spec.precision, spec.compile
        step = build_step(Setup(*given, device), world.size if sharded else 1)
        if world.size > 1:
            copied = [] if sharded else list(step.model.parameters())
            step.reduce = SummedGradients(world, copied, device, lambda: (False, False))
        micro, rows = spec.micro, spec.micro * spec.accumulation
        count = _UPDATES_OF_DATA * rows * spec.context + 1
        tokens = np.random.default_rng(0).integers(0, spec.model["vocab_size"], count)
        windows = TrainingWindows(tokens, spec.context, spec.seed)

        def update(index: int) -> None:
            ids = windows.window_ids(index * rows, rows)
            share = world.share(spec.accumulation, equally=sharded)
            parts = (ids[part * micro :][:micro] for part in share)
            batches = (windows.batch(part, micro * spec.context, micro) for part in parts)
            on_device = (tuple(to_device(array, device) for array in batch) for batch in batches)
            step(on_device, spec.tokens_per_update, spec.learning_rate)

        peak = PeakMemory(device)
        for index in range(warmup):
            update(index)
            if index == 0 and device.type == "cuda":
                synchronize(device)
                torch.cuda.reset_peak_memory_stats()
        world.all_reduce(torch.zeros(1, device=device))
        synchronize(device)
        began = time.perf_counter()
        for index in range(updates):
            update(index)
        synchronize(device)
        seconds = time.perf_counter() - began
        most = torch.tensor([peak.gib() or 0.0], device=device)
        world.largest(most)
        gib = most.item() or None
    rate = updates * spec.tokens_per_update / seconds
    return Scaling(world.size, rate, gib, sharded) if world.leads else None


def launch(spec: RunSpec, processes: int, warmup: int, updates: int) -> Scaling:
    """Measure with so many processes, through torchrun. Raises RunError where they fail."""
    torchrun = ["torch.distributed.run", *torchrun_options(processes)]
    given = json.dumps([asdict(spec), warmup, updates])
    done = subprocess.run(
        [sys.executable, "-m", *torchrun, "-m", "relation.bench.scaling", given],
        cwd=Path(__file__).parents[2],
        # torchrun sets it for several processes alone, and one would have all cores.
        env={"OMP_NUM_THREADS": "1", **os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.splitlines()
        told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        # Else torchrun's own account of it, whose first error is the cause.
        told += [line.strip() for line in lines if "Error" in line]
        raise RunError([*told, f"torchrun failed with status {done.returncode}"][0])
    return Scaling(**json.loads(done.stdout.splitlines()[-1]))


def main(given: str) -> int:
    """One process of `launch`; the first prints what it measured. Returns the exit status."""
    values, *updates = json.loads(given)
    try:
        measured = measure_updates(RunSpec(**values), *updates)
    except RelationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if measured is not None:
        print(json.dumps(asdict(measured)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
