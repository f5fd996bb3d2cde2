"""Operators compared with their peers."""

import pandas as pd
import pytest
import torch
from conftest import refusal

from relation.bench.operators import PEERS, Shape, main, peer_calls, rows_of, table
from relation.bench.rounds import Answers
from relation.errors import RunError

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


def test_a_ratio_is_the_time_over_the_subjects_by_round_or_of_medians():
    by_peer = {"own": [1.0, 2.0, 3.0], "peer": [2.0, 8.0, 6.0]}
    by_peer = {name: Answers(samples={"forward": each}) for name, each in by_peer.items()}
    for alone, ratio in ((False, 2.0), (True, 3.0)):
        by_peer["peer"].alone = alone
        _, row, *_ = rows_of(by_peer, "own", Shape(1, 1, 1, 9, 8), "fp32", {})
        assert (row["peer"], row["seconds"], row["ratio"]) == ("peer", 6.0, ratio)
    nothing = list(rows_of({"own": Answers()}, "own", Shape(1, 1, 1, 9, 8), "fp32", {}))
    assert "None" not in table(nothing)


def test_another_function_is_no_peer(monkeypatch):
    right = PEERS["tiled"].definition
    wrong = PEERS["tiled"]._replace(definition=lambda *given, **more: 1.1 * right(*given, **more))
    monkeypatch.setitem(PEERS, "tiled", wrong)
    with pytest.raises(RunError, match="off its definition"):
        next(peer_calls("tiled", "fp32", CPU, Shape(1, 1, 1, 9, 8)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--shapes 1,2,33,x", "give B,H,T,D"),
        ("--shapes 1,4/3,33,16", "K a divisor of H"),
        ("--shapes 0,4,33,16", "positive numbers"),
        ("--shapes 1,4,1,16", "T > 1"),
        ("--documents 1", "documents of 2 or more tokens"),
        ("--peers tiled,cudn", "unknown peer 'cudn'; did you mean 'cudnn'?"),
        ("--rounds 0", "at least 1 round"),
        ("--output .", "is a folder; give a file"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments, message):
    assert message in refusal(lambda: main(["--device", "cpu", *arguments.split()]))


@pytest.mark.gpu
def test_peers_on_a_gpu(tmp_path):
    path = tmp_path / "operators.parquet"
    peers = "flash-relation,flash-attention-2,cudnn,flex,materialised-compiled,linear-relation"
    main(["--shapes", "2,4,500,64", "--rounds", "6", "--peers", peers, "--output", str(path)])
    rows = pd.read_parquet(path)
    assert set(rows["status"]) == {"PASS"}, list(rows["reason"])
    assert (rows["peak_bytes"] > 0).all() and (rows["error"] < 0.02).all()
