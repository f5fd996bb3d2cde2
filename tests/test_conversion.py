"""From attention to Relation: what is exact, which lambda is chosen, and the command."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from equations import draw
from test_model import TOKENS, build, stirred
from torch import Tensor

from relation import ops
from relation.errors import InputError
from relation.nn import Decoder
from relation.nn.conversion import fit_lambda, full_config, start_from_attention


def converted(attention: Decoder) -> Decoder:
    model = Decoder(full_config(attention.config)).to(attention.embedding.weight.dtype)
    start_from_attention(model, attention)
    return model


def matching_lambda(U: Tensor, i: int) -> float:
    """The lambda for which row i (from 1) of one head has attention's Self mass, by its odds."""
    past, own = U[i - 1, : i - 1], U[i - 1, i - 1]
    S = torch.sigmoid(own / 2)
    odds = F.silu(past).logsumexp(0) - S - past.logsumexp(0) + own
    return odds.item() / math.log(i)


def test_the_second_row_is_attentions_for_one_lambda_and_the_first_for_all():
    p1, p2 = draw(1, 1, 2, 6, count=2)
    expected = ops.causal_flow(p1, p2)
    lam = matching_lambda((p1 @ p2.mT / 6**0.5)[0, 0], 2)
    for value, same in ((lam, True), (lam + 0.1, False)):
        found = ops.full_flow(p1, p2, torch.tensor(value, dtype=torch.float64))
        assert torch.equal(found[:, :, 0], expected[:, :, 0])
        assert torch.allclose(found, expected, rtol=0, atol=1e-15) is same


def test_a_row_of_equal_scores_is_attentions_for_one_lambda_but_no_other_row_is():
    p1, p2 = draw(1, 1, 5, 6, count=2)
    p2[:, :, :4] = p2[:, :, :1]  # all that the last token has before it
    U = (p1 @ p2.mT / 6**0.5)[0, 0]
    lam = torch.tensor(matching_lambda(U, 5), dtype=torch.float64)
    found, expected = ops.full_flow(p1, p2, lam), ops.causal_flow(p1, p2)
    torch.testing.assert_close(found[0, 0, 4], expected[0, 0, 4], rtol=1e-13, atol=0)
    assert not torch.allclose(found[0, 0, 3], expected[0, 0, 3], atol=1e-3)


def test_strong_scores_share_history_as_attention_does():
    """Within x / (1 + e^x) of the score, whatever lambda is."""
    p1, p2 = draw(1, 2, 7, 6, count=2)
    U = torch.linspace(12, 14, 7, dtype=torch.float64)
    p1[..., 0], p1[..., 1:], p2[..., 0] = 6**0.5, 0, U
    shares = []
    for flow in (ops.full_flow(p1, p2, torch.tensor(0.7).double()), ops.causal_flow(p1, p2)):
        shares.append(flow[..., 6, :6] / flow[..., 6, :6].sum(-1, keepdim=True))
    assert (shares[0] / shares[1] - 1).abs().max() < 2 * 14 / (1 + math.exp(12))


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2}], ids=["own heads", "shared heads"])
def test_a_converted_model_reads_the_first_token_as_attention_does(changes):
    attention = stirred("mha", **changes)
    model = converted(attention)
    expected, found = attention(TOKENS), model(TOKENS)
    torch.testing.assert_close(found[:, 0], expected[:, 0], rtol=1e-12, atol=1e-12)
    assert (found[:, 1:] - expected[:, 1:]).abs().max() > 1e-3
    assert all(not block.mixer.theta.any() for block in model.blocks)


def loss_of(model: Decoder) -> Callable[[Tensor], Tensor]:
    def loss(tokens: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return loss


def test_the_chosen_lambda_has_the_lowest_loss():
    attention, batches = stirred("mha"), [TOKENS[:1], TOKENS[1:]]
    model, again = converted(attention), converted(attention)
    loss = loss_of(model)
    kept = {n: p.clone() for n, p in model.named_parameters() if not n.endswith(".lam")}
    first = sum(map(loss, batches)).item()
    before, after = fit_lambda(model, batches, loss)
    assert (before, True) == (pytest.approx(first), after < before)
    assert all(torch.equal(p, kept[n]) for n, p in model.named_parameters() if n in kept)
    with torch.no_grad():
        for lam in (block.mixer.lam for block in model.blocks):
            for change in (-0.3, 0.6, -0.3):
                lam += change
                assert sum(map(loss, batches)).item() > after - 1e-5
    fit_lambda(again, batches, loss_of(again))
    assert fit_lambda(again, batches, loss_of(again))[0] == after


def test_a_slow_slope_is_followed_to_its_end():
    model = build("full")
    numbers = [block.mixer.lam for block in model.blocks]
    before, after = fit_lambda(
        model, [TOKENS], lambda _: 1e-4 * sum((lam - 4).square() for lam in numbers)
    )
    assert (before > 1e-3, after < 1e-6) == (True, True)
    for lam in numbers:
        assert lam.item() == pytest.approx(4, abs=0.1)


def test_what_cannot_be_converted_is_refused():
    with pytest.raises(InputError, match="no MHA layer"):
        full_config(build("full").config)
    with pytest.raises(InputError, match="otherwise that shape"):
        start_from_attention(build("full", d_model=48), build("mha"))
    with pytest.raises(InputError, match="no lambda"):
        fit_lambda(build("mha"), [TOKENS], lambda tokens: tokens.sum())
