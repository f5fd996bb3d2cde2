"""What a campaign lacks, as a reader calls it: one gap a job, whatever it would have written."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

KINDS = {
    "run": "training runs",
    "further run": "runs of further pairs",
    "converted run": "runs that go on from MHA",
    "flow": "diagnostics",
    "copying": "examinations",
    "throughput": "benchmarks",
    "recall": "associative recall",
}
# Written by the job whose record has the other kind, so no gap of their own where that is one.
_BESIDE = {"probes": "run", "curves": "flow", "maps": "flow"}
_BESIDE |= {"lengths": "copying", "self_use": "copying"}
_KEY = itemgetter("scale", "variant", "seed")


def by_job(missing: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of missing.parquet that stand for a job each; of several of a job, the first."""
    missing = list(missing)
    known = {(row["kind"], *_KEY(row)) for row in missing}
    found: dict[tuple, Mapping[str, Any]] = {}
    for row in missing:
        if (_BESIDE.get(row["kind"]), *_KEY(row)) not in known:
            found.setdefault((row["kind"], *_KEY(row)), row)
    return list(found.values())
