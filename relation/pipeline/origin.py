"""The stamp of a job: code hash, commit, versions (house rule: every record says them)."""

import platform
import subprocess
from functools import cache
from importlib import metadata

from relation.pipeline.hashes import PROJECT, code_hash, golden_hash
from relation.registry import tells
from relation.store.stamp import Stamp

PACKAGES = ("torch", "triton", "numpy", "pyarrow", "tokenizers", "datasets", "snakemake")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(PROJECT), *arguments], capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


@cache
def commit() -> str:
    """The commit checked out, with "+changes" where tracked files differ; "unknown" without git."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return "unknown"
    return f"{head}+changes" if _git("status", "--porcelain", "-uno") else head


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages results depend on, those installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@tells
def stamp(stage: str, uses: frozenset[str] = frozenset()) -> Stamp:
    """The stamp of a job of a stage; uses: the entries of registries, as `code_hash` takes them."""
    return Stamp(code_hash(stage, uses), golden_hash(), commit(), versions())
