"""The figures of pairs beyond the matrix: which pairs and looks they show, and how much of them."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from further_records import PAIRS, with_further
from test_report_records import make_records

from relation.records import CampaignRecords
from report.figures import further
from report.figures.drawing import NotDrawnError


@pytest.fixture(scope="module")
def records() -> CampaignRecords:
    return with_further(make_records())


def lacking(records: CampaignRecords, *looks: tuple[str, int, int]) -> CampaignRecords:
    """The records without these looks: a variant, a seed and the look's number."""
    probes = records.further_probes
    keys = zip(probes["variant"], probes["seed"], probes["tokens"] // 24_576, strict=True)
    return replace(records, further_probes=probes[[key not in looks for key in keys]])


def test_the_figure_shows_every_pair_and_the_mean_of_the_further_ones(records) -> None:
    (axes,) = further.further_pairs(records).axes
    matrix, beyond = (line for line in axes.lines if line.get_marker() == "o")
    assert list(matrix.get_ydata()) == pytest.approx([-0.1, -0.09, -0.08])
    assert list(beyond.get_ydata()) == pytest.approx([-0.01, -0.04, 0.02, -0.01])
    assert max(matrix.get_xdata()) + 1 < min(beyond.get_xdata())
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["42", "43", "44", "45", "46", "47", "48"]
    assert axes.get_title() == ("10M: mean −0.0100 [−0.0490, +0.0290], n = 4; the paper’s −0.0412")
    (band,) = (patch for patch in axes.collections if "Poly" in type(patch).__name__)
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((-0.04897, 0.02897), abs=1e-4)
    alone = replace(records, runs=records.runs.iloc[:0])
    (axes,) = further.further_pairs(alone).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["45", "46", "47", "48"]
    one_pair = with_further(make_records(), {45: PAIRS[45]})
    assert "[" not in further.further_pairs(one_pair).axes[0].get_title()


def test_its_rows_are_the_records_behind_the_figure(records) -> None:
    sources = further.PAIRS.sources(records)
    assert len(sources) == 2 * (4 + 3) and not any("/49/" in source for source in sources)
    looks = further.CURVES.sources(records)
    assert len(looks) == 2 * 4 and all(source.endswith("/probes.parquet") for source in looks)


def test_the_curves_show_each_pair_and_the_mean_with_its_interval(records) -> None:
    """Differences −0.4, −0.3, −0.2 and −0.1, each plus −0.01, 0, 0.01 and 0.02 by seed."""
    (axes,) = further.further_curves(records).axes
    *pairs, mean, _ = axes.lines
    assert len(pairs) == 4
    assert list(pairs[0].get_ydata()) == pytest.approx([-0.41, -0.31, -0.21, -0.11])
    assert list(mean.get_xdata()) == [24_576, 49_152, 73_728, 98_304]
    assert list(mean.get_ydata()) == pytest.approx([-0.395, -0.295, -0.195, -0.095])
    (band,) = axes.collections
    margin = 3.182446 * statistics.stdev([-0.01, 0, 0.01, 0.02]) / 2
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((-0.395 - margin, -0.095 + margin))
    assert axes.get_title() == "10M, n = 4"
    low, high = axes.get_ylim()
    assert low < -0.395 - margin and high > 0
    (alone,) = further.further_curves(with_further(make_records(), {45: PAIRS[45]})).axes
    assert alone.get_title() == "10M, n = 1" and not alone.collections
    unlike = replace(records, further_probes=records.further_probes.assign(alike=False))
    with pytest.raises(NotDrawnError, match="no look at a further pair"):
        further.further_curves(unlike)


def test_a_pair_without_a_look_of_the_others_is_left_out_whole(records) -> None:
    """Not the look, for all: a mean is over the same pairs from the first look to the last."""
    assert "Left out" not in further.CURVES.title(records)
    uneven = lacking(records, ("full", 46, 2))
    (axes,) = further.further_curves(uneven).axes
    *pairs, mean, _ = axes.lines
    assert len(pairs) == 3 and axes.get_title() == "10M, n = 3"
    assert list(mean.get_xdata()) == [24_576, 49_152, 73_728, 98_304]
    assert further.CURVES.title(uneven).endswith("they lack looks that others have: 10M/46.")
    assert not any("/46/" in source for source in further.CURVES.sources(uneven))
    diverged = records.further_probes.query("seed == 45").index[-1]
    probes = records.further_probes.copy()
    probes.loc[diverged, "value"] = math.nan
    (axes,) = further.further_curves(replace(records, further_probes=probes)).axes
    assert axes.get_title() == "10M, n = 3"


def test_pairs_without_a_common_look_are_not_drawn(records) -> None:
    seeds = (45, 46, 47, 48)
    apart = lacking(records, *(("full", seed, look) for look, seed in enumerate(seeds, 1)))
    odd = [(("mha", "full")[look % 2], seed, look) for seed in seeds for look in (1, 2, 3, 4)]
    for uneven in (apart, lacking(records, *odd)):
        with pytest.raises(NotDrawnError, match="no further pair that has every look of the other"):
            further.further_curves(uneven)


def test_the_look_before_training_is_not_shown(records) -> None:
    first = records.further_probes.query("tokens == 24_576").assign(tokens=0, value=11.0)
    before = replace(records, further_probes=pd.concat([first, records.further_probes]))
    (axes,) = further.further_curves(before).axes
    assert all(line.get_xdata()[0] == 24_576 for line in axes.lines[:-1])


def test_no_pair_leaves_the_panel_after_the_first_fifth() -> None:
    """Of ten looks the first alone may be outside, and of so many pairs none is in the band."""
    seeds = tuple(range(45, 57))
    many = with_further(make_records(), dict.fromkeys(seeds, PAIRS[45]), planned=seeds)
    probes = many.further_probes[many.further_probes["tokens"] == 24_576]
    probes = pd.concat([probes.assign(tokens=150 * look) for look in range(1, 11)])
    alone = (probes["variant"] == "full") & (probes["seed"] == 56)
    for tokens, apart in ((150, -9.0), (300, 0.9)):
        probes["value"] += apart * (alone & (probes["tokens"] == tokens))
    (axes,) = further.further_curves(replace(many, further_probes=probes)).axes
    low, high = axes.get_ylim()
    pairs = np.stack([line.get_ydata() for line in axes.lines[:-2]])
    assert pairs[:, 0].min() < low < pairs[:, 1:].min() and pairs[:, 1:].max() < high
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert low < heights.min() and heights.max() < pairs[:, 1].max()
    assert "may leave the panel before 20% of the budget" in further.CURVES.title(many)
