"""The checklists: what the records say, in words and units that a reader takes in."""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from conftest import campaign
from test_report_records import HOSTILE, make_records

from relation.data.recipes import BOOKS
from relation.pipeline.campaign import Campaign
from relation.pipeline.cost import make_plan
from relation.pipeline.inventory import inventory_row
from relation.pipeline.results import Results
from relation.spec import RunSpec
from report.judge.checklist import checklist
from report.values.frames import CampaignRecords
from report.values.page import campaign_page


def answers(records: CampaignRecords) -> dict[str, tuple[str, str]]:
    return {row["item"]: (row["answer"], row["justification"]) for row in checklist(records, [])}


def all_run(chosen: Campaign) -> CampaignRecords:
    """Records in which every run of a campaign is there and took seven seconds."""
    invented = make_records()

    def frame(runs: Iterable[RunSpec]) -> pd.DataFrame:
        columns = ["scale", "variant", "seed", "seconds", "processes"]
        rows = [(run.scale, run.variant, run.seed, 7.0, 1) for run in runs]
        return pd.DataFrame(rows, columns=columns)

    of_readings = [(run.scale, run.variant) for run in chosen.reading_runs]
    return replace(
        invented,
        models=pd.DataFrame(inventory_row(run, title) for run, title in chosen.inventory()),
        runs=frame(chosen.runs),
        further_runs=frame(chosen.further_runs),
        page=invented.page | {"reading_runs": of_readings},
        missing=invented.missing[invented.missing["kind"] != "run"],
    )


@pytest.mark.parametrize("name", ["smoke", "books"])
def test_disk_is_the_plans(name: str, tmp_path: Path) -> None:
    """Of the matrix, the further pairs and the readings where a campaign has them, run or not."""
    chosen = campaign(name)
    records = all_run(chosen)
    planned = make_plan(chosen, Results(chosen, tmp_path), {}).total
    assert answers(records)["Disk space required"][0].startswith(f"{planned.disk_gib:.2f} GiB")
    gaps = pd.DataFrame(
        {"kind": "further run", "scale": run.scale, "variant": run.variant, "seed": run.seed}
        for run in chosen.further_runs
    )
    none = replace(
        records,
        further_runs=make_records().further_runs,
        missing=pd.concat([records.missing, gaps], ignore_index=True),
    )
    assert answers(none)["Disk space required"] == answers(records)["Disk space required"]


def test_time_is_told_in_minutes() -> None:
    found = answers(all_run(campaign("smoke")))
    assert found["Time to complete"][0].startswith(
        "36 runs trained for 4 min 12 s of wall time in all, the longest for 7 s; "
        "4 min 12 s of process time (seconds × processes), one process a run; data"
    )


@pytest.mark.parametrize("processes, said", [
    ([1, 1, 1], "3 min 00 s of GPU time (seconds × processes), one GPU a run; data"),
    ([1, 4, 2], "7 min 00 s of GPU time (seconds × processes), up to 4 GPUs a run; data"),
    (
        [4, 1, math.nan],
        "5 min 00 s of GPU time (seconds × processes), up to 4 GPUs a run, without 1 run whose "
        "number of processes changed or is not recorded; data",
    ),
    ([math.nan] * 3, "how many processes shared a run changed or is not recorded; data"),
])  # fmt: skip
def test_the_time_of_a_run_on_several_gpus_is_that_of_all(processes: list, said: str) -> None:
    records = make_records()
    runs = records.runs[:3].assign(seconds=60.0, processes=processes, peak_memory_gib=7.125)
    found = answers(replace(records, runs=runs))
    for told in (found["Time to complete"][0], found["Experiments compute resources"][1]):
        assert "3 runs trained for 3 min 00 s of wall time in all, the longest for 1 min" in told
        assert f"; {said}" in told
    assert (
        "allocated at most 7.12 GiB on its first GPU" in found["Experiments compute resources"][1]
    )


def test_licences_are_asked_of_texts_that_are_not_shipped() -> None:
    records = make_records()
    answer, why = answers(records)["Licenses for existing assets"]
    assert answer == "No" and HOSTILE in why
    shipped = {**records.page, "corpora": [{"title": "Books", "kind": "shipped"}]}
    assert answers(replace(records, page=shipped))["Licenses for existing assets"][0] == "Yes"


def test_a_commit_is_no_address() -> None:
    answer, why = answers(make_records())["Publicly available"]
    assert answer == "no address is recorded" and make_records().page["origin"]["commit"] in why


def test_what_is_missing_comes_with_how_that_came_about() -> None:
    records = make_records()
    said = answers(records)["All results, omissions named"][1]
    assert said.endswith(f". {records.page['omissions']}")


def test_a_job_that_did_not_run_is_missing_once() -> None:
    records = make_records()
    lacking = {"scale": "30M", "variant": "mha", "status": "not run", "reason": "there is no file"}
    gaps = [
        *(lacking | {"kind": kind, "seed": seed} for seed in (42, 43) for kind in ("run", "run")),
        *(lacking | {"kind": kind, "seed": 42} for kind in ("probes", "flow", "curves", "maps")),
    ]
    found = answers(replace(records, missing=pd.DataFrame(gaps)))
    assert "not there: training runs (2), diagnostics (1)." in found["Limitations"][1]


@pytest.mark.parametrize("name, made, said", [
    ("books", BOOKS.fingerprint, f"{BOOKS.books} public-domain books"),
    ("books", "of other texts", ""),
    ("paper", None, ""),
])  # fmt: skip
def test_the_first_page_names_the_books_by_the_fingerprint_of_the_texts(
    tmp_path: Path, name: str, made: str | None, said: str
) -> None:
    origin = {"data_origin": {"corpus_sha256": made}, "versions": {}, "commit": "", "created": ""}
    page = campaign_page(Results(campaign(name), tmp_path), [], [origin])
    assert page["texts"] == said
