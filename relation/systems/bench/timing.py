"""Timing single calls, and asking several sides in turns."""

import itertools
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from relation.systems.throughput import mark, seconds_between, synchronize

Call = Callable[[], object]

WARM_CALLS = 3
WARM_ROUNDS = 2
STEADY_PARTS = 10
_SHORTEST_SECONDS = 2e-4
_CPU_CACHE_BYTES = 32 * 2**20


def cache_bytes(device: torch.device) -> int:
    """Bytes of the device's last cache; for a CPU a size that few exceed."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    return _CPU_CACHE_BYTES


@dataclass(frozen=True)
class Plan:
    """How one call is timed: `calls` in a row, after `fills` writes that keep the GPU busy."""

    calls: int
    fills: int


class Stopwatch:
    """Seconds that single calls take on one device.

    On a GPU they lie between CUDA events, and the calls are launched while the GPU still writes a
    buffer four times its L2 cache. So the host's launches are not part of the time, and nothing
    that an earlier call left in the cache is there.
    """

    def __init__(self, device: torch.device):
        self.device = device
        if device.type == "cuda":
            size = 4 * cache_bytes(device)
            self._buffer = torch.empty(size, dtype=torch.uint8, device=device)
            self._fill_seconds = min(self._between_events(self._buffer.zero_) for _ in range(5))

    def _between_events(self, call: Call) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def plan(self, call: Call) -> Plan:
        """Warm a call up, so that it is compiled, and see how it must be timed.

        A call under 0.2 ms is timed several in a row.
        """
        for _ in range(WARM_CALLS):
            call()
        synchronize(self.device)
        began = time.perf_counter()
        call()
        launched = time.perf_counter() - began
        synchronize(self.device)
        if self.device.type != "cuda":
            return Plan(math.ceil(_SHORTEST_SECONDS / launched), 0)
        # Twice the launching time: the host is not equally fast every time.
        once = self.seconds(call, Plan(1, math.ceil(2 * launched / self._fill_seconds)))
        calls = math.ceil(_SHORTEST_SECONDS / once)
        return Plan(calls, math.ceil(2 * calls * launched / self._fill_seconds))

    def seconds(self, call: Call, plan: Plan) -> float:
        """Seconds of one call, the mean of `plan.calls` in a row."""

        def calls() -> None:
            for _ in range(plan.calls):
                call()

        if self.device.type == "cuda":
            for _ in range(plan.fills):
                self._buffer.zero_()
            return self._between_events(calls) / plan.calls
        began = time.perf_counter()
        calls()
        return (time.perf_counter() - began) / plan.calls

    def steady(self, call: Call, seconds: float) -> list[float]:
        """Seconds of one call in each of STEADY_PARTS parts of a load without a pause.

        The load lasts about `seconds`, and the parts are its second half: by then a GPU has come to
        the clock that its power cap leaves it, as in training, where single calls run faster.
        """
        once = self.seconds(call, Plan(1, 0))
        calls = math.ceil(seconds / (2 * STEADY_PARTS * once))
        marks = [mark(self.device)]
        for _ in range(2 * STEADY_PARTS):
            for _ in range(calls):
                call()
            marks.append(mark(self.device))
        synchronize(self.device)
        parts = itertools.pairwise(marks[STEADY_PARTS:])
        return [seconds_between(start, end) / calls for start, end in parts]


def interleave(
    sides: Mapping[str, Callable[[], float | None]], rounds: int, warm_rounds: int = WARM_ROUNDS
) -> dict[str, list[float]]:
    """What every side returns in each of `rounds` rounds, by name.

    A round asks each side once, in an order drawn anew, so that a drift of the clocks meets all
    alike; `warm_rounds` before them do not count. A side that runs out of memory or returns None is
    asked no more, and its list is shorter than `rounds`.
    """
    order, drawn = list(sides), random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(warm_rounds + rounds):
        drawn.shuffle(order)
        for name in list(order):
            try:
                value = sides[name]()
            except torch.OutOfMemoryError:
                value = None
            if value is None:
                order.remove(name)
            elif number >= warm_rounds:
                found[name].append(value)
    return found
