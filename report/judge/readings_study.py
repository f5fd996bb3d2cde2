"""Everything that is computed of a campaign's readings, once for pages and figures alike."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import pandas as pd

from relation.pipeline.gather import ReadingRecords
from relation.variants import PAIRED
from report.judge.readings_rule import BASE, RATES, RESIDUALS, Choice, choose
from report.judge.readings_statistics import compare
from report.values.readings import STATISTICS, Statistic, pair_values

HALF, TWICE = RATES
FACTORS = {HALF: 0.5, BASE: 1.0, TWICE: 2.0}  # of the paper's learning rate
RATE_NAMES = {
    HALF: "half the paper’s learning rate",
    BASE: "the paper’s learning rate",
    TWICE: "twice the paper’s learning rate",
}
BASES = {residual: f"{residual}-{BASE}" for residual in RESIDUALS}


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
    start_ratio: float
    output_ratio: float


@dataclass(frozen=True)
class Study:
    """The answers to a campaign's readings.

    readings: the configured ones, in order; choice: the rule's answer; values: a value a statistic
    and pair, as `pair_values` gives them.
    """

    records: ReadingRecords
    readings: tuple[Described, ...]
    choice: Choice
    values: pd.DataFrame

    @property
    def base(self) -> str:
        """The reading that the others are compared with: the default that the rule leaves."""
        return self.choice.default

    @cached_property
    def compared(self) -> pd.DataFrame:
        """Every statistic of every reading, as `compare` gives it against the base."""
        return compare(self.values, self.base)

    @cached_property
    def by_scale(self) -> pd.DataFrame:
        """The same with each reading compared with the base of its own residual scale.

        The scaled base is compared with the unscaled one.
        """
        against = {reading.name: BASES[reading.residual] for reading in self.readings}
        against[BASES["scaled"]] = BASES["unscaled"]
        parts = (compare(self.values, base).assign(against=base) for base in BASES.values())
        rows = pd.concat(parts, ignore_index=True)
        return rows[rows["reading"].map(against) == rows["against"]]

    @property
    def statistics(self) -> list[Statistic]:
        """Those that have a value, in order."""
        there = set(self.values["statistic"])
        return [statistic for statistic in STATISTICS if statistic.name in there]

    @cached_property
    def _found(self) -> dict[tuple[str, bool], pd.DataFrame]:
        return {}

    def of(self, statistic: str, by_scale: bool = False) -> pd.DataFrame:
        """One statistic's rows of `compared`, or of `by_scale`, by reading, as configured."""
        asked = (statistic, by_scale)
        if asked not in self._found:
            frame = self.by_scale if by_scale else self.compared
            rows = frame[frame["statistic"] == statistic].set_index("reading")
            order = [r.name for r in self.readings if r.name in rows.index]
            self._found[asked] = rows.reindex(order)
        return self._found[asked]

    def turning(self, statistic: str) -> list[str]:
        """The readings on which a statistic's direction turns, as configured."""
        rows = self.of(statistic)
        return list(rows.index[rows["turns"].fillna(False).astype(bool)])

    @cached_property
    def nll(self) -> pd.DataFrame:
        """Final NLL, nat/token: a row a whole pair.

        Columns reading, residual, choice, beside, seed, mha, full and delta, the latter full - mha.
        """
        runs = self.records.runs
        wide = runs[runs["variant"].isin(PAIRED)].pivot_table(
            index=["reading", "seed"], columns="variant", values="final_nll", sort=False
        )
        wide = wide.reindex(columns=list(PAIRED)).dropna().astype(float).reset_index()
        about = pd.DataFrame(self.readings)[["name", "residual", "choice", "beside"]]
        pairs = about.rename(columns={"name": "reading"}).merge(wide, on="reading")
        return pairs.assign(delta=pairs["full"] - pairs["mha"])

    @property
    def comparable(self) -> pd.DataFrame:
        """The pairs of the readings' own text: on another, a loss has another entropy below it."""
        others = [
            reading["name"] for reading in self.records.described if reading["group"] == "text"
        ]
        return self.nll[~self.nll["reading"].isin(others)]

    @property
    def rates(self) -> pd.DataFrame:
        """The pairs at `factor` times the paper's rate, of residual scales that tried several."""
        pairs = self.nll.assign(factor=self.nll["choice"].map(FACTORS)).dropna(subset="factor")
        return pairs[pairs.groupby("residual")["factor"].transform("nunique") > 1]


@lru_cache(maxsize=1)
def study(records: ReadingRecords) -> Study:
    """Compute everything of these records; the same object gives the same answer again.

    Raises InputError for rows of a foreign seed, or a run that is there twice.
    """
    readings = tuple(
        Described(
            **{name: reading[name] for name in Described._fields} | {"adds": tuple(reading["adds"])}
        )
        for reading in records.described
    )
    values = pair_values(records.runs, records.losses, records.diagnoses, records.probes)
    return Study(records, readings, choose(readings, records.diagnoses), values)
