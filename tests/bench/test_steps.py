"""Benchmarks of whole updates, on a miniature campaign."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from training import CPU, small_side, tiny

from relation import records
from relation.bench import steps
from relation.bench.steps import updates
from relation.errors import InputError, RunError
from relation.jobs import Bench, Side


def side(variant: str, backend: str, context: int = 16, name: str | None = None, **rest) -> Side:
    return small_side(variant, {variant: backend}, context, side=name or variant, **rest)


def bench(*sides: Side, rounds: int = 6, **changes) -> Bench:
    """The tiny campaign's first benchmark, with these sides."""
    return replace(tiny().benchmarks[0], sides=sides, rounds=rounds, **changes)


def measured(spec: Bench, folder):
    path = folder / "steps.parquet"
    np.random.default_rng(0).integers(0, 61, 3000).astype("<u2").tofile(folder / "train.bin")
    steps.measure(spec, path, folder)
    return records.read([path], "steps")


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


def test_contexts_are_measured_one_by_one(tmp_path):
    sides = [side("linear", "chunked", T, f"T={T}") for T in (8, 16)]
    rows = measured(bench(*sides, benchmark="linear-long", rounds=1), tmp_path)
    assert list(rows["context"]) == [8, 16] and set(rows["status"]) == {"PASS"}


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
