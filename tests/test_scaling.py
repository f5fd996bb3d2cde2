"""Scaling efficiency: throughput of several processes over that of as many single ones."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT, campaign
from training import run_spec

from relation.bench import scaling
from relation.bench.scaling import Scaling, launch
from relation.cli import main
from relation.errors import RunError
from relation.nn import Decoder


def test_two_processes_are_measured_in_shards() -> None:
    """Seconds go by while three processes import PyTorch."""
    found = launch(run_spec(shard=True), processes=2, warmup=1, updates=2)
    assert found.processes == 2 and found.tokens_per_second > 0
    assert found.sharded and found.peak_gib is None


def test_one_process_is_measured_where_it_runs() -> None:
    found = scaling.measure_updates(run_spec(shard=True), warmup=0, updates=1)
    assert found.tokens_per_second > 0 and not found.sharded


@pytest.mark.gpu
def test_two_gpus_hold_less_each_of_a_model_in_shards() -> None:
    """Of 10M's parameters, gradients, their sum and two moments, 20 bytes each, half is gone."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    spec = campaign("paper").run("10M", "full", 42)
    spec = replace(spec, micro=1, tokens_per_update=spec.accumulation * spec.context)
    held = [launch(replace(spec, shard=s), 2, 2, 2).peak_gib for s in (False, True)]
    parameters = sum(p.numel() for p in Decoder(spec.model_config()).parameters())
    assert held[0] - held[1] > 6 * parameters / 2**30


def test_efficiency_is_one_where_twice_the_processes_do_twice_the_work() -> None:
    alone = Scaling(1, 100.0)
    assert [Scaling(n, t).efficiency(alone) for n, t in ((1, 100.0), (2, 200.0), (4, 300.0))] == [
        1.0,
        1.0,
        0.75,
    ]


@pytest.mark.parametrize(
    "printed, said",
    [
        ("torchrun says this\nerror: too few GPUs\nTraceback\nError: 1", "^too few GPUs$"),
        ("W torch\nValueError: no such device\nChildFailedError", "^ValueError: no such device$"),
        ("", "status 1"),
    ],
)
def test_a_failure_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, printed: str, said: str
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", printed)
    monkeypatch.setattr(scaling.subprocess, "run", lambda *arguments, **options: failed)
    with pytest.raises(RunError, match=said):
        launch(run_spec(), 2, 1, 1)


def test_the_command_prints_a_row_for_each_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def launched(spec, n, warmup, updates) -> Scaling:
        return Scaling(n, 1e3 + n, 8 / n if spec.shard else 8.0, spec.shard)

    monkeypatch.setattr(scaling, "launch", launched)
    command = ["scaling", "10M/full/42", "--config", str(ROOT / "config.yaml")]
    assert main([*command, "--campaign", "paper", "--processes", "4,2", "--shard"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["processes", "model", "tok/s", "efficiency", "peak", "GiB"],
        ["1", "whole", "1,001", "100.0%", "8.00"],
        ["2", "whole", "1,002", "50.0%", "8.00"],
        ["2", "in", "shards", "1,002", "50.0%", "4.00"],
        ["4", "whole", "1,004", "25.1%", "8.00"],
        ["4", "in", "shards", "1,004", "25.1%", "2.00"],
    ]
    for wrong in (
        ["--processes", "two"],
        ["--processes", "0"],
        ["--processes", "2,8"],
        ["--updates", "0"],
    ):
        assert main([*command, "--campaign", "paper", *wrong]) == 2
        assert capsys.readouterr().err.startswith("error: ")
