"""The rows of a benchmark: what was measured, or why it could not be."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from relation.errors import InputError, RunError
from relation.systems.bench.peers import Shape
from relation.systems.bench.timing import interleave, ratio, summary

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """Why a side has no time: `status` is OOM, UNAVAILABLE, FAILED or WRONG, `reason` one line."""

    status: str
    reason: str


def attempt(work: Callable[[], T], ours: bool) -> T | Failure:
    """What `work` returns, or the failure that takes its place so that others go on.

    Out of memory is an outcome for everyone. A peer is mostly somebody else's code and may refuse
    a device, a shape or an import with any exception; what is `ours` raises it. Of this project's
    own errors InputError says that a device cannot run it, RunError that it computes nonsense.
    """
    try:
        return work()
    except torch.OutOfMemoryError as error:
        failure = Failure("OOM", _first_line(error))
    except Exception as error:
        if ours:
            raise
        failure = _failure(error)
    reclaim()
    return failure


def _failure(error: Exception) -> Failure:
    if isinstance(error, InputError):
        return Failure("UNAVAILABLE", str(error))
    if isinstance(error, RunError):
        return Failure("WRONG", str(error))
    return Failure("FAILED", f"{type(error).__name__}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"


def reclaim() -> None:
    """Give the memory of what is gone back to the device, and keep what is compiled."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def attempt_in_rounds(
    sides: Mapping[str, Callable[[], float]], rounds: int, subject: str
) -> tuple[dict[str, list[float]], dict[str, Failure]]:
    """What `interleave` finds, and by name the failures of sides that did not answer every round.

    What fails is no more asked than what `attempt` cannot prepare, and the others go on.
    """
    failures: dict[str, Failure] = {}

    def answer(name: str) -> float | None:
        found = attempt(sides[name], ours=name == subject)
        if isinstance(found, Failure):
            failures[name] = found
            return None
        return found

    times = interleave({name: partial(answer, name) for name in sides}, rounds)
    for name, failure in failures.items():
        told = f"{failure.reason} (after {len(times[name])} of {rounds} rounds)"
        failures[name] = replace(failure, reason=told)
    return times, failures


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
        """The row of a side that was not measured."""
        return self.row(measure, peer, status=failure.status, reason=failure.reason)

    def measured(
        self, measure: str, peer: str, times: dict[str, list[float]], rounds: int, **found: Any
    ) -> dict:
        """The row of a side that answered every round; `times` are all sides' seconds."""
        seconds, unit = times[peer], times.get(self.subject, ())
        compared = {}
        if peer != self.subject and len(unit) == rounds:
            compared = ratio(seconds, unit)
        return self.row(measure, peer, samples=seconds, **summary(seconds), **compared, **found)
