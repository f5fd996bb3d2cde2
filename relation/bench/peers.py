"""What a benchmark compares: implementations of an operator, checked, and models of a step."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from relation.bench.steps import Setup, build_step
from relation.errors import RunError
from relation.ops import get_backend
from relation.spec import SystemsSpec
from relation.variants import model_config
from relation.verify.inputs import Inputs, Operator, Shape

Systems = Sequence[SystemsSpec]  # of one campaign
# BF16 rounds to 2^-9 of a value; another function is off by its own size.
_SAME_FUNCTION = 0.02
_WARM_MILLISECONDS, _TIMED_MILLISECONDS = 5, 20


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
    """One model of a training step: a variant, its backends, and what makes the step.

    documents: of how many equal ones every window is packed.
    """

    name: str
    variant: str
    backends: Mapping[str, str]
    build: Callable[[Setup], Callable] = build_step
    documents: int = 1


@dataclass(frozen=True)
class Benchmark:
    """What one benchmark compares on one kind of device.

    subject: the name of the peer, and side, whose time is the unit of every ratio. `draw(shape,
    dtype, device, generator)` gives random inputs by name, with "dy", the gradient of Y; without
    peers there is none. steps: the sides measured at the geometry of each of a campaign's systems
    benchmarks. long: the side measured at ever longer contexts. floor: whether a copy of the bytes
    that the subject must read and write is timed beside it. `tells(shape, dtype, device)`: a line
    on how the subject runs there.
    """

    title: str
    subject: str
    steps: Mapping[str, tuple[Side, ...]]
    peers: tuple[Peer, ...] = ()
    shapes: Callable[[Systems], list[Shape]] = lambda systems: []
    draw: Callable[[Shape, torch.dtype, torch.device, torch.Generator], Inputs] | None = None
    long: Side | None = None
    floor: bool = False
    tells: Callable[[Shape, torch.dtype, torch.device], str] | None = None

    @property
    def names(self) -> list[str]:
        """Names of all peers and sides, each once."""
        sides = [side for sides in self.steps.values() for side in sides]
        return list(dict.fromkeys(item.name for item in (*self.peers, *sides)))


def shape_of(scale: str, side: Mapping) -> Shape:
    """One layer's call in a side of a campaign's benchmark."""
    model = model_config(side["model"])
    return Shape(scale, side["micro"], model.heads, side["context"], model.head_dim)


def micro_batch_shapes(systems: Systems) -> list[Shape]:
    """One layer's call on a micro-batch of each scale, as its training steps make it."""
    return [
        shape_of(spec.scale, next(side for side in spec.sides if side["variant"] == "full"))
        for spec in systems
        if spec.benchmark == "matched"
    ]


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


def relative_errors(peer: Peer, call: Operator, inputs: Inputs) -> dict[str, float]:
    """RMS of Y and of each wanted gradient minus its definition in FP32, over the definition's RMS.

    On the first sequence and at most its first `peer.checked_tokens` tokens: a causal operator's
    rows depend on no token after them, and the gradient of Y is zero elsewhere. By name: "Y",
    "dp1" and so on.
    """

    def start(x: Tensor) -> Tensor:
        return x[:1, :, : peer.checked_tokens] if x.ndim else x

    dy = torch.zeros_like(inputs["dy"])
    start(dy).copy_(start(inputs["dy"]))
    # Not under no_grad: what is compiled would be compiled once more.
    y = call(*(inputs[name] for name in peer.takes))
    gradients = torch.autograd.grad(y, [inputs[name] for name in peer.wanted], dy)

    given = {name: start(inputs[name].detach()).float() for name in peer.takes}
    leaves = [given[name].requires_grad_() for name in peer.wanted]
    truth_dy, truth = start(dy).float(), peer.definition(*given.values())
    truths = torch.autograd.grad(truth, leaves, truth_dy)

    errors = {"Y": (_rms(start(y.detach()).float() - truth.detach()) / _rms(truth)).item()}
    for name, found, expected in zip(peer.wanted, gradients, truths, strict=True):
        size = _rms(expected) if expected.ndim else _scalar_rms(peer, given, name, truth_dy)
        errors[f"d{name}"] = (_rms(start(found).float() - expected) / size).item()
    return errors


def _scalar_rms(peer: Peer, given: Inputs, name: str, dy: Tensor) -> Tensor:
    """RMS of a scalar's gradient over all dy as large as this one: |dY/dx| times the RMS of dy.

    The gradient itself is no measure: its terms' signs are random, and they may cancel.
    """
    given = {other: tensor.detach() for other, tensor in given.items()}

    def of_scalar(x: Tensor) -> Tensor:
        return peer.definition(*(given | {name: x}).values())

    _, slope = torch.func.jvp(of_scalar, (given[name],), (torch.ones_like(given[name]),))
    return slope.norm() * _rms(dy)


def check(peer: Peer, call: Operator, inputs: Inputs, shape: Shape) -> dict[str, float]:
    """The errors of `relative_errors`. Raises RunError where one is above 0.02."""
    errors = relative_errors(peer, call, inputs)
    for name, error in errors.items():
        if not error <= _SAME_FUNCTION:
            raise RunError(
                f"{peer.name} on {shape.dimensions}: {name} is off its definition by {error:.2g} "
                "of its RMS"
            )
    return errors


@contextmanager
def brief_autotuning() -> Iterator[None]:
    """Inside it, every `triton.autotune` that has to choose does so in a fraction of its time.

    A library may have hundreds of candidates for one head width. They are compiled on all cores
    that this process may use before the first is timed, and each is timed for 25 ms instead of 125.
    Which candidates there are, and that the fastest is taken, stays as the library has it. Raises
    ImportError without Triton.
    """
    from triton import AsyncCompileMode
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    choose, timer = Autotuner.prune_configs, Autotuner.do_bench

    def compile_chosen(self, kwargs: dict) -> list:
        chosen = choose(self, kwargs)
        given = {name: value for name, value in kwargs.items() if name != "warmup"}
        # A candidate that does not compile fails again when it is timed, where it is left out.
        with AsyncCompileMode(pool, ignore_errors=True):
            for candidate in chosen:
                self.fn.warmup(*self.nargs.values(), **given, **candidate.all_kwargs())
        return chosen

    brief = partial(do_bench, warmup=_WARM_MILLISECONDS, rep=_TIMED_MILLISECONDS)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        Autotuner.prune_configs, Autotuner.do_bench = compile_chosen, staticmethod(brief)
        try:
            yield
        finally:
            Autotuner.prune_configs, Autotuner.do_bench = choose, timer
