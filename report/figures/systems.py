"""Figures of cost against T, of texts longer than trained, and of recall."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from report import data
from report.data import Records
from report.figures import style
from report.figures.style import COLOUR, NAME, drawing, grid, panels

# The operators of the complexity's rows, and the models whose tokens are decoded; states that
# agree lie on one another, so that the earlier ones are wider and stay visible as a rim.
WIDTHS = {"mha": 5.0, "full-reference": 3.2, "full-flash": 1.4, "linear": 1.4}
DECODED = ("mha", "full", "linear")


def _contexts(here: Axes, contexts: pd.Series) -> None:
    places = sorted(set(contexts))
    style.doublings(here, places[:: max(1, -(-len(places) // 5))])
    here.set_xlabel("context T (tokens)")


def _logarithmic(here: Axes) -> None:
    here.set_yscale("log")
    here.yaxis.set_major_formatter(FuncFormatter(style.count))
    here.yaxis.set_minor_locator(NullLocator())


def _out_of_memory(here: Axes, rows: pd.DataFrame, colour: str) -> None:
    """A line at the first context that did not fit, if any."""
    failed = rows[rows["status"] == "OOM"]["context"]
    if len(failed):
        here.axvline(failed.min(), color=colour, linewidth=0.7, linestyle=style.DASHES)
        style.beside(
            here, (failed.min(), 0.5), "out of memory", xycoords=("data", "axes fraction"),
            xytext=(-9, 0), rotation=90,
        )  # fmt: skip


@drawing("scaling", "Cost against the context", lambda r: r.complexity)
def scaling(rows: pd.DataFrame, records: Records) -> Figure:
    """Batch 1: forward and backward of one layer’s operator, its decode state, and a token decoded
    by the whole model. Bands are 95% intervals."""
    figure, axes = grid(1, 3, 3.4)
    time, state, token = axes[0]
    for operator, width in WIDTHS.items():
        own = rows[rows["operator"] == operator].sort_values("context")
        look = {"color": COLOUR[operator], "marker": "o", "markersize": 3, "label": NAME[operator]}
        passed = own[own["seconds"] > 0]
        time.plot(passed["context"], passed["seconds"], **look)
        ends = (passed[f"seconds_{end}"].astype(float) for end in ("low", "high"))
        time.fill_between(passed["context"], *ends, color=COLOUR[operator], alpha=0.2, linewidth=0)
        kept = own[own["decode_state_bytes"] > 0]
        state.plot(kept["context"], kept["decode_state_bytes"], linewidth=width, **look)
        _out_of_memory(time, own, COLOUR[operator])
    decode = records.decode
    tokens = decode[(decode["measure"] == "token") & (decode["batch"] == 1)]
    for model in DECODED:
        own = tokens[tokens["model"] == model].sort_values("context")
        look = {"markersize": 3, "color": COLOUR[model]}
        token.plot(own["context"], 1e3 * own["seconds"], "o-", **look)
    for here, contexts, label in (
        (time, rows["context"], "forward and backward of one layer (s)"),
        (state, rows["context"], "decode state of one layer (bytes)"),
        (token, tokens["context"], "decoding a token, batch 1 (ms)"),
    ):
        here.set_title(label, fontsize=8)
        _contexts(here, contexts)
    for here in (time, state):
        _logarithmic(here)
    token.set_ylim(bottom=0)
    time.legend(handlelength=1.6, fontsize=7.5)
    return figure


def _curves(here: Axes, rows: pd.DataFrame, by: str, along: str, value: str) -> None:
    """The mean of each group along something."""
    for name, own in rows.groupby(by):
        mean = own.groupby(along)[value].mean()
        look = {"markersize": 3, "color": COLOUR.get(name, style.MUTED), "label": name}
        here.plot(mean.index, mean, "o-", **look)


@drawing("length", "Texts longer than trained", lambda r: data.longer(r.lengths))
def lengths(rows: pd.DataFrame, records: Records) -> Figure:
    """Validation NLL by position in long windows, less that of the same tokens in windows as long
    as trained; means over seeds."""
    labels = ["NLL less that in trained windows\n(nat/token)"]
    figure, axes, columns = panels(rows, 2.8, labels, "position (tokens)")
    for _, own, (here,) in columns:
        _curves(here, own[own["first"] > 0], "variant", "first", "value")
        here.axhline(0, color=style.MUTED, linewidth=0.8)
        style.doublings(here, [2**k for k in range(8, 20) if 2**k <= own["first"].max()])
    axes[0, 0].legend()
    return figure


@drawing("recall", "Associative recall", lambda r: data.recalled(r.recall).reset_index())
def recall(rows: pd.DataFrame, records: Records) -> Figure:
    """Share of queries answered by two layers of each mixer, at the learning rate chosen for each
    width; means over seeds."""
    known = {"by": "length", "title": "T = {}", "sharey": "row"}
    figure, axes, columns = panels(rows, 2.6, ["queries answered"], "width d", **known)
    for _, own, (here,) in columns:
        _curves(here, own, "mixer", "width", "share")
        style.doublings(here, sorted(rows["width"].unique()))
        here.set_ylim(0, 1.02)
    axes[0, 0].legend()
    return figure
