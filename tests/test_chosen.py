"""What chose a reading is no verdict on the paper where the campaign trains that very reading."""

from dataclasses import replace
from functools import cache

import pytest
from conftest import campaign
from readings_records import Invented, described, invented
from test_claims import ledger, paper

from report.judge.cells import build
from report.judge.checklist import checklist
from report.judge.chosen import ABOUT, CHOSE
from report.judge.claims import judge_claims
from report.render.overview import shares
from report.render.printed import print_table
from report.values.frames import CampaignRecords
from report.values.structure import INTERNAL

CHOSEN = "unscaled-adam-eps"
FIRST_LAYERS = (6, 7, 8, 10, 11, 19, 20)
# On the paper's values but for one reading, which the rule then chooses.
NEAREST = Invented(
    seeds={reading["name"]: (142, 143, 144) for reading in described()},
    shifts={reading["name"]: 0.4 * (reading["name"] != CHOSEN) for reading in described()}
    | {"unscaled-short-books": 0.8, "scaled-short-books": 1.2, "scaled-sd-0.02": 0.9},
)


@cache
def trained_under(name: str, readings: bool = True) -> CampaignRecords:
    """The paper's values from runs under a campaign's assumptions, beside the readings or not."""
    assumptions = list(campaign(name).assumptions)
    page = paper().page | {"assumptions": assumptions}
    return replace(paper(), page=page, readings=invented(NEAREST) if readings else None)


def test_claims_on_the_first_layers_chose_the_reading_and_get_no_verdict() -> None:
    found = ledger(trained_under("books"), 1, 9, *FIRST_LAYERS)
    before = ledger(paper(), 1, 9, *FIRST_LAYERS)
    for number, judged in found.items():
        if number in FIRST_LAYERS:
            assert judged.verdict == CHOSE and not judged.flips and not judged.not_established
            assert f"the rule chose {CHOSEN}" in judged.reason
            assert judged.reason.endswith(before[number].verdict)
            assert judged.evidence == before[number].evidence
        else:
            assert judged == before[number]


@pytest.mark.parametrize(
    "records",
    [
        trained_under("books-scaled"),
        trained_under("smoke"),
        trained_under("books", readings=False),
        replace(trained_under("books"), readings=invented()),
    ],
    ids=["another reading", "another sd", "no readings", "none chosen"],
)
def test_any_other_campaign_keeps_its_verdicts(records: CampaignRecords) -> None:
    assert ledger(records, 6, 20) == ledger(paper(), 6, 20)


def test_cells_of_the_first_layers_are_not_judged_and_those_of_later_ones_are() -> None:
    key = ["table", "row", "column", "statistic"]
    under, alone = (
        build(trained_under("books", readings)).set_index(key).fillna({"verdict": ""})
        for readings in (True, False)
    )
    assert under["value"].equals(alone["value"])
    changed = under.index[under["verdict"] != alone["verdict"]]
    assert set(changed.get_level_values("table")) == {
        "relation_internal", "app-structural-layerwise", "app-structural-routing",
        "app-structural-sink-profile", "app-structural-spectrum",
    }  # fmt: skip
    assert set(under.loc[changed, "verdict"]) == {CHOSE}
    assert under.loc[changed, "verdict_reason"].str.contains(CHOSEN).all()
    assert under.loc[changed, "tolerance"].isna().all()
    layers = changed[changed.get_level_values("table") == "app-structural-layerwise"]
    assert {row.partition("/")[2] for row in layers.get_level_values("row")} == {"L0", "L1"}
    for column in ("l2_self.full", "l2_exchange.full"):
        assert under.loc[("relation_internal", "10M", column, "value"), "verdict"] == "within"
    internal = under.reset_index()
    printed = print_table(INTERNAL, internal[internal["table"] == INTERNAL.label])
    # 3 scales of (a) L0, L1 and ranks, 7 values, and (b) 4 distances and sinks of both operators.
    assert dict(shares(printed))[CHOSE] == 3 * (7 + 8) and ABOUT in printed.remarks


def test_what_has_no_value_still_says_why() -> None:
    records = replace(trained_under("books"), flow=paper().flow.iloc[:0])
    found = ledger(records, *FIRST_LAYERS)
    assert {judged.verdict for judged in found.values()} == {"not tested"}
    cell = build(records).set_index(["table", "row", "column"])
    assert "no value" in cell.loc[("relation_internal", "10M", "l0_self.full"), "verdict_reason"]


def test_the_checklist_counts_them_apart() -> None:
    records = trained_under("books")
    answers = " ".join(row["justification"] for row in checklist(records, judge_claims(records)))
    assert f"{len(FIRST_LAYERS)} {CHOSE}" in answers
