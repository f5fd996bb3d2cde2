"""The watch over crashes: it finds what a crash can lose, and nothing in what is safe."""

import mmap
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from crashes.calls import can_watch
from crashes.disk import KILLED, LOSSES, State, held
from crashes.operations import OPERATIONS
from crashes.page import CRASHES, OUTCOMES
from crashes.points import END, Point, watched
from faults.sandbox import PROCESSES

from relation.store.files import move, write_text
from relation.store.parquet import read_parquet

pytestmark = pytest.mark.skipif(not can_watch(), reason="needs Linux on x86-64")
OLD, NEW = b"old" * 100, b"new" * 200


def in_place(root: Path) -> None:
    (root / "file").write_bytes(NEW)


def renamed_unsynced(root: Path) -> None:
    (root / ".file").write_bytes(NEW)
    os.replace(root / ".file", root / "file")


def folder_unsynced(root: Path) -> None:
    with (root / ".file").open("wb") as file:
        file.write(NEW)
        file.flush()
        os.fsync(file.fileno())
    os.replace(root / ".file", root / "file")


def atomic(root: Path) -> None:
    write_text(root / "file", NEW.decode())


def mapped(root: Path) -> None:
    """Writes by memory, which is no call, into a file that then takes its name."""
    with (root / ".file").open("w+b") as file:
        file.truncate(len(NEW))
        with mmap.mmap(file.fileno(), 0) as content:
            content[:] = NEW
    move(root / ".file", root / "file")


def in_a_new_folder(root: Path) -> None:
    write_text(root / "a" / "b" / "file", "words")


def removed_too_soon(root: Path) -> None:
    (root / ".other").write_bytes(NEW)
    os.replace(root / ".other", root / "other")
    (root / "file").unlink()


def in_a_child(root: Path) -> None:
    child = os.fork()
    if not child:
        in_place(root)
        os._exit(0)
    os.waitpid(child, 0)


def _process(writer: Callable[[Path], None], root: Path, watch: Callable[[], None]) -> None:
    watch()
    writer(root)


def start(writer: Callable[[Path], None], root: Path, watch: Callable[[], None]):
    process = PROCESSES.Process(target=_process, args=(writer, root, watch))
    process.start()
    return process


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "file").write_bytes(OLD)
    return folder


def watch(writer: Callable[[Path], None], root: Path) -> list[Point]:
    return list(watched(partial(start, writer, root), root))


def found(points: list[Point], is_well: Callable[[State], bool]) -> set[str]:
    """The kinds of crash that leave something else."""
    return {k for point in points for k, state in point.left.items() if not is_well(state)}


def whole(state: State) -> bool:
    return state.get("file") in (OLD, NEW)


@pytest.mark.parametrize(
    ("writer", "breaks"),
    [
        (in_place, {KILLED, "unsynced data lost"}),
        (renamed_unsynced, {"unsynced data lost"}),
        (folder_unsynced, set()),
        (atomic, set()),
        (mapped, set()),
        (in_a_child, {KILLED, "unsynced data lost"}),
    ],
)
def test_a_file_that_is_not_whole_after_a_crash_is_found(writer, breaks, root: Path) -> None:
    points = watch(writer, root)
    assert found(points, whole) == breaks
    assert points[-1].left[KILLED] == {"file": NEW}


def test_a_name_is_kept_once_it_was_synced(root: Path) -> None:
    for writer, kept in ((folder_unsynced, False), (atomic, True)):
        (root / "file").write_bytes(OLD)
        end = watch(writer, root)[-1]
        assert end.name == END
        assert (end.left["all unsynced lost"] == {"file": NEW}) == kept


def test_new_folders_are_kept_with_what_is_in_them(root: Path) -> None:
    left = watch(in_a_new_folder, root)[-1].left
    expected = {"file": OLD, "a": None, "a/b": None, "a/b/file": b"words"}
    assert all(left[kind] == expected for kind in LOSSES)


def test_what_is_removed_before_its_successor_is_synced_is_found(root: Path) -> None:
    points = watch(removed_too_soon, root)
    assert points[-1].left["removals alone kept"] == {}


def test_a_killed_process_leaves_what_was_taken_down(root: Path) -> None:
    for number, expected in enumerate(watch(mapped, root)[:-1]):
        shutil.rmtree(root)
        root.mkdir()
        (root / "file").write_bytes(OLD)
        processes = []

        def started(watch: Callable[[], None], kept=processes):
            kept.append(start(mapped, root, watch))
            return kept[-1]

        with pytest.raises(AssertionError, match="ended with -9"):
            for reached, _ in enumerate(watched(started, root)):
                if reached == number:
                    processes[0].kill()
                    processes[0].join()
        assert held(root) == expected.left[KILLED], expected


def test_every_crash_of_the_campaign_was_survived() -> None:
    rows = read_parquet(CRASHES, OUTCOMES).to_pylist()
    assert all(row["survived"] for row in rows)
    names = [operation.name for operation in OPERATIONS if operation.watched]
    assert list(dict.fromkeys(row["operation"] for row in rows)) == names
    # Every point of a command, and each kind of crash there.
    for name in names:
        own = [(row["number"], row["crash"]) for row in rows if row["operation"] == name]
        assert own == [(n, k) for n in range(1, own[-1][0] + 1) for k in LOSSES]
