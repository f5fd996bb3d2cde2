"""Pooled deviations, intervals, Holm's correction and what a claim turns on, by hand."""

import math

import pandas as pd
import pytest

from relation.errors import InputError
from report.judge.readings_statistics import compare, holm
from report.values.scales import CLAMP, pooled_deviation

BASE = "unscaled-sd-0.02"


def frame(statistic: str, **readings: list[float]) -> pd.DataFrame:
    """Values of readings a, b, ... and of the base, by their order from seed 142."""
    rows = [
        (statistic, BASE if name == "base" else name, 142 + k, value)
        for name, values in readings.items()
        for k, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["statistic", "reading", "seed", "value"])


def compared(statistic: str, **readings: list[float]) -> pd.DataFrame:
    return compare(frame(statistic, **readings), BASE).set_index("reading")


def test_the_pooled_deviation_by_hand() -> None:
    values = frame("final-nll", a=[1.0, 2.0, 3.0], b=[10.0, 14.0], c=[7.0])
    # Within a 2, within b 8, over 2 + 1 + 0.
    found = pooled_deviation(values["value"], values["reading"])
    assert found == (pytest.approx(math.sqrt(10 / 3)), 3)
    sd, freedom = pooled_deviation(pd.Series([1.0, 2.0]), pd.Series(["a", "b"]))
    assert math.isnan(sd) and freedom == 0


def test_intervals_take_the_pooled_deviation() -> None:
    found = compared("final-nll", a=[-0.06, -0.05, -0.04], b=[-0.002], c=[0.2])
    for reading, mean, n in (("a", -0.05, 3), ("b", -0.002, 1), ("c", 0.2, 1)):
        row = found.loc[reading]
        assert row["mean"] == pytest.approx(mean) and row["n"] == n
        margin = 4.302653 * 0.01 / math.sqrt(n)
        assert (row["low"], row["high"]) == pytest.approx((mean - margin, mean + margin))
    assert list(found["holds"]) == [True, True, False]
    assert list(found["established"]) == [True, False, True]
    assert list(found["paper_inside"]) == [True, True, False]
    assert found[["difference", "p", "told_apart", "turns"]].isna().all().all(), "no base"


def test_without_two_seeds_there_is_no_interval() -> None:
    found = compared("final-nll", a=[-0.05], base=[0.01])
    assert list(found["holds"]) == [True, False]
    missing = ["low", "high", "established", "paper_inside", "se", "p", "p_holm"]
    assert found[missing].isna().all().all()
    assert found.loc["a", "difference"] == pytest.approx(-0.06)
    assert not found.loc["a", "told_apart"] and not found.loc["a", "turns"]


def test_means_are_taken_on_the_statistics_scale() -> None:
    """Of shares on the logit, of ratios on the logarithm."""
    share = compared("l1-self", a=[0.01, 0.02, 0.0]).loc["a"]
    logits = [math.log(x / (1 - x)) for x in (0.01, 0.02, CLAMP)]
    assert share["mean"] == pytest.approx(1 / (1 + math.exp(-sum(logits) / 3)))
    assert 0 < share["low"] < share["mean"] < share["high"] < 1
    ratio = compared("l0-rank-ratio", a=[2.0, 8.0], base=[1.0]).loc["a"]
    assert ratio["mean"] == pytest.approx(4.0) and ratio["low"] * ratio["high"] == pytest.approx(16)
    assert ratio["difference"] == pytest.approx(math.log(4))


def test_what_has_no_direction_has_no_answer() -> None:
    found = compared("l0-self", a=[0.2, 0.3], base=[0.8, 0.9])
    assert found[["holds", "established", "turns"]].isna().all().all()
    assert found.loc["a", "paper_inside"] and found.loc["a", "told_apart"]


def test_most_pairs_must_spare_tokens() -> None:
    """A pair that never reaches the loss counts as 0, so one that does makes the mean positive."""
    found = compared("spared-every-1", a=[0.3, 0.0, 0.0], b=[0.1, 0.1, 0.0])
    assert list(found["holds"]) == [False, True] and (found["mean"] > 0).all()


def test_pairs_won_are_counted_only() -> None:
    found = compared("pair-won", a=[1.0, 1.0, 0.0], base=[1.0, 1.0, 1.0])
    assert list(found["holds"]) == [False, True]
    assert found[["low", "difference", "told_apart", "turns"]].isna().all().all()


def test_holm_against_a_published_example() -> None:
    """Four hypotheses; the first and the fourth fall at 5% (Wikipedia, Holm-Bonferroni method)."""
    assert list(holm(pd.Series([0.01, 0.04, 0.03, 0.005]))) == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )
    assert list(holm(pd.Series([0.6, 0.7]))) == [1.0, 1.0]
    with_none = holm(pd.Series([0.01, math.nan, 0.04]))
    assert list(with_none.dropna()) == pytest.approx([0.02, 0.04]) and math.isnan(with_none[1])


def test_a_contrast_by_hand() -> None:
    found = compared("final-nll", a=[1.0, 2.0, 3.0], base=[4.0, 6.0], c=[9.0])
    sd = math.sqrt((2 + 2) / 3)
    for reading, difference, n in (("a", -3.0, 3), ("c", 4.0, 1)):
        row = found.loc[reading]
        se = sd * math.sqrt(1 / n + 1 / 2)
        assert (row["difference"], row["se"]) == pytest.approx((difference, se))
        assert row["difference_high"] - difference == pytest.approx(3.182446 * se)
        t = abs(difference) / se
        # Student's distribution of 3 degrees of freedom in closed form.
        tail = math.atan(t / math.sqrt(3)) + math.sqrt(3) * t / (3 + t * t)
        assert row["p"] == pytest.approx(1 - 2 / math.pi * tail)
    assert found["p_holm"].min() == pytest.approx(2 * found["p"].min())
    assert pd.isna(found.loc[BASE, "difference"]) and pd.isna(found.loc[BASE, "told_apart"])


def test_statistics_of_a_claim_are_one_family() -> None:
    near = {"a": [0.03, 0.01, 0.02], "base": [0.0, 0.01, -0.01]}

    def corrected(*statistics: str) -> float:
        both = pd.concat([frame(name, **near) for name in statistics])
        rows = compare(both, BASE).set_index(["statistic", "reading"])
        return rows.loc[(statistics[0], "a"), "p_holm"]

    alone = corrected("sink-1")
    assert corrected("sink-1", "sink-32") == pytest.approx(2 * alone)
    assert corrected("sink-1", "beyond-128") == pytest.approx(alone)


def test_a_claim_turns_on_another_answer_that_is_told_apart() -> None:
    readings = {"base": [-0.05, -0.04, -0.06], "other": [0.05, 0.04, 0.06]}
    readings["same"] = [-0.35, -0.34, -0.36]
    found = compared("final-nll", **readings)
    # Another answer, told apart; told apart alone is not enough.
    assert found.loc[["other", "same"], "told_apart"].all()
    assert found.loc["other", "turns"] and not found.loc["same", "turns"]
    # Another answer alone is not enough either: the same means of seeds that scatter.
    scatter = {n: [v[0], v[1] + 0.2, v[2] - 0.2] for n, v in readings.items()}
    found = compared("final-nll", **scatter)
    assert not found.loc["other", "holds"] and found.loc[BASE, "holds"]
    assert not found["turns"].any()


def test_an_unknown_statistic_is_refused() -> None:
    with pytest.raises(InputError, match="no statistic is called 'other'"):
        compared("other", a=[1.0])
