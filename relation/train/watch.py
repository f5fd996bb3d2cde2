"""Following a run while it trains: a line an update beside its resume state, and TensorBoard.

Neither is a result. What cannot be written is told once, and the run goes on without it. Free of
PyTorch until TensorBoard is asked for.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from typing import Any

from relation.errors import InputError, RelationError, StoppedError
from relation.registry import tells
from relation.spec import RunSpec
from relation.store.files import write_text
from relation.store.layouts import LOG
from relation.train.folder import ABOUT, METRICS, parse_line

_AXES = ("update", "tokens")
_READINGS = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")
_SECONDS_BETWEEN_FLUSHES = 10


def require_tensorboard() -> None:
    """Raise InputError unless the package tensorboard is installed."""
    if find_spec("tensorboard") is None:
        raise InputError(
            "TensorBoard is asked for and not installed; `python -m pip install tensorboard`, or "
            "leave out tensorboard=true and --tensorboard"
        )


class _Lines:
    """metrics.jsonl and run.json in a run's resume folder."""

    name = "live metrics"

    def __init__(self, folder: Path, spec: RunSpec):
        self.folder = folder
        self._path, self._about_path = folder / METRICS, folder / ABOUT
        self._about = {"run": spec.name, "config_hash": spec.config_hash, "started": time.time()}
        self._file: FileIO | None = None

    def open(self, rows: list[dict]) -> None:
        """Make the file hold exactly `rows`, whose times are taken from it."""
        write_text(self._about_path, json.dumps({**self._about, "ended": None}))
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
        size = known = 0
        for line, row in zip(lines, rows, strict=False):
            written = parse_line(line)
            if written is None or any(written[name] != row[name] for name in LOG.names):
                break
            row["time"] = written["time"]
            size += len(line)
            known += 1
        # In place, so that who follows the file goes on following it.
        self._file = self._path.open("ab", buffering=0)
        self._file.truncate(size)
        for row in rows[known:]:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        left = memoryview(json.dumps(row).encode() + b"\n")
        while left:
            left = left[self._file.write(left) :]

    def close(self, error: BaseException | None) -> None:
        self._file.close()
        # A run that ended well removes its folder.
        if error is not None:
            write_text(self._about_path, json.dumps({**self._about, "ended": _ending(error)}))


class _Curves:
    """TensorBoard's curves of one run, each against updates and against tokens."""

    name = "curves for TensorBoard"

    def __init__(self, folder: Path):
        require_tensorboard()
        self.folder = folder

    def open(self, rows: list[dict]) -> None:
        """Write `rows` anew: a kill lost what the writer still held."""
        from torch.utils.tensorboard import SummaryWriter

        for old in self.folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = SummaryWriter(str(self.folder), flush_secs=_SECONDS_BETWEEN_FLUSHES)
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        for axis in _AXES:
            for reading in _READINGS:
                self._writer.add_scalar(f"{axis}/{reading}", row[reading], row[axis], row["time"])

    def close(self, error: BaseException | None) -> None:
        self._writer.close()


def _ending(error: BaseException) -> dict[str, Any]:
    """How a run broke off: stopped on request, or failed, and why in one line."""
    stopped = isinstance(error, StoppedError | KeyboardInterrupt | SystemExit)
    first = (str(error).splitlines() or [""])[0]
    reason = first if isinstance(error, RelationError) else f"{type(error).__name__}: {first}"
    return {"state": "stopped" if stopped else "failed", "reason": reason, "time": time.time()}


@tells
class Watch:
    """Writes what a run has done and is doing where it can be followed; a context manager.

    folder: the run's resume folder. metrics.jsonl there has a JSON object a line: the columns of
    the training log, and `time`, in seconds since 1970. run.json names the run and, once it broke
    off, says how. log: the rows of the resume state by column. The lines that agree with it are
    kept, those after it are cut off, and those that a crash lost are written again with `time`
    null. events: the folder of TensorBoard's curves, where they are wanted. Raises InputError
    where TensorBoard is not installed.
    """

    def __init__(
        self, folder: Path, spec: RunSpec, log: Mapping[str, list], events: Path | None = None
    ):
        self._run = spec.name
        self._writers: list[_Lines | _Curves] = [_Lines(folder, spec)]
        if events is not None:
            self._writers.append(_Curves(events))
        columns = (log[name] for name in LOG.names)
        rows = [
            {**dict(zip(LOG.names, values, strict=True)), "time": None}
            for values in zip(*columns, strict=True)
        ]
        self._each(lambda writer: writer.open(rows))

    def _each(self, action: Callable[[_Lines | _Curves], None]) -> None:
        for writer in list(self._writers):
            try:
                action(writer)
            except OSError as error:
                self._writers.remove(writer)
                reason = error.strerror or error
                print(
                    f"warning: {self._run} writes no more {writer.name} into {writer.folder} "
                    f"({reason}); mend that, and it writes them whole when it is resumed",
                    file=sys.stderr,
                )

    def add(self, row: Mapping[str, Any]) -> None:
        """Note a finished update, a row of the training log."""
        timed = {**row, "time": round(time.time(), 3)}
        self._each(lambda writer: writer.add(timed))

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self._each(lambda writer: writer.close(error))
