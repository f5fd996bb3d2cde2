"""Pairs beyond the matrix on the pages: their runs, gaps, squares of the pipeline, checklists."""

import re
from dataclasses import replace

import pytest
from further_records import further_campaign
from sites import content_of

from report.judge.checklist import checklist
from report.render.overview import gaps
from report.render.site import records_by_source
from report.values.frames import CampaignRecords
from report.values.numbers import spans


@pytest.fixture(scope="module")
def records() -> CampaignRecords:
    return further_campaign()


@pytest.fixture
def folder(invented_report):
    return invented_report


def test_checklists_count_their_runs_seeds_and_time(records) -> None:
    timed = replace(
        records,
        runs=records.runs.assign(seconds=60.0),
        further_runs=records.further_runs.assign(seconds=10.0),
    )
    rows = {row["item"]: row for row in checklist(timed, [])}
    runs, beyond = len(records.runs), len(records.further_runs)
    said = rows["Time to complete"]["answer"]
    assert said.startswith(f"{runs + beyond} runs trained for ")
    seeds = "42, 43, 44, of further pairs 45 to 49"
    assert rows["Experiments"]["answer"] == f"{runs + beyond} runs, seeds {seeds}"
    assert "runs of further pairs (3)" in rows["Limitations"]["justification"]


def test_what_is_missing_names_a_run_once(records) -> None:
    rows = [{**row, "reason": "there is no file"} for row in records.missing.to_dict("records")]
    beyond = [row for row in rows if row["kind"] == "further run"]
    told = gaps([*beyond, *beyond])
    assert told == [
        (
            "Runs of further pairs not run: no record is there",
            ["10M/mha/49", "10M/mha/50", "10M/full/50"],
        )
    ]


@pytest.mark.parametrize("numbers, said", [
    ([], ""), ([42], "42"), ([43, 42], "42, 43"), ([44, 42, 43], "42 to 44"),
    ([45, 47, 48, 49, 52, 53], "45, 47 to 49, 52, 53"),
])  # fmt: skip
def test_seeds_in_a_row_are_told_as_a_span(numbers: list[int], said: str) -> None:
    assert spans(numbers) == said


def test_a_further_pair_is_one_row(folder):
    """MHA's final NLL, Relation's and their difference; of a pair that lacks a run, what became."""
    shown = (folder / "runs.html").read_text(encoding="utf-8")
    rows = {
        int(seed): re.sub(r"\s*<.*?>\s*", " ", row).split()[-3:]
        for seed, row in re.findall(r'<tr id="further-10M-(\d+)">(.*?)</tr>', shown, re.DOTALL)
    }
    assert rows[46] == ["2.0300", "1.9900", "−0.0400"] and rows[47][-1] == "+0.0200"
    assert rows[49] == ["run", "5.0000", "—"] and list(rows) == [45, 46, 47, 48, 49, 50]
    missing = r'<td class="r missing" title="there is no [^"]*">not run</td>'
    assert len(re.findall(missing, shown)) == 3
    for run in ("mha/45", "full/49"):
        source = f"runs/10M/{run}/record.parquet"
        assert shown.count(f'href="#{source}"') == shown.count(f'id="{source}"') == 1
    assert "further log" not in shown.lower() and "further probes" not in shown.lower()


def test_every_record_of_a_further_run_leads_to_its_first(folder):
    content = content_of(further_campaign(), folder)
    pages = {
        source: row["page"]
        for source, row in records_by_source(content, folder).items()
        if row["kind"].startswith("further")
    }
    assert len(pages) == 27
    for source, page in pages.items():
        assert page == f"runs.html#{source.rpartition('/')[0]}/record.parquet"
