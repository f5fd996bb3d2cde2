"""docs/crashes.parquet, and its part of docs/faults.md."""

import pyarrow as pa
from faults.sandbox import PROJECT

from crashes.disk import LOSSES
from relation.store.parquet import Column, schema

CRASHES = PROJECT / "docs" / "crashes.parquet"
OUTCOMES = schema(
    Column("operation", pa.string(), description="the command that was crashed"),
    Column("number", pa.int64(), description="of the point: the crash comes right before a call"),
    Column("call", pa.string(), description="that call; (end): after the last one"),
    Column("file", pa.string(), description="what it changes, below results"),
    Column("crash", pa.string(), description=f"what is lost: {'; '.join(LOSSES)}"),
    Column("disk", pa.int64(), description="number of what the crash leaves; equal ones share it"),
    Column("tried", pa.bool_(), description="the first crash to leave this: gone on from"),
    Column("survived", pa.bool_()),
    Column("reason", pa.string(), description="what was wrong; empty where it survived"),
    Column("seconds", pa.float64(), "s", "of the same command, run again"),
    Column("commit", pa.string(), description="of the project, when it was done"),
)


def crashes_part(rows: list[dict]) -> list[str]:
    """The lines of the page on crashes at every call."""
    survived = sum(row["survived"] for row in rows)
    names = list(dict.fromkeys(row["operation"] for row in rows))
    points = {(row["operation"], row["number"]) for row in rows}
    tried = [row for row in rows if row["tried"]]
    hours = sum(row["seconds"] for row in tried) / 3600
    lines = [
        "",
        "## Crashes at every call",
        "",
        "Made by `PYTHONPATH=. python tests/crash_campaign.py`; every crash is in",
        "[crashes.parquet](crashes.parquet). On the tiny campaign, each command below runs once to",
        "its end while seccomp holds every system call by which it, its threads or its children",
        "open a file for writing, write, sync, cut, rename, link or remove one, or make a folder.",
        "Before each such call, and after the last, what stands on the disk is taken down as four",
        "crashes would leave it: the process is killed there (what is taken down is what a real",
        "SIGKILL leaves; a test compares the two), or the machine loses power in one of three",
        "ways. The same command then runs again on it. Crashes that leave equal disks share one",
        "recovery. To keep the work small, training saves a state every update, a preparation",
        "notes its place every 32 documents, two figures are drawn, and no TeX runs.",
        "",
        "The model of a power loss: a file has what it had at its last fsync, empty if it had",
        "none, and a folder the names it had at its own. *All unsynced lost* is just that, so an",
        "unsynced creation, rename or removal is undone. *Unsynced data lost* keeps every name and",
        "loses only data, so a file renamed before its fsync is empty. *Removals alone kept* keeps",
        "removals and undoes creations and renames. A rename is never done by half, and what was",
        "there when the command began is synced.",
        "",
        "*Survived* means: on the disk, every finished file has its old or its new bytes, the",
        "newest resume state is at most one save behind, and after the last call all results are",
        "there whole. (A page of a report may be half written: no record, it is rendered again.)",
        "The same command then ends without a traceback, with the files and the bits of an",
        "undisturbed run and nothing left over, but for times in records, and hidden temporary",
        "files, which nothing counts.",
        "",
        f"{len(points):,} points and {len(rows):,} crashes, which leave {len(tried):,} different",
        f"disks; {survived:,} crashes survived. All recoveries took {hours:.1f} hours.",
        "",
        "| command | points | crashes | different disks | survived |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        own = [row for row in rows if row["operation"] == name]
        lines.append(
            f"| {name} | {own[-1]['number']:,} | {len(own):,} | "
            f"{sum(row['tried'] for row in own):,} | {sum(row['survived'] for row in own):,} |"
        )
    return lines
