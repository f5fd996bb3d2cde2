"""Beyond the paper: in-context copying, and the heads whose flow finds what to copy."""

import pandas as pd

from report.values.examined import NO_FLOW, OVER_SEEDS, STUBS, BySeed, Examined, average, row_of
from report.values.frames import CampaignRecords
from report.values.layout import Note, Number, Panel, Table, Words, value
from report.values.measured import Measurements, select, worded
from report.values.numbers import POINTS

BASE = "mha"


def longest(rows: pd.DataFrame) -> int:
    """The largest distance of a checkpoint's rows of COPYING, half of its context."""
    return int(rows["distance"].max())


def best_head(rows: pd.DataFrame) -> pd.Series | None:
    """The head with the highest induction score at the largest distance; None without heads."""
    scores = select(rows, metric="induction", distance=longest(rows))
    return None if scores.empty else scores.loc[scores["value"].idxmax()]


def _at(metric: str, part: int) -> tuple[BySeed, str]:
    """A metric at a fraction of the largest distance, of one seed, and which rows that is."""

    def of(rows: pd.DataFrame) -> float | None:
        return average(select(rows, metric=metric, distance=longest(rows) // part))

    return of, f"metric = {metric}, distance = T/{2 * part}"


def _score(rows: pd.DataFrame) -> float | None:
    best = best_head(rows)
    return None if best is None else float(best["value"])


def copying(records: CampaignRecords) -> Measurements:
    """A row a model: accuracy and loss of the repetition, the best head's score and its layer."""
    examined, found = Examined(records, "copying"), Measurements()
    for model in examined.models:
        row = "/".join(model)
        far = _at("repeat_accuracy", 1)
        means = {
            "copy.near": examined.mean(model, *_at("repeat_accuracy", 4), unit="%"),
            "copy.far": examined.mean(model, *far, unit="%"),
            "copy.first": examined.mean(model, *_at("first_nll", 1)),
            "copy.repeat": examined.mean(model, *_at("repeat_nll", 1)),
        }
        if model[1] != BASE:
            base = examined.mean((model[0], BASE), *far, unit="%")
            means["copy.delta"] = means["copy.far"] - base
        said = "metric = induction, distance = T/2, the best head"
        means["copy.induction"] = examined.mean(model, _score, said, "1", NO_FLOW)
        found.put_intervals(row, means)
        heads = map(best_head, examined.seeds(*model).values())
        layers = ", ".join(f"L{int(head['layer'])}" for head in heads if head is not None)
        score = means["copy.induction"]
        told = worded(layers, sources=score.sources, rows=said) if layers else score
        found[row, "copy.layer", "value"] = told
    return found


_SHARE, _NLL = Number(1, "%"), Number(3)
COPYING = Table(
    label="beyond-copying",
    number="B3",
    title="In-context copying",
    summary="Random tokens that stand twice: accuracy, loss, and the head whose flow finds them.",
    caption=(
        "Blocks of different random tokens, each repeated once. T is the training context; a token "
        "of the repetition stood the given distance earlier. Induction score: a head’s mean flow "
        "from a repeated token to the one after its earlier occurrence, of the best head."
    ),
    panels=(
        Panel(
            "Copying",
            (
                value("Accuracy\nat T/8", "copy.near", _SHARE),
                value("Accuracy\nat T/2", "copy.far", _SHARE),
                value("less\nMHA’s", "copy.delta", Number(1, POINTS, signed=True)),
                value("NLL at T/2,\nfirst time", "copy.first", _NLL),
                value("second\ntime", "copy.repeat", _NLL),
                value("Induction\nscore at T/2", "copy.induction", _NLL),
                value("its layer,\nby seed", "copy.layer", Words()),
            ),
            measured=True,
        ),
    ),
    measure=copying,
    stubs=STUBS,
    rows=(),
    extra_row=row_of,
    notes=(
        Note(OVER_SEEDS),
        Note(
            "Random tokens are unlike text: copying them shows that a model can, not how much of "
            "its loss it owes to that. A score says where a flow goes, not what a head does with "
            "it; the best of many heads scores above a uniform flow by chance alone."
        ),
    ),
)
