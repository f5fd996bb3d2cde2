"""`pip install .`: the wheel works without the pipeline's packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, code_blocks

# Packages of the extras that PyTorch does not need itself.
EXTRAS = ("snakemake", "numpy", "pandas", "pyarrow", "datasets", "tokenizers", "safetensors")
EXTRAS += ("pydantic", "yaml", "tqdm", "pynvml", "matplotlib", "scipy", "transformers")


def test_importing_the_library_or_the_plan_imports_no_pytorch() -> None:
    code = "import relation.plan, relation.records, sys; "
    code += "sys.exit('torch' in sys.modules or 'report' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel."""
    folder = tmp_path_factory.mktemp("library")
    source = folder / "source"
    source.mkdir()
    for name in ("relation", "kernels"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-deps", "--no-build-isolation", "--target", folder / "packages"]
    subprocess.run([*pip, *options, source], check=True)
    return folder / "packages"


def test_the_wheel_holds_every_module_and_table(packages: Path) -> None:
    for folder, place in (("relation", "relation"), ("kernels", "relation/kernels")):
        files = {p.relative_to(ROOT / folder) for p in (ROOT / folder).rglob("*") if p.is_file()}
        wanted = {p for p in files if p.suffix in (".py", ".csv") or p.name == "card.md"}
        assert not {path for path in wanted if not (packages / place / path).exists()}


def test_the_pages_examples_run_outside_the_clone(packages: Path, tmp_path: Path) -> None:
    """All examples except those for transformers, which needs an extra."""
    pages = (ROOT / "README.md", ROOT / "docs/library.md")
    blocks = (block for page in pages for block in code_blocks(page, "python"))
    examples = "\n".join(b for b in blocks if "relation.hf" not in b and "llama" not in b)
    assert "read_flow" in examples and "generate_batch" in examples
    check = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))  # importing one is an error
import relation
from relation.kernels.flash_relation.launches import LAUNCHES
assert {str(packages)!r} in relation.__file__, relation.__file__
assert LAUNCHES and "report" not in sys.modules
"""
    command = [sys.executable, "-c", check + examples]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    subprocess.run(command, env=environment, cwd=tmp_path, check=True)
