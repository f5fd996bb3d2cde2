"""The protocol of every comparison: sides in processes of their own, asked in turns.

Each side is built, compiled and warmed up first; then rounds ask every side once, in an order drawn
anew, while the others wait with their memory held. So a drift of the clocks meets all alike, and
ratios are taken round by round.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from relation.systems.bench.timing import WARM_ROUNDS, interleave
from relation.systems.conditions import Conditions
from relation.systems.processes import OOM, Failure, Job, Worker

Advance = Callable[[str, int], None]
Start = Callable[[Job], Any]
Side = TypeVar("Side")


def prepared_together(sides: Sequence[Side], context: Callable[[Side], int]) -> list[list[Side]]:
    """The sides of a sweep over contexts, in groups that `measure_together` takes at once.

    Those up to an eighth of the longest are one: all of them together, each twice as long as the
    one before, hold a quarter of its tokens. The others are one each, so that each can have the
    device's whole memory.
    """
    longest = max(map(context, sides), default=0)
    short = [side for side in sides if 8 * context(side) <= longest]
    return [group for group in (short, *([s] for s in sides if s not in short)) if group]


@dataclass
class Outcome:
    """What became of one side.

    facts: what it said before and after the rounds. samples: by measure, seconds of each round.
    failures: by measure, in place of its samples. alone: whether it was measured apart from the
    others, because together they did not fit into the device's memory.
    """

    facts: dict = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    alone: bool = False

    def fail(self, measures: Sequence[str], failure: Failure) -> None:
        self.failures |= dict.fromkeys(measures, failure)


def measure_together(
    jobs: Mapping[str, Job],
    measures: Sequence[str],
    rounds: int,
    conditions: Conditions,
    advance: Advance = lambda name, done: None,
    warm_rounds: int = WARM_ROUNDS,
    start: Start = Worker,
    at_once: Collection[str] = (),
    goes_on: bool = False,
) -> dict[str, Outcome]:
    """What becomes of each job in `rounds` rounds of every measure.

    A side that fails is asked no more and the others go on. One that runs out of memory while
    others hold theirs is measured again once they are gone: an OOM that is told is its own.
    at_once: the names of sides that are prepared side by side, and so compiled in the time of one;
    not those that time their own candidates meanwhile. `advance(name, 1)` is called when a side is
    prepared, and for each when its rounds are done. goes_on: whether `conditions` keeps what it has
    read so far.
    """
    outcomes = {name: Outcome() for name in jobs}
    with ExitStack() as stack:
        workers = {}
        for name, worker, found in _prepare(jobs, at_once, start, stack, advance):
            advance(name, 1)
            if isinstance(found, Failure):
                outcomes[name].fail(measures, found)
                worker.close()
            else:
                outcomes[name].facts |= found
                workers[name] = worker
        conditions.began(lambda: [worker.pid for worker in workers.values()], not goes_on)
        for measure in measures:
            _rounds_of(measure, rounds, workers, outcomes, conditions, warm_rounds)
        for name, worker in workers.items():
            found = worker.ask("proof")
            if isinstance(found, Failure):
                _unproven(outcomes[name], found)
            else:
                outcomes[name].facts |= found
    if len(jobs) > 1:
        for name, outcome in outcomes.items():
            if any(failure.status == OOM for failure in outcome.failures.values()):
                again = measure_together(
                    {name: jobs[name]},
                    measures,
                    rounds,
                    conditions,
                    warm_rounds=warm_rounds,
                    start=start,
                    goes_on=True,
                )
                outcomes[name] = replace(again[name], alone=True)
    for name in jobs:
        advance(name, 1)
    return outcomes


def _prepare(
    jobs: Mapping[str, Job],
    at_once: Collection[str],
    start: Start,
    stack: ExitStack,
    advance: Advance,
) -> Iterator[tuple[str, Any, dict | Failure]]:
    """Each side's name, its worker and what became of its preparation."""
    # Left after the workers: their end is what a thread of an interrupted call waits for.
    pool = stack.enter_context(ThreadPoolExecutor(max(1, len(at_once))))
    workers = {name: stack.enter_context(start(jobs[name])) for name in at_once}
    answers = {name: pool.submit(worker.ask, "prepare") for name, worker in workers.items()}
    for name, worker in workers.items():
        advance(name, 0)
        yield name, worker, answers[name].result()
    for name in [name for name in jobs if name not in at_once]:
        advance(name, 0)
        worker = stack.enter_context(start(jobs[name]))
        yield name, worker, worker.ask("prepare")


def _rounds_of(
    measure: str,
    rounds: int,
    workers: Mapping[str, Any],
    outcomes: Mapping[str, Outcome],
    conditions: Conditions,
    warm_rounds: int,
) -> None:
    def answer(name: str) -> float | None:
        found = workers[name].ask("seconds", measure, watch=conditions.look)
        # Most rounds end before the first look while they work.
        conditions.look()
        if isinstance(found, Failure):
            outcomes[name].failures[measure] = found
            return None
        return found

    times = interleave({name: partial(answer, name) for name in workers}, rounds, warm_rounds)
    for name, seconds in times.items():
        failure = outcomes[name].failures.get(measure)
        if failure is None:
            outcomes[name].samples[measure] = seconds
        else:
            told = f"{failure.reason} (after {len(seconds)} of {rounds} rounds)"
            outcomes[name].failures[measure] = replace(failure, reason=told)


def _unproven(outcome: Outcome, failure: Failure) -> None:
    """Times whose conditions could not be read afterwards count as not measured."""
    for measure in list(outcome.samples):
        del outcome.samples[measure]
        outcome.failures[measure] = failure
