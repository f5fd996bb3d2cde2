"""The search itself: a campaign's shapes to the fastest launches that compute the definition."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from relation.config import Campaign
from relation.devices import claim, describe
from relation.errors import InputError, RunError
from relation.kernels.common import architecture, interpreted
from relation.kernels.flash_relation import NARROWEST, WIDEST
from relation.kernels.flash_relation.launches import Launch, Launches, select_launches
from relation.progress import Progress
from relation.systems.bench.flash import draw
from relation.systems.bench.operators import RotatingInputs
from relation.systems.bench.outcome import reclaim
from relation.systems.bench.peers import Shape, micro_batch_shapes
from relation.systems.bench.timing import STEADY_PARTS, Stopwatch, interleave
from relation.systems.tuning.exact import why_wrong
from relation.systems.tuning.grid import SEARCHED, candidates
from relation.systems.tuning.passes import Passes, results
from relation.systems.tuning.prepare import Job, Target, prepare_all

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

Samples = Mapping[Launch, Sequence[float]]

# A launch that is slower in short rounds is not tried under a steady load.
_CONTENDS = 1.25


@dataclass(frozen=True)
class Ranking:
    """How one pass's launches compare on one shape.

    seconds: of each launch that was timed, fastest median first; the first one's results are the
    definition's. rejected: why the others are out.
    """

    name: str
    shape: Shape
    shipped: Launch
    seconds: Samples
    rejected: Mapping[Launch, str]

    @property
    def best(self) -> Launch:
        return next(iter(self.seconds))


@dataclass(frozen=True)
class Found:
    """What a search found: a ranking for each target and searched pass."""

    device: str
    architecture: str
    precision: str
    targets: list[Target]
    rankings: list[Ranking]
    left_out: list[Shape]

    def entries(self) -> dict[Shape, Launches]:
        """Each target's entry with the best launch of every searched pass."""
        return {
            target.shape: replace(
                target.shipped,
                tuned=True,
                **{r.name: r.best for r in self.rankings if r.shape == target.shape},
            )
            for target in self.targets
        }


def rank(
    name: str,
    shape: Shape,
    shipped: Launch,
    times: Samples,
    rounds: int,
    rejected: Mapping[Launch, str],
    why_wrong: Callable[[Launch], str | None],
) -> Ranking:
    """Order the launches by their median, without those whose results are wrong.

    `times` with fewer than `rounds` seconds are of launches that ran out of memory. `why_wrong` is
    asked about the fastest, and about the next one for as long as it has an answer. Raises
    RunError where no launch is left.
    """
    out = dict(rejected)
    out |= {launch: "out of memory" for launch, s in times.items() if len(s) < rounds}
    order = sorted(
        (launch for launch in times if launch not in out),
        key=lambda launch: statistics.median(times[launch]),
    )
    while order:
        reason = why_wrong(order[0])
        if reason is None:
            seconds = {launch: times[launch] for launch in order}
            return Ranking(name, shape, shipped, seconds, out)
        out[order.pop(0)] = reason
    raise RunError(
        f"{name} at (B, H, T, D) = {shape.dimensions}: no launch runs and is right; of the shipped "
        f"one: {out[shipped]}"
    )


def widest_work(shapes: Sequence[Shape]) -> tuple[list[Shape], list[Shape]]:
    """The shape of each head width with the most pairs of tokens, and the shapes left out.

    An entry is chosen by the head width alone. Raises InputError for a width that the kernels do
    not take.
    """
    chosen: dict[int, Shape] = {}
    for shape in shapes:
        if not NARROWEST <= shape.width <= WIDEST:
            raise InputError(
                f"{shape.scale}'s head width is {shape.width}; the kernels take {NARROWEST} to "
                f"{WIDEST}: choose others with --shapes or --scales"
            )
        before = chosen.get(shape.width)
        if before is None or _pairs(shape) > _pairs(before):
            chosen[shape.width] = shape
    kept = list(chosen.values())
    return kept, [shape for shape in shapes if shape not in kept]


def _pairs(shape: Shape) -> int:
    return shape.batch * shape.heads * shape.length**2


def tune(campaign: Campaign, precision: str, repeats: int, steady: float | None = None) -> Found:
    """Search the launches of FlashRelation at a campaign's shapes, on a GPU held alone.

    precision: a key of `DTYPES`; every candidate is timed in `repeats` rounds. steady: seconds for
    which the fastest of them are then run, each alone in two halves without a pause, and by whose
    later parts they are ranked. Raises InputError for repeats < 1, steady <= 0, for head widths
    that the kernels do not take, and in Triton's interpreter.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; give at least 1")
    if steady is not None and steady <= 0:
        raise InputError(f"steady is {steady}; give seconds above 0")
    if interpreted():
        raise InputError("tune flash times compiled kernels; unset TRITON_INTERPRET")
    shapes, left_out = widest_work(micro_batch_shapes(campaign))
    with claim("cuda") as device:
        targets = [_target(shape, DTYPES[precision], device) for shape in shapes]
        rankings = _search(targets, repeats, steady)
        return Found(describe(device), architecture(device), precision, targets, rankings, left_out)


def _target(shape: Shape, dtype: torch.dtype, device: torch.device) -> Target:
    shipped = select_launches(device, dtype.itemsize, shape.width)
    return Target(shape, dtype, device, replace(shipped, widest=shape.width))


def _search(targets: Sequence[Target], repeats: int, steady: float | None = None) -> list[Ranking]:
    jobs = [
        Job(target, name, launch)
        for target in targets
        for name in SEARCHED
        for launch in candidates(name, target.shipped.bits)
        if launch != getattr(target.shipped, name)
    ]
    rankings = []
    with Progress("tune flash", 2 * len(jobs), "steps") as progress:
        reasons = prepare_all(jobs, lambda job: progress.advance(1, f"{job.name} compiled"))
        stopwatch = Stopwatch(targets[0].device)
        for target in targets:
            inputs = RotatingInputs(draw, target.shape, target.dtype, target.device)
            passes = Passes(inputs.copies, target.shipped)
            for name in SEARCHED:
                prepared = {
                    job.launch: reason
                    for job, reason in reasons.items()
                    if (job.target, job.name) == (target, name)
                }
                rankings.append(_rank(target, name, prepared, passes, stopwatch, repeats, steady))
                progress.advance(len(prepared), f"{target.shape.scale} {name} timed")
            del inputs, passes
            reclaim()
    return rankings


def _rank(
    target: Target,
    name: str,
    prepared: Mapping[Launch, str | None],
    passes: Passes,
    stopwatch: Stopwatch,
    repeats: int,
    steady: float | None,
) -> Ranking:
    """Time what `prepared` has no reason against, and the shipped launch, and check the fastest."""
    shipped = getattr(target.shipped, name)
    fit = [shipped, *(launch for launch, reason in prepared.items() if reason is None)]
    calls, sides = {}, {}
    for launch in fit:
        call = calls[launch] = passes.call(name, target.entry(name, launch))
        sides[str(launch)] = partial(stopwatch.seconds, call, stopwatch.plan(call))
    found = interleave(sides, repeats)
    times: dict[Launch, list[float]] = {launch: found[str(launch)] for launch in fit}
    rejected = {launch: reason for launch, reason in prepared.items() if reason is not None}
    if steady is not None:
        whole = {launch: samples for launch, samples in times.items() if len(samples) == repeats}
        slow = too_slow(whole, shipped)
        rejected |= slow | {launch: "out of memory" for launch in times if launch not in whole}
        left = [launch for launch in whole if launch not in slow]
        times = {launch: [] for launch in left}
        # There and back, so that a GPU that grows warmer meets all alike.
        for launch in (*left, *reversed(left)):
            times[launch] += stopwatch.steady(calls[launch], steady / 2)
        repeats = 2 * STEADY_PARTS

    def check(launch: Launch) -> str | None:
        entry = target.entry(name, launch)
        return why_wrong(
            partial(results, launches=entry), target.shape, target.dtype, target.device
        )

    return rank(name, target.shape, shipped, times, repeats, rejected, check)


def too_slow(times: Samples, shipped: Launch) -> dict[Launch, str]:
    """Why launches are not tried under a steady load, by their short rounds; the shipped one is."""
    medians = {launch: statistics.median(seconds) for launch, seconds in times.items()}
    bound = _CONTENDS * min(medians.values(), default=0.0)
    told = f"over {_CONTENDS} times the fastest in short rounds"
    return {launch: told for launch, m in medians.items() if m > bound and launch != shipped}
