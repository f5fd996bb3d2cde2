"""Shared by the tests of the benchmarks: a small case, and processes of this one."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from relation.bench.conditions import Conditions
from relation.bench.processes import Failure, Measurement, answer
from relation.bench.rounds import Answers, Part, Session, session
from relation.bench.sides import Case
from relation.machine.progress import Progress
from relation.verify.inputs import Shape

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
OPTIMIZER = {
    "learning_rate": 1e-2,
    "betas": (0.9, 0.95),
    "eps": 1e-4,  # wide: else the sign of a gradient near zero, mere rounding, moves its weight
    "weight_decay": 0.1,
    "decay_embedding": True,
    "gradient_clip": 0.5,
}
SHAPE = Shape("10M", 2, 2, 33, 16)
CASE = Case("flash", SHAPE, "fp32", "a machine", "tiled")


class InProcess:
    """Answers as a `Worker` does, in this process: tests give it what no pickle takes."""

    pid = 0
    _turn = threading.Lock()

    def __init__(self, measurement: Measurement):
        self._measurement = measurement

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def ask(self, question: str, *given: Any, watch: Callable[[], None] | None = None) -> Any:
        if watch is not None:
            watch()
        # Processes share no state of PyTorch's; threads do.
        with InProcess._turn:
            return answer(self._measurement, question, given)

    def close(self) -> None:
        pass


class Quiet(Conditions):
    """Conditions of a device that nothing disturbs."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self._before = []


def compared(part: Part, start: Callable = InProcess) -> dict[str, Answers]:
    """What the sides of a part answer on this CPU, in this process."""
    shared = Session(CPU, Quiet(), Progress("test", 2 * len(part.sides), "measurements"), start)
    found = shared.compare(part)
    assert shared.progress.done == shared.progress.total
    return found


def compared_rows(part: Part) -> list[dict]:
    """The rows of a part."""
    return part.rows(compared(part))


def on_gpu(part_of: Callable[[torch.device], Part]) -> list[dict]:
    """The rows of a part on a GPU."""
    with session("cuda", "test", lambda device: [part_of(device)]) as (shared, (part,)):
        return part.rows(shared.compare(part))


def failed(case: Case, measure: str, peer: str, status: str, reason: str) -> dict:
    """The row of a side that was not measured."""
    answers = Answers(failures={measure: Failure(status, reason)})
    return case.row(measure, peer, {peer: answers})


def measured(
    case: Case, measure: str, peer: str, seconds: list, unit: list | None = None, **found: Any
) -> dict:
    """The row of a side with these seconds; unit: the subject's."""
    samples = {case.subject: unit or seconds, peer: seconds}
    sides = {name: Answers(samples={measure: values}) for name, values in samples.items()}
    return case.row(measure, peer, sides, **found)
