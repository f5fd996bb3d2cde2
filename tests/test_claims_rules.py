"""The claims' bounds, distances, kernels and checks, and what the job writes of the ledger."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from paper_records import paper_records, trained_as
from test_claims import ALL, flow, ledger, long_context, nll, paper, speed
from test_report_records import HOSTILE, edited, make_records, without

from relation.store.parquet import read_parquet
from report.judge.claims import CLAIMS
from report.judge.claims.evidence import Evidence, compare, outcome, printed
from report.judge.frames import CLAIMS as LAYOUT
from report.judge.frames import FRAMES
from report.judge.job import write_cells
from report.render.overview import tally
from report.values.measured import Measured
from report.values.numbers import counted


def test_what_only_the_pytorch_form_was_held_to_says_nothing_for_the_kernel() -> None:
    checked = paper().verification
    identity = checked["check"] == "identity"
    definition = checked[identity].assign(operator="definition", precision="fp64")
    tiled = pd.concat([definition, checked.assign(operator="tiled")], ignore_index=True)
    records = replace(paper(), verification=tiled)
    found = ledger(records, 15, 18)
    assert found[15].verdict == "not tested" and "not the kernel" in found[15].reason
    assert all(row.ours == 0.5 and row.direction is None for row in found[15].evidence)
    assert (
        found[18].verdict == "reproduced" and "without first token, tiled" not in found[18].reason
    )
    assert "first token, tiled: only FlashRelation’s tiling" in found[18].reason
    broken = edited(records, "verification", {"operator": "tiled"}, error=1.0)
    for judged in ledger(broken, 15, 18).values():
        assert judged.verdict == "not reproduced"


def test_a_rule_prints_the_bound_that_decides() -> None:
    rules = {claim.number: claim.rule for claim in CLAIMS}
    assert rules[7].startswith("Relation's effective rank over MHA's above 1 at every scale")
    assert rules[8].startswith("Below 1.5% at every scale")
    assert rules[9].startswith("At least 97.125%, the paper's least but for rounding, at every")
    for number, metric, layer, bound in (
        (8, "self_flow", 1, 0.015),
        (9, "exchange_flow", None, 0.97125),
    ):
        for value, holds in ((bound - 1e-4, number == 8), (bound + 1e-4, number == 9)):
            judged = ledger(flow(metric, value, layer), number)[number]
            row = next(row for row in judged.evidence if row.label == "30M")
            assert row.direction is holds


def test_distances_are_those_of_the_sequences() -> None:
    shorter = replace(paper(), flow=paper().flow.assign(length=64))
    rows = ledger(shorter, 10)[10].evidence
    assert [row.label for row in rows[:3]] == ["10M, d > 8", "10M, d > 16", "10M, d > 32"]
    assert rows[0].quantity == "historical mass beyond 8 = T/8, Relation − MHA"
    assert ledger(paper(), 10)[10].evidence[0].label == "10M, d > 128"


def row(label: str, direction: bool, contested: bool, **fields) -> Evidence:
    return Evidence(label, "NLL", "1", direction=direction, contested=contested, **fields)


@pytest.mark.parametrize("rows, verdict, not_established", [
    ([("a", True, False), ("b", True, False)], "reproduced", ""),
    ([("a", True, True), ("b", True, False)], "reproduced", "a"),
    ([("a", False, True), ("b", True, True)], "not reproduced", "a"),
    ([("a", False, True), ("b", False, False)], "not reproduced", ""),
])  # fmt: skip
def test_a_verdict_is_not_established_where_an_interval_says_otherwise(
    rows, verdict: str, not_established: str
) -> None:
    found = outcome([row(*given, asks_size=False) for given in rows])
    assert (found.verdict, found.not_established) == (verdict, not_established)
    one_of_two = rows[0][1:] == (False, True) and not not_established
    assert ("(not established: a)" in found.reason) == one_of_two


def test_an_established_miss_without_a_sign_decides_beside_a_contested_sign() -> None:
    missed = Evidence("b", "NLL", "1", size=False, asks_direction=False)
    found = outcome([row("a", False, True, asks_size=False), missed])
    assert (found.verdict, found.not_established) == ("not reproduced", "")
    assert "direction does not hold: a; the paper's value is not met: b" in found.reason


def test_a_verdict_says_what_was_not_there_to_decide() -> None:
    held, missed = (row(label, label == "10M", False, asks_size=False) for label in ("10M", "30M"))
    absent = row("100M", None, False, asks_size=False, note="not run")
    parts = [row(f"{scale}, d > 8", None, False) for scale in ("10M", "100M")]
    for rows, verdict, lacking in (
        ([held], "reproduced", ""),
        ([held, absent], "reproduced", "100M"),
        ([held, missed, absent], "not reproduced", "100M"),
        ([held, *parts], "reproduced", "10M, d > 8; 100M"),
        ([absent], "not tested", ""),
    ):
        found = outcome(rows)
        assert (found.verdict, found.without) == (verdict, lacking)


def test_what_stands_beside_a_claim_decides_nothing() -> None:
    held = row("a", True, False, size=True)
    beside = row("b", False, True, size=False, beside=True)
    assert outcome([held, beside]) == outcome([held])
    assert outcome([beside]).verdict == "not tested"


def test_a_part_that_is_decided_is_told_of_a_claim_that_is_not() -> None:
    ledgers = ledger(paper_records(trained=trained_as("books")), 1, 17)
    found = ledgers[17]
    assert found.verdict == "not tested" and "other texts" in found.reason
    assert ledgers[1].verdict == "reproduced"
    assert found.reason.startswith("it holds for parameters; undecided: NLL (")
    beside = {row.label: row for row in found.evidence if row.beside}
    for label, theirs in (("Hybrid − Full Relation", -0.0070), ("Hybrid − MHA", -0.0221)):
        assert beside[label].paper == pytest.approx(theirs, abs=5e-5)
        assert beside[label].ours == pytest.approx(beside[label].paper) and beside[label].low
        assert beside[label].direction is None and beside[label].size is None


def test_peers_and_bytes_stand_beside_the_papers_comparisons() -> None:
    records = speed("fixed", "flash", "full", 1.0)
    rates = records.throughput
    here = rates["scale"] == "10M"
    reference = rates[here & (rates["side"] == "reference")]
    mha = rates[here & (rates["benchmark"] == "matched") & (rates["side"] == "mha")]
    peers = [
        reference.assign(side="reference-compiled", backend="materialised"),
        mha.assign(side="mha-cudnn", backend="cudnn"),
    ]
    rates = rates.assign(
        kernels=[["pytorch_flash::flash_fwd"] if side == "mha" else [] for side in rates["side"]],
        allocated_gib=rates["allocated_gib"].where(rates["benchmark"] != "fixed", 8.0),
    )
    records = replace(records, throughput=pd.concat([rates, *peers], ignore_index=True))
    found = ledger(records, 12, 13, 14)
    assert {judged.verdict for judged in found.values()} == {"reproduced"}
    for number, peer in ((12, "compiled with its model"), (13, "cuDNN’s attention")):
        (row,) = [row for row in found[number].evidence if row.beside]
        assert row.label == "10M" and peer in row.quantity and row.ours and row.paper is None
        assert counted({"n": row.n, "counted": row.counted}) == "6 rounds"
    assert "FlashAttention is PyTorch’s FlashAttention-2" in found[13].evidence[0].note
    note = found[14].evidence[0].note
    assert " MiB; at T = 1024 the materialised operator allocates 8 GiB, FlashRelation 8" in note


def test_a_pair_that_ends_above_the_target_it_crossed_is_named() -> None:
    below = replace(paper(), efficiency=paper().efficiency.assign(end_gap=-0.01))
    records = edited(below, "efficiency", {"scale": "10M", "seed": 43}, end_gap=0.005)
    rows = ledger(records, 3)[3].evidence
    assert "Relation ends above the target that it crossed: 43" in rows[0].note
    assert "ends above" not in rows[1].note + rows[2].note


def test_the_record_of_a_claim_says_what_is_not_established_and_out_of_what(tmp_path) -> None:
    write_cells(nll("full", "10M", 0.035), tmp_path)
    frames = {
        name: read_parquet(tmp_path / f"{name}.parquet", FRAMES[name]).to_pylist()
        for name in ("claims", "evidence", "checklist")
    }
    first = frames["claims"][0]
    assert (first["verdict"], first["not_established"]) == ("reproduced", "10M, 30M")
    (wins,) = [row for row in frames["evidence"] if row["claim"] == 2]
    assert (wins["paper"], wins["paper_n"], wins["difference"]) == (8, 9, None)
    assert counted(wins) == "9 pairs" and counted(wins | {"n": 1}) == "1 pair"
    told = [name for name, _, unsure in tally(frames["claims"]) if unsure]
    assert told and any("of them not established" in row["answer"] + row["justification"]
                        for row in frames["checklist"])  # fmt: skip


@pytest.mark.parametrize("spread, least, most", [(0.0155, 0.09, 0.14), (0.022, 0.155, 0.205)])
def test_without_any_effect_claim_1_may_hold(spread: float, least: float, most: float) -> None:
    """The shares that docs/verdicts.md tells, at 10M and 30M, three pairs each."""
    scales = [(scale, printed("app-nll", f"{scale}/mean", "delta")) for scale in ("10M", "30M")]
    random, replications, held, established = np.random.default_rng(0), 3000, 0, 0
    for _ in range(replications):
        rows = []
        for scale, theirs in scales:
            pairs = dict(enumerate(random.normal(0, spread, 3).tolist()))
            mean = Measured(sum(pairs.values()) / 3, unit="nat/token", n=3, by_seed=pairs)
            rows.append(compare(scale, "NLL", theirs, mean, lambda value: value < 0))
        found = outcome(rows)
        held += found.verdict == "reproduced"
        established += found.verdict == "reproduced" and not found.not_established
    assert established <= 2
    assert least < held / replications < most


def test_what_fits_is_tested_on_the_papers_gpu_alone_and_bytes_stand_beside() -> None:
    there = long_context("65536", "PASS")
    elsewhere = replace(there, provenance=there.provenance.assign(device="NVIDIA H200"))
    judged = ledger(elsewhere, 21)[21]
    assert judged.verdict == "not tested" and "on NVIDIA H200, the paper's on an RTX 5090" in (
        judged.reason
    )
    counts = [(row.label, row.ours, row.n, row.paper) for row in judged.evidence if not row.beside]
    assert counts == [("T = 1,024 to 32,768", 6, 6, 6), ("T = 65,536", 0, 1, 1)]
    assert judged.beside == "T = 65,536 takes 31 GiB here; the paper’s GPU has 32 GB"
    assert ledger(paper(), 21)[21].beside == ""


def test_a_verification_from_before_a_check_says_so() -> None:
    for number, check in ((22, "mixing"), (23, "recurrence"), (24, "history")):
        older = ledger(without(paper(), "verification", check=check), number)[number]
        assert "verification is older than this check" in older.reason
        none = replace(paper(), verification=paper().verification.iloc[:0])
        assert "holds no verification" in ledger(none, number)[number].reason


def test_the_cells_job_writes_what_the_ledger_says(tmp_path) -> None:
    write_cells(make_records(), tmp_path)
    frames = {name: read_parquet(tmp_path / f"{name}.parquet", s) for name, s in FRAMES.items()}
    assert frames["claims"]["number"].to_pylist() == list(ALL)
    assert set(frames["evidence"]["claim"].to_pylist()) == set(ALL)
    assert HOSTILE in frames["missing"]["reason"].to_pylist()
    checklist = frames["checklist"].to_pylist()
    assert {row["standard"] for row in checklist} == {"NeurIPS", "ACM"}
    assert all(row["answer"] and row["justification"] for row in checklist)


def test_a_claim_is_as_old_as_the_oldest_of_its_records(tmp_path) -> None:
    old = {"freshness": "stale", "freshness_reason": "other texts"}
    write_cells(edited(paper_records(), "provenance", {"kind": "diagnostics"}, **old), tmp_path)
    claims = read_parquet(tmp_path / "claims.parquet", LAYOUT).to_pylist()
    found = {claim["number"]: (claim["freshness"], claim["freshness_reason"]) for claim in claims}
    assert found[1] == ("current", "")
    assert all(found[number] == ("stale", "other texts") for number in (*range(6, 12), 19, 20))
    assert found[15] == (None, None)


def test_the_first_layer_is_held_against_the_later_one_with_most() -> None:
    judged = ledger(paper_records(), 20)[20]
    rows = {row.label: row for row in judged.evidence}
    # Table 7, 10M: Self 28.57% against 3.39% in L4, rank 405.4 against 224.5 in L2; MHA's diagonal.
    for label, theirs in (
        ("10M, anchor", 28.57 / 3.39),
        ("10M, router", 405.4 / 224.5),
        ("10M, shift", 1.49 / 28.57),
        ("10M, shift beside MHA's", (1.49 / 28.57) / (7.30 / 6.62)),
    ):
        assert rows[label].paper == pytest.approx(theirs)
        assert rows[label].ours == pytest.approx(theirs)
        assert rows[label].direction and rows[label].size is None
    assert judged.verdict == "reproduced" and len(rows) == 4 * 3


def test_a_backend_may_fail_a_check_and_none_stands_for_the_definition() -> None:
    for number, check in ((23, "recurrence"), (24, "history")):
        rough = {"check": check, "precision": "bf16"}
        tiled = edited(paper(), "verification", rough, operator="tiled")
        assert ledger(tiled, number)[number].verdict == "reproduced"
        found = ledger(edited(tiled, "verification", rough, error=1.0), number)[number]
        assert found.verdict == "not reproduced" and "tiled" in found.reason
