"""Whole training steps of a scale's models: time, tokens per second and peak memory."""

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from relation.config import Campaign
from relation.errors import InputError, RunError
from relation.geometry import ModelConfig, model_config
from relation.model import Execution
from relation.progress import Progress
from relation.spec import SystemsSpec
from relation.systems.bench.outcome import Case, Failure, attempt, attempt_in_rounds
from relation.systems.bench.peers import Shape, Side
from relation.systems.throughput import build_step, synchronize
from relation.training.capture import CapturedPass

STEP, LONG = "step", "long"
UPDATES_A_ROUND = 3
_BATCHES = 4


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


def _model_of(variant: str, scale: str, campaign: Campaign) -> ModelConfig:
    """A variant's model at a scale, from whichever systems benchmark measures it there."""
    for spec in campaign.systems:
        for side in spec.sides:
            if (spec.scale, side["variant"]) == (scale, variant):
                return model_config(side["model"])
    raise InputError(f"campaign {campaign.name} measures no {variant} model at {scale}")


def step_groups(steps: Mapping[str, Sequence[Side]], campaign: Campaign) -> list[StepGroup]:
    """The sides at the geometry of a campaign's systems benchmarks, those of one geometry together.

    steps: the sides by systems benchmark, which gives the order. A variant that a benchmark does
    not measure takes the micro-batches of the first that it does. Raises InputError for a variant
    without a model at a scale.
    """
    groups: dict[tuple[str, int, int], StepGroup] = {}
    for benchmark, sides in steps.items():
        for spec in campaign.systems:
            if spec.benchmark != benchmark:
                continue
            for side in sides:
                own = (s for s in spec.sides if s["variant"] == side.variant)
                geometry = next(own, spec.sides[0])
                context, micro = geometry["context"], geometry["micro"]
                fresh = StepGroup(spec, context, micro)
                group = groups.setdefault((spec.scale, context, micro), fresh)
                model = _model_of(side.variant, spec.scale, campaign)
                group.sides[side.name] = side, model
    return list(groups.values())


def long_groups(side: Side, campaign: Campaign) -> list[StepGroup]:
    """One side alone on single sequences, shortest first.

    Their lengths are the four longest contexts of the campaign's long-context benchmark and twice
    the longest. Empty where the chosen scales leave that benchmark out.
    """
    groups = []
    for spec in campaign.systems:
        if spec.benchmark == "linear-long":
            contexts = sorted(s["context"] for s in spec.sides)
            model = _model_of(side.variant, spec.scale, campaign)
            for context in (*contexts[-4:], 2 * contexts[-1]):
                groups.append(StepGroup(spec, context, 1, {side.name: (side, model)}))
    return groups


@dataclass(frozen=True)
class PreparedStep:
    """A model ready to be timed: its next update, and the bytes it holds at most."""

    update: Callable[[], None]
    peak_bytes: int | None


def _random_batches(
    model: ModelConfig, group: StepGroup, device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Micro-batches of random tokens: inputs and targets, each (micro, context) int64."""
    generator = torch.Generator().manual_seed(0)
    size = group.micro, group.context + 1
    batches = []
    for _ in range(_BATCHES):
        tokens = torch.randint(model.vocab_size, size, generator=generator).to(device)
        batches.append((tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()))
    return batches


@functools.cache
def _take_workspaces(device: torch.device) -> None:
    """Let cuBLAS take its workspaces, which the first model would be charged with otherwise.

    They belong to a thread and a stream, and stay as long as the process.
    """
    weight = torch.nn.Parameter(torch.zeros(64, 64, device=device))

    def run(x: torch.Tensor, y: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        loss = (x @ weight).sum()
        loss.backward()
        return loss.detach()

    x = torch.zeros(64, 64, device=device)
    run(x, x, x)
    CapturedPass(run, [weight], x, x)


def _prepare(
    group: StepGroup, side: Side, model: ModelConfig, device: torch.device
) -> PreparedStep:
    """Build and warm up a model, by one update at least. Raises RunError for a loss not finite."""
    spec = group.spec
    on_gpu = device.type == "cuda"
    batches = _random_batches(model, group, device)
    if on_gpu:
        _take_workspaces(device)
    before = torch.cuda.memory_allocated(device) if on_gpu else 0
    stepped_around = spec.compile and not side.traced
    execution = Execution(**side.backends, compiled=stepped_around)
    build = side.build or build_step
    step = build(model, execution, spec.optimizer, spec.precision, spec.compile, device)
    following = itertools.cycle(batches)

    def update() -> torch.Tensor:
        tokens = group.micro * group.context
        loss, _ = step([next(following)], tokens, spec.optimizer["learning_rate"])
        return loss

    loss = update()
    if on_gpu:
        # The next update captures graphs; what compiling the first one took is not a step's.
        torch.cuda.reset_peak_memory_stats(device)
    warmup = max(2, spec.warmup_updates)
    for _ in range(1, warmup):
        loss = update()
    if not loss.isfinite():
        raise RunError(f"{side.name}: the loss is {loss.item()} at update {warmup}")
    if not on_gpu:
        return PreparedStep(update, None)
    synchronize(device)
    return PreparedStep(update, torch.cuda.max_memory_allocated(device) - before)


def _seconds_an_update(update: Callable[[], None], device: torch.device) -> float:
    """Mean of three whole updates after one that does not count, each to its end.

    The first finds the allocator and the caches as another model left them.
    """
    seconds = []
    for _ in range(1 + UPDATES_A_ROUND):
        synchronize(device)
        began = time.perf_counter()
        update()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return statistics.fmean(seconds[1:])


def measure_steps(
    group: StepGroup,
    case: Case,
    rounds: int,
    device: torch.device,
    progress: Progress,
    measure: str = STEP,
) -> list[dict]:
    """One row a side: whole updates of one micro-batch of random tokens, as training runs them.

    The models stay on the device together; each one's peak memory is counted from what was
    allocated before it. `progress` advances by two for each side. Raises RunError where the
    subject's loss is not finite.
    """
    label = f"{group.spec.scale} {measure} T={group.context}"
    prepared: dict[str, PreparedStep | Failure] = {}
    for side, model in group.sides.values():
        progress.advance(0, f"{label} {side.name}: compile and warm up")
        work = partial(_prepare, group, side, model, device)
        prepared[side.name] = attempt(work, ours=side.name == case.subject)
        progress.advance(1, f"{label} {side.name}")

    sides = {
        name: partial(_seconds_an_update, step.update, device)
        for name, step in prepared.items()
        if isinstance(step, PreparedStep)
    }
    times, failures = attempt_in_rounds(sides, rounds, case.subject)
    rows = []
    for name, step in prepared.items():
        failure = step if isinstance(step, Failure) else failures.get(name)
        if failure is not None:
            rows.append(case.failed(measure, name, failure))
            continue
        row = case.measured(measure, name, times, rounds, peak_bytes=step.peak_bytes)
        rows.append(row | {"tokens_per_second": group.micro * group.context / row["seconds"]})
    progress.advance(len(prepared), label)
    return rows
