"""What a campaign lacks, on the pages: once a job, with its own reason, and hollow in the DAG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import campaign
from status_files import finish, log_row

from relation.pipeline.provenance import command_for
from relation.pipeline.results import Results
from relation.store.layouts import LOG, RUN
from relation.store.parquet import read_origin, read_parquet, write_parquet
from report.render.overview import gaps, texts
from report.render.runs import Run, read_runs

TINY = campaign()


def gap(kind: str, seed: int, reason: str, variant: str = "mha") -> dict:
    return {
        "kind": kind, "scale": "10M", "variant": variant, "seed": seed, "status": "not run",
        "reason": reason,
    }  # fmt: skip


def test_a_job_that_did_not_run_is_one_gap_whatever_it_would_have_written() -> None:
    missing = [
        *(gap(kind, 42, f"there is no {kind}.parquet") for kind in ("run", "run", "probes")),
        *(gap(kind, 42, f"there is no {kind}.parquet") for kind in ("flow", "curves", "maps")),
        gap("probes", 43, "there is no probes.parquet"),
    ]
    assert gaps(missing) == [
        ("Training runs not run: no record is there", ["10M/mha/42"]),
        ("Diagnostics not run: no record is there", ["10M/mha/42"]),
        ("Probes not run: no record is there", ["10M/mha/43"]),
    ]


def test_a_run_without_any_record_names_its_record_not_its_log() -> None:
    missing = [
        {**gap("run", run.seed, f"there is no {file}", run.variant), "scale": run.scale}
        for run in TINY.planned_runs
        for file in ("record.parquet", "log.parquet")
    ]
    found = read_runs(TINY.planned_runs, Results(TINY), missing)
    assert {run.reason for run in found} == {"there is no record.parquet"}
    target = f"results/tiny/runs/{found[0].name}/record.parquet"
    assert found[0].command == f"{command_for(TINY)} -- {target}"


def only_run(folder: Path, rates: Sequence[float] = (1000.0,), **told: Any) -> Run:
    """The first run of `tiny` as the pages read it, its origin saying so; no other has run."""
    spec = TINY.planned_runs[0]
    results = Results(TINY, folder)
    path = finish(results, spec)
    known = {"device": "cpu", "host_machine": "x", "order_hash": "y", "spec": {"model": {}}}
    origin = read_origin(path / "record.parquet") | known | told
    record = read_parquet(path / "record.parquet", RUN).to_pylist()
    write_parquet(path / "record.parquet", RUN, record, origin)
    log = [log_row(update, rate) for update, rate in enumerate(rates, start=1)]
    write_parquet(path / "log.parquet", LOG, log, origin)
    missing = [
        {**gap("run", run.seed, "", run.variant), "scale": run.scale}
        for run in TINY.planned_runs
        if run != spec
    ]
    (run,) = (run for run in read_runs(TINY.planned_runs, results, missing) if run.record)
    assert run.name == f"{spec.scale}/{spec.variant}/{spec.seed}"
    return run


def test_a_runs_speed_is_that_of_its_updates_and_the_first_is_told_apart(tmp_path) -> None:
    """Of 128 tokens each: the first update compiles and takes 8 s, the others 1/8 s and about."""
    run = only_run(tmp_path, (16.0, 1000.0, 1024.0, 1030.0, 1040.0))
    assert (run.rate, run.first_seconds) == (1024.0, 8.0)


@pytest.mark.parametrize("origin, said", [
    ({}, "4"),
    ({"processes": [1]}, "4"),
    ({"processes": [4]}, "4, shared by 4 processes"),
    ({"processes": [1, 2]}, "4, shared by 1, then 2 processes"),
])  # fmt: skip
def test_the_micro_batches_of_an_update_are_shared_by_its_processes(tmp_path, origin, said) -> None:
    run = only_run(tmp_path, spec={"model": {}, "accumulation": 4}, **origin)
    assert dict(dict(run.settings)["Schedule"]) == {"accumulation": said}


def test_the_texts_of_a_run_are_named_by_their_hash(tmp_path) -> None:
    data = {"title": "Local texts", "corpus_sha256": "ab" * 32}
    run = only_run(tmp_path / "files", data_origin=data)
    assert dict(run.environment)["corpus_sha256"] == "ab" * 32
    made = only_run(tmp_path / "stories", data_origin={**data, "corpus_sha256": None})
    assert "corpus_sha256" not in dict(made.environment)
    assert texts([run, made, run]) == [("Local texts", "ab" * 32)]
