"""The operators against the paper's equations, written out here in float64."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relation import operators as ops
from relation.errors import InputError
from relation.operators.linear import CHUNK

FULL = (ops.full_relation, ops.tiled_relation)
LINEAR = (ops.linear_relation, ops.chunked_linear_relation)
DEFINITION = {"mha": "reference", "full": "reference", "linear": "recurrent"}
PLAIN = [*DEFINITION.items(), ("mha", "flash"), ("full", "tiled"), ("linear", "chunked")]
LAM, TAU = torch.tensor(0.5), 2.0


def draw(*shape: int, count: int = 3) -> Tensor:
    """`count` standard normal float64 tensors (B, H, T, D), the same for the same arguments."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64)


def draw_linear(*shape: int) -> tuple[Tensor, ...]:
    """p1, p2, info and g; a third of the channels keep all (g = 0) or forget all (g = -50)."""
    p1, p2, info, g = draw(*shape, count=4)
    g = torch.where(g > 1, torch.zeros_like(g), torch.where(g < -1, -50.0, -g.abs()))
    return p1, p2, info, g


def assert_close(actual: Tensor, expected: Tensor, terms: int, scale: float = 1.0) -> None:
    """Within 8 roundings a term of sums of `terms` terms as large as scale times the result."""
    bound = 8 * terms * scale * torch.finfo(actual.dtype).eps * max(expected.abs().max().item(), 1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound)


def differentiate(operator, inputs, dy: Tensor, **options) -> tuple[Tensor, ...]:
    """The output and the gradient of every input."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    y = operator(*leaves, **options)
    return (y.detach(), *torch.autograd.grad(y, leaves, dy))


def sigmoid(u: float) -> float:
    return 0.5 * (1 + math.tanh(u / 2))


def literal(p1: Tensor, p2: Tensor, lam: float, tau: float = TAU) -> Tensor:
    """F of Section 3.1 entry by entry, (B, H, T, T), of p1, p2 (B, H, T, D)."""
    B, H, T, D = p1.shape
    R = torch.full((B, H, T, T), -torch.inf, dtype=torch.float64)
    for b, h in itertools.product(range(B), range(H)):
        rows, columns = p1[b, h].tolist(), p2[b, h].tolist()
        for i in range(1, T + 1):
            for j in range(1, i + 1):
                pairs = zip(rows[i - 1], columns[j - 1], strict=True)
                U = sum(x * y for x, y in pairs) / math.sqrt(D)
                past = U * sigmoid(U) - lam * math.log(i)
                R[b, h, i - 1, j - 1] = sigmoid(U / tau) if j == i else past
    weight = (R - R.amax(-1, keepdim=True)).exp()
    return weight / weight.sum(-1, keepdim=True)


@pytest.mark.parametrize("transport_self", [True, False])
@pytest.mark.parametrize(
    ("T", "D", "H", "lam", "tau"),
    [(1, 6, 1, 0.5, 2.0), (2, 48, 2, -0.7, 2.0), (63, 60, 1, 0.5, 0.3), (130, 6, 2, 1.5, 2.0)],
)
def test_full_and_tiled_are_the_papers_sums(T, D, H, lam, tau, transport_self):
    p1, p2, info = draw(1, H, T, D)
    flow, scalar = literal(p1, p2, lam, tau), torch.tensor(lam, dtype=torch.float64)
    assert_close(ops.full_flow(p1, p2, scalar, tau), flow, T + D)
    transported = flow if transport_self else flow.tril(-1)
    expected = sum(transported[..., [j]] * info[:, :, [j]] for j in range(T))
    for operator in FULL:
        y = operator(p1, p2, info, scalar, tau, transport_self=transport_self)
        assert_close(y, expected, T + D)


@pytest.mark.parametrize("transport_self", [True, False])
@pytest.mark.parametrize(
    ("T", "tile"), [(1, 4), (2, 1), (63, 16), (63, 63), (63, 64), (130, 13), (130, 64), (130, 999)]
)
@pytest.mark.parametrize(("H", "D"), [(1, 6), (2, 60), (2, 48)])
def test_tiling_changes_no_value_and_no_gradient(monkeypatch, T, tile, H, D, transport_self):
    monkeypatch.setattr("relation.operators.tiled.TILE", tile)
    *inputs, dy = draw(2, H, T, D, count=4)
    ours, reference = (
        differentiate(operator, (*inputs, LAM.double()), dy, transport_self=transport_self)
        for operator in (ops.tiled_relation, ops.full_relation)
    )
    for actual, expected in zip(ours, reference, strict=True):
        assert_close(actual, expected, T + D)


@pytest.mark.parametrize("transport_self", [True, False])
@pytest.mark.parametrize("operator", FULL)
def test_gradients_of_full_relation_are_derivatives(monkeypatch, operator, transport_self):
    monkeypatch.setattr("relation.operators.tiled.TILE", 2)
    inputs = [x.requires_grad_() for x in (*draw(1, 2, 5, 2).unbind(), LAM.double())]
    assert torch.autograd.gradcheck(
        lambda *x: operator(*x, 0.7, transport_self=transport_self), inputs
    )


@pytest.mark.parametrize("operator", FULL)
def test_gradients_are_the_papers_credit_decomposition(monkeypatch, operator):
    """The closed forms of Appendix A.1.7, factorised into g and pi."""
    monkeypatch.setattr("relation.operators.tiled.TILE", 4)
    p1, p2, info, G = draw(1, 2, 11, 6, count=4)
    U, flow = p1 @ p2.mT / 6**0.5, literal(p1, p2, 0.5)
    g = flow.tril(-1).sum(-1)
    pi = (flow.tril(-1) / g[..., None]).nan_to_num()
    summary = pi @ info
    c = (G * (summary - info)).sum(-1)
    within = G @ info.mT - (G * summary).sum(-1, keepdim=True)
    dE = g[..., None] * pi * (((1 - g) * c)[..., None] + within)
    dS = -g * (1 - g) * c
    dlam = (dS * torch.arange(1, 12, dtype=torch.float64).log()).sum()

    sigma, S = torch.sigmoid(U), torch.sigmoid(U.diagonal(dim1=-2, dim2=-1) / TAU)
    dU = dE * (sigma + U * sigma * (1 - sigma)) + torch.diag_embed(dS * S * (1 - S) / TAU)
    expected = (flow @ info, dU @ p2 / 6**0.5, dU.mT @ p1 / 6**0.5, flow.mT @ G, dlam)
    actual = differentiate(operator, (p1, p2, info, LAM.double()), G)
    for ours, papers in zip(actual, expected, strict=True):
        assert_close(ours, papers, 11 + 6)


@pytest.mark.parametrize("lam", torch.tensor([0.0, 0.5, -2.0], dtype=torch.float64))
def test_flow_has_the_papers_two_levels(lam):
    p1, p2, info = draw(2, 2, 20, 6)
    U = p1 @ p2.mT / 6**0.5
    E = (U * torch.sigmoid(U)).masked_fill(~torch.ones(20, 20).tril(-1).bool(), -torch.inf)
    S = torch.sigmoid(U.diagonal(dim1=-2, dim2=-1) / TAU)
    flow = ops.full_flow(p1, p2, lam)
    own, g = flow.diagonal(dim1=-2, dim2=-1), flow.tril(-1).sum(-1)
    assert not flow.triu(1).any()
    assert_close(own + g, torch.ones_like(own), 20)
    # Where the history goes does not depend on lambda; how much goes there does.
    assert_close((flow.tril(-1) / g[..., None])[:, :, 1:], E[:, :, 1:].softmax(-1), 20)
    A = E.logsumexp(-1) - lam * torch.arange(1, 21, dtype=torch.float64).log()
    assert_close((g / own).log()[..., 1:], (A - S)[..., 1:], 20)
    # log F and R differ by a constant a row, so that R_ij - R_ik can be read off the flow.
    assert_close(
        (flow[..., 19, :19] / flow[..., 19, :1]).log(), E[..., 19, :19] - E[..., 19, :1], 20
    )
    for operator in FULL:
        assert torch.equal(operator(p1, p2, info, lam)[:, :, 0], info[:, :, 0])
        assert not operator(p1, p2, info, lam, transport_self=False)[:, :, 0].any()


@pytest.mark.parametrize("operator", FULL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_large_scores_stay_finite_and_exact(operator, dtype):
    p1, p2, info, dy = draw(1, 1, 70, 6, count=4)
    factor = (1e3 / (p1 @ p2.mT / 6**0.5).abs().max()).sqrt()
    inputs = [*(x.to(dtype) for x in (factor * p1, factor * p2, info)), LAM]
    results = differentiate(operator, inputs, dy.to(dtype))
    assert all(x.isfinite().all() for x in results)
    assert [x.dtype for x in results] == [dtype] * 4 + [LAM.dtype]
    if dtype == torch.float64:
        expected = literal(factor * p1, factor * p2, 0.5) @ info
        assert_close(results[0], expected, 70 + 6, scale=1e3)


def expanded_sum(p1, p2, info, g, tau: float, C0: Tensor) -> tuple[Tensor, Tensor]:
    """Y and C_T by Appendix A.4's sums over j, the term of C_0 (there zero) kept."""
    alpha, (T, D) = g.exp(), p1.shape[2:]
    S = torch.sigmoid((p1 * p2).sum(-1) / (tau * D**0.5))
    h1, h2 = (p / p.square().sum(-1, keepdim=True).sqrt() for p in (p1, p2))

    def history(before: int, t: int) -> Tensor:
        """The writes of tokens j < before, and C_0, retained by D_t ... D_{j+1}; (B, H, D, D)."""
        total = alpha[:, :, : t + 1].prod(2)[..., None] * C0
        for j in range(before):
            written = S[:, :, j, None] * h2[:, :, j] * alpha[:, :, j + 1 : t + 1].prod(2)
            total = total + written[..., None] * info[:, :, j, None]
        return total

    read = (S[..., None] * h1)[..., None]
    exchange = [(read[:, :, t] * history(t, t)).sum(2) for t in range(T)]
    return info + torch.stack(exchange, 2), history(T, T - 1)


@pytest.mark.parametrize("T", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
@pytest.mark.parametrize("H", [1, 2])
def test_recurrent_chunked_and_expanded_sum_agree(T, H):
    inputs, C0 = draw_linear(2, H, T, 6), draw(2, H, 6, 6, count=1)[0]
    for state in (None, C0):
        start = torch.zeros_like(C0) if state is None else state
        expected = expanded_sum(*inputs, 0.7, start)
        for operator in LINEAR:
            for actual, truth in zip(operator(*inputs, 0.7, state), expected, strict=True):
                assert_close(actual, truth, T + 6)


@pytest.mark.parametrize("operator", LINEAR)
def test_linear_gradients_are_derivatives(monkeypatch, operator):
    monkeypatch.setattr("relation.operators.linear.CHUNK", 3)
    p1, p2, info, g, C0 = draw(1, 2, 7, 2, count=5)
    inputs = [x.requires_grad_() for x in (p1, p2, info, -g.abs(), C0[:, :, :2].clone())]
    assert torch.autograd.gradcheck(lambda *x: operator(*x[:4], 0.7, x[4]), inputs)


@pytest.mark.parametrize("operator", LINEAR)
@pytest.mark.parametrize("retention", [0.0, -1e-3, -50.0, -1e4])
def test_extreme_retention_stays_finite(operator, retention):
    *inputs, dy = draw(1, 2, 3 * CHUNK + 1, 6, count=4).float()
    g = torch.full_like(dy, retention)
    results = differentiate(lambda *x: operator(*x)[0], (*inputs, g), dy)
    assert all(x.isfinite().all() for x in results)


@pytest.mark.parametrize("operator", LINEAR)
@pytest.mark.parametrize("t", [0, 7, CHUNK - 1, CHUNK])
def test_linear_exchange_never_reads_its_own_write(operator, t):
    p1, p2, info, g = draw(1, 2, CHUNK + 4, 6, count=4)
    before = operator(p1, p2, info, -g.abs())[0] - info
    other_info, other_p2 = info.clone(), p2.clone()
    other_info[:, :, t] += 1
    # Orthogonal to p1_t, the change leaves S_t alone and turns only what token t writes.
    own, turn = p1[:, :, t], p1[:, :, t].roll(1, dims=-1)
    other_p2[:, :, t] += turn - own * (turn * own).sum(-1, True) / own.square().sum(-1, True)
    for p2_after, info_after in ((p2, other_info), (other_p2, info)):
        after = operator(p1, p2_after, info_after, -g.abs())[0] - info_after
        assert_close(after[:, :, : t + 1], before[:, :, : t + 1], CHUNK)
        assert (after - before)[:, :, t + 1].abs().max() > 1e-3


def run(kind: str, name: str, p1: Tensor, p2: Tensor, info: Tensor, g: Tensor) -> Tensor:
    """A backend's Y, with lambda for Full Relation and g for Linear Relation."""
    extra = {"mha": (), "full": (LAM,), "linear": (g,)}[kind]
    y = ops.get_backend(kind, name, "cpu").call(p1, p2, info, *extra)
    return y[0] if kind == "linear" else y


@pytest.mark.parametrize("t", [0, 8, 18])
@pytest.mark.parametrize(("kind", "name"), PLAIN)
def test_no_backend_reads_the_future(kind, name, t):
    *inputs, g = draw_linear(1, 2, 19, 6)
    changed = [torch.where(torch.arange(19)[:, None] >= t, x + 1, x) for x in inputs]
    before, after = run(kind, name, *inputs, g), run(kind, name, *changed, g)
    assert torch.equal(before[:, :, :t], after[:, :, :t])
    assert (before != after)[:, :, t:].any(-1).all()


@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)],
)
@pytest.mark.parametrize(("kind", "name"), PLAIN)
def test_error_is_that_of_the_dtype(kind, name, dtype, autocast):
    *states, g = draw(1, 2, 70, 48, count=4)
    inputs = [*(x.to(dtype) for x in states), -g.abs().float() / 10]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = run(kind, name, *inputs)
    truth = run(kind, DEFINITION[kind], *(x.double() for x in inputs))
    assert y.dtype == dtype
    # The result is rounded once; sums of T + D terms are in FP32.
    roundoff, largest = torch.finfo(dtype).eps / 2, inputs[2].abs().max().item()
    bound = roundoff * truth.abs() + 8 * (70 + 48) * 2**-23 * largest
    if name in ("reference", "flash"):
        # Scores and flow are rounded too: U enters the exponent, and a row of flow sums to 1.
        U = (inputs[0].double() @ inputs[1].double().mT).abs().max().item() / 48**0.5
        bound += roundoff * (4 * U + 2) * largest
    assert ((y.double() - truth).abs() <= bound).all()


@pytest.mark.parametrize("flow", [ops.causal_flow, lambda p1, p2: ops.full_flow(p1, p2, LAM)])
def test_flow_is_normalised_in_fp32(flow):
    rows = flow(*draw(1, 2, 70, 48, count=2).bfloat16())
    assert rows.dtype == torch.float32
    assert_close(rows.sum(-1), torch.ones(1, 2, 70), 70)


@pytest.mark.parametrize("operator", LINEAR)
@pytest.mark.parametrize("autocast", [False, True])
def test_linear_state_is_fp32(operator, autocast):
    inputs = [x.bfloat16() for x in draw_linear(1, 2, 70, 48)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        state = operator(*inputs)[1]
    truth = ops.linear_relation(*(x.double() for x in inputs))[1]
    assert state.dtype == torch.float32
    assert_close(state, truth.float(), 70 + 48)


@pytest.mark.parametrize("name", ["reference", "flash"])
def test_attention_is_pytorchs(name):
    q, k, v = draw(2, 2, 37, 6)
    attention = ops.get_backend("mha", name, "cpu").call
    assert_close(attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True), 43)
    assert_close(ops.causal_flow(q, k) @ v, attention(q, k, v), 43)


@pytest.mark.parametrize(
    ("layer", "pairs"),
    [(0, [(1, 2), (3, 4), (5, 6)]), (1, [(2, 3), (4, 5), (6, 1)]), (4, [(1, 2), (3, 4), (5, 6)])],
)
def test_givens_rotates_the_papers_pairs(layer, pairs):
    theta = draw(3, count=1)[0].requires_grad_()
    rotation = torch.eye(6, dtype=torch.float64)
    for angle, (a, b) in zip(theta.tolist(), pairs, strict=True):
        rotation[a - 1, a - 1] = rotation[b - 1, b - 1] = math.cos(angle)
        rotation[a - 1, b - 1], rotation[b - 1, a - 1] = -math.sin(angle), math.sin(angle)
    assert_close(rotation @ rotation.T, torch.eye(6, dtype=torch.float64), 1)
    info = draw(2, 6, 5, 4, count=1)[0].requires_grad_()
    mixed = ops.givens_mix(info, theta, layer)
    assert_close(mixed, torch.einsum("hk,bktd->bhtd", rotation, info), 2)
    assert_close(ops.givens_mix(mixed, -theta, layer), info, 4)
    assert torch.equal(ops.givens_mix(info, torch.zeros(3), layer), info)
    assert torch.autograd.gradcheck(lambda *x: ops.givens_mix(*x, layer), (info, theta))


def test_rope_rotates_channel_c_with_channel_c_plus_half():
    x = draw(1, 2, 50, 60, count=1)[0]
    pairs = torch.complex(*x.chunk(2, dim=-1))
    frequency = 1e4 ** (-torch.arange(30, dtype=torch.float64) / 30)
    angle = torch.arange(7, 57, dtype=torch.float64)[:, None] * frequency
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).unbind(-1)
    # The angles are FP32: positions below 64 times a frequency with two roundings.
    tolerance = {"rtol": 0, "atol": 64 * 2**-22 * x.abs().max().item()}
    turned = ops.rope(x, offset=7)
    torch.testing.assert_close(turned, torch.cat(expected, -1), **tolerance)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=2**-20, atol=0)
    assert torch.equal(ops.rope(x)[:, :, 7:], ops.rope(x[:, :, 7:], offset=7))
    assert torch.equal(ops.rope(x)[:, :, 0], x[:, :, 0])


def test_rope_scores_depend_on_relative_position_alone():
    q, k = draw(1, 2, 20, 48, count=2)
    here, there = (ops.rope(q, offset=o) @ ops.rope(k, offset=o).mT for o in (0, 40))
    longest = q.norm(dim=-1).max().item() * k.norm(dim=-1).max().item()
    torch.testing.assert_close(here, there, rtol=0, atol=64 * 2**-22 * longest)


X = torch.zeros(1, 2, 3, 4)


def assert_refused(call, *arguments, **options) -> None:
    """One line that says more than that something is wrong, and does not break off."""
    with pytest.raises(InputError) as refusal:
        call(*arguments, **options)
    message = str(refusal.value)
    assert "\n" not in message and len(message) > 20 and not message.rstrip().endswith(":")


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (ops.get_backend, ("full", "fast")),
        (ops.get_backend, ("relation", "reference")),
        (ops.get_backend, ("mha", "cudnn", "cpu")),
        (ops.givens_mix, (torch.zeros(1, 3, 2, 2), torch.zeros(1), 0)),
        (ops.givens_mix, (torch.zeros(1, 4, 2, 2), torch.zeros(1), 0)),
        (ops.rope, (torch.zeros(1, 2, 3, 5),)),
    ],
)
def test_bad_input_is_refused(call, arguments):
    assert_refused(call, *arguments)


@pytest.mark.parametrize(
    ("operators", "wrong"),
    [
        (FULL + LINEAR, {"p1": X[0]}),
        (FULL + LINEAR, {"p2": X.mT}),
        (FULL + LINEAR, {"info": X[:, :1]}),
        (FULL + LINEAR, {"p2": X.to("meta")}),
        (FULL + LINEAR, {"tau": 0.0}),
        (FULL + LINEAR, {"tau": math.nan}),
        (FULL, {"lam": torch.zeros(3)}),
        (LINEAR, {"log_retention": X[0]}),
        (LINEAR, {"state": X}),
    ],
)
def test_operators_refuse_other_shapes_devices_and_temperatures(operators, wrong):
    for operator in operators:
        last = {"lam": LAM} if operator in FULL else {"log_retention": X}
        assert_refused(operator, **{"p1": X, "p2": X, "info": X, **last, **wrong})
