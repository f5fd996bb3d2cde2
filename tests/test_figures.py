"""What the figures show of invented records, and what captions and notes say of it."""

import re
from dataclasses import replace

import numpy as np
import pytest
from further_records import further_campaign
from test_report_records import LAYERS, edited, make_records, without

from report.figures import DRAWINGS, runs
from report.judge.cells import build
from report.render.latex import escape
from report.values.measured import select
from report.values.style import MHA, MUTED, RELATION
from report.values.tables import TABLES

FIGURES = {drawing.name: drawing for drawing in DRAWINGS}


def drawn(name: str, records) -> list:
    """A figure's axes, row by row."""
    return FIGURES[name].draw(records).axes


def labels(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def marked(axes, marker: str) -> list[tuple[float, str]]:
    """The first place and the colour of every line with this marker."""
    lines = (line for line in axes.lines if line.get_marker() == marker)
    return [(float(line.get_xdata()[0]), line.get_color()) for line in lines]


def test_a_spike_leaves_the_panel_as_it_was_and_is_marked(records) -> None:
    spike = {"scale": "10M", "variant": "mha", "seed": 42, "update": 30}
    for window in (0.01, 0.1):
        calm = replace(records, page=records.page | {"efficiency_window": window})
        rough = edited(calm, "logs", spike, loss=12.0)
        before, after = (drawn("loss-curves", of)[0] for of in (calm, rough))
        assert marked(before, "^") == []
        ((tokens, colour),) = marked(after, "^")
        assert (30 - 1) * 2048 < tokens <= (30 + 48 * window) * 2048 and colour == MHA
        assert after.get_ylim()[1] < before.get_ylim()[1] + 0.02


def test_the_loss_curves_leave_out_what_their_caption_says(records) -> None:
    caption = FIGURES["loss-curves"].title(records)
    assert "just above 95% of either run’s losses after the first 25% of the budget" in caption
    assert "trailing mean over 1% of the budget" in caption
    low, high = drawn("loss-curves", records)[0].get_ylim()
    for variant in ("mha", "full"):
        log = select(records.logs, scale="10M", variant=variant, seed=42)
        late = log[log["tokens"] >= 0.25 * log["tokens"].max()]["loss"]
        assert 0.95 <= np.mean(late <= high) <= 1
        assert log["loss"].min() > low
    assert log["loss"].max() > high


@pytest.mark.parametrize("name", ["flow-by-layer", "flow-spectra"])
def test_no_scale_reaches_above_the_panels(name: str, records) -> None:
    """Panels of a row share an axis, which the first scale must not fix for the later ones."""
    factor = {"10M": 1, "30M": 9}
    flow, curves = records.flow.copy(), records.curves.copy()
    flow["value"] *= flow["scale"].map(factor).fillna(1)
    curves["values"] = [
        [v * factor.get(scale, 1) for v in values]
        for scale, values in zip(curves["scale"], curves["values"], strict=True)
    ]
    for axes in drawn(name, replace(records, flow=flow, curves=curves)):
        top = axes.get_ylim()[1]
        assert all(np.max(line.get_ydata()) <= top for line in axes.lines if len(line.get_ydata()))


def test_seeds_too_near_for_two_labels_share_one(records) -> None:
    """Relation's NLL is 1.90, 1.92 and 1.94 by seed; MHA's 2.00 to 2.02."""
    assert labels(drawn("paired-nll", records)[0]) == ["44", "43", "42"]
    near = edited(records, "runs", {"variant": "full", "seed": 43}, final_nll=1.901)
    assert labels(drawn("paired-nll", near)[0]) == ["44", "43, 42"]


def test_ablations_print_means_and_intervals_beside_the_papers_values(records) -> None:
    """Full has 1.90, 1.92, 1.94, the others 2.10, 2.11, 2.12."""
    (whole,) = drawn("ablations", records)
    (axes,) = drawn("ablations", without(records, "runs", variant="no-givens", seed=44))
    *means, heading = labels(whole)
    assert means == ["+0.1900 [+0.165, +0.215]"] * 5 and heading == "mean [95% interval]"
    papers = [0.031982, 0.036557, 0.050604, 0.003236, 0.050703]
    assert [place for place, _ in marked(whole, "D")] == papers
    # Differences of 0.20 and 0.19: the interval of two seeds is told, and leaves the panel.
    assert "+0.1950 [+0.131, +0.259], n = 2" in labels(axes)
    assert axes.get_xlim() == whole.get_xlim()


def test_flow_by_position_is_binned_as_its_caption_says(records) -> None:
    rising = np.arange(1.0, 1025.0) / 1024
    curves = records.curves.assign(values=[rising] * len(records.curves), length=1024)
    for line in drawn("split-by-position", replace(records, curves=curves))[0].lines:
        places, means = line.get_xdata(), line.get_ydata()
        assert np.allclose(places, 1024 * means) and list(places[:7]) == [1, 2, 3, 4, 5, 6, 7]
        assert np.all(np.diff(np.log2(places[8:])) > 0.1) and places[-1] > 900


@pytest.mark.parametrize("name", ["history-by-distance", "sink-profile"])
def test_what_differs_by_little_is_also_shown_as_a_difference(name, records) -> None:
    """Two operators, one over the other: below them, Relation less MHA."""
    halved = edited(records, "curves", {"variant": "mha"}, values=lambda values: values / 2)
    axes = drawn(name, halved)
    for above, below in zip(axes[: len(LAYERS)], axes[len(LAYERS) :], strict=True):
        # The last curve of a colour is the mean; a line of two points is a mark.
        mean, less = (
            {line.get_color(): line.get_ydata() for line in part.lines if len(line.get_xdata()) > 2}
            for part in (above, below)
        )
        assert np.any(less[MUTED] != 0)
        assert np.allclose(less[MUTED], mean[RELATION] - mean[MHA])


def test_a_difference_rests_on_the_seeds_of_both(records) -> None:
    alone = without(records, "flow", variant="mha", seed=44)
    high = edited(alone, "flow", {"variant": "full", "seed": 44}, value=99.0)
    axes = drawn("sink-profile", high)[len(LAYERS)]
    assert np.nanmax([value for line in axes.lines for value in line.get_ydata()]) < 2


def test_the_papers_long_contexts_stand_beside_its_own_models_alone() -> None:
    for comparable, papers in ((False, []), (True, [1024, 2048, 4096, 8192, 16384, 32768])):
        records = make_records(comparable=comparable)
        diamonds = [x for x in drawn("linear-long", records)[0].lines if x.get_marker() == "D"]
        assert list(diamonds[0].get_xdata()) == papers
        title = FIGURES["linear-long"].title(records)
        assert "of 30M, one window a micro-batch, on cpu_0: throughput" in title
        assert ("Diamonds" in title) == comparable


def test_what_ran_out_of_memory_is_marked_where_it_did(records) -> None:
    lost = {"operator": "full-reference", "context": (2048, 4096)}
    changed = edited(records, "complexity", lost, status="OOM", seconds=np.nan)
    times, states, tokens = drawn("scaling", changed)
    assert labels(times) == ["out of memory"] and labels(states) == labels(tokens) == []


def test_a_runs_passes_are_marked_in_its_own_figure(records, tmp_path, monkeypatch) -> None:
    figures = []
    monkeypatch.setattr(runs, "svg_text", lambda figure: figures.append(figure) or "")
    frame = records.runs.assign(epochs=2.5, trained_tokens=100_000)
    runs.draw_runs(replace(records, runs=frame), tmp_path)
    assert len(figures) == len(frame)
    for figure in figures:
        lines = figure.axes[0].lines
        assert [line.get_xdata()[0] for line in lines if line.get_linestyle() == ":"] == [4e4, 8e4]


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_latex_has_every_sign_of_a_caption(drawing, records) -> None:
    title = drawing.title if isinstance(drawing.title, str) else drawing.title(records)
    assert "U+" not in escape(title)


def test_a_figure_names_no_record_that_it_leaves_out(records) -> None:
    """Runs without their partner, probes of another configuration, ablations without a Full run."""
    kept = without(records, "runs", scale="10M", variant="full", seed=43)
    kept = edited(kept, "probes", {"scale": "10M", "seed": 43}, alike=False)
    for name, variants in (
        ("paired-nll", ("mha", "full")),
        ("ablations", ("full", "raw-x", "no-count")),
        ("learned-parameters", ("full",)),
        ("organisation-over-training", ("mha", "full")),
    ):
        for variant in variants:
            whole, part = (
                [source for source in FIGURES[name].sources(of) if f"10M/{variant}/43" in source]
                for of in (records, kept)
            )
            assert whole and not part, (name, variant)


def test_the_pages_list_the_records_behind_every_picture(records, invented_report) -> None:
    for drawing in DRAWINGS:
        name = "beyond.html" if drawing.name.startswith("beyond-") else "figures.html"
        page = (invented_report / name).read_text(encoding="utf-8")
        shown = page.split(f'<figure id="{drawing.name}">')[1].split("</figure>")[0]
        sources = drawing.sources(further_campaign())
        assert re.findall("<li>.*?<code>(.*?)</code>", shown) == sources
        assert (f"{len(sources)} record" in shown) == bool(sources)
    run = (invented_report / "runs/10M-full-42.html").read_text(encoding="utf-8")
    shown = run.split("</figure>")[0].split("behind these curves")[1]
    logs = [f"runs/10M/{variant}/42/log.parquet" for variant in ("full", "mha")]
    assert re.findall("<li>.*?<code>(.*?)</code>", shown) == logs


def notes(label: str, cells) -> list[str]:
    (table,) = (table for table in TABLES if table.label == label)
    return [note.text for note in table.notes_on(select(cells, table=label))]


def test_a_note_names_the_window_beside_the_papers(records, cells) -> None:
    said = "The training loss is smoothed by a trailing mean over "
    labels = ("main-results", "app-token-efficiency")
    other = build(replace(records, page=records.page | {"efficiency_window": 0.07}), *labels)
    without = build(replace(records, efficiency=records.efficiency.iloc[:0]), *labels)
    for label in labels:
        assert f"{said}1% of the budget, as in the paper." in notes(label, cells)
        assert f"{said}7% of the budget, 1% in the paper." in notes(label, other)
    assert not any("is smoothed" in note for note in notes("main-results", without))


@pytest.mark.parametrize("label, lengths", [
    ("relation_internal", {1024, 512}),
    ("app-structural-layerwise", {1024, 512}),
    ("app-structural-routing", {1024}),
    ("app-structural-sink-profile", {1024}),
    ("app-structural-spectrum", {512}),
])  # fmt: skip
def test_a_table_names_only_the_lengths_that_it_rests_on(label, lengths, cells) -> None:
    """Every sequence here has 64 tokens; the paper's flow is of 1024, its spectra of 512."""
    found = [note for note in notes(label, cells) if "sequences of 64" in note]
    assert len(found) == len(lengths)
    assert all(any(f"of {length} in the paper" in note for note in found) for length in lengths)
