"""Pairs beyond the matrix: their numbers, what prints them, and that no verdict counts them."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from further_records import PAIRS, PLANNED, evidence, further_campaign, with_further
from test_report_records import make_empty, make_records, one

from report.figures import DRAWINGS, draw_figures
from report.judge.cells import build
from report.judge.claims import judge_claims
from report.judge.claims.ledger import CLAIMS
from report.render.document import LINES_A_FLOAT, floats
from report.render.overview import Result, headlines
from report.render.printed import Entry, PrintedPanel, PrintedTable, print_table
from report.values.frames import CampaignRecords
from report.values.further import further_pairs
from report.values.measured import Measured
from report.values.quality import PAIRED_NLL
from report.values.tables import TABLES

FIGURES = [drawing for drawing in DRAWINGS if drawing.name.startswith("further-")]
CLAIMS_BESIDE = {1: "nat/token", 2: "1", 3: "%"}


@pytest.fixture(scope="module")
def records() -> CampaignRecords:
    return further_campaign()


def value(records: CampaignRecords, column: str, statistic: str = "value") -> Measured:
    return further_pairs(records)["10M/further", f"further.{column}", statistic]


@pytest.fixture(scope="module")
def cells(records) -> pd.DataFrame:
    return build(records)


@pytest.fixture(scope="module")
def plain_cells() -> pd.DataFrame:
    return build(make_records())


def nll_table(cells: pd.DataFrame) -> PrintedTable:
    return print_table(PAIRED_NLL, cells[cells["table"] == PAIRED_NLL.label])


def tables(cells: pd.DataFrame) -> list[PrintedTable]:
    return [print_table(table, cells[cells["table"] == table.label]) for table in TABLES]


def texts(panel: PrintedPanel) -> list[str]:
    (row,) = panel.rows
    (line,) = row.lines
    return [entry.text for entry in line.entries]


def test_the_difference_is_that_of_whole_pairs_with_their_t_interval(records) -> None:
    """Differences −0.01, −0.04, +0.02, −0.01: deviations 0, −0.03, 0.03, 0 from their mean."""
    delta, spread = value(records, "delta"), value(records, "spread").value
    assert delta.by_seed == pytest.approx({45: -0.01, 46: -0.04, 47: 0.02, 48: -0.01})
    assert delta.value == pytest.approx(-0.01) and delta.n == 4
    assert spread == pytest.approx(math.sqrt(0.0018 / 3))
    margin = 3.182446 * spread / 2
    ends = [value(records, "delta", end).value for end in ("low", "high")]
    assert ends == pytest.approx([-0.01 - margin, -0.01 + margin])
    assert value(records, "won").value == 3
    assert {value(records, column).n for column in ("mha", "full", "spread", "won")} == {4}


def test_means_leave_out_a_run_without_its_partner(records) -> None:
    """49 has a Relation run of NLL 5, and no MHA run."""
    for place, variant in enumerate(("mha", "full")):
        nll = [pair[place] for pair in PAIRS.values()]
        assert value(records, variant).value == pytest.approx(statistics.fmean(nll))
        assert value(records, variant, "sd").value == pytest.approx(statistics.stdev(nll))
    sources = value(records, "delta").sources
    assert len(sources) == 8 and not any("/49/" in source for source in sources)
    there, planned = value(records, "pairs"), value(records, "planned")
    assert (there.value, planned.value) == (4, 6)
    assert there.reason == (
        "seeds without a pair: 49, 50 (3 of 12 further runs of 10M (mha, full) are not there)"
    )


def test_tokens_spared_stand_beside_those_of_mha_itself(records) -> None:
    """Seed 47 never reaches the target, which is told and counts as none; MHA itself does."""
    relation, itself, difference = (
        value(records, f"spared.{column}") for column in ("full", "mha", "difference")
    )
    assert (relation.value, relation.n) == (pytest.approx(0.03), 4)
    assert relation.reason == "never reached, and counted as none: seeds 47"
    assert (itself.value, itself.n, itself.reason) == (pytest.approx(0.015), 4, "")
    assert difference.by_seed == pytest.approx({45: 0.03, 46: 0.04, 47: -0.03, 48: 0.02})
    half = 3.182446 * statistics.stdev([0.03, 0.04, -0.03, 0.02]) / 2
    assert (difference.value, difference.margin) == pytest.approx((0.015, half), rel=1e-3)
    assert value(records, "reached").value == 3
    assert all(source.endswith("/log.parquet") for source in relation.sources)
    never = {seed: (mha, full, math.nan, own) for seed, (mha, full, _, own) in PAIRS.items()}
    nowhere = value(with_further(make_records(), never), "spared.full")
    assert nowhere.value == 0 and "45 to 48" in nowhere.reason


def test_the_correlation_is_pearsons_with_fishers_interval(records) -> None:
    """The ends are those of scipy.stats.pearsonr(...).confidence_interval()."""
    mha, full = ([pair[place] for pair in PAIRS.values()] for place in (0, 1))
    assert value(records, "correlation").value == pytest.approx(np.corrcoef(mha, full)[0, 1])
    ends = [value(records, "correlation", end).value for end in ("low", "high")]
    assert ends == pytest.approx([-0.9632091435, 0.9588451890], abs=1e-6)
    alike = {seed: (2.0, *pair[1:]) for seed, pair in PAIRS.items()}
    constant = value(with_further(make_records(), alike), "correlation")
    assert constant.status == "undetermined" and "same NLL" in constant.reason


@pytest.mark.parametrize("count, undetermined", [
    (1, {"spread", "correlation"}), (2, {"correlation"}), (3, set()),
])  # fmt: skip
def test_few_pairs_have_what_so_few_can_tell(count: int, undetermined: set[str]) -> None:
    few = with_further(make_records(), dict(list(PAIRS.items())[:count]))
    found = {
        column.removeprefix("further."): measured.status
        for (_, column, statistic), measured in further_pairs(few).items()
        if statistic == "value"
    }
    assert {column for column, status in found.items() if status == "undetermined"} == undetermined
    assert set(found.values()) <= {"ok", "undetermined"}
    interval = ("10M/further", "further.delta", "low") in further_pairs(few)
    assert interval == (count > 1)
    if count == 1:
        assert value(few, "delta").reason == "one pair has no interval"
        assert texts(nll_table(build(few, "app-nll")).panels[1])[:5] == [
            "1 of 6", "2.0100", "2.0000", "−0.0100", "undetermined"
        ]  # fmt: skip
    ends = ("10M/further", "further.correlation", "low") in further_pairs(few)
    assert not ends, "Fisher's interval takes four pairs"


def test_the_panel_prints_one_line_a_scale_that_has_further_seeds(cells, plain_cells) -> None:
    shown, plain = nll_table(cells), nll_table(plain_cells)
    matrix, beyond = shown.panels
    assert (matrix.panel.title, beyond.panel.title) == (
        "(a) Pairs of the matrix", "(b) Further pairs",
    )  # fmt: skip
    assert texts(beyond) == [
        "4 of 6", "2.0075 ± 0.0171", "1.9975 ± 0.0171", "−0.0100 [−0.0490, +0.0290]", "0.0245",
        "3", "3.0%", "1.5%", "+1.5% [−3.4, +6.4]", "−0.03 [−0.96, +0.96]",
    ]  # fmt: skip
    assert [row.key for row in matrix.rows] == [row.key for row in plain.panels[0].rows]
    assert any("(10M: 45 to 50)" in remark for remark in shown.remarks)
    assert any("seeds without a pair: 49, 50" in text for _, text in shown.notes)
    assert (shown.measured, shown.asked) == (plain.measured, plain.asked)


def test_a_campaign_without_further_seeds_has_no_word_of_them(plain_cells, tmp_path) -> None:
    plain = make_records()
    shown = nll_table(plain_cells)
    (matrix,) = shown.panels
    assert matrix.panel.title == "" and further_pairs(plain) == {}
    assert not any("further" in text.lower() for text in (*shown.remarks, *shown.conditions))
    assert not any("further" in row.label for row in evidence(plain))
    assert not any("further" in line.title for line in headlines(tables(plain_cells)))
    (tmp_path / "figures").mkdir()
    stale = tmp_path / "figures" / "further-pairs.svg"
    stale.touch()
    assert draw_figures(plain, tmp_path, FIGURES) == []
    assert not stale.exists(), "of a campaign that had some"


@pytest.mark.parametrize("base", [make_records, make_empty])
def test_pairs_that_did_not_run_are_counted_as_such(base, tmp_path) -> None:
    none = with_further(base(), {}, planned=(45, 46))
    none = replace(
        none,
        further_runs=none.further_runs.iloc[:0],
        further_probes=none.further_probes.iloc[:0],
    )
    row = texts(nll_table(build(none, "app-nll")).panels[1])
    assert row[0] == "0 of 2" and set(row[1:]) == {"not run"}
    assert value(none, "delta").reason.endswith("further runs of 10M (mha, full) are not there")
    beside = [row for row in evidence(none) if row.label == "10M, further pairs"]
    assert len(beside) == 3 and all(row.ours is None and row.n == 0 for row in beside)
    pairs, curves = draw_figures(none, tmp_path, FIGURES)
    assert pairs["file"] is curves["file"] is None
    assert "has no further pair" in pairs["reason"]


def test_a_long_table_puts_them_into_a_float_of_their_own(cells) -> None:
    table = nll_table(cells)
    matrix, beyond = table.panels
    many = replace(matrix, rows=matrix.rows * 3)
    assert floats(table) == [list(table.panels)]
    parts = floats(replace(table, panels=(many, beyond)))
    assert len(parts) > 2 and parts[-1] == [beyond]
    assert all(sum(len(row.lines) for row in panel.rows) <= LINES_A_FLOAT for (panel,) in parts)


def test_the_first_page_has_a_line_of_them(cells) -> None:
    (line,) = (line for line in headlines(tables(cells)) if "further" in line.title)
    ten, thirty, hundred = line.results
    assert ten.campaign.text == "−0.0100 [−0.0490, +0.0290]" and ten.paper.text == "—"
    assert ten.link.startswith("tables/app-nll.html#") and thirty is hundred is None


def test_a_result_of_the_other_sign_says_so() -> None:
    ours = Entry("+0.0065 [−0.0461, +0.0591]")
    assert Result(Entry("−0.0151"), ours, "within", "").turned
    assert not Result(Entry("+0.0151"), ours, "within", "").turned
    assert not Result(Entry("7.3"), Entry("10.3"), "within", "").turned


def test_cells_carry_the_records_and_nothing_of_the_papers(records, cells) -> None:
    own = cells[cells["column"].str.startswith("further.")]
    assert set(own["table"]) == {"app-nll"} and own["paper"].isna().all()
    assert own["verdict"].isna().all()
    delta = one(cells, "app-nll", "10M/further", "further.delta")
    assert (delta["n"], delta["spread"]) == (4, pytest.approx(0.0244949))
    assert set(delta["sources"]) <= set(records.provenance["source"])


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
    itself = "MHA itself first reaches its final loss with 1.5% of the tokens left"
    assert spared.note.startswith(itself)
    assert "counted as none: seeds 47" in spared.note and "holds 0" not in spared.note
    assert won.told == "of 4 further pairs at 10M it wins 3"
    assert spared.told == (
        "3 of 4 further pairs at 10M reach it; the mean is 3.0% fewer tokens, a pair that does not "
        f"reach it counted as 0%; {itself}"
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
