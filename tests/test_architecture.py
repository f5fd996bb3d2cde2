"""Data flows one way: no module imports from a stage behind its own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from relation.pipeline.hashes import PACKAGES, PROJECT, STAGES, module_of

# From the foundation to the command line; a module may import from its own line and those above.
ORDER = (
    ("relation", "relation.errors", "relation.registry"),
    (
        "relation.store.files",
        "relation.flow.codes",
        "relation.variants",
        "relation.pipeline.definitions",
        "relation.store.locks",
        "relation.machine.progress",
        "relation.pipeline.sections",
    ),
    ("relation.spec", "relation.store.parquet", "relation.pipeline.disk"),
    ("relation.pipeline.hashes", "relation.pipeline.uses", "relation.store.layouts"),
    ("relation.pipeline.origin", "relation.pipeline"),
    ("relation.machine.devices",),
    ("relation.data",),
    ("relation.ops", "relation.kernels"),
    ("relation.nn",),
    ("relation.train",),
    ("relation.flow", "relation.bench", "relation.nn.generation"),
    ("relation.bench",),
    ("relation.bench",),
    ("relation.verify.identities",),
    ("relation.verify.operators", "relation.verify.gradients"),
    (
        "relation.pipeline.results",
        "relation.pipeline.ledger",
        "relation.pipeline.preflight",
        "relation.pipeline.cost",
        "relation.pipeline.estimate",
        "relation.pipeline.progress",
    ),
    ("report.values",),
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


@pytest.mark.parametrize(
    "module", ["relation.pipeline", "relation.pipeline.results", "report.values.tables"]
)
def test_parsing_the_snakefile_imports_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)
