"""Throughput, memory and time against T."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from report.compute.complexity import OPERATORS, fitted_time
from report.compute.fit import power_fit
from report.compute.measured import Measurements, select
from report.compute.systems import efficient
from report.figures.drawing import Drawing, demand, grid, present, quantity
from report.layout import SCALES
from report.style import INK, MATERIALISED, MHA, OPERATOR_COLOUR, OPERATOR_NAME, RELATION

if TYPE_CHECKING:
    from relation.records import CampaignRecords

# Operators whose decode states agree lie on one another: the earlier ones stay visible as a rim.
MOST_TICKS = 5
WIDTHS = {"mha": 5.0, "full-reference": 3.2, "full-flash": 1.4, "linear": 1.4}


def _compared(records: CampaignRecords) -> pd.DataFrame:
    return select(records.throughput, status="PASS", benchmark=("fixed", "matched"))


def throughput(records: CampaignRecords) -> Figure:
    """Above, the materialised operator and its tiled form; below, the matched pair; as Table 5."""
    both = _compared(records)
    demand(len(both) > 0, "finished throughput measurement", records, ("throughput",))
    found, scales = efficient(records), present(both, SCALES)
    comparisons = (
        (
            "fixed context",
            (("Materialised", "fixed.reference", MATERIALISED),
             ("FlashRelation", "fixed.flash", RELATION)),
            "fixed.speedup",
        ),
        (
            "matched",
            (("MHA", "matched.mha", MHA), ("Relation", "matched.full", RELATION)),
            "matched.ratio",
        ),
    )  # fmt: skip
    figure, axes = grid(2, len(scales), 3.4)
    for row, (label, sides, ratio) in enumerate(comparisons):
        for here, scale in zip(axes[row], scales, strict=True):
            bars = [(name, found[scale, key, "value"].value, colour) for name, key, colour in sides]
            _bars(here, f"{scale}, {label}{_ratio(found, scale, ratio)}", bars)
    for here in axes[1]:
        here.set_xlabel("tokens/s")
    return figure


def _ratio(found: Measurements, scale: str, column: str) -> str:
    """A ratio of the table with its interval, as a title tells it."""
    value, low, high = (
        None if (cell := found.get((scale, column, statistic))) is None else cell.value
        for statistic in ("value", "low", "high")
    )
    if value is None:
        return ""
    ends = "" if low is None or high is None else f" [{low:.3g}, {high:.3g}]"
    return f"\n{value:.3g}×{ends}"


def _bars(axes: Axes, title: str, bars: list[tuple[str, float | None, str]]) -> None:
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    for place, (_, rate, colour) in enumerate(bars):
        if rate is not None:
            axes.barh(-place, rate, height=0.6, color=colour)
        axes.annotate(
            quantity(rate) if rate is not None else "not run",
            (rate or 0.0, -place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks([0, -1], [name for name, _, _ in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.22 * max((rate for _, rate, _ in bars if rate is not None), default=1.0))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value)))
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.set_title(title)


def _scaled(records: CampaignRecords) -> pd.DataFrame:
    return select(records.complexity, operator=OPERATORS)


def scaling(records: CampaignRecords) -> Figure:
    """Time, decode state and a token's time against T, log-log, with fitted powers."""
    rows = _scaled(records)
    demand(len(rows) > 0, "complexity measurement", records, ("complexity",))
    figure, axes = grid(1, 3, 3.9)
    panels = (
        ("seconds", "seconds, median"),
        ("decode_state_bytes", "decode state (bytes)"),
        ("decode_seconds", "seconds to decode a token"),
    )
    for here, (field, label) in zip(axes[0], panels, strict=True):
        here.set_xscale("log", base=2)
        here.set_yscale("log")
        for operator in OPERATORS:
            _power_line(here, select(rows, operator=operator), field, operator)
        contexts = sorted(set(rows["context"]))
        shown = contexts[:: -(-len(contexts) // MOST_TICKS)]
        here.set_xticks(shown, [f"{context:,}" for context in shown])
        here.xaxis.set_minor_locator(NullLocator())
        here.set_xlabel("context T (tokens)")
        here.set_ylabel(label)
        here.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        here.yaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value)))
        here.yaxis.set_minor_locator(NullLocator())
        here.legend(
            labelcolor="linecolor",
            handlelength=1.2,
            fontsize=7.5,
            loc="lower left",
            bbox_to_anchor=(0, 1),
        )
    return figure


def _power_line(axes: Axes, rows: pd.DataFrame, field: str, operator: str) -> None:
    points = rows[rows[field] > 0].groupby("context")[field].median()
    if points.empty:
        return
    power = _exponent(rows, points, field)
    axes.plot(
        points.index,
        points,
        marker="o",
        markersize=3,
        linewidth=None if field == "seconds" else WIDTHS[operator],
        color=OPERATOR_COLOUR[operator],
        label=f"{OPERATOR_NAME[operator]}{power}",
    )
    if field == "seconds":
        spread = rows.dropna(subset=["seconds_low"]).set_index("context")
        axes.fill_between(
            spread.index,
            spread["seconds_low"],
            spread["seconds_high"],
            color=OPERATOR_COLOUR[operator],
            alpha=0.15,
            linewidth=0,
        )


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


def linear_long(records: CampaignRecords) -> Figure:
    """Linear Relation's throughput and memory against T; contexts out of memory are named."""
    rows = _long(records).sort_values("context")
    passed = select(rows, status="PASS")
    demand(len(passed) > 0, "finished long-context measurement", records, ("throughput",))
    panels = [("tokens_per_second", "tokens/s")]
    if passed["allocated_gib"].notna().any():
        panels.append(("allocated_gib", "allocated (GiB)"))
    figure, axes = grid(1, len(panels), 2.8)
    for here, (field, label) in zip(axes[0], panels, strict=True):
        here.plot(passed["context"], passed[field], "o-", color=OPERATOR_COLOUR["linear"])
        for context in select(rows, status="OOM")["context"]:
            here.axvline(context, color=INK, linewidth=0.7, linestyle=(0, (4, 3)))
            here.annotate(
                "out of memory",
                (context, 0.5),
                xycoords=("data", "axes fraction"),
                xytext=(-9, 0),
                textcoords="offset points",
                rotation=90,
                va="center",
                fontsize=7.5,
            )
        here.set_xscale("log", base=2)
        contexts = sorted(set(rows["context"]))
        here.set_xticks(contexts, [f"{context:,}" for context in contexts])
        here.set_ylim(bottom=0)
        here.yaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value)))
        here.set_xlabel("context T (tokens)")
        here.set_ylabel(label)
    return figure


DRAWINGS = (
    Drawing(
        "throughput",
        "Tokens per second in whole training steps, medians, with Table 5’s ratio of the lower to "
        "the upper, the median of single rounds with its 95% interval: FlashRelation against the "
        "materialised operator, Relation against MHA.",
        "Bar charts by scale: above, tokens per second of the materialised operator and of "
        "FlashRelation; below, of MHA and of Relation; each title gives their ratio.",
        throughput,
        reads=lambda records: (_compared(records),),
    ),
    Drawing(
        "scaling",
        "Time, decode state and a decoded token’s time of each operator against the context, with "
        "the power of T fitted to what takes at least five times as long as the smallest T: "
        "undetermined where these are fewer than three, or its 95% interval is wider than 1.",
        "Three log-log charts against the context: the time of MHA, of Full Relation materialised "
        "and tiled and of Linear Relation, the bytes of decode state, and the time of one token.",
        scaling,
        reads=lambda records: (_scaled(records),),
    ),
    Drawing(
        "linear-long",
        "Linear Relation at long contexts.",
        "Line charts: Linear Relation's throughput, and its memory where the device counts it, "
        "against the context; a dashed line marks a context that ran out of memory.",
        linear_long,
        reads=lambda records: (_long(records),),
    ),
)
