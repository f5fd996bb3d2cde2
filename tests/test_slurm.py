"""A campaign through a real Slurm: submitted, killed with scancel, gone on with; on two nodes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import copy_project, planned_jobs
from slurm import Cluster, missing_commands
from training import assert_same_run

from relation.store.parquet import read_origin

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.campaign,
    pytest.mark.skipif(bool(missing_commands()), reason="needs Debian's slurm-wlm and munge"),
]
CONFIG = ("--config", "campaign=cluster", "scales=10M", "variants=mha,full")
CAMPAIGN = """
  cluster:
    base: tiny
    seeds: [42]
    further_seeds: {10M: []}
    readings: null
    scales:
      10M: {budget_tokens: 60000}
"""
# This Slurm has no accounts and keeps no accounting; docs/cluster.md says more of both.
SLURM = ("--profile", "profiles/slurm", "--slurm-status-command", "squeue", "--slurm-no-account")
QUICK = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5")
KILLED, RUNS = "10M/full/42", ("10M/mha/42", "10M/full/42")
SECONDS = 600


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "slurm", nodes=request.param)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = copy_project(tmp_path / "project")
    with (folder / "config.yaml").open("a", encoding="utf-8") as config:
        config.write(CAMPAIGN)
    return folder


def start(project: Path, cluster: Cluster, log: Path, *further: str) -> subprocess.Popen:
    """Submit the campaign."""
    environment = {k: v for k, v in cluster.environment.items() if k != "PYTHONPATH"}
    with log.open("w", encoding="utf-8") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *SLURM, *QUICK, *CONFIG, *further],
            cwd=project,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def updates_logged(project: Path) -> int:
    """Updates that the run to be killed has noted so far."""
    for lines in project.glob("results/cluster/resume/*/metrics.jsonl"):
        if f'"{KILLED}"' in (lines.parent / "run.json").read_text(encoding="utf-8"):
            return lines.read_bytes().count(b"\n")
    return 0


def training_job(cluster: Cluster) -> str | None:
    """The number of the Slurm job that trains the run to be killed."""
    for line in cluster.squeue("--format=%i %k"):
        number, comment = line.split()
        if comment == f"rule_train_wildcards_{KILLED.replace('/', '_')}":
            return number
    return None


def until(what, campaign: subprocess.Popen, log: Path):
    """Wait for something true; fail with the campaign's output if it ends before."""
    deadline = time.monotonic() + SECONDS
    while not (found := what()):
        if campaign.poll() is not None or time.monotonic() > deadline:
            pytest.fail(log.read_text(encoding="utf-8")[-6000:])
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_a_campaign_runs_through_slurm_and_a_cancelled_training_job_goes_on(
    cluster, project, tmp_path
) -> None:
    log = tmp_path / "snakemake.log"
    campaign = start(project, cluster, log)
    try:
        until(lambda: updates_logged(project) > 20, campaign, log)
        cancelled = training_job(cluster)
        cluster.scancel(cancelled)
        assert campaign.wait(SECONDS) == 0, log.read_text(encoding="utf-8")[-6000:]
    finally:
        campaign.terminate()
        campaign.wait()

    ended = [line.split() for line in cluster.squeue("--format=%i %T %k")]
    states = {number: state for number, state, _ in ended}
    assert states.pop(cancelled) == "CANCELLED" and set(states.values()) == {"COMPLETED"}
    trained = [number for number, _, comment in ended if comment.startswith("rule_train_wildcards")]
    assert len(trained) == len(RUNS) + 1
    went_on = (project / f"results/cluster/logs/train/{KILLED.replace('/', '-')}.log").read_text()
    assert f"{KILLED} goes on at update " in went_on
    assert planned_jobs(project, *CONFIG) == {}
    assert "Traceback" not in log.read_text(encoding="utf-8")

    # Here, without Slurm and undisturbed, the same run ends with the same bits.
    undisturbed = tmp_path / "undisturbed"
    (undisturbed / "results/cluster").mkdir(parents=True)
    (undisturbed / "config.yaml").symlink_to(project / "config.yaml")
    (undisturbed / "results/cluster/data").symlink_to(project / "results/cluster/data")
    command = [sys.executable, "-m", "relation", "train", KILLED, "--campaign", "cluster"]
    path = {"PYTHONPATH": str(project), "PATH": os.environ["PATH"]}
    done = subprocess.run([*command, "--threads", "1"], cwd=undisturbed, env=path)
    assert done.returncode == 0
    run = Path("results/cluster/runs") / KILLED
    assert_same_run(project / run, undisturbed / run)


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_a_run_spans_two_nodes(cluster, project, tmp_path) -> None:
    """srun starts torchrun on each, and the two meet; the job is one."""
    log, record = tmp_path / "snakemake.log", f"results/cluster/runs/{KILLED}/record.parquet"
    spanning = ("nodes=2", "processes=2", "mpi=srun", "tasks=2")
    resources = ("--set-resources", *(f"train:{value}" for value in spanning))
    campaign = start(project, cluster, log, *resources, "--", record)
    try:
        assert campaign.wait(SECONDS) == 0, log.read_text(encoding="utf-8")[-6000:]
    finally:
        campaign.terminate()
        campaign.wait()
    assert read_origin(project / record)["processes"] == [2]
    ended = [line.split() for line in cluster.squeue("--format=%D %T %k")]
    trained = [line[:2] for line in ended if line[2].startswith("rule_train_wildcards")]
    assert trained == [["2", "COMPLETED"]]
