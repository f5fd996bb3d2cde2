"""Do every fault and every bad input to a small campaign, and write what became of it.

    PYTHONPATH=. python tests/fault_campaign.py            # all
    PYTHONPATH=. python tests/fault_campaign.py --only two-trainers,yaml-tags

Writes docs/faults.parquet and docs/faults.md; a choice replaces its own rows and keeps the others.
Ends with status 1 where a case was not borne or could not be run. Faults of the disk need root,
those of the clock Debian's faketime.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from crashes.page import CRASHES, crashes_part
from crashes.page import OUTCOMES as CRASH_OUTCOMES
from faults import (  # noqa: F401
    campaigns,
    finished,
    inputs,
    preparation,
    training,
    untrusted,
)
from faults.registry import CASES, Case
from faults.sandbox import PROJECT, can_mount, make_base, make_sandbox

from relation.pipeline.origin import commit, versions
from relation.store.files import write_text
from relation.store.parquet import Column, read_origin, read_parquet, schema, write_parquet

DOCS = PROJECT / "docs"
OUT = DOCS / "faults.parquet"
OUTCOMES = schema(
    Column("kind", pa.string(), description="fault or input"),
    Column("name", pa.string()),
    Column("title", pa.string(), description="what was done"),
    Column("borne", pa.bool_(), description="no traceback, nothing lost, and it went on"),
    Column("said", pa.string(), description="the line that the user reads"),
    Column("went_on", pa.string(), description="how it goes on, as checked"),
    Column("finished", pa.int64(), "files", "finished before"),
    Column("lost", pa.int64(), "files", "of those, gone or changed by other than the fault"),
    Column("tracebacks", pa.int64(), description="in all that the user could read"),
    Column("seconds", pa.float64(), "s"),
    Column("commit", pa.string(), description="of the project, when it was done"),
)
MISSING = {"mount": "needs root", "faketime": "needs Debian's faketime"}


def unavailable(case: Case) -> str | None:
    """Why a case cannot be run here, or None."""
    there = {"": True, "mount": can_mount(), "faketime": shutil.which("faketime") is not None}
    return None if there[case.needs] else MISSING[case.needs]


def outcome(case: Case, base: Path, folder: Path) -> dict:
    """Do one case in a sandbox of its own; the row that tells what became of it."""
    box, began = make_sandbox(base, folder), time.monotonic()
    try:
        said, went_on = case.act(box)
        failure = None
    except AssertionError as error:
        said, went_on, failure = "", "", error
    lost, tracebacks = box.lost(), box.output().count("Traceback")
    if failure is not None:
        said, went_on = (str(failure).strip().splitlines() or ["?"])[-1], "not as it should"
    return {
        "kind": case.kind,
        "name": case.name,
        "title": case.title,
        "borne": failure is None and not lost and not tracebacks,
        "said": said.replace(str(folder), "FOLDER")[:300],
        "went_on": went_on,
        "finished": len(box.before),
        "lost": len(lost),
        "tracebacks": tracebacks,
        "seconds": time.monotonic() - began,
        "commit": commit(),
    }


def run(cases: list[Case]) -> Iterator[dict]:
    """The outcomes of cases, one after the other."""
    with tempfile.TemporaryDirectory(prefix="relation-faults-") as folder:
        base = make_base(Path(folder) / "base")
        for number, case in enumerate(cases):
            reason = unavailable(case)
            if reason is not None:
                print(f"{case.name}: not run, {reason}", file=sys.stderr)
                continue
            place = Path(folder) / f"{number}-{case.name}"
            row = outcome(case, base, place)
            state = "borne" if row["borne"] else "NOT BORNE"
            told = f"{case.kind} {case.name}: {state}, {row['seconds']:.1f} s: {row['said']}"
            print(told, flush=True)
            shutil.rmtree(place, ignore_errors=row["borne"])
            yield row


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def page(rows: list[dict], origin: dict, crashes: list[dict]) -> str:
    """docs/faults.md: the outcomes as tables."""
    versions = origin["versions"]
    parts = [
        "# Faults and bad inputs, and what became of them",
        "",
        "Made by `PYTHONPATH=. python tests/fault_campaign.py` from what it ran, which is in",
        "[faults.parquet](faults.parquet); `tests/faults/` holds each case and the checks behind",
        "its row. A small campaign with finished work (data, a run, its diagnostics) is copied for",
        "each, broken, and gone on with. *Borne* means: no traceback in anything the user could",
        "read; every finished file that the fault did not itself break still has its bytes; and it",
        "went on as its row says, to the bits of an undisturbed run.",
        "",
        f"Python {versions['python']}, PyTorch {versions['torch']}, Snakemake "
        f"{versions['snakemake']}; faults.parquet has the commit of every row.",
    ]
    heads = {
        "fault": ("Faults", "what broke", "how it goes on"),
        "input": ("Bad inputs", "what was given", "what becomes of it"),
    }
    for kind, (title, what, how) in heads.items():
        chosen = [row for row in rows if row["kind"] == kind]
        borne = sum(row["borne"] for row in chosen)
        lost, tracebacks = (sum(row[name] for row in chosen) for name in ("lost", "tracebacks"))
        parts += [
            "",
            f"## {title}",
            "",
            f"{borne} of {len(chosen)} borne, {lost} finished files lost, {tracebacks} tracebacks.",
            "",
            f"| {what} | what the user reads | {how} | lost | borne |",
            "| --- | --- | --- | --- | --- |",
        ]
        parts += [
            f"| {_cell(row['title'])} | {_cell(row['said'])} | {_cell(row['went_on'])} | "
            f"{row['lost'] or 'nothing'} | {'yes' if row['borne'] else '**no**'} |"
            for row in chosen
        ]
    return "\n".join([*parts, *crashes_part(crashes)]) + "\n"


def write_page() -> None:
    """Write docs/faults.md from the two files of outcomes."""
    rows = read_parquet(OUT, OUTCOMES).to_pylist()
    crashes = read_parquet(CRASHES, CRASH_OUTCOMES).to_pylist()
    write_text(DOCS / "faults.md", page(rows, read_origin(OUT), crashes))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAMES", help="comma-separated choice of cases")
    options = parser.parse_args(arguments)
    cases = CASES
    if options.only is not None:
        wanted = options.only.split(",")
        unknown = set(wanted) - {case.name for case in CASES}
        if unknown:
            parser.error(
                f"no case {sorted(unknown)[0]}; there are {', '.join(c.name for c in CASES)}"
            )
        cases = [case for case in CASES if case.name in wanted]
    rows = []
    if options.only is None:
        OUT.unlink(missing_ok=True)
    for row in run(cases):
        rows.append(row)
        _write(row)
    print(DOCS / "faults.md")
    borne = sum(row["borne"] for row in rows)
    print(f"{borne} of {len(rows)} borne")
    return 0 if borne == len(rows) == len(cases) else 1


def _write(row: dict) -> None:
    """Put one outcome in place of the last one of its name, on the disk and on the page."""
    kept = read_parquet(OUT, OUTCOMES).to_pylist() if OUT.exists() else []
    by_name = {other["name"]: other for other in (*kept, row)}
    merged = [by_name[case.name] for case in CASES if case.name in by_name]
    origin = {
        "campaign": "faults",
        "config_hash": "",
        "commit": commit(),
        "versions": versions(),
    }
    write_parquet(OUT, OUTCOMES, merged, origin)
    write_page()


if __name__ == "__main__":
    sys.exit(main())
