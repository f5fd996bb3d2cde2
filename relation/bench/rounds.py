"""The protocol of every benchmark (Appendix F.2): each side in its own process, asked in turns.

All sides build, compile and warm up first. Then every round asks each side once, in a random order,
while the others wait with their memory held. A drift of the clocks meets all sides alike, and a
ratio is taken round by round.

A side is an object that travels to its process by pickle and there holds what it measures:

    prepare(*given)   build, compile and warm up; returns facts, which become columns
    seconds(measure)  one round of a measure
    proof()           facts that are known after the last round, such as the kernels that ran
    release()         let go of all tensors
"""

import gc
import math
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil
import pynvml
import torch
from scipy.stats import binom

from relation.errors import InputError
from relation.plan import Side

# PyTorch's profiler says on stderr whenever it starts and stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
PASS, OOM, UNAVAILABLE, FAILED = "PASS", "OOM", "UNAVAILABLE", "FAILED"
WARM_ROUNDS = 2
# Libraries' handles take memory when they are first used.
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_NOT_INITIALIZED",
)


# --- Statistics


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """A 95% interval of the median: two order statistics, by the binomial distribution.

    None for fewer than six values, which allow no such interval.
    """
    n = len(values)
    rank = int(binom.ppf(0.025, n, 0.5))
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[n - rank]


def median_columns(name: str, values: Sequence[float]) -> dict:
    """The columns `name`, `name`_low and `name`_high: the median and its 95% interval, or None."""
    low, high = median_interval(values) or (None, None)
    median = statistics.median(values) if values else None
    return {name: median, f"{name}_low": low, f"{name}_high": high}


def ratio_columns(ours: "Answers", subjects: "Answers", measure: str) -> dict:
    """One side's seconds over another's: median of the rounds' ratios and its 95% interval.

    Where one was measured alone there are no common rounds: the interval then spans the ratios of
    the ends of both medians' intervals. All None where either has no seconds.
    """
    a, b = (each.samples.get(measure) for each in (ours, subjects))
    if not a or not b:
        return dict.fromkeys(("ratio", "ratio_low", "ratio_high"))
    if not (ours.alone or subjects.alone):
        return median_columns("ratio", [x / y for x, y in zip(a, b, strict=True)])
    low = high = None
    if (ends := median_interval(a)) and (their_ends := median_interval(b)):
        low, high = ends[0] / their_ends[1], ends[1] / their_ends[0]
    middle = statistics.median(a) / statistics.median(b)
    return {"ratio": middle, "ratio_low": low, "ratio_high": high}


# --- Timing, inside a side's process


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cache_bytes(device: torch.device) -> int:
    """Bytes of the device's last cache; for a CPU a size that few exceed."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    return 32 * 2**20


class Timer:
    """Seconds that a call takes on the device, and seconds that it keeps the host.

    On a GPU `calls` calls are captured in one CUDA graph, so that the time holds no launch by the
    host. The L2 cache is overwritten before every replay.
    """

    _SHORTEST = 5e-4  # seconds of a replay: CUDA's events are exact to half a microsecond

    def __init__(self, device: torch.device, call: Callable[[], object], least_calls: int = 1):
        """Warm the call up, compile and capture it. least_calls: for a call that takes turns."""
        self.device, self.call = device, call
        for _ in range(3):
            call()
        synchronize(device)
        began = time.perf_counter()
        call()
        synchronize(device)
        once = time.perf_counter() - began
        self.calls = max(least_calls, math.ceil(self._SHORTEST / once))
        if device.type == "cuda":
            self._buffer = torch.empty(4 * cache_bytes(device), dtype=torch.uint8, device=device)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                for _ in range(self.calls):
                    call()

    def seconds(self) -> float:
        """Seconds of one call on the device."""
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
        """Seconds until one eager call returns on an idle device, the median of five."""
        found = []
        for _ in range(5):
            synchronize(self.device)
            began = time.perf_counter()
            self.call()
            found.append(time.perf_counter() - began)
        return statistics.median(found)


# --- Sides and their processes


class Failure(NamedTuple):
    """Why there is no number: OOM, UNAVAILABLE (it cannot run here) or FAILED, and one line."""

    status: str
    reason: str


@dataclass
class Answers:
    """What a side said: facts, seconds of every round and failures by measure.

    alone: measured apart from the others, because together they did not fit into memory.
    """

    facts: dict = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    alone: bool = False

    def status(self, measure: str) -> dict:
        """The columns `status` and `reason`."""
        failure = self.failures.get(measure, Failure(PASS, None))
        return {"status": failure.status, "reason": failure.reason}


def failure_of(error: Exception) -> Failure:
    """The failure that an exception stands for."""
    first = next(iter(str(error).strip().splitlines()), "no message")
    memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if memory or any(words in str(error) for words in _OUT_OF_MEMORY):
        return Failure(OOM, first)
    if isinstance(error, InputError):
        return Failure(UNAVAILABLE, first)
    return Failure(FAILED, f"{type(error).__name__}: {first}")


def reclaim() -> None:
    """Give the memory of deleted tensors back to the device."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _serve(side: Any, pipe: Any, threads: int, parent: int) -> None:
    """Answer questions until the other end is closed or its process is gone."""
    torch.set_num_threads(threads)
    while True:
        while not pipe.poll(5):
            if os.getppid() != parent:
                return
        try:
            question, given = pipe.recv()
        except EOFError:
            return
        try:
            answer = getattr(side, question)(*given)
        except Exception as error:
            answer = failure_of(error)
        if isinstance(answer, Failure) or question == "release":
            reclaim()  # the others wait for this memory
        pipe.send(answer)


class Process:
    """A side in its own process, whose crash or memory does not touch the others."""

    def __init__(self, side: Any, device: torch.device):
        # A fork starts at once, but cannot use a GPU.
        context = multiprocessing.get_context("spawn" if device.type == "cuda" else "fork")
        self._pipe, theirs = context.Pipe()
        given = side, theirs, torch.get_num_threads(), os.getpid()
        self._process = context.Process(target=_serve, args=given, daemon=True)
        self._process.start()
        theirs.close()
        self.dead: Failure | None = None

    def ask(self, question: str, *given: Any, watch: Callable[[], None] = lambda: None) -> Any:
        """The answer of a method of the side, or a Failure; `watch` is called meanwhile."""
        if self.dead is None:
            try:
                self._pipe.send((question, given))
                while not self._pipe.poll(0.2):
                    watch()
                return self._pipe.recv()
            except (EOFError, OSError):
                self._process.join(10)
                code = self._process.exitcode
                hint = ", killed as the system does when memory runs out" if code == -9 else ""
                told = f"its process ended with status {code}{hint} in its {question}"
                self.dead = Failure(FAILED, told)
        return self.dead

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()


class Sides:
    """The processes of several sides. Use as a context manager.

    conditions: watches the device meanwhile. one_by_one: prepare no two sides at once, for sides
    that time candidates of their own while they compile.
    """

    def __init__(
        self, sides: Mapping[str, Any], conditions: "Conditions", one_by_one: bool = False
    ):
        self.sides, self.conditions, self.one_by_one = sides, conditions, one_by_one
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> "Sides":
        for name, side in self.sides.items():
            self._processes[name] = Process(side, self.conditions.device)
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes.values():
            process.close()

    def _ask(self, question: str, *given: Any) -> dict[str, Any]:
        """The answers of all sides; a dead process is started anew."""
        for name, process in self._processes.items():
            if process.dead:
                process.close()
                self._processes[name] = Process(self.sides[name], self.conditions.device)
        threads = 1 if self.one_by_one else max(1, len(self._processes))
        with ThreadPoolExecutor(threads) as pool:
            answers = pool.map(lambda p: p.ask(question, *given), self._processes.values())
        return dict(zip(self._processes, answers, strict=True))

    def _together(
        self, given: Sequence[Any], measures: Sequence[str], rounds: int, warm_rounds: int
    ) -> dict[str, Answers]:
        found = {name: Answers() for name in self.sides}
        for name, told in self._ask("prepare", *given).items():
            if isinstance(told, Failure):
                found[name].failures = dict.fromkeys(measures, told)
            else:
                found[name].facts |= told
        self.conditions.ours = [process.pid for process in self._processes.values()]
        drawn = random.Random(0)
        for measure in measures:
            order = [name for name, answers in found.items() if measure not in answers.failures]
            samples: dict[str, list[float]] = {name: [] for name in order}
            for number in range(warm_rounds + rounds):
                drawn.shuffle(order)
                for name in list(order):
                    told = self._processes[name].ask("seconds", measure, watch=self.conditions.look)
                    self.conditions.look()
                    if isinstance(told, Failure):
                        reason = (
                            f"{told.reason} (after {len(samples.pop(name))} of {rounds} rounds)"
                        )
                        found[name].failures[measure] = told._replace(reason=reason)
                        order.remove(name)
                    elif number >= warm_rounds:
                        samples[name].append(told)
            for name, values in samples.items():
                found[name].samples[measure] = values
        for name, answers in found.items():
            if answers.samples:
                told = self._processes[name].ask("proof")
                if isinstance(told, Failure):
                    # Seconds whose conditions cannot be proven do not count.
                    answers.failures |= dict.fromkeys(answers.samples, told)
                    answers.samples = {}
                else:
                    answers.facts |= told
        self._ask("release")
        return found

    def compare(
        self,
        given: Sequence[Any],
        measures: Sequence[str],
        rounds: int,
        warm_rounds: int = WARM_ROUNDS,
    ) -> dict[str, Answers]:
        """What each side answers in all rounds of every measure, prepared with `given`.

        A side that fails is asked no more and the others go on. One that runs out of memory beside
        others is measured again alone, so that a reported OOM is its own.
        """
        self.conditions.forget()
        found = self._together(given, measures, rounds, warm_rounds)
        crowded = [n for n, a in found.items() if any(f.status == OOM for f in a.failures.values())]
        if len(found) > 1:
            for name in crowded:
                with Sides({name: self.sides[name]}, self.conditions) as alone:
                    found[name] = alone._together(given, measures, rounds, warm_rounds)[name]
                found[name].alone = True
        return found


# --- The device meanwhile


_THROTTLES = {
    "software power cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hardware slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "software thermal slowdown": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hardware thermal slowdown": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hardware power brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}


class Conditions:
    """Clock, temperature, power and other processes of a device, read by NVML while it is timed.

    Make it before the first side's process is on the device. ours: the processes of the sides.
    """

    def __init__(self, device: torch.device):
        self.device, self.ours = device, []
        self._gpu = self._driver = self._limit = None
        self._before: list[str] = []
        self.forget()
        if device.type != "cuda":
            busy = psutil.cpu_percent(interval=0.1)
            if busy > 25:
                self._before = [f"the CPU was {busy:.0f}% busy before the start"]
            return
        try:
            pynvml.nvmlInit()
            uuid = torch.cuda.get_device_properties(device).uuid
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            self._driver = pynvml.nvmlSystemGetDriverVersion()
            self._limit = self._read("MaxClockInfo", pynvml.NVML_CLOCK_SM)
            busy = []
            for _ in range(4):
                time.sleep(0.3)
                rates = self._read("UtilizationRates")
                busy.append(rates.gpu if rates else 0)
            # The least: work that ended just now shows for a moment.
            if min(busy) > 5:
                self._before.append(f"the GPU was {min(busy)}% busy before the start")
            if others := self._others():
                told = f"other processes on the GPU before the start: {len(others)}"
                self._before.append(told)
        except pynvml.NVMLError as error:
            self._gpu, self._before = None, [f"not observed, NVML: {error}"]

    def _read(self, name: str, *rest: Any) -> Any | None:
        try:
            return getattr(pynvml, f"nvmlDeviceGet{name}")(self._gpu, *rest)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission):
            return None

    def _others(self) -> set[int]:
        """The processes on the GPU without this one."""
        return {p.pid for p in self._read("ComputeRunningProcesses") or ()} - {os.getpid()}

    def forget(self) -> None:
        """Start anew."""
        self._readings, self._strangers = [], 0

    def look(self) -> None:
        """Take a reading; cheap, and without effect on a CPU."""
        if self._gpu is None:
            return
        power, listed = self._read("PowerUsage"), self._others()
        reading = {
            "sm_clock": self._read("ClockInfo", pynvml.NVML_CLOCK_SM),
            "temperature": self._read("Temperature", pynvml.NVML_TEMPERATURE_GPU),
            "power": None if power is None else power / 1e3,
            "reasons": self._read("CurrentClocksEventReasons") or 0,
        }
        self._readings.append(reading)
        # In a container NVML lists the host's process ids: only the number of ours is known then.
        known = len(listed & set(self.ours)) or len(self.ours)
        self._strangers = max(self._strangers, len(listed) - known)

    def columns(self) -> dict:
        """Clocks (MHz), highest temperature (C) and power (W), and what disturbed, or None."""
        clocks, temperatures, powers = (
            [reading[name] for reading in self._readings if reading[name] is not None]
            for name in ("sm_clock", "temperature", "power")
        )
        told = list(self._before)
        if self._strangers > 0:
            told.append(f"other processes on the GPU: {self._strangers}")
        for name, bit in _THROTTLES.items():
            if share := sum(bool(r["reasons"] & bit) for r in self._readings):
                told.append(f"{name} in {share / len(self._readings):.0%} of the readings")
        return {
            "driver": self._driver,
            "sm_clock": statistics.median(clocks) if clocks else None,
            "sm_clock_least": min(clocks, default=None),
            "sm_clock_limit": self._limit,
            "temperature": max(temperatures, default=None),
            "power": max(powers, default=None),
            "disturbed": "; ".join(told) or None,
        }


def rising_groups(sides: Sequence[Side]) -> list[list[Side]]:
    """Sides of a sweep over contexts, in groups that are measured together.

    Those up to an eighth of the longest hold at most a quarter of its tokens, and are one group.
    The others are one each, so that each can have the device's whole memory.
    """
    longest = max(side.context for side in sides)
    short = [side for side in sides if 8 * side.context <= longest]
    return [group for group in (short, *([s] for s in sides if s not in short)) if group]
