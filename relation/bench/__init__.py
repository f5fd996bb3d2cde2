"""Benchmarks: a campaign's updates and operators, peers of the operators, profiles, launches.

`python -m relation bench` measures one operator beside its peers in one process, so that its
ratios are of one run: a benchmark is a module that makes a `relation.bench.peers.Benchmark` for
each kind of device, and its line in `relation.bench.run.BENCHMARKS`.
"""

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

# PyTorch's profiler says on stderr whenever it starts and stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def start_server() -> BaseContext:
    """Start the server that every measuring process is forked from, unless it runs.

    It imports PyTorch meanwhile, and must never ask for a GPU: its forks could not use one.
    """
    context = multiprocessing.get_context("forkserver")
    # PyTorch imports the second, and with it SymPy, where a backward pass first takes a gradient.
    preloaded = ["relation.bench.steps", "torch.fx.experimental.symbolic_shapes"]
    context.set_forkserver_preload(preloaded)
    forkserver.ensure_running()
    return context


def wait_for_server() -> None:
    """Return once the server has imported all, so that it disturbs no measurement."""
    process = start_server().Process(target=int)
    process.start()
    process.join()
