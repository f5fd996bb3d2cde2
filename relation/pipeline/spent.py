"""What examinations and recall took where they ran, for `plan`: seconds and peaks of memory.

Their records hold both. `plan --spent` writes the shipped table beside this module with what a
campaign's records say in it: so a job is planned by a measurement of the same work.
"""

import csv
import statistics
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from io import StringIO
from pathlib import Path

from relation.pipeline.ledger import Job, Ledger
from relation.spec import ExaminationSpec, RunSpec, canonical_hash
from relation.store.parquet import read_origin

SHIPPED = Path(__file__).with_name("spent.csv")
RULES = ("examine", "recall")


@dataclass(frozen=True)
class Spent:
    """What jobs of the same work took: mean seconds, the start left out, and most memory.

    work: identifies it, whatever the seed and the texts; peak_gib: allocated on the GPU, None on a
    CPU.
    """

    job: str
    scale: str
    variant: str
    work: str
    seconds: float
    peak_gib: float | None
    device: str


def work_of(job: Job, run: RunSpec | None) -> str:
    """What identifies the work of an examination, of a run's checkpoint, or of recall."""
    if not isinstance(job.spec, ExaminationSpec):
        return job.spec.config_hash
    asked = {name: getattr(job.spec, name) for name in ("sequences", "windows", "contexts")}
    given = {name: getattr(run, name) for name in ("model", "context", "precision", "backends")}
    return canonical_hash(asked | given)


def recorded(ledger: Ledger) -> list[Spent]:
    """What the records of a campaign say, a row a kind of work and device."""
    found: dict[tuple, list[tuple[float, float | None]]] = {}
    runs = {run.name: run for run in ledger.results.campaign.runs}
    for job in ledger.jobs:
        path = job.records[0].path if job.rule in RULES else None
        if path is None or not path.exists():
            continue
        origin = read_origin(path)
        # Records from before it was recorded, and of peers that could not run, do not say it.
        if job.mismatch(origin) or origin.get("seconds") is None:
            continue
        key = job.rule, job.scale, job.variant, work_of(job, runs.get(job.name)), origin["device"]
        found.setdefault(key, []).append((origin["seconds"], origin["peak_gib"]))
    rows = []
    for (*named, device), values in found.items():
        seconds, peaks = zip(*values, strict=True)
        peak = max((peak for peak in peaks if peak is not None), default=None)
        rows.append(Spent(*named, round(statistics.fmean(seconds), 2), peak, device))
    return rows


def rows_of(path: Path) -> list[Spent]:
    """The rows of a table that `as_csv` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = {"seconds": float, "peak_gib": lambda text: float(text) if text else None}
    return [
        Spent(**{name: numbers.get(name, str)(value) for name, value in row.items()})
        for row in rows
    ]


def known(ledger: Ledger) -> dict[tuple[str, str], Spent]:
    """By work and kind of device, what is shipped, replaced by what the campaign's records say."""
    return {(row.work, kind_of(row.device)): row for row in (*rows_of(SHIPPED), *recorded(ledger))}


def kind_of(device: str) -> str:
    """Whether a record's device is a CPU or a GPU."""
    return "cpu" if device.startswith("CPU") else "cuda"


def as_csv(rows: Iterable[Spent]) -> str:
    """The rows as the shipped table has them."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerows([[f.name for f in fields(Spent)], *map(astuple, rows)])
    return text.getvalue()
