"""What the claims read: a campaign's values as the tables compute them, each table once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from report.judge.claims.evidence import Term, printed
from report.judge.setting import Setting, Settings
from report.values.layout import Table
from report.values.measured import Measured, Measurements

if TYPE_CHECKING:
    from report.values.frames import CampaignRecords

Compute = Callable[["CampaignRecords"], Measurements]


class Context:
    """A campaign's records and the tables made of them."""

    left_out: int | None = None

    def __init__(self, records: CampaignRecords) -> None:
        self.records = records
        self.page = records.page
        self._tables: dict[Compute, Measurements] = {}
        self._settings = Settings(records)

    def table(self, compute: Compute) -> Measurements:
        """What a function of ``report.values`` makes of the records."""
        if compute not in self._tables:
            self._tables[compute] = self._computed(compute)
        return self._tables[compute]

    def _computed(self, compute: Compute) -> Measurements:
        return compute(self.records)

    def cell(self, table: Table, row: str, column: str, statistic: str = "value") -> Measured:
        """A value of one of the tables."""
        return self.table(table.measure)[row, column, statistic]

    def term(self, table: Table, row: str, column: str, statistic: str = "value") -> Term:
        """A value of one of the tables beside what the paper prints there."""
        paper = printed(table.label, row, column, statistic)
        return Term(paper, self.cell(table, row, column, statistic))

    def interval(self, table: Table, row: str, column: str) -> tuple[float | None, float | None]:
        """The 95% interval beside a value of a table, where the table has one."""
        cells = self.table(table.measure)
        found = (cells.get((row, column, end)) for end in ("low", "high"))
        low, high = (None if end is None else end.value for end in found)
        return low, high

    def setting(self, sources: tuple[str, ...], scales: tuple[str, ...] = ()) -> Setting:
        """What a value that rests on these records has in common with the paper's."""
        return self._settings.of(sources, scales)


class WithoutSeed(Context):
    """The same tables with one seed left out of every mean over seeds."""

    def __init__(self, whole: Context, seed: int) -> None:
        super().__init__(whole.records)
        self._whole, self.left_out = whole, seed

    def _computed(self, compute: Compute) -> Measurements:
        table = self._whole.table(compute)
        return {key: value.without(self.left_out) for key, value in table.items()}
