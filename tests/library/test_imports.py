"""Modules import in one direction only."""

import ast
from pathlib import Path

from conftest import ROOT

# A module imports only from its own line or the lines above.
ORDER = (
    ("errors",),
    ("kernels", "variants"),
    ("config", "jobs", "ops"),
    ("machine", "nn", "records"),
    ("data", "matrix"),
    ("plan",),
    ("flow", "train"),  # the trainer probes the flow, and diagnosis loads a checkpoint
    ("beyond", "bench", "check", "hf"),
    ("report",),
    ("cli", "__main__"),
)
RANK = {room: number for number, rooms in enumerate(ORDER) for room in rooms}


def room(name: str) -> str | None:
    """The part that a module belongs to: `ops` for relation.ops.full, `report` for report.*."""
    first, *rest = name.split(".")
    return first if first == "report" else rest[0] if first == "relation" and rest else None


def imported(path: Path) -> set[str]:
    """The rooms that a file imports, in functions and for types too."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {
        f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names
    }
    names |= {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    return RANK.keys() & map(room, names)


def test_imports_point_one_way() -> None:
    for folder in ("relation", "kernels", "report"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            own = parts[0] if folder != "relation" else parts[1]
            if own != "__init__":
                later = {name for name in imported(path) if RANK[name] > RANK[own]}
                assert not later, f"{path.relative_to(ROOT)} imports {later}"
