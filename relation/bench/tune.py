"""The search for FlashRelation's launches: a campaign's shapes to the fastest right ones.

Candidates are compiled in many processes at once, then timed in turns; the fastest is checked.
"""

import contextlib
import io
import itertools
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from triton.errors import TritonError

from relation.bench.peers import Systems, micro_batch_shapes
from relation.bench.rounds import interleave
from relation.bench.sides import rotating_inputs
from relation.bench.timing import STEADY_PARTS, Stopwatch, reclaim
from relation.errors import InputError, RunError
from relation.kernels.common import SHARED_MEMORY, architecture, interpreted
from relation.kernels.flash_relation import NARROWEST, WIDEST
from relation.kernels.flash_relation.backward import launch_backward
from relation.kernels.flash_relation.forward import launch_forward
from relation.kernels.flash_relation.launches import Launch, Launches, select_launches
from relation.kernels.flash_relation.resources import pass_resources
from relation.machine.devices import claim, describe
from relation.machine.progress import Progress
from relation.variants import ModelConfig
from relation.verify.exact import why_wrong
from relation.verify.inputs import COORDINATES, DTYPES, Inputs, Shape, draw

Samples = Mapping[Launch, Sequence[float]]

# `repair` runs on rows that almost no input has, and is not searched.
SEARCHED = ("forward", "p1", "p2_info")

# By bits of an input: what a program owns, what it scans a tile, and its warps. Matrix products of
# 16 bits take 64 rows or more for every four warps; those of FP32 keep their operands in registers.
_TILES = {
    16: ((64, 32, 4), (64, 64, 4), (128, 64, 4), (128, 32, 8), (128, 64, 8), (128, 128, 8)),
    32: ((16, 16, 4), (32, 16, 4), (32, 32, 4)),
}
_STAGES = {16: (2, 3, 4), 32: (1, 2)}

# Registers of a multiprocessor, and the most and, in this search, the fewest of a thread.
_REGISTERS = 65_536
_MOST_REGISTERS, _FEWEST_REGISTERS = 255, 128
_MOST_SPILLED = 256

# Each process that compiles holds a CUDA context, half a GiB of the GPU's memory.
_MOST_WORKERS = 16
# A launch that is slower in short rounds is not tried under a steady load.
_CONTENDS = 1.25
_TRANSPORT_SELF = True


def register_caps(warps: int) -> Iterator[int]:
    """Caps on a thread's registers that each let one more program share a multiprocessor."""
    programs = 1
    while True:
        # The hardware hands registers to a warp in units of 8 a thread.
        cap = _REGISTERS // (32 * warps * programs) // 8 * 8
        if cap < _FEWEST_REGISTERS:
            return
        if cap < _MOST_REGISTERS:
            yield cap
        programs += 1


def candidates(name: str, bits: int) -> list[Launch]:
    """The launches to try for a pass; their tiles divide as `Launches` demands."""
    return [
        Launch(*((scanned, owned) if name == "p2_info" else (owned, scanned)), warps, stages, cap)
        for owned, scanned, warps in _TILES[bits]
        for stages in _STAGES[bits]
        for cap in (None, *register_caps(warps))
    ]


def why_unfit(name: str, launches: Launches, architecture: str) -> str | None:
    """Why a pass of an entry is not worth timing, from compiling it for `architecture`, or None.

    It is compiled with the masks of a ragged T and, for 16 bits, as BF16. Raises TritonError where
    it does not compile.
    """
    described = name != "repair" and launches.descriptors
    found = pass_resources(name, architecture, launches, described)
    if found.shared > SHARED_MEMORY[architecture]:
        return "needs more shared memory than there is"
    if found.stack > _MOST_SPILLED:
        return f"spills more than {_MOST_SPILLED} bytes a thread"
    return None


def _forward(inputs: Inputs, launches: Launches) -> tuple[Tensor, Tensor, Tensor]:
    given = (*(inputs[name] for name in (*COORDINATES, "lam")), ModelConfig.tau, _TRANSPORT_SELF)
    return launch_forward(*given, launches)


def _backward(
    inputs: Inputs, saved: tuple[Tensor, Tensor, Tensor], launches: Launches
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = (*(inputs[name] for name in ("dy", *COORDINATES)), *saved)
    return launch_backward(*given, ModelConfig.tau, _TRANSPORT_SELF, launches)


def results(inputs: Inputs, launches: Launches) -> tuple[Tensor, ...]:
    """Y and the gradients of p1, p2, info and lam of inputs as the benchmark `flash` draws them."""
    saved = _forward(inputs, launches)
    return saved[0], *_backward(inputs, saved, launches)


class Passes:
    """The forward and the backward on copies of one shape's inputs, taken in turn.

    The backward reads what the `shipped` forward left.
    """

    def __init__(self, copies: Sequence[Inputs], shipped: Launches):
        self._copies = [(inputs, _forward(inputs, shipped)) for inputs in copies]

    def call(self, name: str, launches: Launches) -> Callable[[], None]:
        """What is timed for a pass: the forward, or for "p1" and "p2_info" the whole backward."""
        turn = itertools.cycle(self._copies)

        def one_pass() -> None:
            inputs, saved = next(turn)
            if name == "forward":
                _forward(inputs, launches)
            else:
                _backward(inputs, saved, launches)

        return one_pass


@dataclass(frozen=True)
class Target:
    """What a search is for: one shape, and the entry that serves it so far."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device
    shipped: Launches

    def entry(self, name: str, launch: Launch) -> Launches:
        """The shipped entry with one pass replaced."""
        return replace(self.shipped, **{name: launch})


@dataclass(frozen=True)
class Candidate:
    """A launch for one pass of a target."""

    target: Target
    name: str
    launch: Launch


def prepare(candidate: Candidate) -> str | None:
    """Compile a candidate as its timing will find it in Triton's cache; why it is out, or None.

    It runs once on one sequence: Triton compiles for strides, not for the batch.
    """
    target, name = candidate.target, candidate.name
    entry, device = target.entry(name, candidate.launch), target.device
    torch.cuda.set_device(device)
    try:
        # Triton prints the whole program that its assembler refuses.
        with contextlib.redirect_stdout(io.StringIO()):
            reason = why_unfit(name, entry, architecture(device))
            if reason is None:
                generator = torch.Generator(device).manual_seed(0)
                inputs = draw(replace(target.shape, batch=1), target.dtype, device, generator)
                Passes([inputs], entry).call(name, entry)()
                torch.cuda.synchronize(device)
    except TritonError as error:
        return f"refused by Triton ({type(error).__name__})"
    except RuntimeError as error:
        if "PassManager::run failed" not in str(error):
            raise
        return "refused by Triton (PassManager)"
    return reason


def prepare_all(
    jobs: Sequence[Candidate],
    note: Callable[[Candidate], None],
    work: Callable[[Candidate], str | None] = prepare,
) -> dict[Candidate, str | None]:
    """What `work` returns for every job, from as many processes as there are cores, at most 16.

    `note` is called as each is done. Raises RunError where a process dies, and what a job raises.
    """
    found = {}
    workers = min(_MOST_WORKERS, len(os.sched_getaffinity(0)), len(jobs))
    # A forked process cannot use a GPU that its parent has used.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        waiting = {pool.submit(work, job): job for job in jobs}
        try:
            for future in as_completed(waiting):
                found[waiting[future]] = future.result()
                note(waiting[future])
        except BrokenProcessPool:
            raise RunError(
                f"a process that compiles launches died after {len(found)} of {len(jobs)}; look "
                "for the reason in the system's log, or search fewer with --scales"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)
    return {job: found[job] for job in jobs}


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

    def pairs(shape: Shape) -> int:
        return shape.batch * shape.heads * shape.length**2

    chosen: dict[int, Shape] = {}
    for shape in shapes:
        if not NARROWEST <= shape.width <= WIDEST:
            raise InputError(
                f"{shape.scale}'s head width is {shape.width}; the kernels take {NARROWEST} to "
                f"{WIDEST}: choose others with --shapes or --scales"
            )
        chosen[shape.width] = max(chosen.get(shape.width, shape), shape, key=pairs)
    kept = list(chosen.values())
    return kept, [shape for shape in shapes if shape not in kept]


def tune(systems: Systems, precision: str, repeats: int, steady: float | None = None) -> Found:
    """Search the launches of FlashRelation at a campaign's shapes, on a GPU held alone.

    systems: the campaign's benchmarks; precision: a key of `DTYPES`; every candidate is timed in
    `repeats` rounds. steady: seconds for which the fastest of them are then run, each alone in two
    halves without a pause, and by whose later parts they are ranked. Raises InputError for repeats
    < 1, steady <= 0, for head widths that the kernels do not take, and in Triton's interpreter.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; give at least 1")
    if steady is not None and steady <= 0:
        raise InputError(f"steady is {steady}; give seconds above 0")
    if interpreted():
        raise InputError("tune flash times compiled kernels; unset TRITON_INTERPRET")
    shapes, left_out = widest_work(micro_batch_shapes(systems))
    with claim("cuda") as device:
        dtype, targets = DTYPES[precision], []
        for shape in shapes:
            shipped = select_launches(device, dtype.itemsize, shape.width)
            shipped = replace(shipped.in_triton(), widest=shape.width)
            targets.append(Target(shape, dtype, device, shipped))
        rankings = search_launches(targets, repeats, steady)
        return Found(describe(device), architecture(device), precision, targets, rankings, left_out)


def search_launches(
    targets: Sequence[Target], repeats: int, steady: float | None = None
) -> list[Ranking]:
    """A ranking of every searched pass of each target; the numbers are as in `tune`."""
    jobs = [
        Candidate(target, name, launch)
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
            inputs = rotating_inputs(draw, target.shape, target.dtype, target.device)
            passes = Passes(inputs, target.shipped)
            for name in SEARCHED:
                prepared = {
                    job.launch: reason
                    for job, reason in reasons.items()
                    if (job.target, job.name) == (target, name)
                }
                rankings.append(
                    time_and_rank(target, name, prepared, passes, stopwatch, repeats, steady)
                )
                progress.advance(len(prepared), f"{target.shape.scale} {name} timed")
            del inputs, passes
            reclaim()
    return rankings


def time_and_rank(
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
