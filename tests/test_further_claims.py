"""Pairs beyond the matrix beside the claims: what they tell, and that no verdict counts them."""

import math
import statistics

import pytest
from further_records import PAIRS, PLANNED, evidence, further_campaign, with_further
from test_report_records import make_records

from report.judge.claims import judge_claims
from report.judge.claims.ledger import CLAIMS
from report.values.frames import CampaignRecords

CLAIMS_BESIDE = {1: "nat/token", 2: "1", 3: "%"}


@pytest.fixture(scope="module")
def records() -> CampaignRecords:
    return further_campaign()


@pytest.mark.parametrize("comparable", [True, False])
def test_no_verdict_counts_them(comparable: bool) -> None:
    """However far they speak against the claims; nor can a seed of theirs flip a verdict."""
    plain = make_records(comparable)
    against = {seed: (1.0, 9.0 + 0.01 * seed, math.nan, 0.5) for seed in PLANNED}
    told = [
        [(claim.verdict, claim.reason, claim.flips, claim.not_established) for claim in judged]
        for judged in (judge_claims(plain), judge_claims(with_further(plain, against)))
    ]
    assert told[0] == told[1]


def test_they_stand_beside_the_first_three_claims(records) -> None:
    shown = {
        claim.claim.number: [row for row in claim.evidence if "further" in row.label]
        for claim in judge_claims(records)
    }
    assert {number for number, rows in shown.items() if rows} == set(CLAIMS_BESIDE)
    for number, unit in CLAIMS_BESIDE.items():
        (row,) = shown[number]
        assert (row.label, row.unit, row.beside) == ("10M, further pairs", unit, True)
        assert row.direction is None and row.size is None and row.counted == "pairs"
        assert "4 of 6 pairs beyond the paper's seeds; no verdict counts them" in row.note
    nll, won, spared = (shown[number][0] for number in CLAIMS_BESIDE)
    assert (nll.ours, nll.paper) == pytest.approx((-0.01, -0.041168), abs=1e-6)
    assert nll.low < 0 < nll.high and nll.note.startswith("its 95% interval holds 0")
    assert (won.ours, won.n, won.paper, won.paper_n) == (3, 4, 3, 3)
    assert spared.ours == pytest.approx(3.0) and spared.n == 4
    assert spared.note.startswith("MHA reaches its own final loss 1.5% early")
    assert "counted as none: seeds 47" in spared.note and "holds 0" not in spared.note
    assert won.told == "of 4 further pairs at 10M it wins 3"
    assert spared.told == (
        "3 of 4 further pairs at 10M reach it; with the others as none, 3.0% fewer tokens, and "
        "MHA reaches its own final loss 1.5% early"
    )


@pytest.mark.parametrize("shift, where", [(0.0, "lies in it too"), (0.1, "does not lie in it")])
def test_what_they_tell_stands_beside_the_verdict(records, shift: float, where: str) -> None:
    """In the record of the claim as on the pages: the mean, its interval and the paper's mean."""
    moved = {s: (mha, full + shift, *rest) for s, (mha, full, *rest) in PAIRS.items()}
    first = judge_claims(with_further(make_records(True), moved), CLAIMS[:1])[0]
    mean, half = shift - 0.01, 3.182446 * statistics.stdev([-0.01, -0.04, 0.02, -0.01]) / 2
    ends = (f"{end:+.4f}".replace("-", "−") for end in (mean, mean - half, mean + half))
    ours, low, high = ends
    assert first.beside == (
        f"4 further pairs at 10M: {ours}, 95% interval {low} to {high}; the paper’s −0.0412 {where}"
    )
    assert judge_claims(make_records(True), CLAIMS[:1])[0].beside == ""


@pytest.mark.parametrize("shift, side", [(-0.2, "lies below 0"), (0.1, "lies above 0")])
def test_an_interval_that_excludes_zero_says_so(shift: float, side: str) -> None:
    apart = {
        seed: (mha, mha + shift + 0.001 * seed, spared, own)
        for seed, (mha, _, spared, own) in PAIRS.items()
    }
    beside = [row for row in evidence(with_further(make_records(), apart)) if row.beside]
    assert beside[0].unit == "nat/token"
    assert beside[0].note.startswith(f"its 95% interval {side}")


def test_twenty_pairs_whose_interval_excludes_zero_establish_a_sign() -> None:
    def beside(count: int, shift: float) -> str:
        seeds = range(45, 45 + count)
        pairs = {seed: (3.0, 3.0 + shift + 0.01 * (seed % 2), 3.0, 1.5) for seed in seeds}
        records = with_further(make_records(True), pairs, planned=tuple(seeds))
        return judge_claims(records, CLAIMS[:1])[0].beside

    assert "(established)" in beside(20, -0.03)
    assert "(established)" in beside(20, 0.03)
    assert "(established)" not in beside(19, -0.03)
    assert "(established)" not in beside(20, -0.005)
