"""The claims on pairs where pairs are lost, missing, not planned or of other models."""

from dataclasses import replace

import pandas as pd
import pytest
from paper_records import trained_as
from test_claims import ledger, nll, paper
from test_report_records import edited, without

from report.judge.claims import structure
from report.judge.claims.context import Context
from report.values.frames import CampaignRecords


def pairs(drop: list[tuple[str, int]], lost: list[tuple[str, int]], **page) -> CampaignRecords:
    """The paper's pairs with these lost, all others won, and without those to drop."""
    records = paper()
    for scale in ("10M", "30M", "100M"):
        for seed in (42, 43, 44):
            by = 1.0 if (scale, seed) in lost else -1.0
            records = nll("full", scale, by, records, seed=seed)
    for scale, seed in drop:
        records = without(records, "runs", scale=scale, seed=seed, variant="full")
    missing = pd.DataFrame(
        {"kind": "run", "scale": scale, "variant": "full", "seed": seed, "status": "failed",
         "reason": "loss nan"}
        for scale, seed in drop
    )  # fmt: skip
    return replace(records, missing=missing, page=records.page | page) if drop else records


@pytest.mark.parametrize("drop, lost, verdict, said", [
    ([], [], "reproduced", ""),
    ([], [("10M", 42)], "reproduced", "lost: 10M/42"),
    ([], [("10M", 42), ("30M", 43)], "not reproduced", "lost: 10M/42, 30M/43"),
    ([("10M", 42)], [], "reproduced",
     "8 of 9 pairs are there; 10M/42: loss nan; a loss of what is missing would be the only one"),
    ([("10M", 42)], [("30M", 42)], "not tested",
     "lost: 30M/42; 8 of 9 pairs are there; 10M/42: loss nan; with what is missing, 2 may be lost"),
    ([("10M", 42), ("100M", 43)], [], "not tested",
     "7 of 9 pairs are there; 10M/42, 100M/43: loss nan; with what is missing, 2 may be lost"),
    ([("10M", 42), ("100M", 43)], [("30M", 42), ("30M", 43)], "not reproduced", "7 of 9 pairs"),
])  # fmt: skip
def test_missing_pairs_leave_the_wins_open_only_where_they_matter(
    drop, lost, verdict: str, said: str
) -> None:
    judged = ledger(pairs(drop, lost), 2)[2]
    (row,) = judged.evidence
    assert judged.verdict == verdict and said in row.note
    assert (row.n, row.ours) == (9 - len(drop), 9 - len(drop) - len(lost))
    assert verdict != "not tested" or (judged.reason == row.note and not judged.flips)


def test_pairs_that_are_not_planned_are_not_called_missing() -> None:
    drop = [(scale, 44) for scale in ("10M", "30M", "100M")]
    judged = ledger(pairs(drop, [], seeds=[42, 43]), 2)[2]
    assert judged.verdict == "not tested"
    assert judged.reason.startswith("6 of 9 pairs are there; with what is missing, 3 may be lost")


def test_pairs_of_other_models_do_not_count() -> None:
    planned = [row | {"d_ff": 1} if row["scale"] == "100M" else row for row in trained_as("paper")]
    judged = ledger(replace(pairs([], []), page=paper().page | {"trained": planned}), 2)[2]
    assert judged.verdict == "not tested" and judged.evidence[0].n == 6
    assert "100M/42, 100M/43, 100M/44: 100M has 20/640/8x80/1, the paper's" in judged.reason


def test_a_mean_of_fewer_seeds_than_the_papers_says_so() -> None:
    records = paper()
    for scale in ("10M", "30M", "100M"):
        records = nll("full", scale, -0.02, records)
    one = without(records, "runs", seed=(42, 44))
    for row in ledger(one, 1)[1].evidence:
        assert row.n == 1 and "one seed, the paper's mean is of 3" in row.note and row.direction
    for row in ledger(records, 1)[1].evidence:
        assert row.n == 3 and "the paper's mean is of" not in row.note


def seeds_of_flow(**values: dict[int, float]) -> CampaignRecords:
    """The paper's diagnoses with the L0 effective rank of each variant at 30M by seed."""
    flow = paper().flow
    here = (flow["scale"] == "30M") & (flow["layer"] == 0) & (flow["metric"] == "effective_rank")
    rows = [flow[~here]]
    for variant, by_seed in values.items():
        row = flow[here & (flow["variant"] == variant)]
        rows += [row.assign(seed=seed, value=value) for seed, value in by_seed.items()]
    return replace(paper(), flow=pd.concat(rows, ignore_index=True))


def test_a_ratio_without_a_seed_is_the_ratio_of_the_other_means() -> None:
    records = seeds_of_flow(mha={42: 1.0, 43: 10.0, 44: 1.0}, full={42: 0.5, 43: 100.0, 44: 0.5})
    row = next(row for row in ledger(records, 7)[7].evidence if row.label == "30M")
    assert row.ours == pytest.approx(101 / 12) and row.n == 3
    without = next(
        row
        for row in structure.rank_first(Context(records, 43, Context(records)))
        if row.label == "30M"
    )
    assert without.ours == pytest.approx(0.5) and without.n == 2 and without.direction is False


def test_a_ratio_without_a_seed_has_no_wider_interval() -> None:
    """Of two seeds t is 12.7: almost any ratio of the paper's would lie within."""
    records = seeds_of_flow(mha=dict.fromkeys((42, 43, 44), 1.0), full={42: 2.0, 43: 2.5, 44: 2.6})
    whole = Context(records)

    def width(context: Context) -> float:
        row = next(row for row in structure.rank_first(context) if row.label == "30M")
        return row.high - row.low

    assert width(Context(records, 44, whole)) == pytest.approx(width(whole))
    assert 0 < width(Context(records, 42, whole)) < width(whole)


def test_terms_of_different_seeds_have_no_difference() -> None:
    other = edited(paper(), "flow", {"scale": "30M", "variant": "full"}, seed=43)
    judged = ledger(other, 6)[6]
    row = next(row for row in judged.evidence if row.label == "30M")
    assert row.ours is None and row.note == "no seed has both terms of the difference"
    assert judged.verdict == "reproduced" and "without 30M" in judged.reason


def test_a_claim_on_parameters_asks_for_the_inventory_alone() -> None:
    gone = [("run", "10M", "full", 42), ("models", "", "", -1)]
    missing = pd.DataFrame(
        {"kind": kind, "scale": scale, "variant": variant, "seed": seed, "status": "not run",
         "reason": f"there is no {kind}.parquet"}
        for kind, scale, variant, seed in gone
    )  # fmt: skip
    records = replace(paper(), models=paper().models[:0], missing=missing)
    judged = ledger(records, 5)[5]
    assert (judged.verdict, judged.reason) == ("not tested", "there is no models.parquet")
