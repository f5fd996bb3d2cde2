"""Which record stands for a job, the campaign's own or a shipped one, and where reports go."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import refusal
from sample import without_texts
from test_config import config
from test_records import ORIGIN, results, write_run  # noqa: F401  (fixture)

from relation.cli.report import report_place
from relation.pipeline.config import load_config
from relation.pipeline.ledger import Ledger
from relation.pipeline.places import (
    GRADIENTS_FILE,
    RUN_FILES,
    VERIFICATION_FILE,
    run_path,
    systems_path,
)
from relation.pipeline.preflight import write_started_with
from relation.pipeline.publish import publish
from relation.pipeline.results import Results, chosen_results
from relation.pipeline.shipped import ARCHIVE, CHECKSUMS
from relation.spec import canonical_hash
from relation.store import layouts as schemas
from relation.store.parquet import write_parquet
from report.render.compare import report_of

OTHER = [5, 4, 3, 2, 1.2]


@pytest.fixture
def shipped(results: Results) -> Results:  # noqa: F811
    """Results whose records are there and are what was shipped; no texts are at hand."""
    campaign = without_texts(chosen_results(results.campaign.settings).campaign)
    publish(campaign, results)
    return again(results, campaign=campaign)


def again(results: Results, **changes) -> Results:  # noqa: F811
    """The same with no memory of what lay there."""
    return replace(results, **changes)


def place(path: Path, results: Results) -> str:  # noqa: F811
    return path.relative_to(results.root).parts[0]


def files_below(folders: list[Path]) -> dict[Path, bytes]:
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*.parquet")}


def test_shipped_records_stand_for_their_own_copies(shipped: Results) -> None:
    """What was published stays done when code changes."""
    paths = [*Ledger(shipped).record_files(), *map(shipped.run, shipped.campaign.runs)]
    assert {place(path, shipped) for path in paths if path != shipped.models} == {"published"}


def test_what_is_of_single_runs_is_shipped_in_one_archive(shipped: Results) -> None:
    folders = [shipped.shipped.folder / place for place in ("runs", "diagnostics")]
    before = files_below(folders)
    assert {path.name for path in before} >= {*RUN_FILES, "42.parquet", "42-maps.parquet"}
    for folder in folders:  # as in a clone
        shutil.rmtree(folder)
    again(shipped, shipped_only=True).shipped.check_all()
    assert files_below(folders) == before
    for path in before:  # of an archive before this one
        path.write_bytes(b"older")
        os.utime(path, (0, 0))
    again(shipped, shipped_only=True).shipped.check_all()
    assert files_below(folders) == before
    shutil.rmtree(folders[0])
    (shipped.shipped.folder / ARCHIVE).write_bytes(b"no archive")
    assert "restore it" in refusal(again(shipped, shipped_only=True).shipped.check_all)


def test_what_another_commit_left_is_not_published(shipped: Results) -> None:
    folder = shipped.shipped.folder
    before = (folder / CHECKSUMS).read_bytes()
    stray = folder / "runs/10M/full/99/record.parquet"
    stray.parent.mkdir()
    stray.write_bytes(b"of another commit")
    publish(shipped.campaign, again(shipped))
    assert (folder / CHECKSUMS).read_bytes() == before


def test_an_own_run_comes_before_the_shipped_one_with_what_rests_on_it(shipped: Results) -> None:
    mha, full = shipped.campaign.runs
    own = again(shipped, published=False)
    write_run(own, full, OTHER)
    shipped = again(shipped)
    assert shipped.run(full) == shipped.own_folder / run_path(full)
    assert place(shipped.diagnostics(full), shipped) == "tiny"
    assert shipped.is_published(mha) and place(shipped.diagnostics(mha), shipped) == "published"


def test_own_diagnostics_do_not_stand_for_a_shipped_run(shipped: Results) -> None:
    """A run that is being made anew leaves its old diagnostics; they are of another checkpoint."""
    _, full = shipped.campaign.runs
    own = again(shipped, published=False)
    write_run(own, full, OTHER)
    (own.run(full) / RUN_FILES[0]).unlink()
    shipped = again(shipped)
    assert own.diagnostics(full).exists() and shipped.is_published(full)
    assert place(shipped.diagnostics(full), shipped) == "published"


def test_an_own_benchmark_and_check_come_before_the_shipped_ones(shipped: Results) -> None:
    spec, *others = shipped.campaign.systems
    campaign = shipped.campaign
    for layout, made, path in (
        (schemas.THROUGHPUT, spec, systems_path(spec)),
        (schemas.VERIFICATION, campaign.verification, VERIFICATION_FILE),
        (schemas.GRADIENTS, campaign.gradients, GRADIENTS_FILE),
    ):
        later = ORIGIN | {"config_hash": made.config_hash, "created": "2027"}
        write_parquet(shipped.own_folder / path, layout, [], later)
    shipped = again(shipped)
    ledger = Ledger(shipped)
    own = (ledger.measure(spec), ledger.verify(), ledger.verify_gradients())
    assert {place(job.paths[0], shipped) for job in own} == {"tiny"}
    measured = map(ledger.measure, others)
    assert {place(job.paths[0], shipped) for job in measured} == {"published"}


def test_what_is_not_whole_or_of_another_configuration_stands_for_nothing(shipped: Results) -> None:
    _, full = shipped.campaign.runs
    own = again(shipped, published=False)
    write_run(own, replace(full, learning_rate=1.0), OTHER)
    assert again(shipped).is_published(full)
    write_run(own, full, OTHER)
    (own.run(full) / RUN_FILES[2]).unlink()
    assert again(shipped).is_published(full)


def test_a_damaged_own_record_is_not_replaced_by_a_shipped_one(shipped: Results) -> None:
    """Its reader says what is wrong with it."""
    _, full = shipped.campaign.runs
    record = shipped.own_folder / run_path(full) / RUN_FILES[0]
    record.write_bytes(record.read_bytes()[:-9])
    assert again(shipped).run(full) == record.parent


def test_a_run_on_other_texts_is_no_substitute(shipped: Results) -> None:
    """Where none are given now, those of what is shipped count."""
    _, full = shipped.campaign.runs
    record = shipped.own_folder / run_path(full) / RUN_FILES[0]
    write_parquet(
        record,
        schemas.RUN,
        [],
        ORIGIN | {"config_hash": full.config_hash, "data_origin": {"corpus_sha256": "others"}},
    )
    assert again(shipped).is_published(full)


def test_nothing_shipped_counts_where_that_is_asked(shipped: Results) -> None:
    asked = again(shipped, published=False)
    assert {place(path, asked) for path in Ledger(asked).record_files()} == {"tiny"}
    assert not any(map(asked.is_published, asked.campaign.runs))


@pytest.mark.parametrize("value, said", [(True, True), ("true", True), (False, False)])
def test_whether_shipped_records_count_is_no_part_of_the_campaign(value, said: bool) -> None:
    given = config()
    given["published"] = value
    asked = chosen_results(given, campaign="tiny")
    del given["published"]
    before = chosen_results(given, campaign="tiny")
    assert asked.published == said and before.published
    assert asked.campaign == before.campaign
    assert canonical_hash(asked.campaign.settings) == canonical_hash(before.campaign.settings)
    assert "published" in refusal(lambda: chosen_results(given, published="no"))


def test_jobs_are_told_whether_shipped_records_count(shipped: Results) -> None:
    asked = again(shipped, published=False)
    write_started_with(asked.campaign, asked)
    told = json.loads(asked.started_with.read_text(encoding="utf-8"))
    assert told["published"] is False
    assert not chosen_results(load_config(asked.started_with)).published


def test_only_a_report_of_all_as_started_takes_the_place_of_snakemakes(shipped: Results) -> None:
    so_far = shipped.own_folder / "so-far"
    assert report_place(shipped).report == so_far  # nothing was started
    write_started_with(shipped.campaign, shipped)
    assert report_place(shipped).report == shipped.own_folder / "report"
    assert report_place(again(shipped, published=False)).report == so_far
    others = replace(shipped.campaign, settings={**shipped.campaign.settings, "seeds": 43})
    assert report_place(again(shipped, campaign=others)).report == so_far
    for name in (ARCHIVE, run_path(shipped.campaign.runs[0]) / RUN_FILES[0]):
        (shipped.shipped.folder / name).unlink()
    (shipped.own_folder / run_path(shipped.campaign.runs[0]) / RUN_FILES[0]).unlink()
    assert report_place(again(shipped)).report == so_far


def test_a_comparison_takes_a_report_of_all_before_one_of_what_was_there(tmp_path: Path) -> None:
    for name in ("so-far", "report"):
        (tmp_path / "tiny" / name).mkdir(parents=True)
        (tmp_path / "tiny" / name / "cells.parquet").touch()
        assert report_of("tiny", tmp_path) == tmp_path / "tiny" / name
