"""What the readings say, in sentences that are computed: of the whole, and of each statistic."""

import math
from typing import NamedTuple

import pandas as pd

from report.judge.readings_practice import practice
from report.judge.readings_rule import DEFAULT, RATES
from report.judge.readings_study import BASES, RATE_NAMES, Study
from report.judge.readings_words import (
    amount,
    count,
    interval,
    listed,
    nats,
    probability,
    some,
    title,
)
from report.values.readings import BY_NAME, Statistic
from report.values.statistics import back, forward

LOSS, FIRST_LAYER = BY_NAME["final-nll"], BY_NAME["l0-self"]
DIVIDED = "W_O and W_down divided by sqrt(2L)"
_RULED = {
    "chosen": "The rule that was fixed before these runs chooses {reading} ({title}).",
    "not identified": "The rule that was fixed before these runs identifies no reading.",
    "texts disagree": "The rule that was fixed before these runs chooses none: texts disagree.",
    "too few seeds": "The rule that was fixed before these runs cannot be applied to them.",
    "unfinished": "No reading is chosen yet: the rule that was fixed before these runs waits for "
    "more of them.",
}


class Said(NamedTuple):
    """A sentence or a few: place is headline, finding, statistic, turns, answer or practice."""

    place: str
    claim: int | None
    statistic: str | None
    text: str


def said(found: Study) -> list[Said]:
    """Everything that the pages say of these readings, in order; nothing that is not known."""
    places = {
        "headline": [*_headline(found), f"{_ruled(found)} {_turned(found)}"],
        "finding": [
            *_first_layer(found), *_loss(found), *_rates(found), *_directions(found),
            _turned(found), _ruled(found), *_partial(found),
        ],
        "answer": _answer(found),
    }  # fmt: skip
    rows = [Said(place, None, None, text) for place, own in places.items() for text in own]
    rows += [Said("statistic", s.claim, s.name, _statistic(found, s)) for s in found.statistics]
    rows += [Said("turns", claim, None, text) for claim, text in turning_claims(found).items()]
    return rows + [Said("practice", None, None, text) for text in practice(found)]


def _bases(found: Study, statistic: Statistic) -> list[pd.Series]:
    """A statistic at the base of both residual scales; empty unless both have it."""
    rows = found.of(statistic.name, by_scale=True)
    both = set(BASES.values()) <= set(rows.index)
    return [rows.loc[name] for name in BASES.values()] if both else []


def _measured(row: pd.Series, statistic: Statistic) -> str:
    """A mean with its interval and the number of pairs behind it."""
    ends = interval(row["low"], row["high"], statistic)
    beside = f"{ends[1:-1]}; n = {row['n']}" if ends else f"no interval; n = {row['n']}"
    return f"{amount(row['mean'], statistic, unit=True)} [{beside}]"


def _tested(row: pd.Series, where: str = "") -> str:
    """Whether a contrast is established, with its p; where: of several, which."""
    if pd.isna(row["p"]):
        return f"not tested{where}, as no reading has two pairs that differ"
    holm = f"p {probability(row['p_holm'])} after Holm’s correction"
    if row["told_apart"]:
        return f"established{where} ({holm})"
    return f"not established{where} ({holm}, p {probability(row['p'])} without)"


def _moved(found: Study) -> dict[str, list[tuple[str, pd.Series]]]:
    """By residual scale, the choices that give layer 0 the Self flow of the other scale's base.

    Where the two bases are told apart: a reading that is told apart from its own base, and whose
    interval lies beyond the middle between the two, on the statistic's scale.
    """
    both, moved = _bases(found, FIRST_LAYER), {residual: [] for residual in BASES}
    if not both or not both[1]["told_apart"]:
        return moved
    means = dict(zip(BASES, (row["mean"] for row in both), strict=True))
    scale = FIRST_LAYER.transform
    ends = forward(scale, list(means.values()), FIRST_LAYER.title)
    middle = float(back(scale, ends.mean()))
    rows = found.of(FIRST_LAYER.name, by_scale=True)
    for reading in found.readings:
        if reading.name in rows.index and reading.name not in BASES.values():
            row = rows.loc[reading.name]
            low = means[reading.residual] < middle
            beyond = row["low"] > middle if low else row["high"] < middle
            if beyond and row["told_apart"]:
                what = reading.title.partition(";")[0].replace("'", "’")
                moved[reading.residual].append((what, row))
    return moved


def _headline(found: Study) -> list[str]:
    """The first layer, the loss and the learning rate, without intervals."""
    both, loss = _bases(found, FIRST_LAYER), _bases(found, LOSS)
    if not both or not loss:
        return []
    unscaled, scaled = (amount(row["mean"], FIRST_LAYER, unit=True) for row in both)
    moved = _moved(found)
    others = [
        f"; {amount(row['mean'], FIRST_LAYER, unit=True)} with {what}"
        for what, row in moved["unscaled"]
    ]
    told = [
        f"{_lead(both[1])} At 10M Relation’s first layer keeps {unscaled} of its flow for itself "
        f"where W_O and W_down start as the other matrices, unscaled "
        f"(the paper: {amount(FIRST_LAYER.paper, FIRST_LAYER, unit=True)}). "
        f"It keeps {scaled} with {DIVIDED}, scaled{''.join(others)}."
    ]
    if moved["scaled"]:
        what, row = max(moved["scaled"], key=lambda one: one[1]["mean"])
        again = amount(row["mean"], FIRST_LAYER, unit=True)
        told.append(f"Scaled, with {what}, it keeps {again} again.")
    unscaled, scaled = (amount(row["mean"], LOSS) for row in loss)
    told.append(
        f"Relation’s final NLL minus MHA’s is {unscaled} nat/token unscaled and {scaled} scaled "
        f"(the paper: {amount(LOSS.paper, LOSS)}). The difference between unscaled and scaled is "
        f"{_tested(loss[1])}."
    )
    for rate, turned in _sign_turns(found).items():
        values = listed(f"{amount(row['mean'], LOSS)} {residual}" for residual, row in turned)
        if any(row["told_apart"] for _, row in turned):
            told.append(f"At {rate} Relation − MHA is {values}.")
    return told


def _lead(scaled: pd.Series) -> str:
    if pd.notna(scaled["told_apart"]) and scaled["told_apart"]:
        return (
            "What Relation’s first layer does depends on initial weights that the paper does not "
            "print."
        )
    return "The paper does not print the initial scale of W_O and W_down."


def _first_layer(found: Study) -> list[str]:
    both = _bases(found, FIRST_LAYER)
    if not both:
        return []
    unscaled, scaled = (_measured(row, FIRST_LAYER) for row in both)
    told = [
        f"{_lead(both[1])} With one sd for every matrix, layer 0’s Self flow, the share that a "
        f"token keeps for itself, is {unscaled}. With {DIVIDED}, it is {scaled}. The paper prints "
        f"{amount(FIRST_LAYER.paper, FIRST_LAYER, unit=True)}. The difference between the two is "
        f"{_tested(both[1])}."
    ]
    moved = {residual: rows for residual, rows in _moved(found).items() if rows}
    effects = {
        "unscaled": "Without that division, the same effect comes from",
        "scaled": "With it, the effect is undone by",
    }
    for residual, rows in moved.items():
        choices = (f"{what} ({_measured(row, FIRST_LAYER)})" for what, row in rows)
        told.append(f"{effects[residual]}: {'; '.join(choices)}.")
    if moved:
        worst = max(row["p_holm"] for rows in moved.values() for _, row in rows)
        told.append(
            "Each of these is established: it differs from the base of its residual scale "
            f"(p {probability(worst)} after Holm’s correction), and its interval lies beyond the "
            "middle between the two bases."
        )
    return [told[0], " ".join(told[1:])] if moved else told


def _loss(found: Study) -> list[str]:
    """The difference of the losses, and what the division does to either model."""
    both = _bases(found, LOSS)
    if not both:
        return []
    unscaled, scaled = (_measured(row, LOSS) for row in both)
    means = found.nll.groupby("reading")[["mha", "full"]].mean().loc[list(BASES.values())]
    moves = []
    for variant, whose in (("mha", "MHA’s final NLL"), ("full", "Relation’s")):
        start, end = means[variant]
        verb = "lowers" if end < start else "raises"
        moves.append(f"{verb} {whose} by {nats(abs(end - start))} ({nats(start)} to {nats(end)})")
    return [
        f"Relation’s final NLL minus MHA’s is {unscaled} unscaled and {scaled} scaled; the paper "
        f"prints {amount(LOSS.paper, LOSS)}. The difference between unscaled and scaled is "
        f"{_tested(both[1])}. "
        f"The division {listed(moves)}."
    ]


def _sign_turns(found: Study) -> dict[str, list[tuple[str, pd.Series]]]:
    """By learning rate, the residual scales at which the loss difference changes its sign."""
    rows = found.of(LOSS.name, by_scale=True)
    turned: dict[str, list[tuple[str, pd.Series]]] = {}
    for choice in RATES:
        for residual, base in BASES.items():
            name = f"{residual}-{choice}"
            if {name, base} <= set(rows.index):
                row = rows.loc[name]
                if row["mean"] * rows.loc[base, "mean"] < 0:
                    turned.setdefault(RATE_NAMES[choice], []).append((residual, row))
    return turned


def _rates(found: Study) -> list[str]:
    return [
        f"At {rate} the difference changes its sign: it is "
        f"{listed(f'{_measured(row, LOSS)} {residual}' for residual, row in turned)}. Compared "
        "with the paper’s rate, this is "
        f"{listed(_tested(row, f' {residual}') for residual, row in turned)}."
        for rate, turned in _sign_turns(found).items()
    ]


def _candidates(found: Study, statistic: Statistic) -> pd.DataFrame:
    """The rows of the readings proper, those beside left out."""
    rows = found.of(statistic.name)
    return rows.drop([r.name for r in found.readings if r.beside], errors="ignore")


def _sides(rows: pd.DataFrame, holds: pd.Series, words: tuple[str, str]) -> str:
    """In how many readings something holds and does not, and where that is established."""
    told = []
    for what, side in zip(words, (holds, ~holds), strict=True):
        told.append(f"{what} in {int(side.sum())}")
        if rows["established"].notna().any():
            sure = side & rows["established"].fillna(False).astype(bool)
            told[-1] += f" ({int(sure.sum())} established)"
    return " and ".join(told)


def _directions(found: Study) -> list[str]:
    rows = _candidates(found, LOSS)
    if rows.empty:
        return []
    sides = _sides(rows, rows["mean"] < 0, ("below MHA’s", "above it"))
    return [f"Of {count(len(rows), 'reading')}, Relation’s mean final NLL is {sides}."]


def _turned(found: Study) -> str:
    if found.compared["p"].notna().sum() == 0:
        return f"Nothing can be told apart from {found.base} yet, so no claim is known to turn."
    claims = [str(claim) for claim in sorted(turning_claims(found))]
    if not claims:
        return f"At 10M no reading is known to change a claim’s answer, compared with {found.base}."
    what = "the answer to claim" if len(claims) == 1 else "the answers to claims"
    verb = "depends" if len(claims) == 1 else "depend"
    return (
        f"At 10M {what} {listed(claims)} {verb} on the reading: for each, at least one reading "
        f"gives another answer than {found.base} and differs from it (p < 0.05 after Holm’s "
        "correction)."
    )


def _ruled(found: Study) -> str:
    name = found.choice.reading
    of_name = next((reading.title for reading in found.readings if reading.name == name), "")
    return _RULED[found.choice.answer].format(reading=name, title=of_name.replace("'", "’"))


def _partial(found: Study) -> list[str]:
    pairs = found.nll.groupby("reading").size()
    several = int((pairs > 1).sum())
    told = (
        f"{found.records.there} of {found.records.planned} planned runs have records. {several} of "
        f"{count(len(pairs), 'reading')} {'has' if several == 1 else 'have'} two pairs or more"
    )
    if not several:
        return [f"{told}, so there are no intervals and nothing is established."]
    told += "; the deviation between seeds is pooled over these and serves all readings."
    spread = found.nll.groupby("reading")["delta"].std().dropna()
    if len(spread) > 1:
        least, most = spread.idxmin(), spread.idxmax()
        told += (
            f" They do not spread alike: Relation − MHA has a deviation of {nats(spread[most])} "
            f"nat/token under {most} and {nats(spread[least])} under {least}. Where pairs spread "
            "less than the pooled deviation, intervals are too wide, and elsewhere too narrow."
        )
    return [told]


def _answer(found: Study) -> list[str]:
    choice = found.choice
    told = [f"{_ruled(found)} {choice.reason}"]
    if choice.answer != "chosen":
        until = "Until then the" if choice.answer == "unfinished" else "The"
        told.append(f"{until} default is {DEFAULT}, which adds nothing for the residual matrices.")
    if math.isfinite(choice.bound):
        told.append(
            f"The nearest reading must be nearer than {choice.bound:.1f}, the larger of two "
            f"distances: what chance gives a right reading ({choice.by_chance:.1f}), and four "
            f"times what cutting the books short does ({choice.by_text:.1f})."
        )
    return told


def turning_claims(found: Study) -> dict[int, str]:
    """What each claim's answer turns on, at 10M; claims that turn on nothing are left out."""
    told: dict[int, list[str]] = {}
    for statistic in found.statistics:
        if statistic.claim is not None and found.turning(statistic.name):
            text = f"{title(statistic)}: {turned_on(found, statistic.name)}"
            told.setdefault(statistic.claim, []).append(text)
    return {claim: "; ".join(texts) for claim, texts in told.items()}


def turned_on(found: Study, statistic: str) -> str:
    """The residual scale, where all of the other one turn it and nothing else; else readings."""
    turning = found.turning(statistic)
    tested = found.of(statistic)["turns"].notna()
    own = [reading for reading in found.readings if tested.get(reading.name)]
    base = next((r.residual for r in found.readings if r.name == found.base), None)
    other = {r.name for r in own if r.residual != base and not r.beside}
    if other and other == {r.name for r in own if r.name in turning and not r.beside}:
        return f"the residual scale (all {len(other)} readings that have the other one)"
    return some(turning)


def _statistic(found: Study, statistic: Statistic) -> str:
    rows, every = _candidates(found, statistic), found.of(statistic.name)
    n = count(len(rows), "reading")
    told = [f"The paper gives no direction. {n} with a value."]
    if statistic.side is not None:
        holds = rows["holds"].fillna(False).astype(bool)
        sides = _sides(rows, holds, ("the paper’s direction holds", "does not"))
        told = [f"Of {n}, {sides}."]
        if found.turning(statistic.name):
            told.append(f"The answer turns on {turned_on(found, statistic.name)}.")
        elif every.loc[every["turns"].notna(), "p_holm"].notna().any():
            told.append(f"No reading is known to change the answer under {found.base}.")
        elif statistic.tested:
            told.append("Nothing tests yet whether a reading changes the answer.")
    if not statistic.tested:
        told.append("Pairs are only counted: there is no interval and no contrast.")
    elif rows["low"].isna().all():
        told.append("No reading has two pairs that differ, so there is no interval.")
    elif statistic.paper is not None:
        inside = int(rows["paper_inside"].fillna(False).sum())
        told.append(f"The paper’s value lies inside the interval in {inside}.")
    return " ".join(told)
