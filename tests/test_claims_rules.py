"""The claims' bounds, distances and kernels are those that their words name."""

from dataclasses import replace

import pandas as pd
from test_claims import flow, ledger, paper

from report.claims import CLAIMS


def test_what_only_the_pytorch_form_was_held_to_says_nothing_for_the_kernel() -> None:
    checked = paper().verification
    identity = checked["check"] == "identity"
    definition = checked[identity].assign(operator="definition", precision="fp64")
    tiled = pd.concat([definition, checked.assign(operator="tiled")], ignore_index=True)
    found = ledger(replace(paper(), verification=tiled), 15, 18)
    assert found[15].verdict == "not tested" and "not the kernel" in found[15].reason
    assert all(row.ours == 0.5 and row.direction is None for row in found[15].evidence)
    assert (
        found[18].verdict == "reproduced" and "without first token, tiled" not in found[18].reason
    )
    assert "first token, tiled: only FlashRelation’s tiling" in found[18].reason
    broken = tiled.assign(error=tiled["error"].mask(tiled["operator"] == "tiled", 1.0))
    for judged in ledger(replace(paper(), verification=broken), 15, 18).values():
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
    assert rows[0].quantity == "historical mass beyond 8 = T/8, Relation - MHA"
    assert ledger(paper(), 10)[10].evidence[0].label == "10M, d > 128"
