"""The state of a campaign, read off its files: never run, running, broken off, done, damaged."""

import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from filelock import FileLock
from status_files import (
    MADE,
    NAME,
    TOKENS,
    begin,
    campaign,
    every_run,
    finish,
    finish_diagnosis,
    found,
    job_log,
    log_row,
    look,
    origin,
    prepare,
    resume_folder,
    run,
)

from relation.errors import RunError, StoppedError
from relation.pipeline.jobs import failure
from relation.pipeline.ledger import Ledger
from relation.pipeline.places import diagnostics_path, run_path, systems_path
from relation.pipeline.progress import CampaignStatus, RunStatus, trained_tokens
from relation.pipeline.provenance import PROVENANCE
from relation.pipeline.publish import publish
from relation.pipeline.results import Results
from relation.store.layouts import RUN, THROUGHPUT
from relation.store.parquet import write_parquet
from relation.train.folder import ABOUT, LOCK, METRICS
from report.judge.frames import FRAMES


@pytest.fixture
def results(elsewhere: None) -> Results:
    return Results(campaign())


def test_a_campaign_that_never_ran_waits(results: Results) -> None:
    status = look(results, steps=True)
    assert [r.name for r in status.runs] == [r.name for r in every_run()]
    assert {r.state for r in status.runs} == {s.state for s in status.steps} == {"waiting"}
    assert status.notes == []
    assert len(status.steps) == 2 + 12 + 4 + 6 + 12 + 2 + 4
    rates = campaign().expected_tokens_per_second
    expected = sum(trained_tokens(r) / rates[r.scale] for r in every_run())
    assert status.seconds_left == pytest.approx(expected)
    assert not results.folder.exists(), "a look leaves nothing behind"


def test_a_run_in_progress(results: Results) -> None:
    prepare(results)
    before = time.time()
    with FileLock(resume_folder(results, run()) / LOCK):
        begin(results, run(), updates=3, saved=1)
        status = found(results)
        assert (status.state, status.share, status.loss) == ("running", 3 * TOKENS / 600, 5.7)
        assert status.tokens_per_second == 1000, "without the update that compiled"
        assert status.seconds_left == pytest.approx((600 - 3 * TOKENS) / 1000)
        assert before - 0.001 <= status.updated <= time.time()
        assert look(results).running == 1
    assert found(results).state == "stopped"


def test_a_run_that_has_just_started(results: Results) -> None:
    prepare(results)
    with FileLock(resume_folder(results, run()) / LOCK):
        begin(results, run(), updates=0)
        status = found(results)
        assert (status.state, status.share, status.loss) == ("running", 0.0, None)
        assert status.updated == pytest.approx(time.time(), abs=60)


def test_a_running_run_is_known_although_code_or_records_changed(results: Results) -> None:
    """Its folder says whose it is, whatever a run that started now would be called."""
    prepare(results)
    finish(results, run())
    other = results.folder / "resume" / "of-older-code"
    other.mkdir(parents=True)
    with FileLock(other / LOCK):
        begin(results, run(), updates=2, folder=other)
        assert found(results).state == "running"
        assert look(results).notes == []


@pytest.mark.parametrize("saved", [0, 2])
def test_a_killed_run_counts_what_it_need_not_train_again(results: Results, saved: int) -> None:
    prepare(results)
    begin(results, run(), updates=4, saved=saved)
    status = found(results)
    assert (status.state, status.share, status.reason) == ("stopped", saved * TOKENS / 600, "")
    assert status.seconds_left == pytest.approx((600 - saved * TOKENS) / 1000)
    assert status.loss == pytest.approx(5.6)


@pytest.mark.parametrize(
    "error, state",
    [(StoppedError("stopped after update 2 of 5"), "stopped"), (RunError("loss nan"), "failed")],
)
def test_a_run_that_broke_off_says_why(results: Results, error: Exception, state: str) -> None:
    prepare(results)
    with pytest.raises(RunError), begin(results, run(), updates=2, saved=2):
        raise error
    status = found(results)
    assert (status.state, status.reason, status.share) == (state, str(error), 2 * TOKENS / 600)


def test_state_that_is_of_no_use_any_more_is_named(results: Results) -> None:
    prepare(results)
    begin(results, run(), updates=2, folder=results.folder / "resume" / "of-older-code")
    assert found(results).state == "waiting"
    (note,) = look(results).notes
    assert "1 folder of other code, data or settings" in note
    begin(results, run(), updates=2, saved=1)
    assert found(results).state == "stopped"
    assert len(look(results).notes) == 1


def test_a_run_whose_corpus_is_gone_waits(results: Results) -> None:
    begin(results, run(), updates=2, saved=1)
    assert found(results).state == "waiting"
    assert look(results).notes == [], "prepared again, the corpus may be the same"


FAILURES = {
    "error: no such corpus\n": "no such corpus",
    "10M: 1/5\nwarning: slow\nerror: loss is nan\n\n": "loss is nan",
    'Traceback (most recent call last):\n  File "x", line 1\nKeyError: 3\n': "KeyError: 3",
    "10M/full/42: 128/600 tokens (21%)\n": None,
    "": None,
}


@pytest.mark.parametrize("text", FAILURES)
def test_a_job_that_failed_before_its_first_update_says_why(results: Results, text: str) -> None:
    prepare(results)
    job_log(results, "train", "10M-full-42", text)
    reason = FAILURES[text]
    status = found(results)
    assert (status.state, status.reason) == ("failed" if reason else "waiting", reason or "")
    assert failure(results.folder / "logs" / "train" / "10M-full-42.log") == reason


def test_a_finished_run(results: Results) -> None:
    folder = finish(results, run())
    # A clone's files are younger than what they hold.
    os.utime(folder / "record.parquet", (1e9, 1e9))
    made = datetime.fromisoformat(MADE).timestamp()
    assert found(results) == RunStatus(NAME, "done", 1.0, 1000.0, 0.0, 5.5, made)


def test_a_record_of_another_configuration_is_to_be_made_again(results: Results) -> None:
    finish(results, run(), hash="0" * 16)
    status = found(results)
    assert (status.state, status.share) == ("stale", 0.0)
    assert "another configuration: 0000" in status.reason


def test_a_run_without_a_rate_takes_one_of_its_kind(results: Results) -> None:
    finish(results, run("10M/full/42"), rate=300.0)
    finish(results, run("10M/mha/42"), rate=500.0)
    left = {r.name: r.seconds_left for r in look(results).runs}
    assert left["10M/full/43"] == pytest.approx(600 / 300)
    assert left["10M/mha/43"] == pytest.approx(600 / 500)
    assert left["10M/raw-x/42"] == pytest.approx(600 / 400)
    assert left["30M/full/42"] == 600 / campaign().expected_tokens_per_second["30M"]


def test_runs_at_a_time_share_what_is_left() -> None:
    runs = [RunStatus(str(i), "running", seconds_left=s) for i, s in enumerate((10, 20))]
    runs.append(RunStatus("2", "waiting", seconds_left=70))
    status = CampaignStatus(runs, [], [])
    assert (status.seconds_left, status.seconds_left_together) == (100, 70)
    runs[-1] = RunStatus("2", "waiting", seconds_left=4)
    assert status.seconds_left_together == 20
    assert CampaignStatus([], [], []).seconds_left_together == 0


def test_published_runs_are_done(results: Results) -> None:
    for spec in every_run():
        finish(results, spec)
    for spec in campaign().reading_runs:
        finish_diagnosis(results, spec)
    kept = results.folder.with_name("kept")
    results.folder.rename(kept)
    assert {r.state for r in look(results).runs} == {"waiting"}
    kept.rename(results.folder)
    publish(campaign(), results)
    results.folder.rename(kept)
    assert {r.state for r in look(Results(campaign())).runs} == {"done"}

    record = results.shipped.folder / run_path(run()) / "record.parquet"
    record.write_bytes(record.read_bytes()[:-9])
    (note,) = look(Results(campaign())).notes
    assert record.as_posix() in note and "SHA256SUMS" in note

    sums = results.shipped.folder / "SHA256SUMS"
    for damaged in (b"\xff", b"one word\n"):
        sums.write_bytes(damaged)
        assert look(Results(campaign()), steps=True).notes == [
            f"{sums} is damaged; restore it, or delete {sums.parent} and publish anew what is made "
            "here"
        ]


def test_published_diagnostics_may_be_absent_and_are_named_where_damaged(results: Results) -> None:
    for spec in campaign().runs:
        finish(results, spec)
    diagnosed = campaign().paired_runs[0]
    finish_diagnosis(results, diagnosed)
    publish(campaign(), results)
    due = {f"diagnose {run.name}": "waiting" for run in campaign().reading_runs}

    def states() -> dict[str, str]:
        status = look(Results(campaign()), steps=True)
        return {s.name: s.state for s in status.steps if s.name.startswith("diagnose")}

    assert states() == {f"diagnose {diagnosed.name}": "done", **due}
    cut(results.shipped.folder / diagnostics_path(diagnosed))
    assert states() == {f"diagnose {diagnosed.name}": "damaged", **due}
    notes = look(Results(campaign()), steps=True).notes
    assert notes and all("SHA256SUMS" in note for note in notes)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def nonsense(path: Path) -> None:
    path.write_bytes(b"\x00\xff nonsense\n" + path.read_bytes())


@pytest.mark.parametrize("damage", [cut, nonsense])
@pytest.mark.parametrize("file", ["record.parquet", "log.parquet"])
def test_a_damaged_record_is_named(results: Results, file: str, damage: Callable) -> None:
    path = finish(results, run()) / file
    damage(path)
    if (file, damage) == ("record.parquet", nonsense):
        path.write_bytes(b"\x00" * 100)
    assert found(results).state == "damaged"
    (note,) = look(results).notes
    assert path.as_posix() in note and "\n" not in note


@pytest.mark.parametrize(
    "damage, state",
    [
        (lambda folder: nonsense(folder / METRICS), "stopped"),
        (lambda folder: cut(folder / METRICS), "stopped"),
        (lambda folder: cut(folder / ABOUT), "waiting"),
        (lambda folder: (folder / ABOUT).unlink(), "waiting"),
        (lambda folder: (folder / METRICS).unlink(), "waiting"),
        (lambda folder: cut(folder.parents[1] / "data/sample-300/data.parquet"), "waiting"),
    ],
    ids=["metrics", "torn", "description", "no description", "no metrics", "corpus"],
)
def test_damage_beside_a_resume_state_is_told_and_stops_nothing(
    results: Results, damage: Callable[[Path], object], state: str
) -> None:
    prepare(results)
    begin(results, run(), updates=4, saved=3)
    finish(results, run("10M/mha/42"))
    damage(resume_folder(results, run()))
    status = look(results)
    states = {r.name: r.state for r in status.runs}
    assert (states[NAME], states["10M/mha/42"]) == (state, "done")
    assert len(status.notes) <= 1
    assert not any("\n" in note for note in status.notes)


def test_a_record_without_a_row_is_named_and_of_another_run_is_not(
    results: Results,
) -> None:
    spec = run()
    origins = {"damaged": (origin(spec.config_hash), {}), "stale": (origin("0" * 64),)}
    for state, written in ((state, o) for state, several in origins.items() for o in several):
        path = finish(results, spec) / "record.parquet"
        write_parquet(path, RUN, [], written)
        assert found(results).state == state
        assert len(look(results).notes) == (state == "damaged")


def test_a_rate_of_zero_is_none(results: Results) -> None:
    prepare(results)
    watch = begin(results, run(), updates=0)
    watch.add(log_row(1, rate=0.0))
    expected = campaign().expected_tokens_per_second["10M"]
    assert found(results).seconds_left == pytest.approx(600 / expected)


def test_a_damaged_line_in_the_middle_is_named(results: Results) -> None:
    prepare(results)
    begin(results, run(), updates=4)
    path = resume_folder(results, run()) / METRICS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\x00\x00\n", *lines[2:]]))
    (note,) = look(results).notes
    assert note.startswith(f"{path.as_posix()} line 2 is damaged")
    assert found(results).loss == pytest.approx(5.6)


def test_a_line_in_the_writing_is_no_damage(results: Results) -> None:
    prepare(results)
    begin(results, run(), updates=4)
    with (resume_folder(results, run()) / METRICS).open("ab") as file:
        file.write(b'{"update": 5, "tok')
    assert look(results).notes == []


def test_the_other_steps(results: Results) -> None:
    prepare(results)
    diagnosed, benchmark = campaign().paired_runs[0], campaign().systems[0]
    diagnosis = results.folder / diagnostics_path(diagnosed)
    finish_diagnosis(results, diagnosed)
    write_parquet(
        results.folder / systems_path(benchmark), THROUGHPUT, [], origin("of another time")
    )
    job_log(results, "measure", f"{campaign().systems[1].benchmark}-30M", "fixed: 1/4 updates\n")
    job_log(results, "diagnose", "10M-full-42", "error: no checkpoint\n")
    job_log(results, "", "inventory", "Traceback (most recent call last):\nKeyError: 'mha'\n")
    states = {s.name: s.state for s in look(results, steps=True).steps}
    assert states["prepare sample-300"] == "done"
    assert states[f"diagnose {diagnosed.name}"] == "done"
    assert states["diagnose 10M/full/42"] == "failed"
    assert states["diagnose 10M/full/43"] == "waiting"
    assert states[f"measure {benchmark.benchmark}/{benchmark.scale}"] == "stale"
    assert states[f"measure {campaign().systems[1].benchmark}/30M"] == "begun"
    assert states["inventory"] == "failed"
    assert states["report"] == "waiting"
    diagnosis.write_bytes(b"PAR1")
    status = look(results, steps=True)
    assert {s.name: s.state for s in status.steps}[f"diagnose {diagnosed.name}"] == "damaged"
    assert len(status.notes) == 1 and diagnosis.as_posix() in status.notes[0]


def test_the_report_is_done_while_it_is_of_the_records_that_are_there(results: Results) -> None:
    """Whatever the dates of the files."""
    shown = []
    for record in Ledger(results).records:
        write_parquet(record.path, RUN, [], origin(record.job.config_hash))
        shown.append({name: "x" if name != "seed" else 1 for name in PROVENANCE})
        shown[-1] |= {"source": record.path.as_posix(), "made": MADE}
    write_parquet(results.report / "provenance.parquet", FRAMES["provenance"], shown, origin("x"))
    (results.report / "index.html").touch()
    os.utime(results.report / "index.html", (1000, 1000))
    assert look(results, steps=True).steps[-1].state == "done"
    later = origin(record.job.config_hash, created="2026-01-03T00:00:00+00:00")
    write_parquet(record.path, RUN, [], later)
    assert look(results, steps=True).steps[-1].state == "waiting"
