"""The metrics of a flow against Appendix B.4, on matrices with known answers."""

import math

import numpy as np
import pytest
import torch
from flows import (
    FLOOR,
    FLOWS,
    SINKS,
    defined_conditional,
    defined_flow_metrics,
    defined_rank_metrics,
    first_token_flow,
    random_flow,
    uniform_flow,
    uniform_spectrum,
)

from relation.errors import InputError
from relation.flow import layers, metrics
from relation.flow.codes import decode, encode
from relation.flow.maps import pooled

SPECTRA = {
    "effective_rank": metrics.spectrum_effective_rank,
    "stable_rank": metrics.spectrum_stable_rank,
    "top_singular_energy": metrics.spectrum_top_energy,
    "dims_90": lambda sigma: metrics.spectrum_energy_dims(sigma, 0.90),
    "dims_95": lambda sigma: metrics.spectrum_energy_dims(sigma, 0.95),
}


def test_the_public_functions_have_the_papers_names():
    names = "effective_rank stable_rank energy_dims top_singular_energy sink_mass distance_mass"
    assert all(callable(getattr(metrics, name)) for name in names.split())


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_flow_metrics_are_the_papers_definitions(flow, dtype):
    given = torch.from_numpy(flow).to(dtype)
    found = layers.read_flow(given[None, None]).values
    expected = defined_flow_metrics(flow)
    assert found.keys() == expected.keys()
    # Sums of at most T terms that add to 1, T times.
    atol = 8 * len(flow) * torch.finfo(dtype).eps
    for name, value in expected.items():
        assert found[name].shape == (1, 1)
        assert found[name].item() == pytest.approx(value, abs=atol), name
    for k in SINKS:
        assert metrics.sink_mass(given, k).item() == pytest.approx(expected[f"sink_{k}"], abs=atol)


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
def test_spectrum_metrics_are_the_papers_definitions_in_float64(flow):
    sigma = np.linalg.svd(flow, compute_uv=False)
    expected = defined_rank_metrics(sigma)
    for name, metric in SPECTRA.items():
        found = metric(torch.from_numpy(sigma)).item()
        assert found == pytest.approx(expected[name], rel=1e-12), name


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_spectrum_metrics_of_a_flow_come_from_its_fp32_singular_values(flow, dtype):
    given = torch.from_numpy(flow).to(dtype)
    sigma = metrics.singular_values(given)
    exact = np.linalg.svd(flow, compute_uv=False)
    assert sigma.dtype == torch.float32
    assert np.abs(sigma.numpy() - exact).max() <= 4 * len(flow) * 2**-24 * exact[0]
    found = layers.read_spectrum(given[None, None]).values
    assert found.keys() == SPECTRA.keys()
    for name, value in defined_rank_metrics(sigma).items():
        assert found[name].item() == pytest.approx(value, rel=1e-12), name
    public = {
        "effective_rank": metrics.effective_rank(given),
        "stable_rank": metrics.stable_rank(given),
        "top_singular_energy": metrics.top_singular_energy(given),
        "dims_90": metrics.energy_dims(given, 0.90),
        "dims_95": metrics.energy_dims(given, 0.95),
    }
    assert all(public[name].item() == found[name].item() for name in public)


def test_identity_and_rank_one_have_closed_forms():
    T = 40
    identity, first = torch.eye(T).double(), torch.from_numpy(first_token_flow(T))
    assert metrics.self_flow(identity) == 1 and metrics.exchange_flow(identity) == 0
    assert metrics.distance_mass(identity, 0) == 0 and metrics.sink_mass(identity, T) == 0
    assert metrics.effective_rank(identity).item() == pytest.approx(T, rel=1e-6)
    assert metrics.stable_rank(identity).item() == pytest.approx(T, rel=1e-6)
    assert metrics.top_singular_energy(identity).item() == pytest.approx(1 / T, rel=1e-6)
    assert metrics.energy_dims(identity, 0.90) == 36 and metrics.energy_dims(identity, 0.95) == 38

    # The first row has no history, so that even full sinks leave 1 / T.
    assert metrics.sink_mass(first, 1).item() == pytest.approx((T - 1) / T, rel=1e-14)
    assert metrics.distance_mass(first, 7).item() == pytest.approx((T - 8) / T, rel=1e-14)
    assert metrics.effective_rank(first).item() == pytest.approx(1, abs=1e-3)
    assert metrics.stable_rank(first).item() == pytest.approx(1)
    assert metrics.energy_dims(first, 0.95) == 1
    assert metrics.top_singular_energy(first).item() == pytest.approx(1)


def test_the_uniform_causal_flow_has_closed_forms():
    T = 40
    uniform, rows = torch.from_numpy(uniform_flow(T)), range(1, T)
    harmonic = math.fsum(1 / (i + 1) for i in range(T))
    assert metrics.self_flow(uniform).item() == pytest.approx(harmonic / T, rel=1e-14)
    sink = math.fsum(min(5 / i, 1) for i in rows) / T
    assert metrics.sink_mass(uniform, 5).item() == pytest.approx(sink, rel=1e-14)
    beyond = math.fsum(max(i - 5, 0) / i for i in rows) / T
    assert metrics.distance_mass(uniform, 5).item() == pytest.approx(beyond, rel=1e-14)

    # Row i holds i entries of 1/i: the energy is the harmonic number.
    sigma = uniform_spectrum(T)
    assert metrics.stable_rank(uniform).item() == pytest.approx(harmonic / sigma[0] ** 2, rel=1e-6)
    top = metrics.top_singular_energy(uniform).item()
    assert top == pytest.approx(sigma[0] ** 2 / harmonic, rel=1e-6)
    expected = defined_rank_metrics(sigma)
    assert metrics.effective_rank(uniform).item() == pytest.approx(
        expected["effective_rank"], rel=1e-5
    )
    for eta in (0.90, 0.95):
        assert metrics.energy_dims(uniform, eta) == expected[f"dims_{round(100 * eta)}"]


@pytest.mark.parametrize("name", ["one token", "uniform", "rank one", "random"])
def test_the_profiles_sum_to_the_masses(name):
    flow = FLOWS[name]
    given = torch.from_numpy(np.stack((flow, np.eye(len(flow)))))[:, None]
    by_distance, by_source = metrics.history_profiles(given)
    assert by_distance.shape == by_source.shape == (2, 1, len(flow))
    for limit in range(len(flow)):
        mass = by_distance[..., limit + 1 :].sum(-1)
        assert torch.allclose(mass, metrics.distance_mass(given, limit), rtol=0, atol=1e-14)
        expected = defined_conditional(flow, lambda i, j, d=limit: i - j > d)
        assert mass[0].item() == pytest.approx(expected, abs=1e-14)
        mass = by_source[..., : limit + 1].sum(-1)
        assert torch.allclose(mass, metrics.sink_mass(given, limit + 1), rtol=0, atol=1e-14)
    assert not by_distance[1].any() and not by_source[1].any()


def test_metrics_treat_every_head_and_sequence_alone():
    flows = torch.from_numpy(random_flow(3, 2, 19, 19))
    for read in (layers.read_flow, layers.read_spectrum):
        together = read(flows)
        for b, h in np.ndindex(3, 2):
            alone = read(flows[b : b + 1, h : h + 1])
            for kind in ("values", "curves"):
                for name, found in getattr(together, kind).items():
                    assert found.shape[:2] == (3, 2)
                    expected = getattr(alone, kind)[name][0, 0]
                    assert torch.allclose(found[b, h], expected, rtol=1e-5, atol=1e-6), name


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
        ([0, 0], 0.90, 2),
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
    faint = torch.full((4,), 1e-12, dtype=torch.float64)
    assert metrics.spectrum_stable_rank(faint) == 1
    assert metrics.spectrum_top_energy(faint).item() == pytest.approx(1e-24 / FLOOR)
    assert metrics.spectrum_effective_rank(faint).item() == pytest.approx(4)


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
def test_the_gpus_singular_values_are_within_fp32_rounding_of_the_largest(flow):
    """What a GPU takes in place of the SVD, here on the CPU."""
    sigma = metrics.gram_singular_values(torch.from_numpy(flow).float()[None])
    exact = np.linalg.svd(flow.astype(np.float32).astype(np.float64), compute_uv=False)
    assert sigma.shape == (1, len(flow)) and sigma.dtype == torch.float32
    assert np.abs(sigma[0].numpy() - exact).max() <= 2**-23 * exact[0]


@pytest.mark.gpu
def test_a_gpu_measures_what_a_cpu_does():
    flow = torch.from_numpy(random_flow(2, 3, 96, 96)).float()
    for read in (layers.read_flow, layers.read_spectrum):
        here, there = read(flow), read(flow.cuda())
        for name, value in here.values.items():
            slack = 1 if name.startswith("dims") else 0
            found = there.values[name]
            assert torch.allclose(found, value, rtol=2e-5, atol=1e-6 + slack), name


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.effective_rank(torch.ones(3, 4)),
        lambda: metrics.sink_mass(torch.ones(4), 1),
        lambda: metrics.distance_mass(torch.ones(0, 0), 1),
        lambda: metrics.stable_rank(torch.ones(3, 3, dtype=torch.int64)),
        lambda: metrics.distance_mass(torch.eye(3), -1),
        lambda: metrics.sink_mass(torch.eye(3), 0),
        lambda: metrics.energy_dims(torch.eye(3), 0.0),
        lambda: metrics.energy_dims(torch.eye(3), 1.5),
    ],
)
def test_what_is_no_flow_or_out_of_range_is_refused_in_one_line(call):
    with pytest.raises(InputError) as refusal:
        call()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("length, side", [(12, 4), (13, 4), (5, 8), (1, 64), (70, 64)])
def test_a_map_holds_the_flow_between_blocks(length, side):
    flow = random_flow(length, length)
    blocks = min(side, length)
    starts = [a * length // blocks for a in range(blocks + 1)]
    found = pooled(torch.from_numpy(flow), side).numpy()
    assert found.shape == (blocks, blocks)
    for a, b in np.ndindex(blocks, blocks):
        part = flow[starts[a] : starts[a + 1], starts[b] : starts[b + 1]]
        assert found[a, b] == pytest.approx(part.sum(1).mean(), abs=1e-14)
    assert np.allclose(found.sum(1), 1, rtol=0, atol=1e-13)


def test_codes_keep_five_decades_to_within_a_tenth():
    values = np.concatenate((np.geomspace(1.01e-5, 1, 999), [0.0, 1e-9]))
    codes = encode(values)
    assert codes.dtype == np.uint8 and codes[998] == 63 and not codes[999:].any()
    back = decode(codes)
    assert np.abs(back[:999] / values[:999] - 1).max() < 0.1 and not back[999:].any()
    assert np.array_equal(encode(back), codes)
