"""What a campaign would run and what it costs, before anything runs."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from relation.config import Campaign
from relation.disk import disk_gib, stage_of
from relation.geometry import ABLATIONS, PAIRED
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


def _paired(run: RunSpec) -> bool:
    return run.variant in PAIRED


def _ablation(run: RunSpec) -> bool:
    return run.variant in ABLATIONS or (run.variant == "full" and run.scale == "10M")


def _none(run: RunSpec) -> bool:
    return False


def _benchmark_seconds(spec: SystemsSpec, tokens_per_second: float) -> float:
    """Each side compiled, warmed up and asked in every round, at its scale's training rate."""
    updates = spec.warmup_updates + spec.rounds * (spec.measured_updates + 1)
    tokens = sum(side["micro"] * side["accumulation"] * side["context"] for side in spec.sides)
    compilation = _COMPILE_SECONDS * len(spec.sides) if spec.compile else 0.0
    return _START_SECONDS + compilation + updates * tokens / tokens_per_second


# Which runs, whether their diagnostics, and which benchmarks each table rests on.
_NEEDS: dict[str, tuple[Callable[[RunSpec], bool], bool, tuple[str, ...]]] = {
    "token-mixing-complexity": (_none, False, ("complexity",)),
    "main-results": (_paired, False, ()),
    "structural-ablations": (_ablation, False, ()),
    "relation_internal": (_paired, True, ()),
    "efficient-relation": (_none, False, ("fixed", "matched")),
    "app-configs": (_none, False, ()),
    "app-structural-layerwise": (_paired, True, ()),
    "app-structural-routing": (_paired, True, ()),
    "app-structural-sink-profile": (_paired, True, ()),
    "app-structural-spectrum": (_paired, True, ()),
    "app-nll": (_paired, False, ()),
    "app-token-efficiency": (_paired, False, ()),
    "app-ablation": (_ablation, False, ()),
    "app-hybrid": (lambda run: run.variant == "hybrid", False, ()),
    "app-prod-fr-fa": (_paired, False, ("matched",)),
    "app-linear-steady": (_none, False, ("linear-steady",)),
    "app-linear-long": (_none, False, ("linear-long",)),
}
# Tables with a panel of the pairs beyond the matrix.
_WITH_FURTHER = ("app-nll",)


def make_plan(campaign: Campaign, results: Results) -> Plan:
    """Count jobs, tokens, hours and disk of a campaign, from its configured token rates."""
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

    tables = []
    for label, (wants, with_flow, benchmarks) in _NEEDS.items():
        runs = [run for run in campaign.runs if wants(run)]
        if label in _WITH_FURTHER:
            runs += campaign.further_runs
        hours = sum(run_hours(run) + with_flow * diagnosis_hours(run) for run in runs)
        hours += sum(benchmark_hours(s) for s in campaign.systems if s.benchmark in benchmarks)
        tables.append(TableCost(label, len(runs), hours, run_gib(runs)))
    basis = (
        "Training and benchmarks from expected_tokens_per_second in config.yaml, 5 s for a job's "
        "start and 30 s to compile a model; diagnostics are a rough guess. Disk: every run's "
        "checkpoint and the two resume states of the largest run; corpora come on top."
    )
    return Plan(stages, tables, basis)
