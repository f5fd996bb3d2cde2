"""What the figures show of invented records, and what captions and notes say of it."""

import re
from dataclasses import replace

import numpy as np
import pytest
from further_records import with_further
from matplotlib import rc_context
from matplotlib.colors import to_hex
from test_report_records import LAYERS, make_records

from report.cells import build
from report.compute.measured import select
from report.figures import DRAWINGS, flow_maps, formation, runs, structure, systems, training
from report.latex import escape
from report.layout import Note
from report.style import INK, MHA, MUTED, RELATION, STYLE
from report.tables import TABLES

CAPTIONS = {drawing.name: drawing.title for drawing in training.DRAWINGS}


@pytest.fixture(scope="module")
def records():
    return make_records()


@pytest.fixture(scope="module")
def cells(records):
    return build(records)


def labels(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def with_losses(records, **changes):
    """The logs of 10M/mha/42 changed at single updates: update=loss."""
    logs = records.logs.copy()
    of_run = (logs["scale"] == "10M") & (logs["variant"] == "mha") & (logs["seed"] == 42)
    for update, loss in changes.items():
        logs.loc[of_run & (logs["update"] == int(update.removeprefix("at_"))), "loss"] = loss
    return replace(records, logs=logs)


def spikes(axes) -> list[tuple[float, str]]:
    return [
        (float(line.get_xdata()[0]), line.get_color())
        for line in axes.lines
        if line.get_marker() == "^"
    ]


def test_a_spike_leaves_the_panel_as_it_was_and_is_marked(records) -> None:
    for window in (0.01, 0.1):
        smoothed = replace(records, page=records.page | {"efficiency_window": window})
        calm = training.loss_curves(smoothed).axes[0]
        spiked = training.loss_curves(with_losses(smoothed, at_30=12.0)).axes[0]
        assert spikes(calm) == []
        ((tokens, colour),) = spikes(spiked)
        assert (30 - 1) * 2048 < tokens <= (30 + 48 * window) * 2048 and colour == MHA
        assert spiked.get_ylim()[1] < calm.get_ylim()[1] + 0.02


def test_what_a_panel_leaves_out_is_what_its_caption_says(records) -> None:
    caption = CAPTIONS["loss-curves"](records)
    assert "just above 95% of either run’s losses after the first 25% of the budget" in caption
    low, high = training.loss_curves(records).axes[0].get_ylim()
    for variant in ("mha", "full"):
        log = select(records.logs, scale="10M", variant=variant, seed=42)
        late = log[log["tokens"] >= 0.25 * log["tokens"].max()]["loss"]
        assert 0.95 <= np.mean(late <= high) <= 1
        assert log["loss"].min() > low
    assert log["loss"].max() > high


def test_seeds_too_near_for_two_labels_share_one(records) -> None:
    """Relation's NLL is 1.90, 1.92 and 1.94 by seed; MHA's 2.00 to 2.02."""
    apart = training.paired_nll(records).axes[0]
    assert labels(apart) == ["44", "43", "42"]
    changed = records.runs.copy()
    near = (changed["variant"] == "full") & (changed["seed"] == 43)
    changed.loc[near, "final_nll"] = 1.901
    shared = training.paired_nll(replace(records, runs=changed)).axes[0]
    assert labels(shared) == ["44", "43, 42"]


def test_an_ablations_mean_stands_apart_from_the_seeds(records) -> None:
    (axes,) = training.ablations(records).axes
    means = [text for text in axes.texts if not text.get_text().startswith("mean")]
    # Full has 1.90, 1.92, 1.94, the others 2.10, 2.11, 2.12.
    assert [text.get_text() for text in means] == ["+0.1900 [+0.165, +0.215]"] * 5
    assert all(text.xy[0] == 1 and text.xycoords[0] == "axes fraction" for text in means)


def test_an_interval_of_fewer_seeds_leaves_the_panel_as_it_was(records) -> None:
    every = records.runs
    lost = (every["variant"] == "no-givens") & (every["seed"] == 44)
    (whole,) = training.ablations(records).axes
    (axes,) = training.ablations(replace(records, runs=every[~lost])).axes
    assert axes.get_xlim() == whole.get_xlim()
    # Differences of 0.20 and 0.19, 12.706 standard errors of 0.005 each way.
    (told,) = [text for text in labels(axes) if text.endswith("n = 2")]
    assert told == "+0.1950 [+0.131, +0.259], n = 2"
    ends = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2]
    assert any(np.allclose(xs, (0.195 - 0.06353, 0.195 + 0.06353), atol=1e-5) for xs in ends)


def test_the_papers_value_of_an_ablation_is_a_diamond(records) -> None:
    (axes,) = training.ablations(records).axes
    diamonds = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert diamonds == [0.031982, 0.036557, 0.050604, 0.003236, 0.050703]


def test_positions_are_averaged_in_bins_that_cover_all(records) -> None:
    values = np.arange(1.0, 1025.0)
    places, means = structure._in_bins(values)
    assert np.allclose(places, means) and list(places[:7]) == [1, 2, 3, 4, 5, 6, 7]
    assert np.all(np.diff(np.log2(places[8:])) > 0.1) and places[-1] > 900
    assert [list(part) for part in structure._in_bins(values[:3])] == [[1, 2, 3], [1, 2, 3]]


def test_the_papers_long_contexts_stand_beside_its_own_models_alone() -> None:
    for comparable, drawn in ((False, []), (True, [1024, 2048, 4096, 8192, 16384, 32768])):
        records = make_records(comparable=comparable)
        axes = systems.linear_long(records).axes[0]
        diamonds = [line for line in axes.lines if line.get_marker() == "D"]
        assert list(diamonds[0].get_xdata()) == drawn
        (drawing,) = (drawing for drawing in systems.DRAWINGS if drawing.name == "linear-long")
        title = drawing.title(records)
        assert "of 30M, one window a micro-batch, on cpu_0: throughput" in title
        assert ("Diamonds" in title) == comparable


def test_only_the_decode_states_of_a_figure_are_drawn_as_rims(records) -> None:
    complexity = records.complexity.copy()
    lost = (complexity["operator"] == "full-reference") & (complexity["context"] > 1024)
    complexity.loc[lost, ["status", "seconds"]] = ["OOM", np.nan]
    times, states, tokens = systems.scaling(replace(records, complexity=complexity)).axes
    widths = [{line.get_linewidth() for line in axes.lines if line.get_marker() == "o"}
              for axes in (times, states, tokens)]  # fmt: skip
    assert list(map(len, widths)) == [1, 3, 1] and labels(times) == ["out of memory"]
    assert tokens.get_ylim()[0] == 0 and tokens.get_yscale() == "linear"
    assert {y for line in tokens.lines for y in line.get_ydata()} == {1.0}
    assert len(tokens.collections) == 4, "a band an operator"


def test_no_word_of_a_legend_is_in_the_colour_of_its_line(records) -> None:
    for drawing in DRAWINGS:
        with rc_context(STYLE):
            figure = drawing.draw(with_further(records))
        for axes in figure.axes:
            words = axes.get_legend().get_texts() if axes.get_legend() else ()
            assert {to_hex(word.get_color()) for word in words} <= {INK}, drawing.name


def test_a_runs_passes_are_marked_in_its_own_figure(records, tmp_path, monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(runs, "svg_text", lambda figure: drawn.append(figure) or "")
    frame = records.runs.assign(epochs=2.5, trained_tokens=100_000)
    runs.draw_runs(replace(records, runs=frame), tmp_path)
    assert len(drawn) == len(frame)
    for figure in drawn:
        lines = figure.axes[0].lines
        assert [line.get_xdata()[0] for line in lines if line.get_linestyle() == ":"] == [4e4, 8e4]
        assert "this run" not in labels(figure.axes[0])


@pytest.mark.parametrize("draw", [structure.history_by_distance, structure.sink_profile])
def test_what_differs_by_little_is_also_shown_as_a_difference(draw, records) -> None:
    """Two operators, one over the other: below them, Relation less MHA."""
    curves = records.curves
    halved = [
        values / 2 if variant == "mha" else values
        for variant, values in zip(curves["variant"], curves["values"], strict=True)
    ]
    figure = draw(replace(records, curves=curves.assign(values=halved)))
    columns = len(figure.axes) // 2
    assert columns == len(LAYERS)
    for above, below in zip(figure.axes[:columns], figure.axes[columns:], strict=True):
        # The last curve of a colour is the mean; a line of two points is a mark.
        mean, less = (
            {
                line.get_color(): line.get_ydata()
                for line in axes.lines
                if line.get_xydata()[2:].any()
            }
            for axes in (above, below)
        )
        assert np.any(less[MUTED] != 0)
        assert np.allclose(less[MUTED], mean[RELATION] - mean[MHA])
    assert "Relation − MHA" in figure.axes[columns].get_ylabel()


def test_a_difference_rests_on_the_seeds_of_both(records) -> None:
    flow = records.flow
    high = (flow["variant"] == "full") & (flow["seed"] == 44)
    values = flow["value"].mask(high, 99.0)
    alone = ~((flow["variant"] == "mha") & (flow["seed"] == 44))
    changed = replace(records, flow=flow.assign(value=values)[alone])
    axes = structure.sink_profile(changed).axes[len(LAYERS)]
    assert max(np.max(line.get_ydata()) for line in axes.lines) < 2


def test_an_axis_names_what_its_operator_has(records) -> None:
    named = [axes.get_ylabel() for axes in formation.organisation(records).axes]
    assert [label for label in named if label][:2] == ["MHA\ndiagonal flow", "Relation\nSelf flow"]


def test_the_flow_maps_show_every_layer_of_a_model_of_five() -> None:
    assert [flow_maps.shown_layers(depth) for depth in (1, 3, 5, 6, 20)] == [
        [0], [0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 2, 10, 19]
    ]  # fmt: skip


def test_a_caption_names_the_campaigns_own_window(records) -> None:
    other = replace(records, page=records.page | {"efficiency_window": 0.07})
    for of, share in ((records, "1%"), (other, "7%")):
        assert f"trailing mean over {share} of the budget" in CAPTIONS["loss-curves"](of)


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_latex_has_every_sign_of_a_caption(drawing, records) -> None:
    title = drawing.title if isinstance(drawing.title, str) else drawing.title(records)
    assert "U+" not in escape(title)


def named(records, name: str) -> list[str]:
    (drawing,) = (drawing for drawing in DRAWINGS if drawing.name == name)
    return drawing.sources(records)


def test_a_figure_names_no_record_that_it_leaves_out(records) -> None:
    """Runs without their partner, probes of another configuration, ablations without a Full run."""
    every, probes = records.runs, records.probes
    lost = (every["scale"] == "10M") & (every["variant"] == "full") & (every["seed"] == 43)
    other = (probes["scale"] == "10M") & (probes["seed"] == 43)
    kept = replace(records, runs=every[~lost], probes=probes.assign(alike=~other))
    of_seed = "10M/{}/43"
    for name, variants in (
        ("paired-nll", ("mha", "full")),
        ("ablations", ("full", "raw-x", "no-count")),
        ("learned-parameters", ("full",)),
        ("organisation-over-training", ("mha", "full")),
    ):
        for variant in variants:
            part = of_seed.format(variant)
            assert any(part in source for source in named(records, name)), (name, variant)
            assert not any(part in source for source in named(kept, name)), (name, variant)
    assert named(records, "overview") == named(records, "self-exchange") == []


def test_the_pages_list_the_records_behind_every_picture(records, invented_report) -> None:
    page = (invented_report / "figures.html").read_text(encoding="utf-8")
    for drawing in DRAWINGS:
        shown = page.split(f'<figure id="{drawing.name}">')[1].split("</figure>")[0]
        sources = drawing.sources(with_further(records))
        assert re.findall("<li>.*?<code>(.*?)</code>", shown) == sources
        assert (f"{len(sources)} record" in shown) == bool(sources)
    run = (invented_report / "runs/10M-full-42.html").read_text(encoding="utf-8")
    shown = run.split("</figure>")[0].split("behind these curves")[1]
    logs = [f"runs/10M/{variant}/42/log.parquet" for variant in ("full", "mha")]
    assert re.findall("<li>.*?<code>(.*?)</code>", shown) == logs


def smoothing(notes: list[Note]) -> list[str]:
    return [note.text for note in notes if "is smoothed" in note.text]


def test_a_note_names_the_window_beside_the_papers(records, cells) -> None:
    tables = {table.label: table for table in TABLES}
    other = build(replace(records, page=records.page | {"efficiency_window": 0.07}))
    for label in ("main-results", "app-token-efficiency"):
        notes = [smoothing(tables[label].notes(select(f, table=label))) for f in (cells, other)]
        assert notes == [
            [
                "The training loss is smoothed by a trailing mean over 1% of the budget, as in the "
                "paper."
            ],
            [
                "The training loss is smoothed by a trailing mean over 7% of the budget, 1% in the "
                "paper."
            ],
        ]
    without = build(replace(records, efficiency=records.efficiency.iloc[:0]))
    assert smoothing(tables["main-results"].notes(select(without, table="main-results"))) == []


@pytest.mark.parametrize("label, lengths", [
    ("relation_internal", {1024, 512}),
    ("app-structural-layerwise", {1024, 512}),
    ("app-structural-routing", {1024}),
    ("app-structural-sink-profile", {1024}),
    ("app-structural-spectrum", {512}),
])  # fmt: skip
def test_a_table_names_only_the_lengths_that_it_rests_on(label, lengths, cells) -> None:
    """Every sequence here has 64 tokens; the paper's flow is of 1024, its spectra of 512."""
    (table,) = (table for table in TABLES if table.label == label)
    told = [note.text for note in table.notes(select(cells, table=label))]
    notes = [text for text in told if "sequences of 64" in text]
    assert len(notes) == len(lengths)
    assert all(any(f"of {length} in the paper" in note for note in notes) for length in lengths)
