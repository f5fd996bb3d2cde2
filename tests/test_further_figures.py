"""The figures of pairs beyond the matrix: which pairs and looks they show, and how much of them."""

import math
import statistics
from dataclasses import replace

import pandas as pd
import pytest
from further_records import PAIRS, further_campaign, with_further
from test_report_records import make_records

from report.figures.drawing import NotDrawnError
from report.figures.further import further_curves, further_pairs
from report.values.frames import CampaignRecords

TOKENS = [24_576, 49_152, 73_728, 98_304]


@pytest.fixture(scope="module")
def records() -> CampaignRecords:
    return further_campaign()


def lacking(records: CampaignRecords, *looks: tuple[str, int, int]) -> CampaignRecords:
    """The records without these looks: a variant, a seed and the look's number."""
    probes = records.further_probes
    keys = zip(probes["variant"], probes["seed"], probes["tokens"] // 24_576, strict=True)
    return replace(records, further_probes=probes[[key not in looks for key in keys]])


def one_panel(drawing, records):
    (axes,) = drawing.draw(records).axes
    return axes


def heights(shaded) -> tuple[float, float]:
    """The least and the greatest height of a band."""
    vertices = shaded.get_paths()[0].vertices[:, 1]
    return vertices.min(), vertices.max()


def seeds(axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def test_the_figure_shows_every_pair_and_the_mean_of_the_further_ones(records) -> None:
    axes = one_panel(further_pairs, records)
    matrix, beyond = (line for line in axes.lines if line.get_marker() == "o")
    assert list(matrix.get_ydata()) == pytest.approx([-0.1, -0.09, -0.08])
    assert list(beyond.get_ydata()) == pytest.approx([-0.01, -0.04, 0.02, -0.01])
    assert seeds(axes) == ["42", "43", "44", "45", "46", "47", "48"]
    assert axes.get_title() == "10M: mean −0.0100 [−0.0490, +0.0290], n = 4; the paper’s −0.0412"
    (shaded,) = (patch for patch in axes.collections if "Poly" in type(patch).__name__)
    assert heights(shaded) == pytest.approx((-0.04897, 0.02897), abs=1e-4)
    alone = replace(records, runs=records.runs.iloc[:0])
    assert seeds(one_panel(further_pairs, alone)) == ["45", "46", "47", "48"]
    one_pair = with_further(make_records(), {45: PAIRS[45]})
    assert "[" not in one_panel(further_pairs, one_pair).get_title()


def test_its_rows_are_the_records_behind_the_figure(records) -> None:
    sources = further_pairs.sources(records)
    assert len(sources) == 2 * (4 + 3) and not any("/49/" in source for source in sources)
    looks = further_curves.sources(records)
    assert len(looks) == 2 * 4 and all(source.endswith("/probes.parquet") for source in looks)


def test_the_curves_show_each_pair_and_the_mean_with_its_interval(records) -> None:
    """Differences −0.4, −0.3, −0.2 and −0.1, each plus −0.01, 0, 0.01 and 0.02 by seed.

    The look before training is not shown.
    """
    first = records.further_probes.query("tokens == 24_576").assign(tokens=0, value=11.0)
    before = replace(records, further_probes=pd.concat([first, records.further_probes]))
    axes = one_panel(further_curves, before)
    *pairs, mean, _ = axes.lines
    assert len(pairs) == 4
    assert list(pairs[0].get_ydata()) == pytest.approx([-0.41, -0.31, -0.21, -0.11])
    assert list(mean.get_xdata()) == TOKENS
    assert list(mean.get_ydata()) == pytest.approx([-0.395, -0.295, -0.195, -0.095])
    (shaded,) = axes.collections
    margin = 3.182446 * statistics.stdev([-0.01, 0, 0.01, 0.02]) / 2
    assert heights(shaded) == pytest.approx((-0.395 - margin, -0.095 + margin))
    assert axes.get_title() == "10M, n = 4"
    low, high = axes.get_ylim()
    assert low < -0.395 - margin and high > 0
    alone = one_panel(further_curves, with_further(make_records(), {45: PAIRS[45]}))
    assert alone.get_title() == "10M, n = 1" and not alone.collections


def test_a_pair_without_a_look_of_the_others_is_left_out_whole(records) -> None:
    """Not the look, for all: a mean is over the same pairs from the first look to the last."""
    assert "Left out" not in further_curves.title(records)
    uneven = lacking(records, ("full", 46, 2))
    axes = one_panel(further_curves, uneven)
    assert axes.get_title() == "10M, n = 3" and list(axes.lines[-2].get_xdata()) == TOKENS
    assert further_curves.title(uneven).endswith("they lack looks that others have: 10M/46.")
    assert not any("/46/" in source for source in further_curves.sources(uneven))
    diverged = records.further_probes.copy()
    diverged.loc[diverged.query("seed == 45").index[-1], "value"] = math.nan
    axes = one_panel(further_curves, replace(records, further_probes=diverged))
    assert axes.get_title() == "10M, n = 3"


def test_pairs_without_a_common_look_are_not_drawn(records) -> None:
    unlike = replace(records, further_probes=records.further_probes.assign(alike=False))
    with pytest.raises(NotDrawnError, match="no look at a further pair"):
        further_curves.draw(unlike)
    apart = lacking(records, *(("full", seed, look) for look, seed in enumerate(PAIRS, 1)))
    odd = [(("mha", "full")[look % 2], seed, look) for seed in PAIRS for look in (1, 2, 3, 4)]
    for uneven in (apart, lacking(records, *odd)):
        with pytest.raises(NotDrawnError, match="no further pair that has every look of the other"):
            further_curves.draw(uneven)


def test_no_pair_leaves_the_panel_after_the_first_fifth() -> None:
    """Of ten looks the first alone may be outside, and of so many pairs none is in the band."""
    planned = tuple(range(45, 57))
    many = with_further(make_records(), dict.fromkeys(planned, PAIRS[45]), planned=planned)
    probes = many.further_probes[many.further_probes["tokens"] == 24_576]
    probes = pd.concat([probes.assign(tokens=150 * look) for look in range(1, 11)])
    alone = (probes["variant"] == "full") & (probes["seed"] == 56)
    for tokens, apart in ((150, -9.0), (300, 0.9)):
        probes["value"] += apart * (alone & (probes["tokens"] == tokens))
    axes = one_panel(further_curves, replace(many, further_probes=probes))
    low, high = axes.get_ylim()
    first, *later = zip(*(line.get_ydata() for line in axes.lines[:-2]), strict=True)
    assert min(first) < low < min(map(min, later)) and max(map(max, later)) < high
    least, greatest = heights(axes.collections[0])
    assert low < least and greatest < max(map(max, later))
    assert "may leave the panel before 20% of the budget" in further_curves.title(many)
