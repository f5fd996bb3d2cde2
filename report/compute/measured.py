"""What a campaign has to say for one value of a table, and why it may have nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pandas as pd

from relation.records.gaps import NOT_RUN, NOT_THERE
from report.compute.fit import t_quantile

if TYPE_CHECKING:
    from relation.records import CampaignRecords

Status = Literal["ok", "not run", "failed", "oom", "not reached", "undetermined", "no counterpart"]
# What a campaign that ran has to say: a loss that was never reached is an answer too.
ANSWERED = ("ok", "not reached")
# Pieces of which a table takes many: what one is called, and the kind of its record.
_COUNTED = {
    "run": ("run", "run"),
    "further run": ("further run", "further run"),
    "flow": ("diagnosed checkpoint", "diagnostics"),
}


@dataclass(frozen=True)
class Measured:
    """A value in the records' own unit (fraction, token, nat), or the reason for its absence.

    ``unit`` is the unit to print where the paper prints no value; else the paper's is used.
    ``n`` counts the seeds or the measurements behind the value; ``by_seed`` holds what a mean over
    seeds is the mean of; ``rows`` says which rows of the sources count, as ``metric = self_flow``;
    ``whole`` is the same over all seeds, where one was left out.
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


def t_margin(values: list[float]) -> float | None:
    """Half of the 95% t interval of a mean; None below two values."""
    n = len(values)
    if n < 2:
        return None
    return t_quantile(n - 1) * statistics.stdev(values) / math.sqrt(n)


Measurements = dict[tuple[str, str, str], Measured]


def worded(text: str, **fields: object) -> Measured:
    """A worded value."""
    return Measured(text=text, unit="text", n=1, **fields)


def select(frame: pd.DataFrame, **keys: object) -> pd.DataFrame:
    """The rows whose columns equal ``keys``; a tuple stands for any of its members."""
    kept = pd.Series(True, index=frame.index)
    for column, wanted in keys.items():
        kept &= frame[column].isin(wanted if isinstance(wanted, tuple) else (wanted,))
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
    missing: Measured,
    unit: str = "nat/token",
    rows: str = "",
) -> dict[str, Measured]:
    """Mean and sample standard deviation (ddof = 1) over seeds.

    Args:
        values: one value a seed.
        planned: the campaign's seeds; those without a value are named in the reason.
        sources: records behind the values.
        missing: stands in for both statistics when no seed has a value.
        unit, rows: see ``Measured``.
    """
    if not values:
        return {"mean": missing, "sd": missing}
    series = pd.Series(values, dtype="float64")
    left_out = [str(seed) for seed in planned if seed not in values]
    reason = f"seeds without a value: {', '.join(left_out)}" if left_out else ""
    found = {"unit": unit, "n": len(series), "reason": reason, "sources": sources, "rows": rows}
    mean = Measured(float(series.mean()), by_seed=dict(values), **found)
    if len(series) < 2:
        return {
            "mean": mean,
            "sd": Measured(
                status="not run",
                reason="one seed has a value; a standard deviation takes two",
                n=1,
            ),
        }
    return {"mean": mean, "sd": Measured(float(series.std(ddof=1)), **found)}


def is_number(value: object) -> bool:
    """Whether a field of a frame holds a finite number."""
    return pd.api.types.is_number(value) and math.isfinite(value)
