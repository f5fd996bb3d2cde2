"""The tiny campaign end to end, in a copy of the project; and which changes repeat which job."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from conftest import copy_project, planned_jobs, run_module, snakemake, until

from relation import plan, records

pytestmark = pytest.mark.campaign
TINY = ("--config", "campaign=tiny", "seeds=42")
RUN = "10M-mini/base/full/42"
AGAIN = {"collect": 1, "report": 1}
ONE = {"train": 1, "diagnose": 1, "length": 1, **AGAIN}
TRAINED = {"train": 2, "diagnose": 2, "length": 1, **AGAIN}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the tiny campaign has run. Tests must not change it."""
    folder = copy_project(tmp_path_factory.mktemp("tiny") / "project")
    snakemake(folder, *TINY)
    return folder


@pytest.fixture
def copy(project: Path, tmp_path: Path) -> Path:
    """A copy of `project` that a test can change: new dates, and Snakemake's metadata."""
    return shutil.copytree(project, tmp_path / "copy", copy_function=shutil.copy)


def counted(copy: Path) -> dict[str, int]:
    """How many jobs of each rule `plan` counts."""
    line = re.search(
        "^To be made: .*", run_module(copy, "relation", "plan", *TINY[1:]).stdout, re.M
    )
    return {name: int(n) for n, name in re.findall(r"(\d+) (\w+)", line[0] if line else "")}


def test_every_kind_of_record_is_made_and_carries_its_specification(project: Path) -> None:
    (settings,) = (project / "results/tiny/work").glob("*.json")  # what the jobs read
    campaign = plan.load(settings)
    frames = records.load(project / "results/tiny")
    for kind in records.FILES:
        assert len(frames[kind]), kind
    runs = frames["runs"]
    assert set(runs["hash"]) == {run.hash for run in campaign.runs} and len(runs) == 2
    assert (runs["trained_tokens"] == 600).all() and runs["final_nll"].between(3, 7).all()
    assert set(frames["flow"]["hash"]) == {run.flow_hash for run in campaign.runs}
    assert "Tiny" in (project / "results/tiny/report/index.html").read_text()


def test_a_copied_or_touched_folder_and_edited_code_make_nothing_again(copy: Path) -> None:
    for name in ("data/sample-300/train.bin", f"runs/{RUN}/model.safetensors"):
        (copy / "results/tiny" / name).touch()
    for name in ("relation/train/run.py", "kernels/common.py", "workflow/rules/train.smk"):
        with (copy / name).open("a") as file:
            file.write("\n# An edit.\n")
    assert planned_jobs(copy, *TINY) == {}
    with (copy / "report/claims.py").open("a") as file:
        file.write("\n# An edit.\n")
    assert planned_jobs(copy, *TINY) == {"report": 1}
    # Without Snakemake's metadata, only the jobs that join records run again.
    shutil.rmtree(copy / ".snakemake")
    (copy / "results/tiny/data/sample-300/data.parquet").touch()
    assert not {"train", "prepare", "bench", "recall", "check"} & planned_jobs(copy, *TINY).keys()
    (copy / "results/tiny/data/sample-300/data.parquet").write_text("damaged")
    *_, line = snakemake(copy, "--dry-run", *TINY, check=False).stdout.strip().splitlines()
    assert line.startswith("error: results/tiny/data/sample-300/data.parquet is damaged")


def test_a_changed_learning_rate_trains_its_own_runs_again(copy: Path) -> None:
    tiny = copy / "config/tiny.yaml"
    own = "mine: {scales: [10M-mini], seeds: [42], variants: [full], learning_rate: 2.0e-2}"
    tiny.write_text(tiny.read_text().replace("base: {}", f"base: {{}}, {own}"))
    target = "results/tiny/runs/10M-mini/mine/full/42/run.parquet"
    snakemake(copy, *TINY, "--", target)
    tiny.write_text(tiny.read_text().replace("2.0e-2", "3.0e-2"))
    assert planned_jobs(copy, *TINY) == ONE
    # Without metadata Snakemake cannot tell, so the jobs refuse the run of the other rate.
    shutil.rmtree(copy / ".snakemake")
    flow = target.replace("runs", "flow").replace("run.p", "flow.p")
    done = snakemake(copy, *TINY, "--", flow, check=False)
    assert done.returncode and "mine/full/42/model.safetensors was not trained as" in done.stdout


def test_a_deleted_record_is_made_again(copy: Path) -> None:
    (copy / "results/tiny/flow.parquet").unlink()
    assert planned_jobs(copy, *TINY) == AGAIN
    for name in ("run.parquet", "probes.parquet"):
        record = copy / f"results/tiny/runs/{RUN}/{name}"
        record = record.rename(copy / name)
        assert planned_jobs(copy, *TINY) == ONE and counted(copy) == {"train": 1}
        record.rename(copy / f"results/tiny/runs/{RUN}/{name}")


def test_a_lost_text_trains_no_finished_run_again(copy: Path) -> None:
    shutil.rmtree(copy / "results/tiny/data")
    assert planned_jobs(copy, *TINY) == {}
    (copy / f"results/tiny/runs/{RUN}/run.parquet").unlink()
    refused = snakemake(copy, *TINY, check=False)
    (line,) = re.findall("^error: .*", refused.stdout, re.MULTILINE)
    assert refused.returncode and "rule train" not in refused.stdout
    snakemake(copy, *shlex.split(line.partition("first make it alone: snakemake ")[2]))
    assert planned_jobs(copy, *TINY) == ONE


def test_what_is_shipped_is_not_made_again_and_is_in_the_report(copy: Path) -> None:
    done = run_module(copy, "relation", "publish", "campaign=tiny")
    assert done.returncode == 0, done.stdout
    before = records.load(copy / "results/tiny")
    # A run that was made here counts before the shipped one, so it can be trained again.
    target = f"results/tiny/runs/{RUN}/run.parquet"
    assert planned_jobs(copy, *TINY, "-R", target, "--", "all")["train"] == 1
    shutil.rmtree(copy / "results/tiny")
    assert planned_jobs(copy, *TINY) == AGAIN
    assert planned_jobs(copy, *TINY, "published=false")["train"] == 2
    other = planned_jobs(copy, *TINY, "vary=gradient_clip=0.5")
    assert other["train"] == 2 and "bench" not in other
    snakemake(copy, *TINY, "--", "results/tiny/runs.parquet")
    after = records.load(copy / "results/tiny")
    assert len(before["runs"]) == 2
    for kind in ("runs", "losses", "flow", "steps", "recall", "gradients"):
        pd.testing.assert_frame_equal(before[kind], after[kind], check_like=True)
    message = run_module(copy, "relation", "plan", *TINY[1:]).stdout
    assert "2 of them are shipped" in message and "Nothing is to be made" in message


def test_a_report_has_the_command_that_makes_its_runs_again(copy: Path) -> None:
    """Also if the same runs are shipped."""
    assert run_module(copy, "relation", "publish", "campaign=tiny").returncode == 0
    snakemake(copy, *TINY, "published=false")
    page = (copy / "results/tiny/report/index.html").read_text()
    (command,) = set(re.findall(r"<code>snakemake (--cores all -R train [^<]*)</code>", page))
    assert planned_jobs(copy, *command.split())["train"] == 2
    page = (copy / "results/tiny/report/records.html").read_text()
    command = re.search(r"snakemake (--cores all -R \S*/run.parquet [^<]*)", page)[1]
    assert planned_jobs(copy, *command.split())["train"] == 1


def test_texts_of_the_users_own_are_read_or_refused_before_the_first_job(copy: Path) -> None:
    text = copy / "text.txt"
    text.write_text("Too short.\n")
    refused = snakemake(copy, *TINY, f"corpus={text}", check=False)
    assert refused.returncode and "error: " in refused.stdout
    assert "Traceback" not in refused.stdout and "rule prepare" not in refused.stdout
    refused = snakemake(copy, *TINY, "corpus=", "--dry-run", check=False)  # an unset variable
    assert refused.returncode and "error: corpus= has no value" in refused.stdout
    config = copy / "config.yaml"
    once = config.read_text()
    config.write_text(f"{once}seeds: 42\n")
    refused = snakemake(copy, *TINY, "--dry-run", check=False)
    assert refused.returncode and "the key 'seeds' occurs twice" in refused.stdout
    config.write_text(once)
    sample = pd.read_parquet(copy / "relation/data/sample/train.parquet")["text"]
    text.write_text("\n\n".join(sample)[:400_000])
    # Other texts make other runs, even if old runs are in their place, and another report.
    refused = run_module(copy, "relation", "report", *TINY[1:], f"corpus={text}")
    assert refused.returncode and "was made as" in refused.stdout
    assert planned_jobs(copy, *TINY, f"corpus={text}") == {"prepare": 1, **TRAINED}
    target = f"results/tiny/runs/{RUN}/run.parquet"
    output = snakemake(copy, *TINY, f"corpus={text}", "--", target).stdout
    assert f"replace 1 that finished with another text or other keys:\n  {RUN}" in output
    (row,) = records.read(copy / target, "runs").to_dict("records")
    own = plan.load({"campaign": "tiny"}).run(RUN)
    assert row["corpus"] == "text.txt" and row["hash"] != own.hash
    collected = copy / "results/tiny/runs.parquet"
    rows = records.read(collected, "runs")
    records.write(collected, "runs", rows.assign(hash=row["hash"]))
    refused = run_module(copy, "relation", "publish", "campaign=tiny")
    records.write(collected, "runs", rows)
    assert refused.returncode and "was made as" in refused.stdout
    output = run_module(copy, "relation", "plan", *TINY[1:]).stdout
    assert f"replace 1 that finished with another text or other keys:\n  {RUN}" in output
    # The tokens are now of the other text; a run that finished on the first is not trained again.
    refused = snakemake(copy, *TINY, check=False)
    assert refused.returncode and "data.parquet is lost or holds another text" in refused.stdout


def killed_once(there: str, kill: Callable, copy: Path, *arguments: str) -> None:
    """Start Snakemake, kill it once a file of this pattern is there, and unlock its folder."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    with (copy / "killed.log").open("w") as log:
        streams = {"stdout": log, "stderr": log, "start_new_session": True}
        process = subprocess.Popen(command, cwd=copy, env=environment, **streams)
    try:
        until(lambda: list((copy / "results/tiny").glob(there)), 120)
    finally:
        kill(process.pid, signal.SIGKILL)
        process.wait()
    snakemake(copy, *arguments[: arguments.index("--")], "--unlock")


def test_a_killed_campaign_goes_on(copy: Path) -> None:
    """tests/train checks that the result has the same bits."""
    name = "10M-mini/budget_tokens=20000+checkpoint_seconds=0.1/full/42"
    target = f"results/tiny/runs/{name}/run.parquet"
    choice = ("variants=full", "vary=budget_tokens=20000 checkpoint_seconds=0.1", "--", target)
    killed_once("work/*.safetensors", os.killpg, copy, *TINY, *choice)
    assert not (copy / target).exists()
    snakemake(copy, *TINY, *choice)
    assert "continues at update" in (copy / f"results/tiny/logs/train/{name}.log").read_text()
    assert records.read(copy / target, "runs")["trained_tokens"].tolist() == [20_000]


def test_a_run_that_outlives_its_snakemake_is_kept(copy: Path) -> None:
    name = "10M-mini/gradient_clip=0.5/full/42"
    target = f"results/tiny/runs/{name}/run.parquet"
    choice = ("variants=full", "vary=gradient_clip=0.5", "--", target)
    killed_once(f"logs/train/{name}.log", os.kill, copy, *TINY, *choice)
    until((copy / target).exists, 120)
    assert planned_jobs(copy, *TINY, *choice) == {}


def test_a_finished_run_is_kept_if_its_process_or_the_clock_then_fails(copy: Path) -> None:
    target = "results/tiny/runs/10M-mini/gradient_clip=0.5/full/42/run.parquet"
    choice = ("variants=full", "vary=gradient_clip=0.5", "--", target)
    at_exit = copy / "sitecustomize.py"  # Python imports it when it starts
    crash = "if 'train' in sys.orig_argv:\n    atexit.register(os._exit, 9)\n"
    at_exit.write_text(f"import atexit, os, sys\n\n{crash}")
    snakemake(copy, *TINY, *choice)
    at_exit.unlink()
    assert planned_jobs(copy, *TINY, *choice) == {}
    # The clock goes back: what a run reads is then from the future.
    os.utime(copy / "results/tiny/data/sample-300/data.parquet", (4e9, 4e9))
    snakemake(copy, *TINY, *(each.replace("0.5", "0.4") for each in choice))
