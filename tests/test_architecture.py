"""Data flows one way: no module imports from a stage behind its own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from relation.code import PACKAGES, PROJECT, STAGES, module_of

# From the foundation to the command line; a module may import from its own line and those above.
ORDER = (
    ("relation", "relation.errors", "relation.registry"),
    (
        "relation.files",
        "relation.flow_codes",
        "relation.geometry",
        "relation.definitions",
        "relation.locks",
        "relation.progress",
    ),
    ("relation.spec", "relation.parquet", "relation.disk"),
    ("relation.code", "relation.uses", "relation.schemas"),
    ("relation.origin", "relation.config"),
    ("relation.devices",),
    ("relation.data",),
    ("relation.operators", "relation.kernels"),
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


def imported_modules(path: Path) -> set[str]:
    """The project's modules that a file names in its imports, wherever in the file they stand."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found & MODULES.keys()


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


MODULES = {
    module_of(path): path for name in PACKAGES for path in sorted((PROJECT / name).rglob("*.py"))
}


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    for other in imported_modules(MODULES[module]):
        assert rank(other) <= rank(module), f"{module} imports {other}, which stands above it"


def test_every_stage_is_what_a_command_calls() -> None:
    """A stage's code hash starts from what its rule's command imports."""
    commands = [
        PROJECT / f"relation/cli/{name}.py"
        for name in ("jobs", "bench", "compare", "diagnose", "profile")
    ]
    called = set().union(*map(imported_modules, commands))
    assert {entry.partition(":")[0] for entries in STAGES.values() for entry in entries} <= called


@pytest.mark.parametrize("module", ["relation.config", "relation.results", "report.tables"])
def test_parsing_the_snakefile_imports_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)
