"""A value a pair and statistic, on invented runs with known answers."""

import numpy as np
import pandas as pd
import pytest
from readings_frames import BUDGET, ELSEWHERE, UPDATE_TOKENS, UPDATES, Planted, make_frames

from relation.errors import InputError
from report.values.readings import BY_NAME, INTERVALS, RISES, STATISTICS, logged, pair_values

READING = "unscaled-sd-0.02"


def values_of(plan: dict[str, Planted], **changed: pd.DataFrame) -> pd.Series:
    """Values by statistic, reading and seed; changed: frames in place of the invented ones."""
    frames = vars(make_frames(plan)) | changed
    found = pair_values(frames["runs"], frames["losses"], frames["diagnoses"], frames["probes"])
    return found.set_index(["statistic", "reading", "seed"])["value"]


def one(plan: Planted, **changed: pd.DataFrame) -> pd.Series:
    """The values of one reading's seed 142."""
    return values_of({READING: plan}, **changed).xs((READING, 142), level=(1, 2))


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda statistic: statistic.name)
def test_the_papers_own_values_lie_on_its_side(statistic) -> None:
    if statistic.paper is not None and statistic.side:
        assert statistic.holds(statistic.paper)
    if statistic.side:
        unit = 1e-3
        further = unit if statistic.side == "below" else -unit
        assert statistic.holds(statistic.bound + further) is False
    else:
        assert statistic.holds(0.3) is None
    assert statistic.holds(statistic.bound or 0.0) in (None, statistic.side == "at least")


def test_every_claim_that_readings_can_move_has_a_statistic() -> None:
    assert {s.claim for s in STATISTICS} == {1, 2, 3, 4, 6, 7, 8, 9, 10, 11, None}
    assert len(BY_NAME) == len(STATISTICS)
    assert BY_NAME["final-nll"].paper == pytest.approx(-0.041168)
    assert BY_NAME["pair-won"].paper == 1.0
    assert BY_NAME["l0-anchor"].paper == pytest.approx(28.57 / 3.39)


def test_values_by_hand() -> None:
    rises = dict(zip(RISES, (0.05, 0.03), strict=True))
    found = one(Planted(seeds=(142,), ablations=rises))
    expected = {
        "final-nll": -0.04,
        "pair-won": 1.0,
        "no-count-rise": 0.05,
        "exchange-only-rise": 0.03,
        "l0-self": 0.2857,
        "l0-self-more": 0.2857 - 0.0662,
        "l0-rank-ratio": 405.4 / 173.3,
        "l1-self": 0.0149,
        "l2-exchange": 0.98,
        "beyond-128": 0.07,
        "beyond-256": 0.05,
        "beyond-512": 0.02,
        "sink-1": -0.001,
        "sink-32": 0.01,
        "l0-anchor": 0.2857 / 0.03,
        "l0-lambda": 0.5,
        # The loss falls by 0.04 in 40 of 4,000 tokens.
        **{f"spared-every-{every}": 0.01 for every in INTERVALS},
    }
    assert found.to_dict() == pytest.approx(expected)


def test_layers_count_alike_and_heads_by_their_counts() -> None:
    rows = make_frames({READING: Planted(seeds=(142,))}).diagnoses
    share = ELSEWHERE["exchange_flow"][1]
    at = (rows["variant"] == "full") & (rows["metric"] == "exchange_flow")
    # Below L2 nothing counts; one of the four deep layers halves.
    rows.loc[at & (rows["layer"] < 2), "value"] = 0.0
    rows.loc[at & (rows["layer"] == 5), "value"] /= 2
    found = one(Planted(seeds=(142,)), diagnoses=rows)
    assert found["l2-exchange"] == pytest.approx(share * 3.5 / 4)
    rows.loc[at & (rows["head"] == 1), "count"] *= 3
    found = one(Planted(seeds=(142,)), diagnoses=rows)
    assert found["l2-exchange"] == pytest.approx(share * 3.5 / 4 * (0.95 + 3 * 1.05) / 4)


def test_a_pair_that_never_reaches_the_loss_spares_nothing() -> None:
    found = one(Planted(seeds=(142,), delta=0.01))
    assert found["pair-won"] == 0.0
    assert [found[f"spared-every-{every}"] for every in INTERVALS] == [0.0] * len(INTERVALS)


def test_mha_against_itself_spares_nothing_at_any_interval() -> None:
    """Whatever the interval, the log ends where the run does."""
    found = one(Planted(seeds=(142,), delta=0.0))
    for every in INTERVALS:
        assert found[f"spared-every-{every}"] == pytest.approx(0.0, abs=1e-12)


def test_what_is_not_there_has_no_row() -> None:
    frames = make_frames({READING: Planted()})
    alone = frames.runs[(frames.runs["seed"] != 143) | (frames.runs["variant"] != "mha")]
    found = values_of({READING: Planted()}, runs=alone)
    assert set(found.loc["final-nll"].index) == {(READING, 142), (READING, 144)}
    assert len(found.loc["spared-every-10"]) == 2
    assert len(found.loc["l0-self"]) == 3
    assert "no-count-rise" not in found.index.get_level_values(0)
    none = {name: frame.iloc[:0] for name, frame in vars(frames).items()}
    assert values_of({READING: Planted()}, **none).empty


def test_a_run_that_is_there_twice_is_refused() -> None:
    runs = make_frames({READING: Planted()}).runs
    with pytest.raises(InputError, match="/mha/142 is there twice"):
        one(Planted(), runs=pd.concat([runs, runs]))


def log_of(losses: np.ndarray, last: int = UPDATE_TOKENS) -> pd.DataFrame:
    """A log whose last update has ``last`` tokens."""
    size = np.full(len(losses), UPDATE_TOKENS)
    size[-1] = last
    return pd.DataFrame({"tokens": size.cumsum(), "update_tokens": size, "loss": losses})


def test_a_thin_log_averages_its_points_in_the_window_and_at_least_one() -> None:
    losses = np.random.default_rng(0).normal(size=UPDATES)
    tokens, smoothed = logged(log_of(losses), 10, window=25.0 * UPDATE_TOKENS)
    kept = losses[9::10]
    np.testing.assert_array_equal(tokens, UPDATE_TOKENS * np.arange(10, UPDATES + 1, 10))
    # Of updates 10 apart, three end in the last 25.
    expected = [kept[max(0, k - 2) : k + 1].mean() for k in range(len(kept))]
    np.testing.assert_allclose(smoothed, expected)
    _, alone = logged(log_of(losses), 10, window=UPDATE_TOKENS)
    np.testing.assert_allclose(alone, kept)


def test_a_thin_log_leaves_the_partial_update_out() -> None:
    log = log_of(np.append(np.zeros(UPDATES), 100.0), last=1)
    tokens, smoothed = logged(log, 50, window=1.0)
    assert tokens[-1] == BUDGET and not smoothed.any()
    whole, _ = logged(log, 1, window=1.0)
    assert whole[-1] == BUDGET + 1
