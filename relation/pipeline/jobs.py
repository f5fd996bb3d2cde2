"""A job of a campaign: what it reads, writes and logs, what it rests on, and its records.

`relation.pipeline.ledger` makes them, and says what state each is in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from relation.pipeline.hashes import code_hash
from relation.pipeline.places import RULES
from relation.pipeline.results import texts_of
from relation.spec import DiagnosticsSpec, RunSpec, Spec, SystemsSpec

DONE, STALE, FAILED, DAMAGED = "done", "stale", "failed", "damaged"
BEGUN, WAITING = "begun", "waiting"
# Jobs whose records the report reads through another job's, or not at all.
UNREPORTED = ("prepare", "train_reading", "diagnose_reading", "collect")


@dataclass(frozen=True)
class State:
    """done, stale (of another configuration or other texts), failed, damaged, begun or waiting.

    begun: running or killed; reason: one line where there is more to say; made: when the records
    of a job that is done were made, in ISO 8601.
    """

    name: str
    reason: str = ""
    made: str | None = None


@dataclass(frozen=True)
class Job:
    """A job of a campaign.

    rule: of Snakemake; spec: None of the inventory and of what gathers readings; wildcards: of its
    rule; folder: the campaign's own; paths: of its records, where they are read; None where they
    were not published with their run; reads: files of other jobs, and shipped ones; scale, variant,
    seed: as the records name it, the variant of a benchmark being its name; corpus: fingerprint of
    the local texts given now; base: the record of another job on which its own rest; shipped:
    whether shipped rows stand for it; fault: why its records cannot be found; probed: how the
    present configuration samples a run, and what else the origin of its probes would say; further:
    whether its run is of a pair beyond the matrix; uses: the entries of registries that it uses.
    """

    rule: str
    spec: Spec | None
    config_hash: str  # empty: whatever made its records
    wildcards: Mapping[str, Any]
    folder: Path
    paths: tuple[Path, ...] | None
    reads: tuple[Path, ...] = ()
    scale: str = ""
    variant: str = ""
    seed: int | None = None
    corpus: str | None = None
    base: Path | None = None
    shipped: bool = False
    fault: str = ""
    probed: tuple[DiagnosticsSpec, Mapping[str, int]] | None = None
    further: bool = False
    uses: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """What it is about: a run, corpus or benchmark; empty where its rule has one job."""
        return "/".join(str(value) for value in self.wildcards.values())

    @property
    def is_unpublished(self) -> bool:
        """Whether it is of a published run whose checkpoint is not here, so it cannot run."""
        return self.paths is None and not self.fault

    @property
    def stage(self) -> str:
        """Whose code it rests on."""
        return self.spec.stage if isinstance(self.spec, SystemsSpec) else RULES[self.rule].stage

    @property
    def code(self) -> str:
        """The hash of the code that it rests on."""
        return code_hash(self.stage, self.uses)

    @cached_property
    def writes(self) -> dict[str, Path]:
        """What it writes, by the names of its rule's outputs; records first."""
        patterns = RULES[self.rule].writes.items()
        return {name: self.folder / file.format(**self.wildcards) for name, file in patterns}

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{RULES[self.rule].log.format(**self.wildcards)}.log"

    def mismatch(self, origin: Mapping[str, Any]) -> str:
        """Why a record of this origin is not what would be made now; empty where it is."""
        made, read = origin.get("config_hash"), texts_of(origin)
        if self.config_hash not in ("", made):
            return f"made with another configuration: {made}, now {self.config_hash}"
        if None not in (read, self.corpus) and read != self.corpus:
            return "made from other texts than the corpus given now"
        return ""

    @property
    def records(self) -> tuple["Record", ...]:
        """Its Parquet, in the order of `writes`."""
        targets = {kind: t for kind, t in self.writes.items() if t.suffix == ".parquet"}
        paths = (None,) * len(targets) if self.paths is None else self.paths
        converted = isinstance(self.spec, RunSpec) and self.spec.start is not None
        among = "further " if self.further else "converted " if converted else ""
        return tuple(
            Record(self, f"{among}{kind}", path, target)
            for (kind, target), path in zip(targets.items(), paths, strict=True)
        )


@dataclass(frozen=True)
class Record:
    """A Parquet file of a job.

    kind: its name among the outputs of the job's rule, after "further" for a pair beyond the
    matrix and "converted" for a run that goes on from MHA; path: where it is read, None for
    diagnostics that were not published with their run; target: where the job writes it.
    """

    job: Job
    kind: str
    path: Path | None
    target: Path

    @property
    def rests_on(self) -> Path | None:
        """Another record, listed before it, than which it is no fresher."""
        first = None if self.job.paths is None else self.job.paths[0]
        return self.job.base or (None if self.path == first else first)

    @property
    def is_probed(self) -> bool:
        """Whether it holds what was measured while a run trained."""
        return self.job.probed is not None and self.kind.endswith("probes")

    def probed_alike(self, origin: Mapping[str, Any]) -> bool:
        """Whether probes of this origin were taken as the present configuration takes them."""
        sampling, looks = self.job.probed
        now = replace(sampling, run_hash=origin["config_hash"]).config_hash
        expected = {"probe_config_hash": now, **looks}
        return expected == {name: origin.get(name) for name in expected}


def failure(log: Path) -> str | None:
    """The reason, one line, for which the job that wrote a log failed; None where it did not."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    lines = [line for line in lines if line.strip()]
    if not lines:
        return None
    if lines[-1].startswith("error: "):
        return lines[-1].removeprefix("error: ")
    return lines[-1] if "Traceback (most recent call last):" in lines else None
