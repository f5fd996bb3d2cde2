"""Shared by the tests of the benchmarks: campaigns of the configuration, and a small case."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from conftest import ROOT

from relation.bench.conditions import Conditions
from relation.bench.processes import Measurement, answer
from relation.bench.rounds import Answers, Session
from relation.bench.sides import Case
from relation.machine.progress import Progress
from relation.pipeline.campaign import Campaign, resolve
from relation.pipeline.config import load_config
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


def campaign(name: str, **choices: str) -> Campaign:
    return resolve(load_config(ROOT / "config.yaml"), campaign=name, **choices)


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


def quiet_session(sides: int = 1, start: Callable = InProcess) -> Session:
    """A session of so many sides on this CPU, in this process."""
    return Session(CPU, Quiet(), Progress("test", 2 * sides, "measurements"), start)


def measured(
    case: Case, measure: str, peer: str, seconds: list, unit: list | None = None, **found: Any
) -> dict:
    """The row of a side with these seconds; unit: the subject's."""
    samples = {case.subject: unit or seconds, peer: seconds}
    sides = {name: Answers(samples={measure: values}) for name, values in samples.items()}
    return case.row(measure, peer, sides, **found)
