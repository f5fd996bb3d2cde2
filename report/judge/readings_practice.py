"""What a practitioner can take from the readings: of the baseline and what is left beside it."""

import pandas as pd

from report.judge.readings_rule import DEFAULT
from report.judge.readings_statistics import compare
from report.judge.readings_study import BASES, FACTORS, RATE_NAMES, Study
from report.judge.readings_words import count, interval, nats, probability
from report.values.readings import BY_NAME


def practice(found: Study) -> list[str]:
    """Sentences on the baseline, what it leaves of the advantage, and the learning rate."""
    pairs = found.comparable[~found.comparable["beside"]]
    readings = pairs.groupby("reading", sort=False)
    means = readings[["mha", "full", "delta"]].mean()
    told = []
    if DEFAULT in means.index and len(means) > 1:
        told += _best_baseline(found, means)
        told.append(_best_of_each(means, readings.size()))
    return told + [text for residual in BASES for text in _rate(found.rates, residual)]


def _best_baseline(found: Study, means: pd.DataFrame) -> list[str]:
    """MHA's best reading, and what Relation's advantage is there."""
    best, n = means["mha"].idxmin(), count(len(means), "reading")
    lowest = nats(means["mha"][best])
    if best == DEFAULT:
        return [f"Of {n} on this text, {DEFAULT} itself gives MHA its lowest NLL ({lowest})."]
    gain, own = means["mha"][DEFAULT] - means["mha"][best], means["delta"][DEFAULT]
    size = "more" if gain > abs(own) else "no more"
    # Not the study's own contrasts: these may be against a reading that the rule chose.
    rows = compare(found.values, DEFAULT)
    row = rows[(rows["statistic"] == "final-nll") & (rows["reading"] == best)].iloc[0]
    ends = interval(row["low"], row["high"], BY_NAME["final-nll"])
    left = f"{nats(row['mean'], signed=True)} {ends or '(no interval)'}"
    if own < 0 and row["mean"] < 0:
        left += f", {row['mean'] / own:.0%} of that under {DEFAULT}"
    elif own < 0:
        left += ", so Relation has no advantage in these pairs"
    return [
        f"Of {n} on this text, {best} gives MHA its lowest final NLL: {lowest}, {nats(gain)} below "
        f"{DEFAULT}. That is {size} than the {nats(abs(own))} between Relation and MHA under "
        f"{DEFAULT}. Under {best}, Relation − MHA is {left}.",
        _verdict(row, own),
    ]


def _verdict(row: pd.Series, own: float) -> str:
    """Whether a better baseline leaves less, as far as the contrast tells."""
    if pd.isna(row["p"]):
        return "No reading has two pairs that differ, so nothing tests whether this is chance."
    if not row["told_apart"]:
        return (
            "The two differences are not told apart "
            f"(p {probability(row['p_holm'])} after Holm’s correction): whether Relation’s "
            "advantage shrinks when the baseline gets better is open."
        )
    if abs(row["mean"]) < abs(own) or row["mean"] > 0 > own:
        return (
            "So part of the difference is the baseline’s: set the initial weights so that MHA does "
            "well before comparing another operator with it."
        )
    return "So the difference is no smaller where MHA does better: the baseline does not cause it."


def _best_of_each(means: pd.DataFrame, n: pd.Series) -> str:
    """Each model at the reading that suits it best."""
    mha, full = means["mha"].idxmin(), means["full"].idxmin()
    apart = means["full"][full] - means["mha"][mha]
    where = f"both {mha}" if mha == full else f"MHA {mha}, Relation {full}"
    return (
        f"With each model at its best reading ({where}), Relation ends {nats(abs(apart))} "
        f"{'below' if apart < 0 else 'above'} MHA "
        f"(n = {' and '.join(map(str, sorted({n[mha], n[full]})))}). The lowest of several means "
        "is partly luck."
    )


def _rate(pairs: pd.DataFrame, residual: str) -> list[str]:
    """The best of the learning rates for either model, under one residual scale."""
    means = pairs[pairs["residual"] == residual].groupby("choice")[["mha", "full", "delta"]].mean()
    base = BASES[residual].removeprefix(f"{residual}-")
    if base not in means.index:
        return []
    mha, full = means["mha"].idxmin(), means["full"].idxmin()
    apart = nats(means["full"][full] - means["mha"][mha], signed=True)
    losses = nats(means["mha"][mha]), nats(means["full"][full])
    if mha == full == base:
        return [
            f"{residual.capitalize()}, both models do best at the paper’s learning rate of those "
            f"tried ({losses[0]} and {losses[1]}); there Relation − MHA is {apart}."
        ]
    told = (
        f"{residual.capitalize()}, MHA does best at {RATE_NAMES[mha]} ({losses[0]}) and Relation "
        f"at {RATE_NAMES[full]} ({losses[1]}). Best against best, Relation − MHA is {apart}; at "
        f"the paper’s rate it is {nats(means['delta'][base], signed=True)}."
    )
    edges = {min(FACTORS, key=FACTORS.get), max(FACTORS, key=FACTORS.get)}
    if edges & {mha, full}:
        told += " The best rate may lie beyond those tried."
    return [told]
