"""Faults of finished files: what reads them says so, and what is made again is the same."""

from functools import partial
from pathlib import Path

from faults.registry import case
from faults.sandbox import CAMPAIGN, DONE_RUN, Sandbox
from faults.training import _flip
from relation.pipeline.places import with_pictures

fault = partial(case, "fault")


def _diagnose(box: Sandbox):
    return box.run("diagnose", DONE_RUN, "--campaign", CAMPAIGN)


def _checkpoint(box: Sandbox) -> Path:
    return box.results / "runs" / DONE_RUN / "model.safetensors"


def _diagnosed_again(box: Sandbox) -> None:
    assert _diagnose(box).status == 0
    for file in with_pictures(Path("results", CAMPAIGN, "diagnostics", f"{DONE_RUN}.parquet")):
        box.broken.add(file.as_posix())


def _trained_again(box: Sandbox) -> str:
    _checkpoint(box).unlink(missing_ok=True)
    for name in ("record.parquet", "log.parquet", "probes.parquet"):
        path = box.results / "runs" / DONE_RUN / name
        box.broken.add(path.relative_to(box.folder).as_posix())
        path.unlink()
    assert box.run("train", DONE_RUN, "--campaign", CAMPAIGN).status == 0
    box.assert_same(f"runs/{DONE_RUN}")
    _diagnosed_again(box)
    return "deleted as told, the run trains again to the same bits"


@fault("A checkpoint has a flipped bit", quick=True)
def checkpoint_flipped(box: Sandbox) -> tuple[str, str]:
    box.damage(_checkpoint(box), _flip)
    done = _diagnose(box)
    assert done.status == 2 and "no complete checkpoint" in done.last, done.output
    return done.last, _trained_again(box)


@fault("The tokenizer is cut to half; a text is generated")
def tokenizer_cut(box: Sandbox) -> tuple[str, str]:
    path = box.data / "tokenizer.json"
    whole = path.read_bytes()
    box.damage(path, lambda b: b[: len(b) // 2])
    command = ("generate", DONE_RUN, "--campaign", CAMPAIGN, "--prompt", "Once", "--tokens", "3")
    done = box.run(*command)
    assert done.status == 2 and "is not the file" in done.last, done.output
    path.write_bytes(whole)
    assert box.run(*command).status == 0
    return done.last, "prepared again, it generates"


@fault("The validation tokens have a flipped bit when a checkpoint is diagnosed", quick=True)
def validation_flipped(box: Sandbox) -> tuple[str, str]:
    path = box.data / "validation.bin"
    whole = path.read_bytes()
    box.damage(path, _flip)
    done = _diagnose(box)
    assert done.status == 2, done.output
    path.write_bytes(whole)
    _diagnosed_again(box)
    return done.last, "prepared again, the checkpoint is diagnosed"


@fault("A training log has a flipped bit in its data", quick=True)
def log_flipped(box: Sandbox) -> tuple[str, str]:
    """As the rule `cells` finds it."""
    assert box.run("inventory", "--campaign", CAMPAIGN).status == 0
    path = box.results / "runs" / DONE_RUN / "log.parquet"
    box.damage(path, lambda b: b[:200] + bytes([b[200] ^ 1]) + b[201:])
    done = box.run("cells", "--campaign", CAMPAIGN, "--scales", "10M", "--variants", "mha")
    assert done.status == 2 and "not readable Parquet" in done.last, done.output
    return done.last, _trained_again(box)


def _no_room() -> None:
    """In a process: the disk is full for every Parquet."""
    import errno
    import os

    import pyarrow.parquet as pq

    def full(table, file, **options):
        file.write(b"PAR1")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)

    pq.write_table = full


@fault("The disk is full when the cells are written")
def full_disk_at_the_cells(box: Sandbox) -> tuple[str, str]:
    done = box.run("inventory", "--campaign", CAMPAIGN, before=_no_room)
    assert done.status == 2 and "No space left on device" in done.last, done.output
    assert not list(box.results.rglob(".*.tmp"))
    assert box.run("inventory", "--campaign", CAMPAIGN).status == 0
    return done.last, "the same command, once there is room"


@fault("The started campaign's configuration is noise when a job reads it")
def started_configuration_corrupt(box: Sandbox) -> tuple[str, str]:
    path = box.results / "campaign.json"
    path.write_bytes(b'{"campaign": \xff')
    done = box.run("train", DONE_RUN, "--config", f"results/{CAMPAIGN}/campaign.json")
    assert done.status == 2, done.output
    return done.last, "the workflow writes it again when it is started"


@fault("The configuration is edited between the plan and a job")
def configuration_edited(box: Sandbox) -> tuple[str, str]:
    path = box.folder / "config.yaml"
    text = path.read_text(encoding="utf-8")
    done = box.run("train", DONE_RUN, "--campaign", CAMPAIGN, "--expect", "0" * 16)
    assert done.status == 2 and "configuration changed" in done.last, done.output
    assert path.read_text(encoding="utf-8") == text
    return done.last, "the workflow, started again, plans with what stands there now"
