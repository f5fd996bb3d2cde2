"""Imports run one way: a module imports from its own room and from those before it."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ORDER = [
    {"errors", "variants"},
    {"kernels"},
    {"ops"},
    {"nn"},
    {"config", "plan", "records", "machine", "matrix", "measures", "jobs"},
    {"data"},
    {"train", "hf"},
    {"flow", "beyond", "check", "bench"},
    {"cli", "__main__"},
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}


def imports(path: Path) -> set[str]:
    """Rooms of `relation` that a module imports when it is imported itself."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relation"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found & set(RANK)


def test_rooms_import_from_those_before_them():
    files = [path for path in (ROOT / "relation").rglob("*.py") if path.parent.name != "relation"]
    files += [path for path in (ROOT / "relation").glob("*.py") if path.stem in RANK]
    files += (ROOT / "kernels").rglob("*.py")
    for path in files:
        parts = path.relative_to(ROOT).with_suffix("").parts
        room = parts[0] if parts[0] == "kernels" else parts[1]
        later = {other for other in imports(path) if RANK[other] > RANK[room]}
        assert not later, f"{path.relative_to(ROOT)} imports {later}"
        if room != "cli":
            assert "import report" not in path.read_text(encoding="utf-8")


def test_planning_and_the_package_need_no_torch():
    code = (
        "import sys, relation, relation.variants, relation.config, relation.plan, relation.records;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
