"""The checks against FP64: right code passes; broken code is found and named."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import refusal
from torch import Tensor
from training import CPU, small_side, tiny

from relation import check, records
from relation.errors import RunError
from relation.jobs import Check, Side
from relation.ops import full_flow, full_relation, givens_mix, linear_relation
from relation.variants import VARIANTS

DOUBLE = torch.float64
OWN, FUTURE = "Exchange does not read the token's own information", "no output reads a later token"
MATRIX, NORM = "blocks.0.mixer.w1.weight", "blocks.1.ffn_norm.weight"
THETA, LAM = "blocks.1.mixer.theta", "blocks.0.mixer.lam"


def side(variant: str, micro: int = 2, **backends: str) -> Side:
    fast = {"mha": "flash", "full": "tiled", "linear": "chunked"}
    # 37 tokens are no multiple of a tile or a chunk.
    return small_side(variant, fast | backends, 37, micro)


def checked(*sides: Side, **changes) -> Check:
    """The tiny campaign's checks with these sides, and with an operator that masks tiles."""
    shapes = ({"scale": "10M", "heads": 2, "length": 33, "width": 8},)
    gradients = {"gradients": sides, "gradient_scales": ("10M",) * len(sides)}
    return replace(tiny().check, **{"shapes": shapes, **gradients, **changes})


def test_backends_pass_every_check_of_the_operators(tmp_path: Path) -> None:
    spec = checked()
    check.operators(spec, tmp_path / "operators.parquet")
    rows = records.read(tmp_path / "operators.parquet", "checks")
    assert (rows["error"] <= rows["allowed"]).all() and set(rows["hash"]) == {spec.hash}
    by_check = rows.groupby("check")["operator"].agg(set).to_dict()
    both = {"definition", "tiled"}
    assert by_check == {
        "exactness": {"tiled"},
        "identity": both,
        "mixing": {"definition"},
        "recurrence": {"expanded", "chunked"},
        "history": both | {"chunked"},
    }
    assert set(rows.loc[rows["name"].str.contains("later token"), "allowed"]) == {0}
    assert set(rows.loc[rows["check"] == "exactness", "length"]) == {32, 33}  # a masked tile
    identities = rows[rows["check"].isin(["identity", "mixing"])].groupby("precision")["allowed"]
    assert identities.agg(set).to_dict() == {"fp32": {1e-5}, "fp64": {1e-12}}


@pytest.mark.parametrize("dtype, part", [(torch.bfloat16, 1e-3), (torch.float32, 1e-5)])
def test_twice_the_yardstick_and_a_part_of_the_truth_are_allowed(dtype, part: float) -> None:
    """One of 256 numbers is off, in one of two draws."""
    off, truth = torch.zeros(16, 16, dtype=DOUBLE), torch.ones(16, 16, dtype=DOUBLE)
    off[0, 0] = 3.2
    draws = [{"w": (truth + wrong, truth + wrong / 4, truth)} for wrong in (off, 0 * off)]
    for row, error in zip(check.deviations(draws, dtype), (0.2 / 2**0.5, 3.2), strict=True):
        assert row["error"] == pytest.approx(error)
        assert row["allowed"] == pytest.approx(2 * error / 4 + part)


def written_first(p1, p2, info, g, tau=2.0):
    """Linear Relation that writes the current token to the state before it reads the state."""
    y, C = linear_relation(p1, p2, info, g)
    S = torch.sigmoid((p1 * p2).sum(-1, keepdim=True) / (tau * p1.shape[-1] ** 0.5))
    hats = (torch.nn.functional.normalize(p, dim=-1) for p in (p1, p2))
    return y + S**2 * torch.mul(*hats).sum(-1, keepdim=True) * info, C


def test_another_operator_recurrence_or_mixing_is_seen() -> None:
    wrong = lambda *given: 1.01 * full_relation(*given)  # noqa: E731
    rows = list(check.exactness(wrong, (2, 33, 8), torch.float32, CPU, 16))
    assert not any(row["error"] <= row["allowed"] for row in rows if row["name"] == "Y")
    for form in (written_first, lambda p1, p2, info, g: linear_relation(p1, p2, info, 0.999 * g)):
        rows = list(check.recurrence_errors(form, torch.float32, CPU))
        assert any(row["error"] > 2 * row["allowed"] for row in rows if row["name"] in "YC")
    for mix in (
        lambda info, theta, layer: (1 + 1e-3 * layer) * givens_mix(info, theta, layer),
        lambda info, theta, layer: info + 0.1 * info.roll(1, 1),
        lambda info, theta, layer: info * math.nan,
    ):
        assert not any(e <= 1e-12 for e in check.mixing_errors(mix, DOUBLE, CPU).values())


def test_exchange_with_itself_and_with_the_future_is_seen() -> None:
    states = torch.randn(3, 1, 2, 40, 8, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    lam = torch.tensor(0.5, dtype=DOUBLE)
    share = 1 - check.exchange_gate(*states[:2], lam)

    def with_itself(p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor) -> Tensor:
        gate = 1 - full_flow(p1, p2, lam).diagonal(0, -2, -1)
        return full_relation(p1, p2, info, lam) + 0.01 * gate[..., None] * info

    errors = check.history_errors(full_relation, states, share, lam)
    assert errors[FUTURE] == 0 and errors[OWN] <= 1e-12
    assert check.history_errors(with_itself, states, share, lam)[OWN] > 1e-3
    late = 1e-9 * (torch.arange(40) >= 20)[:, None]
    future = lambda *given: full_relation(*given) + late * given[2].roll(-1, 2)  # noqa: E731
    assert check.history_errors(future, states, share, lam)[FUTURE] > 0
    nothing = lambda *given: torch.full_like(given[2], math.nan)  # noqa: E731
    errors = check.history_errors(nothing, states, share, lam)
    assert not any(error <= 1 for error in errors.values())


def planted(monkeypatch: pytest.MonkeyPatch, factors: dict[str, float]) -> None:
    """Scale gradients of only the checked step, by parameter, like a faulty compiler."""

    class Wrong(check.UpdateStep):
        def __init__(self, model, *arguments, **options):
            super().__init__(model, *arguments, **options)
            for name, factor in factors.items():
                model.get_parameter(name).register_hook(partial(torch.mul, other=factor))

    monkeypatch.setattr(check, "UpdateStep", Wrong)


def failing(given: Side, precision: str = "fp32", draws: int = 16) -> dict[str, set[str]]:
    """Return the measures that fail, by parameter."""
    spec = checked(precision=precision, gradient_draws=draws)
    actual: dict[str, set[str]] = {}
    for row in check.gradient_rows(given, "10M", spec, CPU):
        if not row["error"] <= row["allowed"]:
            actual.setdefault(row["parameter"], set()).add(row["measure"])
    return actual


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_gradient_of_every_variant_passes(variant: str) -> None:
    assert failing(side(variant), draws=4) == {}


@pytest.mark.parametrize("precision, micro", [("fp32", 2), ("bf16", 32)])
def test_scale_errors_of_two_percent_are_found_and_named(monkeypatch, precision, micro) -> None:
    """BF16 uses so many tokens that the noise of lambda's gradient is well below 1%."""
    factors = {MATRIX: 1.02, NORM: 0.98, THETA: 1.02, LAM: 0.98}
    planted(monkeypatch, factors)
    actual = failing(side("full", micro), precision)
    assert set(actual) == set(factors) and all("scale" in measures for measures in actual.values())


@pytest.mark.parametrize("factor", [0.0, math.nan])
def test_lost_gradients_are_written_and_named(monkeypatch, tmp_path, capsys, factor) -> None:
    lam = "blocks.3.mixer.lam"
    planted(monkeypatch, {lam: factor})
    path, spec = tmp_path / "gradients.parquet", checked(side("hybrid"), gradient_draws=2)
    path.write_text("of an earlier check")
    message = refusal(lambda: check.gradients(spec, path), RunError)
    assert f"hybrid {lam} is wrong" in message
    assert f"hybrid {lam}: RMS error" in capsys.readouterr().err
    assert not path.exists()  # so that Snakemake checks again
    rows = records.read(tmp_path / "wrong-gradients.parquet", "gradients")
    assert set(rows.loc[~(rows["error"] <= rows["allowed"]), "parameter"]) == {lam}
    assert set(map(tuple, rows["backends"])) == {("full: tiled", "linear: chunked")}


@pytest.mark.parametrize(
    "error, truth", [(math.nan, 1.0), (math.inf, 1.0), (0.02, 1.0), (0.0, 0.0)]
)
def test_what_proves_nothing_does_not_pass(error: float, truth: float) -> None:
    """No noise of the yardstick allows more than 1%. A gradient of zero proves nothing."""
    ones = torch.ones(16, 16, dtype=DOUBLE)
    draws = [{"w": tuple((truth + off) * ones for off in (error, 0.3, 0.0))}] * 16
    *_, scale = check.deviations(draws, torch.bfloat16, scales=True)
    assert not scale["error"] <= scale["allowed"]


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["full", "hybrid"])
def test_compiled_and_replayed_gradients_pass_on_a_gpu(variant: str) -> None:
    torch.compiler.reset()
    kernels = dict.fromkeys(("mha", "full", "linear"), "flash")
    given = side(variant, micro=32, **kernels)
    spec = checked(precision="bf16", compile=True, device="cuda", backend="flash", linear="flash")
    rows = list(check.gradient_rows(given, "10M", spec, torch.device("cuda")))
    assert all(row["error"] <= row["allowed"] for row in rows)
    assert {row["update"] for row in rows} == {"launched", "replayed"}
