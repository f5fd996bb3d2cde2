"""The metrics of Appendix B.4, written in NumPy as in the paper, on flows and spectra."""

import math

import numpy as np
import pytest
import torch

from relation.flow import metrics

FLOOR = 1e-20
SINKS = (1, 2, 4, 8, 16, 32)


def random_flow(*shape: int, seed: int = 0) -> np.ndarray:
    """Causal rows that sum to 1, (..., T, T). Some rows have all mass on the diagonal."""
    generator = np.random.default_rng(seed)
    weight = np.tril(generator.exponential(size=shape) ** 3)
    alone = generator.random(shape[:-1]) < 0.1
    weight[alone] = np.eye(shape[-1])[np.nonzero(alone)[-1]]
    return weight / weight.sum(-1, keepdims=True)


FLOWS = {
    "one token": np.ones((1, 1)),
    "identity": np.eye(12),
    "uniform": np.tri(33) / np.arange(1, 34)[:, None],
    "rank one": np.eye(20)[[0] * 20],  # all on the first token
    "random": random_flow(37, 37),
    "short random": random_flow(3, 3, seed=1),
}
# 9 of 10 are 90%, 19 of 20 are 95%. Without any flow, the clamps decide.
SPECTRA = ([3, 1], [3, 3, 1, 1], [1] * 512, [5], [0, 0], [0] * 4, [1e-12] * 4, [2, 1e-12])
MATRICES = FLOWS | {f"diagonal {n}": np.diag(np.double(each)) for n, each in enumerate(SPECTRA)}


def defined_flow_metrics(flow: np.ndarray) -> dict[str, float]:
    """Self, Exchange, distance and sink metrics of one (T, T) flow."""
    T, (i, j) = len(flow), np.indices(flow.shape)
    past = np.tril(flow, -1)
    g = past.sum(1, keepdims=True)
    # A row without historical mass counts as zero.
    share = np.divide(past, g, out=np.zeros_like(past), where=g > 0)  # pi^E
    parts = {"eighth": 8, "quarter": 4, "half": 2}
    beyond = {f"beyond_{name}": share[i - j > T // p].sum() / T for name, p in parts.items()}
    sinks = {f"sink_{k}": share[:, :k].sum() / T for k in SINKS}
    return {"self_flow": np.trace(flow) / T, "exchange_flow": past.sum() / T, **beyond, **sinks}


def defined_rank_metrics(sigma: np.ndarray) -> dict[str, float]:
    """The spectrum metrics of descending singular values in float64, with the paper's clamps."""
    p = np.maximum(sigma / max(sigma.sum(), FLOOR), FLOOR)
    squares = sigma**2
    E = max(squares.sum(), FLOOR)
    return {
        "effective_rank": np.exp(-(p * np.log(p)).sum()),
        "stable_rank": E / max(squares[0], FLOOR),
        "top_singular_energy": squares[0] / E,
        "dims_90": defined_dims(squares, E, 0.90),
        "dims_95": defined_dims(squares, E, 0.95),
    }


def defined_dims(squares: np.ndarray, E: float, eta: float) -> int:
    """min {r : the first r squares hold eta of E}; all r if rounding keeps the sum below."""
    held = (r for r in range(1, len(squares) + 1) if math.fsum(squares[:r]) / E >= eta)
    return next(held, len(squares))


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
@pytest.mark.parametrize("dtype, slack", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_flow_metrics_are_those_of_the_definition(flow, dtype, slack) -> None:
    actual = metrics.read_flow(torch.from_numpy(flow).to(dtype)[None, None]).values
    expected = defined_flow_metrics(flow)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].item() == pytest.approx(value, rel=slack, abs=slack), name


@pytest.mark.parametrize("flow", MATRICES.values(), ids=MATRICES.keys())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_spectrum_metrics_come_from_fp32_singular_values(flow, dtype) -> None:
    given = torch.from_numpy(flow).to(dtype)
    sigma = metrics.singular_values(given)
    exact = np.linalg.svd(given.double().numpy(), compute_uv=False)
    assert sigma.dtype == torch.float32
    assert np.abs(sigma.numpy() - exact).max() <= 2**-23 * exact[0]
    actual = metrics.read_spectrum(given[None, None]).values
    expected = defined_rank_metrics(sigma.double().numpy())
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].item() == pytest.approx(value, rel=1e-12), name


@pytest.mark.gpu
def test_a_gpu_measures_what_a_cpu_does() -> None:
    flow = torch.from_numpy(random_flow(2, 3, 96, 96)).float()
    for read in (metrics.read_flow, metrics.read_spectrum):
        here, there = read(flow), read(flow.cuda())
        for name, value in here.values.items():
            slack = 1 if name.startswith("dims") else 0
            assert torch.allclose(there.values[name], value, rtol=2e-5, atol=1e-6 + slack), name
