"""A small campaign in a folder of its own that faults are done to, and what becomes of it."""

import contextlib
import hashlib
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from relation.store.layouts import LOG, RUN

PROJECT = Path(__file__).resolve().parents[2]
PROCESSES = multiprocessing.get_context("forkserver")
# PyArrow imports the last where it first writes a table.
_IMPORTED = ["relation.cli", "relation.train.run", "relation.data.prepare", "pyarrow.pandas_compat"]
PROCESSES.set_forkserver_preload(_IMPORTED)
DONE_RUN, RUN_NAME = "10M/mha/42", "10M/full/42"
DATA, CAMPAIGN = "sample-300", "faults"
TIMES = {"seconds", "tokens_per_second"}  # all that may differ between two runs of one kind
SECONDS = 120.0  # longer than any command here takes

_CAMPAIGNS = """
  faults:
    base: tiny
    seeds: [42]
    scales:
      10M: {budget_tokens: 6000}
  texts:
    base: tiny
    seeds: [42]
    corpora:
      sample:
        source: {kind: files, validation_modulus: 5}
        train_tokens: 200000
        tokenizer_characters: 200000
"""


def configuration() -> str:
    """The project's configuration with small campaigns, and a state saved every other update."""
    text = (PROJECT / "config.yaml").read_text(encoding="utf-8")
    return text.replace("checkpoint_tokens: 100000000", "checkpoint_tokens: 256") + _CAMPAIGNS


def _command(folder: Path, log: Path, arguments: tuple, before: Callable | None) -> None:
    """One command line, as the process that a user starts."""
    import torch

    from relation.cli import main

    os.chdir(folder)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # Unbuffered, so that a kill loses no word.
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", buffering=1)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1)
    torch.set_num_threads(1)
    if before is not None:
        before()
    sys.exit(main(list(arguments)))


@dataclass(frozen=True)
class Done:
    """A command that ended: its exit status, negative for a signal, and what it printed."""

    status: int | None
    output: str

    @property
    def last(self) -> str:
        """The last line a user reads."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith(("error: ", "warning: "))]
        return (told or lines or ["(nothing)"])[-1]


class Job:
    """A command in progress."""

    def __init__(self, box: "Sandbox", arguments: tuple, before: Callable | None):
        self._box = box
        self._log = box.folder / f"said-{len(box.said)}"
        self._log.touch()
        box.said.append(self._log)
        job = (box.folder, self._log, arguments, before)
        self.process = PROCESSES.Process(target=_command, args=job)
        self.process.start()

    def wait(self, seconds: float = SECONDS) -> Done | None:
        """What it ended with; None where it still runs after so long."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            return None
        return Done(self.process.exitcode, self.output)

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> Done:
        self.process.kill()
        return self.wait()


@dataclass
class Sandbox:
    """A campaign with finished work: data, one run and its diagnostics. `RUN_NAME` is yet to do."""

    folder: Path
    reference: Path  # the same, with RUN_NAME trained undisturbed
    said: list[Path] = field(default_factory=list)
    pace: float = 1.0  # seconds that training RUN_NAME undisturbed takes here
    broken: set[str] = field(default_factory=set)  # finished files that the fault itself broke
    before: dict[str, str] = field(default_factory=dict)

    @property
    def results(self) -> Path:
        return self.folder / "results" / CAMPAIGN

    @property
    def data(self) -> Path:
        return self.results / "data" / DATA

    @property
    def resume(self) -> Path:
        """The resume folder of the run in progress."""
        return next(path for path in (self.results / "resume").iterdir() if path.is_dir())

    def start(self, *arguments: str, before: Callable | None = None) -> Job:
        return Job(self, arguments, before)

    def run(
        self, *arguments: str, before: Callable | None = None, seconds: float = SECONDS
    ) -> Done:
        job = self.start(*arguments, before=before)
        done = job.wait(seconds)
        if done is None:
            job.kill()
            raise AssertionError(f"{' '.join(arguments)} did not end:\n{job.output[-2000:]}")
        return done

    def train(self, **options) -> Done:
        return self.run("train", RUN_NAME, "--campaign", CAMPAIGN, **options)

    def start_training(self, before: Callable | None = None) -> Job:
        return self.start("train", RUN_NAME, "--campaign", CAMPAIGN, before=before)

    def damage(self, path: Path, change: Callable[[bytes], bytes]) -> None:
        """Change a file behind everybody's back, its time of change kept."""
        status = path.stat()
        path.write_bytes(change(path.read_bytes()))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        self.broken.add(path.relative_to(self.folder).as_posix())

    def snapshot(self) -> dict[str, str]:
        """SHA-256 of every finished file."""
        finished = {}
        for part in ("data", "runs", "diagnostics", "report"):
            for path in (self.results / part).rglob("*"):
                if path.is_file() and not path.name.startswith("."):
                    name = path.relative_to(self.folder).as_posix()
                    finished[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return finished

    def lost(self) -> list[str]:
        """Finished files that are gone or changed, but for those that the fault itself broke."""
        now = self.snapshot()
        return sorted(
            n for n, digest in self.before.items() if now.get(n) != digest and n not in self.broken
        )

    def output(self) -> str:
        """All that a user read."""
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in self.said)

    def assert_trained(self) -> None:
        """The run is done and has the bits of the undisturbed one."""
        self.assert_same(f"runs/{RUN_NAME}")

    def assert_same(self, run: str) -> None:
        found, expected = self.results / run, self.reference / "results" / CAMPAIGN / run
        weights = [path / "model.safetensors" for path in (found, expected)]
        assert weights[0].read_bytes() == weights[1].read_bytes(), "other weights"
        for name, layout in (("log.parquet", LOG), ("record.parquet", RUN)):
            assert _columns(found / name, layout) == _columns(expected / name, layout), name

    @contextlib.contextmanager
    def own_disk(self, kilobytes: int) -> Iterator[Callable[[str], None]]:
        """Lay the results on a small disk of their own; yields a function that remounts it."""
        kept = self.folder / "kept"
        shutil.move(self.results, kept)
        self.results.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(self.results))
        try:
            shutil.copytree(kept, self.results, dirs_exist_ok=True)
            yield lambda options: _mount("-o", f"remount,{options}", str(self.results))
            shutil.rmtree(kept)
            shutil.copytree(self.results, kept)
        finally:
            subprocess.run(["umount", "--lazy", str(self.results)], check=True)
            self.results.rmdir()
            shutil.move(kept, self.results)

    @property
    def size_kilobytes(self) -> int:
        """What the results take on a disk."""
        files = [path for path in self.results.rglob("*") if path.is_file()]
        return sum(-(-path.stat().st_size // 4096) * 4 for path in files)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)


@cache
def can_mount() -> bool:
    """Whether this user may mount a disk, as root may."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"]).returncode == 0


def _columns(path: Path, layout) -> dict[str, list]:
    from relation.store.parquet import read_parquet

    return {n: v for n, v in read_parquet(path, layout).to_pydict().items() if n not in TIMES}


def moments(count: int, longest: float) -> list[float]:
    """Random moments, the same every time: seconds after a job's start."""
    generator = random.Random(12)
    return [generator.uniform(0, longest) for _ in range(count)]


def make_base(folder: Path) -> Path:
    """Prepare, train both runs and diagnose one, once; sandboxes are copies of it."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(configuration(), encoding="utf-8")
    box = Sandbox(folder, folder)
    for command in (
        ("prepare", DATA),
        ("train", DONE_RUN),
        ("train", RUN_NAME),
        ("diagnose", DONE_RUN),
    ):
        began = time.monotonic()
        done = box.run(*command, "--campaign", CAMPAIGN)
        assert done.status == 0, done.output
        if RUN_NAME in command:
            (folder / "pace").write_text(str(time.monotonic() - began), encoding="utf-8")
    return folder


def make_sandbox(base: Path, folder: Path) -> Sandbox:
    """A copy of the base in which RUN_NAME is not trained."""
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("said-*"))
    box = Sandbox(folder, base, pace=float((base / "pace").read_text(encoding="utf-8")))
    shutil.rmtree(box.results / "runs" / RUN_NAME)
    box.before = box.snapshot()
    return box


def until(what: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait for something true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
