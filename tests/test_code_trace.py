"""Every function of the project that a job really runs is in the job's code hash, or only tells."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FrameType

import pytest
from conftest import ROOT
from training import campaign

from relation.cli import main
from relation.errors import RunError
from relation.pipeline.hashes import PACKAGES, STAGES, Code, module_of
from relation.pipeline.uses import uses_of, uses_of_model
from relation.verify import gradients

pytestmark = pytest.mark.campaign

CODE = Code(ROOT)
FULL = campaign().run("10M", "full", 42)
HYBRID = next(run for run in campaign().runs if "L" in run.model["layout"])
READ = sorted({FULL.data, HYBRID.data})
BENCHMARK = campaign().benchmark("linear-steady", "10M")
# Of the gradients' variants one a layer, and one draw, which is too few to judge.
CHECKED = [v for v in campaign().gradients.variants if v["variant"] in ("mha", "full", "linear")]
GRADIENTS = replace(campaign().gradients, variants=CHECKED, draws=1)
# Arguments of stamps and messages, which the hash does not follow.
STAMPED = {
    "relation.pipeline.campaign:Campaign.inventory_hash",
    "relation.machine.devices:describe",
    "relation.flow.diagnose:hash_of_sequences",
    "relation.spec:Spec._without",
    "relation.spec:Spec.config_hash",
    "relation.spec:Spec.identity",
    "relation.spec:canonical_hash",
    "relation.bench.conditions:libraries",
    "relation.train.run:_Run.kept",
    "relation.pipeline.uses:_",
    "relation.pipeline.uses:_of_sides",
}


def job(command: str, stage: str, uses: frozenset[str], *marks: pytest.MarkDecorator):
    """A command, its stage and what it uses; traced for a minute and more where it is slow."""
    return pytest.param(command, stage, uses, marks=marks, id=command)


# In the order in which they need each other.
JOBS = [
    *(job(f"prepare {name}", "data", uses_of(campaign().data[name])) for name in READ),
    *(job(f"train {run.name}", "training", uses_of(run)) for run in (FULL, HYBRID)),
    job(f"diagnose {FULL.name}", "diagnostics", uses_of_model(FULL.model["layout"])),
    job(f"examine {HYBRID.name}", "examination", uses_of(HYBRID)),
    job("verify", "verification", uses_of(campaign().verification), pytest.mark.slow),
    job("verify-gradients", "gradients", uses_of(GRADIENTS)),
    job("measure linear-steady/10M", "systems", uses_of(BENCHMARK), pytest.mark.slow),
    job("recall full", "recall", uses_of(campaign().recall_of("full"))),
    job("inventory", "models", uses_of_model("AFL")),
]


class Trace:
    """The project's functions called while it is on, but for what marked functions call."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self._aside: list[FrameType] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self._aside:
            if event == "return" and frame is self._aside[-1]:
                self._aside.pop()
            return
        code = frame.f_code
        called = event == "call" and defined(code.co_filename, code.co_qualname)
        if not called:
            return
        module, _, name = called.partition(":")
        if name.startswith("<") or f"{module}:{name.partition('.')[0]}" in CODE.marks:
            self._aside.append(frame)
        else:
            self.called.add(called)


@cache
def defined(file: str, function: str) -> str | None:
    """A function of the project as the hashes name definitions; None for any other."""
    path = Path(file)
    # A clone also holds the tests and the virtual environment.
    if not any(path.is_relative_to(ROOT / part) for part in PACKAGES):
        return None
    parts = function.split(".<locals>")[0].split(".")
    return f"{module_of(path, ROOT)}:{'.'.join(parts[:2])}"


@contextmanager
def traced(entry: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trace]:
    """Trace what an entry point of a stage runs, in whichever thread."""
    trace = Trace()
    module, _, name = entry.partition(":")
    __import__(module)
    real = getattr(sys.modules[module], name)

    def entered(*arguments, **options):
        threading.setprofile(trace)
        sys.setprofile(trace)
        try:
            return real(*arguments, **options)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[module], name, entered)
        yield trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all jobs run, one after the other."""
    return tmp_path_factory.mktemp("traced")


@pytest.mark.parametrize(("command", "stage", "uses"), JOBS)
def test_what_a_job_runs_is_in_its_hash(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, stage: str, uses: frozenset[str]
) -> None:
    monkeypatch.chdir(folder)
    given = [*command.split(), "--config", str(ROOT / "config.yaml"), "--campaign", "tiny"]
    with traced(STAGES[stage][0], monkeypatch) as trace:
        if stage == "gradients":
            with suppress(RunError):
                gradients.verify_gradients(GRADIENTS, folder / "gradients.parquet")
        else:
            assert main(given) in (None, 0)
    entries = STAGES[stage] + (STAGES["probe"] if stage == "training" else ())
    found = {f"{d.module}:{name}" for d in CODE.reach(entries, uses) for name in d.names}
    assert len(trace.called) > 10
    assert not {called for called in trace.called - STAMPED if not (names(called) & found)}


def names(called: str) -> set[str]:
    """A function's definition, or the class it counts with: Python calls it, or it has no name."""
    owner, _, method = called.rpartition(".")
    return {called, owner} if method.startswith(("__", "<")) else {called}
