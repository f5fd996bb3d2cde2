"""The rule that chooses a reading, on invented runs with known answers."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
from readings_frames import SPREAD, Planted, configured, make_frames

from relation.errors import InputError
from report.judge.readings_rule import (
    DEFAULT,
    DRAWS,
    VALUES,
    Choice,
    calibration,
    choose,
    next_seeds,
)
from report.values.scales import CLAMP, back, forward

FAR = 12 * SPREAD
TORCH, EPS = "unscaled-sd-torch", "unscaled-adam-eps"
ONE, THREE = (142,), (142, 143, 144)


def planted(changes: Mapping[str, float | Planted] | None = None) -> dict[str, Planted]:
    """Both bases and short books, unscaled nearer on both texts, and what ``changes`` changes."""
    given = {
        DEFAULT: 3 * SPREAD,
        "scaled-sd-0.02": FAR,
        "unscaled-short-books": 3.5 * SPREAD,
        "scaled-short-books": FAR + 0.5 * SPREAD,
        **(changes or {}),
    }
    return {n: s if isinstance(s, Planted) else Planted(shift=s) for n, s in given.items()}


def chosen(plan: dict[str, Planted], adds: dict[str, int] | None = None) -> Choice:
    """What the rule says of the planted pairs where no other will be run."""
    readings = configured(adds)
    every = {(reading.name, seed) for reading in readings for seed in THREE}
    diagnoses = make_frames(plan).diagnoses
    return choose(readings, diagnoses, every - {*calibration(diagnoses).index})


def test_nothing_is_chosen_before_the_pairs_of_the_rule_are_there() -> None:
    plan = planted({"unscaled-sd-torch": 0.0})
    readings, diagnoses = configured(), make_frames(plan).diagnoses
    choice = choose(readings, diagnoses)
    assert (choice.answer, choice.reading, choice.default) == ("unfinished", None, DEFAULT)
    assert "7 pairs" in choice.reason and "would choose unscaled-sd-torch" in choice.reason
    first = [(r.name, 142) for r in readings if r.name not in plan]
    assert len(first) == 7 and choose(readings, diagnoses, first).answer == "chosen"
    plan["unscaled-sd-torch"] = Planted(seeds=ONE)
    assert choose(readings, make_frames(plan).diagnoses, first).answer == "unfinished"


def row(choice: Choice, reading: str) -> pd.Series:
    return choice.distances.set_index("reading").loc[reading]


def test_the_reading_at_the_papers_values_is_chosen() -> None:
    choice = chosen(planted({"unscaled-sd-torch": 0.0}))
    assert (choice.answer, choice.reading) == ("chosen", "unscaled-sd-torch")
    found = row(choice, "unscaled-sd-torch")
    assert found["distance"] == pytest.approx(0, abs=1e-12)
    assert found["n"] == 3 and found["nearer"] == 1.0 and found["candidate"]
    assert choice.default == choice.reading


def test_distance_and_deviations_by_hand() -> None:
    choice = chosen(planted({"unscaled-sd-torch": Planted(shift=SPREAD, seeds=ONE)}))
    np.testing.assert_allclose(choice.deviations["sd"], SPREAD)
    assert set(choice.deviations["freedom"]) == {8}
    # Eight values, each 3 SPREAD off, in errors of SPREAD sqrt(1/3 + 1/3).
    assert row(choice, DEFAULT)["distance"] == pytest.approx(8 * 9 / (2 / 3))
    assert row(choice, DEFAULT)["rms"] == pytest.approx(3 / math.sqrt(2 / 3))
    terms = choice.terms[choice.terms["reading"] == DEFAULT]
    assert (terms["deviation"] ** 2).sum() == pytest.approx(row(choice, DEFAULT)["distance"])
    # One seed is measured with its own error.
    assert row(choice, "unscaled-sd-torch")["distance"] == pytest.approx(8 / (1 + 1 / 3))


@pytest.mark.parametrize("changes, adds, reading", [
    # Of equally near ones the one that adds less.
    ({TORCH: 0.05, EPS: -0.05}, {TORCH: 1, EPS: 2}, TORCH),
    ({TORCH: 0.05, EPS: -0.05}, {TORCH: 2, EPS: 1}, EPS),
    # Of equal additions the nearer.
    ({TORCH: 0.3, EPS: 0.1}, {}, EPS),
    # Fewer additions do not save one that can be told from the nearest.
    ({TORCH: 0.0}, {TORCH: 5, DEFAULT: 0}, TORCH),
    # Nothing beside the readings.
    ({"unscaled-lr-half": 0.0, DEFAULT: 1.0}, {"unscaled-lr-half": 0}, DEFAULT),
])  # fmt: skip
def test_which_reading_is_chosen(changes: dict, adds: dict, reading: str) -> None:
    choice = chosen(planted({name: shift * SPREAD for name, shift in changes.items()}), adds)
    assert choice.reading == reading and reading in choice.reason


def test_far_away_is_not_identified() -> None:
    changes = {f"unscaled-{choice}": FAR for choice in ("sd-0.02", "short-books")}
    changes |= {f"scaled-{choice}": 2 * FAR for choice in ("sd-0.02", "short-books")}
    choice = chosen(planted(changes))
    assert (choice.answer, choice.reading, choice.default) == ("not identified", None, DEFAULT)
    assert row(choice, DEFAULT)["distance"] > choice.bound == choice.by_chance
    assert choice.by_text == pytest.approx(0, abs=1e-9)


def test_the_bound_is_four_times_what_the_texts_do() -> None:
    choice = chosen(planted({"scaled-short-books": FAR + 3 * SPREAD}))
    assert choice.by_text == pytest.approx(4 * 8 * 9 / (2 / 3))
    assert choice.bound == choice.by_text


def test_a_right_reading_passes_its_bound_in_one_of_twenty() -> None:
    """Eight terms z^2 nu / chi2_nu, drawn otherwise."""
    choice = chosen(planted())
    random = np.random.default_rng(5)
    terms = random.standard_t(8, (200_000, len(VALUES))) ** 2
    assert (terms.sum(1) > choice.by_chance).mean() == pytest.approx(0.05, abs=0.006)


def test_texts_that_disagree_choose_nothing() -> None:
    choice = chosen(planted({"unscaled-sd-torch": 0.0, "unscaled-short-books": 2 * FAR}))
    assert (choice.answer, choice.reading, choice.default) == ("texts disagree", None, DEFAULT)
    assert "on short books scaled" in choice.reason


@pytest.mark.parametrize("missing", ["unscaled-sd-0.02", "scaled-short-books"])
def test_a_missing_base_or_text_is_too_few(missing: str) -> None:
    plan = planted({"unscaled-sd-torch": 0.0})
    del plan[missing]
    choice = chosen(plan)
    assert (choice.answer, choice.reading) == ("too few seeds", None)
    assert missing in choice.reason and math.isnan(choice.bound)
    assert row(choice, missing)["n"] == 0 and not row(choice, missing)["candidate"]


def test_one_seed_everywhere_is_too_few() -> None:
    plan = {name: Planted(plan.shift, ONE) for name, plan in planted().items()}
    choice = chosen(plan)
    assert choice.answer == "too few seeds" and "two seeds" in choice.reason
    assert choice.distances["distance"].isna().all()


def test_answers_and_draws_are_what_they_were_before_the_runs() -> None:
    """The rule was fixed before its runs: its random numbers and their order stay."""
    plan = planted({TORCH: 0.5 * SPREAD, EPS: SPREAD})
    choice = chosen(plan)
    assert choice.by_chance == pytest.approx(20.238488828625645, rel=1e-13)
    assert row(choice, EPS)["nearer"] == 0.1134 and row(choice, DEFAULT)["nearer"] == 0.0
    pd.testing.assert_frame_equal(choice.distances, chosen(plan).distances)


def test_readings_of_one_run_share_its_chance() -> None:
    """Equal in MHA and equal in Full: the same runs, so neither is ever nearer."""
    plan = planted({"unscaled-sd-torch": 0.0, "unscaled-adam-eps": 0.0})
    choice = chosen(plan)
    nearer = choice.distances.set_index("reading")["nearer"]
    assert sorted(nearer[["unscaled-sd-torch", "unscaled-adam-eps"]]) == [0.0, 1.0]
    # Their values count once: four other readings of three seeds and these.
    assert set(choice.deviations["freedom"]) == {2 * 5}


def test_half_a_pair_is_none() -> None:
    rows = make_frames(planted()).diagnoses
    lost = (rows["reading"] == DEFAULT) & (rows["seed"] == 144) & (rows["variant"] == "mha")
    assert row(choose(configured(), rows[~lost]), DEFAULT)["n"] == 2


def test_heads_weigh_by_their_counts() -> None:
    rows = make_frames({DEFAULT: Planted(seeds=ONE)}).diagnoses
    found = calibration(rows).loc[DEFAULT, 142]
    for value in VALUES:
        assert float(back(value.scale, found[value.name])) == pytest.approx(value.paper)
    rows.loc[rows["head"] == 1, "count"] *= 3
    ranks = calibration(rows).loc[(DEFAULT, 142), "L0 effective_rank full"]
    assert math.exp(ranks) == pytest.approx(405.4 * (0.95 + 3 * 1.05) / 4)


def test_seeds_of_the_matrix_are_refused() -> None:
    rows = make_frames({DEFAULT: Planted(seeds=(42,))}).diagnoses
    with pytest.raises(InputError, match="seed 42 is none of"):
        choose(configured(), rows)


def test_a_reading_that_is_not_configured_is_refused() -> None:
    with pytest.raises(InputError, match="'scaled-other' is not configured"):
        chosen(planted({"scaled-other": 0.0}))


def test_the_same_run_under_two_seeds_is_refused() -> None:
    once = make_frames({n: Planted(p.shift, ONE) for n, p in planted().items()}).diagnoses
    again = pd.concat([once, once.assign(seed=143)])
    with pytest.raises(InputError, match="the same in every seed"):
        choose(configured(), again)


def test_shares_of_0_and_1_are_clamped() -> None:
    edges = forward("logit", np.array([0.0, CLAMP / 2, CLAMP, 1.0, 1 + 1e-7]), "x")
    assert np.isfinite(edges).all()
    np.testing.assert_allclose(np.abs(edges), math.log((1 - CLAMP) / CLAMP))
    for wrong in (-0.1, 1.2, math.nan, math.inf):
        with pytest.raises(InputError, match="x is"):
            forward("logit", wrong, "x")
    with pytest.raises(InputError, match="no log"):
        forward("log", 0.0, "x")


def test_the_papers_values_are_those_of_its_table() -> None:
    assert [value.paper for value in VALUES] == pytest.approx(
        [0.2857, 0.0149, 0.0662, 0.0730, 405.4, 216.3, 173.3, 244.2]
    )
    assert DRAWS == 10_000


def asked(plan: dict[str, Planted], **options) -> list[tuple[str, int]]:
    return next_seeds(configured(), make_frames(plan).diagnoses, **options)


def test_first_seeds_come_first() -> None:
    names = [reading.name for reading in configured()]
    bases = [f"{r}-sd-0.02" for r in ("unscaled", "scaled")]
    first = [(n, 142) for n in names] + [(n, s) for n in bases for s in (143, 144)]
    empty = make_frames({DEFAULT: Planted()}).diagnoses.iloc[:0]
    assert next_seeds(configured(), empty) == first
    assert asked({DEFAULT: Planted(seeds=(142, 144))}) == [
        pair for pair in first if pair not in ((DEFAULT, 142), (DEFAULT, 144))
    ]


def test_then_texts_the_nearest_rates_and_the_rest() -> None:
    shifts = dict.fromkeys((reading.name for reading in configured()), FAR)
    shifts |= {"scaled-adam-eps": 0.0, "unscaled-sd-torch": 2 * SPREAD, DEFAULT: 3 * SPREAD}
    shifts |= {"scaled-sd-torch": 4 * SPREAD}
    plan = {n: Planted(s, THREE if n.endswith("0.02") else ONE) for n, s in shifts.items()}
    left = asked(plan)
    assert [name for name, seed in left if seed == 143] == [
        "unscaled-short-books",
        "scaled-short-books",
        "scaled-adam-eps",
        "unscaled-sd-torch",
        "scaled-sd-torch",
        "unscaled-lr-half",
        "scaled-lr-half",
        "unscaled-lr-twice",
        "scaled-lr-twice",
        "unscaled-adam-eps",
    ]
    assert left[:2] == [("unscaled-short-books", 143), ("unscaled-short-books", 144)]
    plan["scaled-short-books"] = Planted(FAR, THREE)
    assert asked(plan) == [pair for pair in left if pair[0] != "scaled-short-books"]


def test_all_that_cannot_be_told_apart_get_seeds_before_the_rates() -> None:
    plan = {r.name: Planted(FAR, ONE) for r in configured()}
    plan |= {f"{r}-sd-0.02": Planted(0.01 * SPREAD) for r in ("unscaled", "scaled")}
    near = ("unscaled-sd-torch", "scaled-sd-torch", "unscaled-adam-eps", "scaled-adam-eps")
    plan |= {name: Planted(k * SPREAD / 50, ONE) for k, name in enumerate(near, 2)}
    names = list(dict.fromkeys(name for name, _ in asked(plan)))
    assert set(names[2:6]) == set(near) and "lr-half" in names[6]


def test_failed_pairs_are_not_asked_for_again() -> None:
    plan = {r.name: Planted(FAR, THREE) for r in configured()}
    plan["scaled-lr-twice"] = Planted(seeds=())
    assert asked(plan) == [("scaled-lr-twice", 142)]
    lost = [("scaled-lr-twice", seed) for seed in THREE]
    assert asked(plan, given_up=lost) == []
