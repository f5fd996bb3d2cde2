"""Progress with an estimate: a bar on a terminal, plain lines where output is collected."""

import os
import sys
import time
from collections import deque

from tqdm import tqdm

from relation.registry import tells

_SECONDS_BETWEEN_LINES = 15.0
_SECONDS_OF_PACE = 60.0
_SECONDS_BETWEEN_SAMPLES = 1.0


def duration(seconds: float) -> str:
    """A span of time in its two largest units: "12 s", "3 min 20 s", "1 h 05 min", "2 d 03 h"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(whole / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = round(whole / 3600)
    return f"{hours // 24} d {hours % 24:02} h"


class Pace:
    """Units a second over the last minute.

    The first step is left out: compilation and warm-up fall into it, and would spoil the estimate.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        self._latest: tuple[float, float] | None = None

    def add(self, now: float, done: float) -> None:
        """Note that `done` units were complete at `now`, in seconds of any clock."""
        self._latest = (now, done)
        samples = self._samples
        if samples and now - samples[-1][0] < _SECONDS_BETWEEN_SAMPLES:
            return
        samples.append(self._latest)
        # The oldest that is kept lies at least a minute back, where there is one.
        while len(samples) > 2 and now - samples[1][0] >= _SECONDS_OF_PACE:
            samples.popleft()

    @property
    def rate(self) -> float | None:
        """Units a second; None before the second step."""
        if self._latest is None:
            return None
        (began, first), (now, last) = self._samples[0], self._latest
        return (last - first) / (now - began) if now > began and last > first else None


def _on_a_terminal() -> bool:
    # A dumb terminal cannot go back to the start of a line.
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@tells
class Progress:
    """Counts towards `total` units. Use as a context manager; call `advance` after each step."""

    def __init__(self, label: str, total: int, unit: str, done: int = 0):
        self.label, self.total, self.unit, self.done = label, total, unit, done
        self._began = time.monotonic()
        self._printed: float | None = None
        self._pace = Pace()
        self._bar = None
        if _on_a_terminal():
            self._bar = tqdm(
                desc=label,
                total=total,
                initial=done,
                unit=f" {unit}",
                unit_scale=True,
                dynamic_ncols=True,
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception) -> None:
        if self._bar is not None:
            self._bar.close()

    @tells
    def advance(self, step: int, note: str = "") -> None:
        """Record `step` more units; `note` is a short reading such as the loss."""
        complete = self.done < self.total <= self.done + step
        self.done += step
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(step)
            return
        now = time.monotonic()
        self._pace.add(now, self.done)
        recently = self._printed is not None and now - self._printed < _SECONDS_BETWEEN_LINES
        if recently and not complete:
            return
        self._printed = now
        print(self._line(now, note), file=sys.stderr, flush=True)

    def _line(self, now: float, note: str) -> str:
        parts = [f"{self.done:,}/{self.total:,} {self.unit} ({self.done / self.total:.0%})"]
        if note:
            parts.append(note)
        rate = self._pace.rate
        if rate is not None:
            digits = ",.0f" if rate >= 10 else ".2g"
            parts.append(f"{rate:{digits}} {self.unit}/s")
        if self.done >= self.total:
            parts.append(f"took {duration(now - self._began)}")
        elif rate is not None:
            parts.append(f"{duration((self.total - self.done) / rate)} left")
        return f"{self.label}: {', '.join(parts)}"
