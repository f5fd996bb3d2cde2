"""One operator and its peers on one shape: peak memory, time of forward and backward."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from relation.errors import InputError
from relation.progress import Progress
from relation.systems.bench.autotuning import brief_autotuning
from relation.systems.bench.exactness import check
from relation.systems.bench.outcome import Case
from relation.systems.bench.peers import Benchmark, Inputs, Peer, Shape
from relation.systems.bench.timing import Plan, Stopwatch, cache_bytes
from relation.systems.conditions import Conditions
from relation.systems.processes import UNAVAILABLE, Failure, Worker
from relation.systems.rounds import Start, measure_together

FORWARD, FORWARD_BACKWARD = "forward", "forward+backward"
FLOOR = "floor"


class RotatingInputs:
    """Copies of a shape's random inputs, so that a call never finds its own in the cache.

    There is one copy more than fills the device's last cache, of `cache` bytes where that is given.
    """

    def __init__(
        self,
        draw: Callable[..., Inputs],
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        cache: int | None = None,
    ):
        generator = torch.Generator(device).manual_seed(0)
        self.copies = [draw(shape, dtype, device, generator)]
        held = sum(tensor.nbytes for tensor in self.copies[0].values())
        for _ in range(math.ceil((cache or cache_bytes(device)) / held)):
            self.copies.append(draw(shape, dtype, device, generator))
        self._next = itertools.cycle(self.copies)

    def next(self) -> Inputs:
        return next(self._next)


def _peak_bytes(call: Callable[[], None], device: torch.device) -> int | None:
    """Most bytes allocated at once during a call beyond those before it; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


@dataclass(frozen=True)
class PeerJob:
    """One peer on one shape, to be checked and timed in a process of its own.

    cache: bytes of the device's last cache, which its inputs overflow.
    """

    peer: Peer
    draw: Callable[..., Inputs]
    shape: Shape
    dtype: torch.dtype
    device: torch.device
    cache: int

    def __call__(self) -> "PeerMeasurement":
        return PeerMeasurement(self)


class PeerMeasurement:
    """A peer's forward, and its forward and backward.

    The forward is training's: it keeps what a backward needs.
    """

    def __init__(self, job: PeerJob):
        self.job = job
        if job.device.type == "cuda":
            torch.cuda.set_device(job.device)
        self.stopwatch = Stopwatch(job.device)
        self.inputs = RotatingInputs(job.draw, job.shape, job.dtype, job.device, job.cache)
        self.plans: dict[str, Plan] = {}
        self.calls: dict[str, Callable[[], object]] = {}

    def prepare(self) -> dict:
        """Compile the peer and check what it computes: its errors by name and its peak bytes.

        Raises RunError where that is something else than its definition.
        """
        peer, shape, device = self.job.peer, self.job.shape, self.job.device
        call = peer.build(shape, device)

        def forward() -> Tensor:
            values = self.inputs.next()
            return call(*(values[name] for name in peer.takes))

        def forward_backward() -> None:
            values = self.inputs.next()
            y = call(*(values[name] for name in peer.takes))
            wanted = [values[name] for name in peer.takes if name not in peer.frozen]
            torch.autograd.grad(y, wanted, values["dy"])

        with brief_autotuning() if peer.autotuned else nullcontext():
            forward_backward()  # compiles what is compiled
        first = self.inputs.copies[0]
        itself = call == peer.definition and first["dy"].dtype == torch.float32
        errors = None if itself else check(peer, call, first, shape)
        self.calls = {FORWARD: forward, FORWARD_BACKWARD: forward_backward}
        return {"errors": errors, "peak_bytes": _peak_bytes(forward_backward, device)}

    def seconds(self, measure: str) -> float:
        """Seconds of one call."""
        call = self.calls[measure]
        if measure not in self.plans:
            self.plans[measure] = self.stopwatch.plan(call)
        return self.stopwatch.seconds(call, self.plans[measure])

    def proof(self) -> dict:
        return {}


def floor_bytes(peer: Peer, inputs: Inputs) -> dict[str, int]:
    """Bytes that a peer's passes read and write at least, by measure.

    Forward: every input once, and Y. Backward besides: every input and dY once, every gradient.
    """
    taken = sum(inputs[name].nbytes for name in peer.takes)
    wanted = sum(inputs[name].nbytes for name in peer.takes if name not in peer.frozen)
    forward = taken + inputs["dy"].nbytes
    return {FORWARD: forward, FORWARD_BACKWARD: 2 * forward + wanted}


@dataclass(frozen=True)
class FloorJob(PeerJob):
    """Copies of the bytes that a peer must read and write."""

    def __call__(self) -> "FloorMeasurement":
        return FloorMeasurement(self)


class FloorMeasurement(PeerMeasurement):
    """Copies on the device that move the bytes of `floor_bytes`: half are read, half written.

    A smaller copy goes through buffers of the largest's size, so that none finds its own in a
    cache that holds less.
    """

    def prepare(self) -> dict:
        moved = floor_bytes(self.job.peer, self.inputs.copies[0])
        size = max(moved.values()) // 2
        source = torch.randint(256, (size,), dtype=torch.uint8, device=self.job.device)
        target = torch.empty_like(source)

        def copier(length: int) -> Callable[[], object]:
            starts = itertools.cycle(range(0, size - length + 1, length))

            def copy() -> None:
                start = next(starts)
                target[start : start + length].copy_(source[start : start + length])

            return copy

        self.calls = {measure: copier(count // 2) for measure, count in moved.items()}
        return {"moved_bytes": moved}


def _columns(facts: Mapping, measure: str) -> dict:
    """The columns that a measure has beside its times."""
    backward, errors = measure == FORWARD_BACKWARD, facts.get("errors")
    error = None
    if errors is not None:
        error = max(errors.values()) if backward else errors["Y"]
    return {
        "relative_error": error,
        "peak_bytes": facts.get("peak_bytes") if backward else None,
        "moved_bytes": facts.get("moved_bytes", {}).get(measure),
    }


def measure_operator(
    benchmark: Benchmark,
    case: Case,
    measures: Sequence[str],
    dtype: torch.dtype,
    repeats: int,
    device: torch.device,
    progress: Progress,
    conditions: Conditions,
    start: Start = Worker,
) -> list[dict]:
    """One row a peer and measure ("forward", "forward+backward") on the case's shape.

    The floor, where the benchmark has one, is a row like a peer's. `progress` advances by two for
    each of them. Raises InputError where the device cannot run the subject, RunError where its Y
    or a gradient is another function's.
    """
    shape, label = case.shape, f"{case.shape.scale} {case.shape.dimensions}"
    given = benchmark.draw, shape, dtype, device, cache_bytes(device)
    jobs: dict[str, PeerJob] = {}
    missing: dict[str, Failure] = {}
    for peer in benchmark.peers:
        reason = peer.why_not_timed(shape, device)
        if reason and peer.name == benchmark.subject:
            raise InputError(f"{peer.name} cannot run on {case.device}: {reason}")
        if reason:
            missing[peer.name] = Failure(UNAVAILABLE, reason)
            progress.advance(2, f"{label} {peer.name}")
        else:
            jobs[peer.name] = PeerJob(peer, *given)
    if benchmark.floor:
        subject = next(peer for peer in benchmark.peers if peer.name == benchmark.subject)
        jobs[FLOOR] = FloorJob(subject, *given)

    def advance(name: str, done: int) -> None:
        progress.advance(done, f"{label} {name}")

    compiled = [name for name, job in jobs.items() if not job.peer.autotuned]
    outcomes = measure_together(
        jobs, measures, repeats, conditions, advance, start=start, at_once=compiled
    )
    names = [*(peer.name for peer in benchmark.peers), *([FLOOR] if benchmark.floor else [])]
    return [
        case.failed(measure, name, missing[name])
        if name in missing
        else case.row_of(measure, name, outcomes, **_columns(outcomes[name].facts, measure))
        for measure in measures
        for name in names
    ]
