"""What all drawings share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from relation.records.gaps import NOT_THERE
from report.compute.measured import select
from report.style import MUTED, OPERATOR_COLOUR, OPERATOR_NAME

if TYPE_CHECKING:
    from relation.records import CampaignRecords


PAIR = ("mha", "full")


# So many records that are not there are named one by one.
_MOST_NAMED = 3


class NotDrawnError(Exception):
    """A figure's data are not there; the message says which and why."""


@dataclass(frozen=True)
class Drawing:
    """One figure: file name, title, description in words, and how it is drawn.

    ``title`` may depend on the records. ``outlined`` keeps its letters as outlines: a formula needs
    signs that a reader's fonts may lack. ``page`` writes a page of its own on which a reader
    explores it, where there is one. ``reads`` gives the rows that it shows, each with its record in
    the column "source"; None where it shows no campaign's data. ``planned`` says of records whether
    their campaign plans what it shows, and so has the figure at all; None where every one does.
    """

    name: str
    title: str | Callable[[CampaignRecords], str]
    alt: str
    draw: Callable[[CampaignRecords], Figure]
    outlined: bool = False
    page: Callable[[CampaignRecords], str] | None = None
    reads: Callable[[CampaignRecords], Iterable[pd.DataFrame]] | None = None
    planned: Callable[[CampaignRecords], bool] | None = None

    def sources(self, records: CampaignRecords) -> list[str]:
        """The Parquet files that it is drawn from, in the order of the records."""
        frames = [] if self.reads is None else self.reads(records)
        return list(dict.fromkeys(source for rows in frames for source in rows["source"]))


def demand(found: bool, what: str, records: CampaignRecords, kinds: tuple[str, ...]) -> None:
    """Refuse to draw without data.

    Raises:
        NotDrawnError: nothing was found; the campaign's own reasons are named, of many records that
            are just not there the first.
    """
    if found:
        return
    reasons = dict.fromkeys(str(reason) for reason in select(records.missing, kind=kinds)["reason"])
    told = [reason for reason in reasons if not reason.startswith(NOT_THERE)]
    untried = [reason for reason in reasons if reason.startswith(NOT_THERE)]
    if len(untried) > _MOST_NAMED:
        untried = [f"{untried[0]}, nor {len(untried) - 1} more"]
    because = "; ".join((*told, *untried))
    raise NotDrawnError(f"this campaign has no {what}" + (f" ({because})" if because else ""))


def grid(rows: int, columns: int, height: float, **options: object) -> tuple[Figure, np.ndarray]:
    """A figure of the page's width with rows x columns axes, always a 2-D array."""
    figure = Figure(figsize=(8.4, height))
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def present(frame: pd.DataFrame, scales: Sequence[str]) -> list[str]:
    """The scales of a frame, in the paper's order."""
    found = set(frame["scale"])
    return [scale for scale in scales if scale in found]


def token_ticks(axes: Axes) -> None:
    """A few round counts of tokens."""
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: quantity(tokens)))


def token_axis(axes: Axes) -> None:
    """Training tokens from left to right."""
    token_ticks(axes)
    axes.set_xlabel("training tokens")


def mark_passes(axes: Axes, runs: pd.DataFrame) -> None:
    """A dotted line where the runs begin to read a window again."""
    passes = runs[runs["epochs"] > 0]
    if passes.empty:
        return
    first = passes.iloc[0]
    tokens = first["trained_tokens"] / first["epochs"]
    for epoch in range(1, int(first["epochs"]) + 1):
        axes.axvline(epoch * tokens, color=MUTED, linewidth=0.7, linestyle=":", zorder=1)
    axes.set_xlim(0, 1.02 * first["trained_tokens"])


def name_pair(axes: Axes) -> None:
    """The pair's names in their colours, at the right."""
    for position, variant in enumerate(PAIR):
        axes.text(
            0.97,
            0.9 - 0.12 * position,
            OPERATOR_NAME[variant],
            transform=axes.transAxes,
            ha="right",
            color=OPERATOR_COLOUR[variant],
        )


def quantity(value: float, form: str = ".3g") -> str:
    """A count with a letter for its size: 131K, 1.07B."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:{form}}".rstrip(".") + letter
    return f"{value:{form}}".rstrip(".")
