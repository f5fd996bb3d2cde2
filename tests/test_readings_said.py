"""What the report says of the readings: computed, partial where the records are, never fixed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from readings_records import BASES, Invented, described, invented

from relation.pipeline.gather import ReadingRecords
from report.judge.readings import said, turned_on, turning_claims
from report.judge.readings_study import study

UNSCALED, SCALED = BASES
EVERY = [reading["name"] for reading in described()]
THREE = dict.fromkeys(EVERY, (142, 143, 144))


def told(records: ReadingRecords, place: str) -> str:
    return " ".join(row.text for row in said(study(records)) if row.place == place)


def told_of(records: ReadingRecords, statistic: str) -> str:
    (text,) = (row.text for row in said(study(records)) if row.statistic == statistic)
    return text


def both(delta: Sequence[float], mha: Sequence[float]) -> ReadingRecords:
    """The two bases alone, unscaled and scaled, with three seeds each."""
    of_delta, of_mha = (dict(zip(BASES, pair, strict=True)) for pair in (delta, mha))
    return invented(Invented(delta=of_delta, mha=of_mha, keep=BASES))


def rated(mha: Mapping[str, float], delta: Mapping[str, float]) -> ReadingRecords:
    """Unscaled at several learning rates, by choice."""
    of = [{f"unscaled-{choice}": v for choice, v in values.items()} for values in (mha, delta)]
    return invented(Invented(mha=of[0], delta=of[1], keep=list(of[0])))


@pytest.fixture(scope="module")
def records() -> ReadingRecords:
    return invented()


def test_the_finding_starts_with_the_first_layer_and_gives_both_losses(records) -> None:
    """Pairs lie 0.01 apart by seed; a margin is 2.776 s / sqrt(3)."""
    for place in ("headline", "finding"):
        first, *_ = (row.text for row in said(study(records)) if row.place == place)
        assert first.startswith("What Relation’s first layer does depends on initial weights")
    finding = told(records, "finding")
    assert "−0.0650 nat/token [−0.0810, −0.0490; n = 3] unscaled" in finding
    assert "−0.0120 nat/token [−0.0280, +0.0040; n = 3] scaled" in finding
    assert "lowers MHA’s final NLL by 0.0990 (3.4450 to 3.3460)" in finding
    assert "lowers Relation’s by 0.0460 (3.3800 to 3.3340)" in finding
    assert "72 of 72" in finding and "2 of 26 readings" in finding


def test_choices_that_move_the_first_layer_are_named_where_that_is_established(records) -> None:
    """Those on the other base's side; what lies between the two is not named."""
    anchored, lost = ((shift, *[0.0] * 7) for shift in (0.5, -2.0))
    shifts = {name: anchored if "unscaled" in name else lost for name in EVERY}
    shifts |= {"unscaled-embedding-sd": lost, "scaled-lr-twice": anchored}
    shifts |= {"unscaled-adam-eps": (-0.2, *[0.0] * 7)}
    moved = invented(Invented(shifts=shifts))
    assert "% with embedding sd 1/sqrt(d), projections 0.02." in told(moved, "headline")
    assert "Scaled, with twice the paper’s learning rate, it keeps" in told(moved, "headline")
    effect, undone = told(moved, "finding").split("the same effect")[1].split("undone by")
    assert "embedding sd 1/sqrt(d)" in effect and "eps" not in effect
    assert "twice the paper’s learning rate" in undone.split("Each of these")[0]
    finding = told(records, "finding")
    assert "the same effect" not in finding and "undone by" not in finding
    assert "Scaled, with" not in told(records, "headline")
    alike = invented(Invented(shifts=dict.fromkeys(EVERY, anchored)))
    for place in ("headline", "finding"):
        assert "does depends" not in told(alike, place), "the bases are not told apart"


def test_a_learning_rate_that_turns_the_sign_is_named_with_its_contrast() -> None:
    same = dict.fromkeys(("lr-half", "sd-0.02", "lr-twice"), 3.4)
    turned = rated(same, {"lr-half": 0.05, "sd-0.02": -0.05, "lr-twice": -0.02})
    finding = told(turned, "finding")
    assert "At half the paper’s learning rate the difference changes its sign" in finding
    assert "it is +0.0500 nat/token" in finding and "this is established unscaled" in finding
    assert "twice" not in finding
    slight = rated(same, {"lr-half": 0.002, "sd-0.02": -0.005, "lr-twice": -0.02})
    assert "this is not established unscaled" in told(slight, "finding")


@pytest.mark.parametrize("delta, mha, words", [
    ((-0.065, -0.012), (3.445, 3.346), (
        "scaled is established", "lowers MHA’s final NLL by 0.0990", "lowers Relation’s by 0.0460",
        "below MHA’s in 2 (1 established) and above it in 0 (0 established)")),
    ((0.065, 0.012), (3.346, 3.445), (
        "raises MHA’s final NLL by 0.0990", "below MHA’s in 0 (0 established) and above it in 2")),
    ((-0.012, -0.065), (3.445, 3.446), ("raises MHA’s", "and lowers Relation’s by 0.0520")),
    ((-0.03, -0.031), (3.4, 3.3), ("scaled is not established",)),
])  # fmt: skip
def test_the_words_follow_the_numbers(delta, mha, words) -> None:
    loss = told(both(delta, mha), "finding").partition("final NLL minus")[2]
    assert all(word in loss for word in words), loss


def test_one_seed_a_reading_gives_no_interval_and_the_page_says_so() -> None:
    records = invented(Invented(seeds={}))
    finding = told(records, "finding")
    assert "[no interval; n = 1]" in finding and "nothing is established" in finding
    assert "no claim is known to turn" in finding and "scaled is not tested" in finding
    assert "same effect" not in finding and " established)" not in finding
    assert "no reading has two seeds" in told(records, "answer")
    of_nll = told_of(records, "final-nll")
    assert "there is no interval" in of_nll and "Nothing tests yet" in of_nll
    assert "nothing tests" in told(records, "practice") and told(records, "turns") == ""


def test_without_one_base_nothing_is_said_of_the_scale() -> None:
    records = invented(Invented(keep=[SCALED, "scaled-lr-half"]))
    assert "sqrt(2L)" not in told(records, "finding") + told(records, "headline")
    assert "unscaled-sd-0.02 has no whole pair" in told(records, "answer")
    assert "lowest final NLL" not in told(records, "practice")


def test_the_rules_answer_is_in_its_words(records: ReadingRecords) -> None:
    assert "No reading is chosen yet" in told(records, "headline")
    whole = invented(Invented(seeds=THREE))
    choice = study(whole).choice
    assert choice.answer == "chosen" and f"chooses {choice.reading} (" in told(whole, "finding")
    assert choice.reason in told(whole, "answer")
    assert f"nearer than {choice.bound:.1f}" in told(whole, "answer")
    far = invented(Invented(seeds=THREE, shifts=dict.fromkeys(EVERY, 9.0)))
    assert "identifies no reading" in told(far, "headline")
    assert "The default is unscaled-sd-0.02" in told(far, "answer")


def test_a_run_without_its_partner_moves_no_mean(records: ReadingRecords) -> None:
    runs = records.runs
    lone = (runs["reading"] == SCALED) & (runs["seed"] == 144) & (runs["variant"] == "full")
    lacking = replace(records, runs=runs[~lone])
    assert "(3.3800 to 3.3340)" in told(lacking, "finding")
    assert "−0.0120 nat/token" in told(lacking, "finding")


def test_a_claim_turns_on_the_residual_scale_or_on_readings() -> None:
    """Every reading of one scale wins, every one of the other loses; then one of all loses."""
    scale = {name: -0.065 if name.startswith("unscaled") else 0.065 for name in EVERY}
    records = invented(Invented(seeds=THREE, delta=scale))
    found = study(records)
    assert found.base.startswith("unscaled")
    whole = "the residual scale (all 10 readings that have the other one)"
    assert turned_on(found, "final-nll") == whole and whole in told_of(records, "final-nll")
    assert 1 in turning_claims(found) and "claims 1" in told(records, "headline")
    one = dict.fromkeys(EVERY, -0.065) | {"scaled-adam-eps": 0.065}
    records = invented(Invented(seeds=THREE, delta=one))
    assert turned_on(study(records), "final-nll") == "scaled-adam-eps"
    none = invented(Invented(seeds=THREE, delta=dict.fromkeys(EVERY, -0.065)))
    assert 1 not in turning_claims(study(none))
    assert "No reading is known to change the answer" in told_of(none, "final-nll")


@pytest.mark.parametrize("delta, mha, words", [
    ((-0.065, -0.012), (3.445, 3.346), (
        f"{SCALED} gives MHA its lowest final NLL: 3.3460, 0.0990 below", "more than the 0.0650",
        "18% of that", "So part of the difference is the baseline’s",
        f"(both {SCALED}), Relation ends 0.0120 below MHA (n = 3)")),
    ((-0.065, -0.165), (3.445, 3.400), ("no more than", "the baseline does not cause it")),
    ((-0.065, -0.062), (3.445, 3.400), ("not told apart", "is open")),
    ((-0.065, -0.012), (3.345, 3.446), (f"{UNSCALED} itself gives MHA its lowest",)),
    ((-0.065, 0.030), (3.445, 3.346), ("no advantage in these pairs", "ends 0.0300 above MHA")),
])  # fmt: skip
def test_practice_names_the_best_baseline_and_what_it_leaves(delta, mha, words) -> None:
    practice = told(both(delta, mha), "practice")
    assert all(word in practice for word in words), practice


def test_practice_compares_models_at_their_own_learning_rates() -> None:
    delta = {"lr-half": -0.06, "sd-0.02": -0.05, "lr-twice": -0.04}
    inside = rated({"lr-half": 3.5, "sd-0.02": 3.4, "lr-twice": 3.45}, delta)
    practice = told(inside, "practice")
    assert "both models do best at the paper’s learning rate" in practice
    assert "(3.4000 and 3.3500); there Relation − MHA is −0.0500" in practice
    edge = rated({"lr-half": 3.5, "sd-0.02": 3.4, "lr-twice": 3.35}, delta | {"lr-twice": 0.02})
    practice = told(edge, "practice")
    assert "Relation − MHA is 0.0000; at the paper’s rate it is −0.0500" in practice
    assert "may lie beyond" in practice
    assert "learning rate" not in told(invented(Invented(keep=[UNSCALED])), "practice")


def test_texts_are_not_compared() -> None:
    easy = invented(Invented(mha={"unscaled-short-books": 1.0}))
    assert "short-books" in set(study(easy).nll["choice"])
    assert "short-books" not in told(easy, "practice")


def test_nothing_is_said_without_a_number(records: ReadingRecords) -> None:
    for row in said(study(records)):
        assert not {"nan", "None", "inf"} & set(row.text.split()), row
