"""The campaign's DAG as a picture: a box a group of jobs, a square a job, a line a dependency.

Thousands of edges between single jobs would show nothing; groups of one rule and scale depend on
one another as their jobs do, so the lines join groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from relation.variants import PAIRED
from report.render.boxes import COLUMN_GAP, LANE, ROW_GAP, Box, Job, Placed, in_rows
from report.render.runs import Run, pair_anchor

if TYPE_CHECKING:
    from relation.pipeline.campaign import Campaign
    from relation.spec import SystemsSpec

Gaps = Mapping[tuple[str, str, str, int], Mapping[str, Any]]

# What the rules do, in the order in which data flow.
RULES = {
    "prepare": "Tokenise a corpus and train its tokenizer.",
    "inventory": "Build every model once and count its parameters.",
    "train": "Train one model; its log and checkpoint.",
    "diagnose": "Measure the flow of one checkpoint, head by head.",
    "verify": "Hold FlashRelation and the paper’s identities to their definitions.",
    "verify_gradients": "Hold the training step’s gradients to FP64, parameter by parameter.",
    "train_reading": "Train one model of a reading of the paper.",
    "diagnose_reading": "Measure the flow of its checkpoint.",
    "collect": "Gather the records of the readings, a file a kind.",
    "measure": "Time whole training steps, memory, and operators against the context.",
    "cells": "Set every value of every table beside the paper’s, and judge it.",
    "figures": "Draw the figures.",
    "report": "Render these pages.",
    "document": "Write the tables in LaTeX and typeset report.pdf.",
}


OF_READINGS = ("train_reading", "diagnose_reading", "collect")


@dataclass(frozen=True)
class Pipeline:
    """The placed boxes, the lines between them as SVG paths, and the size.

    ``counts`` has of each rule its name, its jobs that have a record, all its jobs, and what it
    does; ``edges`` the pairs of rules of which the second needs the first.
    """

    boxes: tuple[Placed, ...]
    lines: tuple[str, ...]
    width: int
    height: int
    counts: tuple[tuple[str, int, int, str], ...]
    edges: frozenset[tuple[str, str]]


def campaign_pipeline(
    campaign: Campaign,
    runs: Sequence[Run],
    missing: Sequence[Mapping[str, Any]],
    further: Sequence[Run] = (),
    of_readings: Collection[str] | None = None,
) -> Pipeline:
    """Lay out the DAG of a campaign, jobs without a record drawn as such.

    Args:
        campaign: whose jobs they are.
        runs: as ``runs.read_runs`` returns them.
        missing: the rows of missing.parquet.
        further: the runs of the pairs beyond the matrix, as ``runs.read_further`` returns them.
        of_readings: names of the readings' runs that have records; None: all of the campaign's.
    """
    gaps = {(row["kind"], row["scale"], row["variant"], row["seed"]): row for row in missing}
    data = _data(campaign, [*runs, *further], gaps)
    kinds = {row["kind"] for row in missing}
    models = _single("inventory", "models", "models" in kinds)
    checks = (
        _single("verify", "exactness", "verification" in kinds),
        _single("verify_gradients", "gradients", "gradients" in kinds),
    )
    training = [_training(runs, scale, data) for scale in campaign.scales]
    diagnosis = [
        Box(
            "diagnose",
            box.title,
            tuple(
                (label, tuple(_diagnosed(job, label, box.title, gaps) for job in jobs))
                for label, jobs in box.rows
                if label in PAIRED
            ),
            (box.key,),
        )
        for box in training
    ]
    scales = dict.fromkeys(run.scale for run in further)
    beyond = [_further(further, scale, data) for scale in scales]
    others = (*beyond, _benchmarks(campaign, gaps, data), *checks, models)
    readings = _readings(campaign, of_readings, data)
    records = tuple(box.key for box in (*training, *diagnosis, *others, *readings[-1:]))
    cells = _single("cells", "cells", needs=records)
    figures = _single("figures", "figures", needs=records)
    rendered = tuple(
        _single(rule, what, needs=(cells.key, figures.key))
        for rule, what in (("report", "pages"), ("document", "PDF"))
    )
    return _placed(data, training, diagnosis, readings, others, (cells, figures), rendered)


def _single(rule: str, label: str, missing: bool = False, needs: tuple[str, ...] = ()) -> Box:
    """A rule with one job."""
    return Box(rule, "", ((label, (Job(label, missing=missing),)),), needs)


def _data(campaign: Campaign, runs: Sequence[Run], gaps: Gaps) -> Box:
    """Every corpus by its title and vocabulary.

    Shipped records come without the tokens: what a run or a benchmark read was prepared.
    """
    scales = {run.scale for run in runs if not run.gap}
    scales |= {spec.scale for spec in campaign.planned_systems if _gap_of(spec, gaps) is None}
    read = {campaign.data_of_scale(scale).name for scale in scales}
    prepared = (
        (
            f"{spec.title}, {spec.vocabulary:,} entries",
            (Job(f"prepare {name}", missing=name not in read),),
        )
        for name, spec in campaign.data.items()
    )
    return Box("prepare", "", tuple(prepared))


def _gap_of(spec: SystemsSpec, gaps: Gaps) -> Mapping[str, Any] | None:
    """The gap that a benchmark left, if any."""
    kind = "complexity" if spec.benchmark == "complexity" else "throughput"
    return gaps.get((kind, spec.scale, spec.benchmark, -1))


def _training(runs: Sequence[Run], scale: str, data: Box) -> Box:
    rows = (
        (variant, tuple(_trained(run, f"{run.page}.html") for run in own))
        for variant, own in _by_variant(runs, scale).items()
    )
    return Box("train", scale, tuple(rows), (data.key,))


def _further(runs: Sequence[Run], scale: str, data: Box) -> Box:
    """Pairs beyond the matrix, so many squares in a row that the box is no wider than most."""
    rows = []
    for variant, own in _by_variant(runs, scale).items():
        jobs = [_trained(run, f"runs.html#{pair_anchor(run)}") for run in own]
        rows += in_rows(variant, jobs)
    return Box("train", f"{scale}, further pairs", tuple(rows), (data.key,))


def _readings(campaign: Campaign, there: Collection[str] | None, data: Box) -> tuple[Box, ...]:
    """Training, diagnostics and gathering of the readings' runs by choice; none without any."""
    if not campaign.reading_runs:
        return ()
    choices: dict[str, list[Job]] = {}
    for reading in campaign.readings:
        for run in reading.runs:
            if run.reading == reading.name and run in campaign.reading_runs:
                gone = there is not None and run.name not in there
                choices.setdefault(reading.choice, []).append(
                    Job(
                        f"{run.name}: {'not run' if gone else 'done'}",
                        run.variant if run.variant in PAIRED else "other",
                        page="" if gone else f"readings.html#reading-{reading.name}",
                        missing=gone,
                    )
                )
    rows = tuple(row for choice, jobs in choices.items() for row in in_rows(choice, jobs))
    trained = Box("train_reading", "", rows, (data.key,))
    looked = tuple((label, tuple(replace(job, page="") for job in jobs)) for label, jobs in rows)
    diagnosed = Box("diagnose_reading", "", looked, (trained.key,))
    return trained, diagnosed, _single("collect", "readings", there == set(), (diagnosed.key,))


def _by_variant(runs: Sequence[Run], scale: str) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.scale == scale:
            found.setdefault(run.variant, []).append(run)
    return found


def _trained(run: Run, page: str) -> Job:
    """The square of a training run, which leads to a page."""
    said = f"{run.gap}, {run.reason}" if run.gap else "done"
    return Job(
        f"{run.name}: {'stale, of another configuration' if run.stale else said}",
        run.variant if run.variant in PAIRED else "other",
        page=page,
        missing=bool(run.gap) or run.stale,
    )


def _diagnosed(job: Job, variant: str, scale: str, gaps: Gaps) -> Job:
    """The diagnostics of the run that a square of training stands for."""
    name = job.title.partition(":")[0]
    gap = gaps.get(("flow", scale, variant, int(name.rpartition("/")[2])))
    return Job(_told(name, gap), job.kind, missing=gap is not None)


def _benchmarks(campaign: Campaign, gaps: Gaps, data: Box) -> Box:
    rows: dict[str, list[Job]] = {}
    for spec in campaign.planned_systems:
        gap = _gap_of(spec, gaps)
        job = Job(_told(f"{spec.benchmark}/{spec.scale}", gap), missing=gap is not None)
        rows.setdefault(spec.benchmark, []).append(job)
    return Box(
        "measure",
        "benchmarks",
        tuple((name, tuple(jobs)) for name, jobs in rows.items()),
        (data.key,),
    )


def _told(name: str, gap: Mapping[str, Any] | None) -> str:
    return f"{name}: done" if gap is None else f"{name}: {gap['status']}, {gap['reason']}"


def _placed(
    data: Box,
    training: Sequence[Box],
    diagnosis: Sequence[Box],
    readings: Sequence[Box],
    others: Sequence[Box],
    computed: Sequence[Box],
    rendered: Sequence[Box],
) -> Pipeline:
    """Stand each scale's training and diagnostics side by side; all records meet on one line."""
    boxes, exits, y = [], [], 1
    left = data.width + COLUMN_GAP
    wide = (*training, *others, *readings[:1])
    middle = left + max(box.width for box in wide) + COLUMN_GAP
    for trained, diagnosed in zip(training, diagnosis, strict=True):
        tall = Placed(replace(trained, floor=diagnosed.height + LANE), left, y)
        boxes.append(tall)
        exits.append((tall, y + tall.box.height - LANE / 2))
        if diagnosed.rows:
            boxes.append(Placed(diagnosed, middle, y))
            exits.append((boxes[-1], boxes[-1].middle))
        y += tall.box.height + ROW_GAP
    if readings:
        trained, diagnosed, collected = readings
        below = y + diagnosed.height + ROW_GAP
        boxes += [Placed(trained, left, y), Placed(diagnosed, middle, y)]
        boxes.append(Placed(collected, middle, below))
        exits.append((boxes[-1], boxes[-1].middle))
        y = below + collected.height + ROW_GAP
    for box in others:
        boxes.append(Placed(box, left, y))
        exits.append((boxes[-1], boxes[-1].middle))
        y += box.height + ROW_GAP
    height = y - ROW_GAP
    boxes.insert(0, Placed(data, 1, (height - data.height) // 2))
    looks = (*diagnosis, *readings[1:])
    meeting = middle + max((box.width for box in looks if box.rows), default=0) + 24
    ends = _stacked(computed, meeting + COLUMN_GAP // 2, height)
    last = _stacked(rendered, ends[0].right + COLUMN_GAP, height)

    lines = [_curve(start, end) for end in boxes for start in boxes if _needs(end.box, start.box)]
    lines += [f"M{start.right} {level:.0f}H{meeting}" for start, level in exits]
    levels = [*(level for _, level in exits), *(end.middle for end in ends)]
    lines.append(f"M{meeting} {min(levels):.0f}V{max(levels):.0f}")
    lines += [f"M{meeting} {end.middle:.0f}H{end.x}" for end in ends]
    lines += [_curve(end, box) for end in ends for box in last]
    boxes = [*boxes, *ends, *last]
    return Pipeline(
        boxes=tuple(boxes),
        lines=tuple(lines),
        width=last[0].right + 1,
        height=height + 1,
        counts=tuple(
            (rule, *_count(boxes, rule), does)
            for rule, does in RULES.items()
            if rule in {placed.box.rule for placed in boxes} or rule not in OF_READINGS
        ),
        edges=frozenset(
            (start.box.rule, end.box.rule)
            for end in boxes
            for start in boxes
            if _needs(end.box, start.box)
        ),
    )


def _stacked(boxes: Sequence[Box], x: int, height: int) -> list[Placed]:
    """Boxes one above the other, in the middle of the height."""
    y = (height - sum(box.height + ROW_GAP for box in boxes) + ROW_GAP) // 2
    placed = []
    for box in boxes:
        placed.append(Placed(box, x, y))
        y += box.height + ROW_GAP
    return placed


def _count(boxes: Sequence[Placed], rule: str) -> tuple[int, int]:
    """The jobs of a rule that have a record, and all."""
    missing = [job.missing for p in boxes if p.box.rule == rule for job, _, _ in p.jobs]
    return missing.count(False), len(missing)


def _needs(box: Box, other: Box) -> bool:
    """Whether a box depends on another."""
    return other.key in box.needs


def _curve(start: Placed, end: Placed) -> str:
    """A path from the right edge of a box to the left edge of another, or down to one below it."""
    if start.x == end.x:
        return f"M{start.x + COLUMN_GAP} {start.y + start.box.height}V{end.y}"
    bend = (start.right + end.x) / 2
    return (
        f"M{start.right} {start.middle:.0f}"
        f"C{bend:.0f} {start.middle:.0f} {bend:.0f} {end.middle:.0f} {end.x} {end.middle:.0f}"
    )
