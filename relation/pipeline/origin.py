"""Where a result comes from: commit, code, versions, device (house rule: every record says so)."""

import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import Any

from relation.pipeline.hashes import PROJECT, code_hash, golden_hash
from relation.registry import tells

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
def origin(
    campaign: str,
    config_hash: str,
    stage: str,
    device: str,
    uses: frozenset[str] = frozenset(),
    **details: Any,
) -> Mapping[str, Any]:
    """The metadata written into a record; `details` add seed, order hash and the like.

    uses: the entries of registries that the job uses, as `code_hash` takes them.
    """
    return {
        "campaign": campaign,
        "config_hash": config_hash,
        "stage": stage,
        "code_hash": code_hash(stage, uses),
        "golden_hash": golden_hash(),
        "commit": commit(),
        "versions": versions(),
        "device": device,
        "host_machine": platform.machine(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **details,
    }
