"""Beyond the paper: what the examinations of a campaign's checkpoints say, over seeds."""

from collections.abc import Callable, Iterator

import pandas as pd

from relation.variants import VARIANTS
from report.values.frames import CampaignRecords
from report.values.layout import SCALES, Row
from report.values.measured import Measured, absent, no_counterpart, over_seeds, select

# What a reader should know of every interval.
OVER_SEEDS = (
    "Means over seeds; brackets hold the 95% t interval, which knows the spread between seeds of "
    "one corpus and no other."
)
NO_FLOW = "Linear Relation forms no flow between tokens"
STUBS = ("Scale", "Model")


def row_of(key: str) -> Row:
    """The row of a scale and variant, as 10M/full."""
    scale, _, variant = key.partition("/")
    return Row(key, (scale, VARIANTS[variant].title), group=scale)


# Of the rows of one seed; None where it has no such value.
BySeed = Callable[[pd.DataFrame], float | None]


class Examined:
    """One kind of the records of a campaign's examinations: copying, lengths or self_use."""

    def __init__(self, records: CampaignRecords, kind: str):
        self.records, self.kind = records, kind
        self.rows: pd.DataFrame = getattr(records, kind)
        self._by_model: dict[tuple[str, str], dict[int, pd.DataFrame]] = {}
        for (scale, variant, seed), own in self.rows.groupby(["scale", "variant", "seed"]):
            self._by_model.setdefault((scale, variant), {})[int(seed)] = own

    @property
    def models(self) -> Iterator[tuple[str, str]]:
        """The scales and variants that have a record, or should have one.

        By scale, those that the paper has not last, then as variants are listed.
        """
        frames = [self.rows]
        frames += [
            select(f, kind=self.kind) for f in (self.records.provenance, self.records.missing)
        ]
        known = set()
        for rows in frames:
            known.update(zip(rows["scale"], rows["variant"], strict=True))
        own = dict.fromkeys(scale for scale, _ in sorted(known) if scale not in SCALES)
        for scale in (*SCALES, *own):
            yield from ((scale, variant) for variant in VARIANTS if (scale, variant) in known)

    def seeds(self, scale: str, variant: str) -> dict[int, pd.DataFrame]:
        """The rows of a model's checkpoints by seed."""
        return self._by_model.get((scale, variant), {})

    def mean(
        self, model: tuple[str, str], of: BySeed, said: str, unit: str = "nat/token", none: str = ""
    ) -> Measured:
        """The mean of a value over the seeds of a scale and variant, or why it has none.

        said: which rows count; none: why a record that is there may hold none.
        """
        found = self.seeds(*model)
        numbers = {seed: of(rows) for seed, rows in found.items()}
        values = {seed: number for seed, number in numbers.items() if number is not None}
        sources = (source for seed in values for source in found[seed]["source"].unique())
        return over_seeds(
            values,
            self.records.page["seeds"],
            tuple(sources),
            lambda: self._missing(*model, none),
            unit=unit,
            rows=said,
        )

    def _missing(self, scale: str, variant: str, none: str) -> Measured:
        there = select(self.records.provenance, kind=self.kind, scale=scale, variant=variant)
        if len(there) and none:
            return no_counterpart(none)
        return absent(self.records, (self.kind,), scale, (variant,))


def average(rows: pd.DataFrame, column: str = "value") -> float | None:
    """The mean of a column, weighted by `count`; None of no rows."""
    if rows.empty:
        return None
    return float((rows[column] * rows["count"]).sum() / rows["count"].sum())
