"""Attention and Full Relation by FlashAttention's CuTe kernels, with a stand-in for the library."""

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch
from benchmarks import CPU, CUDA, SHAPE
from torch import Tensor

from relation.bench import flash
from relation.bench.cute import relation_scores
from relation.bench.peers import Peer, relative_errors
from relation.verify.inputs import Shape

PEERS = [
    peer
    for peer in flash.BENCHMARKS["cuda"].peers
    if peer.name in ("flash-attention-cute", "cute-relation")
]
CUTE = ModuleType("cutlass.cute")
CUTE.where = torch.where
CUTE.math = SimpleNamespace(tanh=lambda x, fastmath: x.tanh())


class Scored(torch.autograd.Function):
    """Scores (B, H, T, T) through a score function and its backward, a row at a time."""

    @staticmethod
    def forward(ctx, U: Tensor, mod: Callable, mod_bwd: Callable, aux: list[Tensor]) -> Tensor:
        ctx.save_for_backward(U)
        ctx.mod_bwd, ctx.aux = mod_bwd, aux
        return rows(mod, (U,), aux)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return rows(ctx.mod_bwd, (grad, *ctx.saved_tensors), ctx.aux), None, None, None


def rows(mod: Callable, given: tuple[Tensor, ...], aux: list[Tensor]) -> Tensor:
    length = given[0].shape[-1]
    j = torch.arange(length)
    return torch.stack([
        mod(
            *(x[:, :, i] for x in given), 0, 0,
            q_idx=torch.tensor([i]), kv_idx=j, seqlen_info=None, aux_tensors=aux,
        )
        for i in range(length)
    ], dim=2)  # fmt: skip


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float,
    causal: bool,
    score_mod: Callable | None = None,
    score_mod_bwd: Callable | None = None,
    aux_tensors: list[Tensor] | None = None,
) -> tuple[Tensor, None]:
    """The library's function, (B, T, H, D), as its interface describes it."""
    assert causal
    assert all(x.shape[-1] % 32 == 0 for x in (q, k, v))  # at others dq is wrong on sm_90
    U = torch.einsum("bihd,bjhd->bhij", q, k) * softmax_scale
    if score_mod is not None:
        U = Scored.apply(U, score_mod, score_mod_bwd, aux_tensors)
    later = torch.ones(U.shape[-2:], dtype=torch.bool).triu(1)
    return torch.einsum("bhij,bjhd->bihd", U.masked_fill(later, -torch.inf).softmax(-1), v), None


@pytest.fixture
def fake_library(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, cutlass = ModuleType("flash_attn.cute"), ModuleType("cutlass")
    kernels.flash_attn_func, cutlass.cute = flash_attn_func, CUTE
    fakes = {
        "flash_attn": ModuleType("flash_attn"),
        "flash_attn.cute": kernels,
        "cutlass": cutlass,
        "cutlass.cute": CUTE,
    }
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
@pytest.mark.parametrize("shape", [SHAPE, Shape("", 2, 3, 1, 8)])
def test_peers_agree_with_their_definitions_through_a_stand_in(
    fake_library: None, peer: Peer, shape: Shape
) -> None:
    inputs = flash.draw(shape, torch.float32, CPU, torch.Generator().manual_seed(1))
    with torch.no_grad():
        inputs["p1"] *= 4  # scores far from zero, where SiLU is not a line
    errors = relative_errors(peer, peer.build(shape, CPU), inputs)
    assert list(errors) == ["Y", "dp1", "dp2", "dinfo"]
    if shape.length == 1:  # the flow is 1 whatever the score is
        errors = {name: errors[name] for name in ("Y", "dinfo")}
    assert max(errors.values()) < 1e-5  # FP32: sums of 33 and 16 terms, 6e-8 a rounding


@pytest.mark.parametrize("tau", [2.0, 0.75])
def test_the_backward_is_the_score_functions_derivative(tau: float) -> None:
    score_mod, score_mod_bwd = relation_scores(CUTE, tau)
    U = 4 * torch.randn(1, 1, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    aux = [torch.arange(1.0, 10.0).double().log()]
    given = U.requires_grad_(), score_mod, score_mod_bwd, aux
    assert torch.autograd.gradcheck(Scored.apply, given)


@pytest.mark.parametrize("library, reason", [
    (None, "not installed; pip install flash-attn-4"),
    (object(), "it needs a GPU, and this device is cpu"),
])  # fmt: skip
def test_a_missing_library_or_gpu_is_the_reason_given(
    monkeypatch: pytest.MonkeyPatch, library: object, reason: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: library if name == "flash_attn.cute" else find(name),
    )
    for peer in PEERS:
        assert peer.why_not_timed(SHAPE, CPU).endswith(reason)
        assert (peer.why_not_timed(SHAPE, CUDA) is None) == (library is not None)


def test_a_missing_parent_package_is_the_reason_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    for peer in PEERS:
        assert "flash-attn-4" in peer.why_not_timed(SHAPE, CUDA)
