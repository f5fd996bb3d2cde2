"""Readings of the paper: every choice that it leaves open, under every residual scale.

`docs/readings.md` says how they are tried, read and chosen from.
"""

from dataclasses import asdict, dataclass, replace

from relation.errors import InputError
from relation.pipeline.matrix import Matrix
from relation.pipeline.sections import ChoiceSection, ReadingsSection, Scale
from relation.spec import DataSpec, RunSpec
from relation.variants import PAIRED, ModelConfig


@dataclass(frozen=True)
class Reading:
    """One combination of a residual scale and a choice.

    group: what it is a choice of; paper: the line of the paper that allows it; adds: the statements
    that it needs and the paper does not print; beside: it changes what the paper prints, so it is
    no reading and is never chosen; assumptions: all of them, by name; runs: every run it rests on,
    of MHA and Full Relation, and at the first choice of the ablations. A run that two readings
    share carries the name of the first.
    """

    name: str
    residual: str
    choice: str
    title: str
    group: str
    paper: str
    adds: tuple[str, ...]
    beside: bool
    assumptions: dict
    runs: tuple[RunSpec, ...]

    def described(self) -> dict:
        """Everything but the runs, and what the embedding weighs at the start, as JSON holds it."""
        fields = ("name", "residual", "choice", "title", "group", "paper", "beside", "assumptions")
        known = {name: getattr(self, name) for name in fields}
        model = self.runs[0].model_config()
        ratios = {"start_ratio": start_ratio(model), "output_ratio": output_ratio(model)}
        return {**known, "adds": list(self.adds), **ratios}


def start_ratio(config: ModelConfig) -> float:
    """What a token's embedding weighs at the start against what the first mixer would add to it.

    The RMS of the embedding over that of W_O W_I x for a normalised x, which the mixer adds where
    all flow stays with the token: ρ (docs/replication.md, "The embedding's weight at the start").
    """
    return output_ratio(config) / (config.d_model * _matrix_sd(config))


def output_ratio(config: ModelConfig) -> float:
    """The RMS of a token's embedding over the sd of W_O, at the start: ω (the same section)."""
    embedding = config.init_std if config.embedding_std is None else config.embedding_std
    if config.embedding_multiplier is not None:
        embedding *= config.embedding_multiplier
    divided = (2 * config.layers) ** 0.5 if config.scale_residual_init else 1.0
    return embedding * divided / _matrix_sd(config)


def _matrix_sd(config: ModelConfig) -> float:
    # nn.Linear draws uniformly within 1/sqrt(d).
    return (3 * config.d_model) ** -0.5 if config.linear_init == "torch" else config.init_std


def _checked(matrix: Matrix) -> ReadingsSection | None:
    """A campaign's readings as configured. Raises InputError where they contradict each other."""
    campaign, given = matrix.campaign, matrix.campaign.readings
    if given is None:
        return None
    place = f"config: campaigns.{matrix.name}.readings"
    if given.scale not in campaign.scales:
        raise InputError(f"{place}.scale is {given.scale!r}, no scale of the campaign")
    for choice in given.choices:
        if choice not in matrix.config.choices:
            known = ", ".join(matrix.config.choices) or "none"
            raise InputError(
                f"{place}.choices names {choice!r}, which choices does not define; known: {known}"
            )
    names = {f"{r}-{choice}" for r in matrix.config.residuals for choice in given.choices}
    for further in given.further:
        if further not in names:
            raise InputError(f"{place}.further names {further!r}, which is none of its readings")
    seeds = [*given.seeds, *given.further_seeds]
    for seed in seeds:
        if seed in campaign.seeds or seeds.count(seed) > 1:
            raise InputError(f"{place}: seed {seed} is there twice or is the matrix's; drop one")
    return given


def _scale(matrix: Matrix, given: ReadingsSection, choice: ChoiceSection) -> Scale:
    """The scale that a choice's runs are made at, with the corpus that they read."""
    scale = matrix.campaign.scales[given.scale]
    return replace(scale, corpus=choice.corpus or scale.corpus)


def reading_scales(matrix: Matrix) -> list[Scale]:
    """The scale of the readings with every corpus that they read beside the matrix's."""
    given = _checked(matrix)
    if given is None:
        return []
    choices = [matrix.config.choices[name] for name in given.choices]
    return [_scale(matrix, given, choice) for choice in choices if choice.corpus is not None]


def readings_of(matrix: Matrix, data: dict[str, DataSpec]) -> tuple[Reading, ...]:
    """Every reading of a campaign, choice by choice; none where it has none.

    Raises InputError for an unknown name, or values that make no run.
    """
    given = _checked(matrix)
    if given is None:
        return ()
    owners: dict[tuple[str, str], RunSpec] = {}
    found = []
    for choice_name in given.choices:
        choice = matrix.config.choices[choice_name]
        corpus = data[_scale(matrix, given, choice).data]
        variants = (*PAIRED, *(given.ablations if choice_name == given.choices[0] else ()))
        for residual_name, residual in matrix.config.residuals.items():
            name = f"{residual_name}-{choice_name}"
            changes = {**given.base, **residual.assumptions, **choice.assumptions}
            assumed = replace(matrix.config.assumptions, **changes)
            runs = []
            for seed in (*given.seeds, *(given.further_seeds if name in given.further else ())):
                for variant in variants:
                    run = matrix.run(
                        given.scale,
                        variant,
                        seed,
                        corpus,
                        assumed=assumed,
                        learning_rate_factor=choice.learning_rate_factor,
                        backends={**residual.backends, **choice.backends},
                        reading=name,
                    )
                    # Equal runs are trained once: the first reading's.
                    runs.append(owners.setdefault((run.config_hash, run.job_hash), run))
            found.append(
                Reading(
                    name=name,
                    residual=residual_name,
                    choice=choice_name,
                    title=f"{choice.title}; {residual.title}",
                    group=choice.group,
                    paper=choice.paper,
                    adds=(*residual.adds, *choice.adds),
                    beside=choice.beside,
                    assumptions=asdict(assumed),
                    runs=tuple(runs),
                )
            )
    return tuple(found)
