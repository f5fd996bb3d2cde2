"""Shared by the tests: the project's folder, GPU skipping, one thread, and Snakemake runs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
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
    """Skip what needs a GPU where there is none and slow faults; run the campaigns last."""
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    if "faults" not in config.getoption("markexpr"):
        for item in items:
            if item.get_closest_marker("faults"):
                item.add_marker(pytest.mark.skip(reason="slow; ask for it with -m faults"))
    items.sort(key=lambda item: item.get_closest_marker("campaign") is not None)


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
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the configuration and no results."""
    shutil.copy(ROOT / "config.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def invented_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an invented campaign's site, made once for all tests that only read it.

    And for all of pytest-xdist's processes, whose folders lie in one.
    """
    from further_records import with_further
    from sites import invented_site
    from test_report_records import make_records

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder, made = shared / "report", shared / "report.made"
    with FileLock(shared / "report.lock"):
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            invented_site(with_further(make_records()), folder)
            made.touch()
    return folder


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


Snakemake = Callable[..., subprocess.CompletedProcess]


def snakemake(project: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    """Run Snakemake in a project's folder; its output is captured, both streams in stdout."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
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
