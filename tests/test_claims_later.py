"""Claims 19 to 24, which came later, and what the job writes of the ledger."""

from dataclasses import replace

import pytest
from paper_records import paper_records
from test_claims import ALL, ledger, long_context, paper, without
from test_report_records import HOSTILE, make_records

from relation.parquet import read_parquet
from report.claims import CLAIMS
from report.jobs.cells import write_cells
from report.jobs.schemas import CLAIMS as LAYOUT
from report.jobs.schemas import FRAMES


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
        older = ledger(without("verification", check=check), number)[number]
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
    provenance = paper().provenance
    old = provenance["kind"] == "diagnostics"
    provenance = provenance.assign(
        freshness=provenance["freshness"].mask(old, "stale"),
        freshness_reason=provenance["freshness_reason"].mask(old, "other texts"),
    )
    write_cells(replace(paper_records(), provenance=provenance), tmp_path)
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


def test_a_rule_that_came_later_says_so() -> None:
    later = [claim.number for claim in CLAIMS if claim.rule.startswith("Added after the first")]
    assert later == list(range(19, 25))


def test_a_backend_may_fail_a_check_and_none_stands_for_the_definition() -> None:
    checked = paper().verification
    for number, check in ((23, "recurrence"), (24, "history")):
        here = checked["check"] == check
        exact = checked["precision"] == "fp64"
        tiled = checked.assign(operator=checked["operator"].mask(here & ~exact, "tiled"))
        assert ledger(replace(paper(), verification=tiled), number)[number].verdict == "reproduced"
        broken = tiled.assign(error=tiled["error"].mask(here & ~exact, 1.0))
        found = ledger(replace(paper(), verification=broken), number)[number]
        assert found.verdict == "not reproduced" and "tiled" in found.reason
