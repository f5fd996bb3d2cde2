"""What is read off a run while it trains: at every part of the budget, once, and unnoticed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from training import (
    UPDATE,
    assert_same_run,
    at_update,
    campaign,
    die,
    run_spec,
    small_model,
    train_together,
    write_corpus,
)

from relation.errors import InputError
from relation.flow import diagnose as measure
from relation.flow.pooled import by_layer
from relation.flow.probe import FlowProbe
from relation.nn import Decoder, Execution
from relation.pipeline.hashes import code_hash
from relation.spec import RunSpec
from relation.store.layouts import PROBES, RUN
from relation.store.parquet import read_origin, read_parquet
from relation.train import run as engine
from relation.train.checkpoint import load_model
from relation.train.probes import PeakMemory, ValidationProbe, due

ENDS = [0, 128, 256, 384, 512, 600]  # tokens after each update of `run_spec`


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "data")


def probe_of(spec: RunSpec, data: Path, times: int = 10) -> FlowProbe:
    sampling = campaign().diagnostics_spec(campaign().run("10M", "full", 42), sequences=1)
    return FlowProbe(sampling, times, data, spec.model_config().vocab_size)


def train(spec: RunSpec, data: Path, folder: Path, times: int = 10) -> list[dict]:
    probe = probe_of(spec, data, times)
    engine.train(spec, data, folder / "out", folder / "resume", probes=[probe])
    return read_parquet(folder / "out" / "probes.parquet", PROBES).to_pylist()


@pytest.fixture(scope="module")
def probed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    folder = tmp_path_factory.mktemp("probed")
    return folder / "out", train(run_spec(), data, folder)


def test_a_run_is_looked_at_before_it_and_after_every_part(probed) -> None:
    _, rows = probed
    # A tenth of the budget is less than an update here, so that every update ends one.
    assert sorted({(row["update"], row["tokens"]) for row in rows}) == list(enumerate(ENDS))
    assert {(row["scale"], row["variant"], row["seed"]) for row in rows} == {("10M", "full", 42)}
    depth, heads = 3, 2
    assert len(rows) == len(ENDS) * depth * (1 + heads // 2 + 11 + 5)
    first = [row for row in rows if row["update"] == 0]
    assert {row["value"] for row in first if row["metric"] == "lambda"} == {0.5}
    assert {row["value"] for row in first if row["metric"] == "theta"} == {0.0}
    last = [row for row in rows if row["metric"] in ("lambda", "theta") and row["update"] == 5]
    assert all(row["value"] not in (0.0, 0.5) for row in last)


@pytest.mark.parametrize(
    "times, updates", [(1, [0, 5]), (2, [0, 3, 5]), (3, [0, 2, 4, 5]), (100, [0, 1, 2, 3, 4, 5])]
)
def test_the_parts_are_equal(data: Path, tmp_path: Path, times: int, updates: list[int]) -> None:
    rows = train(run_spec(), data, tmp_path, times)
    assert sorted({row["update"] for row in rows}) == updates


def test_a_full_update_of_every_tenth_is_due_of_a_paper_run() -> None:
    budget, size = 150_000_000, 131_072
    probe = probe_of(run_spec(), Path("none"))
    ends = [min((k + 1) * size, budget) for k in range(-(-budget // size))]
    looks = [end for end in ends if due([probe], end - size, end, budget)]
    assert len(looks) == 10 and looks[-1] == budget
    assert all(0 <= end - (k + 1) * budget / 10 < size for k, end in enumerate(looks))


def test_the_last_look_is_the_diagnosis_of_the_checkpoint(probed, data: Path) -> None:
    output, rows = probed
    model = load_model(output / "model.safetensors", torch.device("cpu"), Execution())
    spec = probe_of(run_spec(), data).spec
    sequences = measure.sequences_of(spec, data, 300)
    found = measure.diagnosis_of(model, spec, sequences, {"scale": 0, "variant": 0, "seed": 0}, "")
    means = by_layer(pd.DataFrame(found.flow)).set_index(["metric", "layer"])["value"]
    last = {(r["metric"], r["layer"]): r["value"] for r in rows if r["update"] == 5}
    assert means.index.isin(list(last)).all() and len(means) == 3 * 16
    for key, value in means.items():
        assert last[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key


def test_a_probe_changes_no_bit_of_the_run(probed, data: Path, tmp_path: Path) -> None:
    output, _ = probed
    engine.train(run_spec(), data, tmp_path / "out", tmp_path / "resume")
    assert_same_run(output, tmp_path / "out")
    assert not (tmp_path / "out" / "probes.parquet").exists()


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("update", [1, 2, 4])
def test_a_killed_run_has_every_probe_once(
    probed, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: bool, update: int
) -> None:
    output, rows = probed
    at_update(monkeypatch, update, die)
    spec = run_spec(checkpoint_seconds=1e-9) if saves else run_spec()
    with pytest.raises(KeyboardInterrupt):
        train(spec, data, tmp_path)
    at_update(monkeypatch, 0, die)
    assert train(run_spec(), data, tmp_path) == rows
    assert_same_run(tmp_path / "out", output)


def test_looks_of_another_probe_are_given_up_with_a_warning(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_update(monkeypatch, 3, die)
    with pytest.raises(KeyboardInterrupt):
        train(run_spec(checkpoint_seconds=1e-9), data, tmp_path)
    at_update(monkeypatch, 0, die)
    rows = train(run_spec(), data, tmp_path, times=2)
    assert sorted({row["update"] for row in rows}) == [3, 5]
    assert "was looked at by other code or settings up to update 2" in capsys.readouterr().err
    assert read_origin(tmp_path / "out" / "probes.parquet")["probe_times"] == 2


def test_a_run_that_cannot_be_looked_at_ends_before_it_trains(data: Path, tmp_path: Path) -> None:
    # Of a Hybrid only lambda and the angles are read: its first look needs no sequence.
    hybrid = campaign().run("30M", "hybrid", 42)
    probe = FlowProbe(replace(probe_of(run_spec(), data).spec, sequences=10**6), 10, data, 300)
    with pytest.raises(InputError, match="windows"):
        engine.train(hybrid, data, tmp_path / "out", tmp_path / "resume", probes=[probe])
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_the_record_names_the_probes_code_and_sequences(probed, data: Path) -> None:
    output, _ = probed
    origin = read_origin(output / "probes.parquet")
    assert origin["config_hash"] == run_spec().config_hash
    assert origin["probe_code_hash"] == code_hash("probe") != origin["code_hash"]
    sequences = torch.from_numpy(np.fromfile(data / "validation.bin", "<u2")[:16].astype("i8"))
    assert origin["sequences_hash"] == measure.hash_of_sequences(sequences[None])


@pytest.mark.parametrize(
    "variant, expected",
    [
        ("mha", {"self_flow": 4}),
        ("hybrid", {"lambda": 1, "theta": 4}),
        ("no-count", {"theta": 4, "self_flow": 4}),
        ("single-head", {"lambda": 4, "self_flow": 4}),
    ],
)
def test_a_variant_is_read_for_what_it_has(
    data: Path, tmp_path: Path, variant: str, expected: dict[str, int]
) -> None:
    spec = replace(run_spec(model=small_model(variant), budget_tokens=UPDATE), variant=variant)
    rows = train(spec, data, tmp_path, times=1)
    counts = {name: sum(row["metric"] == name for row in rows) // 2 for name in expected}
    assert counts == expected
    assert {row["metric"] for row in rows} & {"lambda", "theta", "self_flow"} == set(expected)


@pytest.mark.gpu
def test_what_a_look_allocates_is_no_part_of_the_peak() -> None:
    memory = PeakMemory(torch.device("cuda"))
    torch.cuda.reset_peak_memory_stats()
    kept = torch.ones(2**20, device="cuda")
    before = memory.bytes()
    with memory.left_out():
        torch.ones(2**24, device="cuda").sum().item()
    assert memory.bytes() == before >= kept.nbytes


def _refuse(rank: int) -> None:
    """Only the first process may look."""
    if rank:
        FlowProbe.look = None


def test_of_several_processes_the_first_one_looks(data: Path, tmp_path: Path) -> None:
    spec = run_spec()
    probe = probe_of(spec, data)
    run = (spec, data, tmp_path / "out", tmp_path / "resume", None, (probe,))
    codes, said = train_together(2, run, tmp_path / "said", _refuse)
    assert codes == [0, 0], said
    rows = read_parquet(tmp_path / "out" / "probes.parquet", PROBES).to_pylist()
    assert sorted({row["tokens"] for row in rows}) == ENDS


@pytest.fixture(scope="module")
def validated(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """A run whose whole split is read after every quarter, and its flow after every half."""
    folder, spec = tmp_path_factory.mktemp("validated"), run_spec()
    probes = (probe_of(spec, data, 2), ValidationProbe(4, 10**9, data, spec))
    engine.train(spec, data, folder / "out", folder / "resume", probes=probes)
    rows = read_parquet(folder / "out" / "probes.parquet", PROBES).to_pylist()
    return folder / "out", rows


def test_the_validation_curve_ends_at_the_final_nll(validated) -> None:
    output, rows = validated
    curve = [row for row in rows if row["metric"] == "validation_nll"]
    assert [row["tokens"] for row in curve] == [0, 256, 384, 512, 600]
    assert {(row["layer"], row["part"]) for row in curve} == {(None, None)}
    (record,) = read_parquet(output / "record.parquet", RUN).to_pylist()
    assert curve[-1]["value"] == np.float32(record["final_nll"])
    assert curve[0]["value"] == pytest.approx(np.log(300), rel=0.05)
    flow = {row["tokens"] for row in rows if row["metric"] == "self_flow"}
    assert flow == {0, 384, 600}


def test_the_validation_curve_changes_no_bit_of_the_run(validated, probed) -> None:
    assert_same_run(validated[0], probed[0])


def test_the_validation_curve_reads_the_first_tokens(data: Path) -> None:
    spec = run_spec()
    model = Decoder(spec.model_config(), Execution(**spec.backends))
    model.initialise(0)
    few = 70
    ids = np.fromfile(data / "validation.bin", "<u2")[: few + 1].astype(np.int64)
    logits = torch.cat(
        [
            model(torch.from_numpy(ids[i : min(i + spec.context, few)])[None])[0]
            for i in range(0, few, spec.context)
        ]
    )
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(ids[1:]))
    (row,) = ValidationProbe(1, few, data, spec).look(model)
    assert row["value"] == pytest.approx(expected.item(), rel=1e-6)
    assert model.training


def test_the_record_says_how_the_validation_curve_was_taken(validated) -> None:
    origin = read_origin(validated[0] / "probes.parquet")
    assert (origin["validation_looks"], origin["validation_look_tokens"]) == (4, 10**9)
    assert origin["probe_times"] == 2
