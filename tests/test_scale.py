"""The plan of one run of any size: its arithmetic by hand, and what it was measured from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, campaign

from relation.cli import main
from relation.errors import InputError
from relation.pipeline.estimate import PLANNED, activation_bytes, plan_scale, rates, shipped_rates
from relation.store.layouts import BENCH
from relation.store.parquet import write_parquet

BILLION = 10**9


def planned(**changes):
    given = {
        "geometry": PLANNED,
        "tokens": 20 * BILLION,
        "gpus": 64,
        "accumulation": 4,
        "link_gbytes": 50.0,
        "price": 3.0,
        "measured": shipped_rates(),
    }
    return plan_scale(**given | changes)


def test_the_arithmetic_by_hand() -> None:
    plan = planned()
    blocks = 40 * (4 * 1536**2 + 3 * 1536 * 3072)
    assert plan.parameters == blocks + 32768 * 1536 + 40 * (2 * 1536 + 1 + 16 // 2) + 1536
    operations = 6 * (blocks + 32768 * 1536) + 6 * 40 * 1536 * 4096
    assert plan.operations_per_token == operations
    per_gpu = plan.operations_per_second / operations
    assert plan.compute_seconds == pytest.approx(4 * 4 * 4096 / per_gpu)
    assert plan.exchange_seconds == pytest.approx(2 * 63 / 64 * 4 * plan.parameters / 50e9)
    step = plan.compute_seconds + plan.exchange_seconds
    assert plan.hours == pytest.approx(20 * BILLION / plan.tokens_per_update * step / 3600)
    assert plan.cost == pytest.approx(3 * 64 * plan.hours)


def test_one_gpu_of_a_measured_model_gets_its_measured_rate_and_memory() -> None:
    for rate in shipped_rates():
        alone = planned(geometry=rate.geometry, gpus=1)
        assert alone.exchange_seconds == 0 and alone.efficiency == 1
        assert alone.memory_gib == pytest.approx(rate.peak_gib, rel=0.05)
    assert alone.tokens_per_second == pytest.approx(rate.tokens_per_second)


def test_the_shipped_measurements_are_those_of_the_kernels_page() -> None:
    page = (ROOT / "kernels/README.md").read_text(encoding="utf-8")
    shapes = campaign("paper")
    for rate in shipped_rates():
        g = rate.geometry
        assert f"{rate.tokens_per_second:,.0f}, {rate.peak_gib}" in page
        run = shapes.run(g.scale, g.variant, 42)
        assert g.model().layers == run.model_config().layers
        assert (g.d_model, g.heads) == (run.model["d_model"], run.model["heads"])
        assert (g.vocabulary, g.context) == (run.model["vocab_size"], run.context)


def test_more_gpus_take_less_time_and_more_gpu_hours() -> None:
    few, many = planned(gpus=8), planned(gpus=512)
    assert many.hours < few.hours and many.gpu_hours > few.gpu_hours
    assert many.efficiency < few.efficiency
    assert all(part > 0 for part in activation_bytes(shipped_rates()))


def test_what_was_measured_here_replaces_what_is_shipped(tmp_path: Path) -> None:
    step = dict.fromkeys(BENCH.names)
    step |= {"measure": "step", "peer": "flash-relation", "status": "PASS", "scale": "100M"}
    step |= {"batch": 4, "length": 4096, "tokens_per_second": 1e6, "peak_bytes": 8 << 30}
    path = tmp_path / "flash.parquet"
    write_parquet(path, BENCH, [{**step, "device": "Another GPU", "samples": []}], {})
    found = {rate.geometry.scale: rate for rate in rates(path)}
    assert found["100M"].tokens_per_second == 1e6 and "Another GPU" in found["100M"].source
    assert found["10M"] == shipped_rates()[0]
    assert "Another GPU" in planned(measured=rates(path)).source


@pytest.mark.parametrize("changes", [{"gpus": 0}, {"tokens": 0}, {"price": -1.0}])
def test_numbers_that_mean_nothing_are_refused(changes: dict) -> None:
    with pytest.raises(InputError):
        planned(**changes)
    with pytest.raises(InputError):
        planned(geometry=replace(PLANNED, heads=7))


def test_the_command_prints_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--scale", "1B", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hours"] == planned().hours
    assert main(["plan", "--scale", "1B", "--layers", "20", "--gpus", "8", "--tokens", "5B"]) == 0
    said = capsys.readouterr().out
    assert "20 layers" in said and "5,000,000,000 tokens" in said and "NVIDIA H200" in said
    assert main(["plan", "--scale", "2B"]) == 2
    assert "choose among 10M, 30M, 100M, 1B" in capsys.readouterr().err
    assert main(["plan", "--scale", "1B", "--tokens", "many"]) == 2


def test_the_page_prints_what_the_command_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--scale", "1B"]) == 0
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in page
