"""A sheet in inches, on which figures 1 and 2 are drawn: words, frames, arrows and matrices."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from report.values.style import HAIR, INK, MUTED, RELATION

Point = tuple[float, float]
Fill = Callable[[int, int], tuple[str, float] | None]

PLAIN, SMALL = 9.0, 7.5


class Sheet:
    """A drawing whose coordinates are inches from its lower left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width, height))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(0, height)
        self.axes.set_axis_off()

    def words(
        self,
        at: Point,
        text: str,
        size: float = PLAIN,
        colour: str = INK,
        align: Literal["left", "center", "right"] = "center",
        **options: Any,
    ) -> None:
        """Text or a formula, centred on its height."""
        self.axes.text(*at, text, fontsize=size, color=colour, ha=align, va="center", **options)

    def box(
        self,
        centre: Point,
        size: Point,
        text: str = "",
        colour: str = INK,
        tint: float = 0.0,
        font: float = PLAIN,
    ) -> None:
        """A rounded frame around a text; ``tint`` is the opacity of its filling."""
        x, y = centre[0] - size[0] / 2, centre[1] - size[1] / 2
        shape = {"boxstyle": "round,pad=0,rounding_size=0.05", "linewidth": 0.8}
        if tint:
            fill = FancyBboxPatch((x, y), *size, fc=colour, alpha=tint, ec="none", **shape)
            self.axes.add_patch(fill)
        self.axes.add_patch(FancyBboxPatch((x, y), *size, fc="none", ec=colour, **shape))
        if text:
            self.words(centre, text, font)

    def line(self, *path: Point, colour: str = MUTED, width: float = 0.5, style: str = "-") -> None:
        """A line through some points."""
        xs, ys = zip(*path, strict=True)
        self.axes.plot(xs, ys, style, color=colour, linewidth=width)

    def arrow(self, *path: Point, colour: str = INK, head: bool = True) -> None:
        """A line through the points of ``path`` with a head at its end."""
        if len(path) > 2:
            self.line(*path[:-1], colour=colour, width=0.9)
        style = "-|>,head_length=3.2,head_width=1.7" if head else "-"
        ends = {"shrinkA": 0, "shrinkB": 0, "joinstyle": "miter", "capstyle": "butt"}
        patch = FancyArrowPatch(*path[-2:], arrowstyle=style, color=colour, linewidth=0.9, **ends)
        self.axes.add_patch(patch)

    def plus(self, at: Point, radius: float = 0.085) -> None:
        """The circled sum of a residual stream."""
        # A marker's area is in points: it stays round whatever the axes.
        self.axes.plot(*at, "o", markersize=radius * 2 * 72, mfc="none", mec=INK, mew=0.8)
        self.axes.plot(*at, "+", markersize=radius * 1.2 * 72, mec=INK, mew=0.8)

    def matrix(
        self,
        corner: Point,
        cell: Point,
        count: int,
        fill: Fill,
        text: Callable[[int, int], str] | None = None,
        font: float = SMALL,
    ) -> None:
        """A square matrix from its upper left corner, row 0 on top.

        Args:
            corner: its upper left corner.
            cell: width and height of a cell.
            count: rows and columns.
            fill: colour and opacity of the cell (row, column); None leaves it empty.
            text: what stands in the cell.
            font: size of that text.
        """
        left, top = corner
        for row, column in np.ndindex(count, count):
            x, y = left + column * cell[0], top - (row + 1) * cell[1]
            if (filled := fill(row, column)) is not None:
                colour, opacity = filled
                self.axes.add_patch(Rectangle((x, y), *cell, fc=colour, alpha=opacity, linewidth=0))
            if text is not None:
                colour = INK if column <= row else MUTED
                self.words((x + cell[0] / 2, y + cell[1] / 2), text(row, column), font, colour)
        width, height = count * cell[0], count * cell[1]
        # One path with gaps: a line each would make the SVG several times larger.
        gap, rules = (np.nan, np.nan), range(1, count)
        rows = [(left + side, top - k * cell[1]) for k in rules for side in (0, width)]
        columns = [(left + k * cell[0], top - side) for k in rules for side in (0, height)]
        ends = [*rows, *columns]
        path = [p for k in range(0, len(ends), 2) for p in (*ends[k : k + 2], gap)]
        self.line(*path, colour=HAIR)
        frame = Rectangle((left, top - height), width, height, fill=False, ec=INK, linewidth=0.7)
        self.axes.add_patch(frame)

    def roles(self, places: tuple[float, ...], row: float, size: Point, apart: float) -> None:
        """Ask Self above ``row``, Ask Others below.

        ``places`` along the sheet: end of the evidence, fork, the boxes' middle, join, and start of
        the relation.
        """
        start, fork, middle, join, end = places
        for side, name, formula, tint in (
            (1, "Ask Self", r"$S_i=\sigma(U_{ii}/\tau_S)$", 0.26),
            (-1, "Ask Others", r"$E_{ij}=\mathrm{SiLU}(U_{ij})$", 0.08),
        ):
            at = row + side * apart
            self.box((middle, at), size, "", RELATION, tint)
            self.words((middle, at + 0.1), name, SMALL + 1, weight="bold")
            self.words((middle, at - 0.1), formula, SMALL + 0.5)
            self.arrow((start, row), (fork, row), (fork, at), (middle - size[0] / 2, at))
            self.arrow((middle + size[0] / 2, at), (join, at), (join, row), (end, row))


def shades(values: np.ndarray, colour: str, least: float = 0.06) -> Fill:
    """Fill of a lower triangle (T, T) whose opacity is the value over the greatest."""
    opacity = least + (1 - least) * 0.9 * values / np.max(values)
    return lambda row, column: (colour, float(opacity[row, column])) if column <= row else None


def by_role(own: float, others: float) -> Fill:
    """Fill of a lower triangle: the opacity of its diagonal, and that of the cells below."""

    def fill(row: int, column: int) -> tuple[str, float] | None:
        return (RELATION, own if row == column else others) if column <= row else None

    return fill
