"""Shared by all tests: one thread, skipped GPU tests, refusals, Snakemake in a copied project."""

import gc
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("Snakefile", "config.yaml", "config", "workflow", "profiles")
COPIED += ("relation", "kernels", "report")
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip GPU tests if there is no GPU. Run campaigns last, or first under xdist.

    A long test at the end would leave all but one of xdist's processes idle.
    """
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    first = hasattr(config, "workerinput")
    items.sort(key=lambda item: (item.get_closest_marker("campaign") is not None) != first)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Give PyTorch one CPU thread. More are slower on toy models and change the order of sums."""
    import torch

    # Import what the first backward pass imports, and exclude all imported objects from garbage
    # collection, so that forked benchmark processes do neither.
    import torch.fx.experimental.symbolic_shapes

    gc.freeze()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a prepared corpus, which tests must not change."""
    from training import write_corpus

    return write_corpus(tmp_path_factory.mktemp("corpus") / "data")


def refusal(action: Callable[[], object], kind: type[Exception] | None = None) -> str:
    """Return the one-line message of the InputError, or `kind`, that an action raises."""
    from relation.errors import InputError

    with pytest.raises(kind or InputError) as caught:
        action()
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def code_blocks(page: Path, language: str) -> list[str]:
    """The blocks of code in a page, a language's name after their three backquotes."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def copy_project(target: Path) -> Path:
    """Copy the files that the workflow needs to `target`, so a test can edit them."""
    target.mkdir(parents=True)
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, target / name)
    return target


def link_project(target: Path) -> None:
    """Link the files that commands read into `target`. There are no published records."""
    for name in ("config.yaml", "config", "relation"):
        (target / name).symlink_to(ROOT / name)


def run_module(project: Path, module: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run `python -m` in a project's folder; stdout holds both output streams."""
    variables = {**os.environ, **_ONE_THREAD, "PYTHONPATH": str(project)}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=project, env=variables, **pipes, text=True)


def snakemake(project: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    """Run Snakemake in a project's folder."""
    done = run_module(project, "snakemake", *arguments)
    if check and done.returncode:
        pytest.fail(f"snakemake {' '.join(arguments)} failed:\n{done.stdout[-6000:]}")
    return done


def planned_jobs(project: Path, *arguments: str) -> dict[str, int]:
    """Return how many jobs of each rule a dry run lists."""
    lines = iter(snakemake(project, "--dry-run", *arguments).stdout.splitlines())
    jobs: dict[str, int] = {}
    for line in lines:
        if line.startswith("job ") and "count" in line:
            next(lines)
            for row in iter(lambda: next(lines, "").split(), []):
                jobs[row[0]] = int(row[1])
    return {rule: count for rule, count in jobs.items() if rule not in ("all", "total")}


def until(what: Callable[[], object], seconds: float) -> object:
    """Wait until `what` returns something true, and return it."""
    deadline = time.monotonic() + seconds
    while not (actual := what()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not so within {seconds} s")
        time.sleep(0.1)
    return actual
