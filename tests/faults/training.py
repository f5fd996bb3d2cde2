"""Faults of a training run in progress."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial, wraps
from pathlib import Path

from faults.registry import case
from faults.sandbox import CAMPAIGN, PROJECT, RUN_NAME, Sandbox, moments, until

SAME_BITS = "the same command goes on and ends with the bits of an undisturbed run"
ANEW = "the same command starts the run anew and ends with the bits of an undisturbed one"
fault = partial(case, "fault")


def goes_on(box: Sandbox, text: str = "goes on at update") -> str:
    """The same command again ends the run well; returns what it said first."""
    done = box.train()
    assert done.status == 0, done.output
    assert text in done.output, done.output
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


def in_a_save(half: bool) -> None:
    """In a training process: be killed in the third save, inside the file or before its name."""
    from relation.train import checkpoint

    write, rename, saves = checkpoint.save_file, os.replace, []

    def save_file(tensors, path, **options):
        write(tensors, path, **options)
        saves.append(path)
        if half and len(saves) == 3:
            os.truncate(path, path.stat().st_size // 2)
            send_self(signal.SIGKILL)

    def replace(source, target):
        if len(saves) == 3:
            send_self(signal.SIGKILL)
        rename(source, target)

    checkpoint.save_file, os.replace = save_file, replace


def _interrupted(box: Sandbox, update: int = 11) -> None:
    """A run that was killed as an update began, with states saved before."""
    done = box.train(before=partial(at_update, update, partial(send_self, signal.SIGKILL)))
    assert done.status == -signal.SIGKILL
    assert len(list(box.resume.glob("state-*"))) == 2


@fault("Training killed (SIGKILL) at random moments, again and again", quick=True)
def kill_training_at_random(box: Sandbox) -> tuple[str, str]:
    kills = 0
    for delay in moments(8, box.pace):
        job = box.start_training()
        if job.wait(delay) is None:
            job.kill()
            kills += 1
        elif (box.results / "runs" / RUN_NAME / "record.parquet").exists():
            break
    assert kills
    said = "(killed: nothing)"
    if not (box.results / "runs" / RUN_NAME / "record.parquet").exists():
        assert box.train().status == 0
    box.assert_trained()
    return said, SAME_BITS


@fault("Training killed inside the file of a resume state")
def kill_inside_a_state(box: Sandbox) -> tuple[str, str]:
    assert box.train(before=partial(in_a_save, True)).status == -signal.SIGKILL
    return "(killed: nothing)", goes_on(box)


@fault("Training killed between writing a state and naming it")
def kill_before_a_state_is_named(box: Sandbox) -> tuple[str, str]:
    assert box.train(before=partial(in_a_save, False)).status == -signal.SIGKILL
    return "(killed: nothing)", goes_on(box)


@fault("Training asked to stop (SIGTERM)")
def terminate_training(box: Sandbox) -> tuple[str, str]:
    done = box.train(before=partial(at_update, 20, partial(send_self, signal.SIGTERM)))
    assert done.status == 2 and "stopped after update 20 of 47" in done.last
    return done.last, goes_on(box, "goes on at update 21")


@fault("Training interrupted (Ctrl-C)")
def interrupt_training(box: Sandbox) -> tuple[str, str]:
    done = box.train(before=partial(at_update, 20, partial(send_self, signal.SIGINT)))
    assert done.status == 2 and "stopped after update 20 of 47" in done.last
    return done.last, goes_on(box, "goes on at update 21")


@fault("The disk is full when a resume state is saved", needs="mount", quick=True)
def full_disk_in_a_save(box: Sandbox) -> tuple[str, str]:
    with box.own_disk(box.size_kilobytes + 80) as remount:
        done = box.train()
        assert done.status == 2 and "No space left on device" in done.output, done.output
        remount("size=64m")
        assert box.train().status == 0
    box.assert_trained()
    return done.last, SAME_BITS


def _no_room_for(name: str) -> None:
    """In a training process: the disk is full when a file of this name is written."""
    import errno

    from relation.train import checkpoint
    from relation.train import run as engine

    def full(*arguments, **options):
        path = next(a for a in arguments if isinstance(a, Path))
        if name in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return original(*arguments, **options)

    if name == "model":
        original = checkpoint.save_file
        checkpoint.save_file = full
    else:
        original = engine.write_parquet
        engine.write_parquet = full


@fault("The disk is full when the final checkpoint is written")
def full_disk_at_the_checkpoint(box: Sandbox) -> tuple[str, str]:
    done = box.train(before=partial(_no_room_for, "model"))
    assert done.status == 2 and "last good state" in done.last
    return done.last, goes_on(box)


@fault("The disk is full when the record is written, after the checkpoint")
def full_disk_at_the_record(box: Sandbox) -> tuple[str, str]:
    done = box.train(before=partial(_no_room_for, "record"))
    assert done.status == 2 and "last good state" in done.last
    return done.last, goes_on(box)


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


@fault("The newest resume state has a flipped bit", quick=True)
def newest_state_corrupt(box: Sandbox) -> tuple[str, str]:
    _interrupted(box)
    newest = max(box.resume.glob("state-*"))
    newest.write_bytes(_flip(newest.read_bytes()))
    done = box.train()
    assert done.status == 0 and "fails its checksum" in done.output
    assert "goes on at update 9" in done.output
    box.assert_trained()
    warning = next(line for line in done.output.splitlines() if line.startswith("warning: "))
    return warning, "the state before it is used; the bits of an undisturbed run"


@fault("Both resume states are cut to half")
def all_states_corrupt(box: Sandbox) -> tuple[str, str]:
    _interrupted(box)
    for state in box.resume.glob("state-*"):
        state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])
    done = box.train()
    assert done.status == 0 and done.output.count("fails its checksum") == 2
    box.assert_trained()
    warning = next(line for line in done.output.splitlines() if line.startswith("warning: "))
    return warning, ANEW


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


def _refused_then_restored(box: Sandbox, path: Path, change, said: str) -> tuple[str, str]:
    whole = path.read_bytes()
    box.damage(path, change)
    done = box.train()
    assert done.status == 2 and said in done.last, done.output
    assert not (box.results / "runs" / RUN_NAME / "record.parquet").exists()
    path.write_bytes(whole)
    box.broken.clear()
    assert box.train().status == 0
    box.assert_trained()
    return done.last, "nothing is trained on it; prepared again, the run trains"


@fault("The token file has a flipped bit", quick=True)
def token_file_flipped(box: Sandbox) -> tuple[str, str]:
    return _refused_then_restored(box, box.data / "train.bin", _flip, "is not the file")


@fault("The token file is cut inside a token")
def token_file_cut(box: Sandbox) -> tuple[str, str]:
    return _refused_then_restored(box, box.data / "train.bin", lambda b: b[:1001], "inside a token")


@fault("The validation tokens are another file's")
def validation_replaced(box: Sandbox) -> tuple[str, str]:
    other = (box.data / "train.bin").read_bytes()[:4000]
    path = box.data / "validation.bin"
    return _refused_then_restored(box, path, lambda _: other, "is not the file")


@fault("The corpus's record is cut")
def data_record_cut(box: Sandbox) -> tuple[str, str]:
    path = box.data / "data.parquet"
    return _refused_then_restored(box, path, lambda b: b[:-7], "not readable Parquet")


@fault("The token file is cut while the run reads it")
def token_file_cut_meanwhile(box: Sandbox) -> tuple[str, str]:
    path = box.data / "train.bin"
    whole = path.read_bytes()
    done = box.train(before=partial(at_update, 20, partial(os.truncate, path, 10)))
    assert done.status == 2 and "lost its end" in done.last, done.output
    path.write_bytes(whole)
    return done.last, goes_on(box)


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
