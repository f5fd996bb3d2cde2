"""The figures of the readings: what they show of invented records, and of partial ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from readings_records import BASES, TURNED, Invented, invented
from test_report_records import make_records

from report.figures import READINGS, draw_figures, write_figures
from report.figures.drawing import NotDrawnError
from report.figures.readings import RESIDUAL_COLOUR
from report.judge.readings_study import study
from report.judge.readings_words import PREFIX
from report.values.frames import CampaignRecords
from report.values.readings import INTERVALS, STATISTICS

BY_NAME = {drawing.name: drawing for drawing in READINGS}


def of(given: Invented | None = None) -> CampaignRecords:
    return replace(make_records(), readings=invented(given))


@pytest.fixture(scope="module")
def records() -> CampaignRecords:
    return of()


def draw(records: CampaignRecords, name: str):
    return BY_NAME[PREFIX + name].draw(records)


def points(axes) -> list[tuple[float, float, bool]]:
    """The readings' points of a panel: place, height, filled."""
    lines = (line for line in axes.lines if line.get_marker() in ("o", "s"))
    return sorted(
        (*place, line.get_markerfacecolor() != "none")
        for line in lines
        if line.get_color() in RESIDUAL_COLOUR.values() and line.get_markersize() > 3
        for place in line.get_xydata()
    )


def test_every_statistic_has_a_curve_and_every_figure_words(records) -> None:
    assert {PREFIX + statistic.name for statistic in STATISTICS} <= set(BY_NAME)
    for drawing in READINGS:
        assert drawing.title and drawing.alt and drawing.sources(records)
        assert set(drawing.sources(records)) <= set(records.readings.sources)


def test_a_curve_is_sorted_and_fills_what_is_established(records) -> None:
    above, below = draw(records, "final-nll").axes
    rows = study(records.readings).of("final-nll").sort_values("mean", kind="stable")
    shown = points(above)
    assert [x for x, _, _ in shown] == list(range(26))
    assert [y for _, y, _ in shown] == list(rows["mean"])
    assert [filled for *_, filled in shown] == list(rows["established"])
    dashed = [line.get_ydata()[0] for line in above.lines if line.get_linestyle() == "--"]
    assert dashed == [pytest.approx(-0.041168)]
    assert len(points(below)) == 2 * 26, "a residual scale and a choice each"
    alone, _ = draw(of(Invented(seeds={})), "final-nll").axes
    assert not alone.collections and not any(filled for *_, filled in points(alone))


def test_a_triangle_stands_where_the_answer_turns() -> None:
    above, _ = draw(of(TURNED), "final-nll").axes
    triangles = [line.get_xdata()[0] for line in above.lines if line.get_marker() == "^"]
    assert triangles == [25], "the highest value of 26"


def test_self_flow_stands_over_what_the_embedding_weighs_at_the_start(records) -> None:
    against_both, against_output = draw(records, "start").axes
    self_flow = study(records.readings).of("l0-self")["mean"]
    for name, *ratios in (
        ("unscaled-sd-0.02", 0.1302, 1),
        ("unscaled-sd-rsqrt-d", 0.0510, 1),
        ("unscaled-embedding-sd", 0.3322, 50 / 384**0.5),
        ("scaled-sd-0.02", 0.4511, 12**0.5),
        ("scaled-embedding-times-sqrt-d", 8.837, (12 * 384) ** 0.5),
    ):
        for axes, ratio in zip((against_both, against_output), ratios, strict=True):
            shown = points(axes)
            assert len(shown) == len(self_flow)
            at = ratio, self_flow[name]
            assert any(np.allclose(point[:2], at, rtol=1e-3) for point in shown)
            assert {text.get_text() for text in axes.texts} >= {"lr-half", "lr-twice"}
    assert "paper" in {text.get_text() for text in against_output.texts}


def test_the_advantage_stands_over_the_baselines_own_loss(records) -> None:
    figure = draw(records, "advantage")
    for axes, at in zip(figure.axes, ((3.445, -0.065), (3.346, -0.012)), strict=True):
        assert any(np.allclose(point[:2], at) for point in points(axes))
        named = {text.get_text() for text in axes.texts}
        assert "sd-torch" in named and "short-books" not in named


def test_rates_are_drawn_where_there_are_several(records) -> None:
    figure = draw(records, "learning-rate")
    lines = [line for line in figure.axes[2].lines if len(line.get_xdata()) == 3]
    assert any(np.allclose(line.get_ydata(), (-0.075, -0.065, -0.055)) for line in lines)
    few = of(Invented(keep=[*BASES, "scaled-lr-twice"]))
    assert len(draw(few, "learning-rate").axes) == 2, "one residual scale"
    with pytest.raises(NotDrawnError, match="two learning rates"):
        draw(of(Invented(keep=BASES)), "learning-rate")


@pytest.mark.parametrize("name, panels, value", [("validation", 2, -0.065), ("formation", 4, 0.92)])
def test_the_base_is_thick_while_it_trains(records, name, panels, value) -> None:
    figure = draw(records, name)
    assert len(figure.axes) == panels
    (thick,) = (line for line in figure.axes[0].lines if line.get_linewidth() == 2.0)
    assert thick.get_ydata()[-1] == pytest.approx(value, abs=0.01)


def test_intervals_of_logging_are_the_statistics_of_claim_3(records) -> None:
    (thick,) = (
        line for line in draw(records, "logging").axes[0].lines if line.get_linewidth() == 2.0
    )
    found = study(records.readings)
    asked = [100 * found.of(f"spared-every-{e}")["mean"][BASES[0]] for e in INTERVALS]
    assert list(thick.get_xdata()) == list(INTERVALS) and list(thick.get_ydata()) == asked


def test_partial_records_draw_what_they_have_and_name_what_they_lack(tmp_path) -> None:
    lacking = of(Invented(seeds={}, keep=["scaled-sd-0.02"]))
    probes = lacking.readings.probes
    looks = probes[probes["metric"] != "validation_nll"]
    lacking = replace(lacking, readings=replace(lacking.readings, probes=looks))
    entries = draw_figures(lacking, tmp_path, READINGS)
    reasons = {entry["name"]: entry["reason"] for entry in entries if not entry["file"]}
    assert set(reasons) == {PREFIX + "learning-rate", PREFIX + "validation"}
    assert "looks at the validation text" in reasons[PREFIX + "validation"]
    assert draw_figures(make_records(), tmp_path, READINGS) == []


def test_pictures_of_the_same_files_are_copied_from_another_report(
    records, tmp_path: Path, monkeypatch
) -> None:
    names = PREFIX + "final-nll", PREFIX + "l0-self"
    monkeypatch.setattr("report.figures.DRAWINGS", ())
    monkeypatch.setattr("report.figures.draw_runs", lambda records, folder: None)
    monkeypatch.setattr("report.figures.READINGS", [BY_NAME[name] for name in names])
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    write_figures(records, theirs / "figures.parquet")
    for name in names:
        (theirs / f"figures/{name}.svg").write_text("theirs")
    other = replace(records.readings, sources=records.readings.sources[1:])
    for given, copied in ((records, names), (replace(records, readings=other), ())):
        write_figures(given, ours / "figures.parquet", theirs / "figures.parquet")
        drawn = {name: (ours / f"figures/{name}.svg").read_text() for name in names}
        assert [name for name in names if drawn[name] == "theirs"] == list(copied)
        printed = [name for name in names if (ours / f"figures/{name}.pdf").exists()]
        assert printed == [PREFIX + "final-nll"]
