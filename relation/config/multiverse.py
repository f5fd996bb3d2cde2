"""Readings of the paper: every choice that it leaves open, under every residual scale.

`docs/readings.md` says how they are tried, read and chosen from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from relation.config.matrix import data_name, run_spec
from relation.errors import InputError
from relation.geometry import ABLATIONS, PAIRED
from relation.spec import DataSpec, RunSpec


@dataclass(frozen=True)
class Reading:
    """One combination of a residual scale and a choice.

    group: what it is a choice of; paper: the line of the paper that allows it; adds: the statements
    that it needs and the paper does not print; beside: it changes what the paper prints, so it is
    no reading and is never chosen; runs: every run it rests on, of MHA and Full Relation, and at
    the first choice of the ablations. A run that two readings share carries the name of the first.
    """

    name: str
    residual: str
    choice: str
    title: str
    group: str
    paper: str
    adds: tuple[str, ...]
    beside: bool
    runs: tuple[RunSpec, ...]

    def described(self) -> dict:
        """Everything but the runs, as JSON holds it."""
        fields = ("name", "residual", "choice", "title", "group", "paper", "beside")
        return {**{name: getattr(self, name) for name in fields}, "adds": list(self.adds)}


def _known(kind: str, names, config: Mapping, place: str) -> None:
    for name in names:
        if name not in config.get(kind, {}):
            known = ", ".join(config.get(kind, {})) or "none"
            raise InputError(
                f"{place} names {name!r}, which {kind} does not define; known: {known}"
            )


def _checked(config: Mapping, name: str) -> Mapping | None:
    """A campaign's readings as configured. Raises InputError where they contradict each other."""
    campaign = config["campaigns"][name]
    given = campaign.get("readings")
    if given is None:
        return None
    place = f"config: campaigns.{name}.readings"
    if given["scale"] not in campaign["scales"]:
        raise InputError(f"{place}.scale is {given['scale']!r}, no scale of the campaign")
    _known("choices", given["choices"], config, f"{place}.choices")
    names = {
        f"{residual}-{choice}" for residual in config["residuals"] for choice in given["choices"]
    }
    for further in given["further"]:
        if further not in names:
            raise InputError(f"{place}.further names {further!r}, which is none of its readings")
    for variant in given["ablations"]:
        if variant not in ABLATIONS:
            raise InputError(
                f"{place}.ablations names {variant!r}; choose of {', '.join(ABLATIONS)}"
            )
    seeds = [*given["seeds"], *given["further_seeds"]]
    for seed in seeds:
        if seed in campaign["seeds"] or seeds.count(seed) > 1:
            raise InputError(f"{place}: seed {seed} is there twice or is the matrix's; drop one")
    return given


def _scale(config: Mapping, name: str, given: Mapping, choice: Mapping) -> dict:
    """The scale that a choice's runs are made at, with the corpus that they read."""
    scale = config["campaigns"][name]["scales"][given["scale"]]
    return {**scale, "corpus": choice.get("corpus", scale["corpus"])}


def reading_scales(config: Mapping, name: str) -> Iterator[tuple[str, Mapping]]:
    """The scale of the readings once for every corpus that they read beside the matrix's."""
    given = _checked(config, name)
    for choice in () if given is None else given["choices"]:
        chosen = config["choices"][choice]
        if "corpus" in chosen:
            yield given["scale"], _scale(config, name, given, chosen)


def readings_of(config: Mapping, name: str, data: Mapping[str, DataSpec]) -> tuple[Reading, ...]:
    """Every reading of a campaign, choice by choice; none where it has none.

    Raises InputError for an unknown name, or values that make no run.
    """
    given = _checked(config, name)
    if given is None:
        return ()
    owners: dict[tuple[str, str], RunSpec] = {}
    found = []
    for position, choice_name in enumerate(given["choices"]):
        choice = config["choices"][choice_name]
        corpus = data[data_name(_scale(config, name, given, choice))]
        for residual_name, residual in config["residuals"].items():
            reading = f"{residual_name}-{choice_name}"
            seeds = [
                *given["seeds"],
                *(given["further_seeds"] if reading in given["further"] else ()),
            ]
            changes = (residual.get("assumptions", {}), choice.get("assumptions", {}))
            assumed = {**config["assumptions"], **given["base"], **changes[0], **changes[1]}
            variants = (*PAIRED, *(() if position else given["ablations"]))
            runs = []
            for seed in seeds:
                for variant in variants:
                    run = run_spec(
                        config,
                        name,
                        given["scale"],
                        variant,
                        seed,
                        corpus,
                        assumed=assumed,
                        learning_rate_factor=choice.get("learning_rate_factor", 1.0),
                        reading=reading,
                    )
                    # Equal runs are trained once: the first reading's.
                    runs.append(owners.setdefault((run.config_hash, run.job_hash), run))
            found.append(
                Reading(
                    name=reading,
                    residual=residual_name,
                    choice=choice_name,
                    title=f"{choice['title']}; {residual['title']}",
                    group=choice["group"],
                    paper=choice["paper"],
                    adds=(*residual["adds"], *choice["adds"]),
                    beside=choice.get("beside", False),
                    runs=tuple(runs),
                )
            )
    return tuple(found)
