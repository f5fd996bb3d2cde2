"""A campaign on a real Slurm with one node: submitted, cancelled, continued."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import copy_project, planned_jobs, until
from slurm import MISSING, cluster

from relation import plan, records

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.campaign,
    pytest.mark.skipif(bool(MISSING), reason="needs Debian's slurm-wlm and munge"),
]
VARIED = "budget_tokens=60000+checkpoint_seconds=0.2"
CONFIG = ("--config", "campaign=tiny", "seeds=42", f"vary={VARIED.replace('+', ' ')}")
# This Slurm has no accounts and no accounting.
SLURM = ("--profile", "profiles/slurm", "--slurm-status-command", "squeue", "--slurm-no-account")
QUICK = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5")
KILLED = f"10M-mini/{VARIED}/full/42"


def test_a_campaign_runs_through_slurm_and_a_cancelled_run_goes_on(tmp_path: Path) -> None:
    project, log = copy_project(tmp_path / "project"), tmp_path / "snakemake.log"
    hash = plan.load({"campaign": "tiny", "vary": VARIED.replace("+", " ")}).run(KILLED).hash
    state = project / f"results/tiny/work/{hash}.safetensors"
    comment = f"rule_train_wildcards_{KILLED.replace('/', '_')}"
    with cluster(tmp_path / "slurm") as (run, environment), log.open("w") as output:

        def jobs(what: str) -> list[list[str]]:
            lines = run("squeue", "--noheader", "--states=all", f"--format={what}")
            return [line.split() for line in lines]

        def begun() -> str | None:
            """Return the job that trains the run, once it has saved a state."""
            assert campaign.poll() is None, log.read_text()[-6000:]
            training = [n for n, *rest in jobs("%i %T %k") if rest == ["RUNNING", comment]]
            return training[0] if training and state.exists() else None

        command = [sys.executable, "-m", "snakemake", *SLURM, *QUICK, *CONFIG]
        streams = {"stdout": output, "stderr": output}
        campaign = subprocess.Popen(command, cwd=project, env=environment, **streams)
        try:
            cancelled = until(begun, 600)
            run("scancel", cancelled)
            assert campaign.wait(600) == 0, log.read_text()[-6000:]
        finally:
            campaign.terminate()
            campaign.wait()
        ended = dict(jobs("%i %T"))
    assert ended.pop(cancelled) == "CANCELLED" and set(ended.values()) == {"COMPLETED"}
    message = (project / f"results/tiny/logs/train/{KILLED}.log").read_text()
    assert "continues at update" in message
    assert planned_jobs(project, *CONFIG) == {}
    runs = records.read(project / f"results/tiny/runs/{KILLED}/run.parquet", "runs")
    assert runs["trained_tokens"].tolist() == [60000]
