"""Progress with an estimate: a bar on a terminal, plain lines where output is collected."""

import sys
import time

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Counts towards `total` units. Use as a context manager; call `advance` after each step."""

    def __init__(self, label: str, total: int, unit: str, done: int = 0):
        self.label, self.total, self.unit, self.done = label, total, unit, done
        self._start, self._last, self._first = time.monotonic(), -_SECONDS_BETWEEN_LINES, done
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                desc=label, total=total, initial=done, unit=f" {unit}", unit_scale=True
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, step: int, note: str = "") -> None:
        """Record `step` more units; `note` is a short reading such as the loss."""
        self.done += step
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(step)
            return
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES and self.done < self.total:
            return
        self._last = now
        elapsed = now - self._start
        here = self.done - self._first
        left = f"{(self.total - self.done) * elapsed / here:.0f} s left" if here else "started"
        print(
            f"{self.label}: {self.done:,}/{self.total:,} {self.unit} "
            f"({self.done / self.total:.0%}), {note + ', ' if note else ''}{left}",
            file=sys.stderr,
            flush=True,
        )
