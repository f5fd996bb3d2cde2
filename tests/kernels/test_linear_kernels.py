"""Linear Relation's kernels against the recurrence in float64, judged by `assert_exact`.

The yardstick is the chunked form in plain PyTorch on inputs of the same dtype. Without a GPU the
kernels run in Triton's interpreter, in a separate process, because it is chosen when the kernels
are imported. Tests marked gpu run them compiled.
"""

import importlib
import importlib.util
import itertools
import math
from dataclasses import replace

import equations
import pytest
import torch
from exactness import SLACK, assert_close, poisoned_memory, sharing
from interpreter import INTERPRETED, run_interpreted
from torch._subclasses import FakeTensorMode

from relation import kernels
from relation.kernels.documents import Documents
from relation.ops import chunked_linear_relation, linear_relation

RESULTS = ("Y", "C_T", "dp1", "dp2", "dinfo", "dg", "dC_0")

if INTERPRETED or importlib.util.find_spec("triton"):
    from relation.kernels.linear_relation import launches

Inputs = tuple[torch.Tensor | None, ...]
Shape = tuple[int, int, int, int]


def retention(kind: str | float, shape: Shape) -> torch.Tensor:
    """g (B, H, T, D), stored as (B, T, H, D): a constant or one of four distributions."""
    B, H, T, D = shape
    drawn = torch.rand(B, T, H, D).transpose(1, 2)
    if kind == "scattered":  # neighbours forget nothing, a little, or almost all
        choice = torch.randint(3, shape)
        return torch.where(choice == 0, 0.0, torch.where(choice == 1, -0.02, -50.0) * drawn)
    if kind == "channels":  # as in a trained layer: some channels forget always, some at times
        of_channel = torch.tensor([-0.02, -0.3, -4.0, -30.0, -50.0]).repeat(D)[:D]
        often = torch.tensor([1, 1, 1, 1, 0.1]).repeat(D)[:D]
        return of_channel * drawn * (torch.rand(B, T, H, D).transpose(1, 2) < often)
    if kind == "strong":  # tokens forget nearly everything
        return -3 - 70 * drawn
    if kind == "model":  # as in a new layer
        A = 1 + 15 * torch.rand(1, H, 1, D)
        return -A * 10 ** (2 * drawn - 3)
    return torch.full_like(drawn, float(kind))


def draw(
    seed: int, shape: Shape, dtype=torch.float32, device="cpu", kind="model", state: bool = True
) -> Inputs:
    """Return p1, p2, info, g, C_0, dY, dC_T; tokens are stored as (B, T, H, D), as in a model."""
    torch.manual_seed(seed)
    B, H, T, D = shape
    p1, p2, info, dy = torch.randn(4, B, T, H, D).transpose(2, 3).to(device, dtype)
    states = torch.randn(2, B, H, D, D).to(device)
    start = states[0] if state else None
    return p1, p2, info, retention(kind, shape).to(device), start, dy, states[1]


def differentiate(operator, inputs: Inputs, tau: float = 2.0, **options) -> Inputs:
    """Y, C_T and the gradients of p1, p2, info, g and, if it is given, C_0."""
    *tensors, dy, dfinal = inputs
    given = [x for x in tensors if x is not None]
    return equations.differentiate(
        lambda *x: operator(*x[:4], tau, *x[4:], **options), given, dy, dfinal
    )


def assert_exact(inputs: Inputs, tau: float = 2.0, truth=linear_relation, **options) -> None:
    """Check Y, C_T and all gradients."""
    with poisoned_memory():
        ours = differentiate(kernels.linear_relation, inputs, tau, **options)
    wide = tuple(None if x is None else x.double() for x in inputs)
    exact = differentiate(truth, wide, tau, **options)
    yardstick = differentiate(chunked_linear_relation, inputs, tau, **options)
    for name, *three in zip(RESULTS, ours, exact, yardstick, strict=False):
        assert three[0].isfinite().all(), name
        assert_close(name, *three, SLACK[inputs[0].dtype])


each_operator = pytest.mark.parametrize("operator", ["flash_relation", "linear_relation"])


def output_of(operator: str, p1, p2, info, g) -> torch.Tensor:
    """Y of either operator; FlashRelation needs no g."""
    if operator == "linear_relation":
        return kernels.linear_relation(p1, p2, info, g)[0]
    return kernels.flash_relation(p1, p2, info, torch.tensor(0.5))


def test_the_interpreter_reproduces_the_recurrence():
    run_interpreted(__file__)


@pytest.mark.skipif(not INTERPRETED, reason="run by the test above")
class TestInterpreted:
    """Chunks of 16 tokens, blocks of 16 channels. Two heads form segments from 49 tokens on."""

    @pytest.mark.parametrize(("length", "width"), [(1, 20), (2, 16), (17, 20), (53, 16)])
    def test_every_shape(self, length, width):
        assert_exact(draw(0, (1, 2, length, width)))

    @pytest.mark.parametrize("kind", ["scattered", "strong", 0, -math.inf])
    def test_every_retention(self, kind):
        assert_exact(draw(1, (1, 1, 33, 16), kind=kind))

    def test_chunks_of_weak_and_of_strong_retention(self, monkeypatch):
        """Both kinds of chunk read states that the other kind wrote.

        Weak chunks have separate kernels, in another way than by default.
        """
        monkeypatch.setattr(launches, "INTERPRETED", launches.INTERPRETED[1:])
        p1, p2, info, g, *others = draw(11, (1, 2, 53, 20))
        g[:, 0, 20:24] = g[:, 1, 40:] = -30
        assert_exact((p1, p2, info, g, *others))

    def test_programs_that_take_several_chunks(self, monkeypatch):
        """15 chunks of three heads, so a program's last turn is not full."""
        entry = replace(launches.INTERPRETED[0], programs=1)
        monkeypatch.setattr(launches, "INTERPRETED", [entry])
        p1, p2, info, g, *others = draw(13, (1, 3, 69, 16))
        g[:, 1], g[:, 2] = retention("channels", (2, 1, 69, 16))[0], -20
        assert_exact((p1, p2, info, g, *others))

    @pytest.mark.parametrize(("way", "shared"), [(0, 2), (2, 1)])
    def test_heads_that_share(self, way, shared, monkeypatch):
        """In some chunks only one of two heads is weak. `way` is the first launch entry to use."""
        monkeypatch.setattr(launches, "INTERPRETED", launches.INTERPRETED[way:])
        shape = (1, 4, 37, 16)
        p1, p2, info, g, *others = draw(12, shape, kind="channels")
        g[:, 1] = retention("model", shape)[:, 1]
        g[:, 2, 20:34] = -50
        assert_exact(sharing((p1, p2, info, g, *others), shared))

    @pytest.mark.parametrize(
        ("shape", "dtype", "kind"),
        [
            ((1, 1, 33, 20), torch.float16, -5),  # half a chunk keeps exp(-40)
            ((1, 1, 17, 16), torch.float32, -14),  # exp(112) would overflow
            # A few tokens keep as much as a weak chunk does, but all of dg is small.
            ((1, 1, 2, 16), torch.float16, -30),
            ((1, 1, 1, 16), torch.float32, -12),
            ((1, 1, 3, 16), torch.float32, -12),
        ],
    )
    def test_retention_between_weak_and_strong(self, shape, dtype, kind):
        assert_exact(draw(3, shape, dtype, kind=kind))

    @each_operator
    @pytest.mark.parametrize("of_dy", [False, True])
    def test_both_operators_are_differentiable_once(self, operator, of_dy):
        """A second derivative raises an error, even if only a part of the loss needs it."""
        p1, p2, info, g, _, dy, _ = draw(12, (1, 2, 17, 16), state=False)
        p1, dy = p1.detach().requires_grad_(), dy.detach().requires_grad_(of_dy)
        y = output_of(operator, p1, p2, info, g)
        (dp1,) = torch.autograd.grad(y, p1, dy, create_graph=True)
        with pytest.raises(RuntimeError, match=f"{operator}_backward"):
            (p1.sum() + dp1.sum()).backward()

    @each_operator
    def test_a_result_whose_gradient_is_undefined(self, operator):
        """As of a custom function that passes no gradient on."""

        class Ignored(torch.autograd.Function):
            @staticmethod
            def forward(ctx, y):
                return y.sum()

            @staticmethod
            def backward(ctx, dloss):
                return None

        p1, p2, info, g, *_ = draw(15, (1, 1, 2, 16), state=False)
        p1.requires_grad_()
        y = output_of(operator, p1, p2, info, g)
        (Ignored.apply(y) + p1.sum()).backward()
        assert torch.equal(p1.grad, torch.ones_like(p1))

    @each_operator
    def test_torch_compile_plans_with_the_results_shapes_strides_and_dtypes(self, operator):
        given = sharing(draw(16, (1, 2, 3, 20), torch.float16), 1)
        op = importlib.import_module(f"relation.kernels.{operator}.op")

        def described(p1, p2, info, g, state, dy, dfinal) -> list[tuple]:
            if operator == "linear_relation":
                first = op.linear_forward(p1, p2, info, g, state, 2.0)
                second = op.linear_backward(dy, dfinal, p1, p2, info, g, [*first[2:]], 2.0)
            else:
                first = op.relation_forward(p1, p2, info, dy.new_ones((), dtype=g.dtype), 2.0, True)
                second = op.relation_backward(dy, p1, p2, info, *first, 2.0, True)
            return [(x.shape, x.stride(), x.dtype) for x in (*first, *second)]

        with FakeTensorMode() as fake:
            plans = [fake.from_tensor(x) for x in given]
            planned = described(*plans)
            assert output_of(operator, *plans[:4]).shape == plans[0].shape
        assert planned == described(*given)

    def test_documents_start_empty(self):
        """Documents start inside chunks and at their ends, and some have one token."""
        p1, p2, info, g, _, dy, dfinal = draw(9, (2, 1, 37, 16), state=False)
        starts = torch.zeros(2, 37, dtype=torch.int64)
        starts[0, [7, 16, 17]] = starts[1, [1, 36]] = 1
        documents = Documents.of(starts.cumsum(1))
        assert_exact((p1, p2, info, g, None, dy, dfinal), documents=documents)

    def test_no_initial_state_and_another_tau(self):
        assert_exact(draw(4, (2, 1, 20, 16), state=False), tau=0.7)

    def test_any_strides_and_vectors_of_zeros(self):
        p1, p2, info, g, state, dy, dfinal = draw(5, (1, 2, 18, 20))
        p1 = p1.mT.contiguous().mT
        p1[:, :, 3] = 0
        p2 = torch.cat([p2, p2], 2)[:, :, ::2][:, :, : p1.shape[2]]
        p2[:, :, 5] = 0
        info = torch.randn(1, 1, 18, 20).expand(1, 2, 18, 20)
        dy, dfinal = torch.ones(()).expand_as(dy), torch.ones(()).expand_as(dfinal)
        assert_exact((p1, p2, info, g.contiguous(), state.mT.contiguous().mT, dy, dfinal))

    def test_heads_out_of_step_with_their_width(self):
        """The heads of p1 and g are unaligned; 16 divides all other strides."""
        given = list(draw(14, (1, 2, 17, 16), kind="channels"))
        for place in (0, 3):
            apart = torch.empty(1, 2, 17 * 16 + 1)[..., 1:].unflatten(2, (17, 16))
            given[place] = apart.copy_(given[place])
        assert_exact(tuple(given))

    def test_vectors_shorter_than_the_norms_floor_or_with_squares_past_fp16(self):
        p1, p2, *others = draw(10, (1, 1, 3, 16), torch.float16)
        assert_exact((300 * p1, 300 * p2, *others))
        p1, p2, *others = draw(10, (1, 1, 3, 16))
        assert_exact((1e-14 * p1, p2, *others))
        assert_exact((p1, 1e-14 * p2, *others))

    def test_retention_in_bfloat16(self):
        p1, p2, info, g, *states = draw(6, (1, 1, 18, 16))
        g = g.bfloat16()
        ours = differentiate(kernels.linear_relation, (p1, p2, info, g, *states))
        same = differentiate(kernels.linear_relation, (p1, p2, info, g.float(), *states))
        for name, one, other in zip(RESULTS, ours, same, strict=True):
            if name == "dg":  # the interpreter truncates, but a GPU rounds
                assert one.dtype == torch.bfloat16
                torch.testing.assert_close(one.float(), other, rtol=2**-7, atol=0)
            else:
                assert torch.equal(one, other)

    def test_either_result_alone_and_inputs_without_gradient(self):
        p1, p2, info, g, state, dy, dfinal = draw(8, (1, 1, 18, 16))
        for result, gradient in ((0, dy), (1, dfinal)):
            gradients = []
            for operator in (kernels.linear_relation, linear_relation):
                leaf = p2.detach().requires_grad_()
                operator(p1, leaf, info, g, 2.0, state)[result].backward(gradient)
                gradients.append(leaf.grad)
            torch.testing.assert_close(*gradients)
        assert p1.grad is None and state.grad is None


def assert_exact_on_device(seed: int, shape: Shape, dtype, kind="model", state=True) -> None:
    assert_exact(draw(seed, shape, dtype, "cuda", kind, state), truth=chunked_linear_relation)


@pytest.mark.gpu
class TestOnDevice:
    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize("width", [16, 48, 60, 64, 80, 128])
    @pytest.mark.parametrize(
        "kind", ["model", "scattered", "channels", "strong", 0, -1.25, -1.875, -50]
    )
    def test_every_length(self, dtype, width, kind):
        for length in (1, 2, 63, 64, 65, 127, 1000, 4096):
            # Chance decides the largest of a few rounding errors, so there are always many tokens.
            assert_exact_on_device(length, (max(2, 128 // length), 3, length, width), dtype, kind)

    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize("width", [16, 48, 64, 80, 128])
    def test_few_tokens_of_strong_retention(self, dtype, width):
        for length, kind in itertools.product((1, 2, 3, 5, 65), (-2.5, -8, -12, -20, -30)):
            assert_exact_on_device(length, (64, 3, length, width), dtype, kind)
        # Without a state, one token has nothing to retain, so dg is zero.
        assert_exact_on_device(1, (64, 3, 1, width), dtype, state=False)

    @pytest.mark.parametrize("width", [48, 64, 80, 128])
    def test_the_last_tokens_of_few_heads(self, width):
        """If little is retained, dp1 is largest there, through Self and the gradient of C_T."""
        for seed in range(16):
            assert_exact_on_device(seed, (2, 3, 63, width), torch.bfloat16, -1.875)

    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize(("width", "heads"), [(48, 8), (64, 8), (64, 7), (80, 7)])
    def test_segments_of_chunks(self, dtype, width, heads):
        """Programs take several chunks, and need not divide the number of heads."""
        for kind in ("model", "scattered", "channels"):
            assert_exact_on_device(1, (33, heads, 1000, width), dtype, kind)

    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize("width", [48, 80, 96])
    def test_chunks_of_weak_and_of_strong_retention(self, dtype, width):
        for length in (1000, 1024):  # at 1024 the last chunk is full and no row is masked
            assert_exact_on_device(6, (2, 3, length, width), dtype)
            p1, p2, info, g, *others = draw(7, (2, 3, length, width), dtype, "cuda")
            g[:, 0, 200:260] = g[:, 1, 640:] = -30
            assert_exact((p1, p2, info, g, *others), truth=chunked_linear_relation)

    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize("width", [48, 64, 80, 128])
    @pytest.mark.parametrize("shared", [1, 2])
    def test_heads_that_share(self, dtype, width, shared):
        for length, kind in itertools.product((65, 1000), ("scattered", "channels")):
            inputs = sharing(draw(8, (2, 4, length, width), dtype, "cuda", kind), shared)
            assert_exact(inputs, truth=chunked_linear_relation)

    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize("kind", ["model", "channels"])
    def test_any_strides_no_state_and_another_tau(self, dtype, kind):
        p1, p2, info, g, _, dy, dfinal = draw(2, (2, 3, 127, 64), dtype, "cuda", kind)
        inputs = (p1.mT.contiguous().mT, p2.contiguous(), info[:1, :1].expand_as(p1), g, None)
        dfinal = torch.ones((), device="cuda").expand_as(dfinal)
        assert_exact((*inputs, dy, dfinal), 0.7, chunked_linear_relation)
