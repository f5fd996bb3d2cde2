"""Decoding from a history gives the full forward's rows, for any split into blocks."""

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from conftest import refusal
from equations import assert_close, draw
from models import stirred
from torch import Tensor

from relation import ops
from relation.nn import Decoder
from relation.variants import LINEAR, VARIANTS

LENGTH, BATCH = 31, 2
TOKENS = torch.randint(29, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
BLOCKS = [7, 1, 1, 3, 2, 1, 16]
LAM = torch.tensor(0.7, dtype=torch.float64)


def full(operator: Callable, **options) -> Callable:
    return lambda *x: operator(*x, LAM, 1.3, **options)


PAIRS = {
    "attention": (ops.attention_step, ops.causal_attention),
    "null": [partial(each, null=True) for each in (ops.attention_step, ops.causal_attention)],
    **{
        f"full {o}": [full(each, **o) for each in (ops.full_relation_step, ops.full_relation)]
        for o in ({}, {"transport_self": False}, {"silu": False})
    },
}


@pytest.mark.parametrize("operator", PAIRS)
@pytest.mark.parametrize("n", [1, 2, 63, 130])
def test_a_step_is_the_last_rows_of_the_whole(operator, n):
    """The value and all gradients."""
    step, whole = PAIRS[operator]
    for before in (0, 1, 64):
        leaves = [x.requires_grad_() for x in draw(2, 3, before + n, 6)]
        expected = whole(*leaves)[:, :, before:]
        actual = step(leaves[0][:, :, before:], *leaves[1:])
        assert_close(actual, expected, before + n + 6)
        gradients = [torch.autograd.grad(y.square().sum(), leaves) for y in (actual, expected)]
        for ours, truth in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-10)


def decoded(model: Decoder, sizes: Iterable[int]) -> Tensor:
    """Logits (B, T, V) of TOKENS, read in blocks of these sizes."""
    state, tokens = model.decode_state(capacity=5), TOKENS.to(model.embedding.weight.device)
    parts = [model.decode(block, state) for block in tokens.split(list(sizes), dim=1)]
    assert state.length == sum(sizes)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_decoding_is_as_accurate_as_the_full_forward(variant, precision, device):
    model = stirred(variant).float()
    truth = Decoder(model.config).double()
    truth.load_state_dict(model.state_dict())
    expected = truth(TOKENS)
    model.to(device)
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
        yardstick, actual = model(TOKENS.to(device)), decoded(model, BLOCKS)
    # One score's rounding decides the largest error of a few hundred logits, so use the norm.
    error, allowed = ((x.cpu().double() - expected).norm() for x in (actual, yardstick))
    assert error <= 2 * allowed + 1e-5 * expected.norm()


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_rows_of_unequal_length_decode_as_each_alone(variant):
    model, lengths, blocks = stirred(variant), (9, 4, 17), (2, 1, 8)  # 8 is more than one row has
    tokens = torch.randint(29, (3, 28), generator=torch.Generator().manual_seed(2))
    rows = [tokens[b, : n + sum(blocks)] for b, n in enumerate(lengths)]
    state = model.decode_state(capacity=5)
    padded = torch.full((3, 20), 7)
    for b, n in enumerate(lengths):
        padded[b, :n] = tokens[b, :n]
    last = model.read(padded, state, lengths)
    read = list(lengths)
    for block in blocks:
        news = [row[n : n + block] for row, n in zip(rows, read, strict=True)]
        last = model.decode(torch.stack(news), state)[:, -1]
        read = [n + block for n in read]
    assert state.length == max(read) and state.lengths.tolist() == read
    for row, logits in zip(rows, last, strict=True):
        torch.testing.assert_close(logits, model(row[None])[0, -1], rtol=0, atol=1e-11)


def test_a_state_filled_in_inference_mode_is_read_on_outside_it():
    model, state = stirred("hybrid"), stirred("hybrid").decode_state()
    with torch.inference_mode():
        model.decode(TOKENS[:, :9], state)
        state.reorder(torch.tensor([1, 0]))
    logits = model.decode(TOKENS.flip(0)[:, 9:], state)
    torch.testing.assert_close(logits, model(TOKENS.flip(0))[:, 9:])


@torch.no_grad()
def test_a_state_keeps_the_rows_it_is_given_in_their_order():
    model = stirred("hybrid")
    state, alike = model.decode_state(), model.decode_state()
    model.read(TOKENS, state, [11, 23])
    model.read(TOKENS, alike)
    for each, lengths in ((state, [23, 11, 23]), (alike, None)):
        each.reorder(torch.tensor([1, 0, 1]))
        assert (each.lengths if lengths is None else each.lengths.tolist()) == lengths
    decoded = model.decode(TOKENS[:1, :1].expand(3, 1), state)[:, 0]
    for row, end, logits in zip((1, 0, 1), (23, 11, 23), decoded, strict=True):
        alone = torch.cat((TOKENS[row, :end], TOKENS[0, :1]))
        torch.testing.assert_close(logits, model(alone[None])[0, -1], rtol=0, atol=1e-11)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", ["mha", "full", "linear", "hybrid", "mha-self"])
def test_state_bytes_are_table_1s(variant, precision):
    """O(T d) per layer with history, O(d^2 / H) per Linear layer, 0 before the first token."""
    model = stirred(variant).float()
    d, width = 24, model.config.head_dim
    size = 2 if precision == "bf16" else 4
    state = model.decode_state(capacity=2)
    assert (state.length, state.nbytes) == (0, 0)
    for sizes in (1, 4, 20):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            model.decode(TOKENS[:, :sizes], state)
        # C is FP32 under any autocast.
        assert [layer.nbytes for layer in state.layers] == [
            BATCH * d * width * 4 if letter == LINEAR else 2 * BATCH * state.length * d * size
            for letter in model.config.layout
        ]


def test_a_state_that_only_some_layers_read_into_is_refused(monkeypatch):
    """For example, if memory runs out in the middle of a block."""
    model = stirred("hybrid")
    state = model.decode_state()
    with monkeypatch.context() as patch:
        patch.delattr(model.blocks[2], "ffn")
        with pytest.raises(AttributeError):
            model.decode(TOKENS, state)
    assert "only some layers" in refusal(lambda: model.decode(TOKENS, state))


@pytest.mark.parametrize("variant", ["full", "linear"])
def test_unusable_tokens_lengths_and_states_are_refused(variant):
    model = stirred(variant)
    state, other = model.decode_state(), stirred("hybrid").decode_state()
    for tokens in (TOKENS[0], TOKENS[:, :0], TOKENS.float()):
        assert "tokens" in refusal(lambda x=tokens: model.decode(x, state))
    for lengths, message in (([3], "2 lengths"), ([3, 99], "1 to 31"), ([3, 0], "1 to 31")):
        assert message in refusal(lambda given=lengths: model.read(TOKENS, state, given))
    assert "layers" in refusal(lambda: model.decode(TOKENS, other))
    narrow = model.decode(TOKENS.int(), state)
    assert torch.equal(narrow, model.decode(TOKENS, model.decode_state()))
    assert "empty cache" in refusal(lambda: model.read(TOKENS, state, [2, 3]))
    unequal = model.decode_state()
    model.read(TOKENS, unequal, [2, 3])
    for tokens in (TOKENS[:1], TOKENS[[0, 1, 1]]):
        message = refusal(lambda x=tokens: model.decode(x, unequal))
        assert f"block has {len(tokens)} rows and the cache 2" in message
    message = {"full": "(1, 4, 6, ", "linear": "state has shape (2, "}[variant]
    assert message in refusal(lambda: model.decode(TOKENS[:1], state))
    assert state.length == LENGTH
