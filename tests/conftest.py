"""Shared by the tests: the project's folder, GPU skipping, one thread, and Snakemake runs."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from relation.machine import forks

if TYPE_CHECKING:
    from relation.pipeline.campaign import Campaign

ROOT = Path(__file__).resolve().parents[1]
# Snakemake and the tiny campaign's jobs import these.
IMPORTED = (
    "filelock",
    "fontTools.subset",
    "jinja2",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "matplotlib.pyplot",
    "pandas",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "pydantic.dataclasses",
    "safetensors.torch",
    "scipy.stats",
    "snakemake.cli",
    "snakemake.executors.local",
    "snakemake.profiles",
    "snakemake.report.html_reporter",
    "snakemake.storage",
    "snakemake_executor_plugin_slurm",
    "torch",
    "yaml",
)
# Theirs: of jobs of one thread, whose Snakefile has imported relation.bench. Python keeps bytecode,
# so that not every job of a copy compiles its modules.
_UNSET = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in _UNSET}
ENVIRONMENT |= {**forks.ONE_THREAD, "KINETO_LOG_LEVEL": "99"}
COPIED = ("Snakefile", "config.yaml", "environment.yml", "pyproject.toml")
COPIED_FOLDERS = (
    "workflow",
    "profiles",
    "relation",
    "kernels",
    "report",
    "docs/figures",
    "tests/golden",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none and what must be asked for; run the campaigns last.

    pytest-xdist runs them first: the longest at the end would leave all processes but one idle.
    """
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    for mark in {"bare", "faults"} - set(re.findall(r"\w+", config.getoption("markexpr"))):
        for item in items:
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=f"slow; ask for it with -m {mark}"))
    first = hasattr(config, "workerinput")
    items.sort(key=lambda item: (item.get_closest_marker("campaign") is not None) != first)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """One CPU thread of PyTorch: more only contend on toy models, and change the order of sums."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks make few copies of their inputs."""
    monkeypatch.setattr("relation.bench.sides.cache_bytes", lambda device: 2**16)


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks measure in this process; tests/test_bench.py has them start their own."""
    from benchmarks import InProcess

    monkeypatch.setattr("relation.bench.rounds.session.__wrapped__.__defaults__", (InProcess,))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the configuration and no results."""
    shutil.copy(ROOT / "config.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def invented_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an invented campaign's site, made once for all tests that only read it.

    And for all of pytest-xdist's processes, whose folders lie in one.
    """
    from further_records import further_campaign
    from sites import invented_site

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder, made = shared / "report", shared / "report.made"
    with FileLock(shared / "report.lock"):
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            invented_site(further_campaign(), folder)
            made.touch()
    return folder


@pytest.fixture(scope="session")
def records():
    """The invented campaign, which tests only read."""
    from test_report_records import make_records

    return make_records()


@pytest.fixture(scope="session")
def cells(records):
    """Every cell of its tables."""
    from report.judge.cells import build

    return build(records)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small prepared corpus, for runs of `training.run_spec`; read only."""
    from training import write_corpus

    return write_corpus(tmp_path_factory.mktemp("corpus") / "data")


@pytest.fixture(scope="session")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a Full Relation run that nothing interrupted; read only."""
    from training import run_spec

    from relation.train.run import train

    folder = tmp_path_factory.mktemp("trained")
    train(run_spec(), data, folder / "out", folder / "resume")
    return folder / "out"


@cache
def campaign(name: str = "tiny", **choices: str) -> "Campaign":
    """A campaign of config.yaml, restricted as asked."""
    from relation.pipeline.campaign import resolve
    from relation.pipeline.config import load_config

    return resolve(load_config(ROOT / "config.yaml"), campaign=name, **choices)


def refusal(action: Callable[[], object], kind: type[Exception] | None = None) -> str:
    """The one line that an action is refused with, by an InputError unless told."""
    from relation.errors import InputError

    with pytest.raises(kind or InputError) as caught:
        action()
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def copy_project(target: Path) -> Path:
    """A copy of what the pipeline runs from, so that tests can edit it."""
    target.mkdir(parents=True)
    for name in COPIED:
        shutil.copy2(ROOT / name, target / name)
    for name in COPIED_FOLDERS:
        shutil.copytree(
            ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    return target


@cache
def _forks() -> tuple[str, str, object]:
    """The address of a server of forks, its `python` for Snakemake's jobs, and what keeps both."""
    address, server = forks.start(IMPORTED, ENVIRONMENT)
    folder = tempfile.TemporaryDirectory(prefix="python")
    python = Path(folder.name) / "python"
    python.write_text(f'#!/bin/sh\nexec {forks.python(address)} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return address, str(python), (folder, server)


def run_module(
    project: Path, module: str, *arguments: str, own_jobs: bool = False, **variables: str
) -> subprocess.CompletedProcess:
    """Run `python -m` in a project's folder; its output is captured, both streams in stdout.

    Jobs that Snakemake starts are forks too, or processes of their own. variables: of the
    environment.
    """
    address, python, _ = _forks()
    executable = sys.executable if own_jobs else python
    with open(os.devnull) as nothing, tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        streams = nothing.fileno(), output.fileno(), output.fileno()
        request = (module, list(arguments), str(project), ENVIRONMENT | variables, executable)
        status = forks.ask(address, request, streams)
        output.seek(0)
        return subprocess.CompletedProcess(arguments, status, output.read())


def snakemake(
    project: Path, *arguments: str, check: bool = True, own_jobs: bool = False, **variables: str
) -> subprocess.CompletedProcess:
    """Run Snakemake in a project's folder, as `run_module` does, with one core unless told."""
    arguments = "--cores", "1", *arguments
    done = run_module(project, "snakemake", *arguments, own_jobs=own_jobs, **variables)
    if check and done.returncode:
        pytest.fail(f"snakemake {' '.join(arguments)} failed:\n{done.stdout[-6000:]}")
    return done


def planned_jobs(project: Path, *arguments: str) -> dict[str, int]:
    """How many jobs of each rule a dry run would run."""
    output = snakemake(project, "--dry-run", *arguments).stdout
    lines = iter(output.splitlines())
    jobs: dict[str, int] = {}
    for line in lines:
        if line.startswith("job ") and "count" in line:
            next(lines)
            for row in lines:
                if not row.strip():
                    break
                rule, count = row.split()
                jobs[rule] = int(count)
    jobs.pop("total", None)
    return jobs
