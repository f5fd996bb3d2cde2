"""Several processes train one run: the same windows, the same result, one voice, no hang."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from training import (
    UPDATE,
    assert_agrees,
    kill_self,
    one_line,
    run_spec,
    train_together,
    write_corpus,
)

from relation.data.tokens import TokenFile
from relation.errors import RunError
from relation.store.layouts import LOG, RUN
from relation.store.parquet import read_origin, read_parquet
from relation.train import checkpoint, parallel
from relation.train import run as engine
from relation.train.parallel import World
from relation.train.schedule import wsd

# 20 updates of four micro-batches of two windows; the partial one has two, the last not full.
SHARED = {"micro": 2, "accumulation": 4, "budget_tokens": 20 * UPDATE + 40}


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of one process."""
    folder = tmp_path_factory.mktemp("alone")
    engine.train(run_spec(**SHARED), data, folder / "out", folder / "resume")
    return folder / "out"


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_that_share_the_updates_train_the_same_run(
    data, alone, tmp_path, processes
) -> None:
    """Three do not divide four micro-batches, and one of them has none of the last update's two."""
    run = (run_spec(**SHARED), data, tmp_path / "out", tmp_path / "resume")
    codes, _ = train_together(processes, run, tmp_path / "said")
    assert codes == [0] * processes
    assert_agrees(tmp_path / "out", alone)
    assert read_origin(tmp_path / "out" / "record.parquet")["processes"] == [processes]
    assert not any((tmp_path / "resume").iterdir())


class StopAsked:
    """Ask one process alone to stop, as its fifth update begins."""

    def __init__(self, rank: int):
        self.rank = rank

    def __call__(self, rank: int) -> None:
        def schedule(before: int, *arguments) -> float:
            if rank == self.rank and before == 4 * UPDATE:
                signal.raise_signal(signal.SIGTERM)
            return wsd(before, *arguments)

        engine.wsd = schedule


@pytest.mark.parametrize("asked", [0, 1])
def test_a_run_that_several_began_is_ended_by_one(data, alone, tmp_path, asked) -> None:
    """A signal to any of them stops all after the same update, with its state saved."""
    run = (run_spec(**SHARED), data, tmp_path / "out", tmp_path / "resume")
    codes, said = train_together(2, run, tmp_path / "said", StopAsked(asked))
    assert codes == [2, 2]
    assert one_line(said).endswith("stopped after update 5 of 21; run the same command to go on")
    (folder,) = (tmp_path / "resume").iterdir()
    assert [path.name[:14] for path in folder.glob("state-*")] == ["state-00000005"]
    engine.train(*run)
    assert_agrees(tmp_path / "out", alone)
    assert read_origin(tmp_path / "out" / "record.parquet")["processes"] == [2, 1]


class CannotSave:
    """Asked to stop, the first process takes its time to save, and then finds the disk full."""

    def __call__(self, rank: int) -> None:
        StopAsked(1)(rank)

        def write_state(folder: Path, taken: checkpoint.Snapshot) -> None:
            time.sleep(0.3)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        checkpoint.write_state = write_state


def test_no_process_says_stopped_before_the_state_is_saved(data: Path, tmp_path: Path) -> None:
    run = (run_spec(**SHARED), data, tmp_path / "out", tmp_path / "resume")
    codes, said = train_together(2, run, tmp_path / "said", CannotSave())
    assert codes == [2, 2]
    assert "No space left on device" in one_line(said)


def test_more_processes_than_micro_batches_are_refused(data: Path, tmp_path: Path) -> None:
    run = (run_spec(), data, tmp_path / "out", tmp_path / "resume")
    codes, said = train_together(3, run, tmp_path / "said")
    assert codes == [2, 2, 2]
    assert "2 micro-batches, which 3 processes cannot share; give torchrun at most 2" in one_line(
        said
    )
    assert not (tmp_path / "resume").exists()


class LosesItsCorpus:
    """The second process can no longer read its token file from some update on."""

    def __call__(self, rank: int) -> None:
        read = TokenFile.__getitem__
        slices = []

        def cut(self, part: slice):
            slices.append(part)
            if rank == 1 and len(slices) == 21:
                os.truncate(self._path, 10)
            return read(self, part)

        TokenFile.__getitem__ = cut


class IsKilled:
    """The second process is killed as its third update begins."""

    def __call__(self, rank: int) -> None:
        def schedule(before: int, *arguments) -> float:
            if rank == 1 and before == 2 * UPDATE:
                kill_self()
            return wsd(before, *arguments)

        engine.wsd = schedule


def diverges(rank: int) -> None:
    """Both processes find a loss that is not finite."""
    engine.wsd = lambda before, *arguments: wsd(before, *arguments) * 1e30


class FindsItRunning:
    """The first process, which holds the run's lock, finds it held."""

    def __call__(self, rank: int) -> None:
        def held(path: Path, name: str):
            raise RunError(f"{name} is already running in another process")

        engine.held = held


@pytest.mark.parametrize(
    "fault, said, codes",
    [
        (LosesItsCorpus(), "train.bin lost its end", [2, 2]),
        (IsKilled(), "another process of this run ended without a word", [2, -signal.SIGKILL]),
        (diverges, "at update", [2, 2]),
        (FindsItRunning(), "already running", [2, 2]),
    ],
    ids=["corpus", "killed", "diverges", "locked"],
)
def test_a_fault_in_one_process_ends_all_with_one_line(data, tmp_path, fault, said, codes) -> None:
    own = tmp_path / "data"
    shutil.copytree(data, own)
    run = (run_spec(**SHARED), own, tmp_path / "out", tmp_path / "resume")
    found, printed = train_together(2, run, tmp_path / "said", fault, seconds=30)
    assert found == codes
    assert said in one_line(printed)
    assert not (tmp_path / "out").exists()


def test_who_waits_long_after_it_was_asked_to_stop_takes_the_others_for_killed(monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr(parallel.time, "monotonic", lambda: now)
    world = World("10M/full/42")
    for seconds in (0, 50):
        now += seconds
        world.check_peers(asked=False)
    world.check_peers(asked=True)
    now += 19
    world.check_peers(asked=True)
    now += 2
    with pytest.raises(RunError, match="ended without a word"):
        world.check_peers(asked=True)


def test_processes_with_different_parameters_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of one parameter is enough."""
    model = torch.nn.Linear(3, 2)
    world = World("10M/full/42")
    world.check_same(model)
    other = [p.detach().clone() for p in model.parameters()]
    world._store, world.size = object(), 2

    def all_reduce(values: torch.Tensor, operation) -> None:
        bits = torch.stack([p.view(torch.int32).sum(dtype=torch.int64) for p in other])
        lowest = operation == torch.distributed.ReduceOp.MIN
        values.copy_(torch.minimum(values, bits) if lowest else torch.maximum(values, bits))

    monkeypatch.setattr(world, "all_reduce", all_reduce)
    world.check_same(model)
    other[0].view(torch.int32)[1, 1] ^= 1
    with pytest.raises(RunError, match="the 2 processes hold different parameters"):
        world.check_same(model)


def test_torchrun_starts_a_run_from_the_command_line(tmp_path: Path, elsewhere: None) -> None:
    """Seconds go by while three processes import PyTorch."""
    write_corpus(tmp_path / "results/tiny/data/sample-300")
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    train = ["relation", "train", "10M/full/42", "--campaign", "tiny", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-m", *torchrun, "-m", *train],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results/tiny/runs/10M/full/42"
    assert read_parquet(folder / "log.parquet", LOG)["update"].to_pylist() == [1, 2, 3, 4, 5]
    assert read_origin(folder / "record.parquet")["processes"] == [2]
    assert sum("600/600" in line for line in done.stderr.splitlines()) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("variant, compiled", [("mha", False), ("full", False), ("full", True)])
def test_two_gpus_train_the_same_run(data, tmp_path, variant, compiled) -> None:
    """Compiled, each process replays its own share of an update as CUDA graphs."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    spec = run_spec(
        variant,
        **SHARED,
        device="cuda",
        compile=compiled,
        backends={"mha": "reference", "full": "reference", "linear": "recurrent"},
    )
    codes, said = train_together(
        2, (spec, data, tmp_path / "two", tmp_path / "resume"), tmp_path / "said", seconds=300
    )
    assert codes == [0, 0], said
    engine.train(spec, data, tmp_path / "one", tmp_path / "resume")
    records = [tmp_path / name / "record.parquet" for name in ("two", "one")]
    two, one = (read_parquet(path, RUN).to_pylist()[0] for path in records)
    assert two["order_hash"] == one["order_hash"] and two["init_hash"] == one["init_hash"]
    logs = [read_parquet(path.with_name("log.parquet"), LOG).to_pydict() for path in records]
    assert logs[0]["loss"] == pytest.approx(logs[1]["loss"], rel=1e-5)
