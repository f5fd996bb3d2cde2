"""Crash every command of a small campaign at every call that changes files, and go on.

    PYTHONPATH=. python tests/crash_campaign.py                   # all
    PYTHONPATH=. python tests/crash_campaign.py --only training   # and keep the rows of the others

Writes docs/crashes.parquet and docs/faults.md. Ends with status 1 where a crash was not survived.
For Linux on x86-64.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from crashes.calls import can_watch
from crashes.disk import KILLED, State
from crashes.operations import (
    OPERATIONS,
    Operation,
    is_interrupted,
    points,
    run,
    warm,
    wrong_afterwards,
    wrong_on_disk,
)
from crashes.page import CRASHES, OUTCOMES
from fault_campaign import write_page

from relation.pipeline.origin import commit, versions
from relation.store.parquet import read_parquet, write_parquet

_SECONDS_BETWEEN_NEWS = 30.0


def crash(operation: Operation, before: State, folder: Path) -> Iterator[tuple[dict, State]]:
    """Every crash of a command: its row without the outcome, and what it leaves."""
    for number, point in enumerate(points(operation, before, folder), start=1):
        for kind, state in point.left.items():
            row = {"operation": operation.name, "number": number, "call": point.name}
            yield {**row, "file": point.file, "crash": kind}, state


def outcomes(operation: Operation, crashes: list, before: State, folder: Path) -> Iterator[dict]:
    """A row a crash; a disk that holds the same as one before is not tried again."""
    final = next(state for row, state in reversed(crashes) if row["crash"] == KILLED)
    tried: dict[frozenset, tuple[int, str | None]] = {}
    news = began = time.monotonic()
    killed: State = {}
    for row, state in crashes:
        killed = state if row["crash"] == KILLED else killed
        key, seconds = frozenset(state.items()), 0.0
        again = key in tried
        if not again:
            start = time.monotonic()
            done, after = run(operation, state, folder)
            tried[key] = (len(tried), wrong_afterwards(done, after, final))
            seconds = time.monotonic() - start
        disk, wrong = tried[key]
        wrong = wrong_on_disk(row["call"], state, killed, before, final) or wrong
        row |= {"disk": disk, "tried": not again, "seconds": seconds, "commit": commit()}
        yield {**row, "survived": wrong is None, "reason": wrong or ""}
        if time.monotonic() - news > _SECONDS_BETWEEN_NEWS:
            news = time.monotonic()
            told = f"{row['number']} of {crashes[-1][0]['number']} points, {len(tried)} disks"
            print(f"{operation.name}: {told}, {news - began:.0f} s", flush=True)


def campaign(chosen: set[str], folder: Path) -> Iterator[list[dict]]:
    """The rows of each chosen command, one after the other on what those before it left."""
    state: State = {}
    interrupted: State = {}
    for operation in OPERATIONS:
        before = interrupted if operation.goes_on else state
        if operation.name not in chosen and operation.name != "training":
            if not operation.goes_on:
                done, state = run(operation, state, folder / "box")
                assert done.status == 0, done.output
            continue
        crashes = list(crash(operation, before, folder / "box"))
        killed = [left for row, left in crashes if row["crash"] == KILLED]
        state = killed[-1]
        interrupted = next(filter(is_interrupted, killed), interrupted)
        if operation.name in chosen:
            yield list(outcomes(operation, crashes, before, folder / "box"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAMES", help="comma-separated choice of commands")
    options = parser.parse_args(arguments)
    names = [operation.name for operation in OPERATIONS if operation.watched]
    chosen = set(names if options.only is None else options.only.split(","))
    if unknown := chosen - set(names):
        parser.error(f"no command {sorted(unknown)[0]}; there are {', '.join(names)}")
    if not can_watch():
        parser.error("calls are watched on Linux on x86-64 alone; run it there")
    warm()
    died = 0
    with tempfile.TemporaryDirectory(prefix="relation-crashes-") as folder:
        for rows in campaign(chosen, Path(folder)):
            lost = [row for row in rows if not row["survived"]]
            died += len(lost)
            disks = sum(row["tried"] for row in rows)
            what = f"{rows[-1]['number']} points, {len(rows)} crashes, {disks} disks"
            survived = len(rows) - len(lost)
            print(f"{rows[0]['operation']}: {what}, {survived} survived", flush=True)
            for row in lost:
                what = f"{row['crash']} before {row['call']} {row['file']}"
                print(f"  {row['number']} {what}: {row['reason']}", flush=True)
            _write(rows, names)
    write_page()
    return 1 if died else 0


def _write(rows: list[dict], names: list[str]) -> None:
    """Put the rows of one command in place of its last ones."""
    kept = read_parquet(CRASHES, OUTCOMES).to_pylist() if CRASHES.exists() else []
    merged = [row for row in kept if row["operation"] != rows[0]["operation"]] + rows
    merged.sort(key=lambda row: names.index(row["operation"]))
    origin = {"campaign": "crashes", "config_hash": "", "commit": commit(), "versions": versions()}
    write_parquet(CRASHES, OUTCOMES, merged, origin)


if __name__ == "__main__":
    sys.exit(main())
