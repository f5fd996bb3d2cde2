"""`pip install .`: the wheel alone, without the pipeline's packages; and what imports what."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from conftest import ROOT

import relation

# Of relation and report a module imports only what stands in its line or above.
ORDER = (
    ("errors", "kernels"),
    ("variants",),
    ("config", "ops"),
    ("jobs", "machine", "nn", "records"),
    ("data", "matrix"),
    ("measures",),
    ("plan",),
    ("flow", "train"),  # the trainer probes the flow; a diagnosis loads a checkpoint
    ("beyond", "bench", "check", "hf"),
    ("report",),
    ("cli", "__main__"),
)


def test_imports_point_one_way() -> None:
    rank = {name: number for number, names in enumerate(ORDER) for name in names}
    for path in [*(ROOT / "relation").rglob("*.py"), *(ROOT / "report").rglob("*.py")]:
        own = path.relative_to(ROOT).with_suffix("").parts
        if own == ("relation", "__init__"):
            continue
        for name in _imported(path):
            at = name[1] if name[0] == "relation" else "report"
            here = own[1] if own[0] == "relation" else "report"
            assert rank[at] <= rank[here], f"{'/'.join(own)} imports {'.'.join(name)}"


def _imported(path: Path) -> set[tuple[str, ...]]:
    found = set()
    # Types alone may come from anywhere.
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typed = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in (node for node in ast.walk(tree) if id(node) not in typed):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        parts = (tuple(name.split(".")) for name in names)
        found |= {p for p in parts if p[0] in ("relation", "report") and len(p) > 1}
    lower = {name for name in found if name[1] == name[1].lower() and name[1] != "__version__"}
    return lower


def test_the_trainer_imports_few_modules() -> None:
    code = "import relation.train.run, sys; print(*(n for n in sys.modules if 'relation' in n))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = {name for name in done.stdout.split() if name.startswith("relation.")}
    assert len({name for name in names if not name.startswith("relation.kernels")}) <= 25


def test_importing_the_library_or_the_plan_imports_no_pytorch() -> None:
    code = "import relation, relation.plan, relation.records, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_wheel_holds_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    inits = (ROOT / "relation").rglob("__init__.py")
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in inits}
    kernels = {f"relation.kernels.{p.parent.name}" for p in ROOT.glob("kernels/*/__init__.py")}
    listed = project["tool"]["setuptools"]["packages"]
    assert set(listed) == folders | kernels | {"relation.kernels"}


def _with_requirements(*names: str) -> dict[str, metadata.Distribution]:
    """Installed distributions and everything they require, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        try:
            found.setdefault(name, metadata.distribution(name))
        except metadata.PackageNotFoundError:
            continue  # for another platform
        asked = (line for line in found[name].requires or () if "extra ==" not in line)
        further = (re.match(r"[\w.-]+", line)[0] for line in asked)
        waiting += [n for n in further if re.sub(r"[-_.]+", "-", n).lower() not in found]
    return found


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages: links to PyTorch's and Triton's, and the wheel, unpacked."""
    folder = tmp_path_factory.mktemp("library")
    source, packages = folder / "source", folder / "packages"
    packages.mkdir()
    source.mkdir()
    for name in ("relation", "kernels"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source]
    subprocess.run(wheel, check=True)
    (built,) = folder.glob("relation_lm-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", packages, built], check=True)
    for distribution in _with_requirements("torch", "triton", "setuptools").values():
        for file in distribution.files or ():
            top = packages / file.parts[0]
            if file.parts[0] not in ("..", "__pycache__", "bin") and not top.exists():
                top.symlink_to(Path(distribution.locate_file(file.parts[0])))
    return packages


def test_the_readmes_example_runs_outside_the_clone(packages: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```$", readme, re.S | re.M)[1]
    absent = ("snakemake", "pandas", "pyarrow", "datasets", "tokenizers", "report")
    check = f"""
from importlib.util import find_spec
import relation
assert {str(packages)!r} in relation.__file__, relation.__file__
assert not [name for name in {absent} if find_spec(name)]
print(relation.__version__)
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", check + example],
        env={**os.environ, "PYTHONPATH": str(packages)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(relation.__version__)
