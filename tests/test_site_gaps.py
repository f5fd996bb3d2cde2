"""What a campaign lacks, on the pages: once a job, with its own reason, and hollow in the DAG."""

from conftest import ROOT

from relation.config import load_config, resolve
from relation.results import Results
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


def test_a_runs_speed_is_that_of_its_updates_and_the_first_is_told_apart() -> None:
    """Compilation is in a run's mean, which then differs between seeds that train alike."""
    books = resolve(load_config(ROOT / "config.yaml"), campaign="books")
    keys = [("10M", "exchange-only", seed) for seed in (42, 43)]
    missing = [
        {**gap("run", run.seed, "", run.variant), "scale": run.scale}
        for run in books.planned_runs
        if (run.scale, run.variant, run.seed) not in keys
    ]
    found = read_runs(books, Results(books, shipped_only=True), missing)
    slow, fast = (run for run in found if run.record)
    means = [run.record["tokens_per_second"] for run in (slow, fast)]
    assert means[0] < 0.9 * means[1] and abs(slow.rate / fast.rate - 1) < 0.02
    for run in (slow, fast):
        rest = run.record["seconds"] - run.first_seconds
        alike = (run.record["trained_tokens"] - run.updates[0]["update_tokens"]) / run.rate
        assert 0 < rest < 1.05 * alike


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
