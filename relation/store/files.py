"""Files that are either whole or absent, and a small cache of values that are slow to compute."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_REMEMBERED = 64  # values in one cache


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, else it is removed.

    A crash leaves the old file or the new; once this has returned, the new.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
    """Give a file another name, on the disk when this returns; its data reach the disk before."""
    sync(source)
    os.replace(source, target)
    sync(target.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, on the disk when this returns; one may be there."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync(folder.parent)


def sync(path: Path) -> None:
    """Return once a file's data, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems sync a folder by themselves and refuse to be asked.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cache_file(name: str) -> Path:
    """Where a cache lies. Raises RuntimeError for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "relation" / f"{name}.json"


def _cached(name: str) -> dict[str, Any]:
    """A cache's values by key, the oldest first; none where it is missing or damaged."""
    try:
        values = json.loads(_cache_file(name).read_bytes())
    except (OSError, RuntimeError, ValueError):  # RecursionError is a RuntimeError
        return {}
    return values if isinstance(values, dict) else {}


def recall(name: str, key: str) -> Any:
    """The value that `remember` kept, or None. The caller checks it: the file may be damaged."""
    return _cached(name).get(key)


def remember(name: str, key: str, value: str) -> None:
    """Keep a value in the cache relation/<name>.json of the user's cache folder, for `recall`.

    The newest 64 stay. An unwritable cache keeps nothing, and two processes that write at once may
    lose one value, so the caller must be able to compute it again.
    """
    values = {k: v for k, v in _cached(name).items() if k != key} | {key: value}
    with suppress(OSError, RuntimeError):
        write_text(_cache_file(name), json.dumps(dict(list(values.items())[-_REMEMBERED:])))


def beside(path: Path, kind: str) -> Path:
    """Another file of one record: 42.parquet to 42-curves.parquet."""
    return path.with_name(f"{path.stem}-{kind}{path.suffix}")
