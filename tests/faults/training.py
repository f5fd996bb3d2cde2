"""Faults of a training run in progress."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial, wraps
from pathlib import Path

from faults.registry import case
from faults.sandbox import CAMPAIGN, PROJECT, RUN_NAME, Sandbox, until

SAME_BITS = "the same command goes on and ends with the bits of an undisturbed run"
ANEW = "the same command starts the run anew and ends with the bits of an undisturbed one"
fault = partial(case, "fault")


def goes_on(box: Sandbox) -> str:
    """The same command again goes on and ends the run well."""
    done = box.train()
    assert done.status == 0, done.output
    assert "goes on at update" in done.output, done.output
    box.assert_trained()
    return SAME_BITS


def at_update(number: int, action) -> None:
    """In a training process: do something as its `number`th update begins."""
    from relation.train import run as engine

    schedule, begun = engine.wsd, []

    @wraps(schedule)
    def watched(*arguments):
        begun.append(arguments)
        if len(begun) == number:
            action()
        return schedule(*arguments)

    engine.wsd = watched


def send_self(number: int) -> None:
    os.kill(os.getpid(), number)


def _interrupted(box: Sandbox) -> None:
    """A run that was killed as an update began, with states saved before."""
    done = box.train(before=partial(at_update, 11, partial(send_self, signal.SIGKILL)))
    assert done.status == -signal.SIGKILL
    assert len(list(box.resume.glob("state-*"))) == 2


@fault("The disk is full when a resume state is saved", needs="mount", quick=True)
def full_disk_in_a_save(box: Sandbox) -> tuple[str, str]:
    with box.own_disk(box.size_kilobytes + 80) as remount:
        done = box.train()
        assert done.status == 2 and "No space left on device" in done.output, done.output
        remount("size=64m")
        assert box.train().status == 0
    box.assert_trained()
    return done.last, SAME_BITS


@fault("The results lie on a disk that is read-only", needs="mount")
def read_only_results(box: Sandbox) -> tuple[str, str]:
    with box.own_disk(65536) as remount:
        remount("ro")
        done = box.train()
        assert done.status == 2 and "gives no permission to write" in done.last, done.output
        remount("rw")
        assert box.train().status == 0
    box.assert_trained()
    return done.last, SAME_BITS


@fault("The resume folder is deleted while the run trains")
def resume_folder_deleted(box: Sandbox) -> tuple[str, str]:
    resume = box.results / "resume"
    done = box.train(before=partial(at_update, 20, partial(shutil.rmtree, resume)))
    assert done.status == 2 and "cannot write" in done.last
    done_again = box.train()
    assert done_again.status == 0
    box.assert_trained()
    return done.last, ANEW


@fault("The log beside the resume state is noise")
def live_log_corrupt(box: Sandbox) -> tuple[str, str]:
    _interrupted(box)
    (box.resume / "metrics.jsonl").write_bytes(b"\x00\xff{]\n" * 40)
    (box.resume / "run.json").write_bytes(b"{")
    status = box.run("status", "--campaign", CAMPAIGN)
    assert status.status == 0, status.output
    told = [line for line in status.output.splitlines() if "damaged" in line]
    assert told
    return told[0].strip(), goes_on(box)


def _flip(content: bytes) -> bytes:
    """One bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]


@fault("The token file has a flipped bit", quick=True)
def token_file_flipped(box: Sandbox) -> tuple[str, str]:
    path = box.data / "train.bin"
    whole = path.read_bytes()
    box.damage(path, _flip)
    done = box.train()
    assert done.status == 2 and "is not the file" in done.last, done.output
    assert not (box.results / "runs" / RUN_NAME / "record.parquet").exists()
    path.write_bytes(whole)
    box.broken.clear()
    assert box.train().status == 0
    box.assert_trained()
    return done.last, "nothing is trained on it; prepared again, the run trains"


@fault("The same run is started twice", quick=True)
def two_trainers(box: Sandbox) -> tuple[str, str]:
    first = box.start_training(partial(at_update, 5, partial(send_self, signal.SIGSTOP)))
    until(lambda: list((box.results / "resume").glob("*/run.json")))
    second = box.train()
    assert second.status == 2 and "already running" in second.last, second.output
    until(lambda: _stopped(first.process.pid))
    first.signal(signal.SIGCONT)
    assert first.wait().status == 0
    box.assert_trained()
    return second.last, "the first is not disturbed"


def _stopped(process: int) -> bool:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return fields[0] == "T"


def _train_with(box: Sandbox, clock: str) -> subprocess.CompletedProcess:
    """The run under a clock that somebody set."""
    command = [sys.executable, "-m", "relation", "train", RUN_NAME, "--campaign", CAMPAIGN]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    log = box.folder / "said-clock"
    box.said.append(log)
    with log.open("wb") as output:
        return subprocess.run(
            ["faketime", "-f", clock, *command, "--threads", "1"],
            cwd=box.folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


@fault("The clock is set back by ten years between two parts of a run", needs="faketime")
def clock_set_back(box: Sandbox) -> tuple[str, str]:
    _interrupted(box)
    assert _train_with(box, "-10y").returncode == 0, box.output()
    box.assert_trained()
    said = next(line for line in box.output().splitlines() if "goes on at update" in line)
    return said.split("\r")[-1], SAME_BITS
