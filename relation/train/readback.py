"""Readings of a run: scalars that stay on the device and are read when it has got that far."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Tag = TypeVar("Tag")

# A GPU is always given the next updates before the first of these is waited for.
UPDATES_LATE = 3
_SECONDS_BETWEEN_LOOKS = 0.0002


class Reading(NamedTuple, Generic[Tag]):
    """What was put, its values on the host, and seconds since the reading before it ended."""

    tag: Tag
    values: list[float]
    seconds: float


class _Waiting(NamedTuple, Generic[Tag]):
    tag: Tag
    values: Tensor
    ended: torch.cuda.Event


class Readings(Generic[Tag]):
    """Scalars of each update, in order, read at most `late` updates after it was started.

    On a GPU they are copied to pinned memory behind the update and the time is the GPU's own,
    from the end of one update to the end of the next, so that what the host takes to keep it busy
    is in it. On a CPU nothing is late and the clock is the host's. `restart` begins a stretch: the
    time before it, spent on saving or starting, belongs to no update.

    while_waiting: called again and again while a reading is awaited, and may raise.
    """

    def __init__(self, device: torch.device, while_waiting: Callable[[], None] | None = None):
        self._on_gpu = device.type == "cuda"
        self.late = UPDATES_LATE if self._on_gpu else 0
        self._while_waiting = while_waiting
        self._waiting: deque[_Waiting[Tag]] = deque()
        self.restart()

    def restart(self) -> None:
        """Begin a stretch of updates that follow one another at once; none may be waiting."""
        self._began = self._gpu_time() if self._on_gpu else time.perf_counter()

    @staticmethod
    def _gpu_time() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def _copied(values: Tensor) -> Tensor:
        """A copy on the host, complete once the device gets there."""
        pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return pinned.copy_(values, non_blocking=True)

    def put(self, tag: Tag, values: Tensor) -> Iterator[Reading[Tag]]:
        """Take an update's scalars, (n,) FP32 on the device; yield those that are due."""
        if not self._on_gpu:
            ended = time.perf_counter()
            seconds, self._began = ended - self._began, ended
            yield Reading(tag, values.tolist(), seconds)
            return
        copied = self._copied(values)
        self._waiting.append(_Waiting(tag, copied, self._gpu_time()))
        while len(self._waiting) > self.late:
            yield self._next()

    def drain(self) -> Iterator[Reading[Tag]]:
        """Yield all that wait."""
        while self._waiting:
            yield self._next()

    def _next(self) -> Reading[Tag]:
        first = self._waiting.popleft()
        if self._while_waiting is None:
            first.ended.synchronize()
        else:
            while not first.ended.query():
                self._while_waiting()
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        seconds = self._began.elapsed_time(first.ended) / 1e3
        self._began = first.ended
        return Reading(first.tag, first.values.tolist(), seconds)
