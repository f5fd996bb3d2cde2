"""The protocol of every benchmark (Appendix F.2): one process per side, measured in turn.

All sides build, compile and warm up first. Then each round measures every side once, in random
order, while the other sides wait and keep their memory. A drift of the clocks therefore affects
all sides equally. A ratio is computed within each round.

The workload of a side is a generator function, which is sent to the side's process by pickle. It is
called with the device and the comparison's arguments. It builds, compiles, warms up and yields
facts, which become columns. Each time it receives a measure, it yields the seconds of one round.
When it receives None, it may yield further facts, such as peak memory:

    def workload(device, *arguments):
        answer = facts
        while (measure := (yield answer)) is not None:
            answer = seconds
        yield facts
"""

import gc
import math
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from relation import machine, records
from relation.bench.conditions import Conditions
from relation.errors import OUT_OF_MEMORY, InputError
from relation.jobs import Bench

Workload = Callable[..., Generator]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def median_columns(name: str, values: Sequence[float]) -> dict:
    """Return the columns name, name_low and name_high: the median and its 95% interval.

    The median of no values is None; so is the interval of fewer than six values.
    """
    low = high = None
    if len(values) >= 6:
        from scipy.stats import quantile_test  # late, as every side's process imports this module

        low, high = map(float, quantile_test(values).confidence_interval())
    median = statistics.median(values) if values else None
    return {name: median, f"{name}_low": low, f"{name}_high": high}


def ratio_columns(ours: "Answers", subjects: "Answers", measure: str) -> dict:
    """Return the median ratio of seconds per round, ours over the subject's, and its 95% interval.

    If a side was measured alone, no rounds are shared: return the ratio of medians, no interval.
    """
    a, b = (answers.samples.get(measure, []) for answers in (ours, subjects))  # seconds per round
    if not (a and b):  # a side has failed
        return median_columns("ratio", [])
    if ours.alone or subjects.alone:
        return median_columns("ratio", [statistics.median(a) / statistics.median(b)])
    return median_columns("ratio", [x / y for x, y in zip(a, b, strict=True)])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Timer:
    """Measures how many seconds a call takes on the device, and how many on the host.

    On a GPU one CUDA graph holds `calls` calls, so the time includes no launches by the host. The
    L2 cache is overwritten before every replay.
    """

    _SHORTEST = 5e-4  # seconds per replay at least: CUDA events are exact to half a microsecond

    def __init__(self, device: torch.device, call: Callable[[], object], least_calls: int = 1):
        """Warm up and capture the call. least_calls: the number of inputs it cycles through."""
        self.device, self.call = device, call
        for _ in range(3 if device.type == "cuda" else 1):
            call()
        synchronize(device)
        began = time.perf_counter()
        call()
        synchronize(device)
        once = time.perf_counter() - began
        self.calls = max(least_calls, math.ceil(self._SHORTEST / once))
        if device.type == "cuda":
            cache = torch.cuda.get_device_properties(device).L2_cache_size  # bytes
            self._buffer = torch.empty(4 * cache, dtype=torch.uint8, device=device)
            self._capture()
            # `once` includes the host's time, and a short replay the time to launch the graph.
            while (took := min(self.seconds() for _ in range(3))) * self.calls < self._SHORTEST:
                self.calls = math.ceil(1.1 * self._SHORTEST / took)
                self._capture()

    def _capture(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(self.calls):
                self.call()

    def seconds(self) -> float:
        """Return the seconds of one call on the device."""
        if self.device.type != "cuda":
            began = time.perf_counter()
            for _ in range(self.calls):
                self.call()
            return (time.perf_counter() - began) / self.calls
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._buffer.zero_()
        first.record()
        self._graph.replay()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3 / self.calls

    def host_seconds(self) -> float:
        """Return the seconds until an eager call on an idle device returns, the median of five."""
        samples = []
        for _ in range(5):
            synchronize(self.device)
            began = time.perf_counter()
            self.call()
            samples.append(time.perf_counter() - began)
        return statistics.median(samples)


class Failure(NamedTuple):
    """Why a number is missing: OOM, UNAVAILABLE (it cannot run here) or FAILED, and a reason."""

    status: str
    reason: str

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Convert an exception into a failure."""
        message = next(iter(str(error).strip().splitlines()), "no message")
        if OUT_OF_MEMORY.search(repr(error)):
            return cls("OOM", message)
        if isinstance(error, InputError):
            return cls("UNAVAILABLE", message)
        return cls("FAILED", f"{type(error).__name__}: {message}")


@dataclass
class Answers:
    """The answers of a side: facts, and seconds of every round and failures by measure.

    alone: whether it was measured alone, because all sides together did not fit into memory.
    """

    facts: dict = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    alone: bool = False

    def take(self, answer: dict | Failure, measures: Sequence[str]) -> None:
        """Keep facts; a failure replaces the seconds of these measures."""
        if isinstance(answer, Failure):
            self.failures |= dict.fromkeys(measures, answer)
            self.samples = {k: v for k, v in self.samples.items() if k not in measures}
        else:
            self.facts |= answer

    def columns(self, measure: str) -> dict:
        """Return the columns `status`, `reason`, `samples` and `alone`, and the facts."""
        status, reason = self.failures.get(measure, ("PASS", None))
        samples = self.samples.get(measure, [])
        own = {"status": status, "reason": reason, "samples": samples, "alone": self.alone}
        return own | self.facts


def _serve(work: Workload, pipe: Any, device: torch.device, threads: int, parent: int) -> None:
    """Answer "prepare", "seconds", "facts", "release" until the parent ends or closes the pipe."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    running: Generator | None = None
    while True:
        while not pipe.poll(5):
            if os.getppid() != parent:
                return
        try:
            question, arguments = pipe.recv()
        except EOFError:
            return
        answer: Any = {}
        try:
            if question == "prepare":
                running = work(device, *arguments)
                answer = next(running)
            elif question == "release":
                running = None
            else:
                answer = running.send(*arguments)  # of "seconds" the measure, of "facts" None
        except StopIteration:
            pass  # no further facts
        except Exception as error:
            answer = Failure.of(error)
        if isinstance(answer, Failure) or question == "release":
            running = None
            gc.collect()  # other sides need this memory
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        pipe.send(answer)
        if isinstance(answer, Failure) and "CUDA error" in answer.reason:
            return  # this process cannot use the device again; `compare` starts a new process


class Workers:
    """One process per side, with its workload. Use as a context manager.

    conditions: reads the device's clocks while a side is timed. Sides are prepared one by one,
    because some of them time candidate kernels while they compile.
    """

    def __init__(self, workloads: Mapping[str, Workload], conditions: Conditions):
        self.workloads, self.conditions = workloads, conditions
        self._processes: dict[str, tuple[multiprocessing.Process, Any]] = {}
        self._dead: dict[str, Failure] = {}

    def __enter__(self) -> "Workers":
        for name in self.workloads:
            self._start(name)
        return self

    def __exit__(self, *exception: object) -> None:
        for name in self.workloads:
            self._stop(name)

    def _start(self, name: str) -> None:
        # A forked process starts at once, but cannot use a GPU.
        device = self.conditions.device
        context = multiprocessing.get_context("spawn" if device.type == "cuda" else "fork")
        ours, theirs = context.Pipe()
        arguments = self.workloads[name], theirs, device, torch.get_num_threads(), os.getpid()
        process = context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self._processes[name] = process, ours

    def _stop(self, name: str) -> None:
        process, pipe = self._processes.pop(name)
        pipe.close()
        process.kill()
        process.join()

    def _ask(self, name: str, question: str, *arguments: Any) -> Any:
        """Ask a side; return its answer or a Failure. Read the conditions while a side is timed."""
        process, pipe = self._processes[name]
        if name not in self._dead:
            try:
                pipe.send((question, arguments))
                while not pipe.poll(0.2):
                    if question == "seconds":
                        self.conditions.look()
                return pipe.recv()
            except (EOFError, OSError):
                process.join(10)
                code = process.exitcode
                hint = ", killed as the system does when memory runs out" if code == -9 else ""
                reason = f"its process ended with status {code}{hint} in its {question}"
                self._dead[name] = Failure("FAILED", reason)
        return self._dead[name]

    def compare(
        self, arguments: Sequence[Any], measures: Sequence[str], rounds: int, warm_rounds: int = 2
    ) -> dict[str, Answers]:
        """Prepare every side with `arguments`, measure all rounds, and return the answers.

        If a side fails, the other sides continue without it. A side that runs out of memory is
        measured again alone, so a reported OOM is always its own.
        """
        by_side, generator = {name: Answers() for name in self.workloads}, random.Random(0)
        while self._dead:  # start these processes again
            name, _ = self._dead.popitem()
            self._stop(name)
            self._start(name)
        for name in self.workloads:
            by_side[name].take(self._ask(name, "prepare", *arguments), measures)
        for measure in measures:
            order = [name for name, answers in by_side.items() if measure not in answers.failures]
            for name in order:
                by_side[name].samples[measure] = []
            for number in range(warm_rounds + rounds):
                generator.shuffle(order)
                for name in list(order):
                    answer = self._ask(name, "seconds", measure)
                    self.conditions.look()
                    if isinstance(answer, Failure):
                        done = f"(after {len(by_side[name].samples[measure])} of {rounds} rounds)"
                        failure = Failure(answer.status, f"{answer.reason} {done}")
                        by_side[name].take(failure, measures[measures.index(measure) :])
                        order.remove(name)
                    elif number >= warm_rounds:
                        by_side[name].samples[measure].append(answer)
        for name, answers in by_side.items():
            if not answers.failures:
                answers.take(self._ask(name, "facts", None), measures)
            self._ask(name, "release")
        for name, answers in list(by_side.items()):
            if len(by_side) > 1 and any(f.status == "OOM" for f in answers.failures.values()):
                with Workers({name: self.workloads[name]}, self.conditions) as alone:
                    by_side |= alone.compare(arguments, measures, rounds, warm_rounds)
                by_side[name].alone = True
        return by_side


def record(
    bench: Bench,
    out: Path,
    groups: Iterable[Mapping[str, Workload]],
    cells: Iterable[tuple],
    row: Callable[..., dict],
    warm_rounds: int = 2,
) -> None:
    """Measure a campaign's benchmark and write its record, of the kind `bench.kind`.

    groups: workloads by side; the sides of a group are measured together. cells: the arguments of
    each comparison. row(side, seconds, *arguments): returns further columns from the seconds of all
    rounds. If a side runs out of memory, crashes or lacks a backend, the status in its row says so.
    """
    kind, rows = bench.kind, []
    names = records.KINDS[kind].names
    with machine.claim(bench.device, empty=True) as device:
        conditions = Conditions(device)
        for workloads in groups:
            with Workers(workloads, conditions) as processes:
                for arguments in cells:
                    by_side = processes.compare(arguments, [kind], bench.rounds, warm_rounds)
                    device_columns = conditions.columns()
                    for side, answers in by_side.items():
                        columns = answers.columns(kind) | device_columns
                        columns |= row(side, answers.samples.get(kind, []), *arguments)
                        rows.append({name: columns.get(name) for name in names})
        shared = records.key(bench, kind) | records.origin(bench.hash, machine.describe(device))
    records.write(out, kind, rows, shared)
