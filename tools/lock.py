"""Write the locks from one declaration: python -m tools.lock, with uv on the PATH.

pyproject.toml says what is needed and constraints.txt in which version. locks/cpu.txt and
locks/cuda-newest.txt follow it; locks/cuda-published.txt has the versions in the published records
in their place. Every file of every package has its hash; PyTorch's CPU build, which PyPI does not
have, is left to `make`.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from relation.store.parquet import read_origin

EXTRAS = ("pipeline", "report", "test", "site")
PUBLISHED = Path("results/published/books-scaled/runs/10M/full/42/record.parquet")
# What PyTorch needs where it brings no CUDA: its own wheels on PyPI ask for CUDA's packages too.
WITHOUT_CUDA = """
[[dependency-metadata]]
name = "torch"
version = "{torch}"
requires-dist = [
  "filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions"
]
"""


def compile_lock(name: str, constraints: str, python: str, *options: str) -> None:
    """Write locks/<name>.txt for the Pythons from `python` on, or for that one."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(constraints)
        file.flush()
        extras = [part for extra in EXTRAS for part in ("--extra", extra)]
        header = "# Made by python -m tools.lock; edit constraints.txt instead.\n"
        path = Path("locks", f"{name}.txt")
        form = ["--generate-hashes", "--no-annotate", "--no-header", "--no-emit-index-url"]
        command = ["uv", "pip", "compile", "pyproject.toml", "--quiet", *extras, *form, *options]
        command += ["--no-emit-find-links", "--python-version", python, "-c", file.name]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if found.returncode:
            sys.exit(found.returncode)
        path.write_text(header + found.stdout, encoding="utf-8")
        print(f"{path}: {len(re.findall('^[a-z].*==', found.stdout, re.MULTILINE))} packages")


def main() -> None:
    """Write all three."""
    newest = Path("constraints.txt").read_text(encoding="utf-8")
    torch = re.search(r"^torch==(\S+)$", newest, re.MULTILINE)[1]
    compile_lock("cuda-newest", newest, "3.11", "--universal")
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(WITHOUT_CUDA.format(torch=torch))
        file.flush()
        options = ("--universal", "--config-file", file.name, "--no-emit-package", "torch")
        compile_lock("cpu", newest, "3.11", *options)
    versions = read_origin(PUBLISHED)["versions"]
    python = versions.pop("python").rpartition(".")[0]
    # PyTorch 2.11 takes no newer setuptools than 81.
    replaced = {*versions, "setuptools"}
    kept = [line for line in newest.splitlines() if line.partition("==")[0] not in replaced]
    pins = [f"{package}=={version}" for package, version in versions.items()]
    compile_lock("cuda-published", "\n".join([*kept, *pins]), python, "--universal")


if __name__ == "__main__":
    main()
