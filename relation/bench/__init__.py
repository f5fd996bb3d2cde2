"""Benchmarks: a campaign's updates and operators, peers of the operators, profiles, launches.

`python -m relation bench` measures one operator beside its peers in one process, so that its
ratios are of one run: a benchmark is one module that makes a `relation.bench.peers.Benchmark`, and
its line in `relation.bench.run`.
"""

import os

# PyTorch's profiler says on stderr whenever it starts and stops, which no reader of a log asked.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
