"""The metrics of Appendix B.4 against their definitions, closed forms and crafted flows."""

import math

import numpy as np
import pytest
import torch
from flows import (
    FLOOR,
    FLOWS,
    defined_flow_metrics,
    defined_rank_metrics,
    first_token_flow,
    random_flow,
    uniform_flow,
)

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


def test_identity_rank_one_and_uniform_flows_have_closed_forms() -> None:
    T = 40
    identity, first = torch.eye(T).double(), torch.from_numpy(first_token_flow(T))
    assert metrics.self_flow(identity) == 1 and metrics.exchange_flow(identity) == 0
    by_distance, by_source = metrics.history_profiles(first)
    # The first row has no history, so that even full sinks leave 1 / T.
    assert by_source[0].item() == pytest.approx((T - 1) / T, rel=1e-14)
    assert by_distance[8:].sum().item() == pytest.approx((T - 8) / T, rel=1e-14)
    for flow, rank in ((identity, T), (first, 1)):
        sigma = metrics.singular_values(flow)
        assert metrics.effective_rank(sigma).item() == pytest.approx(rank, abs=1e-3)
        assert metrics.stable_rank(sigma).item() == pytest.approx(rank)
        assert metrics.energy_dims(sigma, 0.90) == math.ceil(0.9 * rank)

    uniform = torch.from_numpy(uniform_flow(T))
    harmonic = math.fsum(1 / (i + 1) for i in range(T))
    assert metrics.self_flow(uniform).item() == pytest.approx(harmonic / T, rel=1e-14)
    by_distance, by_source = metrics.history_profiles(uniform)
    sink, beyond = (math.fsum(f(i) / i for i in range(1, T)) / T for f in (
        lambda i: min(5, i), lambda i: max(i - 5, 0),
    ))  # fmt: skip
    assert by_source[:5].sum().item() == pytest.approx(sink, rel=1e-14)
    assert by_distance[6:].sum().item() == pytest.approx(beyond, rel=1e-14)


def test_every_head_and_sequence_is_read_alone() -> None:
    flows = torch.from_numpy(random_flow(3, 2, 19, 19))
    for read in (metrics.read_flow, metrics.read_spectrum):
        together = read(flows)
        for b, h in np.ndindex(3, 2):
            alone = read(flows[b : b + 1, h : h + 1])
            for kind in ("values", "curves"):
                for name, found in getattr(together, kind).items():
                    expected = getattr(alone, kind)[name][0, 0]
                    assert torch.allclose(found[b, h], expected, rtol=1e-5, atol=1e-6), name


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
