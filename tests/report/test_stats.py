"""Statistics compared with hand-made values and with scipy."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from report import stats

A = [3.1, 2.9, 3.4, 3.3]


def test_mean_has_the_t_interval_of_its_sample() -> None:
    mean = stats.mean(A)
    ends = scipy.stats.t.interval(0.95, 3, np.mean(A), scipy.stats.sem(A))
    assert (mean.low, mean.high) == pytest.approx(ends)
    assert (mean.n, mean.sd) == (4, pytest.approx(np.std(A, ddof=1)))
    assert mean.p == pytest.approx(scipy.stats.ttest_1samp(A, 0).pvalue)
    alone = stats.mean([2.0])
    assert (alone.value, alone.n) == (2.0, 1) and math.isnan(alone.low)


@pytest.mark.parametrize("value, equal", [(0.0, True), (0.009, False), (-0.02, False)])
def test_equivalence_is_two_one_sided_tests(value: float, equal: bool) -> None:
    sample = value + np.array([-0.006, -0.002, 0.0, 0.001, 0.002, 0.005])
    p = stats.mean(sample).within(0.01)
    lower = scipy.stats.ttest_1samp(sample, -0.01, alternative="greater").pvalue
    upper = scipy.stats.ttest_1samp(sample, 0.01, alternative="less").pvalue
    assert p == pytest.approx(max(lower, upper))
    assert (p < 0.05) is equal
    assert math.isnan(stats.mean([1.0]).within(0.01))


def test_holm_corrects_in_steps() -> None:
    assert stats.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert stats.holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    with_none = stats.holm([0.02, math.nan, 0.03])
    assert with_none[0] == pytest.approx(0.06) and math.isnan(with_none[1])


def test_smoothing_weighs_updates_by_their_tokens_in_the_window() -> None:
    # Updates of 10, 10 and 5 tokens (partial). The window of 12 cuts an update.
    log = pd.DataFrame({"tokens": [10, 20, 25], "loss": [4.0, 2.0, 1.0]})
    smoothed = stats.smoothed(log, 12)
    assert smoothed.to_list() == pytest.approx([4.0, (2 * 4 + 10 * 2) / 12, (7 * 2 + 5 * 1) / 12])
    assert smoothed.index.to_list() == [10, 20, 25]


def test_crossing_interpolates_and_takes_the_first() -> None:
    tokens = [10, 20, 30, 40]
    assert stats.crossing(pd.Series([4.0, 2.0, 3.0, 1.0], tokens), 2.5) == pytest.approx(17.5)
    assert stats.crossing(pd.Series([2.0, 1.0, 1.0, 1.0], tokens), 2.5) == 10
    assert stats.crossing(pd.Series([4.0, 3.0, 3.0, 3.0], tokens), 2.5) is None


def test_median_interval_is_of_order_statistics() -> None:
    values = [8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0]
    median = stats.median(values)
    assert (median.value, median.low, median.high) == (4.5, 1.0, 8.0)
    # With 8 values, P(Binomial(8, 1/2) = 0) is 0.4% on each side. With 5 it is too large.
    assert math.isnan(stats.median(values[:5]).low)


def test_ratio_is_taken_round_by_round_or_of_medians() -> None:
    over = {"samples": [2.0, 4.0, 6.0, 8.0, 10.0, 12.0], "alone": False}
    under = {"samples": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "alone": False}
    together = stats.median_ratio(over, under)
    assert (together.value, together.low, together.high) == (2.0, 2.0, 2.0)
    apart = stats.median_ratio(over, under | {"alone": True})
    assert (apart.value, apart.low, apart.high) == (2.0, 2.0 / 6.0, 12.0 / 1.0)
    with pytest.raises(ValueError):
        stats.median_ratio(over, under | {"samples": [1.0, 2.0, 3.0]})


def test_long_windows_are_compared_with_the_same_tokens_of_the_same_seed() -> None:
    rows = [(42, 0, 4.0, 4.5), (42, 64, 3.0, 3.75), (43, 0, 4.5, 4.75), (43, 64, 3.5, 3.25)]
    rows = pd.DataFrame(rows, columns=["seed", "first", "apart", "whole"])
    rows = rows.melt(["seed", "first"], var_name="reading", value_name="nll")
    cost = stats.length_cost(rows.assign(scale="10M", variation="base", variant="full"))
    assert cost.sort_values(["seed", "first"])["value"].to_list() == [0.5, 0.75, 0.25, -0.25]


def test_recall_is_the_share_of_all_queries_at_the_chosen_rate() -> None:
    rows = [(16, 8, 2, True), (16, 4, 4, True), (16, 8, 8, False), (64, 100, 10, True)]
    recall = pd.DataFrame(rows, columns=["length", "queries", "right", "chosen"])
    shares = stats.recall_shares(recall.assign(mixer="mha", width=32, seed=1))
    assert shares.to_list() == [0.5, 0.1]


def test_bits_per_character_count_the_characters_that_each_run_read() -> None:
    """A split that is cut to a number of tokens has more characters at a larger vocabulary."""
    runs = pd.DataFrame({
        "final_nll": [math.log(2), math.log(2), 1.0],
        "corpus_fingerprint": "text",
        "validation_tokens": 100,
        "validation_characters": [200, 400, None],
    })  # fmt: skip
    assert stats.bits_per_character(runs).tolist() == pytest.approx(
        [0.5, 0.25, math.nan], nan_ok=True
    )
