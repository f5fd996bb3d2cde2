"""What a campaign would run and what it costs, before anything runs."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from relation.config import Campaign
from relation.disk import disk_gib, stage_of
from relation.model.inventory import count_parameters
from relation.parquet import read_origin
from relation.results import Results
from relation.spec import RunSpec, Spec, SystemsSpec

# Guesses, each a little too much:
_DIAGNOSIS_SHARE = 0.02  # of its run's hours
_START_SECONDS = 5.0  # a job: Python, PyTorch, the configuration
_COMPILE_SECONDS = 30.0  # a model, the kernels it needs included


@dataclass(frozen=True)
class Stage:
    """One stage of the DAG: jobs, those already done, tokens trained, hours and disk still due.

    ``disk_gib`` is the checkpoints, which stay, and the resume states of the largest run.
    """

    stage: str
    jobs: int
    done: int
    tokens: int
    hours: float
    disk_gib: float


class TableNeeds(Protocol):
    """What a table rests on, as its declaration says (``report.layout.Needs``)."""

    runs: Callable[[RunSpec], bool]
    further: bool
    flow: bool
    benchmarks: tuple[str, ...]


@dataclass(frozen=True)
class TableCost:
    """What one table alone would need from nothing: runs, device hours, disk as a stage's."""

    label: str
    runs: int
    hours: float
    disk_gib: float


@dataclass(frozen=True)
class Plan:
    """A campaign's stages and the cost of each table."""

    stages: list[Stage]
    tables: list[TableCost]
    basis: str

    @property
    def total(self) -> Stage:
        """The sum of all stages."""
        counts = ("jobs", "done", "tokens", "hours", "disk_gib")
        return Stage("total", *(sum(getattr(s, name) for s in self.stages) for name in counts))

    def as_dict(self) -> dict:
        return asdict(self) | {"total": asdict(self.total)}


def _benchmark_seconds(spec: SystemsSpec, tokens_per_second: float) -> float:
    """Each side compiled, warmed up and asked in every round, at its scale's training rate."""
    updates = spec.warmup_updates + spec.rounds * (spec.measured_updates + 1)
    tokens = sum(side["micro"] * side["accumulation"] * side["context"] for side in spec.sides)
    compilation = _COMPILE_SECONDS * len(spec.sides) if spec.compile else 0.0
    return _START_SECONDS + compilation + updates * tokens / tokens_per_second


def make_plan(campaign: Campaign, results: Results, tables: Mapping[str, TableNeeds]) -> Plan:
    """Count jobs, tokens, hours and disk of a campaign, from its configured token rates.

    Args:
        tables: what each table needs, by its label.
    """
    parameters: dict[tuple[str, str], int] = {}
    for run in (*campaign.trained_runs, *campaign.reading_runs):
        key = (run.scale, run.variant)
        if key not in parameters:
            parameters[key] = count_parameters(run.model_config())

    def run_hours(run: RunSpec) -> float:
        training = run.budget_tokens / campaign.expected_tokens_per_second[run.scale]
        return (_START_SECONDS + run.compile * _COMPILE_SECONDS + training) / 3600

    def diagnosis_hours(run: RunSpec) -> float:
        return _START_SECONDS / 3600 + run_hours(run) * _DIAGNOSIS_SHARE

    def benchmark_hours(spec: SystemsSpec) -> float:
        rate = campaign.expected_tokens_per_second[spec.scale]
        return _benchmark_seconds(spec, rate) / 3600

    def run_gib(runs: list[RunSpec]) -> float:
        return disk_gib(parameters[run.scale, run.variant] for run in runs)

    def current(path: Path, spec: Spec) -> bool:
        return path.exists() and read_origin(path)["config_hash"] == spec.config_hash

    def run_done(run: RunSpec) -> bool:
        if run.name in shipped:
            return True
        return current(results.run(run) / "record.parquet", run)

    def diagnosed(run: RunSpec) -> bool:
        if run.name in shipped:
            return True
        path = results.diagnostics(run)
        return path is not None and current(path, campaign.diagnostics_spec(run))

    shipped = results.shipped_reading_runs
    due = [run for run in (*campaign.trained_runs, *campaign.reading_runs) if not run_done(run)]
    names = ("paired runs", "ablation runs", "other runs")
    groups = {name: [r for r in campaign.runs if stage_of(r.variant) == name] for name in names}
    if campaign.planned_further:
        groups["further runs"] = list(campaign.further_runs)
    if campaign.readings:
        groups["readings"] = list(campaign.reading_runs)
    stages = []
    for name, runs in groups.items():
        left = [run for run in runs if run in due]
        stages.append(
            Stage(
                name,
                len(runs),
                len(runs) - len(left),
                sum(run.budget_tokens for run in left),
                sum(map(run_hours, left)),
                run_gib(left),
            )
        )
    checkpoints = (*campaign.paired_runs, *campaign.reading_runs)
    undiagnosed = [run for run in checkpoints if not diagnosed(run)]
    stages.append(
        Stage(
            "diagnostics",
            len(checkpoints),
            len(checkpoints) - len(undiagnosed),
            0,
            sum(map(diagnosis_hours, undiagnosed)),
            0.0,
        )
    )
    unmeasured = [s for s in campaign.systems if not current(results.systems(s), s)]
    stages.append(
        Stage(
            "systems",
            len(campaign.systems),
            len(campaign.systems) - len(unmeasured),
            0,
            sum(map(benchmark_hours, unmeasured)),
            0.0,
        )
    )

    unverified = not current(results.verification, campaign.verification)
    unchecked = not current(results.gradients, campaign.gradients)
    seconds = (unverified + unchecked) * _START_SECONDS
    if campaign.gradients.compile:
        seconds += unchecked * _COMPILE_SECONDS * len(campaign.gradients.variants)
    verified = 2 - unverified - unchecked
    stages.append(Stage("verification", 2, verified, 0, seconds / 3600, 0.0))

    costs = []
    for label, needs in tables.items():
        runs = [run for run in campaign.runs if needs.runs(run)]
        if needs.further:
            runs += campaign.further_runs
        hours = sum(run_hours(run) + needs.flow * diagnosis_hours(run) for run in runs)
        measured = [spec for spec in campaign.systems if spec.benchmark in needs.benchmarks]
        hours += sum(map(benchmark_hours, measured))
        costs.append(TableCost(label, len(runs), hours, run_gib(runs)))
    basis = (
        "Training and benchmarks from expected_tokens_per_second in config.yaml, 5 s for a job's "
        "start and 30 s to compile a model; diagnostics are a rough guess. Disk: every run's "
        "checkpoint and the two resume states of the largest run; corpora come on top."
    )
    return Plan(stages, costs, basis)
