"""The folder of a run that is not finished: its name, what lies in it, and whether it is in use.

Free of PyTorch, so that a look at a campaign stays fast.
"""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relation.errors import InputError
from relation.pipeline.hashes import code_hash
from relation.pipeline.uses import uses_of
from relation.spec import RunSpec, canonical_hash
from relation.store.layouts import LOG

LOCK, METRICS, ABOUT = "lock", "metrics.jsonl", "run.json"


def resume_key(spec: RunSpec, token_hashes: dict[str, str]) -> str:
    """The name of a run's resume folder: state of other data, settings or code is never used.

    token_hashes: SHA-256 of the token file by split.
    """
    execution = [spec.device, spec.compile, spec.backends, spec.deterministic]
    code = code_hash("training", uses_of(spec))
    return canonical_hash([spec.config_hash, token_hashes, code, execution])


def is_held(folder: Path) -> bool:
    """Whether a process trains the run now. Raises OSError where the lock cannot be read."""
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two onlookers do not take each other for the run.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def saved_update(folder: Path) -> int:
    """The update after which the newest resume state was saved; 0 where there is none."""
    # state-UPDATE-CHECKSUM.safetensors
    numbers = (path.stem.split("-")[1] for path in folder.glob("state-*.safetensors"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """One line of metrics.jsonl as the row it holds, or None where it is not whole."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    if not isinstance(row, dict) or row.keys() != {*LOG.names, "time"}:
        return None
    numbers = [row[name] for name in LOG.names]
    numbers += [] if row["time"] is None else [row["time"]]
    return row if all(type(number) in (int, float) for number in numbers) else None


@dataclass(frozen=True)
class RunFolder:
    """What a resume folder tells.

    held: a process trains the run now; about: run, config_hash, started (seconds since 1970) and
    ended (None, or state, reason and time); rows: the columns of the training log and `time`, None
    where it is not known; damaged: the first line of metrics.jsonl that cannot be read, from 1.
    """

    path: Path
    held: bool
    about: dict[str, Any]
    rows: list[dict[str, Any]]
    damaged: int | None


def read_folder(path: Path) -> RunFolder | None:
    """A run's resume folder; None for one that holds no run yet, or none any more.

    Raises InputError where run.json is damaged, OSError where a file cannot be read.
    """
    try:
        held = is_held(path)
        about = _about(path / ABOUT)
        content = (path / METRICS).read_bytes()
    except FileNotFoundError:
        return None
    # What follows the last line feed is still being written, or was when the run was killed.
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
    rows = [parse_line(line) for line in lines]
    damaged = rows.index(None) + 1 if None in rows else None
    return RunFolder(path, held, about, [row for row in rows if row is not None], damaged)


def _about(path: Path) -> dict[str, Any]:
    """run.json. Raises InputError where it is damaged."""
    try:
        about = json.loads(path.read_bytes())
        ended = about["ended"]
        whole = all(isinstance(about[name], str) for name in ("run", "config_hash"))
        whole &= isinstance(about["started"], float)
        whole &= ended is None or {"state", "reason"} <= ended.keys()
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise InputError(f"{path} is damaged; the run writes it again when it goes on")
    return about
