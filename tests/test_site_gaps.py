"""What a campaign lacks, on the pages: once a job, with its own reason, and hollow in the DAG."""

from conftest import ROOT
from status_files import finish, log_row

from relation.config import load_config, resolve
from relation.parquet import read_origin, read_parquet, write_parquet
from relation.results import Results
from relation.schemas import LOG, RUN
from report.site.overview import gaps
from report.site.pipeline import campaign_pipeline
from report.site.runs import Run, read_runs

TINY = resolve(load_config(ROOT / "config.yaml"), campaign="tiny")


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
    found = read_runs(TINY, Results(TINY), missing)
    assert {run.reason for run in found} == {"there is no record.parquet"}


def test_a_runs_speed_is_that_of_its_updates_and_the_first_is_told_apart(tmp_path) -> None:
    """Of 128 tokens each: the first update compiles and takes 8 s, the others 1/8 s and about."""
    spec = TINY.planned_runs[0]
    results = Results(TINY, tmp_path)
    folder = finish(results, spec)
    told = {"device": "cpu", "host_machine": "x", "order_hash": "y", "spec": {"model": {}}}
    origin = read_origin(folder / "record.parquet") | told
    record = read_parquet(folder / "record.parquet", RUN).to_pylist()
    write_parquet(folder / "record.parquet", RUN, record, origin)
    rates = (16.0, 1000.0, 1024.0, 1030.0, 1040.0)
    log = [log_row(update, rate) for update, rate in enumerate(rates, start=1)]
    write_parquet(folder / "log.parquet", LOG, log, origin)
    missing = [
        {**gap("run", run.seed, "", run.variant), "scale": run.scale}
        for run in TINY.planned_runs
        if run != spec
    ]
    (run,) = (run for run in read_runs(TINY, results, missing) if run.record)
    assert run.name == f"{spec.scale}/{spec.variant}/{spec.seed}"
    assert (run.rate, run.first_seconds) == (1024.0, 8.0)


def test_a_corpus_that_no_finished_run_read_is_hollow() -> None:
    books = resolve(load_config(ROOT / "config.yaml"), campaign="books")
    runs = [
        Run(run.scale, run.variant, run.seed, gap="" if run.scale == "10M" else "not run")
        for run in books.planned_runs
    ]
    (data,) = (p.box for p in campaign_pipeline(books, runs, []).boxes if p.box.rule == "prepare")
    assert {name: job.missing for name, (job,) in data.rows} == {
        "tinystories-4096": False,
        "smollm-32768": True,
    }
