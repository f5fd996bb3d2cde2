"""Following a run: a line an update that survives kills, damage and a full disk."""

import fcntl
import json
import multiprocessing
import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest
from conftest import campaign, refusal
from filelock import FileLock

from relation.errors import RunError, StoppedError
from relation.spec import RunSpec
from relation.store.layouts import LOG
from relation.store.locks import held
from relation.train.folder import (
    ABOUT,
    LOCK,
    METRICS,
    is_held,
    parse_line,
    read_folder,
    saved_update,
)
from relation.train.watch import Watch

Output = pytest.CaptureFixture[str]


def spec() -> RunSpec:
    return campaign().run("10M", "full", 42)


def row(update: int) -> dict:
    """What a run logs of an update: numbers that JSON must give back to the last bit."""
    return {
        "update": update,
        "tokens": 128 * update,
        "update_tokens": 128,
        "loss": 5.7 / (update + 0.1),
        "learning_rate": 1e-3 / 3,
        "gradient_norm": 0.1 * update,
        "tokens_per_second": 1e5 / 7,
    }


def log(updates: int) -> dict[str, list]:
    """The log of a resume state after so many updates."""
    return {name: [row(u)[name] for u in range(1, updates + 1)] for name in LOG.names}


def write(folder: Path, first: int, last: int) -> None:
    """A session that goes on after update `first` - 1, logs up to `last` and is killed."""
    watch = Watch(folder, spec(), log(first - 1))
    for update in range(first, last + 1):
        watch.add(row(update))


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def without_time(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in r.items() if name != "time"} for r in rows]


def test_every_update_is_a_line_at_once(tmp_path: Path) -> None:
    before = time.time()
    watch = Watch(tmp_path, spec(), log(0))
    for update in range(1, 4):
        watch.add(row(update))
        assert without_time(lines(tmp_path)) == [row(u) for u in range(1, update + 1)]
    assert all(before - 0.001 <= line["time"] <= time.time() + 0.001 for line in lines(tmp_path))
    found = read_folder(tmp_path)
    assert found.rows == lines(tmp_path)
    assert found.about | {"started": None} == {
        "run": "10M/full/42",
        "config_hash": spec().config_hash,
        "started": None,
        "ended": None,
    }
    assert (found.held, found.damaged) == (False, None)


@pytest.mark.parametrize("saved", [0, 3, 5])
def test_a_killed_run_has_each_update_once(tmp_path: Path, saved: int) -> None:
    """Killed after update 5, it goes on from the state of `saved`, and is killed after 7."""
    write(tmp_path, 1, 5)
    first = lines(tmp_path)
    write(tmp_path, saved + 1, 7)
    again = lines(tmp_path)
    assert without_time(again) == [row(u) for u in range(1, 8)]
    assert again[:saved] == first[:saved], "the times of what stands are kept"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-7],
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(b'"update": 2,', b'"update": 9,'),
        lambda content: content.replace(b'"loss"', b'"l\xffss"', 1),
        lambda content: b"\x00" * 50 + b"\n" + content,
        lambda content: content + content,
        lambda content: b"",
    ],
    ids=["torn", "half", "another update", "no UTF-8", "zeros", "doubled", "empty"],
)
def test_damage_is_written_over_from_the_state(tmp_path: Path, damage) -> None:
    write(tmp_path, 1, 4)
    path = tmp_path / METRICS
    path.write_bytes(damage(path.read_bytes()))
    write(tmp_path, 5, 6)
    assert without_time(lines(tmp_path)) == [row(u) for u in range(1, 7)]


def test_a_lost_file_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, 4, 4)
    assert without_time(lines(tmp_path)) == [row(u) for u in range(1, 5)]
    assert [line["time"] is None for line in lines(tmp_path)] == [True, True, True, False]


def test_who_follows_the_file_goes_on_following_it(tmp_path: Path) -> None:
    write(tmp_path, 1, 3)
    inode = (tmp_path / METRICS).stat().st_ino
    write(tmp_path, 2, 4)
    assert (tmp_path / METRICS).stat().st_ino == inode


def session(folder: Path, first: int) -> None:
    watch = Watch(folder, spec(), log(first - 1))
    for update in range(first, 10**6):
        watch.add(row(update))


def wait_for(folder: Path, began: float, update: int) -> None:
    """Wait until a session that started after `began` has logged an update."""
    given_up = time.monotonic() + 60
    while time.monotonic() < given_up:
        found = read_folder(folder)
        if found is not None and len(found.rows) >= update and found.about["started"] >= began:
            return
    pytest.fail(f"no session came as far as update {update}")


def test_sigkill_at_any_moment_leaves_whole_lines(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    saved = 0
    for seconds in (0.0, 0.003, 0.01, 0.02, 0.04):
        process = context.Process(target=session, args=(tmp_path, saved + 1))
        began = time.time()
        process.start()
        wait_for(tmp_path, began, saved + 2)
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        found = read_folder(tmp_path)
        assert found.damaged is None
        assert without_time(found.rows) == [row(u) for u in range(1, len(found.rows) + 1)]
        saved = min(len(found.rows) // 2, 200)


@pytest.mark.parametrize(
    "error, state, reason",
    [
        (StoppedError("10M/full/42: stopped after update 3 of 5"), "stopped", None),
        (KeyboardInterrupt(), "stopped", "KeyboardInterrupt: "),
        (RunError("loss nan at update 3"), "failed", None),
        (KeyError("a fault"), "failed", "KeyError: 'a fault'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_a_run_broke_off_is_told(tmp_path: Path, error, state: str, reason) -> None:
    with pytest.raises(type(error)), Watch(tmp_path, spec(), log(0)):
        raise error
    ended = read_folder(tmp_path).about["ended"]
    assert (ended["state"], ended["reason"]) == (state, reason or str(error))
    with Watch(tmp_path, spec(), log(0)):
        assert read_folder(tmp_path).about["ended"] is None


def test_a_disk_that_takes_no_more_ends_the_file_and_not_the_run(tmp_path, capsys) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Watch(tmp_path, spec(), log(0)) as watch:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
            for update in range(1, 6):
                watch.add(row(update))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / METRICS).stat().st_size == 500
    whole = read_folder(tmp_path).rows
    assert 1 < len(whole) < 5
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert f"10M/full/42 writes no more live metrics into {tmp_path}" in warning
    assert "too large" in warning
    write(tmp_path, 6, 6)
    assert without_time(lines(tmp_path)) == [row(u) for u in range(1, 7)]


def test_an_update_costs_little(tmp_path: Path) -> None:
    """About 20 microseconds here; the shortest update of the paper takes 50 milliseconds."""
    watch = Watch(tmp_path, spec(), log(0))
    began = time.perf_counter()
    for update in range(1, 1001):
        watch.add(row(update))
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}\n",
        b"[1]\n",
        b"null\n",
        json.dumps(row(1)).encode() + b"\n",
        json.dumps({**row(1), "time": 1.0}).encode(),
        json.dumps({**row(1), "time": "now"}).encode() + b"\n",
        json.dumps({**row(1), "loss": None, "time": 1.0}).encode() + b"\n",
        json.dumps({**row(1), "loss": True, "time": 1.0}).encode() + b"\n",
        json.dumps({**row(1), "more": 1, "time": 1.0}).encode() + b"\n",
    ],
)
def test_a_line_that_is_not_whole_is_none(line: bytes) -> None:
    assert parse_line(line) is None


def test_a_look_at_the_lock_tells_whether_it_is_held(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    lock = FileLock(tmp_path / LOCK)
    with lock:
        assert is_held(tmp_path) and is_held(tmp_path)
    assert not is_held(tmp_path)
    with lock.acquire(timeout=0):
        assert is_held(tmp_path)


def test_a_look_turns_no_run_away(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        timer = threading.Timer(0.05, fcntl.flock, (looking, fcntl.LOCK_UN))
        timer.start()
        with held(tmp_path / LOCK, "10M/full/42"):
            assert is_held(tmp_path)
        timer.join()


def test_the_newest_state_is_read_off_the_names(tmp_path: Path) -> None:
    assert saved_update(tmp_path) == 0
    for name in ("state-00000009-a1", "state-00000010-0f", "damaged-state-00000011-00"):
        (tmp_path / f"{name}.safetensors").touch()
    assert saved_update(tmp_path) == 10


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"run": 1}', b"\xff"])
def test_a_damaged_description_is_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, 1, 1)
    (tmp_path / ABOUT).write_bytes(content)
    assert "run.json is damaged" in refusal(lambda: read_folder(tmp_path))


def test_a_folder_of_no_run_is_none(tmp_path: Path) -> None:
    assert read_folder(tmp_path) is None
    assert read_folder(tmp_path / "absent") is None
