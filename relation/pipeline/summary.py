"""What a workflow says last: what it made, what failed and where the log and the report are."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from relation.pipeline.jobs import failure
from relation.pipeline.results import Results


@dataclass(frozen=True)
class Started:
    """A job that the workflow was to run: its rule, name, outputs and log."""

    rule: str
    name: str
    writes: tuple[Path, ...]
    log: Path | None

    def is_made(self, since: float) -> bool:
        """Whether its outputs are there and newer than a moment, seconds since 1970."""
        return all(path.exists() and path.stat().st_mtime >= since for path in self.writes)


def summary(jobs: Iterable[Started], since: float, ended_well: bool) -> Iterator[str]:
    """The lines that say which of the jobs were made since a moment, and why the others were not.

    since: seconds since 1970; ended_well: whether every job did.
    """
    jobs = [job for job in jobs if job.writes]
    made = [job for job in jobs if ended_well or job.is_made(since)]
    counts = Counter(job.rule for job in made)
    yield f"Made: {', '.join(f'{count} {rule}' for rule, count in counts.items()) or 'nothing'}."
    not_begun = 0
    for job in jobs:
        if job in made:
            continue
        if job.log is None or not job.log.exists() or job.log.stat().st_mtime < since:
            not_begun += 1
            continue
        reason = failure(job.log) or "stopped"
        yield f"Failed: {f'{job.rule} {job.name}'.strip()}: {reason} (log: {job.log})"
    if not_begun:
        yield f"Not begun: {not_begun} more."


def report_lines(results: Results, ended_well: bool) -> Iterator[str]:
    """Where the report is, or how to make one of what is there."""
    if not ended_well:
        command = f"python -m relation render --config {results.started_with.as_posix()}"
        yield f"A report of what is there, with the gaps named: {command}"
        return
    for name in ("index.html", "report.pdf"):
        if (results.report / name).exists():
            yield f"Report: {(results.report / name).as_posix()}"
