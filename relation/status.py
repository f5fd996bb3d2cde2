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

from relation.config import Campaign
from relation.data.windows import plan_updates
from relation.errors import InputError
from relation.parquet import read_origin, read_parquet
from relation.results import (
    GRADIENTS_FILE,
    VERIFICATION_FILE,
    Results,
    diagnostics_path,
    run_path,
    systems_path,
)
from relation.schemas import DATA, LOG, RUN
from relation.spec import RunSpec, Spec
from relation.training.folder import RunFolder, read_folder, resume_key, saved_update

RUNNING, DONE, STOPPED, FAILED = "running", "done", "stopped", "failed"
DAMAGED, WAITING, BEGUN = "damaged", "waiting", "begun"
STATES = (DONE, RUNNING, STOPPED, FAILED, DAMAGED, WAITING)  # of a run
_UPDATES_OF_PACE = 50


@dataclass(frozen=True)
class RunStatus:
    """One training run.

    state: running, done, stopped (it can go on), failed, damaged (its record) or waiting; share:
    of its tokens, those that need not be trained again; seconds_left: of training alone; loss: of
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
    """Another job: done, failed, damaged, waiting, or begun, which is running or killed."""

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


def failure(log: Path) -> str | None:
    """The reason, one line, for which the job that wrote a log failed; None where it did not."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    lines = [line for line in lines if line.strip()]
    if not lines:
        return None
    if lines[-1].startswith("error: "):
        return lines[-1].removeprefix("error: ")
    return lines[-1] if "Traceback (most recent call last):" in lines else None


class _Look:
    """One look at a campaign's files, gathering a line for each that cannot be used."""

    def __init__(self, campaign: Campaign, results: Results):
        self.campaign, self.results = campaign, results
        self.notes: list[str] = []
        self.shipped = self._or_note(
            lambda: {run.name for run in campaign.trained_runs if results.is_published(run)}
        )
        self.shipped_rows = self._or_note(lambda: results.shipped_reading_runs) or frozenset()
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
        try:
            return read()
        except InputError as error:
            line = str(error)
        except OSError as error:
            line = f"{error.filename or 'a file'} cannot be read ({error.strerror})"
        if line not in self.notes:
            self.notes.append(line)
        return None

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
        return None if hashes is None else resume_key(run, hashes)

    def _current(self, path: Path, spec: Spec) -> bool | None:
        """Whether a record is there and of this configuration; None where it cannot be read."""
        if not path.exists():
            return False
        origin = self._or_note(lambda: read_origin(path))
        return origin and origin.get("config_hash") == spec.config_hash

    def _log(self, rule: str, name: str) -> Path:
        return self.results.folder / "logs" / rule / f"{name}.log"

    def run(self, run: RunSpec) -> RunStatus:
        """The state of one run; its seconds left are not filled in."""
        own = [f for f in self.folders if f.about["run"] == run.name]
        own = [f for f in own if f.about["config_hash"] == run.config_hash]
        held = next((f for f in own if f.held), None)
        if held is not None:
            return _unfinished(run, held, RUNNING)
        own_record = self.results.folder / run_path(run) / "record.parquet"
        if run.name in self.shipped_rows and not own_record.exists():
            return RunStatus(run.name, DONE, share=1.0)
        shipped = self.shipped is not None and run.name in self.shipped
        base = self.results.published_folder if shipped else self.results.folder
        current = self._current(base / run_path(run) / "record.parquet", run)
        if current is None:
            return RunStatus(run.name, DAMAGED)
        if current:
            return self._done(run, base / run_path(run))
        key = self._key(run)
        left = next((f for f in own if f.path.name == key), None)
        if left is not None:
            ended = left.about["ended"]
            return _unfinished(run, left, STOPPED if ended is None else ended["state"])
        log = self._log("train", run.name.replace("/", "-"))
        reason = None if own else self._or_note(lambda: failure(log))
        return RunStatus(run.name, WAITING if reason is None else FAILED, reason=reason or "")

    def _done(self, run: RunSpec, folder: Path) -> RunStatus:
        record = self._or_note(lambda: _last_row(folder / "record.parquet", RUN))
        last = self._or_note(lambda: _last_row(folder / "log.parquet", LOG))
        if record is None or last is None:
            return RunStatus(run.name, DAMAGED)
        return RunStatus(
            run.name,
            DONE,
            share=1.0,
            tokens_per_second=record["tokens_per_second"],
            loss=last["loss"],
            updated=_made(folder / "record.parquet"),
        )

    def note_leftovers(self) -> None:
        """A line about resume folders that no planned run would go on from, where there are."""
        campaign = self.campaign
        planned = (
            *campaign.planned_runs,
            *campaign.planned_further,
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

    def steps(self) -> Iterator[StepStatus]:
        """Every job that is no training run, in the order of the DAG."""
        results = self.results
        for name, data in self.campaign.data.items():
            path = results.data(data) / "data.parquet"
            yield self._step(f"prepare {name}", path, data, self._log("prepare", name))
        for run in (*self.campaign.paired_runs, *self.campaign.reading_runs):
            yield from self._diagnosis(run)
        for spec in self.campaign.systems:
            path = self._or_note(lambda spec=spec: results.systems(spec))
            path = path or results.folder / systems_path(spec)
            log = self._log("measure", f"{spec.benchmark}-{spec.scale}")
            yield self._step(f"measure {spec.benchmark}/{spec.scale}", path, spec, log)

        path = self._or_note(lambda: results.verification) or results.folder / VERIFICATION_FILE
        log = results.folder / "logs" / "verify.log"
        yield self._step("verify", path, self.campaign.verification, log)
        path = self._or_note(lambda: results.gradients) or results.folder / GRADIENTS_FILE
        log = results.folder / "logs" / "verify-gradients.log"
        yield self._step("verify-gradients", path, self.campaign.gradients, log)
        yield self._inventory()
        yield self._report()

    def _diagnosis(self, run: RunSpec) -> Iterator[StepStatus]:
        """The diagnostics of a run; nothing for one that was published without them."""
        name, path = f"diagnose {run.name}", self.results.folder / diagnostics_path(run)
        if run.name in self.shipped_rows and not path.exists():
            yield StepStatus(name, DONE)
            return
        if self.shipped is not None and run.name in self.shipped:
            # A tuple, as None is what a run without them gives, and one whose are damaged.
            published = self._or_note(lambda: (self.results.diagnostics(run),))
            if published is None:
                yield StepStatus(name, DAMAGED)
                return
            (path,) = published
            if path is None:
                return
        log = self._log("diagnose", run.name.replace("/", "-"))
        yield self._step(name, path, self.campaign.diagnostics_spec(run), log)

    def _step(self, name: str, path: Path, spec: Spec, log: Path) -> StepStatus:
        current = self._current(path, spec)
        if current is None:
            return StepStatus(name, DAMAGED)
        if current:
            return StepStatus(name, DONE, _made(path))
        return self._not_done(name, path, [log])

    def _inventory(self) -> StepStatus:
        models = self.results.models
        # What it rests on is known only when the models are built: its being there has to do.
        if models.exists():
            whole = self._or_note(lambda: read_origin(models)) is not None
            if not whole:
                return StepStatus("inventory", DAMAGED)
            return StepStatus("inventory", DONE, _made(models))
        log = self.results.folder / "logs" / "inventory.log"
        return self._not_done("inventory", models, [log])

    def _report(self) -> StepStatus:
        index = self.results.report / "index.html"
        records = self._or_note(self.results.record_files) or []
        made = _modified(index)
        if made and records and all(0 < _modified(record) <= made for record in records):
            return StepStatus("report", DONE, made)
        folder = self.results.folder / "logs"
        logs = [folder / f"{rule}.log" for rule in ("cells", "figures", "report")]
        return self._not_done("report", index, logs)

    def _not_done(self, name: str, output: Path, logs: list[Path]) -> StepStatus:
        """A step as its logs tell, where one is newer than what the step made before."""
        log = max(logs, key=_modified)
        said = _modified(log)
        if said <= _modified(output):
            return StepStatus(name, WAITING)
        reason = self._or_note(lambda: failure(log))
        return StepStatus(name, BEGUN if reason is None else FAILED, said, reason or "")


def _last_row(path: Path, layout: pa.Schema) -> dict[str, Any]:
    """The last row of a record. Raises InputError where there is none."""
    table = read_parquet(path, layout)
    if not table.num_rows:
        raise InputError(f"{path} has no row; delete it and run snakemake again")
    return table.slice(table.num_rows - 1).to_pylist()[0]


def _made(path: Path) -> float:
    """When a record was made, in seconds since 1970; its file may be a copy or a clone's."""
    return datetime.fromisoformat(read_origin(path)["created"]).timestamp()


def _modified(path: Path) -> float:
    """When a file was last written, in seconds since 1970; 0 where there is none."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


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
    runs = _with_time_left(campaign, planned, [look.run(run) for run in planned])
    look.note_leftovers()
    return CampaignStatus(runs, list(look.steps()) if steps else [], look.notes)
