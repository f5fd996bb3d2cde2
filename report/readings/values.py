"""What a pair gives for each claim that readings can move: a value a pair and statistic, at 10M."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from relation.errors import InputError
from relation.geometry import PAIRED
from relation.records.efficiency import smoothed_loss, token_crossing
from relation.records.structure import by_checkpoint, by_layer
from report import paper_seeds
from report.claims.structure import LARGEST_L1_SELF, least_exchange
from report.compute.structure import DISTANCES
from report.layout import SEEDS
from report.paper import UNIT_SCALE
from report.readings.scales import Scale

SCALE = "10M"
INTERVALS = (1, 10, 50, 100)  # updates from one logged loss to the next
WINDOW = 0.01  # of the budget, over which a loss is smoothed (Appendix B.4)
RISES = ("no-count", "exchange-only")
_KEY = ["reading", "seed"]


@dataclass(frozen=True)
class Statistic:
    """One value that every pair has, in the records' units (fractions, nats).

    claim: of SPEC section 4, None for what no claim says; transform: the scale of its means and
    intervals; paper: the paper's at 10M, None where it prints none; side and bound: the paper's
    direction, None where it says none; majority: the direction also takes more than half of the
    pairs; tested: whether it has intervals and contrasts.
    """

    name: str
    claim: int | None
    title: str
    unit: str
    transform: Scale
    paper: float | None
    side: Literal["below", "above", "at least"] | None = None
    bound: float | None = None
    majority: bool = False
    tested: bool = True

    def holds(self, value: float) -> bool | None:
        """Whether a value lies on the paper's side; None where the paper has none."""
        if self.side is None:
            return None
        if self.side == "below":
            return bool(value < self.bound)
        return bool(value > self.bound or (self.side == "at least" and value == self.bound))


def _printed(label: str, row: str, column: str, statistic: str = "value") -> float:
    found = paper_seeds.printed(label, row, column, statistic)
    return found.number * UNIT_SCALE[found.unit]


def _less(label: str, column: str) -> float:
    """The paper's Relation - MHA."""
    return _printed(label, SCALE, f"{column}.full") - _printed(label, SCALE, f"{column}.mha")


def _won() -> float:
    """The paper's share of pairs that Relation wins."""
    deltas = [_printed("app-nll", f"{SCALE}/{seed}", "delta") for seed in SEEDS]
    return sum(delta < 0 for delta in deltas) / len(deltas)


def _anchor() -> float:
    label = "app-structural-layerwise"
    first, *later = (_printed(label, f"{SCALE}/L{layer}", "self.full") for layer in range(6))
    return first / max(later)


def _statistics() -> Iterator[Statistic]:
    nat, internal = "nat/token", "relation_internal"
    delta = _printed("app-nll", f"{SCALE}/mean", "delta")
    yield Statistic(
        "final-nll", 1, "final NLL, Relation - MHA", nat, "identity", delta, "below", 0.0
    )
    # At most one loss in nine; of three pairs against three no test can tell shares apart.
    yield Statistic(
        *("pair-won", 2, "pairs won", "%", "identity", _won(), "at least", 8 / 9), tested=False
    )
    spared = _printed("main-results", SCALE, "token_reduction", "mean")
    for every in INTERVALS:
        often = "every update" if every == 1 else f"every {every}th update"
        title = f"tokens spared to MHA's final loss, logged {often}"
        name = f"spared-every-{every}"
        yield Statistic(name, 3, title, "%", "identity", spared, "above", 0.0, majority=True)
    for variant in RISES:
        rise = _printed("structural-ablations", "delta", variant)
        title = f"final NLL, {variant} - Full Relation"
        yield Statistic(f"{variant}-rise", 4, title, nat, "identity", rise, "above", 0.0)
    self_flow = _printed(internal, SCALE, "l0_self.full")
    yield Statistic("l0-self", 6, "L0 Self flow", "%", "logit", self_flow)
    more, title = _less(internal, "l0_self"), "L0 Self flow, Relation - MHA's diagonal"
    yield Statistic("l0-self-more", 6, title, "%", "identity", more, "above", 0.0)
    ratio = _printed(internal, SCALE, "l0_effrank.ratio")
    title = "L0 effective rank, Relation / MHA"
    yield Statistic("l0-rank-ratio", 7, title, "x", "log", ratio, "above", 1.0)
    second, largest = _printed(internal, SCALE, "l1_self.full"), LARGEST_L1_SELF / 100
    yield Statistic("l1-self", 8, "L1 Self flow", "%", "logit", second, "below", largest)
    deep, least = _printed(internal, SCALE, "l2_exchange.full"), least_exchange() / 100
    title = "Exchange flow from L2 on"
    yield Statistic("l2-exchange", 9, title, "%", "logit", deep, "at least", least)
    for column in DISTANCES:
        tokens, more = column.removeprefix("beyond_"), _less(internal, column)
        title = f"historical mass beyond {tokens}, Relation - MHA"
        yield Statistic(f"beyond-{tokens}", 10, title, "%", "identity", more, "above", 0.0)
    for k, side in ((1, "below"), (32, "above")):
        more = _less("app-structural-sink-profile", f"sink_{k}")
        title = f"historical mass on the first {k}, Relation - MHA"
        yield Statistic(f"sink-{k}", 11, title, "%", "identity", more, side, 0.0)
    title = "L0 Self flow / that of the later layer with most"
    yield Statistic("l0-anchor", None, title, "x", "log", _anchor(), "above", 1.0)
    yield Statistic("l0-lambda", None, "λ of L0 after training", "1", "identity", None)


STATISTICS = tuple(_statistics())
BY_NAME = {statistic.name: statistic for statistic in STATISTICS}


def pair_values(
    runs: pd.DataFrame,
    losses: pd.DataFrame,
    diagnoses: pd.DataFrame,
    probes: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """A row a statistic and pair, in the order of STATISTICS.

    A pair without the records that a statistic takes has no row for it. A pair that never reaches
    MHA's final loss spares 0 tokens.

    Args:
        runs: (reading, variant, seed, final_nll, budget_tokens); losses: (reading, variant, seed,
            tokens, update_tokens, loss); diagnoses: (reading, variant, seed, layer, head, metric,
            count, value); probes: (reading, variant, seed, update, layer, metric, value).

    Returns:
        Columns statistic, reading, seed, value, the latter in the records' units.

    Raises:
        InputError: for a run that is there twice.
    """
    if runs.duplicated([*_KEY, "variant"]).any():
        twice = runs[runs.duplicated([*_KEY, "variant"])].iloc[0]
        name = f"{twice['reading']}/{twice['variant']}/{twice['seed']}"
        raise InputError(f"readings: run {name} is there twice; keep one")
    found = _nll_values(runs) | _spared_values(runs, losses) | _flow_values(diagnoses)
    if probes is not None:
        found["l0-lambda"] = _lambda_values(probes)
    whole = {name: found[name].dropna() for name in BY_NAME if name in found}
    rows = [
        (name, *pair, float(value)) for name, own in whole.items() for pair, value in own.items()
    ]
    return pd.DataFrame(rows, columns=["statistic", *_KEY, "value"])


def _nll_values(runs: pd.DataFrame) -> dict[str, pd.Series]:
    nll = runs.pivot(index=_KEY, columns="variant", values="final_nll")
    nll = nll.reindex(columns=[*PAIRED, *RISES]).astype(float)
    delta = (nll["full"] - nll["mha"]).dropna()
    rises = {f"{variant}-rise": nll[variant] - nll["full"] for variant in RISES}
    return {"final-nll": delta, "pair-won": (delta < 0).astype(float), **rises}


def _spared_values(runs: pd.DataFrame, losses: pd.DataFrame) -> dict[str, pd.Series]:
    """Shares of the budget, for every interval of logging."""
    logs = {key: log for key, log in losses.groupby([*_KEY, "variant"], observed=True)}
    rows: dict[tuple[str, int], dict[str, float]] = {}
    for key, pair in runs.groupby(_KEY):
        if not all((*key, variant) in logs for variant in PAIRED):
            continue
        if not set(PAIRED) <= set(pair["variant"]):
            continue
        budget = int(pair["budget_tokens"].iloc[0])
        rows[key] = {
            f"spared-every-{every}": _spared(
                *(logged(logs[*key, variant], every, WINDOW * budget) for variant in PAIRED), budget
            )
            for every in INTERVALS
        }
    names = [f"spared-every-{every}" for every in INTERVALS]
    index = pd.MultiIndex.from_tuples(rows, names=_KEY) if rows else runs.set_index(_KEY).index[:0]
    return dict(pd.DataFrame(list(rows.values()), index=index, columns=names).items())


def _spared(
    mha: tuple[np.ndarray, np.ndarray], full: tuple[np.ndarray, np.ndarray], budget: int
) -> float:
    """Share of the budget that Relation spares to MHA's last loss; 0 if it never reaches it.

    mha, full: tokens and smoothed losses.
    """
    return token_crossing(mha[1][-1], *full, budget).reduction or 0.0


def logged(log: pd.DataFrame, every: int, window: float) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (N,) and smoothed losses (N,) of a log that keeps one update in ``every``.

    With all updates it is the measure of the matrix. With fewer, each point is the mean of the
    logged losses whose updates end in the ``window`` tokens up to it, itself at least. The updates
    are counted back from the last full one: a log that stopped before the run's end would spare
    tokens to MHA itself, and the partial update is too short for a loss that stands alone.
    """
    log = log.sort_values("tokens")
    if every == 1:
        tokens, size, loss = (log[c].to_numpy() for c in ("tokens", "update_tokens", "loss"))
        return tokens, smoothed_loss(tokens, size, loss.astype(np.float64), window)
    whole = log[log["update_tokens"] == log["update_tokens"].max()]
    kept = whole.iloc[::-1].iloc[::every].iloc[::-1]
    tokens, loss = kept["tokens"].to_numpy(), kept["loss"].to_numpy(dtype=np.float64)
    sums = np.concatenate(([0.0], np.cumsum(loss)))
    first = np.searchsorted(tokens, tokens - window, side="right")
    end = np.arange(1, len(tokens) + 1)
    return tokens, (sums[end] - sums[first]) / (end - first)


def _flow_values(diagnoses: pd.DataFrame) -> dict[str, pd.Series]:
    """Heads count-weighted at a layer, layers at a checkpoint (Appendix B.4)."""
    layers = by_layer(diagnoses.rename(columns={"reading": "scale"}))

    def of(variant: str, metric: str, first: int = 0, last: int | None = None) -> pd.Series:
        kept = (layers["variant"] == variant) & (layers["metric"] == metric)
        kept &= layers["layer"] >= first
        if last is not None:
            kept &= layers["layer"] <= last
        means = by_checkpoint(layers[kept]).rename(columns={"scale": "reading"})
        return means.set_index(_KEY)["value"]

    def less(metric: str, last: int | None = None) -> pd.Series:
        return of("full", metric, last=last) - of("mha", metric, last=last)

    self_flow = of("full", "self_flow", last=0)
    own = layers[(layers["variant"] == "full") & (layers["metric"] == "self_flow")]
    later = own[own["layer"] > 0].rename(columns={"scale": "reading"}).groupby(_KEY)["value"].max()
    return {
        "l0-self": self_flow,
        "l0-self-more": less("self_flow", last=0),
        "l0-rank-ratio": of("full", "effective_rank", last=0) / of("mha", "effective_rank", last=0),
        "l1-self": of("full", "self_flow", 1, 1),
        "l2-exchange": of("full", "exchange_flow", 2),
        **{column.replace("_", "-"): less(metric) for column, metric in DISTANCES.items()},
        **{f"sink-{k}": less(f"sink_{k}") for k in (1, 32)},
        "l0-anchor": self_flow / later,
    }


def _lambda_values(probes: pd.DataFrame) -> pd.Series:
    """λ of Full Relation's first layer, as last looked at."""
    rows = probes[
        (probes["variant"] == "full") & (probes["metric"] == "lambda") & (probes["layer"] == 0)
    ]
    return rows.sort_values("update").groupby(_KEY)["value"].last().astype(float)
