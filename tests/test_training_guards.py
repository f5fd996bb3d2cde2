"""What goes wrong outside a run: one line that says what, and nothing already saved is lost."""

import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import refusal
from training import UPDATE, assert_same_run, at_update, die, resume_key, run_spec

from relation.errors import RelationError
from relation.store.parquet import write_parquet
from relation.train import checkpoint
from relation.train import run as engine
from relation.train.guards import check_writable
from relation.train.optimizer import build_optimizer

SPEC = run_spec(checkpoint_tokens=UPDATE)


def refused(data: Path, folder: Path) -> str:
    """The one line that a run ends with."""
    run = (SPEC, data, folder / "out", folder / "resume")
    return refusal(lambda: engine.train(*run), RelationError)


def kept_updates(folder: Path) -> list[int]:
    states = (folder / "resume").glob("*/state-*")
    return sorted(int(path.name.split("-")[1]) for path in states)


def assert_goes_on(
    data: Path, folder: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, update: int
) -> None:
    """The same command again goes on at `update` and gives the same bits."""
    begun = at_update(monkeypatch, 0, die)
    engine.train(SPEC, data, folder / "out", folder / "resume")
    assert begun == list(range(update, 6))
    assert_same_run(folder / "out", trained)


def at_save(number: int, action: Callable[[Path], None]) -> Callable:
    """save_file that does something at its `number`th call, from 1."""
    calls = []
    write = checkpoint.save_file

    def save_file(tensors: dict, path: Path, **options) -> None:
        calls.append(path)
        if len(calls) == number:
            action(path)
        write(tensors, path, **options)

    return save_file


def no_space(path: Path) -> None:
    Path(path).write_bytes(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "save, kept, place", [(3, [1, 2], "resume"), (5, [3, 4], "resume"), (6, [4, 5], "out")]
)
def test_a_full_disk(data, trained, tmp_path, monkeypatch, save, kept, place) -> None:
    """While a state is saved, or the trained model, which is the sixth file."""
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", at_save(save, no_space))
        message = refused(data, tmp_path)
    assert "cannot write to" in message and "No space left on device" in message
    assert str(tmp_path / place) in message
    assert f"state-{kept[-1]:08d}" in message
    assert kept_updates(tmp_path) == kept
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
    assert_goes_on(data, tmp_path, trained, monkeypatch, kept[-1] + 1)


def test_a_disk_that_is_full_at_the_record(data, trained, tmp_path, monkeypatch) -> None:
    """Behind the trained model and the log."""

    def write(path: Path, *arguments) -> None:
        if path.name == "record.parquet":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_parquet(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "write_parquet", write)
        message = refused(data, tmp_path)
    assert f"cannot write to {tmp_path / 'out'} (No space left on device)" in message
    assert "state-00000005" in message
    assert_goes_on(data, tmp_path, trained, monkeypatch, 6)


def test_a_quota(data, trained, tmp_path, monkeypatch) -> None:
    """The kernel itself refuses to let the file grow; what was written of it is gone."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = lambda path: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", at_save(3, limit))
        try:
            message = refused(data, tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in message
    assert kept_updates(tmp_path) == [1, 2]
    assert [path.name for path in next((tmp_path / "resume").iterdir()).glob(".*")] == []
    assert_goes_on(data, tmp_path, trained, monkeypatch, 3)


def test_what_a_kill_left_half_written_is_swept(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "resume" / resume_key(SPEC, data)
    folder.mkdir(parents=True)
    for name in (".state", ".tmpAbCdEf"):
        (folder / name).write_bytes(b"half")
    checkpoint.sweep(folder)
    assert list(folder.iterdir()) == []


def test_no_permission_for_the_resume_states(data, tmp_path, monkeypatch) -> None:
    def refuse(self: Path, **options) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    message = refused(data, tmp_path)
    assert "Permission denied" in message and str(tmp_path / "resume") in message


def test_an_output_that_cannot_be_written_is_refused_before_training(
    data, tmp_path, monkeypatch
) -> None:
    begun = at_update(monkeypatch, 0, die)
    (tmp_path / "out").write_text("a file", encoding="utf-8")
    assert "out is no folder" in refused(data, tmp_path)
    (tmp_path / "out").unlink()
    with monkeypatch.context() as patch:
        # The superuser may write everywhere; anybody else is told so by the system.
        patch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
        assert f"{tmp_path} gives no permission to write" in refused(data, tmp_path)
    assert begun == [] and not (tmp_path / "resume").exists()
    check_writable(tmp_path / "a" / "b" / "c")
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_that_vanished_before_the_run_goes_on(
    data, trained, tmp_path, monkeypatch
) -> None:
    own = tmp_path / "data"
    shutil.copytree(data, own)
    with monkeypatch.context() as patch:
        at_update(patch, 4, die)
        with pytest.raises(KeyboardInterrupt):
            engine.train(SPEC, own, tmp_path / "out", tmp_path / "resume")
    (own / "train.bin").rename(tmp_path / "kept.bin")
    assert "train.bin is missing" in refused(own, tmp_path)
    (own / "data.parquet").rename(tmp_path / "kept.parquet")
    assert "data.parquet is missing" in refused(own, tmp_path)
    assert kept_updates(tmp_path) == [2, 3]
    (tmp_path / "kept.bin").rename(own / "train.bin")
    (tmp_path / "kept.parquet").rename(own / "data.parquet")
    assert_goes_on(own, tmp_path, trained, monkeypatch, 4)


def test_a_corpus_that_is_deleted_while_it_is_read_is_read_to_the_end(
    data, trained, tmp_path, monkeypatch
) -> None:
    own = tmp_path / "data"
    shutil.copytree(data, own)
    at_update(monkeypatch, 3, lambda: shutil.rmtree(own))
    engine.train(SPEC, own, tmp_path / "out", tmp_path / "resume")
    assert_same_run(tmp_path / "out", trained)


@pytest.mark.parametrize(
    "fault, said",
    [
        (lambda path: os.truncate(path, 100), "train.bin lost its end while it was being read"),
        (None, "train.bin can no longer be read (Stale file handle)"),
    ],
    ids=["cut", "gone from the network"],
)
def test_a_corpus_that_goes_while_it_is_read(
    data, trained, tmp_path, monkeypatch, fault, said
) -> None:
    own = tmp_path / "data"
    shutil.copytree(data, own)

    def stale(*arguments) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:

        def strike() -> None:
            if fault is None:
                patch.setattr(os, "pread", stale)
            else:
                fault(own / "train.bin")

        at_update(patch, 4, strike)
        assert said in refused(own, tmp_path)
    assert kept_updates(tmp_path) == [2, 3]
    shutil.copy2(data / "train.bin", own / "train.bin")
    assert_goes_on(own, tmp_path, trained, monkeypatch, 4)


def test_deterministic_mode_holds_for_the_run_alone(data, trained, tmp_path, monkeypatch) -> None:
    seen = []
    at_update(monkeypatch, 2, lambda: seen.append(torch.are_deterministic_algorithms_enabled()))
    for wanted in (True, False):
        spec = run_spec(checkpoint_tokens=UPDATE, deterministic=wanted)
        engine.train(spec, data, tmp_path / str(wanted), tmp_path / "resume")
        assert not torch.are_deterministic_algorithms_enabled()
        assert_same_run(tmp_path / str(wanted), trained)
    assert seen == [True, False]


def test_a_parameter_that_gets_no_gradient_stops_the_run(data, tmp_path, monkeypatch) -> None:
    """As a compiler that loses one would have it."""

    def without_one(model, *settings):
        model.blocks[0].mixer.theta.register_hook(torch.zeros_like)
        return build_optimizer(model, *settings)

    monkeypatch.setattr(engine, "build_optimizer", without_one)
    message = refused(data, tmp_path)
    assert "the gradient of blocks.0.mixer.theta is zero" in message
    assert torch.__version__ in message and not (tmp_path / "out" / "record.parquet").exists()
