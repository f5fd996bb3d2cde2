"""Looks at a run's model while it trains, by what the command layer sends along."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from relation.data.mask import DocumentMask
from relation.data.tokens import data_rows, open_prepared
from relation.nn import Decoder
from relation.spec import RunSpec
from relation.train.checkpoint import Progressed
from relation.train.evaluate import nll_of

VALIDATION_NLL = "validation_nll"


class Probe(Protocol):
    """Sees a run's model before its first update and after each of `times` parts of its budget."""

    times: int

    def look(self, model: Decoder) -> list[dict[str, Any]]:
        """Rows of the model as it is, eager: the columns of PROBES from `layer` on.

        It must leave the model as it is and draw nothing at random.
        """

    def origin(self) -> Mapping[str, Any]:
        """What the record's origin says of it besides; raises InputError where it cannot look."""


@dataclass(frozen=True)
class ValidationProbe:
    """NLL of the first `tokens` predicted tokens of the validation split, or of all there are.

    data: the run's prepared corpus.
    """

    times: int
    tokens: int
    data: Path
    spec: RunSpec

    @cached_property
    def _read(self) -> np.ndarray:
        row = data_rows(self.data)["validation"]
        return open_prepared(self.data, "validation", row["sha256"])[: self.tokens + 1]

    def look(self, model: Decoder) -> list[dict[str, Any]]:
        """One row, in the run's precision."""
        spec, device = self.spec, model.embedding.weight.device
        given = model, self._read, spec.context, spec.micro, device, spec.precision
        nll, _ = nll_of(*given, mask=DocumentMask.of(spec.document_mask, self.data))
        return [{"layer": None, "part": None, "metric": VALIDATION_NLL, "value": nll}]

    def origin(self) -> dict[str, int]:
        return {"validation_looks": self.times, "validation_look_tokens": self.tokens}


def begin(probes: Sequence[Probe], progressed: Progressed, run: str) -> None:
    """Note who looks at a run. Looks that others took before it was stopped are given up."""
    probed_by = {name: said for probe in probes for name, said in probe.origin().items()}
    if progressed.probed_by not in ({}, probed_by):
        progressed.probes.clear()
        print(
            f"warning: {run} was looked at by other code or settings up to update "
            f"{progressed.update}; those looks are left out",
            file=sys.stderr,
        )
    progressed.probed_by = probed_by


def due(probes: Sequence[Probe], before: int, after: int, budget: int) -> list[Probe]:
    """Those with an equal part of the budget that ends past `before` tokens, at most at `after`.

    The part before the first token ends at 0.
    """
    return [p for p in probes if after * p.times // budget > before * p.times // budget]


class PeakMemory:
    """Bytes allocated on a GPU at most since the process began; 0 on a CPU."""

    def __init__(self, device: torch.device):
        self._counts, self._before = device.type == "cuda", 0

    def bytes(self) -> int:
        """The most so far, without what was left out."""
        now = torch.cuda.max_memory_allocated() if self._counts else 0
        return max(self._before, now)

    def gib(self) -> float | None:
        """The same in GiB; None on a CPU."""
        return self.bytes() / 2**30 if self._counts else None

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """What is allocated inside, and freed there, does not count."""
        self._before = self.bytes()
        yield
        if self._counts:
            torch.cuda.reset_peak_memory_stats()
