"""How far a campaign has come, read off its files alone, whatever runs meanwhile.

Free of PyTorch, so that a look stays fast.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from relation.data.windows import plan_updates
from relation.errors import InputError
from relation.pipeline.campaign import Campaign
from relation.pipeline.hashes import code_hash
from relation.pipeline.jobs import BEGUN, DAMAGED, DONE, FAILED, STALE, WAITING, Job, State, failure
from relation.pipeline.ledger import Ledger, fault_of
from relation.pipeline.results import Results
from relation.pipeline.uses import uses_of
from relation.spec import RunSpec
from relation.store.layouts import DATA, LOG, RUN
from relation.store.parquet import is_checkable, read_origin, read_parquet
from relation.train.folder import RunFolder, read_folder, resume_key, saved_update

RUNNING, STOPPED = "running", "stopped"
STATES = (DONE, RUNNING, STOPPED, FAILED, DAMAGED, STALE, WAITING)  # of a run
_UPDATES_OF_PACE = 50
# The jobs that are no training run, in the order of the DAG; the report comes last.
_STEPS = ("prepare", "diagnose", "diagnose_reading", "measure", "verify", "verify_gradients")
_STEPS += ("inventory", "examine", "recall")


@dataclass(frozen=True)
class RunStatus:
    """One training run.

    state: running, done, stopped (it can go on), failed, damaged (its record), stale (its record is
    of another configuration or other texts) or waiting; share: of its tokens, those that need not
    be trained again; seconds_left: of training alone; loss: of
    the last update, nat/token; updated: when that was, in seconds since 1970.
    """

    name: str
    state: str
    share: float = 0.0
    tokens_per_second: float | None = None
    seconds_left: float = 0.0
    loss: float | None = None
    updated: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class StepStatus:
    """Another job: done, failed, damaged, stale, waiting, or begun, which is running or killed."""

    name: str
    state: str
    updated: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class CampaignStatus:
    """A campaign's runs and other steps, and a line for each file that cannot be used."""

    runs: list[RunStatus]
    steps: list[StepStatus]
    notes: list[str]

    @property
    def running(self) -> int:
        return sum(run.state == RUNNING for run in self.runs)

    @property
    def seconds_left(self) -> float:
        """Of all training, one run after the other."""
        return sum(run.seconds_left for run in self.runs)

    @property
    def seconds_left_together(self) -> float:
        """Of all training, at best, with as many runs at a time as there are now."""
        longest = max((run.seconds_left for run in self.runs), default=0.0)
        return max(self.seconds_left / max(1, self.running), longest)

    def as_dict(self) -> dict:
        return {**asdict(self), "seconds_left": self.seconds_left}


def trained_tokens(run: RunSpec) -> int:
    """Tokens that a run trains: its budget, or less where the last partial update is dropped."""
    updates = plan_updates(run.budget_tokens, run.tokens_per_update, run.context, run.last_update)
    return sum(update.tokens for update in updates)


class _Look:
    """One look at a campaign's files, gathering a line for each that cannot be used."""

    def __init__(self, campaign: Campaign, results: Results):
        self.campaign, self.results = campaign, results
        self.ledger = Ledger(replace(results, campaign=campaign), strict=False)
        self.notes: list[str] = []
        self.hashes = {name: self._token_hashes(name) for name in campaign.data}
        found = (
            self._or_note(lambda path=path: read_folder(path))
            for path in sorted((results.folder / "resume").glob("*/"))
        )
        self.folders = [folder for folder in found if folder is not None]
        for folder in self.folders:
            if folder.damaged is not None:
                self.notes.append(
                    f"{folder.path}/metrics.jsonl line {folder.damaged} is damaged; the run writes "
                    "it again when it goes on"
                )

    def _or_note(self, read: Callable[[], Any]) -> Any:
        """What `read` gives, or None and a line about why it gives nothing."""
        found, fault = fault_of(read)
        self._note(fault)
        return found

    def _note(self, line: str) -> None:
        if line and line not in self.notes:
            self.notes.append(line)

    def _token_hashes(self, data: str) -> dict[str, str] | None:
        """SHA-256 of a prepared corpus's token file by split; None where it is not prepared."""
        path = self.results.data(self.campaign.data[data]) / "data.parquet"
        if not path.exists():
            return None
        table = self._or_note(lambda: read_parquet(path, DATA))
        return table and {row["split"]: row["sha256"] for row in table.to_pylist()}

    def _key(self, run: RunSpec) -> str | None:
        """The name of the folder from which a run would go on, where its corpus is prepared."""
        hashes = self.hashes[run.data]
        return (
            None if hashes is None else resume_key(run, hashes, code_hash("training", uses_of(run)))
        )

    def runs(self) -> list[RunStatus]:
        """The state of every run; their seconds left are not filled in."""
        trained = (job for job in self.ledger.jobs if isinstance(job.spec, RunSpec))
        return [self._run(job, job.spec) for job in trained]

    def _run(self, job: Job, run: RunSpec) -> RunStatus:
        own = [f for f in self.folders if f.about["run"] == run.name]
        own = [f for f in own if f.about["config_hash"] == run.config_hash]
        held = next((f for f in own if f.held), None)
        if held is not None:
            return _unfinished(run, held, RUNNING)
        state = self._state(job)
        if state.name == DAMAGED:
            return RunStatus(run.name, DAMAGED)
        if state.name == DONE:
            return RunStatus(run.name, DONE, share=1.0) if job.shipped else self._done(job)
        key = self._key(run)
        left = next((f for f in own if f.path.name == key), None)
        if left is not None:
            ended = left.about["ended"]
            return _unfinished(run, left, STOPPED if ended is None else ended["state"])
        # The log of a run that has a folder is of an attempt that began well.
        if state.name == BEGUN or (own and state.name == FAILED):
            return RunStatus(run.name, WAITING)
        return RunStatus(run.name, state.name, reason=state.reason)

    def _state(self, job: Job) -> State:
        """The ledger's, with a line about what is damaged."""
        state = self.ledger.state(job)
        if state.name == DAMAGED:
            self._note(state.reason)
        return state

    def _done(self, job: Job) -> RunStatus:
        record = self._or_note(lambda: _last_row(job.paths[0], RUN))
        last = self._or_note(lambda: _last_row(job.paths[1], LOG))
        if record is None or last is None:
            return RunStatus(job.name, DAMAGED)
        return RunStatus(
            job.name,
            DONE,
            share=1.0,
            tokens_per_second=record["tokens_per_second"],
            loss=last["loss"],
            updated=_seconds(self.ledger.state(job).made),
        )

    def note_leftovers(self) -> None:
        """A line about resume folders that no planned run would go on from, where there are."""
        campaign = self.campaign
        planned = (
            *campaign.planned_runs,
            *campaign.planned_further,
            *campaign.planned_converted,
            *campaign.planned_reading_runs,
        )
        runs = {(run.name, run.config_hash): run for run in planned}
        left = 0
        for folder in self.folders:
            run = runs.get((folder.about["run"], folder.about["config_hash"]))
            key = run and self._key(run)
            left += not folder.held and (run is None or key not in (None, folder.path.name))
        if left:
            folders = "1 folder" if left == 1 else f"{left} folders"
            self.notes.append(
                f"{self.results.folder / 'resume'}: {folders} of other code, data or settings; "
                "nothing goes on from them, delete them to free the disk"
            )

    def note_uncheckable(self) -> None:
        """A line about own records whose metadata cannot be checked, where there are."""
        read = (path for job in self.ledger.jobs for path in job.paths or ())
        folder = self.results.own_folder  # what was published has the checksums beside it
        paths = [path for path in read if path.is_relative_to(folder) and path.exists()]
        # One that is damaged has its note from its own job.
        old = sum(fault_of(lambda path=path: is_checkable(path))[0] is False for path in paths)
        if old:
            records = "1 record is" if old == 1 else f"{old} records are"
            self.notes.append(
                f"{folder}: {records} from before records held a checksum of themselves; their "
                "rows can be checked, their metadata cannot"
            )

    def steps(self) -> Iterator[StepStatus]:
        """Every job that is no training run, in the order of the DAG."""
        for rule in _STEPS:
            for job in self.ledger.jobs:
                if job.rule == rule and not job.is_unpublished:
                    name = f"{rule.removesuffix('_reading').replace('_', '-')} {job.name}".strip()
                    state = self._state(job)
                    reason = "" if state.name == DAMAGED else state.reason
                    yield StepStatus(name, state.name, _seconds(state.made), reason)
        yield self._report()

    def _report(self) -> StepStatus:
        """The report of all records, made from those that are there now."""
        report = self.results.report
        if (report / "index.html").exists():
            shown = self._or_note(lambda: read_parquet(report / "provenance.parquet"))
            if shown is None:
                return StepStatus("report", DAMAGED)
            made = {row["source"]: row["made"] for row in shown.to_pylist()}
            paths = [r.path for r in self.ledger.records if r.path is not None]
            # One that is damaged has its note from its own job.
            present, _ = fault_of(lambda: {p.as_posix(): read_origin(p)["created"] for p in paths})
            if made == present:
                cells = read_origin(report / "provenance.parquet")
                return StepStatus("report", DONE, _seconds(cells["created"]))
        folder = self.results.folder / "logs"
        for rule in ("cells", "figures", "report"):
            reason = self._or_note(lambda rule=rule: failure(folder / f"{rule}.log"))
            if reason is not None:
                return StepStatus("report", FAILED, reason=reason)
        return StepStatus("report", WAITING)


def _last_row(path: Path, layout: pa.Schema) -> dict[str, Any]:
    """The last row of a record. Raises InputError where there is none."""
    table = read_parquet(path, layout)
    if not table.num_rows:
        raise InputError(f"{path} has no row; delete it and run snakemake again")
    return table.slice(table.num_rows - 1).to_pylist()[0]


def _seconds(made: str | None) -> float | None:
    """When a record was made, in seconds since 1970."""
    return None if made is None else datetime.fromisoformat(made).timestamp()


def _unfinished(run: RunSpec, folder: RunFolder, state: str) -> RunStatus:
    """A run that has a resume folder; what it would train again does not count as its share."""
    last = folder.rows[-1] if folder.rows else None
    total = trained_tokens(run)
    if state == RUNNING:
        tokens = last["tokens"] if last else 0
    else:
        tokens = min(saved_update(folder.path) * run.tokens_per_update, total)
    rates = [row["tokens_per_second"] for row in folder.rows[-_UPDATES_OF_PACE:]]
    ended = folder.about["ended"]
    return RunStatus(
        run.name,
        state,
        share=tokens / total,
        # The median, because the first update compiles.
        tokens_per_second=statistics.median(rates) if rates else None,
        loss=last and last["loss"],
        updated=(last and last["time"]) or folder.about["started"],
        reason=ended["reason"] if ended and state != RUNNING else "",
    )


def _with_time_left(
    campaign: Campaign, runs: Sequence[RunSpec], found: list[RunStatus]
) -> list[RunStatus]:
    """Fill in the seconds left: at a run's own rate, else at what is next to it.

    Next to it are the runs of its scale and variant, then those of its scale, then the
    configuration's expected_tokens_per_second.
    """
    measured: dict[tuple[str, ...], list[float]] = {}
    for run, status in zip(runs, found, strict=True):
        if status.tokens_per_second:
            for group in ((run.scale, run.variant), (run.scale,)):
                measured.setdefault(group, []).append(status.tokens_per_second)

    def rate(run: RunSpec, status: RunStatus) -> float:
        if status.tokens_per_second:
            return status.tokens_per_second
        alike = measured.get((run.scale, run.variant)) or measured.get((run.scale,))
        return statistics.mean(alike or [campaign.expected_tokens_per_second[run.scale]])

    return [
        replace(
            status,
            seconds_left=0.0
            if status.state == DONE
            else (1 - status.share) * trained_tokens(run) / rate(run, status),
        )
        for run, status in zip(runs, found, strict=True)
    ]


def campaign_status(campaign: Campaign, results: Results, steps: bool = False) -> CampaignStatus:
    """The state of every planned run of a campaign and, with `steps`, of every other job.

    Reads files and changes none. What cannot be read is a note, not an error.
    """
    look = _Look(campaign, results)
    planned = (*campaign.trained_runs, *campaign.reading_runs)
    runs = _with_time_left(campaign, planned, look.runs())
    look.note_leftovers()
    look.note_uncheckable()
    return CampaignStatus(runs, list(look.steps()) if steps else [], look.notes)
