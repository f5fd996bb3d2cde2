"""One set of pins: pyproject.toml, constraints.txt, the locks, environment.yml, the container."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from relation.store.parquet import read_origin

CONDA_NAMES = {"matplotlib": "matplotlib-base", "snakemake": "snakemake-minimal"}
# environment.yml records the paper's own versions of these.
PAPERS = {"torch": "pytorch-gpu", "triton": "triton"}
CONDA_ALONE = {"python", "cuda-version", *PAPERS.values()}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """The packages that pyproject.toml asks for, but for trackers, which nothing here installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["pipeline"], *extras["report"], *extras["test"]]
    return {canonical(re.match(r"[\w.-]+", line)[0]) for line in asked}


def pins() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)
    return {canonical(name): version for name, version in found}


def conda_pins() -> dict[str, str]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    return dict(package.split("=") for package in environment["dependencies"])


def test_everything_asked_for_is_pinned() -> None:
    # Triton follows PyTorch's own pin.
    assert declared() - pins().keys() == {"triton"}


def test_conda_has_the_pins_of_pip_and_no_others() -> None:
    conda = conda_pins()
    expected = {
        CONDA_NAMES.get(name, name): pins()[name]
        for name in declared() - PAPERS.keys() - {"setuptools"}
    }
    assert {n: v for n, v in conda.items() if n not in CONDA_ALONE} == expected
    assert {name: conda[name] for name in CONDA_ALONE - {"python"}} == {
        "cuda-version": "13.0",
        "pytorch-gpu": "2.12.1",
        "triton": "3.7.1",
    }


def test_the_container_installs_those_pins_on_a_supported_python() -> None:
    recipe = (ROOT / "Containerfile").read_text(encoding="utf-8")
    image = re.search(r"^FROM \S+/python:3\.(\d+)-", recipe, re.MULTILINE)
    supported = re.search(
        r"\(3, (\d+)\) <= v <= \(3, (\d+)\)", (ROOT / "Makefile").read_text(encoding="utf-8")
    )
    assert int(supported[1]) <= int(image[1]) <= int(supported[2])
    assert conda_pins()["python"] == f"3.{image[1]}"
    assert "--require-hashes -r locks/cuda-newest.txt" in recipe


def locked(name: str) -> dict[str, str]:
    """The versions of a lock by package; every one of them has a hash."""
    text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
    assert "://" not in text
    entries = re.split(r"\n(?=\S)", text.strip())[1:]
    assert all("--hash=sha256:" in entry for entry in entries)
    found = [re.match(r"([\w.-]+)==(\S+)", entry) for entry in entries]
    return {canonical(pin[1]): pin[2] for pin in found}


@pytest.mark.parametrize("name", ["cpu", "cuda-newest"])
def test_a_lock_has_the_pins_and_what_they_bring_along(name: str) -> None:
    versions = locked(name)
    beside = {"torch"} if name == "cpu" else set()  # the Makefile's
    assert declared() - versions.keys() == beside
    assert {package: pins().get(package, v) for package, v in versions.items()} == versions
    cuda = {package for package in versions if package.startswith("nvidia-")} - {"nvidia-ml-py"}
    assert bool(cuda) is (name != "cpu")


def test_the_published_lock_has_the_versions_of_the_records() -> None:
    record = "results/published/books-scaled/verification.parquet"
    made_with = read_origin(ROOT / record)["versions"]
    python = made_with.pop("python").rpartition(".")[0]
    versions = locked("cuda-published")
    assert {package: versions[package] for package in made_with} == made_with
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"the published versions need Python {python}" in makefile


def test_make_names_the_locks_there_are() -> None:
    done = subprocess.run(
        ["make", "LOCK=other", "setup"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    told = done.stderr.splitlines()
    assert done.returncode and "no lock other; set LOCK to one of cpu cuda" in told[0]


@pytest.mark.parametrize("there, given, made", [
    ((), (), ".ready-cpu-{here}"),
    ((".ready-cpu-3.9",), (), None),
    ((".ready-cpu-3.9",), (f"PYTHON={sys.executable}",), ".ready-cpu-{here}"),
    ((".ready-cpu-{here}",), (f"PYTHON={sys.executable}",), None),
    ((".ready-cuda-newest-{here}",), (), ".ready-cpu-{here}"),
])  # fmt: skip
def test_an_environment_of_another_python_is_kept_unless_one_is_given(
    tmp_path: Path, there: tuple[str, ...], given: tuple[str, ...], made: str | None
) -> None:
    here = "{}.{}".format(*sys.version_info)
    shutil.copytree(ROOT / "locks", tmp_path / "locks")
    for file in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / file, tmp_path)
    (tmp_path / ".venv").mkdir()
    for stamp in there:
        (tmp_path / ".venv" / stamp.format(here=here)).touch()
    call = ["make", "--dry-run", "LOCK=cpu", *given, "setup"]
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    last = done.stdout.splitlines()[-1]
    said = f"touch .venv/{made}" if made else "make: Nothing to be done for 'setup'."
    assert last == said.format(here=here)


def test_the_slurm_profile_asks_for_what_every_rule_needs() -> None:
    profile = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text(encoding="utf-8"))
    rules = {
        match
        for path in (ROOT / "workflow/rules").glob("*.smk")
        for match in re.findall(
            r"^(?:use )?rule (?:\w+ as )?(\w+)(?::| with:)",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    }
    assert profile["executor"] == "slurm"
    assert set(profile["set-resources"]) <= rules
    assert {"mem_mb", "runtime"} <= set(profile["default-resources"])
    heavy = {"prepare", "train", "train_reading", "diagnose", "diagnose_reading", "measure"}
    assert {*heavy, "verify_gradients"} <= set(profile["set-resources"])
