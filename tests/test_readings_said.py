"""What the report says of the readings: computed, partial where the records are, never fixed."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from readings_records import BASES, Invented, described, invented

from relation.records.multiverse import ReadingRecords
from report.readings.baselines import comparable, paired_nll, rates
from report.readings.finding import said, turned_on, turning_claims
from report.readings.study import study

UNSCALED, SCALED = BASES
EVERY = [reading["name"] for reading in described()]
THREE = dict.fromkeys(EVERY, (142, 143, 144))


def told(records: ReadingRecords, place: str) -> str:
    return " ".join(row.text for row in said(records) if row.place == place)


def told_of(records: ReadingRecords, statistic: str) -> str:
    (text,) = (row.text for row in said(records) if row.statistic == statistic)
    return text


def both(delta: tuple[float, float], mha: tuple[float, float]) -> ReadingRecords:
    """The two bases alone, unscaled and scaled, with three seeds each."""
    of_delta, of_mha = (dict(zip(BASES, pair, strict=True)) for pair in (delta, mha))
    return invented(Invented(delta=of_delta, mha=of_mha, keep=BASES))


def rated(mha: Mapping[float, float], delta: Mapping[float, float]) -> ReadingRecords:
    """Unscaled at three learning rates, by factor."""
    names = dict(zip((0.5, 1.0, 2.0), ("lr-half", "sd-0.02", "lr-twice"), strict=True))
    of = [{f"unscaled-{names[f]}": v for f, v in values.items()} for values in (mha, delta)]
    return invented(Invented(mha=of[0], delta=of[1], keep=list(of[0])))


@pytest.fixture(scope="module")
def records() -> ReadingRecords:
    return invented()


def test_the_finding_is_what_the_pairs_say(records: ReadingRecords) -> None:
    """Pairs lie 0.01 apart by seed; a margin is 2.776 s / sqrt(3)."""
    finding = told(records, "finding")
    assert "less MHA’s is −0.0650 nat/token [−0.0810, −0.0490]" in finding
    assert "it is −0.0120 nat/token [−0.0280, +0.0040]; the paper prints −0.0412" in finding
    assert (
        "The division lowers MHA’s final NLL by 0.0990 (3.4450 to 3.3460) and Relation’s by 0.0460 "
        "(3.3800 to 3.3340)" in finding
    )
    assert "72 of 72" in finding and "2 of 26 readings have two seeds or more" in finding
    headline = [row.text for row in said(records) if row.place == "headline"]
    assert len(headline) == 2 and "less MHA’s is −0.0650 nat/token, and −0.0120" in headline[0]


SIGNS = {
    "both fall": (
        (-0.065, -0.012), (3.445, 3.346), "loses",
        "tell the two apart", "Relation’s by 0.0460", ": MHA gains more.",
        "below MHA’s in 2 of 2 readings, established in 1; it is above in 0",
    ),
    "both rise": (
        (0.065, 0.012), (3.346, 3.445), "gains",
        "is +0.0650 nat/token [+0.0490", "raises MHA’s final NLL by 0.0990", "MHA loses more.",
        "in 0 of 2 readings, established in 0; it is above in 2, established in 1",
    ),
    "Relation falls further": (
        (-0.065, -0.112), (3.445, 3.435), "MHA gains",
        "lowers MHA’s final NLL by 0.0100", "Relation’s by 0.0570", ": Relation gains more.",
    ),
    "apart": (
        (-0.012, -0.065), (3.445, 3.446), " more.",
        "raises MHA’s final NLL by 0.0010", "and lowers Relation’s by 0.0520",
    ),
    "alike": (
        (-0.03, -0.031), (3.4, 3.3), " more.",
        "do not tell the two apart", "lowers MHA’s final NLL by 0.1000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("signs", SIGNS.values(), ids=SIGNS)
def test_the_words_follow_the_numbers(signs) -> None:
    delta, mha, never, *words = signs
    finding = told(both(delta, mha), "finding")
    assert all(word in finding for word in words), finding
    assert never not in finding


def test_one_seed_a_reading_gives_no_interval_and_the_page_says_so() -> None:
    records = invented(Invented(seeds={}))
    assert study(records).intervals["low"].isna().all()
    finding = told(records, "finding")
    assert "(n = 1, no interval)" in finding and "[" not in finding
    assert "nothing is established" in finding and "no claim is known to turn" in finding
    assert "nothing tells whether that is more than chance" in finding
    assert "below MHA’s in 18 of 20 readings." in finding
    assert "cannot be applied yet: no reading has two seeds" in told(records, "answer")
    of_nll = told_of(records, "final-nll")
    assert "there is no interval" in of_nll and "Nothing tests yet" in of_nll
    assert "established in" not in of_nll
    assert "Without a second seed" in told(records, "practice")
    assert told(records, "turns") == ""


def test_without_one_base_nothing_is_said_of_the_scale() -> None:
    records = invented(Invented(keep=[SCALED, "scaled-lr-half"]))
    assert "initial scale" not in told(records, "finding") + told(records, "headline")
    assert "unscaled-sd-0.02 has no whole pair" in told(records, "answer")
    assert "suits MHA best" not in told(records, "practice")


def test_the_rules_answer_is_in_its_words(records: ReadingRecords) -> None:
    assert study(records).choice.answer == "unfinished"
    assert "waits for further runs" in told(records, "headline")
    whole = invented(Invented(seeds=THREE))
    choice = study(whole).choice
    assert choice.answer == "chosen" and f"chooses {choice.reading}." in told(whole, "finding")
    assert choice.reason in told(whole, "answer")
    assert f"bound on the nearest distance is {choice.bound:.1f}" in told(whole, "answer")
    far = invented(Invented(seeds=THREE, shifts=dict.fromkeys(EVERY, 9.0)))
    assert study(far).choice.answer == "not identified"
    assert "identifies no reading" in told(far, "headline")
    assert "The default stays unscaled-sd-0.02" in told(far, "answer")


def test_a_run_without_its_partner_moves_no_mean(records: ReadingRecords) -> None:
    alone = (records.runs["reading"] == SCALED) & (records.runs["seed"] == 144)
    lone = records.runs[alone & (records.runs["variant"] == "full")].index
    lacking = replace(records, runs=records.runs.drop(lone))
    finding = told(lacking, "finding")
    assert "(3.3800 to 3.3340)" in finding and "by 0.0990 (3.4450 to 3.3460)" in finding
    assert "scaled" in finding and "it is −0.0120" in finding


def test_a_claim_turns_on_the_residual_scale_or_on_readings() -> None:
    """Every reading of one scale wins, every one of the other loses; then one of all loses."""
    scale = {name: -0.065 if name.startswith("unscaled") else 0.065 for name in EVERY}
    records = invented(Invented(seeds=THREE, delta=scale))
    found = study(records)
    assert found.base.startswith("unscaled")
    assert turned_on(found, "final-nll") == (
        "the residual scale (all 10 readings that have the other one)"
    )
    assert 1 in turning_claims(found) and "claims 1" in told(records, "headline")
    assert "It turns on the residual scale" in told_of(records, "final-nll")
    one = dict.fromkeys(EVERY, -0.065) | {"scaled-adam-eps": 0.065}
    records = invented(Invented(seeds=THREE, delta=one))
    assert turning_claims(study(records))[1].startswith(
        "final NLL, Relation − MHA: scaled-adam-eps"
    )
    none = invented(Invented(seeds=THREE, delta=dict.fromkeys(EVERY, -0.065)))
    assert 1 not in turning_claims(study(none))
    assert "No reading is known to turn it" in told_of(none, "final-nll")


def test_practice_names_the_best_baseline_and_what_it_leaves() -> None:
    shrunk = both((-0.065, -0.012), (3.445, 3.346))
    practice = told(shrunk, "practice")
    assert f"{SCALED} suits MHA best: its final NLL is 3.3460, 0.0990 below" in practice
    assert "which is more than what separates" in practice and "18% of the difference" in practice
    assert "So a part of the difference is the baseline’s" in practice
    assert f"(both under {SCALED}), Relation ends 0.0120 below MHA (n = 3" in practice
    kept = told(both((-0.065, -0.165), (3.445, 3.400)), "practice")
    assert "which is no more than" in kept and "So the difference is no smaller" in kept
    open_ = told(both((-0.065, -0.062), (3.445, 3.400)), "practice")
    assert "not told apart" in open_ and "So " not in open_
    own = told(both((-0.065, -0.012), (3.345, 3.446)), "practice")
    assert f"MHA is best under {UNSCALED} itself" in own and "suits MHA" not in own
    gone = told(both((-0.065, 0.030), (3.445, 3.346)), "practice")
    assert "show nothing of the advantage" in gone and "Relation ends 0.0300 above MHA" in gone


def test_practice_compares_models_at_their_own_learning_rates() -> None:
    inside = rated({0.5: 3.5, 1.0: 3.4, 2.0: 3.45}, {0.5: -0.06, 1.0: -0.05, 2.0: -0.04})
    assert (
        "Unscaled, both do best at the paper’s learning rate of those tried (3.4000 and 3.3500), "
        "where Relation − MHA is −0.0500." in told(inside, "practice")
    )
    edge = rated({0.5: 3.5, 1.0: 3.4, 2.0: 3.35}, {0.5: -0.06, 1.0: -0.05, 2.0: 0.02})
    practice = told(edge, "practice")
    assert "MHA is best at twice the learning rate and Relation at the paper’s rate" in practice
    assert "Relation − MHA is 0.0000; at the paper’s rate it is −0.0500" in practice
    assert "may lie beyond" in practice
    alone = invented(Invented(keep=[UNSCALED]))
    assert "learning rate" not in told(alone, "practice") and rates(alone).empty


def test_texts_are_not_compared(records: ReadingRecords) -> None:
    pairs = paired_nll(records)
    assert set(pairs["reading"]) == set(EVERY) and "short-books" in set(pairs["choice"])
    assert "short-books" not in set(comparable(pairs)["choice"])
    easy = invented(Invented(mha={"unscaled-short-books": 1.0}))
    assert "short-books" not in told(easy, "practice")


def test_nothing_is_said_without_a_number(records: ReadingRecords) -> None:
    for row in said(records):
        assert "nan" not in row.text and "None" not in row.text and "inf" not in row.text, row
