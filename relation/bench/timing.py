"""Timing single calls on one device, apart from what the host and the caches add."""

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Call = Callable[[], object]

HOST = ", host"
LAUNCHES = 5
WARM_CALLS = 3
STEADY_PARTS = 10
_SHORTEST_SECONDS = 2e-4
_CPU_CACHE_BYTES = 32 * 2**20


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


def reclaim() -> None:
    """Give the memory of deleted tensors back to the device."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def cache_bytes(device: torch.device) -> int:
    """Bytes of the device's last cache; for a CPU a size that few exceed."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    return _CPU_CACHE_BYTES


@dataclass(frozen=True)
class Repeats:
    """How one call is timed: `calls` in a row, after `fills` writes that keep the GPU busy."""

    calls: int
    fills: int


class Stopwatch:
    """Seconds that single calls take on one device.

    On a GPU they lie between CUDA events, and the calls are launched while the GPU still writes a
    buffer four times its L2 cache. So the time holds none of the host's launches, and the cache
    holds nothing of an earlier call.
    """

    def __init__(self, device: torch.device):
        self.device = device
        if device.type == "cuda":
            size = 4 * cache_bytes(device)
            self._buffer = torch.empty(size, dtype=torch.uint8, device=device)
            self._fill_seconds = min(self._between_events(self._buffer.zero_) for _ in range(5))

    def _between_events(self, call: Call) -> float:
        start = mark(self.device)
        call()
        end = mark(self.device)
        end.synchronize()
        return seconds_between(start, end)

    def plan(self, call: Call) -> Repeats:
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
            return Repeats(math.ceil(_SHORTEST_SECONDS / launched), 0)
        # Twice the launching time: the host is not equally fast every time.
        once = self.seconds(call, Repeats(1, math.ceil(2 * launched / self._fill_seconds)))
        calls = math.ceil(_SHORTEST_SECONDS / once)
        return Repeats(calls, math.ceil(2 * calls * launched / self._fill_seconds))

    def seconds(self, call: Call, repeats: Repeats) -> float:
        """Seconds of one call, the mean of `repeats.calls` in a row."""

        def calls() -> None:
            for _ in range(repeats.calls):
                call()

        if self.device.type == "cuda":
            for _ in range(repeats.fills):
                self._buffer.zero_()
            return self._between_events(calls) / repeats.calls
        began = time.perf_counter()
        calls()
        return (time.perf_counter() - began) / repeats.calls

    def launching(self, call: Call) -> float:
        """Seconds until one call returns, the median of LAUNCHES: what the host takes for it.

        The device is idle before each, so that no call waits for room in its queue.
        """
        seconds = []
        for _ in range(LAUNCHES):
            synchronize(self.device)
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)

    def steady(self, call: Call, seconds: float) -> list[float]:
        """Seconds of one call in each of STEADY_PARTS parts of a load without a pause.

        The load lasts about `seconds`, and the parts are its second half: by then a GPU has come to
        the clock that its power cap leaves it, as in training, where single calls run faster.
        """
        once = self.seconds(call, Repeats(1, 0))
        calls = math.ceil(seconds / (2 * STEADY_PARTS * once))
        marks = [mark(self.device)]
        for _ in range(2 * STEADY_PARTS):
            for _ in range(calls):
                call()
            marks.append(mark(self.device))
        synchronize(self.device)
        parts = itertools.pairwise(marks[STEADY_PARTS:])
        return [seconds_between(start, end) / calls for start, end in parts]


class TimedCalls:
    """Part of a measurement: calls by measure, each timed as its first round finds it must be."""

    def begin(self, device: torch.device) -> None:
        """Make the stopwatch, in the process that measures."""
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self._stopwatch = Stopwatch(device)
        self._repeats: dict[str, Repeats] = {}
        self.calls: dict[str, Call] = {}

    def seconds(self, measure: str) -> float:
        """Seconds of one call; with HOST after a measure's name, those that it keeps the host."""
        call = self.calls[measure.removesuffix(HOST)]
        if measure.endswith(HOST):
            return self._stopwatch.launching(call)
        if measure not in self._repeats:
            self._repeats[measure] = self._stopwatch.plan(call)
        return self._stopwatch.seconds(call, self._repeats[measure])

    def proof(self) -> dict:
        return {}
