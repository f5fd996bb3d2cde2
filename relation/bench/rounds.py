"""The protocol of every comparison: each side in a process of its own, measured in turns.

Each side is built, compiled and warmed up first. Then every round asks each side once, in a random
order, while the others wait with their memory held. So a drift of the clocks meets all sides alike,
and ratios are taken round by round.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import torch

from relation.bench.conditions import Conditions, libraries
from relation.bench.processes import OOM, Failure, Measurement, Worker
from relation.machine.devices import claim_gpus, describe
from relation.machine.progress import Progress
from relation.pipeline.origin import origin
from relation.store.parquet import write_parquet

WARM_ROUNDS = 2
Side = TypeVar("Side")


def prepared_together(sides: Sequence[Side], context: Callable[[Side], int]) -> list[list[Side]]:
    """The sides of a sweep over contexts, in groups that `Session.compare` takes at once.

    Those up to an eighth of the longest are one group: each is twice as long as the one before, so
    together they hold a quarter of its tokens. The others are one each, so that each can have the
    device's whole memory.
    """
    longest = max(map(context, sides), default=0)
    short = [side for side in sides if 8 * context(side) <= longest]
    return [group for group in (short, *([s] for s in sides if s not in short)) if group]


def interleave(
    sides: Mapping[str, Callable[[], float | None]], rounds: int, warm_rounds: int = WARM_ROUNDS
) -> dict[str, list[float]]:
    """What every side returns in each of `rounds` rounds, by name.

    `warm_rounds` before them do not count. A side that runs out of memory or returns None is asked
    no more, and its list is shorter than `rounds`.
    """
    order, drawn = list(sides), random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(warm_rounds + rounds):
        drawn.shuffle(order)
        for name in list(order):
            try:
                value = sides[name]()
            except torch.OutOfMemoryError:
                value = None
            if value is None:
                order.remove(name)
            elif number >= warm_rounds:
                found[name].append(value)
    return found


@dataclass
class Answers:
    """What one side answered.

    facts: what it said before and after the rounds. samples: by measure, seconds of each round.
    failures: by measure, in place of its samples. alone: whether it was measured apart from the
    others, because together they did not fit into the device's memory.
    """

    facts: dict = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    alone: bool = False


@dataclass
class Session:
    """What the comparisons of one command share.

    device: held alone if it is a GPU; conditions: who watches it; progress: advances by two for
    each side, prepared and measured; start: makes a side's worker.
    """

    device: torch.device
    conditions: Conditions
    progress: Progress
    start: Callable[[Measurement], Any] = Worker

    def compare(
        self,
        sides: Mapping[str, Measurement],
        measures: Sequence[str],
        rounds: int,
        label: str = "",
        warm_rounds: int = WARM_ROUNDS,
        apart: Collection[str] = (),
    ) -> dict[str, Answers]:
        """What each side answers in `rounds` rounds of every measure.

        A side that fails is asked no more and the others go on. One that runs out of memory while
        others hold theirs is measured again once they are gone: a reported OOM is the side's own.
        Sides are prepared at once, and so compiled in the time of one. Those named in `apart` time
        candidates of their own meanwhile, and follow one by one.
        """

        def advance(name: str, done: int) -> None:
            self.progress.advance(done, f"{label} {name}".strip())

        asked = measures, rounds, warm_rounds
        found = self._together(sides, *asked, apart, advance)
        for name, answers in found.items():
            if len(sides) > 1 and any(f.status == OOM for f in answers.failures.values()):
                alone = self._together({name: sides[name]}, *asked, forget=False)
                found[name] = replace(alone[name], alone=True)
        for name in sides:
            advance(name, 1)
        return found

    def _together(
        self,
        sides: Mapping[str, Measurement],
        measures: Sequence[str],
        rounds: int,
        warm_rounds: int,
        apart: Collection[str] = (),
        advance: Callable[[str, int], None] = lambda name, done: None,
        forget: bool = True,
    ) -> dict[str, Answers]:
        found = {name: Answers() for name in sides}
        with ExitStack() as stack:
            workers = {}
            for name, worker, told in self._prepare(sides, apart, stack, advance):
                advance(name, 1)
                if isinstance(told, Failure):
                    found[name].failures |= dict.fromkeys(measures, told)
                    worker.close()
                else:
                    found[name].facts |= told
                    workers[name] = worker
            self.conditions.began(lambda: [worker.pid for worker in workers.values()], forget)
            for measure in measures:
                self._rounds_of(measure, rounds, workers, found, warm_rounds)
            for name, worker in workers.items():
                told, answers = worker.ask("proof"), found[name]
                if isinstance(told, Failure):
                    # Times whose conditions could not be read afterwards do not count.
                    answers.failures |= dict.fromkeys(answers.samples, told)
                    answers.samples = {}
                else:
                    answers.facts |= told
        return found

    def _prepare(
        self,
        sides: Mapping[str, Measurement],
        apart: Collection[str],
        stack: ExitStack,
        advance: Callable[[str, int], None],
    ) -> Iterator[tuple[str, Any, dict | Failure]]:
        """Each side's name, its worker and what became of its preparation."""
        # Left after the workers: their end is what a thread of an interrupted call waits for.
        pool = stack.enter_context(ThreadPoolExecutor(len(sides)))
        at_once = [name for name in sides if name not in apart]
        workers = {name: stack.enter_context(self.start(sides[name])) for name in at_once}
        answers = {name: pool.submit(worker.ask, "prepare") for name, worker in workers.items()}
        for name, worker in workers.items():
            advance(name, 0)
            yield name, worker, answers[name].result()
        for name in apart:
            advance(name, 0)
            worker = stack.enter_context(self.start(sides[name]))
            yield name, worker, worker.ask("prepare")

    def _rounds_of(
        self,
        measure: str,
        rounds: int,
        workers: Mapping[str, Any],
        found: Mapping[str, Answers],
        warm_rounds: int,
    ) -> None:
        def seconds(name: str) -> float | None:
            told = workers[name].ask("seconds", measure, watch=self.conditions.look)
            # Most rounds end before the first look while they work.
            self.conditions.look()
            if isinstance(told, Failure):
                found[name].failures[measure] = told
                return None
            return told

        times = interleave({name: partial(seconds, name) for name in workers}, rounds, warm_rounds)
        for name, samples in times.items():
            failure = found[name].failures.get(measure)
            if failure is None:
                found[name].samples[measure] = samples
            else:
                reason = f"{failure.reason} (after {len(samples)} of {rounds} rounds)"
                found[name].failures[measure] = replace(failure, reason=reason)

    def record(
        self,
        path: Path,
        layout: pa.Schema,
        rows: Sequence[Mapping],
        campaign: str,
        config_hash: str,
        stage: str,
        **more: Any,
    ) -> None:
        """Write rows with their origin, the device's libraries among it."""
        more |= {"libraries": libraries(self.device)}
        written = origin(campaign, config_hash, stage, describe(self.device), **more)
        write_parquet(path, layout, rows, written)


@contextmanager
def session(
    kind: str, label: str, sides: int, start: Callable[[Measurement], Any] = Worker
) -> Iterator[Session]:
    """A session on a device, "cpu" or "cuda", for so many sides in all.

    A GPU is held alone while the context lasts; this process takes no memory on it. Raises
    InputError where there is no GPU.
    """
    with ExitStack() as stack:
        device = torch.device(kind)
        if kind == "cuda":
            (index,) = stack.enter_context(claim_gpus(1))
            device = torch.device(kind, index)
        watched = Conditions(device)
        progress = stack.enter_context(Progress(label, 2 * sides, "measurements"))
        yield Session(device, watched, progress, start)
