"""The code that a result rests on: a hash of the definitions that a stage's entry points reach.

Snakemake sees a change of a rule's own text, not of the code that its command runs. Each rule
therefore carries this hash as a parameter, so that an edited kernel makes its results stale, and an
edit that computes nothing does not: a day of training is too much to pay for a log line.

From an entry the hash follows
- names, through imports and re-exports, to the project's definitions;
- methods by name: one of a reached class counts once reached code has its name, as an attribute or
  a string; all of them where a base outside the project may call them;
- effects: `X.register_fake(...)` counts with X, any other bare top-level call with its module;
- the data files that a definition opens beside itself (a TOML file's comments aside);
- of a `Registry` the entries that a job uses, where it names those.

It leaves out docstrings, comments, annotations of arguments, the words of an error, statements that
print, warn or log, descriptions and help texts, and what is marked `@tells`. In report/ words are
results: only docstrings and comments are left out. No module's name is hashed, as the place of a
definition computes nothing.
"""

import importlib.util
import json
import sys
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from relation.pipeline.definitions import (
    Definition,
    Module,
    Reference,
    digest_of,
    marks_in,
    read_module,
)
from relation.registry import tells
from relation.store.files import sha256_of

PROJECT = Path(__file__).parents[2]
PACKAGES = ("relation", "kernels", "report")  # folders
# The loss curves that a refactor must give again; the tests hold the code to them.
GOLDEN_LOSSES = Path("tests", "golden", "losses.csv")

# What each stage's command calls.
STAGES: dict[str, tuple[Reference, ...]] = {
    "data": ("relation.data.prepare:prepare",),
    "models": ("relation.pipeline.inventory:write_inventory",),
    "training": ("relation.train.run:train",),
    "diagnostics": ("relation.flow.diagnose:diagnose",),
    "examination": ("relation.probes.examine:examine",),
    "probe": (
        "relation.flow.probe:FlowProbe",
        "relation.train.probes:ValidationProbe",
    ),
    "systems": ("relation.bench.campaign:measure",),
    "verification": ("relation.verify.operators:verify",),
    "recall": ("relation.probes.recall.run:recall",),
    "readings": ("relation.pipeline.gather:collect",),
    "gradients": ("relation.verify.gradients:verify_gradients",),
    "bench": ("relation.bench.run:run",),
    "decode": ("relation.bench.decode:run", "relation.bench.decode:measure"),
    "profile": ("relation.bench.profile:run",),
    "cells": ("report.judge.job:write_cells", "report.values.frames:load_records"),
    "figures": ("report.figures:write_figures", "report.values.frames:load_records"),
    "report": ("report.render.site:render_report",),
    "document": ("report.render.document:write_document",),
}


def module_of(path: Path, root: Path = PROJECT) -> str:
    """The import name of one of the project's files."""
    parts = path.relative_to(root).with_suffix("").parts
    if parts[0] == "kernels":  # relation/kernels.py gives that folder its import name
        parts = ("relation", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


_READER = [
    Path(__file__).with_name(name).read_text(encoding="utf-8")
    for name in ("definitions.py", "syntax.py")
]
# Definitions are told apart by what they refer to, and that by what it refers to, so far.
_DEPTH = 3


class Code:
    """The project's definitions in a folder, as they are when it is made; modules read on demand.

    What was read of a module is kept in its folder's __pycache__, under a checksum of all that it
    was read from. A cache that is damaged or cannot be written costs a second.
    """

    def __init__(self, root: Path):
        self.root = root
        self.paths: dict[str, Path] = {}
        self.sources: dict[str, str] = {}
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                module = module_of(path, root)
                self.paths[module] = path
                self.sources[module] = path.read_text(encoding="utf-8")
        self.marks: set[str] = set()
        for module, source in self.sources.items():
            self.marks.update(*marks_in(module, source))
        self._read_by = digest_of(f"{sys.version_info[:2]} {_READER} {sorted(self.marks)}")
        self._modules: dict[str, Module] = {}
        self._bound: dict[str, dict[str, list[Definition]]] = {}
        self._resolved: dict[Reference, list[Definition]] = {}

    def module(self, name: str) -> Module:
        """A module's definitions. Raises KeyError where the project has no such module."""
        if name not in self._modules:
            module = self._modules[name] = self._read(name)
            bound = self._bound[name] = {}
            for definition in module.definitions:
                for own in definition.names:
                    bound.setdefault(own, []).append(definition)
        return self._modules[name]

    def _read(self, name: str) -> Module:
        path, source = self.paths[name], self.sources[name]
        seal = f"{self._read_by} {name} {path} {source}"
        kept = Path(importlib.util.cache_from_source(str(path))).with_suffix(".json")
        with suppress(OSError, ValueError, TypeError, KeyError):
            checksum, text = kept.read_text(encoding="utf-8").split("\n", 1)
            if checksum == digest_of(seal + text):
                return Module.from_json(json.loads(text))
        module = read_module(name, source, path, self.marks)
        text = json.dumps(module.as_json(), separators=(",", ":"))
        with suppress(OSError):
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(f"{digest_of(seal + text)}\n{text}", encoding="utf-8")
        return module

    # -- resolution -------------------------------------------------------------------------------
    def resolve(self, reference: Reference) -> list[Definition]:
        """What a reference stands for, through re-exports; of a bare module, all that it has."""
        if reference not in self._resolved:
            self._resolved[reference] = self._resolve(*_split(reference), ())
        return self._resolved[reference]

    def _resolve(self, module: str, names: list[str], seen: tuple) -> list[Definition]:
        if module not in self.sources:
            return self._resolve(f"{module}.{names[0]}", names[1:], seen) if names else []
        if (where := (module, *names)) in seen:
            return []
        imports, seen = self.module(module).imports, (*seen, where)
        if not names:  # getattr(module, name)
            others = (self._resolve(*_split(other), seen) for other in imports.values())
            return [*self.module(module).definitions, *(d for found in others for d in found)]
        name, *rest = names
        if name in self._bound[module]:
            return self._bound[module][name]
        if name in imports:
            other, through = _split(imports[name])
            found = self._resolve(other, [*through, *rest], seen)
            if found:
                return found
        return self._resolve(f"{module}.{name}", rest, seen)

    def _called(self, definition: Definition) -> set[str] | None:
        """The methods of a class that bases outside the project call; None for all."""
        called = definition.called
        for base in definition.bases:
            for inner in self.resolve(base):
                further = self._called(inner)
                called = None if called is None or further is None else {*called, *further}
        return None if called is None else set(called)

    # -- closure ----------------------------------------------------------------------------------
    def reach(
        self, entries: Iterable[Reference], uses: frozenset[str] = frozenset()
    ) -> list[Definition]:
        """Every definition that the entries rest on.

        uses: entries of registries, as "REGISTRY/key" or the beginning of a key: of a registry that
        it names, only those count; of any other, all. Raises LookupError for an
        entry point, or an entry of a registry, that there is not.
        """
        named = {use.partition("/")[0] for use in uses}
        found: dict[Definition, None] = {}
        waiting: list[Definition] = []
        said: set[str] = set()
        held: dict[str, list[Definition]] = {}  # methods whose name was not said so far
        modules: set[str] = set()

        def want(definitions: Iterable[Definition]) -> None:
            new = [d for d in definitions if d not in found and not d.tells]
            found.update(dict.fromkeys(new))
            waiting.extend(new)

        def want_methods(definition: Definition) -> None:
            called = self._called(definition)
            for method in definition.parts:
                name = method.names[0].partition(".")[2]
                if called is None or name in called or name in said:
                    want([method])
                else:
                    held.setdefault(name, []).append(method)

        def want_entries(definition: Definition) -> None:
            if definition.names[0] not in named:
                want(definition.parts)
                return
            for use in uses:
                asked = [d for d in definition.parts if f"{d.names[0]}/".startswith(f"{use}/")]
                if not asked and use.startswith(f"{definition.names[0]}/"):
                    raise LookupError(f"the project has no {use}")
                want(asked)

        def want_module(name: str) -> None:
            package = name.rpartition(".")[0]
            if package:
                want_module(package)
            if name in self.sources and name not in modules:
                modules.add(name)
                effects = (d for d in self.module(name).definitions if d.effect)
                want(d for d in effects if d.attached is None)

        for entry in entries:
            definitions = self.resolve(entry)
            if not definitions:
                raise LookupError(f"the project has no {entry}")
            want(definitions)
            for definition in definitions:
                want(definition.parts)  # it is called from outside
        while waiting:
            definition = waiting.pop()
            for word in definition.words:
                if word not in said:
                    said.add(word)
                    want(held.pop(word, ()))
            if definition.kind == "class":
                want_methods(definition)
            elif definition.kind == "registry":
                want_entries(definition)
            for _, reference in definition.refers:
                want(self.resolve(reference))
            want(
                d
                for d in self.module(definition.module).definitions
                if d.attached is not None and d.attached in definition.names
            )
            want_module(definition.module)
        return list(found)

    def hash(self, entries: Iterable[Reference], uses: frozenset[str] = frozenset()) -> str:
        """A hash of what `reach` finds: 16 hexadecimal digits."""
        found = self.reach(entries, uses)
        labels = {
            d: digest_of(f"{d.names} {d.digest} {[self._file(path) for path in d.files]}")
            for d in found
        }
        wired = {
            d: [(said, t) for said, ref in d.refers for t in self.resolve(ref) if t in labels]
            for d in found
        }
        for _ in range(_DEPTH):
            labels = {
                d: digest_of(labels[d] + "".join([f" {said}={labels[t]}" for said, t in wired[d]]))
                for d in found
            }
        return digest_of("\n".join(sorted(set(labels.values()))))[:16]

    def _file(self, path: str) -> str | None:
        """A data file's content; None for a folder, whose files are the rule's inputs."""
        file = Path(path)
        if not file.is_file():
            return None
        if file.suffix == ".toml":
            return digest_of(json.dumps(tomllib.loads(file.read_text("utf-8")), sort_keys=True))
        return sha256_of(file)


def _split(reference: Reference) -> tuple[str, list[str]]:
    module, _, attributes = reference.partition(":")
    return module, attributes.split(".") if attributes else []


@cache
def _project() -> Code:
    return Code(PROJECT)


@tells
@cache
def code_hash(stage: str, uses: frozenset[str] = frozenset()) -> str:
    """A hash of the code that a stage's results rest on: an edit of what it computes changes it.

    uses: the entries of registries that a job of the stage uses (`relation.pipeline.uses`); of a
    registry that it does not name, every entry counts. Raises LookupError for an entry that there
    is not.
    """
    return _project().hash(STAGES[stage], uses)


@tells
@cache
def golden_hash() -> str | None:
    """A hash of the golden losses that the code is held to; None in a copy without the tests."""
    path = PROJECT / GOLDEN_LOSSES
    return sha256_of(path)[:16] if path.exists() else None
