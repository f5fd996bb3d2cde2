"""Imports run one way: from a room to those before it, and in no circle within one."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from relation.pipeline.hashes import PACKAGES, PROJECT, STAGES, module_of

# The total order of the rooms: a module imports from its own room and from those before it.
ORDER = (
    "relation.errors",
    "relation.registry",
    "relation.variants",
    "relation.sections",
    "relation.spec",
    "relation.kernels",
    "relation.ops",
    "relation.nn",
    "relation.hf",
    "relation.store",
    "relation.machine",
    "relation.data",
    "relation.train",
    "relation.flow",
    "relation.probes",
    "relation.verify",
    "relation.bench",
    "relation.pipeline",
    "report.values",
    "report.judge",
    "report.figures",
    "report.render",
    "relation.cli",
    "relation.__main__",
)


def imported_modules(path: Path) -> set[str]:
    """The project's modules that a file names in its imports, wherever in the file they stand."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            inner = named & MODULES.keys()
            found.update(inner if inner == named else {*inner, node.module})
    return found & MODULES.keys()


def rank(module: str) -> int:
    """The place in ORDER of the room that a module lies in."""
    fits = [i for i, room in enumerate(ORDER) if f"{module}.".startswith(f"{room}.")]
    assert fits, f"{module} lies in no room; give it one"
    return fits[0]


MODULES = {
    module_of(path): path for name in PACKAGES for path in sorted((PROJECT / name).rglob("*.py"))
}


IMPORTS = {module: imported_modules(path) for module, path in MODULES.items()}


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"relation", "report"}))
def test_imports_point_one_way(module: str) -> None:
    above = {other for other in IMPORTS[module] if rank(other) > rank(module)}
    assert not above


@pytest.mark.parametrize("room", ORDER)
def test_a_room_has_no_circle(room: str) -> None:
    own = {module for module in MODULES if f"{module}.".startswith(f"{room}.")}
    # Raises CycleError, which names the circle.
    TopologicalSorter({module: IMPORTS[module] & own for module in own}).prepare()


def test_every_stage_is_what_a_command_calls() -> None:
    """A stage's code hash starts from what its rule's command imports."""
    commands = [
        PROJECT / f"relation/cli/{name}.py"
        for name in ("jobs", "bench", "report", "diagnose", "profile")
    ]
    called = set().union(*map(imported_modules, commands))
    assert {entry.partition(":")[0] for entries in STAGES.values() for entry in entries} <= called


@pytest.mark.parametrize(
    "module", ["relation.pipeline.config", "relation.pipeline.ledger", "report.values.tables"]
)
def test_parsing_the_snakefile_imports_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)
