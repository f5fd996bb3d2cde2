"""The linters that the project promises to pass, and the shape of its tree."""

import subprocess
import sys
from pathlib import Path

import pytest
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
