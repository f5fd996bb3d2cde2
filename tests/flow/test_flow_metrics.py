"""The metrics of Appendix B.4 against their definitions, closed forms and crafted flows."""

import numpy as np
import pytest
import torch
from flows import FLOOR, FLOWS, defined_flow_metrics, defined_rank_metrics, random_flow

from relation.flow import metrics


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
@pytest.mark.parametrize("dtype, slack", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_flow_metrics_are_those_of_the_definition(flow, dtype, slack) -> None:
    found = metrics.read_flow(torch.from_numpy(flow).to(dtype)[None, None]).values
    expected = defined_flow_metrics(flow)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value, rel=slack, abs=slack), name


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_spectrum_metrics_come_from_fp32_singular_values(flow, dtype) -> None:
    given = torch.from_numpy(flow).to(dtype)
    sigma = metrics.singular_values(given)
    exact = np.linalg.svd(flow, compute_uv=False)
    assert sigma.dtype == torch.float32
    assert np.abs(sigma.numpy() - exact).max() <= 4 * len(flow) * 2**-24 * exact[0]
    found = metrics.read_spectrum(given[None, None]).values
    expected = defined_rank_metrics(sigma)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
def test_the_gpus_singular_values_are_within_fp32_rounding_of_the_largest(flow) -> None:
    """What a GPU takes in place of the SVD, here on the CPU."""
    sigma = metrics.gram_singular_values(torch.from_numpy(flow).float()[None])
    exact = np.linalg.svd(flow.astype(np.float32).astype(np.float64), compute_uv=False)
    assert np.abs(sigma[0].numpy() - exact).max() <= 2**-23 * exact[0]


@pytest.mark.parametrize(
    ("sigma", "fraction", "dims"),
    [
        ([3, 1], 0.90, 1),  # 9 of 10: the fraction is reached, not passed
        ([3, 3, 1, 1], 0.90, 2),
        ([3, 3, 1, 1], 0.95, 3),  # 19 of 20
        ([1] * 512, 0.90, 461),
        ([1] * 512, 0.95, 487),
        ([5], 0.95, 1),
        ([0, 0], 0.90, 2),
    ],
)
def test_energy_dimensions_of_crafted_spectra(sigma, fraction, dims) -> None:
    assert metrics.energy_dims(torch.tensor(sigma, dtype=torch.float32), fraction) == dims


def test_clamps_decide_where_nothing_flows() -> None:
    nothing, faint = torch.zeros(4), torch.full((4,), 1e-12, dtype=torch.float64)
    assert metrics.effective_rank(nothing).item() == pytest.approx(1)
    assert metrics.stable_rank(nothing) == metrics.stable_rank(faint) == 1
    assert metrics.top_energy(nothing) == 0
    assert metrics.top_energy(faint).item() == pytest.approx(1e-24 / FLOOR)
    assert metrics.effective_rank(faint).item() == pytest.approx(4)


@pytest.mark.gpu
def test_a_gpu_measures_what_a_cpu_does() -> None:
    flow = torch.from_numpy(random_flow(2, 3, 96, 96)).float()
    for read in (metrics.read_flow, metrics.read_spectrum):
        here, there = read(flow), read(flow.cuda())
        for name, value in here.values.items():
            slack = 1 if name.startswith("dims") else 0
            assert torch.allclose(there.values[name], value, rtol=2e-5, atol=1e-6 + slack), name
