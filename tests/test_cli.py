"""The command line: counts, plans, and one `error:` line with status 2 for whatever is wrong."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, campaign

from relation.cli import build_parser, main
from relation.cli.report import gap_lines
from relation.errors import RunError
from relation.ops import BACKENDS
from relation.pipeline.gaps import left_out
from relation.variants import ABLATIONS

CAMPAIGNS = ("paper", "books", "books-scaled", "readings", "smoke", "tiny")

FULL_10M, LAYERS_10M, WIDTH_10M = 10_425_246, 6, 384
PAPER_COUNTS = {
    ("10M", "mha"): 10_425_216,
    ("10M", "full"): FULL_10M,
    ("10M", "exchange-only"): FULL_10M,
    ("10M", "raw-x"): FULL_10M - LAYERS_10M * WIDTH_10M**2,  # without W_I
    ("10M", "no-count"): FULL_10M - LAYERS_10M,  # without lambda
    ("10M", "no-givens"): FULL_10M - 4 * LAYERS_10M,  # without four angles a layer
    ("10M", "single-head"): FULL_10M - 4 * LAYERS_10M,
    ("30M", "mha"): 28_322_304,
    ("30M", "full"): 28_322_354,
    ("30M", "hybrid"): 31_967_571,
    ("100M", "mha"): 102_917_760,
    ("100M", "full"): 102_917_860,
}
# Pairs of every choice under both residual scales, and a further seed of one in `smoke`. `readings`
# has the seeds that its rule asked for and ablations, too.
READING_RUNS = {
    "readings": 116,
    "smoke": 2 * (2 * 2 + 1),
    "tiny": 2 * 2,
}

Output = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("elsewhere")


def printed(capsys: Output, *arguments: str) -> str:
    """What a command that succeeds prints; nothing on standard error."""
    assert main(list(arguments)) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def test_params_are_the_papers_counts(capsys: Output) -> None:
    rows = json.loads(printed(capsys, "params", "--json"))
    assert {(r["scale"], r["variant"]): r["parameters"] for r in rows} == PAPER_COUNTS
    table = printed(capsys, "params").splitlines()
    assert "campaign paper" in table[0] and "10M, 30M, 100M" in table[0]
    assert len(table) == 3 + len(PAPER_COUNTS)
    for (scale, variant), count in PAPER_COUNTS.items():
        assert sum(line.split()[:3] == [scale, variant, f"{count:,}"] for line in table) == 1


def test_params_of_another_campaign_as_a_file_gives_it(capsys: Output) -> None:
    rows = json.loads(printed(capsys, "params", "--campaign", "tiny", "--json"))
    assert {(r["scale"], r["variant"]) for r in rows} == set(PAPER_COUNTS)
    assert max(r["parameters"] for r in rows) < 100_000
    chosen = ("--campaign", "tiny", "--scales", "10M", "--variants", "mha,full", "--json")
    rows = json.loads(printed(capsys, "params", *chosen))
    assert [(r["scale"], r["variant"]) for r in rows] == [("10M", "mha"), ("10M", "full")]


@pytest.mark.parametrize("choice, models", [((), 12), (("--variants", "mha"), 1)])
def test_params_of_readings_alone_are_the_models_they_vary(
    capsys: Output, choice: tuple[str, ...], models: int
) -> None:
    rows = json.loads(printed(capsys, "params", "--campaign", "readings", *choice, "--json"))
    assert len(rows) == models


@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_plan_counts_jobs_and_prices_all_tables(capsys: Output, campaign: str) -> None:
    plan = json.loads(printed(capsys, "plan", "--campaign", campaign, "--json"))
    seeds = {"tiny": 2, "readings": 0}.get(campaign, 3)
    jobs = {stage["stage"]: (stage["jobs"], stage["done"]) for stage in plan["stages"]}
    assert jobs["paired runs"] == (6 * seeds, 0)
    assert jobs["ablation runs"] == (len(ABLATIONS) * seeds, 0)
    assert jobs["other runs"] == (seeds, 0)
    further = {"tiny": 2 * 2, "books": 2 * 28, "books-scaled": 2 * 28}.get(campaign)
    assert jobs.get("further runs") == (None if further is None else (further, 0))
    readings = READING_RUNS.get(campaign)
    assert jobs.get("readings") == (None if readings is None else (readings, 0))
    assert jobs["diagnostics"] == (6 * seeds + (readings or 0), 0)
    assert jobs["systems"][0] == (0 if campaign == "readings" else 12)
    assert len(plan["tables"]) == 17
    for name in ("jobs", "tokens", "hours", "disk_gib"):
        assert plan["total"][name] == sum(stage[name] for stage in plan["stages"])
    text = printed(capsys, "plan", "--campaign", campaign)
    assert all(table["label"] in text for table in plan["tables"])
    head = text[: text.index("table  ")].splitlines()
    assert head[-1] == "The cost of each table from nothing, jobs that are done included:"


def test_a_plan_for_the_paper_adds_up(capsys: Output) -> None:
    plan = json.loads(printed(capsys, "plan", "--campaign", "paper", "--json"))
    budget = {"10M": 150_000_000, "30M": 450_000_000, "100M": 1_071_140_000}
    tokens = {stage["stage"]: stage["tokens"] for stage in plan["stages"]}
    assert tokens["paired runs"] == 2 * 3 * sum(budget.values())
    assert tokens["ablation runs"] == 5 * 3 * budget["10M"]
    assert tokens["other runs"] == 3 * budget["30M"]
    disk = {stage["stage"]: stage["disk_gib"] for stage in plan["stages"]}
    tables = {table["label"]: table["disk_gib"] for table in plan["tables"]}
    assert tables["main-results"] == disk["paired runs"]
    runs = {table["label"]: table["runs"] for table in plan["tables"]}
    assert (runs["main-results"], runs["structural-ablations"], runs["app-hybrid"]) == (18, 18, 3)


def test_a_restricted_plan_is_smaller(capsys: Output) -> None:
    choice = ("--scales", "10M", "--seeds", "42", "--variants", "mha,full")
    plan = json.loads(printed(capsys, "plan", "--campaign", "smoke", *choice, "--json"))
    jobs = {stage["stage"]: stage["jobs"] for stage in plan["stages"]}
    assert (jobs["paired runs"], jobs["ablation runs"], jobs["other runs"]) == (2, 0, 0)


def test_backends_lists_every_implementation(capsys: Output) -> None:
    lines = [line.split() for line in printed(capsys, "backends", "--device", "cpu").splitlines()]
    assert {tuple(line[:2]) for line in lines[1:]} == set(BACKENDS)
    runs_here = {tuple(line[:2]) for line in lines if line[2:4] == ["runs", "here"]}
    assert {("mha", "reference"), ("full", "tiled"), ("linear", "chunked")} <= runs_here
    assert ("mha", "cudnn") not in runs_here


BAD_CALLS = {
    "unknown campaign": "plan --campaign papr",
    "unknown scale": "plan --campaign paper --scales 1B",
    "unknown seed": "plan --seeds 7",
    "unknown variant": "plan --variants ful",
    "no such file": "plan --config absent.yaml",
    "bad YAML": "plan --config bad.yaml",
    "no such corpus": "prepare nothing --campaign tiny",
    "no run": "train 10M-full-42 --campaign tiny",
    "no such run": "train 10M/full/7 --campaign tiny",
    "a seed in superscript": "train 10M/full/² --campaign tiny",
    "a seed in other digits": "train 10M/full/٤٢ --campaign tiny",
    "a seed of too many digits": f"train 10M/full/{'4' * 5000} --campaign tiny",
    "no such benchmark": "measure fixed/1B --campaign tiny",
    "changed configuration": "train 10M/full/42 --campaign tiny --expect 0000",
    "no data": "train 10M/full/42 --campaign tiny",
    "no checkpoint": "diagnose 10M/full/42 --campaign tiny",
    "no threads": "train 10M/full/42 --campaign tiny --threads 0",
    "too many threads": "train 10M/full/42 --campaign tiny --threads 99999999999",
    "no records": "cells --campaign tiny",
    "no corpus there": "plan --campaign books --corpus absent",
    "too few texts": "plan --campaign tiny --corpus few.txt",
    "no corpus named": "prepare tinystories-4096 --campaign books",
    "nothing to publish": "publish --campaign tiny",
    "no such device": "backends --device abacus",
    "no such comparison": "bench abacus",
    "a part of an option": "status --campaign tiny --scale 10M",
    "texts of models": "params --corpus books",
    "seeds of one run": "train 10M/full/42 --campaign tiny --seeds 42",
    "a hash of no single job": "publish --campaign tiny --expect 0000",
    "a rate that is no number": "plan --scale 1B --link nan",
    "too many tokens": f"plan --scale 1B --tokens {'9' * 400}",
    "too many layers": f"plan --scale 1B --layers {'9' * 20}",
    "a campaign's costs and one run's": "plan --scale 1B --spent spent.csv",
    "one run's plan without it": "plan --gpus 8",
    "one run's plan and a campaign's": "plan --scale 10M --campaign paper",
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_input_is_one_line_and_status_2(capsys: Output, case: str) -> None:
    Path("bad.yaml").write_text("a: [1\n")
    Path("few.txt").write_text("Few words.")
    assert main(BAD_CALLS[case].split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    lines = output.err.splitlines()
    assert len([line for line in lines if line.startswith("error: ")]) == 1
    assert lines[-1].startswith("error: ")
    assert len(lines[-1]) > len("error: ")
    assert "Traceback" not in output.err


def test_every_command_says_what_it_prints_or_writes() -> None:
    (commands,) = (a for a in build_parser()._actions if isinstance(a.choices, dict))
    vague = {
        name
        for name, command in commands.choices.items()
        if not re.search("[Pp]rints|[Ww]rites|Copies|Draws|Renders", command.description or "")
    }
    assert not vague and len(commands.choices) > 30


def test_an_unknown_run_is_told_with_the_command_that_lists_them(capsys: Output) -> None:
    assert main(["generate", "10M/full/7", "--campaign", "tiny", "--prompt", "Once"]) == 2
    advised = re.search(r"`python -m relation ([^`]+)` lists them", capsys.readouterr().err)
    assert "10M/full/42" in printed(capsys, *advised.group(1).split())


def test_a_run_that_cannot_go_on_is_told_alike(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments) -> None:
        raise RunError("10M/full/42: stopped after update 3")

    monkeypatch.setattr("relation.train.run.train", stopped)
    assert main(["train", "10M/full/42", "--campaign", "tiny"]) == 2
    assert capsys.readouterr().err == "error: 10M/full/42: stopped after update 3\n"


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*arguments) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr("relation.train.run.train", faulty)
    with pytest.raises(KeyError, match="a fault"):
        main(["train", "10M/full/42", "--campaign", "tiny"])


def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError(name='pyarrow')")
    done = subprocess.run(
        [sys.executable, "-m", "relation", "plan"],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: this command needs the package pyarrow; `make setup`")
    assert done.stderr.count("\n") == 1


def test_transformers_that_is_not_installed_is_told_with_what_installs_it(tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text("raise ModuleNotFoundError(name='transformers')")
    done = subprocess.run(
        [sys.executable, "-m", "relation", "export", "10M/full/42", "exported"],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
    )
    said = "needs transformers; give `pip install '.[hf]'` in the project's folder"
    assert (done.returncode, done.stderr) == (2, f"error: relation.hf {said}\n")


@pytest.mark.parametrize("arguments", ["plan --campaign tiny", "plan --help"])
def test_a_reader_that_went_away_ends_a_command_quietly(arguments: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "relation", *arguments.split()],
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
            stdout=write,
            stderr=subprocess.PIPE,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_interrupt_ends_a_command_with_one_empty_line() -> None:
    os.mkfifo("slow.yaml")
    command = subprocess.Popen(
        [sys.executable, "-m", "relation", "plan", "--config", "slow.yaml"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Who started the tests may ignore interrupts, which a child inherits.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with open("slow.yaml", "w", encoding="utf-8"):  # opens when the command does
        command.send_signal(signal.SIGINT)
        output, errors = command.communicate(timeout=60)
    assert (command.returncode, output, errors) == (130, b"", b"\n")


def test_the_module_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "relation", "plan", "--campaign", "papr"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: unknown campaign 'papr'")


@pytest.mark.parametrize("missing", ["report", "pandas"])
def test_a_package_that_is_not_there_is_told_in_one_line(missing: str) -> None:
    """As where only the library is installed."""
    code = f"import sys; sys.modules[{missing!r}] = None; from relation.cli import main; "
    code += "sys.exit(main(['compare', 'smoke', 'tiny']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {missing} is not installed")


def test_a_job_computes_on_one_thread_unless_asked_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the rules have it, so that a job by hand gives the workflow's digits."""

    def stopped(*arguments) -> None:
        raise RunError("10M/full/42: stopped after update 3")

    asked = []
    monkeypatch.setattr("torch.set_num_threads", asked.append)
    monkeypatch.setattr("relation.train.run.train", stopped)
    for threads in ((), ("--threads", "2")):
        assert main(["train", "10M/full/42", "--campaign", "tiny", *threads]) == 2
    assert asked == [1, 2]


def test_what_a_report_lacks_is_counted_by_reason_and_a_failure_named() -> None:
    restricted = list(left_out(campaign(scales="10M", variants="mha,full")))
    fields = dict.fromkeys(("scale", "variant"), "") | {"seed": -1, "status": "not run"}
    absent = [
        {**fields, "kind": kind, "reason": f"there is no {kind}.parquet"}
        for kind in ("models", "run", "run")
    ]
    failed = {"kind": "flow", "scale": "10M", "variant": "full", "seed": 42, "status": "failed"}
    lines = gap_lines([*restricted, *absent, {**failed, "reason": "the disk is full"}])
    assert len(lines) <= 5 < len(restricted)
    assert any(line.startswith("not run: left out by scales=10M (run: ") for line in lines)
    assert "not run: no record is there (models: 1, run: 2)" in lines
    assert lines[-1] == "failed: 10M/full/42: the disk is full (flow: 1)"


def test_several_processes_are_torchruns(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command starts itself so often; what fails there is told by the run's line alone."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    started = []

    def failed(given) -> None:
        started.append(given)
        raise ChildFailedError("relation", {0: ProcessFailure(0, 1, 2, "none")})

    monkeypatch.setattr(run, "run", failed)
    call = ["train", "10M/full/42", "--campaign", "tiny", "--processes", "2"]
    monkeypatch.setattr(sys, "argv", ["relation", *call])
    with pytest.raises(SystemExit) as ended:
        main(call)
    assert ended.value.code == 2 and capsys.readouterr().err == ""
    assert (started[0].nproc_per_node, started[0].module) == ("2", True)
    assert [started[0].training_script, *started[0].training_script_args] == ["relation", *call]
