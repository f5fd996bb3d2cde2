"""A campaign: what config.yaml says to run, resolved to one specification a job."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from relation.errors import InputError
from relation.pipeline.assumptions import stated_assumptions
from relation.pipeline.benchmarks import gradients_spec, systems_specs, verification_spec
from relation.pipeline.config import checked, merged
from relation.pipeline.matrix import Matrix
from relation.pipeline.readings import Reading, reading_scales, readings_of
from relation.pipeline.recall import recall_specs
from relation.spec import (
    DataSpec,
    DiagnosticsSpec,
    ExaminationSpec,
    GradientsSpec,
    RecallSpec,
    RunSpec,
    SystemsSpec,
    VerificationSpec,
    canonical_hash,
)
from relation.variants import PAIRED, VARIANTS

_RESTRICTIONS = ("scales", "seeds", "variants", "readings")
# Choices of config.yaml that change no result.
_NO_RESULT = ("tensorboard", "runs_per_gpu")
# What records and addresses call a run that goes on from MHA, by the model it trains: Full Relation
# with the converted weights, and MHA itself, which shows what further training alone does.
GOES_ON = {"full": "converted", "mha": "continued"}


# How the reason begins of what a campaign leaves out; by what follows.
LEFT_OUT = "left out by "
READINGS_ALONE = "a campaign of readings alone"


@dataclass(frozen=True)
class Omitted:
    """A run of the whole campaign that a restriction left out."""

    scale: str
    variant: str
    seed: int
    reason: str


@dataclass(frozen=True)
class Campaign:
    """One campaign, restricted as asked.

    `planned_runs` is the whole matrix, `runs` what is to be done of it and `omitted` what is not;
    `planned_further` and `further_runs` are the same of the pairs beyond the matrix, `readings` and
    `reading_runs` of the readings of the paper, each run once, `planned_recall` and `recall` of
    associative recall; `readings_from` names another campaign, whose readings the report shows;
    `planned_converted` and `converted_runs` go on from MHA runs of the matrix; `settings` is the
    configuration of this campaign alone, from which it can be resolved again; `tensorboard` and
    `runs_per_gpu`, which change no result, stand beside it: the latter is of readings, and of the
    matrix where `matrix_shares`.
    """

    name: str
    title: str
    description: str
    notice: str
    device: str
    scales: tuple[str, ...]
    seeds: tuple[int, ...]
    data: dict[str, DataSpec]
    planned_runs: tuple[RunSpec, ...]
    runs: tuple[RunSpec, ...]
    planned_further: tuple[RunSpec, ...]
    further_runs: tuple[RunSpec, ...]
    omitted: tuple[Omitted, ...]
    planned_systems: tuple[SystemsSpec, ...]
    systems: tuple[SystemsSpec, ...]
    systems_alone: bool
    verification: VerificationSpec
    gradients: GradientsSpec
    diagnostics: dict
    examination: dict
    efficiency_window: float
    assumptions: tuple[dict, ...]
    expected_tokens_per_second: dict[str, float]
    readings: tuple[Reading, ...] = ()
    reading_runs: tuple[RunSpec, ...] = ()
    readings_from: str | None = None
    planned_converted: tuple[RunSpec, ...] = ()
    converted_runs: tuple[RunSpec, ...] = ()
    planned_recall: tuple[RecallSpec, ...] = ()
    recall: tuple[RecallSpec, ...] = ()
    recall_tokens_per_second: float | None = None
    runs_per_gpu: int = 1
    import_once: bool = False
    corpus: str | None = None
    restrictions: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    tensorboard: bool = False
    matrix_shares: bool = False

    def data_of_scale(self, scale: str) -> DataSpec:
        """The prepared corpus that a scale reads."""
        return self.data[next(run.data for run in self.planned_runs if run.scale == scale)]

    def benchmark(self, benchmark: str, scale: str) -> SystemsSpec:
        """One systems benchmark. Raises InputError where the campaign has no such benchmark."""
        for spec in self.planned_systems:
            if (spec.benchmark, spec.scale) == (benchmark, scale):
                return spec
        raise InputError(f"campaign {self.name} has no benchmark {benchmark}/{scale}")

    def recall_of(self, mixer: str) -> RecallSpec:
        """A mixer's associative recall. Raises InputError where the campaign has none."""
        for spec in self.planned_recall:
            if spec.mixer == mixer:
                return spec
        known = ", ".join(spec.mixer for spec in self.planned_recall) or "none"
        raise InputError(f"campaign {self.name} has no recall of {mixer!r}; choose among {known}")

    def inventory(self) -> list[tuple[RunSpec, str]]:
        """Every model of the whole campaign, by its first run, with its corpus's title."""
        first = {(run.scale, run.variant): run for run in reversed(self.planned_runs)}
        return [(run, self.data[run.data].title) for run in reversed(first.values())]

    @property
    def inventory_hash(self) -> str:
        """What identifies the inventory of models: all that its rows are made from but titles."""
        fields = ("scale", "variant", "model", "context", "micro", "accumulation", "budget_tokens")
        models = (run for run, _ in self.inventory())
        return canonical_hash([[getattr(run, name) for name in fields] for run in models])

    def run(self, scale: str, variant: str, seed: int) -> RunSpec:
        """One run, planned, further or, by the reading's name for a scale, of a reading.

        Raises InputError where the campaign has no such run.
        """
        for spec in self.known_runs:
            if (spec.reading or spec.scale, spec.variant, spec.seed) == (scale, variant, seed):
                return spec
        raise InputError(
            f"campaign {self.name} has no run {scale}/{variant}/{seed}; "
            f"`python -m relation status --campaign {self.name}` lists them"
        )

    @property
    def known_runs(self) -> tuple[RunSpec, ...]:
        """Every run of the whole campaign."""
        return (
            *self.planned_runs,
            *self.planned_further,
            *self.planned_converted,
            *self.planned_reading_runs,
        )

    @property
    def planned_reading_runs(self) -> tuple[RunSpec, ...]:
        """Every run that a reading rests on, those that readings share once."""
        runs = (run for reading in self.readings for run in reading.runs)
        return tuple({run.name: run for run in runs}.values())

    @property
    def trained_runs(self) -> tuple[RunSpec, ...]:
        """Every run that is to be done: those of the matrix, the further and the converted ones."""
        return (*self.runs, *self.further_runs, *self.converted_runs)

    @property
    def paired_runs(self) -> tuple[RunSpec, ...]:
        """The MHA and Full Relation runs of the matrix, whose checkpoints are diagnosed."""
        return tuple(run for run in self.runs if run.variant in PAIRED)

    def diagnostics_spec(self, run: RunSpec, sequences: int | None = None) -> DiagnosticsSpec:
        """The diagnostics of one run's checkpoint, as long as its context allows.

        sequences: how many it reads; the configured number if None.
        """
        return DiagnosticsSpec(
            run_hash=run.config_hash,
            sequences=sequences or self.diagnostics["sequences"],
            window=self.data[run.data].largest_context,
            flow_length=min(self.diagnostics["flow_length"], run.context),
            rank_length=min(self.diagnostics["rank_length"], run.context),
            device=run.device,
            document_mask=run.document_mask,
        )

    def is_examined(self, run: RunSpec) -> bool:
        """Whether a run of the matrix is examined beyond the paper's measures."""
        scales = self.examination["scales"]
        return run.variant in self.examination["variants"] and (
            scales is None or run.scale in scales
        )

    def examination_spec(self, run: RunSpec) -> ExaminationSpec:
        """The examination of one run's checkpoint."""
        asked = {name: self.examination[name] for name in ("sequences", "windows", "contexts")}
        return ExaminationSpec(run_hash=run.config_hash, device=run.device, **asked)


def _further_seeds(matrix: Matrix) -> dict[str, list[int]]:
    """Seeds of pairs beyond the matrix, by scale; raises InputError where there can be no pair."""
    campaign = matrix.campaign
    for scale, seeds in campaign.further_seeds.items():
        place = f"config: campaigns.{matrix.name}.further_seeds.{scale}"
        if scale not in campaign.scales:
            raise InputError(
                f"{place} is no scale of the campaign; choose among {', '.join(campaign.scales)}"
            )
        if not set(PAIRED) <= set(campaign.scales[scale].variants):
            raise InputError(f"{place}: that scale does not train both {' and '.join(PAIRED)}")
        twice = sorted(set(seeds) & set(campaign.seeds))
        if twice:
            raise InputError(f"{place}: seed {twice[0]} is one of the campaign's seeds; drop it")
    return campaign.further_seeds


def _converted(matrix: Matrix, runs: Iterable[RunSpec]) -> list[RunSpec]:
    """The runs that go on from MHA runs, converted or as MHA on the same schedule.

    Raises InputError where there can be none.
    """
    section = matrix.campaign.conversion
    if section is None:
        return []
    place = f"config: campaigns.{matrix.name}.conversion"
    pairs = {(run.scale, run.variant, run.seed): run for run in runs}
    for scale in section.scales:
        if not {(scale, variant) for variant in PAIRED} <= {key[:2] for key in pairs}:
            raise InputError(f"{place}: {scale} does not train both {' and '.join(PAIRED)}")
    return [
        replace(
            run,
            variant=GOES_ON[variant],
            start=pairs[scale, "mha", seed].config_hash,
            budget_tokens=round(section.share * run.budget_tokens),
            warmup_tokens=round(section.share * run.warmup_tokens),
            learning_rate=section.rate * run.learning_rate,
        )
        for (scale, variant, seed), run in pairs.items()
        if scale in section.scales and variant in GOES_ON
    ]


def _shown_beside(matrix: Matrix) -> tuple[str, ...]:
    """The campaign whose readings the report shows, if it is another."""
    shown = matrix.campaign.readings_from
    if shown is None:
        return ()
    if shown not in matrix.config.campaigns or matrix.config.campaigns[shown].readings is None:
        raise InputError(
            f"config: campaigns.{matrix.name}.readings_from is {shown!r}, no campaign with readings"
        )
    return (shown,)


class _Restrictions:
    """What the top-level choices leave of a campaign."""

    def __init__(self, config: Mapping, campaign: str) -> None:
        self.given = {key: config[key] for key in _RESTRICTIONS if config.get(key) is not None}
        self._campaign = campaign
        self._chosen: dict[str, tuple] = {}

    def choose(self, key: str, offered: Iterable, silent: tuple = ()) -> None:
        """Read one choice among what is offered; `silent` may be chosen too.

        Raises InputError for anything else, with what the campaign has.
        """
        if key not in self.given:
            return
        value, known = self.given[key], {str(item): item for item in offered}
        items = value.split(",") if isinstance(value, str) else value
        wanted = {str(item).strip() for item in (items if isinstance(items, list) else [items])}
        for item in sorted(wanted - {*known, *silent}):
            raise InputError(
                f"{key}={item}: campaign {self._campaign} has no such {key[:-1]}; "
                f"choose among {', '.join(known) or 'none'}"
            )
        known |= {item: item for item in silent}
        self._chosen[key] = tuple(item for text, item in known.items() if text in wanted)

    def allow(self, key: str, value: object) -> bool:
        return key not in self._chosen or value in self._chosen[key]

    def excluding(self, run: RunSpec) -> list[str]:
        """The choices that leave a run out, in words."""
        values = {"scales": run.scale, "seeds": run.seed, "variants": run.variant}
        return [
            f"{key}={','.join(map(str, self._chosen[key]))}"
            for key, value in values.items()
            if not self.allow(key, value)
        ]

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.given.items())


def resolve(config: Mapping, **overrides: Any) -> Campaign:
    """The campaign that `config` chooses, restricted by its scales, seeds and variants.

    `overrides` replace the top-level choices (campaign, scales, seeds, variants, corpus) where
    they are not None. Raises InputError for anything the types or the models refuse.
    """
    raw = merged({**config, **{k: v for k, v in overrides.items() if v is not None}})
    if raw.get("campaign", "") is None:  # as Snakemake reads `campaign=`
        raw["campaign"] = ""
    config = checked(raw)
    name = config.campaign
    if name not in config.campaigns:
        raise InputError(
            f"unknown campaign {name!r}; config.yaml defines {', '.join(config.campaigns)}"
        )
    matrix = Matrix(config)
    campaign = matrix.campaign
    further_seeds = _further_seeds(matrix)
    diagnostics = replace(config.diagnostics, **campaign.diagnostics)
    data = matrix.data(diagnostics.sequences, reading_scales(matrix))
    if config.corpus and not any(spec.path for spec in data.values()):
        raise InputError(
            f"corpus={config.corpus}: campaign {name} reads no local files; choose one that "
            "does, for example campaign=books"
        )

    planned = [
        matrix.run(scale_name, variant, seed, data[scale.data])
        for scale_name, scale in campaign.scales.items()
        for variant in scale.variants
        for seed in campaign.seeds
    ]
    planned_further = [
        matrix.run(scale, variant, seed, data[campaign.scales[scale].data])
        for scale, seeds in further_seeds.items()
        for seed in seeds
        for variant in PAIRED
    ]
    planned_converted = _converted(matrix, planned)
    readings = readings_of(matrix, data)
    every = [
        *(planned if campaign.matrix else ()),
        *planned_further,
        *(run for reading in readings for run in reading.runs),
    ]
    chosen = _Restrictions(raw, name)
    chosen.choose("scales", dict.fromkeys(run.scale for run in every))
    chosen.choose("seeds", dict.fromkeys(run.seed for run in every))
    trained = {run.variant for run in every}
    # Linear Relation is benchmarked at every scale although no scale trains it.
    offered = [
        *(v for v in VARIANTS if v in trained),
        *dict.fromkeys(run.variant for run in planned_converted),
    ]
    chosen.choose("variants", offered, silent=("linear",))
    chosen.choose("readings", [reading.name for reading in readings])

    omitted: dict[str, Omitted] = {}
    for run in planned:
        left_out = [] if campaign.matrix else [READINGS_ALONE]
        left_out += chosen.excluding(run)
        if left_out:
            reason = f"{LEFT_OUT}{' '.join(left_out)}"
            omitted[run.name] = Omitted(run.scale, run.variant, run.seed, reason)
    runs = [run for run in planned if run.name not in omitted]
    further_runs = [run for run in planned_further if not chosen.excluding(run)]
    converted_runs = [
        run for run in planned_converted if campaign.matrix and not chosen.excluding(run)
    ]
    reading_runs = {
        run.name: run
        for reading in readings
        if chosen.allow("readings", reading.name)
        for run in reading.runs
        if not chosen.excluding(run)
    }
    if not (runs or further_runs or converted_runs or reading_runs):
        raise InputError(f"campaign {name} has no run left under {chosen}")

    systems, recall = systems_specs(matrix), recall_specs(matrix)
    return Campaign(
        name=name,
        title=campaign.title,
        description=campaign.description,
        notice=campaign.notice,
        device=campaign.device,
        scales=tuple(campaign.scales),
        seeds=tuple(campaign.seeds),
        data=data,
        planned_runs=tuple(planned),
        runs=tuple(runs),
        planned_further=tuple(planned_further),
        further_runs=tuple(further_runs),
        omitted=tuple(omitted.values()),
        systems=tuple(
            spec
            for spec in systems
            if campaign.matrix
            and chosen.allow("scales", spec.scale)
            and any(chosen.allow("variants", side["variant"]) for side in spec.sides)
        ),
        planned_systems=systems,
        systems_alone=campaign.systems.alone,
        verification=verification_spec(matrix),
        gradients=gradients_spec(matrix),
        diagnostics=asdict(diagnostics),
        examination=asdict(replace(config.examination, **campaign.examination)),
        efficiency_window=replace(config.efficiency, **campaign.efficiency).window,
        assumptions=stated_assumptions(matrix, planned),
        expected_tokens_per_second={
            name: scale.expected_tokens_per_second for name, scale in campaign.scales.items()
        },
        recall_tokens_per_second=campaign.recall and campaign.recall.expected_tokens_per_second,
        readings=readings,
        reading_runs=tuple(reading_runs.values()),
        readings_from=campaign.readings_from,
        planned_converted=tuple(planned_converted),
        converted_runs=tuple(converted_runs),
        planned_recall=recall,
        recall=tuple(
            spec for spec in recall if campaign.matrix and chosen.allow("variants", spec.mixer)
        ),
        runs_per_gpu=config.runs_per_gpu or campaign.runs_per_gpu,
        matrix_shares=config.runs_per_gpu is not None,
        import_once=campaign.import_once,
        corpus=config.corpus,
        restrictions=chosen.given,
        settings={
            **{key: value for key, value in raw.items() if key not in _NO_RESULT},
            "campaigns": {
                each: {**raw["campaigns"][each], "base": None}
                for each in (name, *_shown_beside(matrix))
            },
        },
        tensorboard=config.tensorboard in (True, "true"),
    )
