"""`pip install .`: the wheel alone, in an environment that has PyTorch and none of the pipeline."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from conftest import COPIED_FOLDERS, ROOT

import relation


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def with_requirements(*names: str) -> dict[str, metadata.Distribution]:
    """Installed distributions and everything they require, by canonical name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [canonical(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        asked = [line for line in found[name].requires or () if "extra ==" not in line]
        waiting += [canonical(re.match(r"[\w.-]+", line)[0]) for line in asked]
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages: links to PyTorch's and Triton's, and the wheel, unpacked."""
    folder = tmp_path_factory.mktemp("library")
    source, packages = folder / "source", folder / "packages"
    packages.mkdir()
    source.mkdir()
    for name in COPIED_FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source]
    subprocess.run(wheel, check=True)
    (built,) = folder.glob("relation_lm-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", packages, built], check=True)
    for distribution in with_requirements("torch", "triton", "setuptools").values():
        for file in distribution.files or ():
            top = packages / file.parts[0]
            if file.parts[0] not in ("..", "__pycache__", "bin") and not top.exists():
                top.symlink_to(Path(distribution.locate_file(file.parts[0])))
    return packages


def run(packages: Path, code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": str(packages)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readmes_example_runs_outside_the_clone(environment: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^## As a library$.*?^```python\n(.*?)^```$", readme, re.S | re.M)[1]
    absent = ("snakemake", "pandas", "pyarrow", "datasets", "tokenizers", "report")
    check = f"""
from importlib.util import find_spec
import relation
assert {str(environment)!r} in relation.__file__, relation.__file__
assert not [name for name in {absent} if find_spec(name)]
"""
    printed = run(environment, check + example, tmp_path)
    assert printed.strip()


def test_the_installed_kernels_bring_their_tables(environment: Path, tmp_path: Path) -> None:
    code = """
import relation
from relation.kernels.flash_relation.launches import load_launches
print(relation.__version__, bool(load_launches()), relation.kernels.why_unavailable("cpu"))
"""
    assert run(environment, code, tmp_path).startswith(f"{relation.__version__} True")


def test_importing_it_imports_no_pytorch() -> None:
    code = "import relation, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_folder_hides_no_package_named_kernels(tmp_path: Path) -> None:
    """transformers imports Hugging Face's `kernels`, also from within the project's folder."""
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").write_text("get_kernel = 'theirs'\n", encoding="utf-8")
    code = "from kernels import get_kernel; from relation.kernels import flash_relation"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)


def test_the_wheel_holds_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "relation").rglob("__init__.py")
    }
    kernels = {f"relation.kernels.{p.parent.name}" for p in ROOT.glob("kernels/*/__init__.py")}
    listed = project["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted({*folders, "relation.kernels", *kernels})


def test_citation_and_changelog_name_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == relation.__version__
    assert f"\n## {relation.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
