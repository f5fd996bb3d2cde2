"""Locks that keep two processes off one piece of work."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from relation.errors import RunError
from relation.registry import tells
from relation.store.files import make_folder

_SECONDS_OF_A_LOOK = 0.2


@tells
@contextmanager
def held(path: Path, name: str) -> Iterator[None]:
    """Hold the lock of the job `name`, so that two processes never do it at once.

    A killed process leaves no lock behind. Raises RunError where another one holds it.
    """
    make_folder(path.parent)
    lock = FileLock(path)
    try:
        # A process that checks the lock also holds it briefly, so retry for 0.2 s.
        lock.acquire(timeout=_SECONDS_OF_A_LOOK, poll_interval=0.01)
    except Timeout:
        raise RunError(
            f"{name} is already running in another process; let that one end or stop it"
        ) from None
    try:
        yield
    finally:
        lock.release()
