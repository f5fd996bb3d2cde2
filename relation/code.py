"""The code a result rests on: which of the project's files a stage imports, and their hash.

Snakemake sees a change of a rule's own text, not of the modules its command imports. Each rule
therefore carries this hash as a parameter, so that an edited kernel makes its results stale. It is
of syntax trees, not of bytes: a comment, a docstring or a new line break computes nothing, and a
day of training is too much to pay for one.
"""

import ast
import hashlib
from functools import cache
from pathlib import Path

from relation.files import sha256_of
from relation.spec import canonical_hash

PROJECT = Path(__file__).parents[1]
PACKAGES = ("relation", "kernels", "report")
# The loss curves that a refactor must give again; the tests hold the code to them.
GOLDEN_LOSSES = Path("tests", "golden", "losses.csv")

# The module that each stage's command calls.
STAGES = {
    "data": "relation.data.prepare",
    "models": "relation.model.inventory",
    "training": "relation.training.engine",
    "diagnostics": "relation.diagnostics.measure",
    "probe": "relation.diagnostics.probe",
    "systems": "relation.systems.measure",
    "verification": "relation.verification",
    "readings": "relation.records.multiverse",
    "gradients": "relation.gradients",
    "bench": "relation.systems.bench.run",
    "profile": "relation.systems.profile",
    "cells": "report.jobs.cells",
    "figures": "report.jobs.figures",
    "report": "report.jobs.pages",
    "compare": "report.jobs.compare",
    "document": "report.jobs.document",
}


def module_file(module: str) -> Path | None:
    """The file of one of the project's modules, or None where there is no such module."""
    # relation/kernels.py gives the folder kernels/ its import name.
    name = module.removeprefix("relation.") if module.startswith("relation.kernels.") else module
    base = PROJECT.joinpath(*name.split("."))
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


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _tell(node: object, tokens: list[str]) -> None:
    """Append a syntax tree in words, without places, docstrings and the fields left empty.

    Not `ast.dump`, whose text changes between Python's versions with the empty fields it prints.
    """
    if isinstance(node, ast.AST):
        tokens.append(f"({type(node).__name__}")
        for name in node._fields:
            value = getattr(node, name, None)
            if name == "body" and isinstance(node, _DOCUMENTED) and ast.get_docstring(node, False):
                value = value[1:]
            if isinstance(node, ast.JoinedStr):
                # Python 3.12 ends a format that ends in braces, as in f"{x:{form}}", with "".
                value = [part for part in value if getattr(part, "value", None) != ""]
            if value is not None and value != []:
                tokens.append(name)
                _tell(value, tokens)
        tokens.append(")")
    elif isinstance(node, list):
        tokens.append("[")
        for item in node:
            _tell(item, tokens)
        tokens.append("]")
    else:
        tokens.append(f"{type(node).__name__} {node!r}")


def syntax_hash(source: str) -> str:
    """SHA-256 of Python source as its syntax tree, comments and docstrings left out."""
    tokens: list[str] = []
    _tell(ast.parse(source), tokens)
    return hashlib.sha256("".join(f"{token}\n" for token in tokens).encode()).hexdigest()


@cache
def _file_hash(path: Path) -> str:
    return syntax_hash(path.read_text(encoding="utf-8"))


@cache
def code_hash(stage: str) -> str:
    """A hash of the syntax trees of a stage's files: an edit of what they compute changes it."""
    return canonical_hash(
        {path.relative_to(PROJECT).as_posix(): _file_hash(path) for path in stage_files(stage)}
    )


@cache
def golden_hash() -> str | None:
    """A hash of the golden losses that the code is held to; None in a copy without the tests."""
    path = PROJECT / GOLDEN_LOSSES
    return sha256_of(path)[:16] if path.exists() else None
