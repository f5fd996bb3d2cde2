"""What a campaign has to say for one value of a table, and why it may have nothing."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from relation.pipeline.gaps import EXAMINED, NOT_RUN, NOT_THERE
from report.values.frames import CampaignRecords
from report.values.statistics import t_quantile

Status = Literal["ok", "not run", "failed", "oom", "not reached", "undetermined", "no counterpart"]
# What a campaign that ran has to say: a loss that was never reached is an answer too.
ANSWERED = ("ok", "not reached")
# Pieces of which a table takes many: what one is called, and the kind of its record.
_COUNTED = {
    "run": ("run", "run"),
    "further run": ("further run", "further run"),
    "flow": ("diagnosed checkpoint", "diagnostics"),
    **{kind: ("examined checkpoint", kind) for kind in EXAMINED},
}


@dataclass(frozen=True)
class Measured:
    """A value in the records' own unit (fraction, token, nat), or the reason for its absence.

    A mean over seeds holds its sample in ``by_seed``. ``a - b`` and ``a / b`` combine two means
    over the seeds that both have; a term that is absent stands for the result.

    ``unit`` is the unit to print where the paper prints no value; else the paper's is used.
    ``n`` counts the seeds or the measurements behind the value; ``rows`` says which rows of the
    sources count, as ``metric = self_flow``; ``whole`` is the same over all seeds, where one was
    left out.
    """

    value: float | None = None
    text: str | None = None
    unit: str = "1"
    n: int = 0
    status: Status = "ok"
    reason: str = ""
    sources: tuple[str, ...] = ()
    rows: str = ""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    whole: Measured | None = None

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over seeds; None below two."""
        return statistics.stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    @property
    def margin(self) -> float | None:
        """Half of the mean's 95% t interval over seeds; None below two.

        With a seed left out it is at most that of all: that of two seeds is so wide that almost
        any value of the paper's would lie in it.
        """
        own = t_margin(list(self.by_seed.values()))
        if own is None or self.whole is None or self.whole.margin is None:
            return own
        return min(own, self.whole.margin)

    @property
    def interval(self) -> dict[str, Measured]:
        """The ends of the 95% interval of a mean, "low" and "high"; empty below two seeds."""
        if self.margin is None:
            return {}
        ends = {"low": self.value - self.margin, "high": self.value + self.margin}
        return {name: replace(self, value=end, by_seed={}) for name, end in ends.items()}

    def deviation(self, alone: Measured) -> Measured:
        """The sample standard deviation over seeds; ``alone`` where one seed has a value."""
        if self.value is None:
            return self
        return alone if self.spread is None else replace(self, value=self.spread, by_seed={})

    def without(self, seed: int) -> Measured:
        """A mean over seeds without one of them; itself if that seed is not in it.

        A ratio of means is no mean over seeds: take it anew of its terms.
        """
        if seed not in self.by_seed:
            return self
        rest = {other: value for other, value in self.by_seed.items() if other != seed}
        if not rest:
            return Measured(status="not run", reason=f"seed {seed} is left out")
        value = statistics.fmean(rest.values())
        return replace(self, value=value, n=len(rest), by_seed=rest, whole=self)

    def __sub__(self, base: Measured) -> Measured:
        return _combined(self, base, operator.sub, self.unit, "difference")

    def __truediv__(self, base: Measured) -> Measured:
        """The ratio of the means; its interval is that of the seeds' own ratios."""
        return _combined(self, base, operator.truediv, "x", "ratio")


def _combined(
    over: Measured, base: Measured, combine: Callable[[float, float], float], unit: str, name: str
) -> Measured:
    for term in (over, base):
        if term.value is None:
            return term
    paired = [seed for seed in over.by_seed if seed in base.by_seed]
    n, values = min(over.n, base.n), (over.value, base.value)
    if over.by_seed and base.by_seed:
        if not paired:
            return Measured(status="not run", reason=f"no seed has both terms of the {name}")
        n = len(paired)
        values = tuple(statistics.fmean(term.by_seed[s] for s in paired) for term in (over, base))
    if name == "ratio" and 0 in (values[1], *(base.by_seed[seed] for seed in paired)):
        return no_counterpart("the denominator is zero")
    whole = None
    if over.whole or base.whole:
        terms = (over.whole or over, base.whole or base)
        whole = _combined(*terms, combine, unit, name)
    return Measured(
        combine(*values),
        unit=unit,
        n=n,
        reason=over.reason or base.reason,
        sources=(*base.sources, *over.sources),
        rows=over.rows,
        by_seed={seed: combine(over.by_seed[seed], base.by_seed[seed]) for seed in paired},
        whole=whole,
    )


def t_margin(values: list[float]) -> float | None:
    """Half of the 95% t interval of a mean; None below two values."""
    n = len(values)
    if n < 2:
        return None
    return t_quantile(n - 1) * statistics.stdev(values) / math.sqrt(n)


class Measurements(dict[tuple[str, str, str], Measured]):
    """A table's values by row, column and statistic: value, mean, sd, low or high."""

    def put(self, row: str, columns: Mapping[str, Measured]) -> None:
        """Values of one row, by column."""
        self.update({(row, column, "value"): value for column, value in columns.items()})

    def put_statistics(self, row: str, column: str, statistics: Mapping[str, Measured]) -> None:
        """What is known of one column, by statistic."""
        self.update({(row, column, statistic): one for statistic, one in statistics.items()})

    def put_mean(self, row: str, column: str, mean: Measured) -> None:
        """A mean over seeds with its standard deviation, as the paper prints them."""
        self.put_statistics(row, column, {"mean": mean, "sd": mean.deviation(ONE_SEED)})

    def put_with_interval(self, row: str, column: str, mean: Measured) -> None:
        """A mean over seeds with its 95% interval, where it has a width."""
        interval = mean.interval if mean.margin else {}
        self.put_statistics(row, column, {"value": mean, **interval})

    def put_intervals(self, row: str, columns: Mapping[str, Measured]) -> None:
        """Several such means of one row, by column."""
        for column, mean in columns.items():
            self.put_with_interval(row, column, mean)


def worded(text: str, **fields: object) -> Measured:
    """A worded value."""
    return Measured(text=text, unit="text", n=1, **fields)


def select(frame: pd.DataFrame, **keys: object) -> pd.DataFrame:
    """The rows whose columns equal ``keys``; a tuple stands for any of its members."""
    kept = np.ones(len(frame), dtype=bool)
    for column, wanted in keys.items():
        kept &= frame[column].isin(wanted if isinstance(wanted, tuple) else (wanted,)).to_numpy()
    return frame[kept]


def absent(
    records: CampaignRecords,
    kinds: tuple[str, ...],
    scale: str | None = None,
    variants: tuple[str, ...] | None = None,
    seed: int | None = None,
) -> Measured:
    """A "not run" that carries what the campaign says of the planned, missing pieces.

    kinds: the first is what the value is made of, as runs or diagnosed checkpoints, which are
    counted where nothing is known of them but that they are not there.
    """
    # Most values of what is not there yet are missing for one of a few reasons.
    return records.made(_absent, kinds, scale, variants, seed)


def _absent(
    records: CampaignRecords,
    kinds: tuple[str, ...],
    scale: str | None,
    variants: tuple[str, ...] | None,
    seed: int | None,
) -> Measured:
    keys = {"scale": scale, "variant": variants, "seed": seed}
    wanted = {name: key for name, key in keys.items() if key is not None}
    planned = select(records.missing, kind=kinds, **wanted)
    unexplained = planned["reason"].astype(str).str.startswith(NOT_THERE)
    told = []
    if kinds[0] in _COUNTED and unexplained.any():
        told.append(_count(records, planned, unexplained, kinds[0], wanted))
        planned = planned[~unexplained]
    told += dict.fromkeys(str(reason) for reason in planned["reason"])
    statuses = [s for s in ("failed", "oom") if (planned["status"] == s).any()]
    if not told and seed is not None and seed not in records.page["seeds"]:
        seeds = ", ".join(map(str, records.page["seeds"]))
        told.append(f"seed {seed} is none of this campaign's ({seeds})")
    status = statuses[0] if statuses else "not run"
    reason = "; ".join(told) or "this campaign holds no record of it"
    return Measured(status=status, reason=reason)


def _count(
    records: CampaignRecords,
    planned: pd.DataFrame,
    unexplained: pd.Series,
    kind: str,
    wanted: Mapping[str, object],
) -> str:
    """How many of a value's runs or checkpoints are not there, of how many."""
    name, record = _COUNTED[kind]
    gone = _identities(planned[unexplained])
    tried = _identities(planned[~unexplained & (planned["status"] != NOT_RUN)])
    there = _identities(select(records.provenance, kind=record, **wanted))
    whole = len(gone | tried | there)
    if whole == 1:
        return f"the {name} is not there"
    of = ""
    if "seed" not in wanted and "scale" in wanted:
        variants = wanted.get("variant", ())
        of = f" of {wanted['scale']}" + (f" ({', '.join(variants)})" if variants else "")
    return f"{len(gone)} of {whole} {name}s{of} {'is' if len(gone) == 1 else 'are'} not there"


def _identities(rows: pd.DataFrame) -> set[tuple[str, str, int]]:
    """The runs that some rows are about: scale, variant and seed."""
    known = rows[rows["seed"].notna()]
    return {
        (row["scale"], row["variant"], int(row["seed"]))
        for row in known[["scale", "variant", "seed"]].to_dict("records")
    }


def no_counterpart(reason: str) -> Measured:
    """A value that this campaign cannot have, however far it runs."""
    return Measured(status="no counterpart", reason=reason)


def over_seeds(
    values: Mapping[int, float],
    planned: Iterable[int],
    sources: tuple[str, ...],
    missing: Callable[[], Measured],
    unit: str = "nat/token",
    rows: str = "",
) -> Measured:
    """The mean over seeds.

    Args:
        values: one value a seed.
        planned: the campaign's seeds; those without a value are named in the reason.
        sources: records behind the values.
        missing: gives the result when no seed has a value.
        unit, rows: see ``Measured``.
    """
    if not values:
        return missing()
    by_seed = {int(seed): float(value) for seed, value in values.items()}
    left_out = [str(seed) for seed in planned if seed not in by_seed]
    return Measured(
        statistics.fmean(by_seed.values()),
        unit=unit,
        n=len(by_seed),
        reason=f"seeds without a value: {', '.join(left_out)}" if left_out else "",
        sources=sources,
        rows=rows,
        by_seed=by_seed,
    )


# A standard deviation that the paper prints, where one seed has a value.
ONE_SEED = Measured(
    status="not run", reason="one seed has a value; a standard deviation takes two", n=1
)


def is_number(value: object) -> bool:
    """Whether a field of a frame holds a finite number."""
    return pd.api.types.is_number(value) and math.isfinite(value)


def logs_beside(records: Iterable[str]) -> tuple[str, ...]:
    """The logs beside the records of runs."""
    return tuple(str(Path(record).with_name("log.parquet")) for record in records)
