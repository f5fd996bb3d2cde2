"""FlashRelation's Gluon kernels on a CPU (`gluon_on_cpu`), in BF16 against float64."""

import importlib
from collections.abc import Iterator

import pytest
import torch
from exactness import SLACK, assert_close, definition, differentiate, draw, sharing
from interpreter import INTERPRETED

pytest.importorskip("triton")
if INTERPRETED:
    pytest.skip("nothing of Triton runs here", allow_module_level=True)

from gluon_on_cpu import CpuPlan, gluon_on_cpu

from relation.kernels.flash_relation.descriptors import aligned_rows, row_sums_shape
from relation.kernels.flash_relation.launches import GluonLaunch

PACKAGE = "relation.kernels.flash_relation"
MODULES = [f"{PACKAGE}.hopper_{k}" for k in ("tiles", "forward", "p1", "p2_info", "launch")]


@pytest.fixture(scope="module")
def launchers() -> Iterator[object]:
    """`hopper_launch`, whose kernels run here."""
    importlib.import_module("triton.experimental")
    with gluon_on_cpu(MODULES):
        yield importlib.import_module(MODULES[-1])


def run(launchers, inputs, transport_self: bool, stages: int, tau: float):
    """Y and the gradients of p1, p2, info and lam, from NaN-poisoned memory."""
    p1, p2, info, dy, lam = inputs
    B, H, T, _ = p1.shape
    launch, plan = GluonLaunch(stages, 128, programs=2), CpuPlan()
    y, dp1, dp2, dinfo = (torch.full_like(x, torch.nan) for x in (p1, p1, p2, info))
    rows = torch.full((B, H, T), torch.nan)
    gate_logit, log_norm = rows, rows.clone()
    parts, dlam = torch.full((B * H * -(-T // 64),), torch.nan), torch.tensor(torch.nan)
    results = lam, y, gate_logit, log_norm, tau, transport_self
    counter, counters = torch.zeros(1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    launchers.launch_forward(plan, launch, counter, p1, p2, info, *results)
    rows = map(aligned_rows, (gate_logit, log_norm))
    sums = torch.full(row_sums_shape(B * H, T, planes=3), torch.nan)
    results = *rows, sums, parts, dp1, dp2, dinfo, dlam, tau, transport_self
    launchers.launch_backward(plan, launch, launch, counters, p1, p2, info, y, dy, *results)
    return y, dp1, dp2, dinfo, dlam


@pytest.mark.parametrize(
    ("width", "shape", "shared", "transport_self", "stages"),
    [
        (48, (2, 4, 1), 4, True, 2),
        (64, (2, 4, 63), 4, True, 2),
        (80, (2, 4, 64), 4, True, 2),
        (48, (1, 4, 200), 4, True, 2),
        (64, (1, 4, 200), 1, True, 3),
        (80, (1, 4, 200), 2, False, 2),
        (40, (2, 4, 65), 2, True, 2),
        (60, (1, 2, 130), 2, False, 2),
        (72, (1, 2, 130), 2, True, 3),
    ],
)
def test_every_shape(launchers, width, shape, shared, transport_self, stages):
    """Ragged lengths, widths that tiles exceed, shared heads, Exchange alone, three stages."""
    inputs = sharing(draw(sum(shape), (*shape, width), torch.bfloat16), shared)
    options = {"transport_self": transport_self, "tau": 0.7}
    ours = run(launchers, inputs, transport_self, stages, 0.7)
    truth = differentiate(definition, tuple(x.double() for x in inputs), **options)
    yardstick = differentiate(definition, inputs, **options)
    for name, *three in zip(("Y", "dp1", "dp2", "dinfo"), ours, truth, yardstick, strict=False):
        assert_close(name, *three, SLACK[torch.bfloat16])
    # One dlam in BF16 says nothing; but here only the inputs are rounded.
    assert ours[4] == pytest.approx(truth[4].item(), rel=1e-3, abs=1e-3)


def test_a_result_is_not_there_before_it_is_waited_for(launchers, monkeypatch):
    """So a slot that is handed back too soon would show in the tests above."""
    tma = importlib.import_module(f"{PACKAGE}.hopper_forward").tma
    monkeypatch.setattr(tma, "store_wait", lambda under_way: None)
    y, *_ = run(launchers, draw(1, (1, 2, 65, 48), torch.bfloat16), True, 2, 1.0)
    assert y.isnan().all()
