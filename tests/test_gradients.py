"""The check of gradients: right steps pass, and a lost or mis-scaled gradient is found."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import campaign

from relation.errors import RunError
from relation.nn import Decoder
from relation.spec import GradientsSpec
from relation.store.layouts import GRADIENTS
from relation.store.parquet import read_origin, read_parquet
from relation.variants import VARIANTS, ModelConfig, model_config, model_values
from relation.verify import gradients
from relation.verify.gradients import check_variant, failures, gradient_errors, verify_gradients

CPU = torch.device("cpu")
ON_CPU = {"mha": "flash", "full": "tiled", "linear": "chunked"}
ON_GPU = dict.fromkeys(ON_CPU, "flash")
MATRIX, NORM = "blocks.0.mixer.w1.weight", "blocks.1.ffn_norm.weight"
THETA, LAM = "blocks.1.mixer.theta", "blocks.0.mixer.lam"
T = 37  # no multiple of a tile or a chunk


def side(variant: str, length: int = T, micro: int = 2, **backends: str) -> dict:
    model = ModelConfig.for_variant(
        variant,
        layers=max(2, len(VARIANTS[variant].pattern)),
        d_model=32,
        heads=4,
        d_ff=48,
        vocab_size=61,
    )
    return {
        "variant": variant,
        "scale": "tiny",
        "model": model_values(model),
        "length": length,
        "micro": micro,
        "backends": ON_CPU | backends,
    }


def spec(*variants: dict, **changes) -> GradientsSpec:
    settings = {"accumulation": 2, "draws": 16, "precision": "fp32", "compile": False}
    return GradientsSpec("tests", [*variants], device="cpu", **(settings | changes))


def planted(monkeypatch: pytest.MonkeyPatch, factors: dict[str, float]) -> None:
    """Scale gradients of the checked step alone, by parameter, as a wrong compiler would."""

    class Wrong(gradients.UpdateStep):
        def __init__(self, model, *arguments):
            super().__init__(model, *arguments)
            for name, factor in factors.items():
                model.get_parameter(name).register_hook(partial(torch.mul, other=factor))

    monkeypatch.setattr(gradients, "UpdateStep", Wrong)


def failing(checked: dict, precision: str = "fp32") -> dict[str, set[str]]:
    """The measures that fail, by parameter."""
    rows = check_variant(checked, spec(precision=precision), CPU)
    found: dict[str, set[str]] = {}
    for row in rows:
        if not row["error"] <= row["allowed"]:
            found.setdefault(row["parameter"], set()).add(row["measure"])
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_gradient_of_every_variant_passes(variant: str) -> None:
    checked = side(variant)
    rows = check_variant(checked, spec(draws=4), CPU)
    assert not failures(rows)
    names = dict(Decoder(model_config(checked["model"])).named_parameters())
    assert {row["parameter"] for row in rows} == set(names)
    for row in rows:
        assert row["error"] >= 0 and 0 < row["yardstick"] < row["allowed"]
        assert row["update"] == "launched" and row["compiled"] is False
    by_name = {name: {r["measure"] for r in rows if r["parameter"] == name} for name in names}
    few = {name for name, p in names.items() if p.numel() < 16}
    assert all(by_name[name] == {"RMS", "scale"} for name in few)
    assert all(by_name[name] == {"RMS", "largest", "scale"} for name in names.keys() - few)


def test_scale_errors_of_two_percent_are_found_and_named(monkeypatch) -> None:
    factors = {MATRIX: 1.02, NORM: 0.98, THETA: 1.02, LAM: 0.98, "embedding.weight": 1.02}
    planted(monkeypatch, factors)
    found = failing(side("full"))
    assert set(found) == set(factors) and all("scale" in measures for measures in found.values())


@pytest.mark.parametrize("variant, names", [
    ("full", {LAM, MATRIX}), ("hybrid", {"blocks.2.mixer.a_log"}), ("mha", {NORM}),
])  # fmt: skip
def test_a_lost_gradient_is_found(monkeypatch, variant: str, names: set[str]) -> None:
    planted(monkeypatch, dict.fromkeys(names, 0.0))
    found = failing(side(variant))
    assert set(found) == names and all({"RMS", "scale"} <= found[name] for name in names)


def test_in_bf16_scale_errors_of_two_percent_are_found(monkeypatch) -> None:
    """Those alone: the other layer's gradients of the same kinds pass."""
    factors = {MATRIX: 1.02, NORM: 0.98, THETA: 1.02, LAM: 0.98}
    planted(monkeypatch, factors)
    many = {"length": T, "micro": 32}  # tokens, so that lambda's noise is well below 1%
    found = failing(side("full", **many), "bf16")
    assert set(found) == set(factors) and all("scale" in measures for measures in found.values())


def moments(error: torch.Tensor, yardstick: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """As the check gathers them of gradients (draws, elements)."""
    return torch.stack(
        [
            torch.stack([gradients._moments(x, t) for x in (e, y, t)])
            for e, y, t in zip(error, yardstick, truth, strict=True)
        ]
    )


def test_the_errors_are_those_of_the_definition() -> None:
    truth = torch.tensor([[3.0, -4.0], [0.0, 12.0]]).double().repeat(1, 8)
    error, yardstick = 0.5 * truth, torch.full_like(truth, 0.01)
    rms, largest, scale = gradient_errors(moments(error, yardstick, truth), 16, "fp32")
    power = math.sqrt((9 + 16 + 144) / 4)
    assert (rms.measure, largest.measure, scale.measure) == ("RMS", "largest", "scale")
    assert rms.error == pytest.approx(0.5 * power) and rms.yardstick == pytest.approx(0.01)
    assert rms.allowed == pytest.approx(0.02 + 1e-5 * power)
    assert largest.error == 6 and largest.allowed == pytest.approx(0.02 + 1e-5 * 12)
    products = torch.tensor([-1.0, 12.0]) * 0.01  # of the yardstick with the truth, by draw
    assert scale.error == pytest.approx(0.5)
    assert scale.yardstick == pytest.approx(products.sum().item() / 169)
    assert scale.allowed == 0.01, "the cap, as a fault of 50% is noisy too"
    assert not (rms.passes or largest.passes or scale.passes)


def test_the_scale_error_may_be_as_large_as_the_noise_of_either_step() -> None:
    truth = torch.tensor([[3.0, -4.0], [0.0, 12.0]]).double().repeat(1, 8)
    constant = torch.full_like(truth, 1e-3)
    products = torch.tensor([-1.0, 12.0]) * 1e-3  # of the constant with the truth, by draw
    noise = 4 * products.square().sum().sqrt().item() / 169
    for error, yardstick in ((0 * truth, constant), (constant, 0 * truth)):
        *_, scale = gradient_errors(moments(error, yardstick, truth), 16, "fp32")
        assert scale.allowed == pytest.approx(2 * scale.yardstick + 1e-5 + noise)


def test_the_scale_error_sees_two_percent_where_the_rms_is_blind() -> None:
    generator = torch.Generator().manual_seed(0)
    truth, ours, theirs = torch.randn(3, 16, 1000, generator=generator).double()
    right, wrong = (g - truth for g in (truth + 0.02 * ours, 1.02 * (truth + 0.02 * ours)))
    for error, passes in ((right, True), (wrong, False)):
        rms, _, scale = gradient_errors(moments(error, 0.02 * theirs, truth), 1000, "bf16")
        assert rms.passes and scale.passes == passes


ONES = torch.ones(16, 16).double()


@pytest.mark.parametrize(
    "error, yardstick, truth",
    [
        # No noise of the yardstick allows more than 1%.
        (0.02 * ONES, 0.3 * ONES, ONES),
        (math.nan * ONES, 0 * ONES, ONES),
        (math.inf * ONES, 0 * ONES, ONES),
        # A gradient that is zero in truth proves nothing.
        (0 * ONES, 0 * ONES, 0 * ONES),
    ],
)
def test_what_proves_nothing_does_not_pass(error, yardstick, truth) -> None:
    *others, scale = gradient_errors(moments(error, yardstick, truth), 16, "bf16")
    assert not scale.passes
    assert all(found.passes == bool((error <= yardstick).all()) for found in others)


def test_failing_rows_are_written_and_each_parameter_is_named(
    monkeypatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    lam = "blocks.3.mixer.lam"
    planted(monkeypatch, {lam: 0.0})
    checked, path = spec(side("hybrid"), draws=2), tmp_path / "gradients.parquet"
    with pytest.raises(RunError, match=f"hybrid {lam} is wrong .* {path} has every error"):
        verify_gradients(checked, path)
    assert f"hybrid {lam}: the RMS error of its gradient is" in capsys.readouterr().err
    rows = read_parquet(path, GRADIENTS).to_pylist()
    assert {row["parameter"] for row in rows if row["error"] > row["allowed"]} == {lam}
    for row in rows:
        assert (row["layout"], row["width"], row["length"], row["micro"]) == ("LLLF", 8, T, 2)
        assert row["backends"] == ["full: tiled", "linear: chunked"] and row["draws"] == 2
    assert read_origin(path)["config_hash"] == checked.config_hash


def test_a_campaign_checks_every_variant_as_it_trains() -> None:
    books = campaign("books", variants="mha")
    found = {entry["variant"]: entry for entry in books.gradients.variants}
    assert list(found) == list(VARIANTS) and books.gradients.compile
    assert books.gradients.draws >= 16 and books.gradients.accumulation == 2
    for variant, entry in found.items():
        run = next((r for r in books.planned_runs if r.variant == variant), None)
        assert entry["length"] >= 512
        if run is not None:
            assert entry["scale"] == run.scale and entry["backends"] == run.backends
            assert entry["model"] == run.model | {"layout": entry["model"]["layout"]}
    assert found["single-head"]["backends"]["full"] == "materialised"
    assert {entry["model"]["layout"] for entry in found.values()} == {"AA", "FF", "LL", "LLLF"}
    smoke = campaign("smoke").gradients
    assert not smoke.compile and max(entry["length"] for entry in smoke.variants) <= 128


def test_a_compiled_step_passes(monkeypatch) -> None:
    """Traced and differentiated as under torch.compile; generating code would take a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    checked = side("full", full="materialised")
    rows = check_variant(checked, spec(draws=3, compile=True), CPU)
    torch.compiler.reset()
    assert not failures(rows) and {row["compiled"] for row in rows} == {True}


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["full", "hybrid"])
def test_compiled_and_replayed_gradients_pass_on_a_gpu(variant: str) -> None:
    books = campaign("books").gradients
    (checked,) = (entry for entry in books.variants if entry["variant"] == variant)
    torch.compiler.reset()
    rows = check_variant(checked, books, torch.device("cuda"))
    assert not failures(rows) and {row["update"] for row in rows} == {"launched", "replayed"}
