"""What a disk holds after a crash: of a killed process, and of a machine that lost power.

The model of a loss is as hostile as POSIX allows, within reason. A file has what it had at its last
fsync, and a folder the names it had at its own; a file never synced is empty, a folder never synced
has none. Three losses are tried: all that is not synced is lost; every name is kept and only data
are lost, a file being cut where it begins to differ from what was synced, as where a rename reaches
the disk before the data do; and removals have reached the disk while creations and renames have
not. A rename is never done by half, a write never torn within what was synced.
"""

import os
import resource
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

State = dict[str, bytes | None]  # by path from a folder: a file's bytes, None for a folder

KILLED = "killed"
LOSSES = (KILLED, "all unsynced lost", "unsynced data lost", "removals alone kept")


@dataclass
class _Tree:
    """Folders by inode as inode by name, and files by inode as bytes."""

    names: dict[int, dict[str, int]] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)


class Disk:
    """A folder on a disk, all of it synced when this begins."""

    def __init__(self, root: Path):
        self.root = root
        self._same: dict[bytes, bytes] = {}  # equal contents are kept once
        # An open file keeps its inode's number from being given to another.
        self._open: dict[int, int] = {}
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._synced = self._look()

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def _look(self) -> _Tree:
        """What stands there now, synced or not."""
        tree, folders = _Tree(), [str(self.root)]
        while folders:
            folder = folders.pop()
            names = tree.names[os.stat(folder).st_ino] = {}
            for entry in os.scandir(folder):
                number = names[entry.name] = entry.inode()
                if number not in self._open:
                    self._open[number] = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    tree.data[number] = self._read(entry.path)
        return tree

    def _read(self, path: str) -> bytes:
        content = Path(path).read_bytes()
        return self._same.setdefault(content, content)

    def synced(self, descriptor: str) -> None:
        """Note that an open file or folder reaches the disk as it stands."""
        number = os.stat(descriptor).st_ino
        if os.path.isdir(descriptor):
            self._synced.names[number] = {
                entry.name: entry.inode() for entry in os.scandir(descriptor)
            }
        else:
            self._synced.data[number] = self._read(descriptor)

    def after_crash(self) -> dict[str, State]:
        """What a crash now leaves, by its kind: one of LOSSES."""
        now, synced = self._look(), self._synced
        cut = {n: self._cut(data, synced.data.get(n, b"")) for n, data in now.data.items()}
        linked = {number for names in now.names.values() for number in names.values()}
        left = {
            folder: {
                name: n
                for name, n in names.items()
                if n in linked or name in now.names.get(folder, {})
            }
            for folder, names in synced.names.items()
        }
        trees = (now, synced, _Tree(now.names, cut), _Tree(left, synced.data))
        return {kind: self._state(tree, now) for kind, tree in zip(LOSSES, trees, strict=True)}

    def _cut(self, now: bytes, synced: bytes) -> bytes:
        if now.startswith(synced):
            return synced
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(now, synced, strict=False))
        both = now[: sum(1 for _ in equal)]
        return self._same.setdefault(both, both)

    def _state(self, tree: _Tree, now: _Tree) -> State:
        state: State = {}
        folders = [("", os.stat(self.root).st_ino)]
        while folders:
            above, folder = folders.pop()
            for name, number in tree.names.get(folder, {}).items():
                path = f"{above}{name}"
                if number in now.names or number in self._synced.names:
                    state[path] = None
                    folders.append((f"{path}/", number))
                else:
                    state[path] = tree.data.get(number, b"")
        return state


def lay(state: State, root: Path) -> None:
    """Make a folder that holds a state."""
    root.mkdir(parents=True)
    for path, content in sorted(state.items()):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


def held(root: Path) -> State:
    """What a folder holds."""
    paths = (path for path in root.rglob("*") if not path.is_symlink())
    return {
        path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in paths
    }
