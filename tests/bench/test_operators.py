"""Operators beside their peers on a CPU; what the CuTe peers give to their library."""

import sys
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from relation.bench import operators
from relation.bench.operators import PEERS, Shape, main, peer_calls
from relation.errors import InputError, RunError

CPU = torch.device("cpu")


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
        next(peer_calls("tiled", "fp32", CPU, Shape(1, 1, 1, 9, 8), [operators.FORWARD]))


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


def test_scores_of_cute_relation_are_full_relations():
    """Row by row, as the kernels call the functions: R of Section 3.1, and its derivative."""
    cute = SimpleNamespace(where=torch.where)
    cute.math = SimpleNamespace(tanh=lambda x, fastmath: x.tanh())
    forward, backward = operators.relation_scores(cute, tau=0.75)
    drawn = torch.Generator().manual_seed(2)
    U, dR = 4 * torch.randn(2, 9, 9, dtype=torch.float64, generator=drawn)
    penalty, j = 0.7 * torch.arange(1.0, 10.0).double().log(), torch.arange(9)
    U.requires_grad_()
    R = torch.where(torch.eye(9) > 0, (U / 0.75).sigmoid(), F.silu(U) - penalty[:, None])
    (dU,) = torch.autograd.grad(R, U, dR)
    for i in range(9):
        place = 0, 0, torch.tensor([i]), j, None, [penalty]
        torch.testing.assert_close(forward(U[i], *place), R[i])
        torch.testing.assert_close(backward(dR[i], U[i], *place), dU[i])


def test_cute_attention_pads_heads_to_widths_that_are_right(monkeypatch):
    def flash_attn_func(q, k, v, *, softmax_scale, causal):
        """The library's function, (B, T, H, D), as its interface describes it."""
        assert causal and q.shape[-1] % 32 == 0
        states = (x.transpose(1, 2) for x in (q, k, v))
        y = F.scaled_dot_product_attention(*states, is_causal=True, scale=softmax_scale)
        return y.transpose(1, 2), None

    library = ModuleType("flash_attn.cute")
    library.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", library)
    q, k, v = torch.randn(3, 1, 2, 17, 48)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(operators.cute_attention(q, k, v), expected)


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match="needs a GPU"):
        PEERS["cute-attention"].build(CPU)
    with pytest.raises(InputError, match="is not installed; pip install"):
        PEERS["cute-relation"].build(torch.device("cuda"))


@pytest.mark.gpu
def test_peers_on_a_gpu(tmp_path):
    path = tmp_path / "operators.parquet"
    peers = "flash-relation,flash-attention-2,cudnn,flex,materialised-compiled,linear-relation"
    main(["--shapes", "2,4,500,64", "--rounds", "6", "--peers", peers, "--output", str(path)])
    rows = pd.read_parquet(path)
    assert set(rows["status"]) == {"PASS"}, list(rows["reason"])
    assert (rows["peak_bytes"] > 0).all() and (rows["error"] < 0.02).all()
