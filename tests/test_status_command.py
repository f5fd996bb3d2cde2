"""The command `status`: a table that fits, choices, and watching until all is done."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT, campaign
from filelock import FileLock
from status_files import (
    Output,
    begin,
    every_run,
    finish,
    prepare,
    resume_folder,
    run,
)

from relation.cli import main
from relation.errors import RunError
from relation.pipeline.results import Results
from relation.train.folder import LOCK


@pytest.fixture
def results(elsewhere: None) -> Results:
    return Results(campaign())


def printed(capsys: Output, *arguments: str) -> str:
    assert main(["status", "--campaign", "tiny", *arguments]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def test_the_table_fits_and_adds_up(results: Results, capsys: Output) -> None:
    prepare(results)
    finish(results, run("10M/mha/42"), rate=123_456_789.0)
    with pytest.raises(RunError), begin(results, run("10M/single-head/43"), 2, saved=1):
        raise RunError("10M/single-head/43: loss nan " + "at windows 1, 2, 3 " * 10)
    with FileLock(resume_folder(results, run()) / LOCK):
        begin(results, run(), updates=3)
        text = printed(capsys, "--steps")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    names = {run.name for run in every_run()}
    assert sum(line.split()[0] in names for line in lines if line) >= 32
    row = next(line for line in lines if line.startswith("10M/full/42 "))
    assert row.split()[1:7] == ["running", "64%", "1,000", "0", "s", "5.700"]
    assert "32 runs: 1 done, 1 running, 1 failed, 29 waiting." in text
    assert "10M/single-head/43 failed: loss nan" in text
    assert "Training left: " in text


def test_a_choice_restricts_the_table(results: Results, capsys: Output) -> None:
    rows = json.loads(printed(capsys, "--scales", "10M", "--variants", "mha", "--json"))["runs"]
    of_readings = [f"{residual}-sd-0.02/mha/142" for residual in ("unscaled", "scaled")]
    seeds = (42, 43, 44, 45)
    assert [r["name"] for r in rows] == [*(f"10M/mha/{seed}" for seed in seeds), *of_readings]
    assert {r["state"] for r in rows} == {"waiting"}


def test_watching_ends_when_all_is_done(results: Results, capsys: Output) -> None:
    choice = ("--scales", "10M", "--variants", "mha", "--seeds", "42")
    finish(results, run("10M/mha/42"))
    assert printed(capsys, *choice, "--watch", "9").count("1 run: 1 done") == 1


def test_watching_looks_again(
    results: Results, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        finish(results, run("10M/mha/42"))

    monkeypatch.setattr("relation.cli.status.time.sleep", sleep)
    choice = ("--scales", "10M", "--variants", "mha", "--seeds", "42")
    text = printed(capsys, *choice, "--watch", "2.5")
    assert waited == [2.5]
    assert text.index("1 waiting") < text.index("1 done")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_wrong_interval_is_refused(results: Results, capsys: Output, seconds: str) -> None:
    assert main(["status", "--watch", seconds]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_look_imports_no_torch(results: Results) -> None:
    code = (
        "import sys; from relation.cli import main; "
        "sys.exit(main(['status', '--campaign', 'tiny', '--steps']) or 'torch' in sys.modules)"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
