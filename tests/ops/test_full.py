"""Full Relation and its tiled form against the paper's equations, written out in float64."""

import pytest
import torch
from conftest import refusal
from equations import assert_close, differentiate, draw, flow_rows

from relation import ops

FULL = (ops.full_relation, ops.tiled_relation)
LAM = torch.tensor(0.5, dtype=torch.float64)


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("transport_self", [True, False])
@pytest.mark.parametrize(
    ("T", "D", "H", "lam", "tau"),
    [
        (1, 6, 1, 0.5, 2.0),
        (2, 48, 2, -0.7, 2.0),
        (63, 60, 1, 0.5, 0.3),
        (130, 6, 2, 1.5, 2.0),
        (1000, 80, 1, 0.5, 2.0),
    ],
)
def test_full_and_tiled_are_the_papers_sums(T, D, H, lam, tau, transport_self, silu):
    p1, p2, info = draw(1, H, T, D)
    flow, scalar = flow_rows(p1, p2, lam, tau, silu), torch.tensor(lam, dtype=torch.float64)
    assert_close(ops.full_flow(p1, p2, scalar, tau, silu=silu), flow, T + D)
    flow.diagonal(dim1=-2, dim2=-1).mul_(transport_self)
    for operator in FULL:
        y = operator(p1, p2, info, scalar, tau, transport_self=transport_self, silu=silu)
        assert_close(y, flow @ info, T + D)


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("transport_self", [True, False])
@pytest.mark.parametrize("operator", FULL)
@pytest.mark.parametrize("T", [1, 5])
def test_gradients_of_full_relation_are_derivatives(monkeypatch, operator, T, transport_self, silu):
    monkeypatch.setattr("relation.ops.tiled.TILE", 2)
    inputs = [x.requires_grad_() for x in (*draw(1, 2, T, 2).unbind(), LAM.clone())]
    assert torch.autograd.gradcheck(
        lambda *x: operator(*x, 0.7, transport_self=transport_self, silu=silu), inputs
    )


@pytest.mark.parametrize("operator", FULL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("largest", [1e-3, 1, 1e3])
def test_scores_of_any_size_cost_no_accuracy(monkeypatch, operator, dtype, largest):
    """The value and every gradient, lambda's as (1,). Results in 16 bits stay finite."""
    monkeypatch.setattr("relation.ops.tiled.TILE", 32)
    p1, p2, info, dy = draw(1, 2, 70, 6, count=4)
    factor = (largest / (p1 @ p2.mT / 6**0.5).abs().max()).sqrt()
    *inputs, dy = (x.to(dtype) for x in (factor * p1, factor * p2, info, dy))
    results = differentiate(operator, (*inputs, LAM.float()[None]), dy)
    assert all(x.isfinite().all() for x in results)
    assert [x.dtype for x in results] == [dtype] * 4 + [torch.float32]
    # Rounding U = 1e3 to 16 bits changes it too much to compare flows.
    if dtype.itemsize >= 4:
        p1, p2, info, dy = (x.double() for x in (*inputs, dy))
        _, *gradients = differentiate(ops.full_relation, (p1, p2, info, LAM[None]), dy)
        truth = (flow_rows(p1, p2, 0.5) @ info, *gradients)
        for actual, expected in zip(results, truth, strict=True):
            assert_close(actual, expected, 70 + 6 * max(largest, 1))


@pytest.mark.parametrize("lam", [-20.0, 20.0])
def test_tiles_keep_the_digits_of_a_small_gradient_of_lambda(lam):
    """Self weighs 1e-6 at token 2 and less after it, or the history does."""
    *states, dy = draw(1, 2, 70, 6, count=4).float()
    inputs = (*states, torch.tensor(lam))
    dlam = differentiate(ops.tiled_relation, inputs, dy)[-1]
    truth = differentiate(ops.full_relation, (x.double() for x in inputs), dy.double())[-1]
    assert_close(dlam, truth, 70 + 6)


def test_tiles_have_no_second_derivatives():
    p1, p2, info = draw(1, 2, 5, 6)
    p1.requires_grad_()
    y = ops.tiled_relation(p1, p2, info, LAM).sum()
    again = refusal(lambda: torch.autograd.grad(y, p1, create_graph=True))
    assert "no second derivatives" in again
