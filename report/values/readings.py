"""What a pair gives for each claim that readings can move: a value a pair and statistic, at 10M."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from relation.errors import InputError
from relation.flow.pooled import by_checkpoint, by_layer
from relation.variants import PAIRED
from report.values.efficiency import smoothed_loss, token_crossing
from report.values.layout import SEEDS
from report.values.measured import select
from report.values.paper import printed
from report.values.statistics import Scale
from report.values.structure import DISTANCES, LARGEST_L1_SELF, least_exchange

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


def _cell(label: str, column: str, row: str = SCALE, statistic: str = "value") -> float:
    """A value that the paper prints, in the records' units."""
    return printed(label, row, column, statistic).value


def _less(name: str, claim: int, what: str, label: str, column: str, side: str) -> Statistic:
    """A share of Relation's less MHA's."""
    paper = _cell(label, f"{column}.full") - _cell(label, f"{column}.mha")
    return Statistic(name, claim, f"{what}, Relation - MHA", "%", "identity", paper, side, 0.0)


def _statistics() -> Iterator[Statistic]:
    nat, internal, layers = "nat/token", "relation_internal", "app-structural-layerwise"
    delta = _cell("app-nll", "delta", f"{SCALE}/mean")
    title = "final NLL, Relation - MHA"
    yield Statistic("final-nll", 1, title, nat, "identity", delta, "below", 0.0)
    won = [_cell("app-nll", "delta", f"{SCALE}/{seed}") < 0 for seed in SEEDS]
    # At most one loss in nine; of three pairs against three no test can tell shares apart.
    yield Statistic(
        "pair-won", 2, "pairs won", "%", "identity", sum(won) / len(won), "at least", 8 / 9,
        tested=False,
    )  # fmt: skip
    spared = _cell("main-results", "token_reduction", statistic="mean")
    for every in INTERVALS:
        often = "every update" if every == 1 else f"every {every}th update"
        title = f"tokens spared to MHA's final loss, logged {often}"
        yield Statistic(
            f"spared-every-{every}", 3, title, "%", "identity", spared, "above", 0.0, majority=True
        )
    for variant in RISES:
        rise = _cell("structural-ablations", variant, "delta")
        title = f"final NLL, {variant} - Full Relation"
        yield Statistic(f"{variant}-rise", 4, title, nat, "identity", rise, "above", 0.0)
    self_flow = _cell(internal, "l0_self.full")
    yield Statistic("l0-self", 6, "L0 Self flow", "%", "logit", self_flow)
    more = _less("l0-self-more", 6, "L0 Self flow", internal, "l0_self", "above")
    yield replace(more, title=f"{more.title}'s diagonal")
    title = "L0 effective rank, Relation / MHA"
    ratio = _cell(internal, "l0_effrank.ratio")
    yield Statistic("l0-rank-ratio", 7, title, "x", "log", ratio, "above", 1.0)
    second, largest = _cell(internal, "l1_self.full"), LARGEST_L1_SELF / 100
    yield Statistic("l1-self", 8, "L1 Self flow", "%", "logit", second, "below", largest)
    deep, least = _cell(internal, "l2_exchange.full"), least_exchange() / 100
    title = "Exchange flow from L2 on"
    yield Statistic("l2-exchange", 9, title, "%", "logit", deep, "at least", least)
    for column in DISTANCES:
        tokens = column.removeprefix("beyond_")
        what = f"historical mass beyond {tokens}"
        yield _less(f"beyond-{tokens}", 10, what, internal, column, "above")
    for k, side in ((1, "below"), (32, "above")):
        what = f"historical mass on the first {k}"
        yield _less(f"sink-{k}", 11, what, "app-structural-sink-profile", f"sink_{k}", side)
    first, *later = (_cell(layers, "self.full", f"{SCALE}/L{layer}") for layer in range(6))
    title = "L0 Self flow / that of the later layer with most"
    yield Statistic("l0-anchor", None, title, "x", "log", first / max(later), "above", 1.0)
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
    """Shares of the budget spared to MHA's last loss, for every interval of logging."""
    logs = dict(iter(losses.groupby([*_KEY, "variant"], observed=True)))
    budgets = runs.pivot(index=_KEY, columns="variant", values="budget_tokens")
    budgets = budgets.reindex(columns=list(PAIRED)).dropna()["full"]
    found: dict[str, dict] = {f"spared-every-{every}": {} for every in INTERVALS}
    for pair, budget in budgets.items():
        if not all((*pair, variant) in logs for variant in PAIRED):
            continue
        for every, shares in zip(INTERVALS, found.values(), strict=True):
            mha, full = (logged(logs[*pair, v], every, WINDOW * budget) for v in ("mha", "full"))
            # A pair that never reaches the loss spares nothing.
            shares[pair] = token_crossing(mha[1][-1], *full, int(budget)).reduction or 0.0
    return {name: pd.Series(shares, dtype=float) for name, shares in found.items()}


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

    def rows(variant: str, metric: str, first: int, last: float) -> pd.DataFrame:
        kept = select(layers, variant=variant, metric=metric)
        return kept[kept["layer"].between(first, last)]

    def of(variant: str, metric: str, first: int = 0, last: float = math.inf) -> pd.Series:
        means = by_checkpoint(rows(variant, metric, first, last))
        return means.set_index(["scale", "seed"])["value"].rename_axis(_KEY)

    def less(metric: str, last: float = math.inf) -> pd.Series:
        return of("full", metric, last=last) - of("mha", metric, last=last)

    self_flow = of("full", "self_flow", last=0)
    later = rows("full", "self_flow", 1, math.inf).groupby(["scale", "seed"])["value"].max()
    return {
        "l0-self": self_flow,
        "l0-self-more": less("self_flow", last=0),
        "l0-rank-ratio": of("full", "effective_rank", last=0) / of("mha", "effective_rank", last=0),
        "l1-self": of("full", "self_flow", 1, 1),
        "l2-exchange": of("full", "exchange_flow", 2),
        **{column.replace("_", "-"): less(metric) for column, metric in DISTANCES.items()},
        **{f"sink-{k}": less(f"sink_{k}") for k in (1, 32)},
        "l0-anchor": self_flow / later.rename_axis(_KEY),
    }


def _lambda_values(probes: pd.DataFrame) -> pd.Series:
    """λ of Full Relation's first layer, as last looked at."""
    rows = select(probes, variant="full", metric="lambda", layer=0)
    return rows.sort_values("update").groupby(_KEY)["value"].last().astype(float)
