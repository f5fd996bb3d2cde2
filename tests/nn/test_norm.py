"""RMSNorm with its scale in the projections behind it, against PyTorch's."""

import pytest
import torch
from torch import Tensor, nn

from relation.nn.model import RMSNorm

WIDTH, OUT, EPS = 24, 16, 1e-6


def made(dtype: torch.dtype) -> tuple[RMSNorm, Tensor, Tensor, Tensor]:
    """A norm with its own scale, states (2, 5, d), a weight (n, d) and a gradient (2, 5, n)."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    norm = RMSNorm(WIDTH, eps=EPS, dtype=dtype)
    norm.load_state_dict({"weight": 1 + 0.3 * drawn(WIDTH)})
    x = 4 * drawn(2, 5, WIDTH)
    # RMS far below the root of eps, where eps is not forgotten.
    x[0, 0] *= 1e-5
    return norm, x.requires_grad_(), drawn(OUT, WIDTH).requires_grad_(), drawn(2, 5, OUT)


def results(y: Tensor, dy: Tensor, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return y.detach(), *torch.autograd.grad(y, leaves, dy)


def test_under_autocast_nothing_of_the_stream_is_kept() -> None:
    """The states are BF16 and the only tensor of their size that the backward pass needs."""
    norm, x, weight, dy = made(torch.float32)
    kept: list[Tensor] = []
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t),
    ):
        normed = norm(x)
        y = normed.project(weight)
    assert normed.states.dtype == y.dtype == torch.bfloat16
    large = {tensor.data_ptr() for tensor in kept if tensor.numel() == x.numel()}
    assert large == {normed.states.data_ptr()}
    gradients = torch.autograd.grad(y, (x, norm.weight, weight), dy.bfloat16())
    assert {gradient.dtype for gradient in gradients} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_are_as_exact_as_rmsnorms_in_the_same_precision(dtype: torch.dtype) -> None:
    """With three readers, as the mixers are: their gradients meet in the states."""
    norm, x, weight, dy = made(torch.float32)
    weights = [(weight * s).detach().requires_grad_() for s in (1.0, -0.7, 0.4)]
    leaves = (x, norm.weight, *weights)
    doubles = tuple(leaf.detach().double().requires_grad_() for leaf in leaves)
    exact = nn.functional.rms_norm(doubles[0], (WIDTH,), doubles[1], EPS)
    dys = torch.cat((dy, 0.3 * dy.flip(0), dy.flip(1)), -1)
    truth = results(torch.cat([exact @ w.T for w in doubles[2:]], -1), dys.double(), doubles)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        normed, plain_states = norm(x), nn.functional.rms_norm(x, (WIDTH,), norm.weight, EPS)
        ours = torch.cat([normed.project(w) for w in weights], -1)
        plain = torch.cat([nn.functional.linear(plain_states, w) for w in weights], -1)
    ours, plain = (results(y, dys.to(dtype), leaves) for y in (ours, plain))
    for actual, yardstick, expected in zip(ours, plain, truth, strict=True):
        error, allowed = ((y.double() - expected).norm() for y in (actual, yardstick))
        assert error <= 2 * allowed + 2**-22 * expected.norm()
