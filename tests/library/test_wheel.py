"""`pip install .`: the wheel alone, without the pipeline's packages."""

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


def test_importing_the_library_or_the_plan_imports_no_pytorch() -> None:
    code = "import relation.plan, relation.records, sys; "
    code += "sys.exit('torch' in sys.modules or 'report' in sys.modules)"
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
        if name in found or not any(metadata.Distribution.discover(name=name)):
            continue  # or it is for another platform
        found[name] = metadata.distribution(name)
        asked = (line for line in found[name].requires or () if "extra ==" not in line)
        waiting += [re.match(r"[\w.-]+", line)[0] for line in asked]
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
from relation.kernels.flash_relation.launches import load_launches
assert {str(packages)!r} in relation.__file__, relation.__file__
assert not [name for name in {absent} if find_spec(name)]
assert load_launches()
"""
    command = [sys.executable, "-S", "-c", check + example]
    subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(packages)}, cwd=tmp_path, check=True
    )
    assert (packages / "relation" / "columns.csv").exists()
