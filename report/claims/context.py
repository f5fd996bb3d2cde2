"""What the claims read: a campaign's values as the tables compute them, each table once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from report.compute.measured import Measured, Measurements
from report.verdicts import Setting, Settings

if TYPE_CHECKING:
    from relation.records import CampaignRecords

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
        """What a function of ``report.compute`` makes of the records."""
        if compute not in self._tables:
            self._tables[compute] = self._computed(compute)
        return self._tables[compute]

    def _computed(self, compute: Compute) -> Measurements:
        return compute(self.records)

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
        return {key: without_seed(value, self.left_out) for key, value in table.items()}


def without_seed(measured: Measured, seed: int) -> Measured:
    """A mean over seeds without one of them; what holds no such seed is itself.

    A ratio of means is none: take it anew of its terms.
    """
    if seed not in measured.by_seed:
        return measured
    rest = {other: value for other, value in measured.by_seed.items() if other != seed}
    if not rest:
        return Measured(status="not run", reason=f"seed {seed} is left out")
    return replace(measured, value=fmean(rest.values()), n=len(rest), by_seed=rest, whole=measured)


def difference(ours: Measured, base: Measured) -> Measured:
    """ours - base, seed by seed where both have the seed; absent for the reason that either is."""
    for term in (ours, base):
        if term.value is None:
            return term
    paired = [seed for seed in ours.by_seed if seed in base.by_seed]
    if ours.by_seed and base.by_seed and not paired:
        return Measured(status="not run", reason="no seed has both terms of the difference")
    by_seed = {seed: ours.by_seed[seed] - base.by_seed[seed] for seed in paired}
    value = sum(by_seed.values()) / len(by_seed) if by_seed else ours.value - base.value
    whole = None
    if ours.whole or base.whole:
        whole = difference(ours.whole or ours, base.whole or base)
    return Measured(
        value,
        unit=ours.unit,
        n=len(by_seed) or min(ours.n, base.n),
        reason=ours.reason or base.reason,
        sources=(*base.sources, *ours.sources),
        by_seed=by_seed,
        whole=whole,
    )
