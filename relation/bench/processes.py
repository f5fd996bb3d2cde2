"""A measurement in its own process, whose crash or memory use does not touch the others.

Processes are forked from one server that has imported PyTorch and never touches a GPU, so another
one costs milliseconds. Each answers one question at a time and waits in between.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from relation.bench import start_server
from relation.errors import InputError, RunError

OOM, KILLED, UNAVAILABLE = "OOM", "KILLED", "UNAVAILABLE"
FAILED, WRONG = "FAILED", "WRONG"

_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_TO_ANSWER = 900.0
_SECONDS_TO_END = 10.0
# The libraries' handles take memory of their own when they are first used.
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_NOT_INITIALIZED",
)


@dataclass(frozen=True)
class Failure:
    """Why a side has no time.

    status: OOM, KILLED (its process died), UNAVAILABLE (it cannot run here), WRONG (it computes
    something else, or with another kernel) or FAILED (any other exception). reason: one line.
    """

    status: str
    reason: str


class Measurement(Protocol):
    """What a process measures: it travels there by pickle, and holds little before `prepare`.

    Every method may raise; a `Failure` takes the answer's place.
    """

    def prepare(self) -> dict:
        """Build, compile and warm up. Returns facts: columns of a row."""

    def seconds(self, measure: str) -> float:
        """One round of a measure, seconds."""

    def proof(self) -> dict:
        """Facts that are found after the last round, such as the kernels that ran."""


def failure_of(error: Exception) -> Failure:
    """The failure that an exception stands for."""
    lines = str(error).strip().splitlines()
    first = lines[0] if lines else "no message"
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return Failure(OOM, first)
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY):
        return Failure(OOM, first)
    if isinstance(error, InputError):
        return Failure(UNAVAILABLE, str(error))
    if isinstance(error, RunError):
        return Failure(WRONG, str(error))
    return Failure(FAILED, f"{type(error).__name__}: {first}")


def answer(measurement: Measurement, question: str, given: Sequence[Any]) -> Any | Failure:
    """What a method of a measurement returns, or the failure that it raises."""
    try:
        return getattr(measurement, question)(*given)
    except Exception as error:
        failure = failure_of(error)
    if failure.status == OOM and torch.cuda.is_initialized():
        # Freed blocks go back to the device, where others are waiting for their turn.
        torch.cuda.empty_cache()
    return failure


def _serve(connection: Any, threads: int) -> None:
    """Answer until the other end is closed; the first message is the measurement."""
    # Ctrl-C reaches every process of a terminal; the one that asks ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    unread = None
    try:
        measurement = connection.recv()
    except Exception as error:
        # It names what cannot be imported here.
        unread = failure_of(error)
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        connection.send(unread or answer(measurement, *asked))


class Worker:
    """A process with one measurement, ended by `close`. Use as a context manager.

    Raises what pickle raises for a measurement that cannot travel.
    """

    def __init__(self, measurement: Measurement):
        context = start_server()
        self._mine, theirs = context.Pipe()
        # A daemon ends with the process that started it.
        self._process = context.Process(
            target=_serve, args=(theirs, torch.get_num_threads()), daemon=True
        )
        self._process.start()
        theirs.close()
        self._dead: Failure | None = None
        self._mine.send(measurement)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        if kind is not None:
            # Its result is not wanted any more.
            self._process.kill()
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(
        self, question: str, *given: Any, watch: Callable[[], None] | None = None
    ) -> Any | Failure:
        """The answer of a method of the measurement, or why there is none.

        `watch` is called about five times a second while the process works. A process that died,
        or that did not answer within 15 minutes, answers nothing more.
        """
        if self._dead is not None:
            return self._dead
        try:
            self._mine.send((question, given))
            began = time.monotonic()
            while not self._mine.poll(_SECONDS_BETWEEN_LOOKS):
                if time.monotonic() - began > _SECONDS_TO_ANSWER:
                    return self._end_hung(question)
                if watch is not None:
                    watch()
            return self._mine.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._dead = Failure(KILLED, f"{self._cause_of_death()} in its {question}")
            return self._dead

    def _end_hung(self, question: str) -> Failure:
        self._process.kill()
        self.close()
        told = f"no answer in {_SECONDS_TO_ANSWER:.0f} s in its {question}, so it was ended"
        self._dead = Failure(KILLED, told)
        return self._dead

    def _cause_of_death(self) -> str:
        self._process.join(_SECONDS_TO_END)
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"the process ended with status {code}"
        name = signal.Signals(-code).name
        hint = ", as the system does when memory runs out," if name == "SIGKILL" else ""
        return f"the process was killed by {name}{hint}"

    def close(self) -> None:
        """End the process and give its memory back; kill it where it does not end in 10 s."""
        self._mine.close()
        self._process.join(_SECONDS_TO_END)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
