"""What the claims read: a campaign's values as the tables compute them, each table once."""

from __future__ import annotations

from collections.abc import Callable

from report.judge.claims.evidence import Term, printed
from report.judge.setting import Setting, Settings
from report.values.frames import CampaignRecords
from report.values.layout import Table
from report.values.measured import Measured, Measurements

Compute = Callable[["CampaignRecords"], Measurements]


class Context:
    """A campaign's records and the tables made of them.

    left_out: a seed without which every mean over seeds is taken; whole: the context of all.
    """

    def __init__(
        self, records: CampaignRecords, left_out: int | None = None, whole: Context | None = None
    ) -> None:
        self.records, self.page = records, records.page
        self.left_out, self._whole = left_out, whole
        self._tables: dict[Compute, Measurements] = {}
        self._settings = Settings(records)

    def table(self, compute: Compute) -> Measurements:
        """What a function of ``report.values`` makes of the records."""
        if self._whole is None:
            return self.records.made(compute)
        if compute not in self._tables:
            table = self._whole.table(compute)
            found = {key: value.without(self.left_out) for key, value in table.items()}
            self._tables[compute] = found
        return self._tables[compute]

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
