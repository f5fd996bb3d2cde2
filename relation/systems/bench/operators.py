"""One operator and its peers on one shape: correctness, peak memory, forward and backward."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from relation.errors import InputError, RunError
from relation.progress import Progress
from relation.systems.bench.outcome import Case, Failure, attempt
from relation.systems.bench.peers import Benchmark, Inputs, Operator, Peer, Shape
from relation.systems.bench.timing import Stopwatch, cache_bytes, interleave

FORWARD, FORWARD_BACKWARD = "forward", "forward+backward"

# BF16 rounds to 2^-9 of a value; another function is off by its own size.
_SAME_FUNCTION = 0.02
_CHECKED_TOKENS = 4096


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
    """A peer ready to be timed: its two calls, what it needs beyond its inputs, how exact it is."""

    forward: Callable[[], None]
    forward_backward: Callable[[], None]
    peak_bytes: int | None
    relative_error: float


def relative_error(peer: Peer, call: Operator, inputs: Inputs) -> float:
    """RMS of Y minus its definition in FP32, over the definition's RMS.

    On the first sequence and at most its first 4,096 tokens: a causal operator's rows depend on
    no token after them.
    """

    def start(x: Tensor) -> Tensor:
        return (x[:1, :, :_CHECKED_TOKENS] if x.ndim else x).float()

    given = [inputs[name] for name in peer.takes]
    # Not under no_grad: what is compiled would be compiled once more.
    y = start(call(*given).detach())
    with torch.no_grad():
        truth = peer.definition(*map(start, given))
        return ((y - truth).square().mean() / truth.square().mean()).sqrt().item()


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

    forward_backward()  # compiles what is compiled
    error = relative_error(peer, call, inputs.copies[0])
    if not error <= _SAME_FUNCTION:
        raise RunError(
            f"{peer.name} on {shape.dimensions}: Y is off its definition by {error:.2g} of its RMS"
        )
    return PreparedPeer(forward, forward_backward, _peak_bytes(forward_backward, device), error)


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

    The forward is training's: it keeps what a backward needs. `progress` advances by one for each
    peer prepared and for each row. Raises InputError where the device cannot run the subject,
    RunError where it computes something else.
    """
    shape, label = case.shape, f"{case.shape.scale} {case.shape.dimensions}"
    stopwatch = Stopwatch(device)
    inputs = RotatingInputs(benchmark.draw, shape, dtype, device)
    prepared: dict[str, PreparedPeer | Failure] = {}
    for peer in benchmark.peers:
        progress.advance(0, f"{label} {peer.name}: compile and check")
        ours = peer.name == benchmark.subject
        reason = peer.why_unavailable(device)
        if reason and ours:
            raise InputError(f"{peer.name} cannot run on {case.device}: {reason}")
        if reason:
            prepared[peer.name] = Failure("UNAVAILABLE", reason)
        else:
            prepared[peer.name] = attempt(partial(_prepare, peer, shape, inputs, device), ours)
        progress.advance(1, f"{label} {peer.name}")

    rows = []
    ready = {name: p for name, p in prepared.items() if isinstance(p, PreparedPeer)}
    for measure in measures:
        sides = {}
        for name, peer in ready.items():
            call = peer.forward if measure == FORWARD else peer.forward_backward
            sides[name] = partial(stopwatch.seconds, call, stopwatch.plan(call))
        times = interleave(sides, repeats)
        for name, peer in prepared.items():
            if isinstance(peer, Failure):
                rows.append(case.failed(measure, name, peer))
            else:
                found = {"relative_error": peer.relative_error}
                if measure == FORWARD_BACKWARD:
                    found["peak_bytes"] = peer.peak_bytes
                rows.append(case.measured(measure, name, times, repeats, **found))
        progress.advance(len(prepared), f"{label} {measure}")
    return rows
