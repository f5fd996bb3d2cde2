"""The commands that are crashed, on the tiny campaign, and what must hold after each crash."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
from faults.sandbox import PROCESSES, PROJECT, Done, Sandbox

from crashes.disk import State, held, lay
from crashes.points import END, Point, watched

IMPORTED = (
    "relation.bench.campaign",
    "relation.cli",
    "relation.data.prepare",
    "relation.flow.diagnose",
    "relation.pipeline.publish",
    "relation.train.run",
    "report.figures",
    "report.judge.job",
    "report.render.document",
    "report.render.site_job",
    "report.values.frames",
)
_CAMPAIGN, _DATA = "crashes", "sample-300"
_OPTIONS = ("--campaign", _CAMPAIGN)
_CHOICE = ("--scales", "10M", "--variants", "mha,full")
_CONFIGURATION = f"""
  {_CAMPAIGN}:
    base: tiny
    seeds: [42]
    scales:
      10M: {{}}
"""
_FIGURES = {"overview", "loss-curves"}  # a diagram, which is copied, and a plot
_TIMES = {"s", "tok/s", "MHz", "C", "W"}  # units of what another run measures anew
_ORIGIN, _MADE = b"relation.origin", "created"


@dataclass(frozen=True)
class Operation:
    """One command of the campaign.

    goes_on: it takes up a training run that was killed with two states saved; watched: it is
    crashed, not only run for those behind it.
    """

    name: str
    command: tuple[str, ...]
    goes_on: bool = False
    watched: bool = True


_TRAIN = ("train", "10M/full/42")
OPERATIONS = (
    Operation("data preparation", ("prepare", _DATA)),
    Operation("the other run", ("train", "10M/mha/42"), watched=False),
    Operation("training", _TRAIN),
    Operation("resumed training", _TRAIN, goes_on=True),
    Operation("what is rendered", ("publish", *_CHOICE), watched=False),
    Operation("render: cells", ("cells", "--shipped", *_CHOICE)),
    Operation("render: figures", ("figures", "--shipped", *_CHOICE)),
    Operation("render: report", ("report", "--shipped", *_CHOICE)),
    Operation("render: document", ("document", "--shipped")),
    Operation("diagnosis", ("diagnose", "10M/full/42")),
    Operation("benchmark", ("measure", "fixed/10M")),
    Operation("publish", ("publish", *_CHOICE)),
)


def small_work() -> None:
    """In a command's process: less of each kind of work, but each kind."""
    from relation.data import encode
    from report import figures

    os.environ["XDG_CACHE_HOME"] = os.path.abspath("results/.cache")
    os.environ["PATH"] = "nowhere"  # no TeX: it writes in a folder of its own
    encode._DOCUMENTS_AT_A_TIME, encode._BATCHES_BETWEEN_JOURNALS = 16, 2
    figures.DRAWINGS = tuple(one for one in figures.DRAWINGS if one.name in _FIGURES)
    figures.READINGS = ()


def sandbox(folder: Path, results: State) -> Sandbox:
    """The tiny campaign in a folder of its own, a state saved every update."""
    lay(results, folder / "results")
    text = (PROJECT / "config.yaml").read_text(encoding="utf-8")
    text = text.replace("checkpoint_tokens: 100000000", "checkpoint_tokens: 128")
    (folder / "config.yaml").write_text(text + _CONFIGURATION, encoding="utf-8")
    return Sandbox(folder, folder)


def run(operation: Operation, results: State, folder: Path) -> tuple[Done, State]:
    """Run a command on what a disk holds; how it ended, and what the disk holds then."""
    box = sandbox(folder, results)
    done = box.run(*operation.command, *_OPTIONS, before=small_work)
    after = held(folder / "results")
    shutil.rmtree(folder)
    return done, after


def points(operation: Operation, results: State, folder: Path) -> Iterator[Point]:
    """Run a command on what a disk holds, undisturbed: every crash of it."""
    box = sandbox(folder, results)

    def start(watch: Callable[[], None]) -> BaseProcess:
        before = partial(_both, small_work, watch)
        return box.start(*operation.command, *_OPTIONS, before=before).process

    try:
        yield from watched(start, folder / "results")
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{box.output()}") from error
    shutil.rmtree(folder)


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


def is_interrupted(state: State) -> bool:
    """Whether it holds a run with two states, and the log of an update behind them."""
    states = [path for path in state if "/state-" in path]
    logs = [content for path, content in state.items() if path.endswith("/metrics.jsonl")]
    return len(states) == 2 and logs != [] and logs[0].count(b"\n") == 4


def warm() -> None:
    """Have commands forked from a process that has imported what they need."""
    PROCESSES.set_forkserver_preload(list(IMPORTED))


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(path).parts)


def _counts(path: str, content: bytes | None) -> bool:
    """Whether a file counts as a result by its name: not a page, which is rendered again."""
    parts = {*PurePosixPath(path).parts}
    if content is None or _is_hidden(path) or parts & {"work", "resume"}:
        return False
    return "report" not in parts or path.endswith(".parquet")


def wrong_on_disk(
    point: str, state: State, killed: State, before: State, final: State
) -> str | None:
    """What is wrong with what a crash left, or None: a finished file lost, or half a result.

    Or the last resume state but one is lost. killed: what a killed process leaves there; before,
    final: what the undisturbed command found and left.
    """
    for path in sorted(path for path in killed if "/state-" in path)[-2:-1]:
        if state.get(path) != killed[path]:
            return f"{path} is lost"
    for path, content in final.items():
        if not _counts(path, content):
            continue
        whole = {content} if point == END else {content, before.get(path)}
        if state.get(path) not in whole:
            there = "is not whole" if path in state else "is lost"
            return f"{path} {there}"
    return None


def wrong_afterwards(done: Done, after: State, final: State) -> str | None:
    """What is wrong once the same command has run again, or None."""
    if done.status != 0 or "Traceback" in done.output:
        return f"ended with {done.status}: {done.last}"
    found, expected = ({p: s[p] for p in s if not _is_hidden(p)} for s in (after, final))
    for path in sorted(found.keys() ^ expected.keys()):
        return f"{path} is {'missing' if path in expected else 'left over'}"
    for path, content in expected.items():
        if found[path] != content and _lasting(path, found[path]) != _lasting(path, content):
            return f"{path} has other content"
    return None


def _lasting(path: str, content: bytes | None) -> object:
    """What two runs of a command have in common: all but times in records."""
    if content is None or not path.endswith(".parquet"):
        return content
    table = pq.read_table(pa.BufferReader(content))
    origin = json.loads(table.schema.metadata[_ORIGIN])
    columns = {
        field.name: table[field.name].to_pylist()
        for field in table.schema
        if (field.metadata or {}).get(b"unit", b"").decode() not in _TIMES
    }
    return columns, {name: value for name, value in origin.items() if name != _MADE}
