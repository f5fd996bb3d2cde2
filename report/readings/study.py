"""Everything that is computed of a campaign's readings, once for pages and figures alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from report.readings.rule import Choice, choose
from report.readings.statistics import contrasts, intervals, turns
from report.readings.values import STATISTICS, Statistic, pair_values

if TYPE_CHECKING:
    from relation.records.multiverse import ReadingRecords


class Described(NamedTuple):
    """A configured reading without its runs."""

    name: str
    residual: str
    choice: str
    title: str
    group: str
    paper: str
    adds: tuple[str, ...]
    beside: bool


@dataclass(frozen=True)
class Study:
    """The answers to a campaign's readings.

    readings: the configured ones, in order; choice: the rule's answer; base: the reading that
    contrasts are taken against, which is the default that the rule leaves; values, intervals,
    contrasts, turns: as `report.readings.values` and `report.readings.statistics` give them.
    """

    readings: tuple[Described, ...]
    choice: Choice
    base: str
    values: pd.DataFrame
    intervals: pd.DataFrame
    contrasts: pd.DataFrame
    turns: pd.DataFrame

    @property
    def statistics(self) -> list[Statistic]:
        """Those that have a value, in order."""
        there = set(self.values["statistic"])
        return [statistic for statistic in STATISTICS if statistic.name in there]

    def of(self, statistic: str) -> pd.DataFrame:
        """The intervals of one statistic by reading, in the order of the configuration."""
        rows = self.intervals[self.intervals["statistic"] == statistic].set_index("reading")
        return rows.reindex([r.name for r in self.readings if r.name in rows.index])

    def turning(self, statistic: str) -> set[str]:
        """The readings on which a statistic's direction turns."""
        rows = self.turns[self.turns["statistic"] == statistic]
        return set(rows.loc[rows["turns"].fillna(False).astype(bool), "reading"])


@lru_cache(maxsize=1)
def study(records: ReadingRecords) -> Study:
    """Compute everything of these records; the same object gives the same answer again.

    Raises InputError for rows of a foreign seed, or a run that is there twice.
    """
    readings = tuple(
        Described(**{**reading, "adds": tuple(reading["adds"])}) for reading in records.described
    )
    choice = choose(readings, records.diagnoses)
    values = pair_values(records.runs, records.losses, records.diagnoses, records.probes)
    base = choice.default
    return Study(
        readings=readings,
        choice=choice,
        base=base,
        values=values,
        intervals=intervals(values),
        contrasts=contrasts(values, base),
        turns=turns(values, base),
    )
