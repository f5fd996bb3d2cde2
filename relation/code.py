"""The code a result rests on: which of the project's files a stage imports, and their hash.

Snakemake sees a change of a rule's own text, not of the modules its command imports. Each rule
therefore carries this hash as a parameter, so that an edited kernel makes its results stale.
"""

import ast
from functools import cache
from pathlib import Path

from relation.files import sha256_of
from relation.spec import canonical_hash

PROJECT = Path(__file__).parents[1]
PACKAGES = ("relation", "kernels", "report")

# The module that each stage's command calls.
STAGES = {
    "data": "relation.data.prepare",
    "models": "relation.model.inventory",
    "training": "relation.training.engine",
    "diagnostics": "relation.diagnostics.measure",
    "systems": "relation.systems.measure",
    "bench": "relation.systems.bench.run",
    "profile": "relation.systems.profile",
    "cells": "report.jobs.cells",
    "figures": "report.jobs.figures",
    "report": "report.jobs.pages",
}


def module_file(module: str) -> Path | None:
    """The file of one of the project's modules, or None where there is no such module."""
    base = PROJECT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.exists():
            return path
    return None


def imported_modules(path: Path) -> set[str]:
    """The project's modules that a file names in its imports, wherever in the file they stand."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {m for m in found if m.split(".")[0] in PACKAGES and module_file(m)}


@cache
def stage_files(stage: str) -> tuple[Path, ...]:
    """Every file of the project that a stage imports, directly or not, in name order."""
    waiting, files = [STAGES[stage]], {}
    while waiting:
        module = waiting.pop()
        path = module_file(module)
        if path is None or module in files:
            continue
        files[module] = path
        # Importing a.b.c runs a and a.b first.
        parents = module.split(".")[:-1]
        waiting += [".".join(parents[: i + 1]) for i in range(len(parents))]
        waiting += imported_modules(path)
    return tuple(sorted(files.values()))


@cache
def code_hash(stage: str) -> str:
    """A hash of the contents of a stage's files: an edit changes it, touching does not."""
    files = {p.relative_to(PROJECT).as_posix(): sha256_of(p) for p in stage_files(stage)}
    return canonical_hash(files)
