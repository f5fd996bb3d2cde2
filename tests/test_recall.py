"""Associative recall: what its sequences are, what is counted, and how models are trained on it."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from test_config import changed
from torch import Tensor
from training import campaign

from relation.data.windows import IGNORED
from relation.errors import InputError
from relation.pipeline.campaign import resolve
from relation.probes.recall.run import AtQueries, answer, build_model, draw, questions, recall
from relation.probes.recall.sequences import (
    FILLER,
    Sequences,
    Uniform,
    distinct,
    mixed_sequences,
    query_slots,
    recall_sequences,
)
from relation.spec import RecallSpec
from relation.store.layouts import RECALL
from relation.store.parquet import read_parquet
from relation.train.loss import summed_nll

CPU = torch.device("cpu")
TASKS = [[16, 2], [48, 8]]
VOCABULARY = 64
# A count of independent events is further from its mean than this once in 1.7 million.
DEVIATIONS = 5.0


def spec(mixer: str = "full", **changes: object) -> RecallSpec:
    return replace(campaign().recall_of(mixer), **changes)


def recalled(tmp_path: Path, given: RecallSpec) -> pd.DataFrame:
    recall(given, tmp_path / "recall.parquet")
    return read_parquet(tmp_path / "recall.parquet", RECALL).to_pandas()


# -- sequences -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("length", "pairs"), [(4, 1), (16, 2), (64, 16), (512, 64)])
def test_a_sequence_is_pairs_then_every_key_again(length: int, pairs: int) -> None:
    half = VOCABULARY * 4 // 2
    inputs, targets, distances = recall_sequences(Uniform(1), 50, length, pairs, 2 * half, 0.01)
    assert inputs.shape == targets.shape == distances.shape == (50, length)
    for row, wanted, back in zip(inputs, targets, distances, strict=True):
        keys, values = row[: 2 * pairs : 2], row[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert keys.min() >= 1 and keys.max() < half <= values.min() and values.max() < 2 * half
        asked = np.flatnonzero(wanted != IGNORED)
        assert set(asked) == set(np.flatnonzero(back)), "a distance at queries alone"
        assert (asked >= 2 * pairs).all() and (asked % 2 == 0).all()
        assert sorted(row[asked]) == sorted(keys), "each key is asked for once"
        for place in asked:
            first = place - back[place]
            assert row[first] == row[place] and row[first + 1] == wanted[place]
        rest = np.setdiff1d(np.arange(2 * pairs, length), asked)
        assert (row[rest] == FILLER).all()


def test_shorter_tasks_are_padded_where_nothing_is_asked() -> None:
    mixed = mixed_sequences(Uniform(1), 3, TASKS, VOCABULARY, 0.01)
    assert mixed.inputs.shape == (3, 2, 48)
    padded = Sequences(*(part[:, 0, 16:] for part in mixed))
    assert (padded.inputs == FILLER).all() and (padded.targets == IGNORED).all()
    assert (mixed.targets != IGNORED).sum(axis=(0, 2)).tolist() == [6, 24]


def test_a_key_fixes_the_sequences() -> None:
    keys = [(0, 1), (0, 1), (0, 2)]
    one, same, other = (mixed_sequences(Uniform(*k), 4, TASKS, VOCABULARY, 0.01) for k in keys)
    assert np.array_equal(one.inputs, same.inputs) and np.array_equal(one.targets, same.targets)
    assert not np.array_equal(one.inputs, other.inputs)


def test_draws_without_return_are_uniform() -> None:
    """Each of the 24 ordered draws of 3 among 4 is as likely."""
    rows = 24_000
    drawn = distinct(Uniform(3), rows, 4, 3)
    codes, counts = np.unique(drawn @ [16, 4, 1], return_counts=True)
    assert len(codes) == 24
    spread = math.sqrt(rows / 24 * (1 - 1 / 24))
    assert np.abs(counts - rows / 24).max() < DEVIATIONS * spread


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_queries_follow_the_power_law_of_gaps(power: float) -> None:
    """The first draw takes slot s in proportion to s^(power - 1); all draws are distinct."""
    rows, slots = 40_000, 12
    drawn = query_slots(Uniform(4), rows, slots, 5, power)
    assert all(len(set(row)) == 5 for row in drawn[:200])
    share = np.arange(1, slots + 1) ** (power - 1.0)
    share /= share.sum()
    counts = np.bincount(drawn[:, 0], minlength=slots)
    spread = np.sqrt(rows * share * (1 - share))
    assert (np.abs(counts - rows * share) < DEVIATIONS * spread).all()


# -- answers ---------------------------------------------------------------------------------------
class Lookup(torch.nn.Module):
    """Answers with what followed the token's first occurrence, if that is near; else with 0."""

    def __init__(self, reach: int = 10**9):
        super().__init__()
        self.reach = reach

    def states(self, tokens: Tensor) -> Tensor:
        first = (tokens[:, :, None] == tokens[:, None, :]).int().argmax(2)
        found = tokens.gather(1, (first + 1).clamp(max=tokens.shape[1] - 1))
        places = torch.arange(tokens.shape[1])
        return torch.where(places - first <= self.reach, found, 0)[..., None].double()

    def logits(self, states: Tensor) -> Tensor:
        return -50 * (states - torch.arange(VOCABULARY)).square()


class Guess(Lookup):
    """Holds every value for as likely, up to noise that decides."""

    def logits(self, states: Tensor) -> Tensor:
        noise = 1e-6 * torch.rand(len(states), VOCABULARY, generator=torch.manual_seed(5))
        return noise + torch.where(torch.arange(VOCABULARY) < VOCABULARY // 2, -1e4, 0.0)


def test_a_lookup_table_is_always_right() -> None:
    asked = mixed_sequences(Uniform(6), 30, TASKS, VOCABULARY, 0.01)
    found = answer(Lookup(), asked, 7, CPU, "fp32")
    assert found.accuracy(asked) == 1.0 and found.nll == pytest.approx(0, abs=1e-6)
    assert np.array_equal(found.right, asked.targets != IGNORED)


def test_a_guess_is_right_once_in_as_many_values() -> None:
    asked = mixed_sequences(Uniform(6), 400, [[48, 8]], VOCABULARY, 0.01)
    found = answer(Guess(), asked, 50, CPU, "fp32")
    values = VOCABULARY // 2
    spread = math.sqrt(1 / values * (1 - 1 / values) / (400 * 8))
    assert abs(found.accuracy(asked) - 1 / values) < DEVIATIONS * spread
    assert found.nll == pytest.approx(math.log(values), abs=1e-5)


def test_a_reach_that_was_planted_shows_and_tasks_weigh_alike() -> None:
    asked = mixed_sequences(Uniform(7), 60, TASKS, VOCABULARY, 1.0)
    found = answer(Lookup(reach=16), asked, 60, CPU, "fp32")
    near = (asked.distances > 0) & (asked.distances <= 16)
    assert np.array_equal(found.right, near)
    shares = [near[:, n].sum() / (asked.distances[:, n] > 0).sum() for n in range(2)]
    assert shares[1] < shares[0] == 1 and found.accuracy(asked) == pytest.approx(sum(shares) / 2)


# -- trainings -------------------------------------------------------------------------------------
@pytest.mark.parametrize("mixer", ["mha", "hybrid"])
def test_the_loss_at_queries_is_that_of_the_whole_sequences(mixer: str) -> None:
    like = resolve(changed(("campaigns.tiny.recall.mixers", [mixer])), campaign="tiny")
    given = like.recall_of(mixer)
    sequences = draw(given, 3, 5)
    model = build_model(given, given.models[0]["d_model"], 1).double()
    whole = (torch.from_numpy(a).flatten(0, 1).long() for a in sequences[:2])
    asked = (torch.from_numpy(a).long() for a in questions(sequences))
    at_queries = AtQueries(model, *sequences.inputs.shape[1:])
    losses = summed_nll(model, *whole), summed_nll(at_queries, *asked)
    wanted, found = (torch.autograd.grad(x, list(model.parameters())) for x in losses)
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)  # the sum is FP32
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6 * a.abs().max().item())


def test_a_rate_is_chosen_on_the_first_seed_and_the_others_train_at_it(tmp_path: Path) -> None:
    given = spec(learning_rates=[1e-3, 3e-3], seeds=[1, 2, 3])
    rows = recalled(tmp_path, given)
    trainings = rows.groupby(["learning_rate", "seed"])
    assert len(trainings) == 4 and (rows["status"] == "PASS").all()
    queries = [given.tested * pairs for _, pairs in given.tasks]
    for _, own in trainings:
        assert own.groupby("pairs")["queries"].sum().tolist() == queries
        assert (own["right"] <= own["queries"]).all()
    first = rows[rows["seed"] == 1].drop_duplicates("learning_rate")
    best = first.sort_values(["validation_accuracy", "validation_nll"], ascending=[False, True])
    (chosen,) = rows[rows["chosen"]]["learning_rate"].unique()
    assert chosen == best["learning_rate"].iloc[0]
    assert set(rows[rows["chosen"]]["seed"]) == {1, 2, 3}


def test_a_training_does_not_depend_on_those_before_it(tmp_path: Path) -> None:
    """One model is trained again and again: nothing of it or of AdamW stays. Hybrid has all."""
    like = resolve(changed(("campaigns.tiny.recall.mixers", ["hybrid"])), campaign="tiny")
    given = replace(like.recall_of("hybrid"), seeds=[1])
    numbers = ["validation_nll", "validation_accuracy", "right", "length", "distance"]
    both = recalled(tmp_path, replace(given, learning_rates=[1e-2, 1e-3]))
    alone = recalled(tmp_path, replace(given, learning_rates=[1e-3]))
    again = both[both["learning_rate"] == 1e-3].reset_index(drop=True)
    pd.testing.assert_frame_equal(again[numbers], alone[numbers])
    assert both["validation_nll"].nunique() == 2


def test_a_peer_that_cannot_run_says_why(tmp_path: Path) -> None:
    (row,) = recalled(tmp_path, spec("gla")).to_dict("records")
    assert (row["status"], row["mixer"]) == ("UNAVAILABLE", "gla") and "\n" not in row["reason"]
    assert "GPU" in row["reason"] and pd.isna(row["queries"])


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", ["mha", "full"])
def test_compiled_and_captured_trainings_learn_to_recall(tmp_path: Path, mixer: str) -> None:
    """Three trainings share one model's graphs; on a CPU each answers all queries."""
    paper = resolve(changed(("campaigns.paper.recall.widths", [64])), campaign="paper")
    easy = {"tasks": [[16, 2], [32, 4]], "sequences": 32, "learning_rates": [2e-3], "tested": 64}
    given = replace(paper.recall_of(mixer), **easy, vocabulary=128, seeds=[1, 2, 3])
    models = [{**model, "vocab_size": 128} for model in given.models]
    rows = recalled(tmp_path, replace(given, models=models))
    shares = rows.groupby("seed")[["right", "queries"]].sum()
    assert (shares["right"] > 0.9 * shares["queries"]).all()


@pytest.mark.parametrize("place, value, said", [
    ("tasks", [[14, 4]], "an even length of at least 16, and 14 is given"),
    ("tasks", [[17, 4]], "an even length of at least 16, and 17 is given"),
    ("tasks", [[400, 40]], "a vocabulary of 64 has 31; give at least 82"),
    ("vocabulary", 63, "multiple of 2"),
    ("warmup_updates", 50, "reach beyond the plateau of 2 updates"),
    ("widths", [31], "recall: full at width 31: d_model 31 is not divisible by 2 heads"),
    ("mixers", ["rwkv"], "'rwkv' is not one of"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(place: str, value: object, said: str) -> None:
    spoilt = changed((f"campaigns.tiny.recall.{place}", value))
    with pytest.raises(InputError, match=said) as refused:
        resolve(spoilt, campaign="tiny")
    assert "\n" not in str(refused.value) and "recall" in str(refused.value)


def test_a_mixer_is_left_out_with_its_variant() -> None:
    whole, alone = campaign(), resolve(changed(), campaign="tiny", variants="mha")
    assert [s.mixer for s in whole.recall] == ["full", "gla"] and not alone.recall
    with pytest.raises(InputError, match="no recall of 'mha'; choose among full, gla"):
        whole.recall_of("mha")
