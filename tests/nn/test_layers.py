"""Relation as a layer of other models: its equations; its projections are modules."""

from functools import partial

import pytest
import torch
from conftest import refusal
from equations import assert_close, differentiate, normal
from models import mixed
from torch import Tensor, nn

from relation import Documents, FullRelation, LinearRelation
from relation.nn import ModelConfig
from relation.nn.norms import Normed

D, HEADS, T = 24, 4, 21
LAYERS = {"full": FullRelation, "linear": LinearRelation}
each_layer = pytest.mark.parametrize("kind", LAYERS)
each_sharing = pytest.mark.parametrize("kv_heads", [None, 2])


def build(kind: str, kv_heads: int | None = None, **options) -> nn.Module:
    """A float64 layer whose angles and lambda differ from their initial values."""
    torch.manual_seed(5)
    layer = LAYERS[kind](D, HEADS, kv_heads, **options).double()
    with torch.no_grad():
        for name in ("theta", "lam"):
            if hasattr(layer, name):
                getattr(layer, name).add_(0.4)
    return layer


@each_layer
@each_sharing
@pytest.mark.parametrize("index", [0, 1])
def test_a_layer_is_its_equation(kind, kv_heads, index):
    """Sections 3.2 and 5.2: the output, and the gradients of x and of every parameter."""
    options = {"tau": 0.7, "rope_base": 100.0}
    layer, dy = build(kind, kv_heads, layer_index=2 + index, **options), normal(2, T, D, seed=2)
    sizes = {"vocab_size": 1, "d_ff": 1, "d_model": D, "heads": HEADS, "kv_heads": kv_heads}
    config = ModelConfig(**sizes, **options, layout="F" if kind == "full" else "L")
    x, results = normal(2, T, D).requires_grad_(), []
    expected, _ = mixed(dict(layer.named_parameters()), x, config, config.layout, index)
    for y in (layer(x), expected):
        results.append([y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], dy)])
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected, T + 2 * D, scale=8)


@each_layer
@each_sharing
def test_documents_and_padding_are_rows_by_themselves(kind, kv_heads):
    layer, x = build(kind, kv_heads), normal(2, T, D)
    ids = torch.tensor([[0] * 6 + [1] * 15, [0] * T])
    y = layer(x, Documents.of(ids))
    for row, text in ((0, slice(0, 6)), (0, slice(6, T)), (1, slice(0, T))):
        assert_close(y[row : row + 1, text], layer(x[row : row + 1, text]), T + D, scale=8)
    padded = layer(x, Documents.padded(torch.tensor([[0] * 6 + [1] * 15, [1] * T])))
    assert_close(padded[:1, 6:], y[:1, 6:], T + D, scale=8)


@each_layer
@each_sharing
def test_a_cache_gives_the_rows_of_the_whole(kind, kv_heads):
    layer, x = build(kind, kv_heads), normal(2, T, D)
    cache = layer.new_cache()
    rows = [layer(block, cache=cache) for block in x.split([9, 1, 1, 10], dim=1)]
    assert_close(torch.cat(rows, dim=1), layer(x), T + D, scale=8)
    assert cache.length == T and not rows[0].requires_grad


def test_a_block_that_a_backend_refuses_is_not_read():
    layer, cache = NEW(backend="flash"), NEW().new_cache()
    assert "backend 'flash' of 'full' cannot run" in refusal(lambda: layer(X, cache=cache))
    assert cache.length == 0


@each_layer
def test_second_derivatives_are_refused(kind):
    layer, x = build(kind, HEADS), normal(1, T, D).requires_grad_()
    again = partial(torch.autograd.grad, layer(x).sum(), x, create_graph=True)
    assert "no second derivatives" in refusal(again)


@pytest.mark.parametrize("make", [
    lambda: FullRelation(D, HEADS),
    lambda: FullRelation(D, HEADS, count_calibration=False),
    lambda: LinearRelation(D, HEADS, 2),
])  # fmt: skip
def test_a_layer_of_the_meta_device_is_drawn_as_a_new_one(make):
    with torch.device("meta"):
        layer = make()
    layer.to_empty(device="cpu")
    torch.manual_seed(7)
    layer.reset_parameters()
    torch.manual_seed(7)
    for expected, parameter in zip(make().parameters(), layer.parameters(), strict=True):
        assert torch.equal(parameter, expected)
    assert all(buffer == 0 for buffer in layer.buffers())


def test_a_new_layer_starts_where_its_text_says():
    torch.manual_seed(3)
    assert FullRelation(D, HEADS).lam == 0.5 and FullRelation(D, HEADS, lambda_init=2.0).lam == 2
    layer, bound = LinearRelation(96, 4), 24**-0.5  # as in KDA: A in 1 to 16, dt in 0.001 to 0.1
    assert layer.retention_up.abs().max() <= bound
    assert layer.retention_up.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    for values, low, high in (
        (layer.a_log.exp(), 1, 16),
        (1e3 * nn.functional.softplus(layer.dt_bias), 1, 100),
    ):
        assert low * 0.999 <= values.min() < 2 * low and 0.9 * high < values.max() <= high * 1.001


@pytest.mark.parametrize(("weights", "autocast"), [(torch.float32, True), (torch.bfloat16, False)])
def test_retention_is_fp32_at_least(weights, autocast):
    layer, x = LinearRelation(D, HEADS).to(weights), X.to(weights)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert layer.log_retention(Normed(x)).dtype == torch.float32


def change_forward(linear: nn.Linear) -> None:
    linear.forward = lambda x: 2 * nn.functional.linear(x, linear.weight)


@pytest.mark.parametrize("patch", [
    lambda linear: setattr(linear, "bias", nn.Parameter(torch.ones(D).double())),
    lambda linear: linear.register_forward_hook(lambda _, x, y: 2 * y),
    lambda linear: linear.register_forward_pre_hook(lambda _, x: (2 * x[0],)),
    lambda linear: linear.register_full_backward_hook(lambda _, dx, dy: (2 * dx[0],)),
    change_forward,
])  # fmt: skip
@each_layer
def test_what_a_projection_does_besides_its_product_counts(kind, patch):
    """Not only the rows of W_I, which are mixed instead of the information."""
    plain, layer, x, dy = build(kind), build(kind), normal(2, T, D), normal(2, T, D, seed=2)
    patch(layer.wi)
    actual = differentiate(layer, (x,), dy)
    layer.wi = nn.Sequential(layer.wi)  # which the layer must call
    for ours, expected in zip(actual, differentiate(layer, (x,), dy), strict=True):
        assert_close(ours, expected, T + 2 * D, scale=8)
    assert not torch.equal(actual[1], differentiate(plain, (x,), dy)[1])


@each_layer
def test_a_layer_compiles_whole(kind):
    """Only traced, without a graph break: Inductor takes a minute for loops on a CPU."""
    layer, dy = build(kind), normal(2, T, D, seed=2)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    inputs = (normal(2, T, D),)
    for actual, expected in zip(
        differentiate(compiled, inputs, dy), differentiate(layer, inputs, dy), strict=True
    ):
        assert_close(actual, expected, T + D, scale=8)


@pytest.mark.gpu
@each_layer
@each_sharing
@pytest.mark.parametrize("compiled", [False, True])
def test_the_kernels_of_a_gpu_are_as_exact_as_the_definitions(kind, kv_heads, compiled):
    """Output and every gradient in BF16, compared with the operator's definition in BF16."""
    definition = "reference" if kind == "full" else "recurrent"
    truth = LAYERS[kind](64, HEADS, kv_heads, backend=definition).double()
    x, dy = normal(2, 65, 64).bfloat16(), normal(2, 65, 64, seed=2).bfloat16()
    weights = {name: w.bfloat16() for name, w in truth.state_dict().items()}

    def results(backend: str | None, dtype: torch.dtype, device: str) -> list[Tensor]:
        layer = LAYERS[kind](64, HEADS, kv_heads, backend=backend).to(device, dtype)
        layer.load_state_dict(weights)
        if compiled and backend is None:
            layer = torch.compile(layer, fullgraph=True)
        given = x.to(device, dtype).requires_grad_()
        y = layer(given)
        gradients = torch.autograd.grad(y, [given, *layer.parameters()], dy.to(device, dtype))
        return [result.double().cpu() for result in (y.detach(), *gradients)]

    found = results(None, torch.bfloat16, "cuda")
    yardstick = results(definition, torch.bfloat16, "cuda")
    exact = results(definition, torch.float64, "cpu")
    for ours, theirs, expected in zip(found, yardstick, exact, strict=True):
        # A gradient of one or two numbers, of lambda or angles, can be exact by chance.
        slack = 1e-3 if expected.numel() > 2 else 5e-2
        error, allowed = (ours - expected).norm(), (theirs - expected).norm()
        assert error <= 2 * allowed + slack * expected.norm()


X = torch.zeros(1, 2, D)
NEW = partial(FullRelation, D, HEADS)


def begun(lengths: list) -> torch.Tensor:
    """The output for X with a new cache that expects these lengths of the rows."""
    cache = NEW().new_cache()
    cache.begin(torch.tensor(lengths))
    return NEW()(X, cache=cache)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FullRelation(30, 4), "not divisible"),
        (lambda: FullRelation(D), "heads is None; give int"),
        (lambda: FullRelation(D, head=HEADS), "did you mean 'heads'?"),
        (lambda: FullRelation(D, HEADS, 1), "givens=False"),
        (lambda: LinearRelation(D, HEADS, backend="tiled"), "no backend 'tiled'"),
        (lambda: NEW(dropout=0.1), "FullRelation has no option 'dropout'; choose among d_model"),
        (lambda: FullRelation(D, HEADS, "2"), "kv_heads is '2'; give int or None"),
        (lambda: NEW()(X[:, :0]), "at least 1"),
        (lambda: NEW()(X, X), "documents are a Tensor; "),
        (lambda: NEW()(X, Documents.padded(torch.ones(1, 3))), "(1, 3) and the states"),
        (lambda: NEW()(X, cache=LinearRelation(D, HEADS).new_cache()), "is a LinearState; Full"),
        (lambda: [x(X, cache=c) for c in [NEW().new_cache()] for x in (NEW(), NEW())], "its own"),
        (lambda: NEW()(X[0]), f"give (B, T, {D})"),
        (lambda: NEW()(X[..., 1:]), f"give (B, T, {D})"),
        (lambda: NEW()(X, Documents.padded(torch.ones(1, 2)), NEW().new_cache()), "not both"),
        *(
            (partial(begun, lengths), "give 1 from 1 to 2, int64")
            for lengths in ([3], [1, 1], [1.0])
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(make, message):
    assert message in refusal(make)
