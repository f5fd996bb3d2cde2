"""The linters that the project promises to pass, and the shape of its tree."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["snakefmt", "--check", "Snakefile", "workflow"],
        ["snakemake", "--lint"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_linters_are_clean(command: list[str]) -> None:
    tool = Path(sys.executable).parent / command[0]
    done = subprocess.run(
        [tool, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_tracked_stays_small() -> None:
    """Published results included: a clone is quick, and results are no place for checkpoints."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("not a clone: git does not say what is tracked")
    files = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    assert sum(path.stat().st_size for path in files if path.exists()) < 16 * 2**20


def pins(file: str) -> dict[str, str]:
    """Exact pins of a requirements file, by lower-case name."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return {n.lower(): v for n, v in re.findall(r"^([\w.-]+)==([\w.]+)$", text, re.MULTILINE)}


def test_the_conda_environment_keeps_the_pins_and_the_papers_software() -> None:
    listed = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    conda = dict(entry.split("=", 1) for entry in listed)
    assert conda["cuda-version"] == "13.0"
    assert conda["pytorch-gpu"] == "2.12.1" and conda["triton"] == "3.7.1"
    aliases = {"snakemake": "snakemake-minimal", "matplotlib": "matplotlib-base"}
    test_tools = {"torch", "pytest", "ruff", "snakefmt", "selenium"}
    for name, version in pins("requirements.txt").items():
        if name not in test_tools:
            assert conda[aliases.get(name, name)] == version, name


def test_constraints_hold_every_pin() -> None:
    required, constraints = pins("requirements.txt"), pins("constraints.txt")
    assert len(required) > 15
    del required["torch"]  # its build differs by platform; requirements.txt alone pins it
    assert {name: constraints[name] for name in required} == required
