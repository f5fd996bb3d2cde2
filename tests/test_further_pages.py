"""Pairs beyond the matrix as the report shows them: figures, runs, gaps and checklists."""

import math
import re
import statistics
from dataclasses import replace

import pandas as pd
import pytest
from further_records import PAIRS, further_campaign, with_further
from sites import content_of
from test_report_records import make_records

from report.figures.drawing import NotDrawnError
from report.figures.further import further_curves, further_pairs
from report.judge.checklist import checklist
from report.render.overview import gaps
from report.render.site import records_by_source
from report.values.frames import CampaignRecords
from report.values.numbers import spans

TOKENS = [24_576, 49_152, 73_728, 98_304]


@pytest.fixture(scope="module")
def records() -> CampaignRecords:
    return further_campaign()


def lacking(records: CampaignRecords, *looks: tuple[str, int, int]) -> CampaignRecords:
    """The records without these looks: a variant, a seed and the look's number."""
    probes = records.further_probes
    keys = zip(probes["variant"], probes["seed"], probes["tokens"] // 24_576, strict=True)
    return replace(records, further_probes=probes[[key not in looks for key in keys]])


def one_panel(drawing, records):
    (axes,) = drawing.draw(records).axes
    return axes


def heights(shaded) -> tuple[float, float]:
    """The least and the greatest height of a band."""
    vertices = shaded.get_paths()[0].vertices[:, 1]
    return vertices.min(), vertices.max()


def seeds(axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def test_the_figure_shows_every_pair_and_the_mean_of_the_further_ones(records) -> None:
    axes = one_panel(further_pairs, records)
    matrix, beyond = (line for line in axes.lines if line.get_marker() == "o")
    assert list(matrix.get_ydata()) == pytest.approx([-0.1, -0.09, -0.08])
    assert list(beyond.get_ydata()) == pytest.approx([-0.01, -0.04, 0.02, -0.01])
    assert seeds(axes) == ["42", "43", "44", "45", "46", "47", "48"]
    assert axes.get_title() == "10M: mean −0.0100 [−0.0490, +0.0290], n = 4; the paper’s −0.0412"
    (shaded,) = (patch for patch in axes.collections if "Poly" in type(patch).__name__)
    assert heights(shaded) == pytest.approx((-0.04897, 0.02897), abs=1e-4)
    alone = replace(records, runs=records.runs.iloc[:0])
    assert seeds(one_panel(further_pairs, alone)) == ["45", "46", "47", "48"]
    one_pair = with_further(make_records(), {45: PAIRS[45]})
    assert "[" not in one_panel(further_pairs, one_pair).get_title()


def test_its_rows_are_the_records_behind_the_figure(records) -> None:
    sources = further_pairs.sources(records)
    assert len(sources) == 2 * (4 + 3) and not any("/49/" in source for source in sources)
    looks = further_curves.sources(records)
    assert len(looks) == 2 * 4 and all(source.endswith("/probes.parquet") for source in looks)


def test_the_curves_show_each_pair_and_the_mean_with_its_interval(records) -> None:
    """Differences −0.4, −0.3, −0.2 and −0.1, each plus −0.01, 0, 0.01 and 0.02 by seed.

    The look before training is not shown.
    """
    first = records.further_probes.query("tokens == 24_576").assign(tokens=0, value=11.0)
    before = replace(records, further_probes=pd.concat([first, records.further_probes]))
    axes = one_panel(further_curves, before)
    *pairs, mean, _ = axes.lines
    assert len(pairs) == 4
    assert list(pairs[0].get_ydata()) == pytest.approx([-0.41, -0.31, -0.21, -0.11])
    assert list(mean.get_xdata()) == TOKENS
    assert list(mean.get_ydata()) == pytest.approx([-0.395, -0.295, -0.195, -0.095])
    (shaded,) = axes.collections
    margin = 3.182446 * statistics.stdev([-0.01, 0, 0.01, 0.02]) / 2
    assert heights(shaded) == pytest.approx((-0.395 - margin, -0.095 + margin))
    assert axes.get_title() == "10M, n = 4"
    low, high = axes.get_ylim()
    assert low < -0.395 - margin and high > 0
    alone = one_panel(further_curves, with_further(make_records(), {45: PAIRS[45]}))
    assert alone.get_title() == "10M, n = 1" and not alone.collections


def test_a_pair_without_a_look_of_the_others_is_left_out_whole(records) -> None:
    """Not the look, for all: a mean is over the same pairs from the first look to the last."""
    assert "Left out" not in further_curves.title(records)
    uneven = lacking(records, ("full", 46, 2))
    axes = one_panel(further_curves, uneven)
    assert axes.get_title() == "10M, n = 3" and list(axes.lines[-2].get_xdata()) == TOKENS
    assert further_curves.title(uneven).endswith("they lack looks that others have: 10M/46.")
    assert not any("/46/" in source for source in further_curves.sources(uneven))
    diverged = records.further_probes.copy()
    diverged.loc[diverged.query("seed == 45").index[-1], "value"] = math.nan
    axes = one_panel(further_curves, replace(records, further_probes=diverged))
    assert axes.get_title() == "10M, n = 3"


def test_pairs_without_a_common_look_are_not_drawn(records) -> None:
    unlike = replace(records, further_probes=records.further_probes.assign(alike=False))
    with pytest.raises(NotDrawnError, match="no look at a further pair"):
        further_curves.draw(unlike)
    apart = lacking(records, *(("full", seed, look) for look, seed in enumerate(PAIRS, 1)))
    odd = [(("mha", "full")[look % 2], seed, look) for seed in PAIRS for look in (1, 2, 3, 4)]
    for uneven in (apart, lacking(records, *odd)):
        with pytest.raises(NotDrawnError, match="no further pair that has every look of the other"):
            further_curves.draw(uneven)


def test_no_pair_leaves_the_panel_after_the_first_fifth() -> None:
    """Of ten looks the first alone may be outside, and of so many pairs none is in the band."""
    planned = tuple(range(45, 57))
    many = with_further(make_records(), dict.fromkeys(planned, PAIRS[45]), planned=planned)
    probes = many.further_probes[many.further_probes["tokens"] == 24_576]
    probes = pd.concat([probes.assign(tokens=150 * look) for look in range(1, 11)])
    alone = (probes["variant"] == "full") & (probes["seed"] == 56)
    for tokens, apart in ((150, -9.0), (300, 0.9)):
        probes["value"] += apart * (alone & (probes["tokens"] == tokens))
    axes = one_panel(further_curves, replace(many, further_probes=probes))
    low, high = axes.get_ylim()
    first, *later = zip(*(line.get_ydata() for line in axes.lines[:-2]), strict=True)
    assert min(first) < low < min(map(min, later)) and max(map(max, later)) < high
    least, greatest = heights(axes.collections[0])
    assert low < least and greatest < max(map(max, later))
    assert "may leave the panel before 20% of the budget" in further_curves.title(many)


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


def test_a_further_pair_is_one_row(invented_report):
    """MHA's final NLL, Relation's and their difference; of a pair that lacks a run, what became."""
    shown = (invented_report / "runs.html").read_text(encoding="utf-8")
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


def test_every_record_of_a_further_run_leads_to_its_first(invented_report):
    content = content_of(further_campaign(), invented_report)
    pages = {
        source: row["page"]
        for source, row in records_by_source(content, invented_report).items()
        if row["kind"].startswith("further")
    }
    assert len(pages) == 27
    for source, page in pages.items():
        assert page == f"runs.html#{source.rpartition('/')[0]}/record.parquet"
