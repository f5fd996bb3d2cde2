"""The sides of a benchmark and their rows: an operator's peers on one shape, and training steps."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from relation.bench.peers import Benchmark, Peer, Side, Systems, brief_autotuning, check
from relation.bench.processes import KILLED, OOM, UNAVAILABLE, Failure
from relation.bench.rounds import Answers, Part, prepared_together
from relation.bench.statistics import ratio, ratio_apart, summary
from relation.bench.steps import WholeUpdates, build_step
from relation.bench.timing import HOST, TimedCalls, cache_bytes
from relation.errors import InputError, RunError
from relation.spec import SystemsSpec
from relation.store.layouts import BENCH
from relation.variants import ModelConfig, model_config
from relation.verify.inputs import DTYPES, Inputs, Shape

FORWARD, FORWARD_BACKWARD = "forward", "forward+backward"
STEP, LONG = "step", "long"
FLOOR = "floor"
UPDATES_A_ROUND = 3


@dataclass(frozen=True)
class Case:
    """What the rows of one comparison share."""

    benchmark: str
    shape: Shape
    precision: str
    device: str
    subject: str

    def row(self, measure: str, peer: str, sides: Mapping[str, Answers], **found: Any) -> dict:
        """The row of one of several sides that were compared; what it has not is null.

        Running out of memory and being killed are outcomes for everyone. A peer is mostly somebody
        else's code and may refuse a device, a shape or an import; where the subject does, there is
        nothing to compare: raises InputError or RunError.
        """
        answers, subject = sides[peer], sides.get(self.subject)
        failure, seconds = answers.failures.get(measure), answers.samples.get(measure, [])
        if failure and peer == self.subject and failure.status not in (OOM, KILLED):
            error = InputError if failure.status == UNAVAILABLE else RunError
            raise error(f"{peer}: {failure.reason}")
        if failure:
            found = {}
        else:
            found |= summary(seconds)
        unit = subject and subject.samples.get(measure)
        if seconds and unit and peer != self.subject:
            found |= (ratio_apart if answers.alone or subject.alone else ratio)(seconds, unit)
        own = {
            "benchmark": self.benchmark,
            "measure": measure,
            "scale": self.shape.scale,
            **self.shape.columns,
            "precision": self.precision,
            "peer": peer,
            "samples": seconds,
            "device": self.device,
        }
        return dict.fromkeys(BENCH.names) | own | answers.status(measure) | found


def rotating_inputs(
    draw: Callable[..., Inputs],
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    cache: int | None = None,
) -> list[Inputs]:
    """Copies of a shape's random inputs; a call that takes the next finds it in no cache.

    The copies overflow the device's last cache, or `cache` bytes, by one.
    """
    generator = torch.Generator(device).manual_seed(0)
    copies = [draw(shape, dtype, device, generator)]
    held = sum(tensor.nbytes for tensor in copies[0].values())
    for _ in range(math.ceil((cache or cache_bytes(device)) / held)):
        copies.append(draw(shape, dtype, device, generator))
    return copies


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


@dataclass
class PeerCalls(TimedCalls):
    """Checks a peer on one shape and times its forward, and its forward and backward.

    The forward is training's: it keeps what a backward needs. cache: bytes of the device's last
    cache, which the inputs overflow.
    """

    peer: Peer
    draw: Callable[..., Inputs]
    shape: Shape
    dtype: torch.dtype
    device: torch.device
    cache: int

    def begin(self, device: torch.device) -> None:
        super().begin(device)
        self.copies = rotating_inputs(self.draw, self.shape, self.dtype, device, self.cache)

    def prepare(self) -> dict:
        """Compile the peer and check what it computes: its errors by name and its peak bytes.

        Raises RunError where that is something else than its definition.
        """
        self.begin(self.device)
        peer, call = self.peer, self.peer.build(self.shape, self.device)
        first, turn = self.copies[0], itertools.cycle(self.copies)

        def forward() -> Tensor:
            values = next(turn)
            return call(*(values[name] for name in peer.takes))

        def forward_backward() -> None:
            values = next(turn)
            y = call(*(values[name] for name in peer.takes))
            torch.autograd.grad(y, [values[name] for name in peer.wanted], values["dy"])

        with brief_autotuning() if peer.autotuned else nullcontext():
            forward_backward()  # compiles what is compiled
        itself = call == peer.definition and first["dy"].dtype == torch.float32
        errors = None if itself else check(peer, call, first, self.shape)
        self.calls = {FORWARD: forward, FORWARD_BACKWARD: forward_backward}
        return {"errors": errors, "peak_bytes": _peak_bytes(forward_backward, self.device)}


def floor_bytes(peer: Peer, inputs: Inputs) -> dict[str, int]:
    """Bytes that a peer's passes read and write at least, by measure.

    Forward: every input once, and Y. Backward besides: every input and dY once, every gradient.
    """
    taken = sum(inputs[name].nbytes for name in peer.takes)
    forward = taken + inputs["dy"].nbytes
    gradients = sum(inputs[name].nbytes for name in peer.wanted)
    return {FORWARD: forward, FORWARD_BACKWARD: 2 * forward + gradients}


class FloorCopies(PeerCalls):
    """Copies on the device that move the bytes of `floor_bytes`: half are read, half written.

    A smaller copy goes through buffers of the largest's size, so that none finds its own in a
    cache that holds less.
    """

    def prepare(self) -> dict:
        self.begin(self.device)
        moved = floor_bytes(self.peer, self.copies[0])
        size = max(moved.values()) // 2
        source = torch.randint(256, (size,), dtype=torch.uint8, device=self.device)
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
    backward, errors = measure.removesuffix(HOST) == FORWARD_BACKWARD, facts.get("errors")
    error = None
    if errors is not None:
        error = max(errors.values()) if backward else errors["Y"]
    return {
        "relative_error": error,
        "peak_bytes": facts.get("peak_bytes") if backward else None,
        "moved_bytes": facts.get("moved_bytes", {}).get(measure),
    }


def operator_part(
    benchmark: Benchmark,
    case: Case,
    measures: Sequence[str],
    repeats: int,
    device: torch.device,
) -> Part:
    """The peers on the case's shape: one row a peer and measure.

    Measures are "forward", "forward+backward" and either with HOST after it.

    The floor, where the benchmark has one, is a row like a peer's. Raises InputError where the
    device cannot run the subject; its rows, RunError where its Y or a gradient is another
    function's.
    """
    shape = case.shape
    given = benchmark.draw, shape, DTYPES[case.precision], device, cache_bytes(device)
    sides: dict[str, PeerCalls] = {}
    missing: dict[str, Answers] = {}
    for peer in benchmark.peers:
        reason = peer.why_not_timed(shape, device)
        if reason and peer.name == benchmark.subject:
            raise InputError(f"{peer.name} cannot run on {case.device}: {reason}")
        if reason:
            refused = dict.fromkeys(measures, Failure(UNAVAILABLE, reason))
            missing[peer.name] = Answers(failures=refused)
        else:
            sides[peer.name] = PeerCalls(peer, *given)
    names = [peer.name for peer in benchmark.peers]
    if benchmark.floor:
        names.append(FLOOR)
        sides[FLOOR] = FloorCopies(sides[benchmark.subject].peer, *given)

    def rows(found: Mapping[str, Answers]) -> list[dict]:
        known = {**found, **missing}
        return [
            case.row(measure, name, known, **_columns(known[name].facts, measure))
            for measure in measures
            for name in names
        ]

    apart = [name for name, side in sides.items() if side.peer.autotuned]
    label, moment = f"{shape.scale} {shape.dimensions}", f"{shape.scale} operator"
    return Part(sides, measures, repeats, rows, apart=apart, label=label, moment=moment)


@dataclass(frozen=True)
class StepGroup:
    """Sides that take the same micro-batches, (micro, context), at one scale."""

    spec: SystemsSpec
    context: int
    micro: int
    sides: dict[str, tuple[Side, ModelConfig]] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """What one layer is called with."""
        _, model = next(iter(self.sides.values()))
        return Shape(self.spec.scale, self.micro, model.heads, self.context, model.head_dim)


def _model_of(variant: str, scale: str, systems: Systems) -> ModelConfig:
    """A variant's model at a scale, from whichever systems benchmark measures it there."""
    for spec in systems:
        for side in spec.sides:
            if (spec.scale, side["variant"]) == (scale, variant):
                return model_config(side["model"])
    name = systems[0].campaign
    raise InputError(f"campaign {name} measures no {variant} model at {scale}")


def step_groups(steps: Mapping[str, Sequence[Side]], systems: Systems) -> list[StepGroup]:
    """The sides at the geometry of a campaign's systems benchmarks, those of one geometry together.

    steps: the sides by systems benchmark, which gives the order. A variant that a benchmark does
    not measure takes the micro-batches of the first that it does. Raises InputError for a variant
    without a model at a scale.
    """
    groups: dict[tuple[str, int, int], StepGroup] = {}
    for benchmark, sides in steps.items():
        for spec in (spec for spec in systems if spec.benchmark == benchmark):
            for side in sides:
                own = (s for s in spec.sides if s["variant"] == side.variant)
                geometry = next(own, spec.sides[0])
                context, micro = geometry["context"], geometry["micro"]
                fresh = StepGroup(spec, context, micro)
                group = groups.setdefault((spec.scale, context, micro), fresh)
                model = _model_of(side.variant, spec.scale, systems)
                group.sides[side.name] = side, model
    return list(groups.values())


def long_groups(side: Side, systems: Systems) -> list[list[StepGroup]]:
    """One side alone on single sequences, shortest first; a list of those prepared together.

    Their lengths are the six longest contexts of the campaign's long-context benchmark. Empty
    where the chosen scales leave that benchmark out.
    """
    groups: list[list[StepGroup]] = []
    for spec in (spec for spec in systems if spec.benchmark == "linear-long"):
        contexts = sorted(s["context"] for s in spec.sides)
        model = _model_of(side.variant, spec.scale, systems)
        sweep = [StepGroup(spec, length, 1, {side.name: (side, model)}) for length in contexts[-6:]]
        groups += prepared_together(sweep, lambda group: group.context)
    return groups


def _updates(device: torch.device, group: StepGroup, side: Side, model: ModelConfig):
    """Updates of one micro-batch of random tokens, compiled as in training."""
    own = side.build is build_step
    return WholeUpdates.of(
        group.spec,
        model,
        side.backends,
        device,
        side.documents,
        context=group.context,
        micro=group.micro,
        accumulation=1,
        updates=UPDATES_A_ROUND,
        proves=(side.variant, side.backends[side.variant]) if own else None,
        build=side.build,
    )


def steps_part(
    groups: Sequence[StepGroup],
    case_of: Callable[[Shape], Case],
    rounds: int,
    device: torch.device,
    measure: str = STEP,
) -> Part:
    """Whole updates of one micro-batch of random tokens, as training runs them: one row a side.

    groups: of different contexts; the sides of all are prepared and asked together, and compared
    within their own. Its rows raise InputError where the device cannot run the subject, RunError
    where its loss is not finite.
    """
    sides = {
        f"{group.spec.scale} {measure} T={group.context} {name}": _updates(device, group, *side)
        for group in groups
        for name, side in group.sides.items()
    }

    def rows(found: Mapping[str, Answers]) -> list[dict]:
        answered, made = iter(found.values()), []
        for group in groups:
            case, tokens = case_of(group.shape), group.micro * group.context
            own = {name: next(answered) for name in group.sides}
            for name, answers in own.items():
                row = case.row(measure, name, own, peak_bytes=answers.facts.get("peak_bytes"))
                rate = None if row["seconds"] is None else tokens / row["seconds"]
                made.append(row | {"tokens_per_second": rate})
        return made

    contexts = ", ".join(str(group.context) for group in groups)
    moment = f"{groups[0].spec.scale} {measure} T={contexts}"
    # A round's first update settles what the others left.
    return Part(sides, [measure], rounds, rows, warm_rounds=0, moment=moment)
