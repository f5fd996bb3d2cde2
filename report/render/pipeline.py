"""The campaign's jobs as squares by rule and scale, from the ledger."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from relation.pipeline.jobs import DONE, WAITING, Job, State
from relation.pipeline.ledger import Ledger
from relation.pipeline.results import Results
from relation.variants import PAIRED
from report.render.runs import page_of_run, pair_anchor

# What the rules do, in the order in which data flow.
RULES = {
    "prepare": "Tokenise a corpus and train its tokenizer.",
    "inventory": "Build every model once and count its parameters.",
    "train": "Train one model; its log and checkpoint.",
    "diagnose": "Measure the flow of one checkpoint, head by head.",
    "examine": "Ask one checkpoint what the paper does not: copying, long texts, the use of Self.",
    "verify": "Hold FlashRelation and the paper’s identities to their definitions.",
    "verify_gradients": "Hold the training step’s gradients to FP64, parameter by parameter.",
    "train_reading": "Train one model of a reading of the paper.",
    "diagnose_reading": "Measure the flow of its checkpoint.",
    "collect": "Gather the records of the readings, a file a kind.",
    "measure": "Time whole training steps, memory, and operators against the context.",
    "recall": "Train a mixer on associative recall, at every width.",
    "cells": "Set every value of every table beside the paper’s, and judge it.",
    "figures": "Draw the figures.",
    "report": "Render these pages.",
    "document": "Write the tables in LaTeX and typeset report.pdf.",
}
# Rules of the report, which the ledger leaves to Snakemake, with what they write.
COMPUTED = {"cells": "cells", "figures": "figures"}
RENDERED = {"report": "pages", "document": "PDF"}
# What the only job of a rule writes.
ROWS = {
    "inventory": "models", "verify": "exactness", "verify_gradients": "gradients",
    "collect": "readings", **COMPUTED, **RENDERED,
}  # fmt: skip
# Their records reach the report through those of a later rule.
READ_LATER = {"prepare", "train_reading", "diagnose_reading"}


@dataclass(frozen=True)
class Square:
    """A job: its name and state, its operator, its page, and whether its record is missing."""

    title: str
    kind: str = "other"
    page: str = ""
    missing: bool = False


@dataclass
class Rule:
    """A rule: what it does, the rules it needs, and its squares by scale, then by label."""

    name: str
    needs: tuple[str, ...]
    groups: dict[str, dict[str, list[Square]]] = field(default_factory=dict)

    @property
    def does(self) -> str:
        return RULES[self.name]

    @property
    def squares(self) -> list[Square]:
        return [s for rows in self.groups.values() for s in chain.from_iterable(rows.values())]

    @property
    def done(self) -> int:
        """How many of its jobs have a record."""
        return sum(not square.missing for square in self.squares)

    def add(self, group: str, row: str, square: Square) -> None:
        self.groups.setdefault(group, {}).setdefault(row, []).append(square)


def campaign_pipeline(results: Results) -> list[Rule]:
    """The rules of a campaign, each job of the whole matrix a square."""
    jobs = list(_states(results))
    choices = {reading.name: reading.choice for reading in results.campaign.readings}
    # Shipped records come without the tokens: what a job that is done read was prepared.
    read = {path for job, state in jobs if state.name == DONE for path in job.reads}
    needs = _needs([job for job, _ in jobs])
    rules = {name: Rule(name, tuple(needs[name])) for name in RULES if name in needs}
    for job, state in jobs:
        prepared = job.rule == "prepare" and not read.isdisjoint(job.writes.values())
        done = prepared or state.name == DONE
        rules[job.rule].add(*_place(job, choices), _square(job, state, done))
    for name in (*COMPUTED, *RENDERED):
        rules[name].add("", ROWS[name], Square(ROWS[name]))
    return list(rules.values())


def _states(results: Results) -> Iterator[tuple[Job, State]]:
    """Every job of the whole campaign; the state of one that restrictions leave out says so."""
    campaign = results.campaign
    chosen = Ledger(results, strict=False)
    names = {(job.rule, job.name) for job in chosen.jobs}
    reasons = {(run.scale, run.variant, run.seed): run.reason for run in campaign.omitted}
    whole = replace(
        campaign,
        runs=campaign.planned_runs,
        further_runs=campaign.planned_further,
        converted_runs=campaign.planned_converted,
        systems=campaign.planned_systems,
        recall=campaign.planned_recall,
    )
    for job in Ledger(replace(results, campaign=whole), strict=False).jobs:
        if (job.rule, job.name) not in names:
            reason = reasons.get((job.scale, job.variant, job.seed), "")
            yield job, State("left out", reason)
        elif job.is_unpublished:
            yield job, State("not published with its run")
        else:
            yield job, chosen.state(job)


def _needs(jobs: list[Job]) -> dict[str, list[str]]:
    """The rules that each rule needs, by the files that its jobs read."""
    found: dict[str, set[str]] = {job.rule: set() for job in jobs}
    writers = {path: job.rule for job in jobs for path in job.writes.values()}
    for job in jobs:
        # A converted run reads a checkpoint of its own rule.
        found[job.rule] |= {writers[path] for path in job.reads if path in writers} - {job.rule}
    if "collect" in found:  # shipped records of the readings read no run's
        found["collect"].add("diagnose_reading")
    recorded = set(found) - READ_LATER
    found |= {rule: recorded for rule in COMPUTED}
    found |= {rule: set(COMPUTED) for rule in RENDERED}
    return {rule: [name for name in RULES if name in needed] for rule, needed in found.items()}


def _place(job: Job, choices: Mapping[str, str]) -> tuple[str, str]:
    """The group of a job within its rule, and its row."""
    if job.rule == "prepare":
        return "", f"{job.spec.title}, {job.spec.vocabulary:,} entries"
    if "reading" in job.wildcards:
        return "", choices[job.wildcards["reading"]]
    if job.rule in ("measure", "recall"):
        return "", job.variant
    if job.scale:
        return f"{job.scale}, further pairs" if job.further else job.scale, job.variant
    return "", ROWS[job.rule]


def _square(job: Job, state: State, done: bool) -> Square:
    told = {DONE: "done", WAITING: "to be done"}.get(state.name, state.name)
    page = ""
    if job.rule == "train_reading" and done:
        page = f"readings.html#reading-{job.wildcards['reading']}"
    elif job.rule == "train" and job.further:
        page = f"runs.html#{pair_anchor(job.scale, job.seed)}"
    elif job.rule == "train" and job.spec.start is None:
        page = f"{page_of_run(job.scale, job.variant, job.seed)}.html"
    said = "done" if done else ", ".join(filter(None, (told, state.reason)))
    name = job.name or ROWS[job.rule]
    kind = job.variant if job.variant in PAIRED else "other"
    return Square(f"{name}: {said}", kind, page, missing=not done)
