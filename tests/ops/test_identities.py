"""The identities that the paper derives, on inputs that hypothesis searches for a counter-example.

Coordinates are multiples of 1/8 up to 8, so that scores reach hundreds and whole rows can be zero.
"""

import numpy as np
import pytest
import torch
from equations import TAU, assert_close
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from relation import ops

FULL = (ops.full_relation, ops.tiled_relation)
LINEAR = (ops.linear_relation, ops.chunked_linear_relation)
LONGEST = 9
LAMBDAS = st.integers(-24, 24).map(lambda n: torch.tensor(n / 8, dtype=torch.float64))

# The same examples in every run, however slow the machine; nothing is kept between runs.
search = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
each_full = pytest.mark.parametrize("operator", FULL)
each_linear = pytest.mark.parametrize("operator", LINEAR)


@st.composite
def states(draw, count: int, square: bool = False, shortest: int = 1) -> Tensor:
    """`count` float64 tensors (B, H, T, D); D = T where `square`, else 1 to 6."""
    batch, heads = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    length = draw(st.integers(shortest, LONGEST))
    width = length if square else draw(st.integers(1, 6))
    eighths = arrays(np.int64, (count, batch, heads, length, width), elements=st.integers(-64, 64))
    return torch.from_numpy(draw(eighths)).double() / 8


@st.composite
def retained_states(draw) -> tuple[Tensor, ...]:
    """p1, p2, info and g of Linear Relation; g is 0, -50 or between."""
    p1, p2, info, g = draw(states(4))
    g = -g.abs()
    return p1, p2, info, torch.where(g < -6, -50.0, g)


def two_levels(p1: Tensor, p2: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """F_ii and g (B, H, T) and pi (B, H, T, T) by Section 4.2, from E and S alone."""
    T, D = p1.shape[-2:]
    U = p1 @ p2.mT / D**0.5
    S = torch.sigmoid(U.diagonal(dim1=-2, dim2=-1) / TAU)
    E = (U * torch.sigmoid(U)).masked_fill(~torch.ones(T, T).tril(-1).bool(), -torch.inf)
    A = E.logsumexp(-1) - lam * torch.arange(1, T + 1, dtype=torch.float64).log()
    return torch.sigmoid(S - A), torch.sigmoid(A - S), E.softmax(-1).nan_to_num()


def roundings(p1: Tensor, p2: Tensor) -> float:
    """Roundings of a flow's entry: those of a score, D of its size, and those of a row's sum."""
    largest = (p1.norm(dim=-1).max() * p2.norm(dim=-1).max()).item()
    return LONGEST + p1.shape[-1] * max(largest, 1)


def flow_of(operator, p1: Tensor, p2: Tensor, lam: Tensor) -> Tensor:
    """F (B, H, T, T): what the operator transports of the identity, for D = T."""
    return operator(p1, p2, torch.eye(p1.shape[-1], dtype=p1.dtype).expand_as(p1), lam)


@each_full
@search
@given(states(2, square=True), LAMBDAS)
def test_flow_splits_into_self_and_exchange(operator, coordinates, lam):
    p1, p2 = coordinates
    F_ii, g, pi = two_levels(p1, p2, lam)
    flow, terms = flow_of(operator, p1, p2, lam), roundings(p1, p2)
    own, exchange = flow.diagonal(dim1=-2, dim2=-1), flow.tril(-1)
    assert not flow.triu(1).any()
    assert_close(own + exchange.sum(-1), torch.ones_like(own), LONGEST)
    assert_close(own, F_ii, terms)
    assert_close(exchange.sum(-1), g, terms)
    assert_close(exchange, g[..., None] * pi, terms)


@each_full
@search
@given(states(2, square=True, shortest=2), LAMBDAS, LAMBDAS)
def test_count_correction_moves_the_split_and_not_the_allocation(operator, coordinates, one, two):
    p1, p2 = coordinates
    flows = [flow_of(operator, p1, p2, lam)[:, :, 1:] for lam in (one, two)]
    masses = [flow.tril(0).sum(-1, keepdim=True) for flow in flows]
    # SiLU is above -0.28, so that g is never so small that the quotient loses its digits.
    one_pi, two_pi = (flow.tril(0) / g for flow, g in zip(flows, masses, strict=True))
    assert_close(one_pi, two_pi, roundings(p1, p2))
    # g / F_ii falls by the factor i^(two - one); without quotients, F_ii may be 0.
    owns = [flow.diagonal(1, -2, -1)[..., None] for flow in flows]
    i = torch.arange(2, p1.shape[2] + 1, dtype=torch.float64)[:, None]
    assert_close(masses[1] * owns[0] * i ** (two - one), masses[0] * owns[1], roundings(p1, p2))


@each_full
@search
@given(states(3), LAMBDAS, st.randoms(use_true_random=False))
def test_the_order_of_history_does_not_matter(operator, inputs, lam, random):
    """To the last token, before RoPE gives places to the others."""
    length = inputs.shape[3]
    order = [*random.sample(range(length - 1), length - 1), length - 1]
    last, shuffled = (operator(*x, lam)[:, :, -1] for x in (inputs, inputs[..., order, :]))
    assert_close(shuffled, last, roundings(*inputs[:2]))


@each_linear
@search
@given(retained_states(), st.integers(0, LONGEST))
def test_a_state_stands_for_the_tokens_before_it(operator, inputs, cut):
    length = inputs[0].shape[2]
    cut = 1 + cut % length
    y, state = operator(*inputs)
    first, after_first = operator(*(x[:, :, :cut] for x in inputs))
    assert torch.equal(y[:, :, 0], inputs[2][:, :, 0])
    assert_close(first, y[:, :, :cut], LONGEST + 6)
    if cut < length:
        rest, last = operator(*(x[:, :, cut:] for x in inputs), state=after_first)
        assert_close(rest, y[:, :, cut:], LONGEST + 6)
        assert_close(last, state, LONGEST + 6)
