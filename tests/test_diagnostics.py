"""The structural diagnostics against the definitions of Appendix B.4, written here in NumPy."""

import hashlib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from relation.config import load_config, resolve
from relation.diagnostics import measure, metrics
from relation.errors import InputError
from relation.model import Decoder, ModelConfig
from relation.parquet import read_origin, read_parquet
from relation.schemas import FLOW
from relation.spec import DiagnosticsSpec
from relation.training.checkpoint import save_model

CONFIG = Path(__file__).resolve().parents[1] / "config.yaml"
FLOOR = 1e-20
SINKS = (1, 2, 4, 8, 16, 32)


def random_flow(*shape: int, seed: int = 0) -> np.ndarray:
    """Causal rows that sum to 1, (..., T, T); some rows keep everything on the diagonal."""
    generator = np.random.default_rng(seed)
    weight = np.tril(generator.exponential(size=shape) ** 3)
    alone = generator.random(shape[:-1]) < 0.1
    weight[alone] = np.eye(shape[-1])[np.nonzero(alone)[-1]]
    return weight / weight.sum(-1, keepdims=True)


def uniform_flow(length: int) -> np.ndarray:
    return np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]


def first_token_flow(length: int) -> np.ndarray:
    """All mass on the first token: rank one."""
    return np.eye(length)[[0] * length]


FLOWS = {
    "one token": np.ones((1, 1)),
    "identity": np.eye(12),
    "uniform": uniform_flow(33),
    "rank one": first_token_flow(20),
    "random": random_flow(37, 37),
    "short random": random_flow(3, 3, seed=1),
}


def defined_flow_metrics(flow: np.ndarray, length: int | None = None) -> dict[str, float]:
    """Self, Exchange, distance and sink metrics of one (T, T) flow, row by row."""
    T = len(flow)
    sums: dict[str, float] = defaultdict(float)
    for i in range(T):
        sums["self_flow"] += flow[i, i]
        g = sum(flow[i, j] for j in range(i))
        sums["exchange_flow"] += g
        for j in range(i):
            # A row without historical mass contributes zero and is counted.
            pi = flow[i, j] / g if g > 0 else 0.0
            for name, part in (("eighth", 8), ("quarter", 4), ("half", 2)):
                sums[f"beyond_{name}"] += pi * (i - j > T // part)
            for k in SINKS:
                sums[f"sink_{k}"] += pi * (j < k)
    names = ["self_flow", "exchange_flow", "beyond_eighth", "beyond_quarter", "beyond_half"]
    return {name: sums[name] / T for name in (*names, *(f"sink_{k}" for k in SINKS))}


def defined_rank_metrics(flow: np.ndarray) -> dict[str, float]:
    """The spectrum metrics of one (T, T) flow, clamps as printed, sums in float64."""
    sigma = np.linalg.svd(flow, compute_uv=False).tolist()
    total = max(sum(sigma), FLOOR)
    p = [max(s / total, FLOOR) for s in sigma]
    squares = [s * s for s in sigma]
    E = max(sum(squares), FLOOR)
    return {
        "effective_rank": float(np.exp(-sum(q * np.log(q) for q in p))),
        "stable_rank": E / max(squares[0], FLOOR),
        "top_singular_energy": squares[0] / E,
    }


def assert_fewest(dims: int, flow: np.ndarray, fraction: float) -> None:
    """`dims` directions hold the fraction, one fewer do not, up to FP32 rounding of the sums."""
    energy = np.linalg.svd(flow, compute_uv=False) ** 2
    held = np.concatenate(([0.0], energy.cumsum() / energy.sum()))
    slack = len(flow) * 2**-22
    assert held[dims] >= fraction - slack
    assert held[dims - 1] < fraction + slack


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_metrics_are_the_papers_definitions(flow, dtype):
    given = torch.from_numpy(flow).to(dtype)
    found = measure.flow_metrics(given[None, None])
    expected = defined_flow_metrics(flow)
    assert found.keys() == expected.keys()
    # Sums of at most T terms that add to 1, T times.
    atol = 8 * len(flow) * torch.finfo(dtype).eps
    for name, value in expected.items():
        assert found[name].shape == (1, 1)
        assert found[name].item() == pytest.approx(value, abs=atol), name

    found = measure.rank_metrics(given[None, None])
    for name, value in defined_rank_metrics(flow).items():
        # Singular values are FP32, each to within eps T times the largest.
        assert found.pop(name).item() == pytest.approx(value, rel=16 * len(flow) ** 2 * 2**-23)
    for fraction in (0.90, 0.95):
        assert_fewest(found.pop(f"dims_{round(100 * fraction)}").item(), flow, fraction)
    assert not found


def test_metrics_treat_every_head_and_sequence_alone():
    flows = random_flow(3, 2, 19, 19)
    for measured in (measure.flow_metrics, measure.rank_metrics):
        together = measured(torch.from_numpy(flows))
        for b, h in np.ndindex(3, 2):
            alone = measured(torch.from_numpy(flows[b : b + 1, h : h + 1]))
            for name, values in together.items():
                assert values.shape == (3, 2)
                assert values[b, h].item() == pytest.approx(alone[name].item(), rel=1e-5)


def test_closed_forms():
    T = 40
    identity, first, uniform = (
        torch.from_numpy(f) for f in (np.eye(T), first_token_flow(T), uniform_flow(T))
    )
    assert metrics.self_flow(identity) == 1 and metrics.exchange_flow(identity) == 0
    assert metrics.distance_mass(identity, 0) == 0 and metrics.sink_mass(identity, T) == 0
    assert metrics.effective_rank(identity).item() == pytest.approx(T)
    assert metrics.stable_rank(identity).item() == pytest.approx(T)
    assert metrics.top_singular_energy(identity).item() == pytest.approx(1 / T)
    assert metrics.energy_dims(identity, 0.90) == 36 and metrics.energy_dims(identity, 0.95) == 38

    # The first row has no history, so that even full sinks leave 1 / T.
    assert metrics.sink_mass(first, 1).item() == pytest.approx((T - 1) / T)
    assert metrics.distance_mass(first, 7).item() == pytest.approx((T - 8) / T)
    assert metrics.effective_rank(first).item() == pytest.approx(1, abs=1e-3)
    assert metrics.stable_rank(first).item() == pytest.approx(1)
    assert metrics.energy_dims(first, 0.95) == 1
    assert metrics.top_singular_energy(first).item() == pytest.approx(1)

    rows = range(1, T)
    assert metrics.self_flow(uniform).item() == pytest.approx(
        sum(1 / (i + 1) for i in range(T)) / T
    )
    assert metrics.sink_mass(uniform, 5).item() == pytest.approx(
        sum(min(5 / i, 1) for i in rows) / T
    )
    beyond = sum(max(i - 5, 0) / i for i in rows) / T
    assert metrics.distance_mass(uniform, 5).item() == pytest.approx(beyond)


def test_conditional_history_has_rows_of_one_or_nothing():
    flow = random_flow(4, 50, 50)
    history = metrics.conditional_history(torch.from_numpy(flow))
    sums, alone = history.sum(-1), torch.from_numpy(np.tril(flow, -1).sum(-1) == 0)
    assert alone[:, 0].all() and alone[:, 1:].any()
    assert not history[alone].any() and not history.triu().any()
    assert sums[~alone].sub(1).abs().max() < 50 * 2**-52
    tiny = torch.tensor([[1.0, 0.0], [1e-30, 1.0]])
    assert metrics.conditional_history(tiny)[1].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("sigma", "fraction", "dims"),
    [
        ([3, 1], 0.90, 1),  # 9 of 10: the fraction is reached, not passed
        ([3, 3, 1, 1], 0.90, 2),
        ([3, 3, 1, 1], 0.95, 3),  # 19 of 20
        ([1, 1e-4], 0.95, 1),
        ([1] * 512, 0.90, 461),
        ([1] * 512, 0.95, 487),
        ([5], 0.95, 1),
        ([2, 1, 1, 1, 1], 0.90, 5),
    ],
)
def test_energy_dimensions_of_crafted_spectra(sigma, fraction, dims):
    spectrum = torch.tensor(sigma, dtype=torch.float32)
    assert metrics.spectrum_energy_dims(spectrum, fraction) == dims
    # A diagonal matrix has its entries as singular values, in whatever order.
    assert metrics.energy_dims(spectrum.flip(0).diag(), fraction) == dims


def test_clamps_decide_where_nothing_flows():
    nothing = torch.zeros(4, 4)
    assert metrics.effective_rank(nothing).item() == pytest.approx(1)
    assert metrics.stable_rank(nothing) == 1
    assert metrics.top_singular_energy(nothing) == 0
    faint = torch.full((4,), 1e-12)
    assert metrics.spectrum_stable_rank(faint) == 1
    assert metrics.spectrum_top_energy(faint).item() == pytest.approx(1e-24 / FLOOR)
    assert metrics.spectrum_effective_rank(faint).item() == pytest.approx(4)


def diagnosed(folder: Path, variant: str, tokens: np.ndarray, **spec) -> tuple[Path, Decoder]:
    """Diagnose a tiny model with strong weights: two layers, two heads, a context of 24."""
    model = Decoder(ModelConfig.for_variant(variant, 2, 16, 2, 16, 31, init_std=0.5))
    model.initialise(42)
    save_model(model, folder / "model.safetensors", {})
    tokens.astype("<u2").tofile(folder / "validation.bin")
    output = folder / f"{variant}.parquet"
    campaign = resolve(load_config(CONFIG), campaign="tiny")
    run = replace(campaign.paired_runs[0], scale="10M", variant=variant, seed=42, context=24)
    spec = DiagnosticsSpec(run_hash=run.config_hash, device="cpu", **spec)
    measure.diagnose(spec, run, folder / "model.safetensors", folder, output)
    return output, model


TOKENS = np.random.default_rng(5).integers(31, size=3 * 24 + 1)


@pytest.mark.parametrize("variant", ["mha", "full"])
def test_rows_of_a_checkpoint(tmp_path, variant):
    path, model = diagnosed(tmp_path, variant, TOKENS, sequences=3, flow_length=24, rank_length=12)
    rows = read_parquet(path, FLOW).to_pylist()
    assert {(r["scale"], r["variant"], r["seed"]) for r in rows} == {("10M", variant, 42)}
    found = {
        (r["length"], r["metric"], r["layer"], r["head"], r["sequence"]): r["value"] for r in rows
    }
    assert len(found) == len(rows) == (11 + 5) * 2 * 2 * 3

    windows = torch.from_numpy(TOKENS[:72].reshape(3, 24))
    aggregate: dict[tuple, list[float]] = defaultdict(list)
    with torch.no_grad():
        for length, defined in ((24, defined_flow_metrics), (12, defined_rank_metrics)):
            for layer, flows in enumerate(model.flows(windows[:, :length])):
                for sequence, head in np.ndindex(3, 2):
                    flow = flows[sequence, head].double().numpy()
                    for metric, value in defined(flow).items():
                        row = found[length, metric, layer, head, sequence]
                        assert row == pytest.approx(value, rel=1e-3, abs=1e-6), metric
                        aggregate[metric, layer].append(row)
                    if length == 12:
                        for eta in (90, 95):
                            dims = found[length, f"dims_{eta}", layer, head, sequence]
                            assert_fewest(int(dims), flow, eta / 100)
    for layer in range(2):
        own, exchange = (np.mean(aggregate[m, layer]) for m in ("self_flow", "exchange_flow"))
        assert own + exchange == pytest.approx(1)


def test_checkpoints_of_one_corpus_are_read_on_the_same_sequences(tmp_path):
    lengths = {"sequences": 2, "flow_length": 20, "rank_length": 10}
    hashes = {
        read_origin(diagnosed(tmp_path, v, TOKENS, **lengths)[0])["sequences_hash"]
        for v in ("mha", "full")
    }
    sequences = np.stack((TOKENS[:20], TOKENS[24:44])).astype("<i8")
    assert hashes == {hashlib.sha256(sequences.tobytes()).hexdigest()}


def test_linear_checkpoints_have_no_flow_to_diagnose(tmp_path):
    with pytest.raises(InputError, match="Linear"):
        diagnosed(tmp_path, "linear", TOKENS, sequences=1, flow_length=24, rank_length=12)
    assert not (tmp_path / "linear.parquet").exists()


@pytest.mark.parametrize(
    ("length", "whole"), [(4 * 10 + 1, 4), (4 * 10, 3), (4 * 10 + 9, 4), (5, 0)]
)
def test_first_windows_are_whole_or_refused(length, whole):
    tokens = np.arange(length).astype("<u2")
    if whole:
        windows = measure.first_windows(tokens, 10, whole)
        assert windows.dtype == torch.int64
        assert torch.equal(windows, torch.arange(10 * whole).reshape(whole, 10))
    with pytest.raises(InputError) as refusal:
        measure.first_windows(tokens, 10, whole + 1)
    assert "\n" not in str(refusal.value) and str(whole + 1) in str(refusal.value)
