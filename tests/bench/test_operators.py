"""Operators beside their peers on a CPU; FlashAttention's CuTe kernels with a stand-in."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest
import torch
from torch import Tensor

from relation.bench import operators
from relation.bench.operators import PEERS, PeerCalls, Shape, draw, main
from relation.errors import InputError, RunError

CPU = torch.device("cpu")
CUTE = ModuleType("cutlass.cute")
CUTE.where = torch.where
CUTE.math = SimpleNamespace(tanh=lambda x, fastmath: x.tanh())


def test_operators_of_any_shape_with_documents_and_shared_heads(tmp_path, capsys):
    path = tmp_path / "deep" / "operators.parquet"
    peers = "tiled,attention,cudnn,linear-chunked"
    asked = f"--device cpu --shapes 1,2,33,16 2,4/2,40,20 --documents 9 --rounds 6 --peers {peers}"
    main([*asked.split(), "--output", str(path)])
    rows = pd.read_parquet(path)
    assert len(rows) == 2 * 2 * 4 and set(rows["kv_heads"]) == {2}
    assert set(rows.loc[rows["peer"] == "cudnn", "status"]) == {"UNAVAILABLE"}
    passed = rows[rows["peer"] != "cudnn"]
    assert set(passed["status"]) == {"PASS"}, list(passed["reason"])
    assert (passed["error"] < 1e-5).all() and (passed["seconds"] > 0).all()
    assert (passed["seconds_low"] <= passed["seconds"]).all() and (passed["host_seconds"] > 0).all()
    assert (rows.loc[rows["peer"] == "tiled", "ratio"] == 1).all()
    printed = capsys.readouterr().out
    assert "UNAVAILABLE" in printed and str(path) in printed


def test_another_function_is_no_peer(monkeypatch):
    right = PEERS["tiled"].definition
    wrong = PEERS["tiled"]._replace(definition=lambda *given, **more: 1.1 * right(*given, **more))
    monkeypatch.setitem(PEERS, "tiled", wrong)
    with pytest.raises(RunError, match="off its definition"):
        PeerCalls("tiled", "fp32", CPU).prepare(Shape(1, 1, 1, 9, 8), [operators.FORWARD])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--shapes 1,2,33,x", "give B,H,T,D"),
        ("--shapes 1,4/3,33,16", "K that divides H"),
        ("--shapes 0,4,33,16", "positive numbers"),
        ("--peers tiled,cudn", "unknown peer 'cudn'; choose among flash-relation"),
        ("--rounds 0", "at least 1 round"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments, told):
    with pytest.raises(InputError, match=told) as refusal:
        main(["--device", "cpu", *arguments.split()])
    assert "\n" not in str(refusal.value)


class Scored(torch.autograd.Function):
    """Scores (B, H, T, T) through a score function and its backward, a row at a time."""

    @staticmethod
    def forward(ctx, U: Tensor, mod: Callable, mod_bwd: Callable, aux: list[Tensor]) -> Tensor:
        ctx.save_for_backward(U)
        ctx.mod_bwd, ctx.aux = mod_bwd, aux
        return by_row(mod, (U,), aux)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return by_row(ctx.mod_bwd, (grad, *ctx.saved_tensors), ctx.aux), None, None, None


def by_row(mod: Callable, given: tuple[Tensor, ...], aux: list[Tensor]) -> Tensor:
    length = given[0].shape[-1]
    places = {"kv_idx": torch.arange(length), "seqlen_info": None, "aux_tensors": aux}
    rows = [
        mod(*(x[:, :, i] for x in given), 0, 0, q_idx=torch.tensor([i]), **places)
        for i in range(length)
    ]
    return torch.stack(rows, dim=2)


def flash_attn_func(
    q, k, v, *, softmax_scale, causal, score_mod=None, score_mod_bwd=None, aux_tensors=None
):
    """The library's function, (B, T, H, D), as its interface describes it."""
    assert causal
    assert all(x.shape[-1] % 32 == 0 for x in (q, k, v))  # at others dq is wrong on sm_90
    U = torch.einsum("bihd,bjhd->bhij", q, k) * softmax_scale
    if score_mod is not None:
        U = Scored.apply(U, score_mod, score_mod_bwd, aux_tensors)
    later = torch.ones(U.shape[-2:], dtype=torch.bool).triu(1)
    return torch.einsum("bhij,bjhd->bihd", U.masked_fill(later, -torch.inf).softmax(-1), v), None


@pytest.mark.parametrize("name", ["cute-attention", "cute-relation"])
@pytest.mark.parametrize("shape", [Shape(2, 2, 2, 33, 16), Shape(1, 3, 3, 1, 8)])
def test_cute_peers_are_their_definitions(name, shape, monkeypatch):
    kernels, cutlass = ModuleType("flash_attn.cute"), ModuleType("cutlass")
    kernels.flash_attn_func, cutlass.cute = flash_attn_func, CUTE
    fakes = {"flash_attn": ModuleType("flash_attn"), "flash_attn.cute": kernels}
    for key, module in (fakes | {"cutlass": cutlass, "cutlass.cute": CUTE}).items():
        monkeypatch.setitem(sys.modules, key, module)
    monkeypatch.setattr(operators, "_needs", lambda *given: None)
    inputs = draw(shape, torch.float32, CPU, torch.Generator().manual_seed(1))
    if shape.length > 1:
        with torch.no_grad():
            inputs["p1"] *= 4  # scores far from zero, where SiLU is not a line
        error = PeerCalls(name, "fp32", CPU)._error(PEERS[name].build(CPU), inputs, shape)
        assert error < 1e-5  # FP32: sums of 33 and 16 terms, 6e-8 a rounding
    else:  # the flow is 1 whatever the score is
        given = [inputs[key] for key in PEERS[name].takes]
        torch.testing.assert_close(PEERS[name].build(CPU)(*given), inputs["info"])


@pytest.mark.parametrize("name", ["cute-attention", "gla", "kda"])
def test_what_is_missing_is_named(name, monkeypatch):
    monkeypatch.setattr(operators.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="is not installed; pip install"):
        PEERS[name].build(torch.device("cuda"))
    monkeypatch.setattr(operators.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(InputError, match="needs a GPU"):
        PEERS[name].build(CPU)


@pytest.mark.gpu
def test_peers_on_a_gpu(tmp_path):
    path = tmp_path / "operators.parquet"
    peers = "flash-relation,flash-attention-2,cudnn,flex,materialised-compiled,linear-relation"
    main(["--shapes", "2,4,500,64", "--rounds", "6", "--peers", peers, "--output", str(path)])
    rows = pd.read_parquet(path)
    assert set(rows["status"]) == {"PASS"}, list(rows["reason"])
    assert (rows["peak_bytes"] > 0).all() and (rows["error"] < 0.02).all()
