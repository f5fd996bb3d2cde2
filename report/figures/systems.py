"""Throughput, memory and time against T."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.figures.drawing import (
    DASHES,
    band,
    beside,
    by_scale,
    counts,
    demand,
    doublings,
    figure,
    grid,
    name_lines,
    powers,
    sideways,
)
from report.judge.setting import PAPER_GPU
from report.values.complexity import OPERATORS, decoded_tokens, fitted_time
from report.values.frames import CampaignRecords
from report.values.layout import SCALES, Number
from report.values.likeness import Likeness
from report.values.linear import PAPER_CONTEXTS
from report.values.measured import Measurements, select
from report.values.numbers import quantity, value_text
from report.values.paper import number
from report.values.statistics import power_fit
from report.values.style import (
    INK,
    MATERIALISED,
    MHA,
    MUTED,
    OPERATOR_COLOUR,
    OPERATOR_NAME,
    RELATION,
)
from report.values.systems import RATIO, SPEEDUP, efficient

MOST_TICKS = 5
# Operators whose decode states agree lie on one another: the earlier ones stay visible as a rim.
WIDTHS = {"mha": 5.0, "full-reference": 3.2, "full-flash": 1.4, "linear": 1.4}
# A row of panels: its name, bars as (name, column of the table, colour), and the table's ratio.
COMPARISONS = (
    (
        "fixed context",
        (("Materialised", "fixed.reference", MATERIALISED),
         ("Compiled", "peers.compiled", MATERIALISED),
         ("FlashRelation", "fixed.flash", RELATION)),
        ("FlashRelation / materialised", "fixed.speedup", SPEEDUP),
    ),
    (
        "matched",
        (("MHA", "matched.mha", MHA), ("", "peers.other", MHA),
         ("Relation", "matched.full", RELATION)),
        ("Relation / MHA", "matched.ratio", RATIO),
    ),
)  # fmt: skip


def _compared(records: CampaignRecords) -> pd.DataFrame:
    """Of the paper's scales, as Table 5 has no other."""
    passed = select(records.throughput, status="PASS", scale=SCALES)
    return select(passed, benchmark=("fixed", "matched"))


@figure(
    "throughput",
    heading="Throughput",
    title="Tokens per second in whole training steps, medians, with Table 5’s ratio of the lower "
    "to the upper, the median of single rounds with its 95% interval: FlashRelation against the "
    "materialised operator, Relation against MHA. Between them, where it was measured, what the "
    "paper leaves out: the operator compiled with its model, and another attention.",
    alt="Bar charts by scale: above, tokens per second of the materialised operator, of it "
    "compiled, and of FlashRelation; below, of MHA, of another attention and of Relation; each "
    "title gives the ratio of the last to the first.",
    reads=_compared,
)
def throughput(records: CampaignRecords) -> Figure:
    both = _compared(records)
    demand(len(both) > 0, "finished throughput measurement", records, "throughput")
    found = records.made(efficient)

    def draw(scale: str, rows: pd.DataFrame, panels: Sequence[Axes]) -> None:
        other = found[scale, "peers.name", "value"].text
        for here, (label, sides, ratio) in zip(panels, COMPARISONS, strict=True):
            rates = {key: found[scale, key, "value"].value for _, key, _ in sides}
            bars = [
                (name or other, rates[key], colour)
                for name, key, colour in sides
                if rates[key] is not None or not key.startswith("peers")
            ]
            _bars(here, bars)
            here.set_title(f"{scale}, {label}{_ratio(found, scale, *ratio)}", fontsize=8)

    return by_scale(both, draw, 4.4, ["", ""], "tokens/s")


def _ratio(found: Measurements, scale: str, terms: str, column: str, form: Number) -> str:
    """A ratio of the table with its terms and its interval, as a title tells it."""
    cells = (found.get((scale, column, statistic)) for statistic in ("value", "low", "high"))
    texts = [value_text(cell.value, form) for cell in cells if cell and cell.value is not None]
    if not texts:
        return ""
    value, *ends = texts
    return f"\n{terms}\n{value}×" + (f" [{', '.join(ends)}]" if ends else "")


def _bars(axes: Axes, bars: list[tuple[str, float | None, str]]) -> None:
    sideways(axes, [-place for place in range(len(bars))], [name for name, _, _ in bars])
    for place, (_, rate, colour) in enumerate(bars):
        # An empty bar keeps its row within the limits.
        axes.barh(-place, rate or 0.0, height=0.6, color=colour)
        told = quantity(rate, "#.3g") if rate is not None else "not run"
        beside(axes, (rate or 0.0, -place), told)
    axes.set_xlim(0, 1.22 * max((rate for _, rate, _ in bars if rate is not None), default=1.0))
    counts(axes.xaxis, 3)


def _scaled(records: CampaignRecords) -> pd.DataFrame:
    return select(records.complexity, operator=OPERATORS)


def _drawn(records: CampaignRecords) -> pd.DataFrame:
    """The rows of every panel: the operators' and those of their tokens."""
    tokens = (decoded_tokens(records, operator) for operator in OPERATORS)
    return pd.concat([_scaled(records), *tokens]).drop_duplicates(["source"])


def _scaling_title(records: CampaignRecords) -> str:
    scales = ", ".join(dict.fromkeys(_scaled(records)["scale"]))
    return (
        "Cost against the context, batch 1"
        + (f", in the geometry of {scales}" if scales else "")
        + ": forward and backward of one layer’s operator, its decode state, and a token decoded "
        "by the whole model. Points are medians, bands their 95% intervals. The power of T is "
        "fitted to what takes at least five times as long as the smallest T: undetermined where "
        "these are fewer than three, or its 95% interval is wider than 1. A dashed line marks the "
        "least context at which an operator ran out of memory."
    )


@figure(
    "scaling",
    heading="Cost against the context",
    title=_scaling_title,
    alt="Three charts against the context: the time of MHA, of Full Relation materialised and "
    "tiled and of Linear Relation, the bytes of decode state, both log-log, and the time of one "
    "token from zero.",
    reads=_drawn,
)
def scaling(records: CampaignRecords) -> Figure:
    rows = _scaled(records)
    demand(len(rows) > 0, "complexity measurement", records, "complexity")
    drawn, axes = grid(1, 3, 3.9)
    panels = (
        ("seconds", "forward and backward of one layer (s)"),
        ("decode_state_bytes", "decode state of one layer (bytes)"),
        ("decode_seconds", "decoding a token (ms)"),
    )
    for here, (field, label) in zip(axes[0], panels, strict=True):
        decoding, shown = field == "decode_seconds", set()
        for operator in OPERATORS:
            own = decoded_tokens(records, operator) if decoding else select(rows, operator=operator)
            _power_line(here, own, field, operator)
            shown |= set(own["context"])
        _context_axis(here, sorted(shown or set(rows["context"])))
        here.set_ylabel(label)
        if decoding:
            here.set_ylim(bottom=0)
        else:
            powers(here)
        here.legend(handlelength=1.6, fontsize=7.5, loc="lower left", bbox_to_anchor=(0, 1))
    for operator, failed in select(rows, status="OOM").groupby("operator"):
        _mark_memory(axes[0, 0], failed["context"].min(), OPERATOR_COLOUR[operator], 0.86)
    return drawn


def _context_axis(axes: Axes, contexts: list[int]) -> None:
    doublings(axes, contexts[:: -(-len(contexts) // MOST_TICKS)], ",d")
    axes.set_xlabel("context T (tokens)")


def _mark_memory(axes: Axes, context: float, colour: str, height: float = 0.5) -> None:
    axes.axvline(context, color=colour, linewidth=0.7, linestyle=DASHES)
    look = {"xycoords": ("data", "axes fraction"), "xytext": (-9, 0), "rotation": 90}
    beside(axes, (context, height), "out of memory", fontsize=7.5, **look)


def _power_line(axes: Axes, rows: pd.DataFrame, field: str, operator: str) -> None:
    unit = 1e-3 if field == "decode_seconds" else 1
    points = rows[rows[field] > 0].groupby("context")[field].median() / unit
    if points.empty:
        return
    name = f"{OPERATOR_NAME[operator]}{_exponent(rows, points, field)}"
    width = WIDTHS[operator] if field == "decode_state_bytes" else None
    look = {"color": OPERATOR_COLOUR[operator], "markersize": 3, "linewidth": width}
    axes.plot(points.index, points, marker="o", label=name, **look)
    if f"{field}_low" in rows:
        spread = rows.dropna(subset=[f"{field}_low"]).sort_values("context")
        ends = (spread[f"{field}_{end}"] / unit for end in ("low", "high"))
        band(axes, spread["context"], *ends, OPERATOR_COLOUR[operator])


def _exponent(rows: pd.DataFrame, points: pd.Series, field: str) -> str:
    """The fitted power as the legend tells it: of time by the rule of the table's."""
    if field == "decode_seconds":
        return ""
    if field == "seconds":
        fit, why = fitted_time(rows)
    else:
        fit, why = power_fit(list(zip(points.index.astype(float), points, strict=True))), ""
    if fit is None:
        return ": exponent undetermined" if why else ""
    return f": exponent {round(fit.exponent, 2) + 0.0:.2f}"


def _long(records: CampaignRecords) -> pd.DataFrame:
    return select(records.throughput, benchmark="linear-long")


def _printed_long(records: CampaignRecords, column: str) -> dict[int, float]:
    """The paper's values of a column of Table 17 by T; none beside other models than its own."""
    scales = set(_long(records)["scale"])
    if Likeness(records.page).other_models(scales, budget=False):
        return {}
    values = {context: number("app-linear-long", context, column) for context in PAPER_CONTEXTS}
    return {int(context): value for context, value in values.items() if value is not None}


def _long_title(records: CampaignRecords) -> str:
    rows = _long(records)
    title = "Linear Relation at long contexts, in whole training steps"
    if rows.empty:
        return f"{title}."
    scales, devices = (", ".join(dict.fromkeys(rows[name])) for name in ("scale", "device"))
    title += f" of {scales}, one window a micro-batch, on {devices}: throughput"
    title += " and memory" if rows["allocated_gib"].notna().any() else ""
    if not (theirs := _printed_long(records, "throughput")):
        return f"{title}."
    return (
        f"{title}. Diamonds: what the paper prints of its {PAPER_GPU}, which ran out of memory "
        f"past T = {max(theirs):,}."
    )


@figure(
    "linear-long",
    heading="Linear Relation at long contexts",
    title=_long_title,
    alt="Line charts: Linear Relation's throughput, and its memory where the device counts it, "
    "against the context, the paper's beside; a dashed line marks a context out of memory.",
    reads=_long,
)
def linear_long(records: CampaignRecords) -> Figure:
    rows = _long(records).sort_values("context")
    passed = select(rows, status="PASS")
    demand(len(passed) > 0, "finished long-context measurement", records, "throughput")
    panels = [("tokens_per_second", "throughput", "tokens/s")]
    if passed["allocated_gib"].notna().any():
        panels.append(("allocated_gib", "allocated", "allocated (GiB)"))
    drawn, axes = grid(1, len(panels), 2.8)
    for here, (field, column, label) in zip(axes[0], panels, strict=True):
        look = {"color": OPERATOR_COLOUR["linear"], "label": OPERATOR_NAME["linear"]}
        here.plot(passed["context"], passed[field], "o-", **look)
        theirs = _printed_long(records, column)
        look = {"color": MUTED, "markerfacecolor": "none", "label": "the paper" if theirs else None}
        here.plot(list(theirs), list(theirs.values()), "D-", **look)
        for context in select(rows, status="OOM")["context"]:
            _mark_memory(here, context, INK)
        _context_axis(here, sorted(set(rows["context"])))
        powers(here)
        here.set_ylabel(label)
    return name_lines(drawn)
