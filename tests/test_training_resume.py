"""A run goes on from its resume state to the same bits, whatever stopped it and whenever."""

import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from training import (
    PROCESSES,
    UPDATE,
    assert_same_run,
    at_update,
    campaign,
    die,
    resume_key,
    run_spec,
    small_model,
    train_alone,
)

from relation.errors import RunError, StoppedError
from relation.flow.probe import FlowProbe
from relation.store.files import sha256_of
from relation.store.layouts import DATA
from relation.store.parquet import read_origin, read_parquet, write_parquet
from relation.train import checkpoint
from relation.train import run as engine
from relation.train.probes import Probe, ValidationProbe

UPDATES = 5


@pytest.mark.parametrize("number, update", [(signal.SIGTERM, 2), (signal.SIGINT, UPDATES)])
def test_a_stopped_run_goes_on_to_the_same_bits(
    trained, data, tmp_path, monkeypatch, number, update
) -> None:
    before = signal.getsignal(number)
    at_update(monkeypatch, update, lambda: signal.raise_signal(number))
    with pytest.raises(StoppedError, match=f"stopped after update {update} of 5") as caught:
        engine.train(run_spec(), data, tmp_path / "out", tmp_path / "resume")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert signal.getsignal(number) is before
    begun = at_update(monkeypatch, 0, die)
    engine.train(run_spec(), data, tmp_path / "out", tmp_path / "resume")
    assert begun == list(range(update + 1, UPDATES + 1))
    assert_same_run(tmp_path / "out", trained)


@pytest.fixture
def killed(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The resume states of a run that died in update 4 and saved after each: of 2 and of 3."""
    at_update(monkeypatch, 4, die)
    spec = run_spec(checkpoint_seconds=1e-9)
    with pytest.raises(KeyboardInterrupt):
        engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    states = sorted((tmp_path / "resume").rglob("*.safetensors"))
    assert len(states) == 2
    return states


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lose_the_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def lose_everything(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "damage, damaged, goes_on_at",
    [
        (None, 0, 4),
        (flip_a_byte, 1, 3),
        (lose_the_end, 1, 3),
        (lose_everything, 1, 3),
        (flip_a_byte, 2, 1),
    ],
)
def test_a_killed_run_goes_on_from_its_newest_whole_state(
    trained, data, tmp_path, monkeypatch, capsys, killed, damage, damaged, goes_on_at
) -> None:
    for state in killed[2 - damaged :]:
        damage(state)
    capsys.readouterr()
    begun = at_update(monkeypatch, 0, die)
    engine.train(run_spec(), data, tmp_path / "out", tmp_path / "resume")
    assert begun == list(range(goes_on_at, UPDATES + 1))
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == damaged
    for warning, state in zip(warnings, reversed(killed), strict=False):
        assert str(state) in warning and "fails its checksum; trying the state before" in warning
    assert_same_run(tmp_path / "out", trained)


def test_a_state_of_another_configuration_is_never_used(
    data, tmp_path, monkeypatch, killed
) -> None:
    begun = at_update(monkeypatch, 0, die)
    engine.train(run_spec(weight_decay=0.2), data, tmp_path / "out", tmp_path / "resume")
    assert begun[0] == 1


def test_a_state_of_another_corpus_is_not_taken_up(data, tmp_path, monkeypatch, killed) -> None:
    """The same settings on other texts start anew: a run never mixes two corpora."""
    other = tmp_path / "other"
    shutil.copytree(data, other)
    tokens = np.fromfile(other / "train.bin", "<u2")
    tokens[:100] = tokens[100:200]
    tokens.tofile(other / "train.bin")
    rows = list(engine.data_rows(data).values())
    rows[0] |= {"sha256": sha256_of(other / "train.bin")}
    write_parquet(other / "data.parquet", DATA, rows, read_origin(data / "data.parquet"))
    spec = run_spec(checkpoint_seconds=1e-9)
    assert resume_key(spec, other) != resume_key(spec, data)
    at_update(monkeypatch, 0, die)
    engine.train(spec, other, tmp_path / "again", tmp_path / "resume")
    engine.train(spec, other, tmp_path / "anew", tmp_path / "nowhere")
    logs = [read_parquet(tmp_path / name / "log.parquet")["loss"] for name in ("again", "anew")]
    assert logs[0].equals(logs[1])


def test_a_run_in_two_processes_is_refused(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "resume" / resume_key(run_spec(), data)
    folder.mkdir(parents=True)
    with FileLock(folder / "lock"), pytest.raises(RunError, match="already running"):
        engine.train(run_spec(), data, tmp_path / "out", tmp_path / "resume")


def test_states_are_saved_by_tokens(data, tmp_path, monkeypatch) -> None:
    """Every second update here, although no time has passed; the last two states are kept."""
    saved = []
    write = checkpoint.write_state

    def write_state(folder: Path, taken: checkpoint.Snapshot) -> None:
        write(folder, taken)
        saved.append(taken.update)
        states = sorted(path.name.split("-")[1] for path in folder.glob("state-*"))
        assert states == [f"{update:08d}" for update in saved[-2:]]

    monkeypatch.setattr(checkpoint, "write_state", write_state)
    spec = run_spec(checkpoint_tokens=2 * UPDATE - 1, budget_tokens=7 * UPDATE)
    engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    assert saved == [2, 4, 6]


def test_a_state_that_does_not_read_back_takes_no_name(data, tmp_path, monkeypatch) -> None:
    """A disk that loses a bit on the way: the state before is kept, and the run goes on from it."""
    write, saves = checkpoint.save_file, []

    def save_file(tensors: dict, path: Path, **options) -> None:
        saves.append(path)
        write(tensors, path, **options)
        if len(saves) == 3:
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)

    monkeypatch.setattr(checkpoint, "save_file", save_file)
    spec = run_spec(checkpoint_tokens=UPDATE)
    with pytest.raises(RunError, match="update 3 does not read back") as caught:
        engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    assert "\n" not in str(caught.value)
    (folder,) = (tmp_path / "resume").iterdir()
    assert sorted(path.name.split("-")[1] for path in folder.glob("state-*")) == [
        "00000001",
        "00000002",
    ]
    assert not (folder / ".state").exists()
    begun = at_update(monkeypatch, 0, die)
    engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    assert begun[0] == 3


def train_to_the_end(run: tuple) -> None:
    begun = PROCESSES.Event()
    process = PROCESSES.Process(target=train_alone, args=(run, begun))
    process.start()
    process.join()
    assert process.exitcode == 0


def kill_and_go_on(
    spec, data: Path, folder: Path, kills: list[tuple[int, bool]], probes: Sequence[Probe] = ()
) -> list[int]:
    """Kill a run again and again, then let it end; the updates saved at each kill.

    kills: for each, in which save it dies and whether the file is half written then; save 0 means
    a random moment, at most a tenth of a whole run after its first update began.
    """
    run = (spec, data, folder / "out", folder / "resume", None, probes)
    train_to_the_end((*run[:2], folder / "whole", folder / "whole-resume", None, probes))
    seconds = read_parquet(folder / "whole" / "record.parquet")["seconds"][0].as_py()
    moments, saved = random.Random(0), []
    for save, half_written in kills:
        begun = PROCESSES.Event()
        victim = PROCESSES.Process(target=train_alone, args=(run, begun, save, half_written))
        victim.start()
        while not begun.wait(5):  # as long as it takes to get a GPU that another test holds
            assert victim.is_alive()
        if not save:
            time.sleep(moments.uniform(0, seconds / 10))
            victim.kill()
        victim.join()
        assert victim.exitcode == -signal.SIGKILL
        names = [path.stem.split("-")[1] for path in (folder / "resume").glob("*/state-*")]
        saved.append(max(map(int, names), default=0))
    train_to_the_end(run)
    assert not any((folder / "resume").iterdir())
    assert_same_run(folder / "out", folder / "whole")
    return saved


def test_ten_kills_at_random_moments_leave_no_trace(data: Path, tmp_path: Path) -> None:
    """Among them one within the file of a state, and one before that file has its name.

    Twelve processes one after the other take seconds.
    """
    spec = run_spec(budget_tokens=60 * UPDATE + 40, checkpoint_tokens=2 * UPDATE)
    kills = [(0, False)] * 3 + [(2, True)] + [(0, False)] * 2 + [(2, False)] + [(0, False)] * 3
    saved = kill_and_go_on(spec, data, tmp_path, kills)
    assert saved == sorted(saved) and 0 < saved[-1] < 60
    # Each of the two that died in their second save had completed one more.
    assert saved[3] >= saved[2] + 2 and saved[6] >= saved[5] + 2


@pytest.mark.gpu
@pytest.mark.parametrize(
    "variant, compiled", [("mha", False), ("full", False), ("hybrid", False), ("full", True)]
)
def test_kills_leave_no_trace_on_a_gpu_in_deterministic_mode(
    data, tmp_path, variant, compiled
) -> None:
    spec = run_spec(
        model=small_model(variant, d_model=64),
        device="cuda",
        precision="bf16",
        compile=compiled,
        deterministic=True,
        backends={"mha": "flash", "full": "flash", "linear": "flash"},
        budget_tokens=60 * UPDATE + 40,
        checkpoint_tokens=10 * UPDATE,
    )
    assert torch.cuda.is_available()
    sampling = campaign().diagnostics_spec(campaign().run("10M", "full", 42), sequences=1)
    probes = (
        FlowProbe(sampling, 4, data, spec.model_config().vocab_size),
        ValidationProbe(6, 10**9, data, spec),
    )
    saved = kill_and_go_on(spec, data, tmp_path, [(2, True), (0, False), (2, False)], probes)
    assert saved == sorted(saved) and saved[-1] > 0
    looked, whole = (
        read_parquet(tmp_path / run / "probes.parquet").to_pandas() for run in ("out", "whole")
    )
    keys = ["metric", "update", "layer", "part"]
    assert looked[keys].equals(whole[keys])
    np.testing.assert_allclose(looked["value"], whole["value"], rtol=1e-5, atol=1e-6)
    (record,) = read_parquet(tmp_path / "out" / "record.parquet").to_pylist()
    curve = looked.loc[looked["metric"] == "validation_nll", "value"]
    assert len(curve) == 7 and curve.iloc[-1] == np.float32(record["final_nll"])
