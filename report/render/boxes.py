"""The boxes of the pipeline's picture: jobs as squares in labelled rows, and where a box stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Sizes in the picture's own units, which are CSS pixels at its full width.
CELL, GAP, LABEL, TITLE, PAD = 15, 4, 92, 22, 10
COLUMN_GAP, ROW_GAP = 56, 16
# A letter of a label, wider than the mean of the page's type.
LETTER = 6.0
# Squares in a row where there may be many.
SQUARES = 8
# Below a box of diagnostics this much stays free, for the line that leads past it.
LANE = 16


@dataclass(frozen=True)
class Job:
    """One square: what it is, its page where it has one, and whether its record is missing."""

    title: str
    kind: str = "other"
    page: str = ""
    missing: bool = False


@dataclass(frozen=True)
class Box:
    """Jobs of one rule that belong together: rows of squares with a label each.

    ``needs`` has the keys of the boxes that it depends on; ``floor`` is its least height.
    """

    rule: str
    title: str
    rows: tuple[tuple[str, tuple[Job, ...]], ...]
    needs: tuple[str, ...] = ()
    floor: int = 0

    @property
    def key(self) -> str:
        return f"{self.rule} {self.title}"

    @property
    def label_width(self) -> int:
        longest = max((len(label) for label, _ in self.rows), default=0)
        return max(LABEL, round(LETTER * longest) + GAP)

    @property
    def width(self) -> int:
        squares = max((len(jobs) for _, jobs in self.rows), default=0)
        return 2 * PAD + self.label_width + squares * (CELL + GAP)

    @property
    def height(self) -> int:
        return max(self.floor, 2 * PAD + TITLE + len(self.rows) * (CELL + GAP) - GAP)


@dataclass(frozen=True)
class Placed:
    """A box and where it stands."""

    box: Box
    x: int
    y: int

    @property
    def right(self) -> int:
        return self.x + self.box.width

    @property
    def middle(self) -> float:
        return self.y + self.box.height / 2

    @property
    def jobs(self) -> Iterator[tuple[Job, int, int]]:
        """Every square with its corner."""
        for line, (_, jobs) in enumerate(self.box.rows):
            for place, job in enumerate(jobs):
                yield (
                    job,
                    self.x + PAD + self.box.label_width + place * (CELL + GAP),
                    self.y + PAD + TITLE + line * (CELL + GAP),
                )

    @property
    def labels(self) -> Iterator[tuple[str, int, int]]:
        """The label of every row with its baseline."""
        for line, (label, _) in enumerate(self.box.rows):
            yield label, self.x + PAD, self.y + PAD + TITLE + line * (CELL + GAP) + CELL - 3


def in_rows(label: str, jobs: Sequence[Job]) -> list[tuple[str, tuple[Job, ...]]]:
    """Jobs in rows of at most SQUARES, so that a box is no wider than most; the first is named."""
    return [
        ("" if start else label, tuple(jobs[start : start + SQUARES]))
        for start in range(0, len(jobs), SQUARES)
    ]
