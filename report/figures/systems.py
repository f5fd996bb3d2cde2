"""Figures of cost against T, of texts longer than trained, and of recall."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from report import data, stats
from report.data import Records
from report.figures import style
from report.figures.style import COLOUR, NAME, drawing, grid, panels

# Line widths by operator of the benchmark `complexity`. Lines of equal state sizes coincide, so
# earlier operators have wider lines, which stay visible. DECODED: models of the benchmark `decode`.
WIDTHS = {"mha": 5.0, "full-reference": 3.2, "full-flash": 1.4, "linear": 1.4}
DECODED = ("mha", "full", "linear")


@drawing("scaling", "Cost against the context", lambda r: r.complexity)
def scaling(rows: pd.DataFrame, records: Records) -> Figure:
    """At batch 1: the time of forward and backward of one layer’s operator, the size of its decode
    state, and the time to decode one token with the whole model. Bands are 95% intervals."""
    figure, axes = grid(1, 3, 3.4)
    time, state, token = axes[0]
    for operator, width in WIDTHS.items():
        operator_rows = rows[rows["operator"] == operator].sort_values("context")
        look = {"color": COLOUR[operator], "marker": "o", "markersize": 3, "label": NAME[operator]}
        passed = operator_rows[operator_rows["seconds"] > 0]
        time.plot(passed["context"], passed["seconds"], **look)
        ends = (passed[f"seconds_{end}"].astype(float) for end in ("low", "high"))
        time.fill_between(passed["context"], *ends, color=COLOUR[operator], alpha=0.2, linewidth=0)
        stored = operator_rows[operator_rows["decode_state_bytes"] > 0]
        state.plot(stored["context"], stored["decode_state_bytes"], linewidth=width, **look)
        for context in operator_rows[operator_rows["status"] == "OOM"]["context"].nsmallest(1):
            time.axvline(context, color=COLOUR[operator], linewidth=0.7, linestyle=style.DASHES)
            placing = {"xycoords": ("data", "axes fraction"), "xytext": (-9, 0), "rotation": 90}
            style.annotate(time, (context, 1), "out of memory", va="top", **placing)
    tokens = records.decode.query("measure == 'token' and batch == 1")
    for model in DECODED:
        model_rows = tokens[tokens["model"] == model].sort_values("context")
        look = {"markersize": 3, "color": COLOUR[model]}
        token.plot(model_rows["context"], 1e3 * model_rows["seconds"], "o-", **look)
    for panel, contexts, label in (
        (time, rows["context"], "forward and backward of one layer (s)"),
        (state, rows["context"], "decode state of one layer (bytes)"),
        (token, tokens["context"], "decoding a token, batch 1 (ms)"),
    ):
        panel.set_title(label, fontsize=8)
        places = sorted(set(contexts))
        style.doublings(panel, places[:: max(1, -(-len(places) // 5))])
        panel.set_xlabel("context T (tokens)")
    for panel in (time, state):
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(lambda count, _: data.rounded(count))
        panel.yaxis.set_minor_locator(NullLocator())
    token.set_ylim(bottom=0)
    return figure


def _curves(panel: Axes, rows: pd.DataFrame, by: str, along: str, value: str) -> None:
    """Draw the mean of `value` along a column, one line for each group of `by`."""
    for name, group in rows.groupby(by):
        mean = group.groupby(along)[value].mean()
        look = style.look(name)
        look |= {"linestyle": style.DASHES} if name == "hybrid" else {}  # may overlap Relation's
        panel.plot(mean.index, mean, marker="o", markersize=3, **look)


@drawing("length", "Texts longer than trained", lambda r: stats.length_cost(r.lengths))
def lengths(rows: pd.DataFrame, records: Records) -> Figure:
    """Validation NLL by position in long windows, minus the NLL of the same tokens in windows of
    the trained length. Lines are means over seeds."""
    labels = ["NLL − NLL in trained windows\n(nat/token)"]
    figure, columns = panels(rows, 2.8, labels, "position (tokens)")
    for _, scale_rows, (panel,) in columns:
        _curves(panel, scale_rows[scale_rows["first"] > 0], "variant", "first", "value")
        panel.axhline(0, color=style.MUTED, linewidth=0.8)
        style.doublings(panel, [2**k for k in range(8, 20) if 2**k <= scale_rows["first"].max()])
    return figure


@drawing("recall", "Associative recall", lambda r: stats.recall_shares(r.recall).reset_index())
def recall(rows: pd.DataFrame, records: Records) -> Figure:
    """Share of queries that a model of two layers answers correctly, by mixer. Each width has the
    learning rate that was chosen for it. Lines are means over seeds."""
    layout = {"by": "length", "title": "T = {}", "sharey": "row"}
    figure, columns = panels(rows, 2.6, ["queries answered"], "width d", **layout)
    for _, length_rows, (panel,) in columns:
        _curves(panel, length_rows, "mixer", "width", "share")
        style.doublings(panel, sorted(rows["width"].unique()))
        panel.set_ylim(0, 1.02)
    return figure
