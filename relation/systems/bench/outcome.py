"""The rows of a benchmark: what was measured, or why it could not be."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from relation.errors import InputError, RunError
from relation.systems.bench.peers import Shape
from relation.systems.processes import KILLED, OOM, UNAVAILABLE, Failure
from relation.systems.rounds import Outcome
from relation.systems.statistics import ratio, ratio_apart, summary


def reclaim() -> None:
    """Give the memory of what is gone back to the device, and keep what is compiled."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Case:
    """What the rows of one comparison share."""

    benchmark: str
    shape: Shape
    precision: str
    device: str
    subject: str

    def row(self, measure: str, peer: str, **found: Any) -> dict:
        """A row with every column of the schema; what is not given is null."""
        batch, heads, length, width = self.shape.dimensions
        return {
            "benchmark": self.benchmark,
            "measure": measure,
            "scale": self.shape.scale,
            "batch": batch,
            "heads": heads,
            "length": length,
            "width": width,
            "precision": self.precision,
            "peer": peer,
            "status": "PASS",
            "reason": None,
            "seconds": None,
            "seconds_low": None,
            "seconds_high": None,
            "ratio": None,
            "ratio_low": None,
            "ratio_high": None,
            "tokens_per_second": None,
            "peak_bytes": None,
            "relative_error": None,
            "moved_bytes": None,
            "samples": [],
            "device": self.device,
        } | found

    def failed(self, measure: str, peer: str, failure: Failure) -> dict:
        """The row of a side that was not measured.

        Running out of memory and being killed are outcomes for everyone. A peer is mostly somebody
        else's code and may refuse a device, a shape or an import; where the subject does, there is
        nothing to compare: raises InputError or RunError.
        """
        if peer == self.subject and failure.status not in (OOM, KILLED):
            error = InputError if failure.status == UNAVAILABLE else RunError
            raise error(f"{peer}: {failure.reason}")
        return self.row(measure, peer, status=failure.status, reason=failure.reason)

    def measured(
        self,
        measure: str,
        peer: str,
        seconds: list[float],
        unit: list[float] | None = None,
        apart: bool = False,
        **found: Any,
    ) -> dict:
        """The row of a side that answered every round; `unit` are the subject's seconds, if any.

        apart: not in the same rounds.
        """
        compared = {}
        if peer != self.subject and unit:
            compared = (ratio_apart if apart else ratio)(seconds, unit)
        return self.row(measure, peer, samples=seconds, **summary(seconds), **compared, **found)

    def row_of(
        self, measure: str, peer: str, outcomes: Mapping[str, Outcome], **found: Any
    ) -> dict:
        """The row of one of several sides that were measured together."""
        outcome, subject = outcomes[peer], outcomes.get(self.subject)
        if measure in outcome.failures:
            return self.failed(measure, peer, outcome.failures[measure])
        unit = subject and subject.samples.get(measure)
        apart = outcome.alone or (subject is not None and subject.alone)
        return self.measured(measure, peer, outcome.samples[measure], unit, apart, **found)
