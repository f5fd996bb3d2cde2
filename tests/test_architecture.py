"""Data flows one way: no module imports from a stage behind its own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from relation.code import PACKAGES, PROJECT, STAGES, imported_modules

# From the foundation to the command line; a module may import from its own line and those above.
ORDER = (
    ("relation", "relation.errors"),
    (
        "relation.files",
        "relation.flow_codes",
        "relation.geometry",
        "relation.locks",
        "relation.progress",
    ),
    ("relation.spec", "relation.parquet", "relation.disk"),
    ("relation.code", "relation.schemas"),
    ("relation.origin", "relation.config"),
    ("relation.devices",),
    ("relation.data",),
    ("relation.operators", "kernels"),
    ("relation.model",),
    ("relation.training",),
    ("relation.diagnostics", "relation.systems", "relation.generation"),
    ("relation.identities",),
    ("relation.verification", "relation.gradients"),
    (
        "relation.results",
        "relation.ledger",
        "relation.preflight",
        "relation.plan",
        "relation.scale",
        "relation.status",
    ),
    ("relation.records",),
    ("report",),
    ("relation.cli", "relation.__main__"),
)


def module_of(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def rank(module: str) -> int:
    """The line of ORDER that a module belongs to, by its longest matching prefix."""
    fits = [
        (len(name), line)
        for line, names in enumerate(ORDER)
        for name in names
        if module == name or (name != "relation" and module.startswith(f"{name}."))
    ]
    assert fits, f"{module} has no place in the order; give it one"
    return max(fits)[1]


FILES = sorted(path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_imports_point_one_way(path: Path) -> None:
    module = module_of(path)
    for other in imported_modules(path):
        assert rank(other) <= rank(module), f"{module} imports {other}, which stands above it"


def test_no_relative_imports() -> None:
    """The stages' code hashes follow absolute imports only."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path


def test_every_stage_is_what_a_command_calls() -> None:
    """A stage's code hash starts from the module that its rule's command imports."""
    commands = [
        PROJECT / f"relation/cli/{name}.py"
        for name in ("jobs", "bench", "compare", "diagnose", "profile")
    ]
    called = set().union(*map(imported_modules, commands))
    assert set(STAGES.values()) <= called


@pytest.mark.parametrize("module", ["relation.config", "relation.results", "report.tables"])
def test_parsing_the_snakefile_imports_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)
