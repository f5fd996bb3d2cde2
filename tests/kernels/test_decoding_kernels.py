"""The kernels for one token against the operators' steps in float64, judged by `assert_close`.

The yardstick is the same step in plain PyTorch on inputs of the kernels' dtype. Without a GPU the
kernels run in Triton's interpreter, in a separate process; tests marked gpu run them compiled.
"""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from exactness import SLACK, assert_close, poisoned_memory
from interpreter import INTERPRETED, run_interpreted
from torch import Tensor

from relation import ops
from relation.kernels.available import why_no_decoding
from relation.nn.sampling import Sampling, next_token_probabilities
from relation.ops.rotations import apply_rope, rope_angles

pytest.importorskip("triton")

from relation.kernels import decoding
from relation.kernels.decoding import mixers

HEADS, CAPACITY = 4, 300
# A piece has 128 tokens: no history, one token, around one piece, and a ragged third piece.
LENGTHS = (0, 1, 127, 128, 129, 299)


def tables(width: int, device="cpu") -> tuple[Tensor, Tensor]:
    return rope_angles(torch.arange(CAPACITY, device=device), width, 1e4)


def placed(x: Tensor, lengths: Tensor) -> Tensor:
    """x (B, H, D) as (B, H, 1, D), rotated by RoPE to the position after `lengths` (B,) tokens."""
    return apply_rope(x[:, :, None], *rope_angles(lengths[:, None], x.shape[-1], 1e4))


class History:
    """Random projections and histories for rows of LENGTHS tokens; NaN after each row's end."""

    def __init__(
        self, width: int, dtype: torch.dtype, device="cpu", strength: float = 1.0, shared=HEADS
    ):
        torch.manual_seed(width)
        B, state = len(LENGTHS), (len(LENGTHS), shared, CAPACITY, width)
        drawn = strength * torch.randn(B, HEADS + 2 * shared, width)
        self.projected, self.shared = drawn.to(device, dtype), shared
        self.history = torch.randn(2, *state).to(device, dtype)
        for b, length in enumerate(LENGTHS):
            self.history[:, b, :, length:] = torch.nan
        self.lengths = torch.tensor(LENGTHS, dtype=torch.int32, device=device)
        self.tables = tables(width, device)
        self.lam = torch.tensor(0.7, device=device)

    def step(self, relation: bool, own: bool, wide: bool) -> tuple[Tensor, Tensor]:
        """y (B, H D) and the new rows (2, B, H, D) by the operator; in float64 if `wide`."""
        p1, p2, info = self.projected.split([HEADS, self.shared, self.shared], 1)
        # RoPE rounds the coordinates, whether or not `wide` is set.
        p1, p2 = (placed(x, self.lengths) for x in (p1, p2))
        news, found = torch.stack((p2, info[:, :, None])), []
        for b, length in enumerate(LENGTHS):
            own_row = slice(b, b + 1)
            history = torch.cat((self.history[:, own_row, :, :length], news[:, own_row]), 3)
            inputs = [x.double() if wide else x for x in (p1[own_row], *history)]
            if relation:
                y = ops.full_relation_step(*inputs, self.lam, 1.3, transport_self=own)
            else:
                y = ops.attention_step(*inputs)
            found.append(y.flatten())
        return torch.stack(found), news[..., 0, :]

    def token(self, relation: bool, own: bool, chained: bool = False) -> Tensor:
        given = (self.lam, 1.3, own) if relation else ()
        history = self.tables, tuple(self.history), self.lengths
        return decoding.history_token(self.projected, *history, *given, chained=chained)


def check_history(relation: bool, own: bool, *given) -> None:
    case = History(*given)
    (truth, news), yardstick = case.step(relation, own, True), case.step(relation, own, False)[0]
    with poisoned_memory():
        y = case.token(relation, own)
    assert_close("y", y, truth, yardstick, SLACK[y.dtype])
    for b, length in enumerate(LENGTHS):
        new = case.history[:, b, :, length]
        # The kernel may fuse the FP32 product and sum; both then round the same way.
        torch.testing.assert_close(new, news[:, b], rtol=2 * torch.finfo(new.dtype).eps, atol=1e-6)
        assert case.history[:, b, :, length + 1 :].isnan().all()


class Linear:
    """Random projections, retention and states for three rows. The last row has stopped."""

    def __init__(self, width: int, dtype: torch.dtype, device="cpu"):
        torch.manual_seed(width)
        self.projected = torch.randn(3, 4, HEADS, width).to(device, dtype)
        self.projected[1, :2, 0] = 0  # coordinates without a direction
        # Mixes strong and weak retention.
        a, bias = torch.rand(HEADS * width) * 3, torch.randn(HEADS * width) * 4 - 4
        up = torch.randn(HEADS, width, width).to(device, dtype)
        self.retention = up, a.to(device), bias.to(device)
        self.state = torch.randn(3, HEADS, width, width).to(device)
        self.lengths = torch.tensor([0, 5, 77], dtype=torch.int32, device=device)
        self.active = torch.tensor([1, 1, 0], dtype=torch.int32, device=device)
        self.tables = tables(width, device)

    def step(self, wide: bool) -> tuple[Tensor, Tensor]:
        """y (B, H D) and C by the recurrence; in float64 if `wide`."""
        kind = torch.float64 if wide else self.projected.dtype
        up, *rates = self.retention
        p1, p2 = (placed(self.projected[:, k], self.lengths).to(kind) for k in (0, 1))
        info, inner = self.projected[:, 2:].to(kind).unbind(1)
        raw = torch.einsum("bhk,hjk->bhj", inner, up.to(kind)).flatten(1)
        wider = torch.promote_types(kind, torch.float32)
        raw, a, bias, C = (x.to(wider) for x in (raw, *rates, self.state))
        g = (-a.exp() * F.softplus(raw + bias)).view(*info.shape[:2], 1, -1)
        y, C = ops.linear_relation(p1, p2, info[:, :, None], g, 1.3, C)
        return y.flatten(1), C

    def token(self, chained: bool = False) -> Tensor:
        return decoding.linear_token(
            self.projected, self.projected[:, 3], self.retention, self.tables, self.state,
            self.lengths, self.active, 1.3, chained=chained,
        )  # fmt: skip


def check_linear(*given) -> None:
    case = Linear(*given)
    (truth, C_truth), (yardstick, C_yardstick) = case.step(True), case.step(False)
    stopped = case.state[2].clone()
    with poisoned_memory():
        y = case.token()
    assert_close("y", y, truth, yardstick, SLACK[y.dtype])
    assert_close("C", case.state[:2], C_truth[:2], C_yardstick[:2], SLACK[y.dtype])
    assert torch.equal(case.state[2], stopped)


def check_project(batch: int, K: int, N: int, dtype: torch.dtype, device="cpu") -> None:
    torch.manual_seed(K)
    stream = torch.randn(batch, K).to(device)
    stream[-1] *= 1e-3  # eps halves its normed square
    weight = (torch.randn(N, K) / math.sqrt(K)).to(device, dtype)
    before = torch.randn(batch, N).to(device)

    def expected(kind: torch.dtype) -> dict[str, Tensor]:
        wide = torch.promote_types(kind, torch.float32)
        x = stream.to(wide)
        normed = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).to(kind)
        product = normed @ weight.to(kind).T
        gate, up = product.chunk(2, dim=-1)
        sums = before.to(wide) + stream.to(dtype).to(kind) @ weight.to(kind).T
        return {"": product, "gate": F.silu(gate) * up, "add": sums}

    def ours(then: str, rows: int = batch) -> Tensor:
        if then == "add":
            x, out = stream[:rows].to(dtype), before[:rows].clone()
            return decoding.project(x, weight, out=out, then=then)
        return decoding.project(stream[:rows], weight, 1e-6, then=then)

    truth, yardstick = expected(torch.float64), expected(dtype)
    for then in truth:
        with poisoned_memory():
            found = ours(then)
        assert_close(then, found, truth[then], yardstick[then], SLACK[dtype])
        # A row has the same result in any batch.
        assert torch.equal(found[:1], ours(then, 1))


def check_draws(V: int, temperature: float, device="cpu") -> None:
    """Check ids against FP64 probabilities, and that rows count tokens until they stop."""
    torch.manual_seed(V)
    logits = 4 * torch.randn(5, V)
    logits[0, V // 2 :] = -2000.0  # probability 0
    logits[1] = logits[1, 0]
    logits[2, V - 1] = torch.nan
    logits[3, 1:] = -torch.inf
    logits[4, 0] = -2000.0
    uniforms = torch.rand(3, 5, dtype=torch.float64)
    uniforms[:, 0], uniforms[0, [1, 4]] = 1 - 2.0**-53, 0
    probabilities = next_token_probabilities(logits, Sampling(temperature))
    cumulative = probabilities.cumsum(-1)

    def expected(numbers: Tensor) -> Tensor:
        beyond = cumulative > numbers[:, None] * cumulative[:, -1:]
        ids = (beyond & (probabilities > 0)).int().argmax(-1)
        return ids.masked_fill(~logits.isfinite().all(-1), -1)

    warmth = torch.full((1,), temperature, dtype=torch.float64, device=device)
    given = logits.to(device), warmth if temperature else None, uniforms.to(device)
    ids = torch.full((5,), -9, device=device)
    decoding.draw(*given, ids)
    assert torch.equal(ids.cpu(), expected(uniforms[0]))
    # The sixth draw (index 5) uses the last of three rows. Row 4 has ended; row 1 ends now.
    counts = torch.full((5,), 4), torch.arange(5).int(), torch.tensor([1, 1, 1, 1, 0]).int()
    counts = tuple(x.to(device) for x in counts)
    stops = expected(uniforms[2])
    stop = stops[4] = stops[1].item()
    decoding.draw(*given, ids, counts, stop)
    assert torch.equal(ids.cpu(), stops)
    active = (stops != stop).int().tolist()
    assert [x.tolist() for x in counts] == [[5] * 5, [1, 2, 3, 4, 4], active]


def check_embeds(device="cpu") -> None:
    embedding = torch.randn(7, 600).to(device)
    found = decoding.embed(torch.tensor([6, -1, 3]).to(device), embedding, 1.5)
    assert torch.equal(found, embedding[[6, 0, 3]] * 1.5)


HISTORIES = [(False, True), (True, True), (True, False)]


def test_the_interpreter_reproduces_the_steps():
    run_interpreted(__file__)


@pytest.mark.skipif(not INTERPRETED, reason="runs in Triton's interpreter")
class TestInterpreted:
    @pytest.mark.parametrize(("relation", "own"), HISTORIES)
    @pytest.mark.parametrize(
        "given",
        [
            (24, torch.float32),
            (16, torch.float16, "cpu", 1.0, 2),
            (32, torch.float32, "cpu", 40.0, 1),
        ],
        ids=str,
    )
    def test_a_token_with_its_history_is_the_step(self, relation, own, given, monkeypatch):
        """Lanes are few enough that the three pieces take two steps."""
        monkeypatch.setattr(mixers, "_BLOCK_S", 2)
        check_history(relation, own, *given)

    @pytest.mark.parametrize("given", [(24, torch.float32), (16, torch.float16)], ids=str)
    def test_a_token_of_linear_relation_is_the_recurrence(self, given):
        check_linear(*given)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_products_are_those_of_the_decoder(self, dtype):
        check_project(19, 152, 40, dtype)
        check_project(2, 1100, 18, dtype)

    @pytest.mark.parametrize("V", [53, 5000])
    def test_the_next_token_is_drawn_by_its_probability(self, V):
        for temperature in (0.7, 0.004, 0):
            check_draws(V, temperature)
        check_embeds()

    def test_a_draw_past_the_last_cumulative_sum_is_the_last_token(self):
        """Added in order, the small weights do not change the cumulative sum; in pairs, they do."""
        logits = torch.full((1, 53), -54 * math.log(2))
        logits[0, 0] = 0
        ids, one = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
        decoding.draw(logits, one, one[None] - 2.0**-53, ids)
        assert ids.item() == 52

    def test_a_row_is_the_same_in_every_batch_and_capacity(self):
        case = History(24, torch.float32)
        whole = case.token(True, True)
        alone = decoding.history_token(
            case.projected[3:4], case.tables,
            tuple(case.history[:, 3:4, :, :200].contiguous()), case.lengths[3:4], case.lam, 1.3,
        )  # fmt: skip
        assert torch.equal(alone[0], whole[3])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize("width", [16, 48, 64, 80, 128])
class TestOnGpu:
    @pytest.mark.parametrize(("relation", "own"), HISTORIES)
    def test_a_token_with_its_history_is_the_step(self, relation, own, width, dtype, monkeypatch):
        check_history(relation, own, width, dtype, "cuda")
        monkeypatch.setattr(mixers, "_BLOCK_S", 2)  # three pieces then take two steps
        check_history(relation, own, width, dtype, "cuda", 6.0)
        for shared in (1, 2):
            check_history(relation, own, width, dtype, "cuda", 1.0, shared)

    def test_a_token_of_linear_relation_is_the_recurrence(self, width, dtype):
        check_linear(width, dtype, "cuda")

    def test_products_are_those_of_the_decoder(self, width, dtype):
        check_project(19, 8 * width, 6 * width, dtype, "cuda")
        check_project(33, 4096, 100, dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("V", [53, 4096, 50304])
def test_the_next_token_is_drawn_by_its_probability_on_a_gpu(V):
    for temperature in (0.7, 0.004, 0):
        check_draws(V, temperature, "cuda")
    check_embeds("cuda")


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in the interpreter")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_kernel_compiles_without_spilling(dtype, architecture):
    """With the arguments of a model with head width 64."""
    from fake_gpu import fake_gpu
    from machine_code import assert_sound

    history, linear = History(64, dtype), Linear(64, dtype)
    x, weight = torch.zeros(2, 512), torch.zeros(2048, 512, dtype=dtype)
    ids, one = torch.zeros(2, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    project = partial(decoding.project, chained=True)
    with fake_gpu(architecture) as compiled:
        history.token(True, True, True)
        history.token(False, True, True)
        linear.token(True)
        project(x, weight, 1e-6)
        project(x.to(dtype), weight, out=torch.zeros(2, 2048), then="add")
        for n in (1, 2, 8):  # in one step, and in several
            project(x.repeat(1, n), weight.repeat(1, n), 1e-6, then="gate")
        project(x.repeat(1, 2), weight.repeat(2, 2), 1e-6)
        decoding.draw(x, one, one.expand(3, 2).contiguous(), ids, chained=True)
        decoding.draw(x, None, one.expand(1, 2).contiguous(), ids, (ids, ids.int(), ids.int()), 3)
        decoding.embed(ids, torch.zeros(3, 64))
    names = "piece", "token", "linear", "project", "draw", "embed"
    assert compiled.keys() == {f"{name}_kernel" for name in names}
    programs = 2 if architecture == "sm_90" else 1
    for name, kernels in compiled.items():
        for kernel in kernels:
            assert_sound(name, kernel, architecture, stack=0, stores=True, programs=programs)


def test_a_width_or_dtype_without_kernels_is_named():
    assert "head width is 8" in why_no_decoding(torch.device("cpu"), torch.float32, 8)
    assert "float64" in why_no_decoding(torch.device("cpu"), torch.float64, 64)
    for width in (16, 128):
        why = why_no_decoding(torch.device("cpu"), torch.float16, width)
        assert why is None if INTERPRETED else "needs an NVIDIA GPU" in why
