"""The ledger of a campaign: its jobs, what each reads, writes and logs, and what state it is in.

The rules, `status`, `plan`, `publish`, `render`, the freshness of records and the workflow's check
before it starts ask it, so they agree. A record is judged by the hashes in its origin, never by the
date of its file: a copied or touched folder is in the state that it was in.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from relation.errors import InputError
from relation.pipeline.jobs import (
    BEGUN,
    DAMAGED,
    DONE,
    FAILED,
    STALE,
    UNREPORTED,
    WAITING,
    Job,
    Record,
    State,
    failure,
)
from relation.pipeline.places import RULES, RUN_FILES, run_path, with_pictures
from relation.pipeline.results import Results
from relation.pipeline.uses import uses_of, uses_of_model, uses_of_models
from relation.spec import (
    DataSpec,
    RecallSpec,
    RunSpec,
    Spec,
    SystemsSpec,
    canonical_hash,
)
from relation.store.parquet import read_origin
from relation.variants import PAIRED


def fault_of(read: Callable[[], Any]) -> tuple[Any, str]:
    """What `read` returns and "", or None and the line that says why it cannot."""
    try:
        return read(), ""
    except InputError as error:
        return None, str(error)
    except OSError as error:
        return None, f"{error.filename or 'a file'} cannot be read ({error.strerror})"


class Ledger:
    """The jobs of a campaign as restricted.

    strict: raise InputError where shipped files or the local texts will not do; else `Job.fault`
    says so, and the other jobs can still be judged.
    """

    def __init__(self, results: Results, strict: bool = True):
        self.results, self.strict = results, strict
        self._states: dict[tuple[str, str], State] = {}

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """Every job but those of the report, in a fixed order; each after those that it rests on.

        Diagnostics that were not published with their run are among them, without paths.
        """
        return tuple(self._jobs())

    def _jobs(self) -> Iterator[Job]:
        campaign = self.results.campaign
        yield from map(self.prepare, campaign.data.values())
        yield self.inventory()
        for run in campaign.runs:
            yield self.train(run)
            if run.variant in PAIRED:
                yield self.diagnose(run)
            if campaign.is_examined(run):
                yield self.examine(run)
        yield from map(self.train, campaign.further_runs)
        yield from map(self.train, campaign.converted_runs)
        for run in campaign.reading_runs:
            yield self.train(run)
            yield self.diagnose(run)
        if campaign.reading_runs:
            yield self.collect()
        yield from map(self.measure, campaign.systems)
        yield from map(self.recall, campaign.recall)
        yield self.verify()
        yield self.verify_gradients()

    @property
    def records(self) -> list[Record]:
        """The records that the report reads one by one, of the jobs in order."""
        return [r for job in self.jobs if job.rule not in UNREPORTED for r in job.records]

    def record_files(self) -> list[Path]:
        """Every Parquet that the report reads, in a fixed order."""
        results = self.results
        files = [record.path for record in self.records if record.path is not None]
        if results.campaign.reading_runs:
            files += results.reading_files().values()
        elif (shown := results.of_readings) is not None:
            files += [path for path in shown.reading_files().values() if path.exists()]
            files += [path for path in shown.shipped_readings().values() if path not in files]
        return files

    def of_rule(self, rule: str, wildcards: Mapping[str, str]) -> Job:
        """The job that a rule's wildcards name, of the whole campaign.

        Raises InputError where it has none.
        """
        campaign = self.results.campaign
        if rule == "prepare":
            return self.prepare(campaign.data[wildcards["dataset"]])
        if rule == "measure":
            return self.measure(campaign.benchmark(wildcards["benchmark"], wildcards["scale"]))
        if rule == "recall":
            return self.recall(campaign.recall_of(wildcards["mixer"]))
        if "variant" in wildcards:
            place, variant, seed = wildcards.values()
            return getattr(self, rule.partition("_")[0])(campaign.run(place, variant, int(seed)))
        return getattr(self, rule)()

    def _job(
        self,
        rule: str,
        spec: Spec | None,
        find: Callable[[], Sequence[Path] | None],
        wildcards: Mapping[str, Any] | None = None,
        **about: Any,
    ) -> Job:
        """find: returns the paths of its records, or raises InputError."""
        paths, fault = self._ask(find)
        about.setdefault("config_hash", spec.config_hash if spec else "")
        if "uses" not in about:
            about["uses"] = uses_of(spec) if spec else frozenset()
        return Job(
            rule,
            spec,
            wildcards=wildcards or {},
            folder=self.results.own_folder,
            paths=None if paths is None else tuple(paths),
            fault=fault,
            **about,
        )

    def _ask(self, read: Callable[[], Any]) -> tuple[Any, str]:
        return (read(), "") if self.strict else fault_of(read)

    def _corpus(self, data: str) -> str | None:
        return self._ask(lambda: self.results.corpus(data))[0]

    def _prepared(self, data: DataSpec, *files: str) -> tuple[Path, ...]:
        """Files of a prepared corpus, by the names of the rule's outputs."""
        writes = RULES["prepare"].writes
        return tuple(self.results.own_folder / writes[f].format(dataset=data.name) for f in files)

    def prepare(self, data: DataSpec) -> Job:
        """A corpus."""
        record = self.results.data(data) / "data.parquet"
        wildcards, corpus = {"dataset": data.name}, self._corpus(data.name)
        return self._job("prepare", data, lambda: [record], wildcards, corpus=corpus)

    def inventory(self) -> Job:
        """The models, counted."""
        campaign, found = self.results.campaign, [self.results.models]
        return self._job(
            "inventory",
            None,
            lambda: found,
            config_hash=campaign.inventory_hash,
            uses=uses_of_models(run for run, _ in campaign.inventory()),
        )

    def _of_run(self, run: RunSpec) -> dict[str, Any]:
        """What training and diagnosing a run have in common."""
        place = {"reading": run.reading} if run.reading else {"scale": run.scale}
        key = {"variant": run.variant, "seed": run.seed}
        return {"wildcards": place | key, "scale": run.scale, **key}

    def _of_shipped_row(self, run: RunSpec) -> bool:
        """Whether a shipped row stands for a reading's run, which has no record here."""
        results = self.results
        if not run.reading or (results.own_folder / run_path(run) / RUN_FILES[0]).exists():
            return False
        return bool(self._ask(lambda: run.name in results.shipped_reading_runs)[0])

    def train(self, run: RunSpec) -> Job:
        """A run, of the matrix, further, converted or of a reading."""
        results, campaign = self.results, self.results.campaign
        data, looks = campaign.data[run.data], campaign.diagnostics
        times = {
            "probe_times": looks["probes"],
            "validation_looks": looks["validations"],
            "validation_look_tokens": looks["validation_tokens"],
        }
        return self._job(
            "train_reading" if run.reading else "train",
            run,
            lambda: [results.run(run) / file for file in RUN_FILES],
            reads=(*self._prepared(data, "train", "validation", "data"), *self._start(run)),
            corpus=self._corpus(run.data),
            shipped=self._of_shipped_row(run),
            probed=(campaign.diagnostics_spec(run, looks["probe_sequences"]), times),
            further=run in campaign.planned_further,
            **self._of_run(run),
        )

    def _start(self, run: RunSpec) -> tuple[Path, ...]:
        """The checkpoint from which a converted run goes on."""
        if run.start is None:
            return ()
        return (self.train(self.results.campaign.run(run.scale, "mha", run.seed)).writes["model"],)

    def diagnose(self, run: RunSpec) -> Job:
        """The diagnostics of a run's checkpoint."""
        results, campaign = self.results, self.results.campaign
        trained = self.train(run)

        def find() -> Sequence[Path] | None:
            found = results.diagnostics(run)
            return None if found is None else with_pictures(found)

        return self._job(
            "diagnose_reading" if run.reading else "diagnose",
            campaign.diagnostics_spec(run),
            find,
            reads=(
                trained.writes["model"],
                *self._prepared(campaign.data[run.data], "validation"),
            ),
            base=None if trained.paths is None else trained.paths[0],
            uses=uses_of_model(run.model["layout"]),
            shipped=trained.shipped,
            **self._of_run(run),
        )

    def examine(self, run: RunSpec) -> Job:
        """What a run's checkpoint does beyond the paper's measures."""
        results, campaign = self.results, self.results.campaign
        trained = self.train(run)
        return self._job(
            "examine",
            campaign.examination_spec(run),
            lambda: results.examination(run),
            reads=(
                trained.writes["model"],
                *self._prepared(campaign.data[run.data], "validation", "tokenizer"),
            ),
            base=None if trained.paths is None else trained.paths[0],
            uses=uses_of(run),
            **self._of_run(run),
        )

    def collect(self) -> Job:
        """What is gathered of the readings' runs: of their diagnostics the metrics alone."""
        results = self.results
        own = self._ask(results.own_reading_runs)[0] or ()
        shipped = self._ask(results.shipped_readings)[0] or {}
        reads = [
            path
            for run in own
            for job in (self.train(run), self.diagnose(run))
            for kind, path in job.writes.items()
            if kind in ("run", "log", "probes", "diagnostics")
        ]
        # Shipped files may gather more runs than are asked for.
        runs = [run.config_hash for run in results.campaign.reading_runs]
        return self._job(
            "collect",
            None,
            lambda: results.reading_files().values(),
            reads=(*reads, *shipped.values()),
            config_hash=canonical_hash(runs) if own else "",
        )

    def measure(self, spec: SystemsSpec) -> Job:
        """A systems benchmark."""
        about = {"scale": spec.scale, "variant": spec.benchmark}
        reads = self._prepared(self.results.campaign.data_of_scale(spec.scale), "train")
        wildcards = {"benchmark": spec.benchmark, "scale": spec.scale}
        return self._single("measure", spec, wildcards, reads=reads, **about)

    def recall(self, spec: RecallSpec) -> Job:
        """The associative recall of a mixer."""
        return self._single("recall", spec, {"mixer": spec.mixer}, variant=spec.mixer)

    def verify(self) -> Job:
        """The check of the operators against their definitions."""
        return self._single("verify", self.results.campaign.verification)

    def verify_gradients(self) -> Job:
        """The check of a training step's gradients."""
        return self._single("verify_gradients", self.results.campaign.gradients)

    def _single(self, rule: str, spec: Spec, wildcards: Mapping[str, str] = {}, **about) -> Job:
        """A job of one record."""
        (pattern,) = RULES[rule].writes.values()
        file = Path(pattern.format(**wildcards))
        return self._job(rule, spec, lambda: [self.results.single(spec, file)], wildcards, **about)

    @cached_property
    def _readers(self) -> dict[Path, list[Job]]:
        """The jobs that read a file."""
        found: dict[Path, list[Job]] = {}
        for job in self.jobs:
            for path in job.reads:
                found.setdefault(path, []).append(job)
        return found

    def state(self, job: Job) -> State:
        """The state of a job.

        It is done when its records are, and each other file of its own that a job still has to
        read is there.
        """
        key = (job.rule, job.name)
        if key not in self._states:
            found = self.recorded(job)
            gone = self._gone(job) if found.name == DONE else None
            if gone is not None:
                found = State(WAITING, f"{gone} is gone, and another job has to read it")
            self._states[key] = found
        return self._states[key]

    def recorded(self, job: Job) -> State:
        """The state of a job's records. One that cannot be read makes it damaged, with a reason."""
        state, fault = fault_of(lambda: self._recorded(job))
        return state or State(DAMAGED, fault)

    def _recorded(self, job: Job) -> State:
        if job.shipped:
            return State(DONE)
        if job.fault:
            return State(DAMAGED, job.fault)
        stale = ""
        if job.paths and all(path.exists() for path in job.paths):
            origins = [read_origin(path) for path in job.paths]
            stale = next(filter(None, map(job.mismatch, origins)), "")
            if not stale:
                return State(DONE, made=origins[0].get("created"))
        reason = failure(job.log)
        if reason is not None:
            return State(FAILED, reason)
        if stale:
            return State(STALE, stale)
        return State(BEGUN if job.log.exists() else WAITING)

    def _gone(self, job: Job) -> Path | None:
        """A file of a job's own that another job still has to read and that is not there."""
        if job.shipped or not job.paths[0].is_relative_to(job.folder):
            return None
        for path in job.writes.values():
            readers = self._readers.get(path, ())
            if not path.exists() and not all(map(self.is_done, readers)):
                return path
        return None

    def is_done(self, job: Job) -> bool:
        """Whether nothing has to be done for a job."""
        return job.is_unpublished or self.state(job).name == DONE

    def settle(self) -> None:
        """Date what is done no earlier than what it read.

        Snakemake knows a file that it has not made itself by its date alone, and a copied or cloned
        folder has new dates in any order. A job is left alone unless its records were made after
        those of the jobs that it reads from, as their origins say.
        """
        made = {
            path: self.state(job).made or ""
            for job in self.jobs
            for path in job.writes.values()
            if self.is_done(job)
        }
        for job in self.jobs:
            files = [path for path in job.writes.values() if path.exists()]
            read = [path for path in job.reads if path.exists()]
            if not (files and read and self.is_done(job)):
                continue
            if all(made.get(path, "") <= made[files[0]] for path in read):
                newest = max(path.stat().st_mtime_ns for path in read)
                for path in files:
                    if path.stat().st_mtime_ns < newest:
                        os.utime(path, ns=(newest, newest))
