"""TensorBoard's curves of a run, and runs that are followed from start to end."""

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, refusal
from test_watch import campaign, log, row, spec, without_time
from training import at_update, die, resume_key, run_spec, train_together

from relation.cli.options import sharing_of
from relation.errors import InputError, RunError
from relation.pipeline.campaign import resolve
from relation.pipeline.config import load_config
from relation.pipeline.preflight import check, write_started_with
from relation.pipeline.results import Results
from relation.store.layouts import LOG
from relation.store.parquet import read_parquet
from relation.train import run as engine
from relation.train.folder import read_folder
from relation.train.watch import Watch


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's curves of a folder, as TensorBoard reads them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}


def test_tensorboard_has_every_update_once_after_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    events = tmp_path / "events"
    Watch(tmp_path, spec(), log(0), events).add(row(1))
    with Watch(tmp_path, spec(), log(2), events) as watch:
        watch.add(row(3))
    found = scalars(events)
    readings = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")
    assert set(found) == {f"{axis}/{name}" for axis in ("update", "tokens") for name in readings}
    for tag, points in found.items():
        axis, name = tag.split("/")
        assert [step for step, _ in points] == [row(u)[axis] for u in (1, 2, 3)]
        # Events hold FP32.
        expected = [pytest.approx(row(u)[name], rel=2**-23) for u in (1, 2, 3)]
        assert [value for _, value in points] == expected


@pytest.fixture
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relation.train.watch.find_spec", lambda name: None)


def test_without_tensorboard_it_is_one_line_before_any_job(tmp_path, no_tensorboard) -> None:
    watch = (tmp_path, spec(), log(0), tmp_path / "events")
    assert "pip install tensorboard" in refusal(lambda: Watch(*watch))
    wanted = campaign(tensorboard="true")
    with pytest.raises(InputError, match="pip install tensorboard"):
        check(wanted, [], needs_gpu=False)
    check(campaign(), [], needs_gpu=False)


@pytest.mark.parametrize("choice, changed", [
    ({"tensorboard": True}, {"tensorboard": True}),
    ({"tensorboard": "true"}, {"tensorboard": True}),
    ({"tensorboard": "false"}, {}),
    ({"runs_per_gpu": 2}, {"runs_per_gpu": 2, "matrix_shares": True}),
    ({"runs_per_gpu": None}, {}),
])  # fmt: skip
def test_choices_that_make_nothing_stale(tmp_path, choice: dict, changed: dict) -> None:
    """Snakemake gives `tensorboard=True` as a truth value and `tensorboard=true` as text."""
    chosen = resolve({**load_config(ROOT / "config.yaml"), **choice}, campaign="tiny")
    assert chosen == replace(campaign(), **changed)
    results = Results(chosen, tmp_path)
    write_started_with(chosen, results)
    again = resolve(load_config(results.started_with))
    assert {name: getattr(again, name) for name in changed} == changed
    assert again.settings == chosen.settings == campaign().settings


@pytest.mark.parametrize("name, asked, of_matrix, of_reading", [
    ("books-epsilon", None, 1, None),
    ("books-epsilon", 2, 2, None),
    ("readings", None, 1, 4),
])  # fmt: skip
def test_readings_share_a_gpu_and_the_matrix_where_it_is_asked_to(
    name: str, asked: int | None, of_matrix: int, of_reading: int | None
) -> None:
    config = {**load_config(ROOT / "config.yaml"), "runs_per_gpu": asked}
    config["campaigns"][name]["runs_per_gpu"] = 4  # of its readings
    chosen = resolve(config, campaign=name)
    assert {sharing_of(chosen), *(sharing_of(chosen, run) for run in chosen.runs)} == {of_matrix}
    found = {sharing_of(chosen, run) for run in chosen.reading_runs}
    assert found == (set() if of_reading is None else {of_reading})


def test_another_value_is_refused() -> None:
    config = {**load_config(ROOT / "config.yaml"), "tensorboard": "yes please"}
    with pytest.raises(InputError, match="tensorboard"):
        resolve(config)


def validation_fails(*arguments) -> None:
    raise RunError("10M/full/42: no validation today")


def fail_after_training(rank: int) -> None:
    engine.validation_nll = validation_fails


def test_a_run_is_followed_until_it_is_done(data, tmp_path, monkeypatch) -> None:
    """It dies in update 4, its newest state is lost, and it goes on at update 3."""
    key = resume_key(run_spec(), data)
    run = (run_spec(checkpoint_seconds=1e-9), data, tmp_path / "out", tmp_path / "resume")
    folder = tmp_path / "resume" / key
    at_update(monkeypatch, 4, die)
    with pytest.raises(KeyboardInterrupt):
        engine.train(*run)
    found = read_folder(folder)
    assert [r["update"] for r in found.rows] == [1, 2, 3]
    assert (found.held, found.about["ended"]["state"]) == (False, "stopped")
    max(folder.glob("*.safetensors")).unlink()

    at_update(monkeypatch, 0, die)
    evaluate = engine.validation_nll
    seen = []

    def evaluate_while_watched(*arguments):
        seen.append(read_folder(folder))
        return evaluate(*arguments)

    monkeypatch.setattr(engine, "validation_nll", evaluate_while_watched)
    engine.train(*run)
    (last,) = seen
    assert last.held and last.about["ended"] is None
    logged = read_parquet(tmp_path / "out" / "log.parquet", LOG).to_pylist()
    assert without_time(last.rows) == logged
    assert last.rows[:2] == found.rows[:2]
    assert not folder.exists()


def test_a_run_that_diverges_is_told_as_failed(data: Path, tmp_path: Path) -> None:
    spec = run_spec(learning_rate=1e38)
    with pytest.raises(RunError) as caught:
        engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    found = read_folder(tmp_path / "resume" / resume_key(spec, data))
    assert found.about["ended"]["state"] == "failed"
    assert found.about["ended"]["reason"] == str(caught.value)
    assert [r["update"] for r in found.rows] == [1]


def test_of_several_processes_one_is_followed(data: Path, tmp_path: Path) -> None:
    spec = run_spec(micro=4, accumulation=2)
    run = (spec, data, tmp_path / "out", tmp_path / "resume")
    codes, _ = train_together(2, run, tmp_path / "said", fail_after_training)
    assert codes[0] == 2
    found = read_folder(tmp_path / "resume" / resume_key(spec, data))
    assert [r["update"] for r in found.rows] == [1, 2, 3, 4, 5]
    assert found.about["ended"]["reason"] == "10M/full/42: no validation today"


def test_a_run_draws_its_curves_where_it_is_asked_to(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    events = tmp_path / "events"
    engine.train(run_spec(), data, tmp_path / "out", tmp_path / "resume", events)
    logged = read_parquet(tmp_path / "out" / "log.parquet", LOG).to_pydict()
    points = scalars(events)["tokens/loss"]
    assert [step for step, _ in points] == logged["tokens"]
    assert [value for _, value in points] == pytest.approx(logged["loss"], rel=2**-23)
