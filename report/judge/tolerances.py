"""The tolerances file: its rules, checked, and the one that covers a cell."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from relation.errors import InputError

TOLERANCES = Path(__file__).parents[1] / "tolerances.toml"
KINDS = ("exact", "interval", "seed", "at-least", "at-most", "own", "none")
NEEDS = ("data", "gpu", "cuda")
_PATTERNS = ("table", "row", "column", "statistic")


@dataclass(frozen=True)
class Rule:
    """One rule of the file, which explains the fields; patterns are tuples."""

    kind: str
    why: str
    table: tuple[str, ...]
    row: tuple[str, ...] = ("*",)
    column: tuple[str, ...] = ("*",)
    statistic: tuple[str, ...] = ("*",)
    needs: tuple[str, ...] = ()
    factor: float | None = None
    better: str | None = None
    slack: float = 0.0

    def covers(self, cell: Mapping[str, Any]) -> bool:
        """Whether a cell, with its table, row, column and statistic, is one of the rule's."""
        return all(
            any(fnmatchcase(cell[name], pattern) for pattern in getattr(self, name))
            for name in _PATTERNS
        )


def _tuple(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _rule(given: Mapping[str, Any], where: str) -> Rule:
    known = {field.name for field in fields(Rule)}
    unknown = given.keys() - known
    if unknown:
        raise InputError(f"{where}: unknown key {sorted(unknown)[0]!r}; use {', '.join(known)}")
    lacking = [name for name in ("kind", "why", "table") if not given.get(name)]
    if lacking:
        raise InputError(f"{where}: {lacking[0]} is missing; give it")
    lists = {name: _tuple(given[name]) for name in (*_PATTERNS, "needs") if name in given}
    rule = Rule(**{**given, **lists})
    for name, value, choices in (
        *(("kind", kind, KINDS) for kind in [rule.kind]),
        *(("needs", need, NEEDS) for need in rule.needs),
    ):
        if value not in choices:
            raise InputError(f"{where}: {name} {value!r}; use one of {', '.join(choices)}")
    if (rule.kind == "seed") != (rule.factor is not None):
        raise InputError(f"{where}: kind seed, and no other, takes a factor")
    if (rule.kind == "own") != (rule.better in ("more", "less")):
        raise InputError(f"{where}: kind own, and no other, takes better = more or less")
    return rule


@cache
def load_rules(path: Path = TOLERANCES) -> tuple[Rule, ...]:
    """The rules of a tolerances file. Raises InputError where it is missing or wrong."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; restore it") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    rules = given.get("rule")
    if set(given) != {"rule"} or not isinstance(rules, list):
        raise InputError(f"{path}: it must hold [[rule]] tables and nothing else")
    return tuple(_rule(rule, f"{path}: rule {i}") for i, rule in enumerate(rules, start=1))


def rule_for(cell: Mapping[str, Any], rules: Sequence[Rule]) -> Rule:
    """The rule that covers a cell. Raises InputError unless exactly one does."""
    found = [rule for rule in rules if rule.covers(cell)]
    if len(found) != 1:
        key = " / ".join(cell[name] for name in _PATTERNS)
        raise InputError(f"{TOLERANCES.name}: {len(found)} rules cover {key}; exactly one must")
    return found[0]
