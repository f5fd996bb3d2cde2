"""One set of pins: requirements.txt, constraints.txt, environment.yml and the Containerfile."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
CONDA_NAMES = {"matplotlib": "matplotlib-base", "snakemake": "snakemake-minimal"}
# environment.yml records the paper's own versions of these.
PAPERS = {"torch": "pytorch-gpu", "triton": "triton"}
CONDA_ALONE = {"python", "cuda-version", *PAPERS.values()}


def lines(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def pins(name: str) -> dict[str, str]:
    """Pinned packages of a requirements file, names as pip compares them."""
    found = dict(line.split("==") for line in lines(name) if re.fullmatch(r"[\w.-]+==\S+", line))
    return {re.sub(r"[-_.]+", "-", k).lower(): v for k, v in found.items()}


def conda_pins() -> dict[str, str]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    return dict(package.split("=") for package in environment["dependencies"])


def test_conda_has_the_pins_of_pip_and_no_others() -> None:
    pip, conda = pins("requirements.txt"), conda_pins()
    expected = {CONDA_NAMES.get(n, n): v for n, v in pip.items() if n not in PAPERS}
    assert {n: v for n, v in conda.items() if n not in CONDA_ALONE} == expected
    assert set(conda) >= CONDA_ALONE


def test_constraints_hold_what_requirements_pin() -> None:
    pip, constraints = pins("requirements.txt"), pins("constraints.txt")
    both = pip.keys() & constraints.keys()
    assert {n: pip[n] for n in both} == {n: constraints[n] for n in both}
    assert {"snakemake", "pyarrow", "snakemake-executor-plugin-slurm"} <= both


def test_the_container_installs_those_pins_on_a_supported_python() -> None:
    recipe = (ROOT / "Containerfile").read_text(encoding="utf-8")
    image = re.search(r"^FROM \S+/python:3\.(\d+)-", recipe, re.MULTILINE)
    supported = re.search(
        r"\(3, (\d+)\) <= v <= \(3, (\d+)\)", (ROOT / "Makefile").read_text(encoding="utf-8")
    )
    assert int(supported[1]) <= int(image[1]) <= int(supported[2])
    assert conda_pins()["python"] == f"3.{image[1]}"
    assert "-r requirements.txt -c constraints.txt" in recipe
    assert recipe.index("COPY requirements.txt constraints.txt") < recipe.index("pip install")


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
