"""A run from specification to record: exact, repeatable, refused where its inputs are wrong."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refusal
from training import CONTEXT, PROCESSES, assert_same_run, campaign, run_spec

from relation.data.prepare import prepare
from relation.data.tokens import open_tokens
from relation.data.windows import OrderHash, TrainingWindows, plan_updates
from relation.errors import RunError
from relation.store.files import sha256_of
from relation.store.layouts import DATA, LOG, RUN
from relation.store.parquet import read_origin, read_parquet
from relation.train import run as engine
from relation.train.checkpoint import load_model
from relation.train.schedule import wsd

CPU = torch.device("cpu")
BUDGET = 600


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny campaign's corpus, prepared."""
    folder = tmp_path_factory.mktemp("sample")
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


def _train_and_look_at_imports(run: tuple) -> None:
    engine.train(*run)
    assert "torch._dynamo" not in sys.modules


def test_a_run_that_compiles_nothing_imports_no_compiler(data: Path, tmp_path: Path) -> None:
    """Importing it takes two seconds, and every job is a process."""
    run = (run_spec(), data, tmp_path / "out", tmp_path / "resume")
    process = PROCESSES.Process(target=_train_and_look_at_imports, args=(run,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


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


def test_the_same_specification_gives_the_same_bits(trained, data, tmp_path) -> None:
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


@pytest.mark.parametrize("seconds, said", [(60, "at update 2"), (1e-9, "after update 1")])
def test_a_run_that_diverges_is_stopped_and_saves_no_broken_state(
    data, tmp_path, seconds, said
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
def test_data_that_lost_their_end_are_refused(data, tmp_path, file, cut) -> None:
    """A shorter token file would train on other windows under the recorded order hash."""
    damaged = tmp_path / "data"
    shutil.copytree(data, damaged)
    (damaged / file).write_bytes((data / file).read_bytes()[:-cut])
    run = (run_spec(), damaged, tmp_path / "out", tmp_path / "resume")
    assert file in refusal(lambda: engine.train(*run))
