"""Whole training steps of a scale's models: time, tokens per second and peak memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from relation.config import Campaign
from relation.errors import InputError
from relation.geometry import ModelConfig, model_config
from relation.model import Execution
from relation.progress import Progress
from relation.spec import SystemsSpec
from relation.systems.bench.outcome import Case
from relation.systems.bench.peers import Shape, Side
from relation.systems.conditions import Conditions
from relation.systems.processes import Worker
from relation.systems.rounds import Start, measure_together, prepared_together
from relation.systems.throughput import StepJob, build_step

STEP, LONG = "step", "long"
UPDATES_A_ROUND = 3


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


def long_groups(side: Side, campaign: Campaign) -> list[list[StepGroup]]:
    """One side alone on single sequences, shortest first; a list of those prepared together.

    Their lengths are the six longest contexts of the campaign's long-context benchmark. Empty
    where the chosen scales leave that benchmark out.
    """
    groups: list[list[StepGroup]] = []
    for spec in campaign.systems:
        if spec.benchmark == "linear-long":
            contexts = sorted(s["context"] for s in spec.sides)
            model = _model_of(side.variant, spec.scale, campaign)
            sweep = [
                StepGroup(spec, context, 1, {side.name: (side, model)}) for context in contexts[-6:]
            ]
            groups += prepared_together(sweep, lambda group: group.context)
    return groups


def _job(group: StepGroup, side: Side, model: ModelConfig, device: torch.device) -> StepJob:
    """Updates of one micro-batch of random tokens, compiled as in training."""
    spec = group.spec
    own = side.build is None
    return StepJob(
        model=model,
        execution=Execution(**side.backends, compiled=spec.compile),
        optimizer=spec.optimizer,
        precision=spec.precision,
        compile=spec.compile,
        device=device,
        context=group.context,
        micro=group.micro,
        accumulation=1,
        warmup=spec.warmup_updates,
        updates=UPDATES_A_ROUND,
        proves=(side.variant, side.backends[side.variant]) if own else None,
        build=build_step if own else side.build,
    )


def measure_steps(
    groups: Sequence[StepGroup],
    case_of: Callable[[Shape], Case],
    rounds: int,
    device: torch.device,
    progress: Progress,
    conditions: Conditions,
    measure: str = STEP,
    start: Start = Worker,
) -> list[dict]:
    """One row a side: whole updates of one micro-batch of random tokens, as training runs them.

    groups: of different contexts; the sides of all are prepared and asked together, and compared
    within their own. `progress` advances by two for each side. Raises InputError where the device
    cannot run the subject, RunError where its loss is not finite.
    """
    jobs = {
        f"{group.spec.scale} {measure} T={group.context} {name}": _job(group, side, model, device)
        for group in groups
        for name, (side, model) in group.sides.items()
    }

    def advance(name: str, done: int) -> None:
        progress.advance(done, name)

    # A round's first update settles what the others left.
    outcomes = measure_together(
        jobs, [measure], rounds, conditions, advance, 0, start, at_once=jobs
    )
    rows, found = [], iter(outcomes.values())
    for group in groups:
        case, tokens = case_of(group.shape), group.micro * group.context
        own = {name: next(found) for name in group.sides}
        for name, outcome in own.items():
            row = case.row_of(measure, name, own, peak_bytes=outcome.facts.get("peak_bytes"))
            rate = None if row["seconds"] is None else tokens / row["seconds"]
            rows.append(row | {"tokens_per_second": rate})
    return rows
