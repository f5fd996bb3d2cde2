"""Boxes, arrows, formulas and small matrices, placed in inches: what the diagrams are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from report.style import HAIR, INK, MUTED

Point = tuple[float, float]

# A formula is set in Times, as the paper's are; places are given, not found.
TYPE: dict[str, Any] = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "figure.constrained_layout.use": False,
}
PLAIN = 9.0
SMALL = 7.5


def sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty drawing whose coordinates are inches from its lower left corner."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.set_axis_off()
    return figure, axes


def words(
    axes: Axes,
    at: Point,
    text: str,
    size: float = PLAIN,
    colour: str = INK,
    align: Literal["left", "center", "right"] = "center",
    **options: Any,
) -> None:
    """Text or a formula, centred on its height."""
    axes.text(*at, text, fontsize=size, color=colour, ha=align, va="center", **options)


def box(
    axes: Axes,
    centre: Point,
    size: Point,
    text: str = "",
    colour: str = INK,
    tint: float = 0.0,
    font: float = PLAIN,
    **options: Any,
) -> None:
    """A rounded frame around a text; ``tint`` is the opacity of its filling."""
    x, y = centre[0] - size[0] / 2, centre[1] - size[1] / 2
    shape = {"boxstyle": "round,pad=0,rounding_size=0.05", "linewidth": 0.8, **options}
    if tint:
        fill = FancyBboxPatch((x, y), *size, facecolor=colour, alpha=tint, **shape | {"ec": "none"})
        axes.add_patch(fill)
    axes.add_patch(FancyBboxPatch((x, y), *size, facecolor="none", edgecolor=colour, **shape))
    if text:
        words(axes, centre, text, font)


def arrow(axes: Axes, *path: Point, colour: str = INK, head: bool = True, **options: Any) -> None:
    """A line through the points of ``path`` with a head at its end."""
    if len(path) > 2:
        xs, ys = zip(*path[:-1], strict=True)
        axes.plot(xs, ys, color=colour, linewidth=0.9, solid_joinstyle="round", **options)
    style = "-|>,head_length=3.2,head_width=1.7" if head else "-"
    axes.add_patch(
        FancyArrowPatch(
            *path[-2:],
            arrowstyle=style,
            color=colour,
            linewidth=0.9,
            shrinkA=0,
            shrinkB=0,
            joinstyle="miter",
            capstyle="butt",
            **options,
        )
    )


def plus(axes: Axes, at: Point, radius: float = 0.085) -> None:
    """The circled sum of a residual stream."""
    # A marker's area is in points: it stays round whatever the axes.
    axes.plot(*at, "o", markersize=radius * 2 * 72, mfc="none", mec=INK, mew=0.8)
    axes.plot(*at, "+", markersize=radius * 1.2 * 72, mec=INK, mew=0.8)


def matrix(
    axes: Axes,
    corner: Point,
    cell: Point,
    count: int,
    fill: Callable[[int, int], tuple[str, float] | None],
    text: Callable[[int, int], str] | None = None,
    font: float = SMALL,
) -> None:
    """A square matrix, row 0 on top.

    Args:
        axes: a sheet.
        corner: its upper left corner.
        cell: width and height of a cell.
        count: rows and columns.
        fill: colour and opacity of the cell (row, column); None leaves it empty.
        text: what stands in the cell.
        font: size of that text.
    """
    left, top = corner
    for row in range(count):
        for column in range(count):
            x, y = left + column * cell[0], top - (row + 1) * cell[1]
            filled = fill(row, column)
            if filled is not None:
                colour, opacity = filled
                patch = Rectangle((x, y), *cell, facecolor=colour, alpha=opacity, linewidth=0)
                axes.add_patch(patch)
            if text is not None:
                where = (x + cell[0] / 2, y + cell[1] / 2)
                words(axes, where, text(row, column), font, INK if column <= row else MUTED)
    width, height = count * cell[0], count * cell[1]
    inner = [(left, left + width, top - k * cell[1], top - k * cell[1]) for k in range(1, count)]
    inner += [(left + k * cell[0], left + k * cell[0], top, top - height) for k in range(1, count)]
    # One path with gaps: a line each would make the SVG several times larger.
    xs = [x for x0, x1, _, _ in inner for x in (x0, x1, np.nan)]
    ys = [y for _, _, y0, y1 in inner for y in (y0, y1, np.nan)]
    axes.plot(xs, ys, color=HAIR, linewidth=0.5)
    frame = Rectangle((left, top - height), width, height, fill=False, ec=INK, linewidth=0.7)
    axes.add_patch(frame)


def shades(values: np.ndarray, colour: str, least: float = 0.06) -> Callable:
    """Fill of a lower triangle (T, T) whose opacity is the value over the greatest."""
    greatest = float(np.max(values))

    def fill(row: int, column: int) -> tuple[str, float] | None:
        if column > row:
            return None
        return colour, least + (1 - least) * 0.9 * float(values[row, column]) / greatest

    return fill


def brace(axes: Axes, start: Point, end: Point, depth: float = 0.06) -> None:
    """A square bracket along a horizontal or vertical line, open towards positive ``depth``."""
    (x0, y0), (x1, y1) = start, end
    across = (0.0, depth) if y0 == y1 else (depth, 0.0)
    corners: Sequence[Point] = (
        (x0 + across[0], y0 + across[1]),
        start,
        end,
        (x1 + across[0], y1 + across[1]),
    )
    axes.plot(*zip(*corners, strict=True), color=MUTED, linewidth=0.7)
