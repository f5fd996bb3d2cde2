"""Runs a command to its end while every crash of it is taken down."""

import os
import select
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

from crashes.calls import SYNCS, held_calls, hold_calls
from crashes.disk import Disk, State

END = "(end)"


@dataclass(frozen=True)
class Point:
    """A moment right before a call, or after the last one, END: what a crash then leaves, by kind.

    name: of the call; file: what it changes, below the folder that is watched.
    """

    name: str
    file: str
    left: dict[str, State]


def _hand_over(address: str) -> None:
    """In the process that is watched: have its calls held by the one that listens at an address."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        listener = hold_calls()
        socket.send_fds(connection, [b"."], [listener])
    os.close(listener)


def watched(start: Callable[[Callable[[], None]], BaseProcess], root: Path) -> Iterator[Point]:
    """A point for each call of a process, and of those it starts, that changes files below `root`.

    start: starts the process, which calls the function that it is given before it changes a file.
    Raises AssertionError where the process fails.
    """
    disk = Disk(root)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        address = f"{folder}/socket"
        server.bind(address)
        server.listen()
        process = start(partial(_hand_over, address))
        select.select([server, process.sentinel], [], [])
        assert process.is_alive(), "the process ended before it was watched"
        connection, _ = server.accept()
        with connection:
            _, (listener,), _, _ = socket.recv_fds(connection, 1, 1)
        for call in held_calls(listener, process.sentinel):
            touched = [Path(path) for path in call.paths if Path(path).is_relative_to(root)]
            if touched:
                files = " to ".join(str(path.relative_to(root)) for path in touched)
                yield Point(call.name, files, disk.after_crash())
                if call.name in SYNCS and process.is_alive():  # whoever took the point may kill it
                    disk.synced(call.descriptor)
        os.close(listener)
    process.join()
    assert process.exitcode == 0, f"the process that was watched ended with {process.exitcode}"
    yield Point(END, "", disk.after_crash())
    disk.close()
