"""One operator and its peers on one shape: peak memory, time of forward and backward."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from relation.errors import InputError
from relation.progress import Progress
from relation.systems.bench.autotuning import brief_autotuning
from relation.systems.bench.exactness import check
from relation.systems.bench.outcome import Case, Failure, attempt, attempt_in_rounds
from relation.systems.bench.peers import Benchmark, Inputs, Peer, Shape
from relation.systems.bench.timing import Stopwatch, cache_bytes

FORWARD, FORWARD_BACKWARD = "forward", "forward+backward"
FLOOR = "floor"


class RotatingInputs:
    """Copies of a shape's random inputs, so that a call never finds its own in the cache.

    There is one copy more than fills the device's last cache.
    """

    def __init__(
        self,
        draw: Callable[..., Inputs],
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
    ):
        generator = torch.Generator(device).manual_seed(0)
        self.copies = [draw(shape, dtype, device, generator)]
        held = sum(tensor.nbytes for tensor in self.copies[0].values())
        for _ in range(math.ceil(cache_bytes(device) / held)):
            self.copies.append(draw(shape, dtype, device, generator))
        self._next = itertools.cycle(self.copies)

    def next(self) -> Inputs:
        return next(self._next)


@dataclass(frozen=True)
class PreparedPeer:
    """A peer ready to be timed: its calls by measure, and what it needs beyond its inputs.

    errors: as `relative_errors` gives them, None for the definition itself and the floor.
    moved_bytes: what the floor reads and writes, by measure.
    """

    calls: dict[str, Callable[[], object]]
    peak_bytes: int | None = None
    errors: dict[str, float] | None = None
    moved_bytes: dict[str, int] = field(default_factory=dict)

    def found(self, measure: str) -> dict:
        """The columns that a measure has beside its times."""
        backward = measure == FORWARD_BACKWARD
        error = None
        if self.errors is not None:
            error = max(self.errors.values()) if backward else self.errors["Y"]
        return {
            "relative_error": error,
            "peak_bytes": self.peak_bytes if backward else None,
            "moved_bytes": self.moved_bytes.get(measure),
        }


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


def _prepare(
    peer: Peer, shape: Shape, inputs: RotatingInputs, device: torch.device
) -> PreparedPeer:
    """Compile a peer and check what it computes. Raises RunError where that is something else."""
    call = peer.build(shape, device)

    def forward() -> Tensor:
        values = inputs.next()
        return call(*(values[name] for name in peer.takes))

    def forward_backward() -> None:
        values = inputs.next()
        y = call(*(values[name] for name in peer.takes))
        wanted = [values[name] for name in peer.takes if name not in peer.frozen]
        torch.autograd.grad(y, wanted, values["dy"])

    with brief_autotuning() if peer.autotuned else nullcontext():
        forward_backward()  # compiles what is compiled
    first = inputs.copies[0]
    itself = call is peer.definition and first["dy"].dtype == torch.float32
    errors = None if itself else check(peer, call, first, shape)
    calls = {FORWARD: forward, FORWARD_BACKWARD: forward_backward}
    return PreparedPeer(calls, _peak_bytes(forward_backward, device), errors)


def floor_bytes(peer: Peer, inputs: Inputs) -> dict[str, int]:
    """Bytes that a peer's passes read and write at least, by measure.

    Forward: every input once, and Y. Backward besides: every input and dY once, every gradient.
    """
    taken = sum(inputs[name].nbytes for name in peer.takes)
    wanted = sum(inputs[name].nbytes for name in peer.takes if name not in peer.frozen)
    forward = taken + inputs["dy"].nbytes
    return {FORWARD: forward, FORWARD_BACKWARD: 2 * forward + wanted}


def _prepare_floor(peer: Peer, inputs: Inputs, device: torch.device) -> PreparedPeer:
    """Copies on the device that move the bytes of `floor_bytes`: half are read, half written.

    A smaller copy goes through buffers of the largest's size, so that none finds its own in a
    cache that holds less.
    """
    moved = floor_bytes(peer, inputs)
    size = max(moved.values()) // 2
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copier(length: int) -> Callable[[], object]:
        starts = itertools.cycle(range(0, size - length + 1, length))

        def copy() -> None:
            start = next(starts)
            target[start : start + length].copy_(source[start : start + length])

        return copy

    calls = {measure: copier(count // 2) for measure, count in moved.items()}
    return PreparedPeer(calls, moved_bytes=moved)


def measure_operator(
    benchmark: Benchmark,
    case: Case,
    measures: Sequence[str],
    dtype: torch.dtype,
    repeats: int,
    device: torch.device,
    progress: Progress,
) -> list[dict]:
    """One row a peer and measure ("forward", "forward+backward") on the case's shape.

    The forward is training's: it keeps what a backward needs. The floor, where the benchmark has
    one, is a row like a peer's. `progress` advances by one for each of them prepared and for each
    row. Raises InputError where the device cannot run the subject,
    RunError where its Y or a gradient is another function's.
    """
    shape, label = case.shape, f"{case.shape.scale} {case.shape.dimensions}"
    stopwatch = Stopwatch(device)
    inputs = RotatingInputs(benchmark.draw, shape, dtype, device)
    prepared: dict[str, PreparedPeer | Failure] = {}
    for peer in benchmark.peers:
        progress.advance(0, f"{label} {peer.name}: compile and check")
        ours = peer.name == benchmark.subject
        reason = peer.why_not_timed(shape, device)
        if reason and ours:
            raise InputError(f"{peer.name} cannot run on {case.device}: {reason}")
        if reason:
            prepared[peer.name] = Failure("UNAVAILABLE", reason)
        else:
            prepared[peer.name] = attempt(partial(_prepare, peer, shape, inputs, device), ours)
        progress.advance(1, f"{label} {peer.name}")
    if benchmark.floor:
        subject = next(peer for peer in benchmark.peers if peer.name == benchmark.subject)
        work = partial(_prepare_floor, subject, inputs.copies[0], device)
        prepared[FLOOR] = attempt(work, ours=True)
        progress.advance(1, f"{label} {FLOOR}")

    rows = []
    for measure in measures:
        rows += _timed(prepared, case, measure, repeats, stopwatch)
        progress.advance(len(prepared), f"{label} {measure}")
    return rows


def _timed(
    prepared: Mapping[str, PreparedPeer | Failure],
    case: Case,
    measure: str,
    repeats: int,
    stopwatch: Stopwatch,
) -> list[dict]:
    """One measure's row of each peer, those that are ready timed in rounds."""
    failures, sides = {}, {}
    for name, peer in prepared.items():
        if isinstance(peer, Failure):
            failures[name] = peer
            continue
        call = peer.calls[measure]
        plan = attempt(partial(stopwatch.plan, call), ours=name == case.subject)
        if isinstance(plan, Failure):
            failures[name] = plan
        else:
            sides[name] = partial(stopwatch.seconds, call, plan)
    times, failed = attempt_in_rounds(sides, repeats, case.subject)
    failures |= failed
    return [
        case.failed(measure, name, failures[name])
        if name in failures
        else case.measured(measure, name, times, repeats, **peer.found(measure))
        for name, peer in prepared.items()
    ]
