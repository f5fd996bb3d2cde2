"""The figures of the readings: what they show of invented records, and of partial ones."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from readings_records import BASES, Invented, described, invented
from test_report_records import make_records

from relation.records import CampaignRecords
from report.figures import READINGS, draw_figures
from report.figures.drawing import NotDrawnError
from report.figures.readings.look import RESIDUAL_COLOUR
from report.latex import escape
from report.readings.study import study
from report.readings.values import INTERVALS, STATISTICS
from report.readings.words import PREFIX
from report.style import INK

BY_NAME = {drawing.name: drawing for drawing in READINGS}


def of(given: Invented | None = None) -> CampaignRecords:
    return replace(make_records(), readings=invented(given))


@pytest.fixture(scope="module")
def records() -> CampaignRecords:
    return of()


def draw(records: CampaignRecords, name: str):
    return BY_NAME[PREFIX + name].draw(records)


def points(axes, colour=None):
    """Single points of a panel: place, height, filled."""
    found = [
        line
        for line in axes.lines
        if len(line.get_xdata()) == 1 and line.get_marker() in ("o", "s")
        if colour is None or line.get_color() == colour
    ]
    return sorted(
        (*map(float, line.get_xydata()[0]), line.get_markerfacecolor() != "none") for line in found
    )


def test_every_statistic_has_a_curve_and_every_figure_words(records) -> None:
    assert {PREFIX + statistic.name for statistic in STATISTICS} <= set(BY_NAME)
    for drawing in READINGS:
        title = drawing.title if isinstance(drawing.title, str) else drawing.title(records)
        assert "U+" not in escape(title) and drawing.alt and title.endswith(".")
        assert drawing.sources(records) and set(drawing.sources(records)) <= set(
            records.readings.sources
        )


def test_a_curve_is_sorted_and_marks_what_is_established(records) -> None:
    above, below = draw(records, "final-nll").axes
    shown = points(above)
    assert [x for x, _, _ in shown] == list(range(26))
    heights = [y for _, y, _ in shown]
    assert heights == sorted(heights) and heights[0] == pytest.approx(-0.075)
    rows = study(records.readings).of("final-nll").sort_values("mean", kind="stable")
    assert [filled for *_, filled in shown] == list(rows["established"].astype(bool))
    dashed = [line for line in above.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == [pytest.approx(-0.041168)]
    assert any(np.ptp(line.get_ydata()) == 0 and line.get_ydata()[0] == 0 for line in above.lines)
    labels = [label.get_text() for label in below.get_yticklabels()]
    assert labels[:3] == ["unscaled", "scaled", "sd-0.02"] and set(labels[-3:]) == {
        "lr-half", "lr-twice", "short-books",
    }  # fmt: skip
    assert len(points(below)) == 2 * 26, "a residual scale and a choice each"
    beside = [text.get_text() for text in below.texts if text.get_text().startswith("beside")]
    assert beside == ["beside: text", "beside: learning rate"]


def test_triangles_stand_where_the_answer_turns() -> None:
    names = [reading["name"] for reading in described()]
    delta = dict.fromkeys(names, -0.065) | {"scaled-adam-eps": 0.065}
    turned = of(Invented(seeds=dict.fromkeys(names, (142, 143, 144)), delta=delta))
    above, _ = draw(turned, "final-nll").axes
    triangles = [line.get_xdata()[0] for line in above.lines if line.get_marker() == "^"]
    assert triangles == [25], "the highest value of 26"


def test_without_a_second_seed_a_curve_has_no_interval_and_nothing_filled() -> None:
    one = of(Invented(seeds={}))
    above, _ = draw(one, "final-nll").axes
    assert not above.collections and not any(filled for *_, filled in points(above))


def test_the_advantage_stands_over_the_baselines_own_loss(records) -> None:
    (axes,) = draw(records, "advantage").axes
    for residual, x, y in (("unscaled", 3.445, -0.065), ("scaled", 3.346, -0.012)):
        found = points(axes, RESIDUAL_COLOUR[residual])
        assert any(np.allclose((a, b), (x, y)) for a, b, _ in found), residual
    named = {text.get_text() for text in axes.texts}
    assert "sd-torch" in named and "short-books" not in named


def test_rates_are_drawn_where_there_are_several(records) -> None:
    figure = draw(records, "learning-rate")
    assert [axes.get_title() for axes in figure.axes[:2]] == ["unscaled", "scaled by 1/√(2L)"]
    lines = [line for line in figure.axes[2].lines if len(line.get_xdata()) == 3]
    assert any(np.allclose(line.get_ydata(), (-0.075, -0.065, -0.055)) for line in lines)
    few = of(Invented(keep=[*BASES, "scaled-lr-twice"]))
    assert [axes.get_title() for axes in draw(few, "learning-rate").axes] == [
        "scaled by 1/√(2L)",
        "",
    ]
    with pytest.raises(NotDrawnError, match="two learning rates"):
        draw(of(Invented(keep=BASES)), "learning-rate")


def test_the_base_is_thick_while_it_trains(records) -> None:
    for name, panels, value in (("validation", 2, -0.065), ("formation", 4, 0.915)):
        figure = draw(records, name)
        assert len(figure.axes) == panels
        thick = [line for line in figure.axes[0].lines if line.get_linewidth() == 2.0]
        assert len(thick) == 1 and to_hex(thick[0].get_color()) == RESIDUAL_COLOUR["unscaled"]
        assert thick[0].get_ydata()[-1] == pytest.approx(value, abs=0.01)
    probes = records.readings.probes
    lacking = replace(records.readings, probes=probes[probes["metric"] != "validation_nll"])
    with pytest.raises(NotDrawnError, match="looks at the validation text"):
        draw(replace(records, readings=lacking), "validation")


def test_intervals_of_logging_are_the_statistics_of_claim_3(records) -> None:
    axes = draw(records, "logging").axes[0]
    (base,) = (line for line in axes.lines if line.get_marker() == "o")
    found = study(records.readings)
    asked = [100 * found.of(f"spared-every-{e}")["mean"][BASES[0]] for e in INTERVALS]
    assert list(base.get_xdata()) == list(INTERVALS) and list(base.get_ydata()) == asked


def test_no_word_of_a_legend_is_in_the_colour_of_its_line(records) -> None:
    legend = draw(records, "advantage").axes[0].get_legend()
    assert {to_hex(word.get_color()) for word in legend.get_texts()} == {INK}


def test_partial_records_draw_what_they_have_and_name_what_they_lack(tmp_path) -> None:
    entries = draw_figures(of(Invented(seeds={}, keep=["scaled-sd-0.02"])), tmp_path, READINGS)
    reasons = {entry["name"]: entry["reason"] for entry in entries if not entry["file"]}
    assert set(reasons) == {PREFIX + "learning-rate"}
    assert draw_figures(make_records(), tmp_path, READINGS) == []
    assert not list((tmp_path / "figures").glob("readings-*"))
