"""The two forms of Linear Relation against the paper's sums and against each other."""

import pytest
import torch
from equations import assert_close, differentiate, draw, draw_linear, expanded_sum

from relation import ops
from relation.ops.linear import CHUNK

LINEAR = (ops.linear_relation, ops.chunked_linear_relation)
TAU = 0.7


@pytest.mark.parametrize("T", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
@pytest.mark.parametrize(("H", "D"), [(1, 6), (2, 6), (1, 48)])
def test_recurrent_chunked_and_expanded_sum_agree(T, H, D):
    inputs, C0 = draw_linear(2, H, T, D), draw(2, H, D, D, count=1)[0]
    for state in (None, C0):
        start = torch.zeros_like(C0) if state is None else state
        expected = expanded_sum(*inputs, TAU, start)
        for operator in LINEAR:
            for actual, truth in zip(operator(*inputs, TAU, state), expected, strict=True):
                assert_close(actual, truth, T + D)


def with_state(operator):
    """The operator as a function of (p1, p2, info, g, C_0)."""
    return lambda *x: operator(*x[:4], TAU, x[4])


@pytest.mark.parametrize("T", [1, 7])
def test_gradients_of_the_recurrence_are_derivatives(T):
    p1, p2, info, g = draw(1, 2, T, 2, count=4)
    C0 = draw(1, 2, 2, 2, count=1)[0]
    inputs = [x.requires_grad_() for x in (p1, p2, info, -g.abs(), C0)]
    assert torch.autograd.gradcheck(with_state(ops.linear_relation), inputs)


@pytest.mark.parametrize("operator", LINEAR)
@pytest.mark.parametrize(
    ("g", "weak"),
    [*((g, g) for g in (0.0, -1e-3, -50.0, -1e4, -3e38, -torch.inf)),
     *((g, -0.03) for g in (-50.0, -1e3, -1e6))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_retention_costs_no_accuracy(operator, g, weak, dtype):
    """Y, C_T and every gradient. A channel in turn retains e^g for one token, e^weak for two."""
    T, D = 3 * CHUNK + 1, 6
    often = (torch.arange(T)[:, None] + torch.arange(D)) % 3 > 0
    retention = torch.where(often, weak, g).expand(1, 2, T, D)
    terms = (T if g > -1 else 3 if weak > g else 1) + D
    *states, dy = draw(1, 2, T, D, count=4).to(dtype)
    C0, dC = draw(1, 2, D, D, count=2).to(dtype)
    inputs = [*states, retention.to(dtype), C0]
    results = differentiate(with_state(operator), inputs, dy, dC)
    truth = differentiate(
        with_state(ops.linear_relation), (x.double() for x in inputs), dy.double(), dC.double()
    )
    for actual, expected in zip(results, truth, strict=True):
        assert actual.isfinite().all()
        assert_close(actual, expected, terms)


@pytest.mark.parametrize("operator", LINEAR)
def test_a_zero_coordinate_neither_reads_nor_writes(operator):
    p1, p2, info, g = draw_linear(1, 1, 5, 6)
    p1[:, :, 2], p2[:, :, 3] = 0, 0
    dy = torch.ones_like(info)
    results = differentiate(lambda *x: operator(*x)[0], (p1, p2, info, g), dy)
    assert torch.equal(results[0][:, :, 2], info[:, :, 2])
    assert all(x.isfinite().all() for x in results)
    # Token 3 writes nothing, so only its own output has its information.
    assert torch.equal(results[3][:, :, 3], dy[:, :, 3])


@pytest.mark.parametrize("operator", LINEAR)
def test_retention_and_state_of_16_bits_are_widened_first(operator):
    *states, g = (x.float() for x in draw_linear(2, 2, 37, 6))
    g, C0 = g.bfloat16(), draw(2, 2, 6, 6, count=1)[0].bfloat16()
    results = operator(*states, g, TAU, C0)
    for actual, expected in zip(
        results, operator(*states, g.float(), TAU, C0.float()), strict=True
    ):
        assert actual.dtype == torch.float32 and torch.equal(actual, expected)
