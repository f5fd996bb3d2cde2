"""The ledger of jobs: whoever asks of a job is told the same."""

import os
import shutil
from pathlib import Path

import pytest
from status_files import (
    campaign,
    finish,
    finish_diagnosis,
    found,
    look,
    origin,
    prepare,
    run,
)

from relation.pipeline.cost import make_plan
from relation.pipeline.jobs import DONE, Job
from relation.pipeline.ledger import Ledger
from relation.pipeline.places import CHECKPOINT, RULES, run_path, systems_path
from relation.pipeline.publish import publish
from relation.pipeline.results import Results
from relation.pipeline.summary import Started, report_lines, summary
from relation.store.layouts import THROUGHPUT
from relation.store.parquet import read_origin, read_parquet, write_parquet


@pytest.fixture
def results(elsewhere: None) -> Results:
    return Results(campaign())


def job(results: Results, rule: str) -> Job:
    place = {"scale": "10M", "variant": "full", "seed": "42"}
    return Ledger(results).of_rule(rule, place)


def test_a_jobs_files_are_those_of_its_rule(results: Results) -> None:
    trained, diagnosed = job(results, "train"), job(results, "diagnose")
    folder = results.folder / run_path(run())
    assert (
        trained.writes["model"] == folder / CHECKPOINT
        and trained.writes["model"] in diagnosed.reads
    )
    assert trained.log == results.folder / "logs/train/10M-full-42.log"
    assert {path.parent.name for path in trained.reads} == {run().data}
    assert diagnosed.base == folder / "record.parquet"
    assert {job.rule for job in Ledger(results).jobs} == set(RULES)


def test_every_subject_says_the_same_of_a_run_and_its_diagnostics(results: Results) -> None:
    """Made, without its checkpoint, diagnosed, and of another configuration."""

    def done() -> list[tuple[bool, bool]]:
        ledger = Ledger(results)
        jobs = [job for job in ledger.jobs if job.name == run().name]
        status = look(results, steps=True)
        states = {told.name: told.state for told in (*status.runs, *status.steps)}
        stages = {stage.stage: stage.done for stage in make_plan(campaign(), results, {}).stages}
        return [
            tuple(ledger.state(job).name == DONE for job in jobs),
            (states[run().name] == "done", states[f"diagnose {run().name}"] == "done"),
            (stages["paired runs"] == 1, stages["diagnostics"] == 1),
        ]

    finish(results, run())
    assert done() == [(True, False)] * 3
    (results.folder / run_path(run()) / CHECKPOINT).unlink()
    assert done() == [(False, False)] * 3
    assert (found(results).state, CHECKPOINT in found(results).reason) == ("waiting", True)
    assert publish(campaign(), results), "its records are whole"
    shutil.rmtree(results.shipped.folder)
    finish_diagnosis(results, run())
    assert done() == [(True, True)] * 3
    finish(results, run(), hash="0" * 16)
    assert [trained for trained, _ in done()] == [False] * 3


def test_what_is_done_is_dated_after_what_it_read(results: Results) -> None:
    """Unless its records say that it was made before."""
    prepare(results)
    spec = campaign().systems[0]
    measured = results.folder / systems_path(spec)
    write_parquet(measured, THROUGHPUT, [], origin(spec.config_hash))
    record = finish(results, run()) / "record.parquet"
    earlier = finish(results, run("10M/mha/42"))
    for path in earlier.glob("*.parquet"):
        table, before = read_parquet(path), {"created": "2025-01-01T00:00:00+00:00"}
        write_parquet(path, table.schema, table.to_pydict(), read_origin(path) | before)
    for path in results.folder.rglob("*.parquet"):
        os.utime(path, (1000, 1000))
    newest = results.data(campaign().data[run().data]) / "train.bin"
    os.utime(newest, (2000, 2000))
    Ledger(results).settle()
    assert record.stat().st_mtime >= newest.stat().st_mtime
    assert measured.stat().st_mtime == 2000
    assert (earlier / "record.parquet").stat().st_mtime == 1000


def test_the_last_words_are_what_was_made_and_what_failed(tmp_path: Path) -> None:
    def job(name: str, log: str | None = None) -> Started:
        if log is not None:
            (tmp_path / f"{name}.log").write_text(log)
        return Started("train", name, (tmp_path / name,), tmp_path / f"{name}.log")

    jobs = [
        job("made", "all well"),
        job("failed", "error: no room"),
        job("killed", ""),
        job("none"),
    ]
    (tmp_path / "made").touch()
    assert list(summary(jobs, 0.0, False)) == [
        "Made: 1 train.",
        f"Failed: train failed: no room (log: {tmp_path / 'failed.log'})",
        f"Failed: train killed: stopped (log: {tmp_path / 'killed.log'})",
        "Not begun: 1 more.",
    ]
    assert next(summary(jobs, 1e18, False)) == "Made: nothing."
    assert list(summary(jobs, 0.0, True)) == ["Made: 4 train."]


def test_the_last_line_says_where_the_report_is(results: Results) -> None:
    (gaps,) = report_lines(results, ended_well=False)
    assert gaps.endswith("render --config results/tiny/campaign.json")
    (results.report / "index.html").parent.mkdir(parents=True)
    (results.report / "index.html").touch()
    assert list(report_lines(results, True)) == ["Report: results/tiny/report/index.html"]
