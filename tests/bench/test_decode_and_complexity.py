"""Time per token and per operator as T grows, in miniature on a CPU."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch

# The miniature models and benchmarks of test_steps.py.
from test_steps import bench, side

from relation import records
from relation.bench import complexity, decode
from relation.bench.decode import random_state, state_bytes

VARIANTS = {"mha": "flash", "full": "tiled", "linear": "chunked", "hybrid": "chunked"}


def decoded(tmp_path, *sides, **changes):
    path = tmp_path / "decode.parquet"
    spec = bench(*sides, benchmark="decode", **{"rounds": 2} | changes)
    decode.measure(spec, path)
    rows = records.read([path], "decode")
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
    rows = records.read([path], "complexity").set_index(["operator", "context"]).sort_index()
    assert len(rows) == 8 and set(rows.loc["mha-cudnn", "status"]) == {"UNAVAILABLE"}
    passed = rows.drop("mha-cudnn")
    assert set(passed["status"]) == {"PASS"} and (passed["seconds_low"] <= passed["seconds"]).all()
    kept = passed["decode_state_bytes"]
    assert kept["linear", 16] == kept["linear", 64] == 2 * 16 * 16 * 4
    assert kept["full-reference", 64] == 4 * kept["full-reference", 16] == 2 * 64 * 32 * 4


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    sides = [side(v, "flash", 128) for v in VARIANTS]
    rows = decoded(tmp_path, *sides, precision="bf16", device="cuda")
    assert set(rows["model"]) == set(VARIANTS)
    path = tmp_path / "complexity.parquet"
    three = [side(v, "flash", T) for v in ("mha", "full", "linear") for T in (64, 1024)]
    complexity.measure(bench(*three, benchmark="complexity", precision="bf16", device="cuda"), path)
    rows = records.read([path], "complexity")
    assert set(rows["status"]) == {"PASS"}, list(rows["reason"])
