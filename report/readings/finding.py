"""What the readings say, in sentences that are computed: of the whole, and of each statistic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from report.readings.baselines import paired_nll
from report.readings.practice import practice
from report.readings.rule import BASE, DEFAULT, RESIDUALS
from report.readings.statistics import contrasts, pooled
from report.readings.study import Study, study
from report.readings.values import BY_NAME, Statistic
from report.readings.words import amount, count, interval, listed, nats, probability, some, title

if TYPE_CHECKING:
    from relation.records.multiverse import ReadingRecords

_ANSWERS = {
    "chosen": "The rule that was fixed before these runs chooses {reading}",
    "not identified": "The rule that was fixed before these runs identifies no reading",
    "texts disagree": "The rule that was fixed before these runs chooses none, as texts disagree",
    "too few seeds": "The rule that was fixed before these runs cannot be applied yet",
    "unfinished": "The rule that chooses a reading waits for further runs",
}


class Said(NamedTuple):
    """A sentence or a few: place is headline, finding, statistic, turns, answer or practice."""

    place: str
    claim: int | None
    statistic: str | None
    text: str


def said(records: ReadingRecords) -> list[Said]:
    """Everything that the pages say of these readings, in order; nothing that is not known."""
    found = study(records)
    turned, ruled = _turned(found), _ruled(found)
    headlines = [*_headline(found), f"{ruled}; {turned[:1].lower()}{turned[1:]}"]
    rows = [Said("headline", None, None, text) for text in headlines]
    of_scales = [*_residual_scale(found), *_gain(records, found), *_first_layer(found)]
    finding = [*of_scales, *_directions(found), turned, f"{ruled}.", *_partial(records, found)]
    rows += [Said("finding", None, None, text) for text in finding]
    rows += [Said("answer", None, None, text) for text in _answer(found)]
    rows += [
        Said("statistic", statistic.claim, statistic.name, text)
        for statistic in found.statistics
        for text in [_statistic(found, statistic)]
    ]
    rows += [Said("turns", claim, None, text) for claim, text in turning_claims(found).items()]
    return rows + [Said("practice", None, None, text) for text in practice(records, found)]


def _bases(found: Study, statistic: str) -> tuple[pd.Series, pd.Series] | None:
    """A statistic at the base under both residual scales; None unless both have it."""
    rows = found.of(statistic)
    names = [f"{residual}-{BASE}" for residual in RESIDUALS]
    return tuple(rows.loc[name] for name in names) if set(names) <= set(rows.index) else None


def _with_interval(row: pd.Series, statistic: Statistic) -> str:
    told = amount(row["mean"], statistic, unit=True)
    ends = interval(row["low"], row["high"], statistic)
    return f"{told} {ends}" if ends else f"{told} (n = {row['n']}, no interval)"


def _apart(found: Study, statistic: str) -> tuple[bool | None, str]:
    """Whether the two residual scales are told apart at the base, None untested, and a sentence."""
    rows = contrasts(found.values, f"{RESIDUALS[0]}-{BASE}")
    rows = rows[rows["statistic"] == statistic]
    row = rows[rows["reading"] == f"{RESIDUALS[1]}-{BASE}"]
    if row.empty or row["p"].isna().all():
        return None, (
            "Without two pairs of a reading nothing tells whether that is more than chance."
        )
    established = bool(row["established"].iloc[0])
    alone, held = (probability(row[name].iloc[0]) for name in ("p", "p_holm"))
    tells = "tell" if established else "do not tell"
    return established, (
        f"The pairs {tells} the two apart at 5%: p {held} with Holm’s correction over contrasts "
        f"of the claim, p {alone} without."
    )


_TOLD = {
    True: "the pairs tell the two apart",
    False: "the pairs do not tell the two apart",
    None: "nothing tests yet whether the two differ",
}


def _headline(found: Study) -> list[str]:
    """The difference of loss and the first layer's Self flow at both scales of the base."""
    parts = []
    for name, what in (
        ("final-nll", "Relation’s final NLL at 10M less MHA’s is"),
        ("l0-self", "layer 0’s Self flow is"),
    ):
        both = _bases(found, name)
        if both is None:
            return []
        statistic = BY_NAME[name]
        unit = " nat/token" if name == "final-nll" else ""
        unscaled, scaled = (amount(row["mean"], statistic, unit=not unit) for row in both)
        paper = amount(statistic.paper, statistic, unit=not unit)
        parts.append(
            f"{what} {unscaled}{unit}, and {scaled} divided by sqrt(2L); the paper’s is {paper}, "
            f"and {_TOLD[_apart(found, name)[0]]}"
        )
    return [
        "The paper does not print the initial scale of W_O and W_down: unscaled, "
        f"{parts[0]}. Unscaled, {parts[1]}."
    ]


def _residual_scale(found: Study) -> list[str]:
    both = _bases(found, "final-nll")
    if both is None:
        return []
    statistic = BY_NAME["final-nll"]
    unscaled, scaled = (_with_interval(row, statistic) for row in both)
    return [
        f"The paper does not print the initial scale of W_O and W_down. Unscaled, Relation’s final "
        f"NLL less MHA’s is {unscaled}; divided by sqrt(2L), it is {scaled}; the paper "
        f"prints {amount(statistic.paper, statistic)}. {_apart(found, 'final-nll')[1]}"
    ]


_MOVES = {"lowers": "gains", "raises": "loses"}


def _gain(records: ReadingRecords, found: Study) -> list[str]:
    """What the factor does to either model, and for which it does more."""
    means = paired_nll(records).groupby("reading")[["mha", "full"]].mean()
    names = [f"{residual}-{BASE}" for residual in RESIDUALS]
    if not set(names) <= set(means.index):
        return []
    before, after = means.loc[names, "mha"]
    own_before, own_after = means.loc[names, "full"]
    verbs = ["lowers" if end < start else "raises"
             for start, end in ((before, after), (own_before, own_after))]  # fmt: skip
    told = (
        f"The division {verbs[0]} MHA’s final NLL by {_move(before, after)} and "
        f"{'' if verbs[0] == verbs[1] else verbs[1] + ' '}Relation’s by "
        f"{_move(own_before, own_after)}"
    )
    if verbs[0] == verbs[1] and _apart(found, "final-nll")[0]:
        more = abs(after - before) > abs(own_after - own_before)
        told += f": {'MHA' if more else 'Relation'} {_MOVES[verbs[0]]} more"
    return [f"{told}."]


def _move(start: float, end: float) -> str:
    return f"{nats(abs(end - start))} ({nats(start)} to {nats(end)})"


def _first_layer(found: Study) -> list[str]:
    both = _bases(found, "l0-self")
    if both is None:
        return []
    statistic = BY_NAME["l0-self"]
    unscaled, scaled = (amount(row["mean"], statistic, unit=True) for row in both)
    paper = amount(statistic.paper, statistic, unit=True)
    return [
        f"Layer 0’s Self flow is {unscaled} unscaled and {scaled} scaled; the paper prints {paper}"
        f". {_apart(found, 'l0-self')[1]}"
    ]


def _directions(found: Study) -> list[str]:
    """In how many readings Relation's NLL is lower."""
    rows = _candidates(found, "final-nll")
    if rows.empty:
        return []
    lower = rows[rows["mean"] < 0]
    told = (
        f"Relation’s mean final NLL is below MHA’s in {len(lower)} of {count(len(rows), 'reading')}"
    )
    if rows["established"].notna().any():
        sure = int(lower["established"].fillna(False).sum())
        higher = rows[rows["mean"] > 0]
        against = int(higher["established"].fillna(False).sum())
        told += f", established in {sure}; it is above in {len(higher)}, established in {against}"
    return [f"{told}."]


def _candidates(found: Study, statistic: str) -> pd.DataFrame:
    """The intervals of the readings proper, those beside left out."""
    rows = found.of(statistic)
    beside = {reading.name for reading in found.readings if reading.beside}
    return rows[~rows.index.isin(list(beside))]


def _spreads(found: Study) -> list[str]:
    """How differently the pairs of readings spread, which pooling takes alike."""
    rows = found.values[found.values["statistic"] == "final-nll"]
    spread = rows.groupby("reading")["value"].std().dropna()
    if len(spread) < 2:
        return []
    least, most = spread.idxmin(), spread.idxmax()
    return [
        f"Pairs spread by {nats(spread[most])} nat/token under {most} and by {nats(spread[least])} "
        f"under {least}. The pooled deviation takes all readings alike, so intervals are too wide "
        "where runs spread less than that and too narrow elsewhere."
    ]


def _partial(records: ReadingRecords, found: Study) -> list[str]:
    pairs = records.runs[records.runs["variant"] == "full"].groupby("reading")["seed"].nunique()
    several = int((pairs > 1).sum())
    told = (
        f"Runs with records: {records.there} of {records.planned}. {several} of "
        f"{count(len(pairs), 'reading')} {'has' if several == 1 else 'have'} two seeds or more"
    )
    if several:
        told += "; the deviation between seeds, pooled over these, serves all."
        return [told, *_spreads(found)]
    return [f"{told}, so there are no intervals and nothing is established."]


def _answer(found: Study) -> list[str]:
    choice = found.choice
    told = [f"{_ruled(found)}: {choice.reason}"]
    if choice.answer != "chosen":
        until = " until then" if choice.answer == "unfinished" else ""
        told.append(
            f"The default stays {DEFAULT}{until}, which adds nothing for the residual matrices."
        )
    if math.isfinite(choice.bound):
        told.append(
            f"The bound on the nearest distance is {choice.bound:.1f}: the larger of what chance "
            f"gives a right reading ({choice.by_chance:.1f}) and four times what the text does "
            f"({choice.by_text:.1f})."
        )
    return told


def _ruled(found: Study) -> str:
    return _ANSWERS[found.choice.answer].format(reading=found.choice.reading)


def turning_claims(found: Study) -> dict[int, str]:
    """What each claim's answer turns on, at 10M; claims that turn on nothing are left out."""
    told: dict[int, list[str]] = {}
    for statistic in found.statistics:
        turning = found.turning(statistic.name)
        if statistic.claim is None or not turning:
            continue
        told.setdefault(statistic.claim, []).append(
            f"{title(statistic)}: {turned_on(found, statistic.name)}"
        )
    return {claim: "; ".join(texts) for claim, texts in told.items()}


def turned_on(found: Study, statistic: str) -> str:
    """The residual scale, where all of the other one turn it and nothing else; else readings."""
    turning = found.turning(statistic)
    tested = found.turns[found.turns["statistic"] == statistic]["reading"]
    own = {r.name: r for r in found.readings if r.name in set(tested)}
    base = next((r.residual for r in found.readings if r.name == found.base), None)
    other = {name for name, r in own.items() if r.residual != base and not r.beside}
    proper = {name for name in turning if not own[name].beside}
    if other and proper == other:
        return f"the residual scale (all {len(other)} readings that have the other one)"
    return some([name for name in own if name in turning])


def _turned(found: Study) -> str:
    if found.contrasts["p"].notna().sum() == 0:
        return f"Nothing can be told apart from {found.base} yet, so no claim is known to turn."
    claims = sorted(turning_claims(found))
    if not claims:
        return (
            f"At 10M no claim’s answer is known to turn on a reading, compared with {found.base}: "
            f"deviations between seeds rest on {_freedom(found)}, so little can be established."
        )
    named = listed(str(claim) for claim in claims)
    what = "the answer to claim" if len(claims) == 1 else "the answers to claims"
    verb = "turns" if len(claims) == 1 else "turn"
    return f"At 10M {what} {named} {verb} on a reading, compared with {found.base}."


def _freedom(found: Study) -> str:
    """The degrees of freedom behind the final NLL's deviation, in words."""
    rows = pooled(found.values).set_index("statistic")
    degrees = int(rows.loc["final-nll", "freedom"])
    return "1 degree of freedom" if degrees == 1 else f"{degrees} degrees of freedom"


def _statistic(found: Study, statistic: Statistic) -> str:
    rows = _candidates(found, statistic.name)
    n = count(len(rows), "reading")
    if statistic.side is None:
        told = [f"The paper gives no direction here; {n} with a value."]
    else:
        holds = rows["holds"].fillna(False).astype(bool)
        told = [f"The paper’s direction holds in {int(holds.sum())} of {n}"]
        sure = rows["established"].fillna(False).astype(bool)
        if rows["established"].notna().any():
            told[0] += (
                f", established in {int((holds & sure).sum())}; against it is established in "
                f"{int((~holds & sure).sum())}"
            )
        told[0] += "."
        turning = found.turning(statistic.name)
        if turning:
            told.append(f"It turns on {turned_on(found, statistic.name)}.")
        elif found.turns.loc[found.turns["statistic"] == statistic.name, "p_holm"].notna().any():
            told.append(f"No reading is known to turn it, compared with {found.base}.")
        elif statistic.tested:
            told.append("Nothing tests yet whether a reading turns it.")
    if not statistic.tested:
        told.append("It is only counted: it has no interval and no contrast.")
    elif rows["low"].isna().all():
        told.append("No reading has two pairs that differ, so there is no interval.")
    elif statistic.paper is not None:
        inside = int(rows["paper_inside"].fillna(False).sum())
        told.append(f"The paper’s value lies in the interval of {inside}.")
    return " ".join(told)
