"""Faults of a whole campaign under Snakemake; a minute each."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from faults.registry import case
from faults.sandbox import CAMPAIGN, DONE_RUN, PROJECT, RUN_NAME, Sandbox, moments, until
from relation.pipeline.places import RUN_FILES, with_pictures

fault = partial(case, "fault")
CHOICES = ("--config", f"campaign={CAMPAIGN}", "scales=10M", "variants=mha,full")
TRAINED = f"results/{CAMPAIGN}/runs/{RUN_NAME}/record.parquet"
DIAGNOSED = f"results/{CAMPAIGN}/diagnostics/{RUN_NAME}.parquet"
SECONDS = 300


def _project(box: Sandbox) -> None:
    """Make the sandbox a project: all but the configuration is linked."""
    for name in ("Snakefile", "workflow", "profiles", "relation", "kernels", "report"):
        if not (box.folder / name).exists():
            (box.folder / name).symlink_to(PROJECT / name)
    (box.folder / "environment.yml").touch()


def start(box: Sandbox, *arguments: str, choices: tuple = CHOICES) -> subprocess.Popen:
    """Snakemake in a process group of its own, as a terminal starts it."""
    _project(box)
    log = box.folder / f"said-{len(box.said)}"
    box.said.append(log)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--cores", "2", *choices, *arguments],
            cwd=box.folder,
            env={**environment, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def campaign(box: Sandbox, *arguments: str, status: int | None = 0, choices=CHOICES) -> str:
    process = start(box, *arguments, choices=choices)
    try:
        ended = process.wait(SECONDS)
    finally:
        _kill_group(process)
    output = box.said[-1].read_text(encoding="utf-8", errors="replace")
    assert status is None or (ended == 0) == (status == 0), output[-4000:]
    return output


def _kill_group(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def told(output: str, *starts: str) -> str:
    """The first line with one of these starts, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    found = [line for line in lines if line.startswith(starts)]
    return (found or lines[-1:])[0]


def _finished(box: Sandbox) -> None:
    """The rest of the campaign, and nothing to do after it."""
    campaign(box, "--", TRAINED, DIAGNOSED)
    box.assert_trained()
    output = campaign(box, "--dry-run", "--", TRAINED, DIAGNOSED)
    assert "Nothing to be done" in output, output[-3000:]


@fault("Snakemake and its jobs killed (SIGKILL) at random moments")
def kill_snakemake_at_random(box: Sandbox) -> tuple[str, str]:
    said = ""
    locks = box.folder / ".snakemake/locks"
    for delay in moments(3, 2 * box.pace):
        process = start(box, "--", TRAINED, DIAGNOSED)
        until(lambda p=process: p.poll() is not None or list(locks.glob("*")))
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            output = campaign(box, "--", TRAINED, DIAGNOSED, status=None)
            if "Directory cannot be locked" in output:
                said = told(output, "If you are sure")
                campaign(box, "--unlock")
    _finished(box)
    assert said
    return said, "`snakemake --unlock`, then the same command: it goes on, to the same bits"


@fault("Snakemake alone killed (SIGKILL); its training job lives on")
def kill_snakemake_alone(box: Sandbox) -> tuple[str, str]:
    process = start(box, "--", TRAINED)
    until(lambda: list((box.results / "resume").glob("*/run.json")), 60)
    job = _trainer(box)
    process.kill()
    process.wait()
    output = campaign(box, "--", TRAINED, DIAGNOSED, status=1)
    assert "Directory cannot be locked" in output, output
    until(lambda: not Path(f"/proc/{job}").exists())
    campaign(box, "--unlock")
    _finished(box)
    return told(output, "If you are sure"), "the job ends; then `--unlock` and the same command"


@fault("One job of a campaign killed (SIGKILL), then the campaign started again")
def kill_a_job(box: Sandbox) -> tuple[str, str]:
    process = start(box, "--", TRAINED, DIAGNOSED)
    locks = box.results / "resume"
    until(lambda: list(locks.glob("*/metrics.jsonl")), 60)
    job = _trainer(box)
    os.kill(job, signal.SIGKILL)
    assert process.wait(SECONDS) != 0
    output = box.said[-1].read_text(encoding="utf-8")
    _finished(box)
    return told(output, "Error in rule"), "the same command goes on, to the same bits"


def _trainer(box: Sandbox) -> int:
    """The process that trains, by its command line and folder."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            here = (entry / "cwd").resolve() == box.folder.resolve()
        except OSError:
            continue
        if here and b"relation" in words and b"train" in words:
            return int(entry.name)
    raise AssertionError("no training process")


@fault("A campaign interrupted (Ctrl-C)")
def interrupt_snakemake(box: Sandbox) -> tuple[str, str]:
    process = start(box, "--", TRAINED, DIAGNOSED)
    until(lambda: list((box.results / "resume").glob("*/metrics.jsonl")), 60)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(SECONDS) != 0
    output = box.said[-1].read_text(encoding="utf-8")
    _finished(box)
    return told(output, "error: "), "the same command goes on, to the same bits"


@fault("Two Snakemakes on one campaign")
def two_snakemakes(box: Sandbox) -> tuple[str, str]:
    first = start(box, "--", TRAINED, DIAGNOSED)
    until(lambda: list((box.folder / ".snakemake/locks").glob("*")), 60)
    output = campaign(box, "--", TRAINED, DIAGNOSED, status=1)
    assert "Directory cannot be locked" in output, output
    assert first.wait(SECONDS) == 0
    _finished(box)
    return told(output, "Error: Directory"), "the first is not disturbed"


@fault("The results folder is read-only when a campaign starts", needs="mount")
def read_only_campaign(box: Sandbox) -> tuple[str, str]:
    _project(box)
    with box.own_disk(65536) as remount:
        remount("ro")
        output = campaign(box, "--", TRAINED, status=1)
        assert "error: cannot write to" in output, output[-3000:]
        remount("rw")
        campaign(box, "--", TRAINED)
        box.assert_trained()
    return told(output, "error: ", "OSError", "[Errno"), "the same command, once it can be written"


@fault("The disk is full while a campaign runs", needs="mount")
def full_disk_campaign(box: Sandbox) -> tuple[str, str]:
    _project(box)
    with box.own_disk(box.size_kilobytes + 120) as remount:
        output = campaign(box, "--", TRAINED, status=1)
        remount("size=64m")
        campaign(box, "--", TRAINED)
        box.assert_trained()
    return told(output, "error: "), "the same command, once there is room"


@fault("A finished record is cut between two campaigns")
def record_cut_between(box: Sandbox) -> tuple[str, str]:
    path = box.results / "runs" / DONE_RUN / "record.parquet"
    box.damage(path, lambda content: content[:-9])
    output = campaign(box, status=1)
    said = told(output, "error: ")
    assert "not readable Parquet" in said, output[-3000:]
    path.unlink()
    campaign(box)
    # What is made again with the record, the run's files and its diagnosis, is not lost.
    made_again = [path.with_name(name) for name in (*RUN_FILES, "model.safetensors")]
    made_again += with_pictures(box.results / "diagnostics" / f"{DONE_RUN}.parquet")
    box.broken.update(file.relative_to(box.folder).as_posix() for file in made_again)
    box.assert_same(f"runs/{DONE_RUN}")
    return said, "deleted as told, the same command makes it again and finishes"


@fault("Snakemake's own folder .snakemake is deleted between two campaigns")
def bookkeeping_deleted(box: Sandbox) -> tuple[str, str]:
    _finished(box)
    shutil.rmtree(box.folder / ".snakemake")
    output = campaign(box, "--dry-run", "--", TRAINED, DIAGNOSED)
    assert "Nothing to be done" in output, output[-3000:]
    return told(output, "Nothing to be done"), "what is finished counts as finished"


@fault("The configuration is edited while a campaign runs")
def configuration_edited_meanwhile(box: Sandbox) -> tuple[str, str]:
    process = start(box, "--", TRAINED, DIAGNOSED)
    until(lambda: (box.results / "campaign.json").exists(), 60)
    config = box.folder / "config.yaml"
    before = config.read_text(encoding="utf-8")
    config.write_text(before.replace("gradient_clip: 1.0", "gradient_clip: 2.0"), encoding="utf-8")
    ended = process.wait(SECONDS)
    output = box.said[-1].read_text(encoding="utf-8")
    assert ended == 0, output[-3000:]
    box.assert_trained()
    config.write_text(before, encoding="utf-8")
    _finished(box)
    return told(output, "steps"), "jobs read the configuration that the campaign was started with"


@fault("The clock was ahead by a year when the corpus was prepared")
def corpus_from_the_future(box: Sandbox) -> tuple[str, str]:
    future = box.data.stat().st_mtime + 365 * 86400
    for path in box.data.iterdir():
        os.utime(path, (future, future))
    output = campaign(box, "--", TRAINED, status=1)
    said = told(output, "error: ")
    assert "dated in the future" in said, output[-3000:]
    for path in box.data.iterdir():
        os.utime(path)
    campaign(box, "--", TRAINED)
    box.assert_trained()
    return said, "touched as told, the same command trains on it, to the same bits"
