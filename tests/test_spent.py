"""What examinations and recall took, from their records to the plan."""

import math
from pathlib import Path

import pytest
from conftest import campaign

from relation.cli import main
from relation.pipeline import spent
from relation.pipeline.cost import make_plan
from relation.pipeline.ledger import Ledger
from relation.pipeline.places import examination_paths
from relation.pipeline.results import Results
from relation.store.layouts import COPYING
from relation.store.parquet import write_parquet
from relation.store.stamp import origin


@pytest.fixture
def results(elsewhere: None) -> Results:
    return Results(campaign())


def note(results: Results, variant: str, seed: int, device: str, **took: float | None) -> None:
    """The record of an examination at 30M that says what it took."""
    run = results.campaign.run("30M", variant, seed)
    spec = results.campaign.examination_spec(run)
    written = origin("tiny", spec.config_hash, "examination", device, **took)
    write_parquet(results.folder / examination_paths(run)["copying"], COPYING, [], written)


def planned(results: Results) -> dict[tuple[str, str], tuple]:
    beyond = make_plan(results.campaign, results, {}).beyond
    return {(b.job, b.variant): (b.jobs, b.seconds, b.peak_gib, b.device) for b in beyond}


def test_what_was_measured_is_planned_with(results: Results) -> None:
    """The mean over seeds; a GPU's time plans no job on a CPU; the others are estimated."""
    before = planned(results)
    assert {device for *_, device in before.values()} == {""}
    note(results, "full", 42, "CPU (x, 2 threads)", seconds=20.0, peak_gib=None)
    note(results, "full", 43, "CPU (x, 2 threads)", seconds=30.0, peak_gib=None)
    note(results, "hybrid", 42, "NVIDIA X", seconds=1.0, peak_gib=3.5)
    after = planned(results)
    jobs, seconds, peak, device = after.pop(("examine", "full"))
    assert (jobs, peak, device) == (2, None, "CPU (x, 2 threads)")
    assert math.isclose(seconds, 30.0)  # with 5 s of start
    del before["examine", "full"]
    assert after == before
    work = {row.variant: row for row in spent.recorded(Ledger(results))}
    assert work["hybrid"].peak_gib == 3.5


def test_work_is_the_same_in_another_campaign_and_not_at_another_size(results: Results) -> None:
    def works(name: str) -> dict[tuple[str, str], str]:
        chosen = campaign(name)
        ledger, runs = Ledger(Results(chosen)), {run.name: run for run in chosen.runs}
        return {
            (job.scale, job.variant): spent.work_of(job, runs.get(job.name))
            for job in ledger.jobs
            if job.rule in spent.RULES
        }

    paper, books, smoke = (works(name) for name in ("paper", "books", "smoke"))
    assert paper == books
    assert len(set(paper.values())) == len(paper)
    assert not set(paper.values()) & set(smoke.values())


def test_the_command_writes_the_table_that_plan_reads(
    results: Results, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("spent.csv").write_text(spent.as_csv([]), encoding="utf-8")
    monkeypatch.setattr(spent, "SHIPPED", Path("spent.csv"))
    command = ["plan", "--campaign", "tiny", "--spent", "spent.csv"]
    assert main(command) == 2
    assert "no record of campaign tiny says what it took" in capsys.readouterr().err
    note(results, "mha", 42, "NVIDIA X", seconds=41.0, peak_gib=3.25)
    assert main(command) == 0
    first = spent.rows_of(Path("spent.csv"))
    assert [(row.variant, row.seconds, row.peak_gib) for row in first] == [("mha", 41.0, 3.25)]
    note(results, "mha", 42, "NVIDIA X", seconds=40.0, peak_gib=3.5)
    note(results, "full", 42, "CPU (x)", seconds=9.0, peak_gib=None)
    assert main(command) == 0
    rows = spent.rows_of(Path("spent.csv"))
    assert sorted((row.variant, row.seconds, row.peak_gib) for row in rows) == [
        ("full", 9.0, None),
        ("mha", 40.0, 3.5),
    ]
    capsys.readouterr()
    assert main(["plan", "--campaign", "tiny"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "30M full" in line]
    assert line.split()[-2:] == ["CPU", "(x)"] and " 14 " in line


def test_the_shipped_table_holds_measurements_of_gpus() -> None:
    assert all(spent.kind_of(row.device) == "cuda" for row in spent.rows_of(spent.SHIPPED))
