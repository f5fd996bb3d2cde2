"""A campaign: what config.yaml says to run, resolved to one specification a job."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from relation.config.load import schema, validate
from relation.config.matrix import assumptions_of, data_name, data_specs, model_of, run_spec
from relation.config.multiverse import Reading, reading_scales, readings_of
from relation.config.readings import settled_readings
from relation.config.systems import gradients_spec, systems_specs, verification_spec
from relation.errors import InputError
from relation.geometry import PAIRED, VARIANTS, ModelConfig
from relation.spec import (
    DataSpec,
    DiagnosticsSpec,
    GradientsSpec,
    RunSpec,
    SystemsSpec,
    VerificationSpec,
    canonical_hash,
)

_RESTRICTIONS = ("scales", "seeds", "variants", "readings")


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
    `reading_runs` of the readings of the paper, each run once; `readings_from` names another
    campaign, whose readings the report shows; `settings` is the configuration of this campaign
    alone, from which it can be resolved again; `tensorboard`, which changes no result, stands
    beside it.
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
    efficiency_window: float
    assumptions: tuple[dict, ...]
    expected_tokens_per_second: dict[str, float]
    readings: tuple[Reading, ...] = ()
    reading_runs: tuple[RunSpec, ...] = ()
    readings_from: str | None = None
    runs_per_gpu: int = 1
    corpus: str | None = None
    restrictions: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    tensorboard: bool = False

    def data_of_scale(self, scale: str) -> DataSpec:
        """The prepared corpus that a scale reads."""
        return self.data[next(run.data for run in self.planned_runs if run.scale == scale)]

    def benchmark(self, benchmark: str, scale: str) -> SystemsSpec:
        """One systems benchmark. Raises InputError where the campaign has no such benchmark."""
        for spec in self.planned_systems:
            if (spec.benchmark, spec.scale) == (benchmark, scale):
                return spec
        raise InputError(f"campaign {self.name} has no benchmark {benchmark}/{scale}")

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
        for spec in (*self.planned_runs, *self.planned_further, *self.planned_reading_runs):
            if (spec.reading or spec.scale, spec.variant, spec.seed) == (scale, variant, seed):
                return spec
        raise InputError(
            f"campaign {self.name} has no run {scale}/{variant}/{seed}; "
            f"`python -m relation status --campaign {self.name}` lists them"
        )

    @property
    def planned_reading_runs(self) -> tuple[RunSpec, ...]:
        """Every run that a reading rests on, those that readings share once."""
        runs = (run for reading in self.readings for run in reading.runs)
        return tuple({run.name: run for run in runs}.values())

    @property
    def trained_runs(self) -> tuple[RunSpec, ...]:
        """Every run that is to be done: those of the matrix, then the further ones."""
        return (*self.runs, *self.further_runs)

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
        )


def _further_seeds(campaign: Mapping, name: str) -> dict[str, list[int]]:
    """Seeds of pairs beyond the matrix, by scale; raises InputError where there can be no pair."""
    further = campaign.get("further_seeds", {})
    for scale, seeds in further.items():
        place = f"config: campaigns.{name}.further_seeds.{scale}"
        if scale not in campaign["scales"]:
            raise InputError(
                f"{place} is no scale of the campaign; choose among {', '.join(campaign['scales'])}"
            )
        if not set(PAIRED) <= set(campaign["scales"][scale]["variants"]):
            raise InputError(f"{place}: that scale does not train both {' and '.join(PAIRED)}")
        twice = sorted(set(seeds) & set(campaign["seeds"]))
        if twice:
            raise InputError(f"{place}: seed {twice[0]} is one of the campaign's seeds; drop it")
    return further


def _with_readings(config: Mapping, name: str) -> tuple[str, ...]:
    """A campaign and the one whose readings its report shows, if another."""
    shown = config["campaigns"][name].get("readings_from")
    if shown is None:
        return (name,)
    if not (config["campaigns"].get(shown) or {}).get("readings"):
        raise InputError(
            f"config: campaigns.{name}.readings_from is {shown!r}, no campaign with readings"
        )
    return (name, shown)


def _chosen(config: Mapping, key: str, available: Iterable, campaign: str) -> tuple:
    """The restriction `key` as a tuple, or everything available."""
    available = tuple(available)
    value: Any = config.get(key)
    if value is None:
        return available
    items = value.split(",") if isinstance(value, str) else value
    items = items if isinstance(items, list) else [items]
    wanted = [str(item).strip() for item in items]
    by_text = {str(item): item for item in available}
    for item in wanted:
        if item not in by_text:
            raise InputError(
                f"{key}={item}: campaign {campaign} has no such {key[:-1]}; "
                f"choose among {', '.join(by_text)}"
            )
    return tuple(item for text, item in by_text.items() if text in wanted)


def resolve(config: Mapping, **overrides: Any) -> Campaign:
    """The campaign that `config` chooses, restricted by its scales, seeds and variants.

    `overrides` replace the top-level choices (campaign, scales, seeds, variants, corpus) where
    they are not None. Raises InputError for anything the schema or the models refuse.
    """
    config = validate({**config, **{k: v for k, v in overrides.items() if v is not None}})
    name = config["campaign"]
    if name not in config["campaigns"]:
        raise InputError(
            f"unknown campaign {name!r}; config.yaml defines {', '.join(config['campaigns'])}"
        )
    campaign = config["campaigns"][name]
    for scale_name, scale in campaign["scales"].items():
        unknown = (set(scale["variants"]) | set(scale.get("overrides", {}))) - set(VARIANTS)
        if unknown:
            raise InputError(
                f"config: scale {scale_name} names unknown variant {sorted(unknown)[0]!r}; "
                f"choose among {', '.join(VARIANTS)}"
            )

    # Linear Relation is benchmarked at every scale although no scale trains it.
    used = {v for scale in campaign["scales"].values() for v in scale["variants"]} | {"linear"}
    all_variants = [variant for variant in VARIANTS if variant in used]
    scales = _chosen(config, "scales", campaign["scales"], name)
    further_seeds = _further_seeds(campaign, name)
    of_readings = campaign.get("readings") or {"seeds": (), "further_seeds": ()}
    every_seed = dict.fromkeys(
        chain(
            campaign["seeds"],
            *further_seeds.values(),
            of_readings["seeds"],
            of_readings["further_seeds"],
        )
    )
    seeds = _chosen(config, "seeds", every_seed, name)
    variants = _chosen(config, "variants", all_variants, name)
    diagnostics = {**config["diagnostics"], **campaign.get("diagnostics", {})}
    data = data_specs(
        campaign, config.get("corpus"), diagnostics["sequences"], reading_scales(config, name)
    )
    if config.get("corpus") and not any(spec.path for spec in data.values()):
        raise InputError(
            f"corpus={config['corpus']}: campaign {name} reads no local files; choose one that "
            "does, for example campaign=books"
        )

    planned = [
        run_spec(config, name, scale_name, variant, seed, data[data_name(scale)])
        for scale_name, scale in campaign["scales"].items()
        for variant in scale["variants"]
        for seed in campaign["seeds"]
    ]
    readings = readings_of(config, name, data)
    chosen_readings = _chosen(config, "readings", [reading.name for reading in readings], name)
    reading_runs = {
        run.name: run
        for reading in readings
        if reading.name in chosen_readings
        for run in reading.runs
        if run.scale in scales and run.variant in variants and run.seed in seeds
    }
    omitted: dict[str, Omitted] = {}
    for run in planned:
        left_out = [] if campaign.get("matrix", True) else ["a campaign of readings alone"]
        left_out += [
            f"{key}={','.join(map(str, chosen))}"
            for key, chosen, value in (
                ("scales", scales, run.scale),
                ("seeds", seeds, run.seed),
                ("variants", variants, run.variant),
            )
            if value not in chosen
        ]
        if left_out:
            reason = f"left out by {' '.join(left_out)}"
            omitted[run.name] = Omitted(run.scale, run.variant, run.seed, reason)

    planned_further = [
        run_spec(config, name, scale, variant, seed, data[data_name(campaign["scales"][scale])])
        for scale, further in further_seeds.items()
        for seed in further
        for variant in PAIRED
    ]
    further_runs = [
        run
        for run in planned_further
        if run.scale in scales and run.variant in variants and run.seed in seeds
    ]
    if len(omitted) == len(planned) and not further_runs and not reading_runs:
        raise InputError(
            f"campaign {name} has no run left under "
            f"{' '.join(f'{k}={config[k]}' for k in _RESTRICTIONS if config.get(k) is not None)}"
        )
    assumptions = assumptions_of(config, campaign)

    def model(scale: str, variant: str) -> ModelConfig:
        return model_of(assumptions, scale, campaign["scales"][scale], variant)

    training = config["training"]
    optimizer = {
        "betas": list(training["betas"]),
        "eps": assumptions["adam_eps"],
        "weight_decay": training["weight_decay"],
        "decay_embedding": assumptions["decay_embedding"],
        "gradient_clip": training["gradient_clip"],
    }
    if assumptions["decay_vectors"]:
        optimizer["decay_vectors"] = True
    systems = systems_specs(campaign, name, optimizer, model)
    questions = schema()["$defs"]["assumptions"]["properties"]
    return Campaign(
        name=name,
        title=campaign["title"],
        description=campaign["description"],
        notice=campaign["notice"],
        device=campaign["device"],
        scales=tuple(campaign["scales"]),
        seeds=tuple(campaign["seeds"]),
        data=data,
        planned_runs=tuple(planned),
        runs=tuple(run for run in planned if run.name not in omitted),
        planned_further=tuple(planned_further),
        further_runs=tuple(further_runs),
        omitted=tuple(omitted.values()),
        systems=tuple(
            spec
            for spec in systems
            if campaign.get("matrix", True)
            and spec.scale in scales
            and any(side["variant"] in variants for side in spec.sides)
        ),
        planned_systems=systems,
        systems_alone=campaign["systems"]["alone"],
        verification=verification_spec(campaign, name),
        gradients=gradients_spec(campaign, name, model),
        diagnostics=diagnostics,
        efficiency_window={**config["efficiency"], **campaign.get("efficiency", {})}["window"],
        assumptions=(
            *(
                {"name": key, "value": value, "question": questions[key]["description"]}
                for key, value in assumptions.items()
            ),
            *settled_readings(campaign),
        ),
        expected_tokens_per_second={
            scale: values["expected_tokens_per_second"]
            for scale, values in campaign["scales"].items()
        },
        readings=readings,
        reading_runs=tuple(reading_runs.values()),
        readings_from=campaign.get("readings_from"),
        runs_per_gpu=campaign.get("runs_per_gpu", 1),
        corpus=config.get("corpus"),
        restrictions={key: config[key] for key in _RESTRICTIONS if config.get(key) is not None},
        settings={
            **{key: value for key, value in config.items() if key != "tensorboard"},
            "campaigns": {
                each: {**config["campaigns"][each], "base": None}
                for each in _with_readings(config, name)
            },
        },
        tensorboard=config.get("tensorboard") in (True, "true"),
    )
