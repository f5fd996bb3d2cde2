"""Beyond the paper: device seconds until Relation reaches the loss that MHA ends at."""

import statistics
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from relation.variants import PAIRED
from report.values.efficiency import Crossing, token_crossing
from report.values.frames import CampaignRecords
from report.values.further import KIND, further_row
from report.values.layout import SCALES, Needs, Note, Number, Row, Table, Words, block, value
from report.values.measured import Measured, Measurements, absent, select
from report.values.numbers import spans
from report.values.systems import efficient

METRIC = "validation_nll"
# The benchmark's cell of an attention, and what the columns beside it are called.
_AGAINST = {"flash": "matched.mha", "other": "peers.other"}


def validation_looks(probes: pd.DataFrame, **keys: object) -> pd.DataFrame:
    """The looks at validation NLL of the runs that have these keys, in the order of their tokens.

    probes: rows of PROBES, with `alike`; looks that another configuration took are left out.
    """
    looks = select(probes, metric=METRIC, alike=True, **keys)
    return looks[looks["value"].notna()].sort_values("tokens")


def first_crossing(target: float, looks: pd.DataFrame) -> Crossing:
    """Where the looks at one run first are at `target` nat/token, between two by a line."""
    tokens, values = (looks[name].to_numpy(float) for name in ("tokens", "value"))
    return token_crossing(float(target), tokens, values, max(1, int(tokens[-1])))


def crossings(probes: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Where validation NLL first reaches the one that MHA ends at: a row a pair of a scale.

    probes: rows of PROBES, with `alike`. Columns: seed; full and mha, the tokens of either run as a
    share of MHA's budget, NaN where it is never reached. A pair counts where MHA's look at its end
    and one of Relation's at as many tokens are there.
    """
    rows = []
    for seed, pair in validation_looks(probes, scale=scale, variant=PAIRED).groupby("seed"):
        mha, full = (select(pair, variant=variant) for variant in PAIRED)
        if mha.empty or full.empty or mha["tokens"].max() != full["tokens"].max():
            continue
        reached = [first_crossing(mha["value"].iloc[-1], own) for own in (full, mha)]
        shares = [None if c.reduction is None else 1 - c.reduction for c in reached]
        rows.append({"seed": int(seed), "full": shares[0], "mha": shares[1]})
    return pd.DataFrame(rows, columns=["seed", "full", "mha"]).astype({"full": float, "mha": float})


def cost_to_a_loss(records: CampaignRecords) -> Measurements:
    """A row a scale, and one of the pairs beyond the matrix where there are some."""
    found = Measurements()
    rates = efficient(records)
    for scale in SCALES:
        _put_pairs(found, records, scale, rates)
    return found


def _put_pairs(
    found: Measurements, records: CampaignRecords, scale: str, rates: Measurements
) -> None:
    places = [(scale, records.probes, "run")]
    if scale in records.page["further_seeds"]:
        places.append((further_row(scale), records.further_probes, KIND))
    for row, probes, kind in places:
        pairs, none = crossings(probes, scale), absent(records, (kind,), scale, PAIRED)
        own = select(probes, scale=scale, variant=PAIRED, seed=tuple(pairs["seed"]))
        tokens = {
            variant: _share(pairs, variant, tuple(own["source"].unique()), none)
            for variant in PAIRED
        }
        found.put(row, {"reached": _reached(pairs, tokens["full"])})
        for variant, share in tokens.items():
            found.put_with_interval(row, f"tokens.{variant}", share)
        relation = rates[scale, "matched.full", "value"]
        for name, column in _AGAINST.items():
            attention = rates[scale, column, "value"]
            speed = relation / attention
            found.put(row, {f"speed.{name}": speed})
            found.put_with_interval(row, f"cost.{name}", _cost(tokens["full"], speed))
        found.put(row, {"other": rates[scale, "peers.name", "value"]})


def _share(pairs: pd.DataFrame, variant: str, sources: tuple[str, ...], none: Measured) -> Measured:
    """Mean tokens until the target as a share of the budget.

    A pair that never reaches it counts as the whole budget: a mean without such pairs would favour
    Relation.
    """
    shares = pairs.set_index("seed")[variant]
    if shares.empty:
        return none
    never = [int(seed) for seed in shares.index[shares.isna()]]
    told = f"never reached, and counted as the whole budget: seeds {spans(never)}" if never else ""
    by_seed = {int(seed): float(share) for seed, share in shares.fillna(1.0).items()}
    behind = Measured(unit="%", n=len(by_seed), reason=told, sources=sources, rows=METRIC)
    if len(never) == len(shares):
        return replace(behind, status="not reached", reason="no pair reaches MHA’s final NLL")
    return replace(behind, value=statistics.fmean(by_seed.values()), by_seed=by_seed)


def _reached(pairs: pd.DataFrame, share: Measured) -> Measured:
    """How many pairs reach the target, of how many."""
    if pairs.empty:
        return share
    text = f"{int(pairs['full'].notna().sum())} of {len(pairs)}"
    return Measured(text=text, unit="text", n=len(pairs), sources=share.sources)


def _cost(tokens: Measured, speed: Measured) -> Measured:
    """Seconds over MHA's own: the share of the tokens over the ratio of the rates."""
    for term in (tokens, speed):
        if term.value is None:
            return term
    return replace(
        tokens,
        value=tokens.value / speed.value,
        unit="x",
        sources=(*tokens.sources, *speed.sources),
        by_seed={seed: share / speed.value for seed, share in tokens.by_seed.items()},
    )


def _notes(cells: pd.DataFrame) -> Iterator[Note]:
    if not len(cells[(cells["status"] == "ok") & cells["column"].str.startswith("tokens.")]):
        return
    yield Note(
        "Below 1, Relation is cheaper. A pair that never reaches the loss counts as the whole "
        "budget, so that where some do not, means are lower bounds. Brackets hold the 95% t "
        "interval over seeds; the rates are single numbers of one device, and their spread is not "
        "in it. A first crossing of a noisy curve comes early by itself: beside Relation’s stands "
        "that of MHA’s own curve.",
        below=True,
    )


_SHARE, _RATIO = Number(1, "%"), Number(3, "×")
COST = Table(
    label="beyond-cost",
    number="B2",
    title="Cost to a loss",
    summary="Device seconds to the loss that MHA ends at: tokens spared times speed.",
    caption=(
        "How long Relation on FlashRelation trains until its validation NLL reaches that of MHA at "
        "the end of its budget, over how long MHA trains: the share of MHA’s tokens, at the first "
        "crossing between looks, over the ratio of the rates in whole training steps. MHA runs "
        "on FlashAttention, or on the campaign’s other attention."
    ),
    panels=block(
        value("Pairs that\nreach it", "reached", Words()),
        value("Tokens,\nRelation", "tokens.full", _SHARE, "full"),
        value("Tokens,\nMHA itself", "tokens.mha", _SHARE, "mha"),
        value("Rate over\nFlashAttn.", "speed.flash", _RATIO),
        value("Seconds over\nFlashAttn.", "cost.flash", _RATIO),
        value("Other\nattention", "other", Words()),
        value("Rate over\nit", "speed.other", _RATIO),
        value("Seconds over\nit", "cost.other", _RATIO),
    ),
    measure=cost_to_a_loss,
    needs=Needs(lambda run: run.variant in PAIRED, further=True, benchmarks=("matched",)),
    rows=(),
    extra_row=lambda key: Row(key, (key.replace("/", ", "),), group=key.partition("/")[0]),
    notes=(_notes,),
)
