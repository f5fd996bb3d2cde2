"""A run from specification to record: exact, repeatable, the same however it was interrupted."""

import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from relation.config import Campaign, load_config, resolve
from relation.data.prepare import prepare
from relation.data.tokens import open_tokens
from relation.data.windows import OrderHash, TrainingWindows, plan_updates
from relation.errors import InputError, RunError
from relation.files import sha256_of
from relation.parquet import read_origin, read_parquet, write_parquet
from relation.schemas import DATA, LOG, RUN
from relation.spec import RunSpec
from relation.training import engine
from relation.training.checkpoint import load_model
from relation.training.schedule import wsd

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
TIMES = {"seconds", "tokens_per_second"}  # all that may differ between two runs of one kind
UPDATES, CONTEXT, BUDGET = 5, 16, 600


@cache
def campaign() -> Campaign:
    return resolve(load_config(ROOT / "config.yaml"), campaign="tiny")


def run_spec(variant: str = "full", **changes) -> RunSpec:
    return replace(campaign().run("10M", variant, 42), **changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny campaign's stories, prepared."""
    folder = tmp_path_factory.mktemp("stories")
    spec = campaign().data[run_spec().data]
    prepare(spec, folder / "data", folder / "work", "tiny")
    return folder / "data"


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a Full Relation run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("trained")
    engine.train(run_spec(), data, folder / "out", folder / "resume")
    assert not any((folder / "resume").iterdir())
    return folder / "out"


def columns(path: Path, layout) -> dict[str, list]:
    """A record's columns, without those that measure time."""
    table = read_parquet(path, layout)
    return {n: v for n, v in table.to_pydict().items() if n not in TIMES}


def assert_same_run(output: Path, expected: Path) -> None:
    """Weights, log and record agree to the last bit."""
    weights, same = (load_file(p / "model.safetensors") for p in (output, expected))
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in same)
    for file, layout in (("log.parquet", LOG), ("record.parquet", RUN)):
        assert columns(output / file, layout) == columns(expected / file, layout)


def test_the_log_has_a_row_an_update(trained: Path) -> None:
    log = read_parquet(trained / "log.parquet", LOG).to_pydict()
    assert log["update"] == [1, 2, 3, 4, 5]
    assert log["update_tokens"] == [128, 128, 128, 128, 88]
    assert log["tokens"] == [128, 256, 384, 512, BUDGET]
    spec = run_spec()
    for tokens, size, rate in zip(
        log["tokens"], log["update_tokens"], log["learning_rate"], strict=True
    ):
        assert rate == spec.learning_rate * wsd(tokens - size, tokens, BUDGET, 128, 0.8) > 0
    assert log["loss"][0] == pytest.approx(np.log(300), abs=0.2)
    assert log["loss"][-1] < log["loss"][0]
    assert min(*log["gradient_norm"], *log["tokens_per_second"]) > 0


def test_the_record_says_what_was_trained_on_what(trained: Path, data: Path) -> None:
    (row,) = read_parquet(trained / "record.parquet", RUN).to_pylist()
    known = {r["split"]: r for r in read_parquet(data / "data.parquet", DATA).to_pylist()}
    assert (row["scale"], row["variant"], row["seed"]) == ("10M", "full", 42)
    assert (row["budget_tokens"], row["trained_tokens"], row["updates"]) == (BUDGET, BUDGET, 5)
    assert row["unigram_entropy"] == known["validation"]["unigram_entropy"]
    assert row["validation_tokens"] == known["validation"]["tokens"] - 1
    assert row["epochs"] == 38 / ((known["train"]["tokens"] - 1) // CONTEXT)
    assert row["peak_memory_gib"] is None

    windows = TrainingWindows(open_tokens(data / "train.bin"), CONTEXT, 42)
    order = OrderHash(sha256_of(data / "train.bin"), CONTEXT)
    for plan in plan_updates(BUDGET, 128, CONTEXT, "partial"):
        order.update(windows.window_ids(plan.first, plan.windows), plan.tokens)
    assert row["order_hash"] == order.value

    for file in ("record.parquet", "log.parquet"):
        origin = read_origin(trained / file)
        assert origin["config_hash"] == run_spec().config_hash
        assert (origin["campaign"], origin["seed"]) == ("tiny", 42)
        assert origin["order_hash"] == row["order_hash"]


def test_the_final_nll_is_the_checkpoints(trained: Path, data: Path) -> None:
    """The truth: the saved model in float64, one window at a time."""
    model = load_model(trained / "model.safetensors", CPU).double()
    tokens = torch.from_numpy(np.fromfile(data / "validation.bin", "<u2").astype(np.int64))
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, CONTEXT):
            chunk = tokens[start : start + CONTEXT + 1]
            log_p = model(chunk[None, :-1])[0].log_softmax(-1)
            total -= log_p.gather(1, chunk[1:, None]).sum().item()
    (row,) = read_parquet(trained / "record.parquet", RUN).to_pylist()
    # FP32 sums over 48 channels and 300 entries in three layers.
    assert row["final_nll"] == pytest.approx(total / (len(tokens) - 1), rel=1e-6)
    assert (len(tokens) - 1) % CONTEXT, "the split has no ragged tail to test"


def test_the_same_specification_gives_the_same_bits(
    trained: Path, data: Path, tmp_path: Path
) -> None:
    engine.train(run_spec(), data, tmp_path / "out", tmp_path / "resume")
    assert_same_run(tmp_path / "out", trained)


def test_a_pair_starts_alike_and_reads_alike(trained: Path, data: Path, tmp_path: Path) -> None:
    engine.train(run_spec("mha"), data, tmp_path / "mha", tmp_path / "resume")
    engine.train(run_spec(seed=43), data, tmp_path / "seed", tmp_path / "resume")
    full, mha, other = (
        read_parquet(p / "record.parquet", RUN).to_pylist()[0]
        for p in (trained, tmp_path / "mha", tmp_path / "seed")
    )
    for name in ("order_hash", "init_hash"):
        assert full[name] == mha[name] != other[name]
    assert full["parameters"] - mha["parameters"] == 3 * (1 + 1)  # lambda and one angle a layer


def at_update(
    monkeypatch: pytest.MonkeyPatch, update: int, action: Callable[[], object]
) -> list[int]:
    """Do something as an update of the next run begins; the list gathers the updates begun."""
    begun: list[int] = []

    def schedule(before: int, *arguments) -> float:
        begun.append(before // 128 + 1)
        if begun[-1] == update:
            action()
        return wsd(before, *arguments)

    monkeypatch.setattr(engine, "wsd", schedule)
    return begun


def die() -> None:
    """End the process, as far as the engine can tell."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("number, update", [(signal.SIGTERM, 2), (signal.SIGINT, UPDATES)])
def test_a_stopped_run_goes_on_to_the_same_bits(
    trained: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    update: int,
) -> None:
    before = signal.getsignal(number)
    at_update(monkeypatch, update, lambda: signal.raise_signal(number))
    with pytest.raises(RunError, match=f"stopped after update {update} of 5") as caught:
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


def lose_the_checksum(path: Path) -> None:
    path.with_suffix(".sha256").unlink()


@pytest.mark.parametrize(
    "damage, damaged, goes_on_at",
    [
        (None, 0, 4),
        (flip_a_byte, 1, 3),
        (lose_the_end, 1, 3),
        (lose_the_checksum, 1, 3),
        (flip_a_byte, 2, 1),
    ],
)
def test_a_killed_run_goes_on_from_its_newest_whole_state(
    trained: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    killed: list[Path],
    damage: Callable[[Path], None] | None,
    damaged: int,
    goes_on_at: int,
) -> None:
    for state in killed[2 - damaged :]:
        damage(state)
    capsys.readouterr()
    begun = at_update(monkeypatch, 0, die)
    engine.train(run_spec(), data, tmp_path / "out", tmp_path / "resume")
    assert begun == list(range(goes_on_at, UPDATES + 1))
    assert capsys.readouterr().err.count("warning") == damaged
    assert_same_run(tmp_path / "out", trained)


def test_a_state_of_another_configuration_is_never_used(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: list[Path]
) -> None:
    begun = at_update(monkeypatch, 0, die)
    engine.train(run_spec(weight_decay=0.2), data, tmp_path / "out", tmp_path / "resume")
    assert begun[0] == 1


def resume_key(spec: RunSpec, data: Path) -> str:
    hashes = {split: row["sha256"] for split, row in engine.data_rows(data).items()}
    return engine.resume_key(spec, hashes)


def test_a_state_of_another_corpus_is_not_taken_up(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: list[Path]
) -> None:
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


@pytest.mark.parametrize("seconds, said", [(60, "at update 2"), (1e-9, "after update 1")])
def test_a_run_that_diverges_is_stopped_and_saves_no_broken_state(
    data: Path, tmp_path: Path, seconds: float, said: str
) -> None:
    """The first update throws the weights out of FP32's range; the loss shows it in the second."""
    spec = run_spec(learning_rate=1e38, checkpoint_seconds=seconds)
    with pytest.raises(RunError, match=said) as caught:
        engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    message = str(caught.value)
    assert "none saved" in message and "\n" not in message
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "resume").rglob("*.safetensors"))


@pytest.mark.parametrize("file", ["train.bin", "validation.bin", "data.parquet"])
@pytest.mark.parametrize("cut", [1, 2, 64])
def test_data_that_lost_their_end_are_refused(
    data: Path, tmp_path: Path, file: str, cut: int
) -> None:
    """A shorter token file would train on other windows under the recorded order hash."""
    damaged = tmp_path / "data"
    shutil.copytree(data, damaged)
    (damaged / file).write_bytes((data / file).read_bytes()[:-cut])
    with pytest.raises(InputError, match=file) as caught:
        engine.train(run_spec(), damaged, tmp_path / "out", tmp_path / "resume")
    assert "\n" not in str(caught.value)
