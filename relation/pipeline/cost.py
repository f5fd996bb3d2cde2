"""What a campaign would run and what it costs, before anything runs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from relation.errors import InputError
from relation.pipeline import spent
from relation.pipeline.campaign import Campaign
from relation.pipeline.jobs import DAMAGED, Job
from relation.pipeline.ledger import Ledger
from relation.pipeline.results import Results
from relation.pipeline.spent import Spent
from relation.spec import (
    DiagnosticsSpec,
    ExaminationSpec,
    GradientsSpec,
    RecallSpec,
    RunSpec,
    SystemsSpec,
)
from relation.variants import ABLATIONS, PAIRED

_GIB = 2**30
_STATE_COPIES = 3 * 2  # a resume state holds weights and two moments, and two states are kept
# Guesses, each a little too much:
_DIAGNOSIS_SHARE = 0.02  # of its run's hours
_START_SECONDS = 5.0  # a job: Python, PyTorch, the configuration
_COMPILE_SECONDS = 30.0  # a model, the kernels it needs included
_DECODED_SECONDS = 3.0  # a model at one context and batch: its graph and its tokens
# An examination reads long windows so often, and takes so many parts from a layer, at most.
_LONG_READINGS, _MOST_PARTS = 4, 4


def stage_of(variant: str) -> str:
    """The stage of training that a variant's runs belong to."""
    if variant in PAIRED:
        return "paired runs"
    return "ablation runs" if variant in ABLATIONS else "other runs"


def disk_gib(parameters: Iterable[int]) -> float:
    """Every run's checkpoint and the two resume states of the largest run, in GiB.

    parameters: how many the model of each run has, at 4 bytes each.
    """
    sizes = [4 * count / _GIB for count in parameters]
    return sum(sizes) + _STATE_COPIES * max(sizes, default=0.0)


def training_gib(runs: Iterable[tuple[str, int]]) -> float:
    """The disk of all stages of training, added up.

    runs: the variant and the parameters of each.
    """
    stages: dict[str, list[int]] = {}
    for variant, count in runs:
        stages.setdefault(stage_of(variant), []).append(count)
    return sum(map(disk_gib, stages.values()))


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
    """What a table rests on, as its declaration says (``report.values.layout.Needs``)."""

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
class BeyondCost:
    """What each of a kind of job beyond the paper takes: seconds, and memory where it is known.

    device: where both were measured, empty for an estimate.
    """

    job: str
    scale: str
    variant: str
    jobs: int
    seconds: float
    peak_gib: float | None
    device: str


@dataclass(frozen=True)
class Plan:
    """A campaign's stages, the cost of each table and of each kind of job beyond the paper."""

    stages: list[Stage]
    tables: list[TableCost]
    basis: str
    beyond: list[BeyondCost]

    @property
    def total(self) -> Stage:
        """The sum of all stages."""
        counts = ("jobs", "done", "tokens", "hours", "disk_gib")
        return Stage("total", *(sum(getattr(s, name) for s in self.stages) for name in counts))

    def as_dict(self) -> dict:
        return asdict(self) | {"total": asdict(self.total)}


def _benchmark_seconds(spec: SystemsSpec, tokens_per_second: float) -> float:
    """Each side compiled, warmed up and asked in every round, at its scale's training rate."""
    if spec.benchmark == "decode":
        return _START_SECONDS + _DECODED_SECONDS * len(spec.sides)
    updates = spec.warmup_updates + spec.rounds * (spec.measured_updates + 1)
    tokens = sum(side["micro"] * side["accumulation"] * side["context"] for side in spec.sides)
    compilation = _COMPILE_SECONDS * len(spec.sides) if spec.compile else 0.0
    return _START_SECONDS + compilation + updates * tokens / tokens_per_second


def _recall_seconds(spec: RecallSpec, tokens_per_second: float) -> float:
    """Every width compiled once and trained at every rate, then with the other seeds."""
    trainings = len(spec.learning_rates) + len(spec.seeds) - 1
    longest = max(length for length, _ in spec.tasks)
    sequences = spec.updates * spec.sequences + 2 * spec.tested
    tokens = trainings * sequences * len(spec.tasks) * longest
    compilation = spec.compile * _COMPILE_SECONDS
    return _START_SECONDS + len(spec.models) * (compilation + tokens / tokens_per_second)


def _examined_tokens(run: RunSpec, spec: ExaminationSpec) -> int:
    """Tokens that an examination reads: blocks at every distance, long windows, layers' parts.

    Each costs as much as a trained one at most: no gradient, but a flow beside the forward pass.
    """
    blocks = spec.sequences * run.context * run.context.bit_length()
    long = spec.windows * spec.contexts * run.context * _LONG_READINGS
    parts = spec.windows * run.context * (1 + _MOST_PARTS * len(run.model["layout"]))
    return blocks + long + parts


_STAGES = {
    "diagnose": "diagnostics",
    "diagnose_reading": "diagnostics",
    "examine": "beyond the paper",
    "measure": "systems",
    "recall": "beyond the paper",
    "verify": "verification",
    "verify_gradients": "verification",
}


def _stage(job: Job) -> str | None:
    """The stage that a job is counted in; None of one that takes seconds."""
    if not isinstance(job.spec, RunSpec):
        return _STAGES.get(job.rule)
    if job.spec.reading:
        return "readings"
    if job.spec.start is not None:
        return "runs from MHA"
    return "further runs" if job.further else stage_of(job.variant)


def make_plan(campaign: Campaign, results: Results, tables: Mapping[str, TableNeeds]) -> Plan:
    """Count jobs, tokens, hours and disk of a campaign, from its configured token rates.

    Args:
        tables: what each table needs, by its label.

    Raises InputError for a record that is damaged.
    """
    # Not above: it imports PyTorch, and the report asks for the disk alone.
    from relation.pipeline.inventory import count_parameters

    runs = {run.name: run for run in (*campaign.trained_runs, *campaign.reading_runs)}
    parameters: dict[tuple[str, str], int] = {}
    for run in runs.values():
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

    def run_gib(runs: Iterable[RunSpec]) -> float:
        return disk_gib(parameters[run.scale, run.variant] for run in runs)

    def hours(job: Job) -> float:
        if job.rule in spent.RULES and (known := took(job)):
            return (_START_SECONDS + known.seconds) / 3600
        match job.spec:
            case RunSpec():
                return run_hours(job.spec)
            case DiagnosticsSpec():
                return diagnosis_hours(runs[job.name])
            case ExaminationSpec():
                rate = campaign.expected_tokens_per_second[job.scale]
                tokens = _examined_tokens(runs[job.name], job.spec)
                return (_START_SECONDS + tokens / rate) / 3600
            case SystemsSpec():
                return benchmark_hours(job.spec)
            case RecallSpec():
                return _recall_seconds(job.spec, campaign.recall_tokens_per_second) / 3600
            case GradientsSpec() if job.spec.compile:
                models = len(job.spec.variants)
                return (_START_SECONDS + _COMPILE_SECONDS * models) / 3600
        return _START_SECONDS / 3600

    ledger = Ledger(replace(results, campaign=campaign))
    measured = spent.known(ledger)

    def took(job: Job) -> Spent | None:
        """What the same work took on such a device, where it has been measured."""
        return measured.get((spent.work_of(job, runs.get(job.name)), campaign.device))

    names = ["paired runs", "ablation runs", "other runs"]
    names += ["further runs"] if campaign.planned_further else []
    names += ["runs from MHA"] if campaign.planned_converted else []
    names += ["readings"] if campaign.readings else []
    names += ["diagnostics", "systems", "verification", "beyond the paper"]
    jobs: dict[str, list[Job]] = {name: [] for name in names}
    for job in ledger.jobs:
        if not job.is_unpublished and _stage(job) is not None:
            jobs[_stage(job)].append(job)
    stages = []
    for name, planned in jobs.items():
        for job in planned:
            if (state := ledger.state(job)).name == DAMAGED:
                raise InputError(state.reason)
        due = [job for job in planned if not ledger.is_done(job)]
        trained = [job.spec for job in due if isinstance(job.spec, RunSpec)]
        stages.append(
            Stage(
                name,
                len(planned),
                len(planned) - len(due),
                sum(run.budget_tokens for run in trained),
                sum(map(hours, due)),
                run_gib(trained),
            )
        )

    costs = []
    for label, needs in tables.items():
        chosen = [run for run in campaign.runs if needs.runs(run)]
        if needs.further:
            chosen += campaign.further_runs
        table_hours = sum(run_hours(run) + needs.flow * diagnosis_hours(run) for run in chosen)
        measures = [spec for spec in campaign.systems if spec.benchmark in needs.benchmarks]
        table_hours += sum(map(benchmark_hours, measures))
        costs.append(TableCost(label, len(chosen), table_hours, run_gib(chosen)))
    kinds: dict[tuple[str, str, str], list[Job]] = {}
    for job in jobs["beyond the paper"]:
        kinds.setdefault((job.rule, job.scale, job.variant), []).append(job)
    beyond = [
        BeyondCost(
            *named,
            len(own),
            3600 * hours(own[0]),
            known.peak_gib if (known := took(own[0])) else None,
            known.device if known else "",
        )
        for named, own in kinds.items()
    ]
    basis = (
        "Training and benchmarks from expected_tokens_per_second in config.yaml, 5 s for a job's "
        "start and 30 s to compile a model; diagnostics are a rough guess, and examinations take "
        "the tokens they read at the rate of training unless the same work was measured. Disk: "
        "every run's checkpoint and the two resume states of the largest run; corpora come on top."
    )
    return Plan(stages, costs, basis, beyond)
