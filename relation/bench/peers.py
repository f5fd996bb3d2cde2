"""What a benchmark compares: shapes, implementations of an operator, models of a training step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from relation.bench.steps import Setup, build_step
from relation.ops import get_backend
from relation.spec import SystemsSpec
from relation.variants import model_config
from relation.verify.inputs import Inputs, Operator, Shape

Systems = Sequence[SystemsSpec]  # of one campaign


def _runs_anywhere(device: torch.device) -> str | None:
    return None


@dataclass(frozen=True)
class Peer:
    """One implementation of an operator, measured in a process to which it travels by pickle.

    `build(shape, device)` gives the function to time. It takes the inputs that `takes` names, in
    that order, and returns Y; a gradient is taken for each but the `frozen`. `definition` takes
    the same and is what it must compute, on at most `checked_tokens` tokens. `why_unavailable` says
    why a device cannot run it. `longest`: the most tokens that it is timed on; more would take too
    long. `autotuned`: its first call searches Triton launches.
    """

    name: str
    takes: tuple[str, ...]
    build: Callable[[Shape, torch.device], Operator]
    definition: Operator
    frozen: tuple[str, ...] = ()
    why_unavailable: Callable[[torch.device], str | None] = _runs_anywhere
    checked_tokens: int = 4096
    longest: int | None = None
    autotuned: bool = False

    @property
    def wanted(self) -> list[str]:
        """The inputs whose gradients are taken."""
        return [name for name in self.takes if name not in self.frozen]

    def why_not_timed(self, shape: Shape, device: torch.device) -> str | None:
        """Why it has no time on this shape and device, or None where it has one."""
        if self.longest is not None and shape.length > self.longest:
            return f"it is not timed above T = {self.longest}, where a call takes too long"
        return self.why_unavailable(device)


@dataclass(frozen=True)
class AsItIs:
    """Builds a function that serves every shape; unlike a closure, it travels by pickle."""

    call: Operator

    def __call__(self, shape: Shape, device: torch.device) -> Operator:
        return self.call


def _why_no_backend(operator: str, backend: str, device: torch.device) -> str | None:
    return get_backend(operator, backend).why_unavailable(device)


def backend_peer(
    name: str, operator: str, backend: str, takes: tuple[str, ...], definition: Operator
) -> Peer:
    """A peer that is one of this project's backends. Raises InputError for an unknown one."""
    build = AsItIs(get_backend(operator, backend).call)
    why_unavailable = partial(_why_no_backend, operator, backend)
    return Peer(name, takes, build, definition, why_unavailable=why_unavailable)


@dataclass(frozen=True)
class Side:
    """One model of a training step: a variant and the backends that run it.

    `build` makes the step.
    """

    name: str
    variant: str
    backends: Mapping[str, str]
    build: Callable[[Setup], Callable] = build_step


@dataclass(frozen=True)
class Benchmark:
    """What one benchmark compares on one kind of device.

    subject: the name of the peer, and side, whose time is the unit of every ratio. `draw(shape,
    dtype, device, generator)` gives random inputs by name, with "dy", the gradient of Y; without
    peers there is none. steps: the sides measured at the geometry of each of a campaign's systems
    benchmarks. long: the side measured at ever longer contexts. floor: whether a copy of the bytes
    that the subject must read and write is timed beside it.
    """

    title: str
    subject: str
    steps: Mapping[str, tuple[Side, ...]]
    peers: tuple[Peer, ...] = ()
    shapes: Callable[[Systems], list[Shape]] = lambda systems: []
    draw: Callable[[Shape, torch.dtype, torch.device, torch.Generator], Inputs] | None = None
    long: Side | None = None
    floor: bool = False

    @property
    def names(self) -> list[str]:
        """Names of all peers and sides, each once."""
        sides = [side for sides in self.steps.values() for side in sides]
        return list(dict.fromkeys(item.name for item in (*self.peers, *sides)))


def micro_batch_shapes(systems: Systems) -> list[Shape]:
    """One layer's call on a micro-batch of each scale, as its training steps make it."""
    shapes = []
    for spec in systems:
        if spec.benchmark == "matched":
            side = next(side for side in spec.sides if side["variant"] == "full")
            model = model_config(side["model"])
            dimensions = side["micro"], model.heads, side["context"], model.head_dim
            shapes.append(Shape(spec.scale, *dimensions))
    return shapes
