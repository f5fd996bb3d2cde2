"""Write the locks from one declaration: python -m tools.lock, with uv on the PATH.

pyproject.toml says what is needed and constraints.txt in which version. locks/cpu.txt and
locks/cuda-newest.txt follow it; locks/cuda-published.txt has the versions in the published records
in their place. Every file that a supported Python installs on Linux has its hash; PyTorch's CPU
build, which PyPI does not have, is left to `make`.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.utils import parse_wheel_filename

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


def _is_installable(wheel: str) -> bool:
    """Whether some supported Python on Linux, x86-64 or ARM, installs a wheel of that file name."""
    return any(
        re.fullmatch(r"any|(many)?linux\w*_(x86_64|aarch64)", tag.platform)
        and (
            re.fullmatch(r"py3(1[1-3])?|cp31[1-3]", tag.interpreter)
            or (tag.abi == "abi3" and re.fullmatch(r"cp3([2-9]|1[0-3])", tag.interpreter))
        )
        and not re.fullmatch(r"cp\d+t", tag.abi)  # free-threaded
        for tag in parse_wheel_filename(wheel)[3]
    )


def _entry(package: dict) -> str:
    """A package of uv's lock as pip reads it: its pin, and the hashes of its files for Linux."""
    wheels = [w for w in package.get("wheels", ()) if _is_installable(w["url"].rpartition("/")[2])]
    files = [*wheels, *([package["sdist"]] if "sdist" in package else [])]
    marker = f" ; {package['marker']}" if "marker" in package else ""
    hashes = sorted(f"    --hash=sha256:{file['hashes']['sha256']}" for file in files)
    return " \\\n".join([f"{package['name']}=={package['version']}{marker}", *hashes])


def compile_lock(name: str, constraints: str, python: str, config: str = "") -> None:
    """Write locks/<name>.txt for the Pythons from `python` on; config: uv's."""
    with tempfile.TemporaryDirectory() as folder:
        pins, settings, lock = (Path(folder, f) for f in ("pins.txt", "uv.toml", "pylock.toml"))
        pins.write_text(constraints, encoding="utf-8")
        settings.write_text(config, encoding="utf-8")
        extras = [part for extra in EXTRAS for part in ("--extra", extra)]
        command = ["uv", "pip", "compile", "pyproject.toml", "--quiet", *extras, "--universal"]
        command += ["--config-file", settings, "--python-version", python, "-c", pins]
        done = subprocess.run([*command, "-o", lock], stdout=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(done.returncode)
        packages = tomllib.loads(lock.read_text(encoding="utf-8"))["packages"]
    if config:  # PyTorch's CPU build has its own index, and no hash here
        packages = [package for package in packages if package["name"] != "torch"]
    header = "# Made by python -m tools.lock; edit constraints.txt instead."
    path = Path("locks", f"{name}.txt")
    path.write_text("\n".join([header, *map(_entry, packages), ""]), encoding="utf-8")
    print(f"{path}: {len(packages)} packages")


def main() -> None:
    """Write all three."""
    newest = Path("constraints.txt").read_text(encoding="utf-8")
    torch = re.search(r"^torch==(\S+)$", newest, re.MULTILINE)[1]
    compile_lock("cuda-newest", newest, "3.11")
    compile_lock("cpu", newest, "3.11", WITHOUT_CUDA.format(torch=torch))
    versions = read_origin(PUBLISHED)["versions"]
    python = versions.pop("python").rpartition(".")[0]
    # PyTorch 2.11 takes no newer setuptools than 81.
    replaced = {*versions, "setuptools"}
    kept = [line for line in newest.splitlines() if line.partition("==")[0] not in replaced]
    pins = [f"{package}=={version}" for package, version in versions.items()]
    compile_lock("cuda-published", "\n".join([*kept, *pins]), python)


if __name__ == "__main__":
    main()
