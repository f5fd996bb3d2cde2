"""Benchmarks of updates, and of decoding and operators as T grows, on miniature models."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_rounds import crowded
from training import CPU, small_side, tiny

from relation import records
from relation.bench import complexity, decode, steps
from relation.bench.decode import random_state, state_bytes
from relation.bench.steps import updates
from relation.errors import InputError, RunError
from relation.jobs import Bench, Side

VARIANTS = {"mha": "flash", "full": "tiled", "linear": "chunked", "hybrid": "chunked"}


def side(variant: str, backend: str, context: int = 16, name: str | None = None, **rest) -> Side:
    return small_side(variant, {variant: backend}, context, side=name or variant, **rest)


def bench(*sides: Side, rounds: int = 6, **changes) -> Bench:
    """The tiny campaign's first benchmark, with these sides."""
    return replace(tiny().benchmarks[0], sides=sides, rounds=rounds, **changes)


def measured(spec: Bench, folder):
    path = folder / "steps.parquet"
    np.random.default_rng(0).integers(0, 61, 3000).astype("<u2").tofile(folder / "train.bin")
    steps.measure(spec, path, folder)
    return records.read(path, "steps")


def test_updates_are_timed(tmp_path):
    spec = bench(side("mha", "flash"), side("full", "tiled", position=1))
    rows = measured(spec, tmp_path)
    assert list(rows["side"]) == ["mha", "full"] and set(rows["status"]) == {"PASS"}
    assert set(rows["hash"]) == {spec.hash} and set(rows["tokens"]) == {"corpus"}
    assert list(rows["position"]) == [0, 1] and list(rows["backend"]) == ["flash", "tiled"]
    for row in rows.to_dict("records"):
        assert row["measured_updates"] == 6 and len(row["samples"]) == 6 and not row["alone"]
        low, high = row["tokens_per_second_low"], row["tokens_per_second_high"]
        assert min(row["samples"]) == low <= row["tokens_per_second"] <= high
        assert row["raw_tokens_per_second"] > 0


def test_a_rate_is_of_the_tokens_in_the_timed_updates(tmp_path, monkeypatch):
    """Every look at the clock is a second later than the one before it."""

    def step(batches, tokens, rate):
        assert sum(inputs.numel() for inputs, _ in batches) == tokens == 64
        return torch.zeros(()), None

    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter=count().__next__))
    monkeypatch.setattr(steps, "UpdateStep", lambda *_: step)
    spec = bench(side("mha", "flash"), warmup_updates=3, measured_updates=4)
    (row,) = measured(spec, tmp_path).to_dict("records")
    assert (row["tokens_per_second"], row["measured_updates"]) == (4 * 64, 6 * 4)
    assert row["raw_tokens_per_second"] == pytest.approx((3 + 6 * 4) * 64 / (1 + 6 * 2))


def test_one_round_has_no_interval_and_no_corpus_is_an_error(tmp_path):
    rows = measured(bench(side("mha", "flash"), rounds=1), tmp_path)
    assert np.isnan(rows["tokens_per_second_low"][0])
    spec = bench(side("mha", "flash"))
    with pytest.raises(InputError, match="missing or empty"):
        steps.measure(spec, tmp_path / "x.parquet", tmp_path / "absent")
    assert not (tmp_path / "x.parquet").exists()


def test_contexts_are_measured_one_by_one(tmp_path, monkeypatch):
    """Here on a device with room for one process."""
    held = tmp_path / "held"
    held.mkdir()
    monkeypatch.setattr(steps, "updates", lambda *given: crowded(str(held), given[-1]))
    sides = [side("linear", "chunked", T, f"T={T}") for T in (8, 16)]
    rows = measured(bench(*sides, benchmark="linear-long", rounds=1), tmp_path)
    assert list(rows["context"]) == [8, 16] and set(rows["status"]) == {"PASS"}
    assert not rows["alone"].any()


def test_a_loss_that_is_not_finite_is_an_error(tmp_path):
    np.zeros(200, "<u2").tofile(tmp_path / "train.bin")
    spec = bench(side("mha", "flash"))
    spec = replace(spec, optimizer={**spec.optimizer, "learning_rate": float("inf")})
    with pytest.raises(RunError, match="the loss is nan"):
        next(updates(spec, spec.sides[0], tmp_path / "train.bin", CPU))


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
def test_updates_on_a_gpu(tmp_path, compile):
    sides = side("mha", "flash"), side("full", "flash"), side("linear", "flash")
    rows = measured(bench(*sides, precision="bf16", compile=compile, device="cuda"), tmp_path)
    assert set(rows["status"]) == {"PASS"}, list(rows["reason"])
    assert (rows["allocated_gib"] > 0).all() and (rows["reserved_gib"] > 0).all()


def decoded(tmp_path, *sides, **changes):
    path = tmp_path / "decode.parquet"
    spec = bench(*sides, benchmark="decode", **{"rounds": 2} | changes)
    decode.measure(spec, path)
    rows = records.read(path, "decode")
    assert set(rows["hash"]) == {spec.hash} and set(rows["status"]) == {"PASS"}, rows["reason"]
    return rows


def test_every_model_decodes(tmp_path, monkeypatch):
    """Every look at the clock is a second later; a round decodes eight tokens."""
    monkeypatch.setattr(decode, "time", SimpleNamespace(perf_counter=count().__next__))
    sides = [side(v, b, T) for v, b in VARIANTS.items() for T in (4, 8)]
    rows = decoded(tmp_path, *sides)
    tokens = rows.set_index(["model", "context"])
    assert len(tokens) == 8 and set(rows["measure"]) == {"token"}
    assert (tokens["seconds"] == 1 / 8).all() and (tokens["batch"] == 2).all()
    assert (tokens["tokens_per_second"] == 2 * 8).all()
    bytes_of = tokens["state_bytes"]
    assert bytes_of["full", 8] == 2 * bytes_of["full", 4]
    assert bytes_of["linear", 8] == bytes_of["linear", 4]


@pytest.mark.parametrize("variant", VARIANTS)
def test_state_bytes_are_those_of_the_state(variant):
    config = side(variant, "").model
    state = random_state(config, 24, 3, torch.float32, torch.device("cpu"))
    assert sum(cache.nbytes for cache in state.layers) == state_bytes(config, 24, 3, torch.float32)


def test_operators_are_timed_against_t(tmp_path):
    path = tmp_path / "complexity.parquet"
    sides = [
        side(variant, backend, T, name)
        for name, variant, backend in (
            ("mha", "mha", "flash"), ("full-reference", "full", "reference"),
            ("linear", "linear", "chunked"), ("mha-cudnn", "mha", "cudnn"),
        )
        for T in (16, 64)
    ]  # fmt: skip
    complexity.measure(bench(*sides, benchmark="complexity"), path)
    rows = records.read(path, "complexity").set_index(["operator", "context"]).sort_index()
    assert len(rows) == 8 and set(rows.loc["mha-cudnn", "status"]) == {"UNAVAILABLE"}
    passed = rows.drop("mha-cudnn")
    assert set(passed["status"]) == {"PASS"} and (passed["seconds_low"] <= passed["seconds"]).all()
    kept = passed["decode_state_bytes"]
    assert kept["linear", 16] == kept["linear", 64] == 2 * 16 * 16 * 4
    assert kept["full-reference", 64] == 4 * kept["full-reference", 16] == 2 * 64 * 32 * 4


@pytest.mark.gpu
def test_decoding_and_operators_on_a_gpu(tmp_path):
    sides = [side(v, "flash", 128) for v in VARIANTS]
    rows = decoded(tmp_path, *sides, precision="bf16", device="cuda")
    assert set(rows["model"]) == set(VARIANTS)
    path = tmp_path / "complexity.parquet"
    three = [side(v, "flash", T) for v in ("mha", "full", "linear") for T in (64, 1024)]
    complexity.measure(bench(*three, benchmark="complexity", precision="bf16", device="cuda"), path)
    rows = records.read(path, "complexity")
    assert set(rows["status"]) == {"PASS"}, list(rows["reason"])
