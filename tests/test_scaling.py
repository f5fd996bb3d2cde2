"""Scaling efficiency: throughput of several processes over that of as many single ones."""

import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from training import run_spec

from relation.bench import scaling
from relation.bench.scaling import Scaling, launch
from relation.cli import main
from relation.errors import RunError


def test_two_processes_are_measured() -> None:
    """Seconds go by while three processes import PyTorch."""
    found = launch(run_spec(), processes=2, warmup=1, updates=2)
    assert found.processes == 2 and found.tokens_per_second > 0


def test_one_process_is_measured_where_it_runs() -> None:
    assert scaling.measure_updates(run_spec(), warmup=0, updates=1) > 0


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
    monkeypatch.setattr(scaling, "launch", lambda spec, n, warmup, updates: Scaling(n, 1e3 + n))
    command = ["scaling", "10M/full/42", "--config", str(ROOT / "config.yaml")]
    assert main([*command, "--campaign", "paper", "--processes", "4,2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["processes", "tok/s", "efficiency"],
        ["1", "1,001", "100.0%"],
        ["2", "1,002", "50.0%"],
        ["4", "1,004", "25.1%"],
    ]
    for wrong in (
        ["--processes", "two"],
        ["--processes", "0"],
        ["--processes", "2,8"],
        ["--updates", "0"],
    ):
        assert main([*command, "--campaign", "paper", *wrong]) == 2
        assert capsys.readouterr().err.startswith("error: ")
