"""A campaign through a real Slurm of one node: submitted, cancelled, gone on with."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import copy_project, planned_jobs
from slurm import Cluster, missing_commands

from relation import records

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.campaign,
    pytest.mark.skipif(bool(missing_commands()), reason="needs Debian's slurm-wlm and munge"),
]
VARIED = "budget_tokens=60000+checkpoint_seconds=0.2"
CONFIG = ("--config", "campaign=tiny", "seeds=42", f"vary={VARIED.replace('+', ' ')}")
# This Slurm has no accounts and keeps no accounting.
SLURM = ("--profile", "profiles/slurm", "--slurm-status-command", "squeue", "--slurm-no-account")
QUICK = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5")
KILLED = f"10M-mini/{VARIED}/full/42"
SECONDS = 600


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "slurm")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def until(what: Callable, campaign: subprocess.Popen, log: Path):
    """Wait for something true; fail with the campaign's output if it ends before."""
    deadline = time.monotonic() + SECONDS
    while not (found := what()):
        if campaign.poll() is not None or time.monotonic() > deadline:
            pytest.fail(log.read_text(encoding="utf-8")[-6000:])
        time.sleep(0.1)
    return found


def test_a_campaign_runs_through_slurm_and_a_cancelled_run_goes_on(cluster, tmp_path) -> None:
    project, log = copy_project(tmp_path / "project"), tmp_path / "snakemake.log"
    command = [sys.executable, "-m", "snakemake", *SLURM, *QUICK, *CONFIG]
    with log.open("w", encoding="utf-8") as output:
        campaign = subprocess.Popen(
            command, cwd=project, env=cluster.environment, stdout=output, stderr=output
        )
    comment = f"rule_train_wildcards_{KILLED.replace('/', '_')}"

    def job() -> str | None:
        lines = (line.split() for line in cluster.squeue("--format=%i %T %k"))
        return next((n for n, state, of in lines if of == comment and state == "RUNNING"), None)

    states = project / "results/tiny/work"
    try:
        until(lambda: list(states.glob("*.safetensors")) and job(), campaign, log)
        cancelled = job()
        cluster.scancel(cancelled)
        assert campaign.wait(SECONDS) == 0, log.read_text(encoding="utf-8")[-6000:]
    finally:
        campaign.terminate()
        campaign.wait()
    ended = {n: state for n, state in map(str.split, cluster.squeue("--format=%i %T"))}
    assert ended.pop(cancelled) == "CANCELLED" and set(ended.values()) == {"COMPLETED"}
    said = (project / f"results/tiny/logs/train/{KILLED}.log").read_text()
    assert "goes on at update" in said
    assert planned_jobs(project, *CONFIG) == {}
    runs = records.read(project / f"results/tiny/runs/{KILLED}/run.parquet", "runs")
    assert runs["trained_tokens"].tolist() == [60000]
