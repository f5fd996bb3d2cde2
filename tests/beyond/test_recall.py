"""Associative recall: its sequences, the counted answers, and the training of models."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from training import CPU, tiny

from relation import records
from relation.beyond import recall
from relation.beyond.recall import FILLER, Sequences, answer, draw
from relation.data.windows import IGNORED
from relation.jobs import Recall

TASKS = ((16, 2), (48, 8))
VOCABULARY = 64
# Standard deviations. A count of independent events exceeds them once in 1.7 million.
DEVIATIONS = 5.0


def given(mixer: str = "full", layout: str = "FF", width: int = 16, **changes) -> Recall:
    """The tiny campaign's recall job with another model or other changes."""
    (own,) = tiny().recall
    model = replace(own.models[0], layout=layout, d_model=width, d_ff=2 * width)
    return replace(own, **{"mixer": mixer, "models": (model,), "tasks": TASKS, **changes})


def recalled(tmp_path: Path, spec: Recall) -> pd.DataFrame:
    recall.run(spec, tmp_path / "recall.parquet")
    return records.read(tmp_path / "recall.parquet", "recall")


@pytest.mark.parametrize(("length", "pairs"), [(4, 1), (16, 2), (64, 16), (512, 64)])
def test_a_sequence_is_pairs_then_every_key_again(length: int, pairs: int) -> None:
    half = VOCABULARY * 4 // 2
    drawn = draw(given(tasks=((length, pairs),), vocabulary=2 * half), 50, 1)
    assert all(part.shape == (50, 1, length) for part in drawn)
    for row, wanted in zip(*(part[:, 0] for part in drawn), strict=True):
        keys, values = row[: 2 * pairs : 2], row[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert keys.min() >= 1 and keys.max() < half <= values.min() and values.max() < 2 * half
        asked = np.flatnonzero(wanted != IGNORED)
        assert (asked >= 2 * pairs).all() and (asked % 2 == 0).all()
        assert sorted(row[asked]) == sorted(keys), "each key is asked for once"
        value_of = dict(zip(keys, values, strict=True))
        assert all(value_of[row[place]] == wanted[place] for place in asked)
        rest = np.setdiff1d(np.arange(2 * pairs, length), asked)
        assert (row[rest] == FILLER).all()


def test_shorter_tasks_are_padded_and_a_key_fixes_the_sequences() -> None:
    drawn = draw(given(), 3, 1)
    assert drawn.inputs.shape == (3, 2, 48)
    padded = Sequences(*(part[:, 0, 16:] for part in drawn))
    assert (padded.inputs == FILLER).all() and (padded.targets == IGNORED).all()
    assert (drawn.targets != IGNORED).sum(axis=(0, 2)).tolist() == [6, 24]
    assert all(map(np.array_equal, drawn, draw(given(), 3, 1)))
    assert not np.array_equal(drawn.inputs, draw(given(), 3, 2).inputs)


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_queries_follow_the_power_law_of_gaps(power: float) -> None:
    """The first draw takes slot s in proportion to s^(power - 1); all draws are distinct."""
    rows, slots = 40_000, 12
    drawn = recall.query_slots(np.random.default_rng(4), rows, slots, 5, power)
    assert all(len(set(row)) == 5 for row in drawn[:200])
    share = np.arange(1, slots + 1) ** (power - 1.0)
    share /= share.sum()
    counts = np.bincount(drawn[:, 0], minlength=slots)
    spread = np.sqrt(rows * share * (1 - share))
    assert (np.abs(counts - rows * share) < DEVIATIONS * spread).all()


class Lookup(torch.nn.Module):
    """Answers with the token after the first occurrence, or with 0 if that is beyond `reach`."""

    def __init__(self, reach: int = 10**9):
        super().__init__()
        self.reach = reach

    def states(self, tokens: Tensor) -> Tensor:
        first = (tokens[:, :, None] == tokens[:, None, :]).int().argmax(2)
        answers = tokens.gather(1, (first + 1).clamp(max=tokens.shape[1] - 1))
        places = torch.arange(tokens.shape[1])
        return torch.where(places - first <= self.reach, answers, 0)[..., None].double()

    def logits(self, states: Tensor) -> Tensor:
        return -50 * (states - torch.arange(VOCABULARY)).square()


def test_a_lookup_table_is_right_as_far_as_it_reaches() -> None:
    asked = draw(given(gap_power=1.0), 30, 6)
    right, nll = answer(Lookup(), asked, 7, CPU, "fp32")
    assert right.tolist() == [30 * 2, 30 * 8] and nll == pytest.approx(0, abs=1e-6)
    right, _ = answer(Lookup(reach=16), asked, 30, CPU, "fp32")
    assert right[0] == 30 * 2 and 0 < right[1] < 30 * 8
    unsure = Lookup()
    unsure.logits = lambda states: torch.zeros(len(states), VOCABULARY)
    assert answer(unsure, asked, 7, CPU, "fp32")[1] == pytest.approx(math.log(VOCABULARY))


def test_a_rate_is_chosen_on_the_first_seed_and_the_others_train_at_it(tmp_path: Path) -> None:
    spec = given(learning_rates=(1e-3, 3e-3), seeds=(1, 2, 3))
    rows = recalled(tmp_path, spec)
    trainings = rows.groupby(["learning_rate", "seed"])
    assert len(trainings) == 4
    assert set(rows["hash"]) == {spec.hash} and set(rows["layout"]) == {"FF"}
    queries = [spec.tested * pairs for _, pairs in spec.tasks]
    for _, own in trainings:
        assert own.groupby("pairs")["queries"].sum().tolist() == queries
        assert (own["right"] <= own["queries"]).all()
    first = rows[rows["seed"] == 1].drop_duplicates("learning_rate")
    best = first.sort_values(["validation_accuracy", "validation_nll"], ascending=[False, True])
    (chosen,) = rows[rows["chosen"]]["learning_rate"].unique()
    assert chosen == best["learning_rate"].iloc[0]
    assert set(rows[rows["chosen"]]["seed"]) == {1, 2, 3}


def test_a_training_does_not_depend_on_those_before_it(tmp_path: Path) -> None:
    """All trainings share one model. Its weights and AdamW start fresh; hybrid has every part."""
    spec = given("hybrid", "LF", seeds=(1,))
    numbers = ["validation_nll", "validation_accuracy", "right", "length", "distance"]
    both = recalled(tmp_path, replace(spec, learning_rates=(1e-2, 1e-3)))
    alone = recalled(tmp_path, replace(spec, learning_rates=(1e-3,)))
    again = both[both["learning_rate"] == 1e-3].reset_index(drop=True)
    pd.testing.assert_frame_equal(again[numbers], alone[numbers])
    assert both["validation_nll"].nunique() == 2


def test_a_model_learns_to_recall(tmp_path: Path) -> None:
    """Two layers of MHA are known to learn it. Guessing is right once in 32."""
    changes = {"tasks": ((16, 2),), "learning_rates": (2e-2,), "seeds": (1,), "sequences": 32}
    changes |= {"updates": 100, "warmup_updates": 10, "tested": 64}
    rows = recalled(tmp_path, given("mha", "AA", width=32, **changes))
    (row,) = rows.to_dict("records")
    assert row["right"] > 0.2 * row["queries"]
    assert row["right"] / row["queries"] != row["validation_accuracy"]  # of other sequences
