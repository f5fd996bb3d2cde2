"""Pooled deviations, intervals, Holm's correction and what a claim turns on, by hand."""

import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

from relation.errors import InputError
from report.compute.fit import t_quantile
from report.readings.scales import CLAMP, pooled_deviation
from report.readings.statistics import contrasts, holm, intervals, pooled, turns
from report.readings.student import quantile_975, two_sided
from report.readings.values import BY_NAME

BASE = "unscaled-sd-0.02"


def frame(statistic: str, **readings: list[float]) -> pd.DataFrame:
    """Values of readings a, b, ... and of the base, by their order from seed 142."""
    rows = [
        (statistic, BASE if name == "base" else name, 142 + k, value)
        for name, values in readings.items()
        for k, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["statistic", "reading", "seed", "value"])


def test_student_against_its_table_and_closed_forms() -> None:
    for freedom in (1, 2, 30, 31, 200):
        assert quantile_975(freedom) == pytest.approx(t_quantile(freedom), rel=1e-9)
    for t in (0.1, 1.0, 7.0):
        assert two_sided(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t))
        assert two_sided(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert two_sided(0.0, 5) == 1.0
    # The distribution tends to the normal one.
    assert two_sided(1.5, 4001) == pytest.approx(2 * NormalDist().cdf(-1.5), rel=1e-3)


@pytest.mark.parametrize("freedom", [3, 4, 11, 20])
def test_student_against_its_density(freedom: int) -> None:
    x, step = np.linspace(0, 2.3, 200_001, retstep=True)
    density = (1 + x * x / freedom) ** (-(freedom + 1) / 2)
    density *= math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2)
    density /= math.sqrt(freedom * math.pi)
    inside = step * (density.sum() - (density[0] + density[-1]) / 2)
    assert two_sided(2.3, freedom) == pytest.approx(1 - 2 * inside, abs=1e-9)


def test_the_pooled_deviation_by_hand() -> None:
    values = frame("final-nll", a=[1.0, 2.0, 3.0], b=[10.0, 14.0], c=[7.0])
    # Within a 2, within b 8, over 2 + 1 + 0.
    row = pooled(values).iloc[0]
    assert (row["sd"], row["freedom"]) == (pytest.approx(math.sqrt(10 / 3)), 3)
    sd, freedom = pooled_deviation(pd.Series([1.0, 2.0]), pd.Series(["a", "b"]))
    assert math.isnan(sd) and freedom == 0


def test_intervals_take_the_pooled_deviation() -> None:
    found = intervals(frame("final-nll", a=[-0.06, -0.05, -0.04], b=[-0.002], c=[0.2]))
    sd = 0.01
    for reading, mean, n in (("a", -0.05, 3), ("b", -0.002, 1), ("c", 0.2, 1)):
        row = found.set_index("reading").loc[reading]
        assert row["mean"] == pytest.approx(mean) and row["n"] == n
        margin = 4.302653 * sd / math.sqrt(n)
        assert (row["low"], row["high"]) == pytest.approx((mean - margin, mean + margin))
    assert list(found["holds"]) == [True, True, False]
    assert list(found["established"]) == [True, False, True]
    assert list(found["paper_inside"]) == [True, True, False]


def test_without_two_seeds_there_is_no_interval() -> None:
    found = intervals(frame("final-nll", a=[-0.05], b=[0.01]))
    assert list(found["holds"]) == [True, False]
    assert found[["low", "high", "established", "paper_inside"]].isna().all().all()
    other = contrasts(frame("final-nll", a=[-0.05], base=[0.01]), BASE)
    assert other[["se", "low", "high", "p", "p_holm"]].isna().all().all()
    assert not other["established"].any()


def test_intervals_of_shares_lie_on_the_logit() -> None:
    row = intervals(frame("l1-self", a=[0.01, 0.02, 0.0])).iloc[0]
    logits = [math.log(x / (1 - x)) for x in (0.01, 0.02, CLAMP)]
    assert row["mean"] == pytest.approx(1 / (1 + math.exp(-sum(logits) / 3)))
    assert 0 < row["low"] < row["mean"] < row["high"] < 1


def test_a_ratio_is_averaged_as_its_logarithm() -> None:
    row = intervals(frame("l0-rank-ratio", a=[2.0, 8.0])).iloc[0]
    assert row["mean"] == pytest.approx(4.0) and row["low"] * row["high"] == pytest.approx(16.0)


def test_what_has_no_direction_has_no_answer() -> None:
    row = intervals(frame("l0-self", a=[0.2, 0.3, 0.25])).iloc[0]
    assert pd.isna(row["holds"]) and pd.isna(row["established"]) and row["paper_inside"]
    assert turns(frame("l0-self", a=[0.2, 0.3], base=[0.8, 0.9]), BASE).empty


def test_most_pairs_must_spare_tokens() -> None:
    """A pair that never reaches the loss counts as 0, so one that does makes the mean positive."""
    found = intervals(frame("spared-every-1", a=[0.3, 0.0, 0.0], b=[0.1, 0.1, 0.0]))
    assert list(found["holds"]) == [False, True]
    assert list(found["mean"] > 0) == [True, True]


def test_pairs_won_are_counted_only() -> None:
    values = frame("pair-won", a=[1.0, 1.0, 0.0], base=[1.0, 1.0, 1.0])
    found = intervals(values)
    assert list(found["holds"]) == [False, True] and found["low"].isna().all()
    assert contrasts(values, BASE).empty and turns(values, BASE).empty


def test_holm_against_a_published_example() -> None:
    """Four hypotheses; the first and the fourth fall at 5% (Wikipedia, Holm-Bonferroni method)."""
    adjusted = holm(pd.Series([0.01, 0.04, 0.03, 0.005]))
    assert list(adjusted) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert list(holm(pd.Series([0.6, 0.7]))) == [1.0, 1.0]
    with_none = holm(pd.Series([0.01, math.nan, 0.04]))
    assert list(with_none.dropna()) == pytest.approx([0.02, 0.04]) and math.isnan(with_none[1])


def test_a_contrast_by_hand() -> None:
    values = frame("final-nll", a=[1.0, 2.0, 3.0], base=[4.0, 6.0], c=[9.0])
    found = contrasts(values, BASE).set_index("reading")
    sd = math.sqrt((2 + 2) / 3)
    for reading, difference, n in (("a", -3.0, 3), ("c", 4.0, 1)):
        row = found.loc[reading]
        se = sd * math.sqrt(1 / n + 1 / 2)
        assert (row["difference"], row["se"]) == pytest.approx((difference, se))
        assert row["high"] - row["difference"] == pytest.approx(3.182446 * se)
        assert row["p"] == pytest.approx(two_sided(difference / se, 3))
    ordered = found["p"].sort_values()
    assert found["p_holm"][ordered.index[0]] == pytest.approx(2 * ordered.iloc[0])


def test_statistics_of_a_claim_are_one_family() -> None:
    near = {"a": [0.03, 0.01, 0.02], "base": [0.0, 0.01, -0.01]}
    both = pd.concat([frame(name, **near) for name in ("sink-1", "sink-32")])
    alone, together = contrasts(frame("sink-1", **near), BASE), contrasts(both, BASE)
    assert together["p_holm"][0] == pytest.approx(2 * alone["p_holm"][0])
    other = pd.concat([frame("sink-1", **near), frame("beyond-128", **near)])
    assert contrasts(other, BASE)["p_holm"][0] == pytest.approx(alone["p_holm"][0])


def test_a_claim_turns_on_another_answer_that_is_told_apart() -> None:
    values = frame(
        "final-nll",
        base=[-0.05, -0.04, -0.06],
        other=[0.05, 0.04, 0.06],
        same=[-0.35, -0.34, -0.36],
    )
    found = turns(values, BASE).set_index("reading")
    told = contrasts(values, BASE).set_index("reading")["established"]
    # Another answer, told apart; told apart alone is not enough.
    assert told["other"] and told["same"]
    assert dict(found["turns"]) == {"other": True, "same": False}
    # Another answer alone is not enough either: the same means of seeds that scatter.
    scatter = values["seed"].map({142: 0.0, 143: 0.2, 144: -0.2})
    found = turns(values.assign(value=values["value"] + scatter), BASE).set_index("reading")
    assert found.loc["other", "holds"] != found.loc["other", "base_holds"]
    assert not found["turns"].any()
    assert set(found["claim"]) == {BY_NAME["final-nll"].claim}


def test_an_unknown_statistic_is_refused() -> None:
    with pytest.raises(InputError, match="no statistic is called 'other'"):
        pooled(frame("other", a=[1.0]))
