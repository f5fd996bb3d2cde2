"""Looks at a run's model while it trains, by what the command layer sends along."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from relation.model import Decoder
from relation.training.checkpoint import Progressed


class Probe(Protocol):
    """Sees a run's model before its first update and after each of `times` parts of its budget."""

    times: int

    def look(self, model: Decoder) -> list[dict[str, Any]]:
        """Rows of the model as it is, FP32 and eager: the columns of PROBES from `layer` on.

        It must leave the model as it is and draw nothing at random.
        """

    def origin(self) -> Mapping[str, Any]:
        """What the record's origin says of it besides; raises InputError where it cannot look."""


def begin(probe: Probe, progressed: Progressed, run: str) -> None:
    """Note who looks at a run. Looks that another probe took before it was stopped are given up."""
    probed_by = {**probe.origin(), "probe_times": probe.times}
    if progressed.probed_by not in ({}, probed_by):
        progressed.probes.clear()
        print(
            f"warning: {run} was looked at by other code or settings up to update "
            f"{progressed.update}; those looks are left out",
            file=sys.stderr,
        )
    progressed.probed_by = probed_by


def is_due(probe: Probe, before: int, after: int, budget: int) -> bool:
    """Whether an equal part of the budget ends past `before` tokens and at most at `after`.

    The part before the first token ends at 0.
    """
    return after * probe.times // budget > before * probe.times // budget


class PeakMemory:
    """Bytes allocated on a GPU at most since the process began; 0 on a CPU."""

    def __init__(self, device: torch.device):
        self._counts, self._before = device.type == "cuda", 0

    def bytes(self) -> int:
        """The most so far, without what was left out."""
        now = torch.cuda.max_memory_allocated() if self._counts else 0
        return max(self._before, now)

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """What is allocated inside, and freed there, does not count."""
        self._before = self.bytes()
        yield
        if self._counts:
            torch.cuda.reset_peak_memory_stats()
