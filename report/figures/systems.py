"""Figures of speed: throughput, cost against T, Linear Relation at long contexts, decoding."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from report import paper
from report.data import Records
from report.figures import style
from report.figures.style import COLOUR, NAME, drawing, grid, scales_of

OPERATORS = ("mha", "full-reference", "full-flash", "linear")
# Decode states that agree lie on one another: the earlier ones stay visible as a rim.
WIDTHS = {"mha": 5.0, "full-reference": 3.2}


@drawing("throughput", "Throughput")
def throughput(records: Records) -> Figure | None:
    """Tokens per second of whole training steps, medians over rounds: at one context of 1,024
    (fixed) and at each scale’s own shapes (matched)."""
    rows = records.steps
    rows = rows[rows["benchmark"].isin(["fixed", "matched"])]
    if rows.empty:
        return None
    scales = scales_of(rows)
    figure, axes = grid(2, len(scales), 4.4)
    for column, scale in zip(axes.T, scales, strict=True):
        for here, benchmark in zip(column, ("fixed", "matched"), strict=True):
            own = rows[(rows["scale"] == scale) & (rows["benchmark"] == benchmark)]
            _bars(here, own.sort_values("position"))
            here.set_title(f"{scale}, {benchmark}")
    for here in axes[-1]:
        here.set_xlabel("tokens/s")
    return figure


def _bars(here: Axes, rows: pd.DataFrame) -> None:
    names = [f"{NAME[v]}\n{b}" for v, b in zip(rows["variant"], rows["backend"], strict=True)]
    style.sideways(here, names)
    for place, row in enumerate(rows.itertuples()):
        rate = row.tokens_per_second
        missing = pd.isna(rate)
        slow = row.backend in ("reference", "materialised")
        colour = (
            style.MHA if row.variant == "mha" else style.MATERIALISED if slow else style.RELATION
        )
        here.barh(-place, 0 if missing else rate, height=0.6, color=colour)
        note = row.status if missing else style.count(rate)
        style.beside(here, (0 if missing else rate, -place), note)
    here.set_xlim(0, 1.25 * rows["tokens_per_second"].max() if len(rows) else 1)
    style.counts(here.xaxis, 3)


def _contexts(here: Axes, contexts) -> None:
    places = sorted(set(contexts))
    style.doublings(here, places[:: max(1, -(-len(places) // 5))])
    here.set_xlabel("context T (tokens)")


def _logarithmic(here: Axes) -> None:
    here.set_yscale("log")
    here.yaxis.set_major_formatter(FuncFormatter(style.count))
    here.yaxis.set_minor_locator(NullLocator())


def _out_of_memory(here: Axes, context: int, colour: str) -> None:
    here.axvline(context, color=colour, linewidth=0.7, linestyle=style.DASHES)
    style.beside(
        here, (context, 0.5), "out of memory", xycoords=("data", "axes fraction"),
        xytext=(-9, 0), rotation=90,
    )  # fmt: skip


@drawing("scaling", "Cost against the context")
def scaling(records: Records) -> Figure | None:
    """Batch 1: forward and backward of one layer’s operator, its decode state, and a token decoded
    by the whole model. Bands are 95% intervals."""
    rows, decode = records.complexity, records.decode
    if rows.empty:
        return None
    figure, axes = grid(1, 3, 3.4)
    time, state, token = axes[0]
    for operator in OPERATORS:
        own = rows[rows["operator"] == operator].sort_values("context")
        look = {"color": COLOUR[operator], "marker": "o", "markersize": 3, "label": NAME[operator]}
        passed = own[own["seconds"] > 0]
        time.plot(passed["context"], passed["seconds"], **look)
        time.fill_between(
            passed["context"], passed["seconds_low"].astype(float),
            passed["seconds_high"].astype(float), color=COLOUR[operator], alpha=0.2, linewidth=0,
        )  # fmt: skip
        kept = own[own["decode_state_bytes"] > 0]
        width = WIDTHS.get(operator, 1.4)
        state.plot(kept["context"], kept["decode_state_bytes"], linewidth=width, **look)
        failed = own[own["status"] == "OOM"]["context"]
        if len(failed):
            _out_of_memory(time, failed.min(), COLOUR[operator])
    tokens = decode[(decode["measure"] == "token") & (decode["batch"] == 1)]
    for model in ("mha", "full", "linear"):
        own = tokens[tokens["model"] == model].sort_values("context")
        if len(own):
            token.plot(
                own["context"], 1e3 * own["seconds"], "o-", markersize=3, color=COLOUR[model]
            )
    for here, label in (
        (time, "forward and backward of one layer (s)"),
        (state, "decode state of one layer (bytes)"),
        (token, "decoding a token, batch 1 (ms)"),
    ):
        here.set_title(label, fontsize=8)
        _contexts(here, rows["context"] if here is not token else tokens["context"])
    for here in (time, state):
        _logarithmic(here)
    token.set_ylim(bottom=0)
    time.legend(handlelength=1.6, fontsize=7.5)
    return figure


@drawing("linear-long", "Linear Relation at long contexts")
def linear_long(records: Records) -> Figure | None:
    """Whole training steps, one window a micro-batch."""
    rows = records.steps[records.steps["benchmark"] == "linear-long"].sort_values("context")
    passed = rows[rows["status"] == "PASS"]
    if passed.empty:
        return None
    panels = [("tokens_per_second", "throughput", "tokens/s")]
    if passed["allocated_gib"].notna().any():
        panels.append(("allocated_gib", "allocated", "allocated (GiB)"))
    figure, axes = grid(1, len(panels), 2.8)
    for here, (field, column, label) in zip(axes[0], panels, strict=True):
        here.plot(passed["context"], passed[field], "o-", color=COLOUR["linear"], label="here")
        printed = {c: paper.number("app-linear-long", str(c), column) for c in rows["context"]}
        printed = {c: value for c, value in printed.items() if value is not None}
        if printed:
            look = {"color": style.MUTED, "markerfacecolor": "none", "label": "the paper, RTX 5090"}
            here.plot(list(printed), list(printed.values()), "D-", **look)
        for context in rows[rows["status"] == "OOM"]["context"]:
            _out_of_memory(here, context, style.INK)
        _contexts(here, rows["context"])
        _logarithmic(here)
        here.set_ylabel(label)
    axes[0, 0].legend()
    return figure


@drawing("length", "Texts longer than trained")
def lengths(records: Records) -> Figure | None:
    """Validation NLL by position in long windows, less that of the same tokens in windows as long
    as trained; means over seeds."""
    rows = records.lengths
    if rows.empty:
        return None
    wide = rows.pivot_table("nll", ["scale", "variant", "seed", "first"], "reading")
    if not {"whole", "apart"} <= set(wide.columns):
        return None
    apart = (wide["whole"] - wide["apart"]).rename("more").reset_index().dropna()
    scales = scales_of(apart)
    figure, axes = grid(1, len(scales), 2.8)
    for here, scale in zip(axes[0], scales, strict=True):
        own = apart[apart["scale"] == scale]
        for variant, group in own.groupby("variant"):
            mean = group[group["first"] > 0].groupby("first")["more"].mean()
            look = {"markersize": 3, "color": COLOUR.get(variant, style.MUTED), "label": variant}
            here.plot(mean.index, mean, "o-", **look)
        here.set_title(scale)
        here.axhline(0, color=style.MUTED, linewidth=0.8)
        last = int(own["first"].max())
        style.doublings(here, [2**k for k in range(8, 20) if 2**k <= last])
        here.set_xlabel("position (tokens)")
    axes[0, 0].set_ylabel("NLL less that in trained windows\n(nat/token)")
    axes[0, 0].legend()
    return figure


@drawing("recall", "Associative recall")
def recall(records: Records) -> Figure | None:
    """Share of queries answered by two layers of each mixer, at the learning rate chosen for each
    width; means over seeds."""
    rows = records.recall
    rows = rows[rows["chosen"].fillna(False).astype(bool)] if len(rows) else rows
    if rows.empty:
        return None
    shares = rows.groupby(["mixer", "width", "length", "seed"])[["right", "queries"]].sum()
    shares = (shares["right"] / shares["queries"]).rename("share").reset_index()
    tasks = sorted(shares["length"].unique())
    figure, axes = grid(1, len(tasks), 2.6, sharey="row")
    for here, length in zip(axes[0], tasks, strict=True):
        for mixer, group in shares[shares["length"] == length].groupby("mixer"):
            mean = group.groupby("width")["share"].mean()
            here.plot(mean.index, mean, "o-", label=mixer, color=COLOUR.get(mixer, style.MUTED))
        style.doublings(here, sorted(shares["width"].unique()))
        here.set_ylim(0, 1.02)
        here.set_title(f"T = {length}")
        here.set_xlabel("width d")
    axes[0, 0].set_ylabel("queries answered")
    axes[0, 0].legend()
    return figure
