"""Losses read late: every one, in order, with honest times, and before anything is kept."""

import errno
import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from training import UPDATE, assert_same_run, at_update, die, run_spec, write_corpus

from relation.errors import RunError, StoppedError
from relation.train import checkpoint
from relation.train import run as engine
from relation.train.readback import UPDATES_LATE, Reading, Readings

CUDA = torch.device("cuda")


class FakeEvent:
    """An event of a device that ends one piece of work every ten milliseconds from zero."""

    now = 0.0

    def __init__(self, enable_timing: bool):
        assert enable_timing

    def record(self) -> None:
        FakeEvent.now += 0.010
        self.time, self.looks = FakeEvent.now, 0

    def query(self) -> bool:
        self.looks += 1
        return self.looks > 3

    def synchronize(self) -> None:
        self.looks = 4

    def elapsed_time(self, other: "FakeEvent") -> float:
        assert other.looks > 3, "read before it was waited for"
        return (other.time - self.time) * 1e3


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings are late and states are written by a thread, as on a GPU, whatever the device."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(Readings, "_copied", staticmethod(torch.clone))
    monkeypatch.setattr(engine, "_writes_aside", lambda device: True)
    monkeypatch.setattr(engine, "Readings", lambda device, waiting: Readings(CUDA, waiting))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "data")


def test_on_a_cpu_a_reading_is_due_at_once() -> None:
    readings = Readings(torch.device("cpu"))
    time.sleep(0.02)
    readings.restart()
    (first,) = readings.put("a", torch.tensor([1.0, 2.0]))
    time.sleep(0.02)
    (second,) = readings.put("b", torch.tensor([3.0, 4.0]))
    assert (first.tag, first.values) == ("a", [1.0, 2.0]) and first.seconds < 0.02
    assert (second.tag, second.values) == ("b", [3.0, 4.0]) and second.seconds >= 0.02
    assert list(readings.drain()) == []


def read_late(readings: Readings[int], count: int) -> list[list[Reading[int]]]:
    """What each of `count` puts yields, and then the rest."""
    found = [list(readings.put(i, torch.tensor([float(i)]))) for i in range(count)]
    return [*found, list(readings.drain())]


def test_on_a_gpu_readings_come_late_and_in_order(fake_gpu) -> None:
    looks = []
    readings: Readings[int] = Readings(CUDA, lambda: looks.append(0))
    found = read_late(readings, 10)
    assert [len(part) for part in found] == [0] * UPDATES_LATE + [1] * (10 - UPDATES_LATE) + [3]
    flat = [reading for part in found for reading in part]
    assert [reading.tag for reading in flat] == list(range(10))
    assert [reading.values for reading in flat] == [[float(i)] for i in range(10)]
    assert [reading.seconds for reading in flat] == pytest.approx([0.010] * 10)
    assert len(looks) == 3 * 10  # while each event was not there yet


def test_a_pause_belongs_to_no_update(fake_gpu) -> None:
    readings: Readings[int] = Readings(CUDA)
    read_late(readings, 4)
    FakeEvent.now += 5.0
    readings.restart()
    again = [reading for part in read_late(readings, 4) for reading in part]
    assert [reading.seconds for reading in again] == pytest.approx([0.010] * 4)


def test_a_run_read_late_is_the_same_run(
    fake_gpu, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in between, and with saves that find updates still waiting."""
    spec = run_spec(budget_tokens=9 * UPDATE + 30, checkpoint_tokens=2 * UPDATE)
    at_update(monkeypatch, 6, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(StoppedError, match="stopped after update 6 of 10"):
        engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    begun = at_update(monkeypatch, 0, die)
    engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    assert begun == [7, 8, 9, 10]
    monkeypatch.setattr(engine, "Readings", Readings)
    engine.train(spec, data, tmp_path / "expected", tmp_path / "resume")
    assert_same_run(tmp_path / "out", tmp_path / "expected")


def test_a_run_trains_on_while_a_state_is_written(
    fake_gpu, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is that of the update after which it was taken, not of when it was written."""
    trained_on, write = threading.Event(), checkpoint.write_state

    def write_late(folder: Path, taken: checkpoint.Snapshot) -> None:
        assert trained_on.wait(10)
        write(folder, taken)

    spec = run_spec(checkpoint_tokens=2 * UPDATE)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_state", write_late)

        def train_on() -> None:
            trained_on.set()
            die()

        at_update(patch, 4, train_on)
        with pytest.raises(KeyboardInterrupt):
            engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    begun = at_update(monkeypatch, 0, die)
    engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    assert begun == [3, 4, 5]
    engine.train(spec, data, tmp_path / "expected", tmp_path / "resume")
    assert_same_run(tmp_path / "out", tmp_path / "expected")


@pytest.mark.parametrize("save, kept", [(1, "none saved yet"), (2, "state-00000002")])
def test_a_full_disk_that_the_thread_meets_ends_the_run(
    fake_gpu,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    save: int,
    kept: str,
) -> None:
    """Also at the last save of a run, after which nothing would look."""
    calls, write = [], checkpoint.save_file

    def save_file(tensors: dict, path: Path, **options) -> None:
        calls.append(path)
        if len(calls) == save:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(tensors, path, **options)

    monkeypatch.setattr(checkpoint, "save_file", save_file)
    spec = run_spec(checkpoint_tokens=2 * UPDATE)
    with pytest.raises(RunError, match="No space left on device") as caught:
        engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    assert kept in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("update, saved", [(3, [2]), (4, [2]), (5, [2, 4]), (10, [6, 8])])
@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_loss_that_is_not_finite_is_found_before_it_is_kept(
    fake_gpu,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    update: int,
    saved: list[int],
    broken: str,
) -> None:
    """The error names the update where it arose, its windows and the state before it."""
    spec = run_spec(budget_tokens=9 * UPDATE + 30, checkpoint_tokens=2 * UPDATE)
    begun = at_update(monkeypatch, 0, die)
    monkeypatch.setattr(engine.UpdateStep, "__call__", spoilt(begun, update, broken))
    with pytest.raises(RunError, match=f"at update {update} ") as caught:
        engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    message = str(caught.value)
    count = 2 if update == 10 else 8
    first = (update - 1) * 8
    assert f"positions {first} to {first + count - 1} of the order of seed 42" in message
    (folder,) = (tmp_path / "resume").iterdir()
    states = sorted(folder.glob("state-*"))
    assert [int(state.name.split("-")[1]) for state in states] == saved
    assert str(states[-1]) in message and "\n" not in message
    assert checkpoint.newest_whole_state(folder) == states[-1]
    assert len(begun) <= update + UPDATES_LATE


def spoilt(begun: list[int], update: int, broken: str):
    """UpdateStep.__call__ with a loss or a gradient norm that is not finite in one update."""
    step = engine.UpdateStep.__call__

    def spoilt_step(self, *arguments):
        loss, norm = step(self, *arguments)
        bad = torch.tensor(math.nan if broken == "loss" else math.inf)
        if begun[-1] != update:
            return loss, norm
        return (bad, norm) if broken == "loss" else (loss, bad)

    return spoilt_step


@pytest.mark.gpu
def test_a_gpus_readings_are_its_own_times() -> None:
    """Work of known length on the device, and a host that waits for none of it."""
    readings: Readings[int] = Readings(CUDA)

    def put(i: int, cycles: int) -> list[Reading[int]]:
        torch.cuda._sleep(cycles)
        return list(readings.put(i, torch.full((2,), float(i), device=CUDA)))

    # What CUDA loads and PyTorch pins at the first call is no part of it.
    put(-1, 1)
    list(readings.drain())
    readings.restart()
    found, began = [], time.perf_counter()
    for i in range(3):
        found += put(i, 100_000_000)
    # A GPU of 2 GHz takes 0.15 s for that.
    assert not found and time.perf_counter() - began < 0.05
    torch.cuda.synchronize()
    waited = time.perf_counter() - began
    found = list(readings.drain())
    assert [reading.values for reading in found] == [[float(i)] * 2 for i in range(3)]
    assert sum(reading.seconds for reading in found) == pytest.approx(waited, rel=0.2)
