"""Publishing: all or nothing, and after a crash the next call ships everything."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from conftest import refusal
from sample import without_texts
from test_multiverse import gathered
from test_records import results, write_diagnostics, write_run

from relation.errors import RunError
from relation.pipeline.cost import make_plan
from relation.pipeline.places import RUN_FILES, run_path
from relation.pipeline.publish import publish
from relation.pipeline.results import Results
from relation.pipeline.shipped import ARCHIVE, CHECKSUMS
from relation.store.layouts import LOG, MODELS
from relation.store.parquet import read_origin, read_parquet, write_parquet

__all__ = ["gathered", "results"]  # fixtures


class Killed(BaseException):
    """Ends a publishing process in a test; nothing catches it."""


@pytest.fixture
def shipped(results: Results) -> Results:
    """Results whose records are there and are what was shipped; no texts are at hand."""
    results = replace(results, campaign=without_texts(results.campaign))
    publish(results.campaign, results)
    return replace(results)


def again(results: Results) -> list[Path]:
    """Publish without a memory of what lay there."""
    return publish(results.campaign, replace(results))


def bytes_of(results: Results) -> dict[str, bytes]:
    """Every file below results/published, hidden ones too."""
    root = results.shipped.place.parent
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def retrain(results: Results) -> Results:
    """The campaign's own records, its runs and diagnostics made again with another outcome."""
    own = replace(results, published=False)
    for run in own.campaign.runs:
        write_run(own, run, [5, 4, 3, 2, 1.2])
        write_diagnostics(own, run, sequences="others")
    return own


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])


def check(results: Results) -> None:
    """The checksums fit, and `plan` does not stop at a shipped file."""
    fresh = replace(results)
    fresh.shipped.check_all()
    assert make_plan(fresh.campaign, fresh, {}).stages


def test_of_a_log_all_but_the_digits_of_its_speeds_is_shipped(results: Results) -> None:
    run = results.campaign.runs[0]
    log = results.own_folder / run_path(run) / RUN_FILES[1]
    table = read_parquet(log, LOG)
    speeds = [1_255_602.569 + k for k in range(table.num_rows)]
    columns = {name: table[name].to_pylist() for name in LOG.names} | {"tokens_per_second": speeds}
    write_parquet(log, LOG, columns, read_origin(log))
    publish(results.campaign, results)
    name = log.relative_to(results.folder)
    sent = read_parquet(results.shipped.folder / name, LOG).to_pydict()
    assert sent == columns | {"tokens_per_second": [1_255_600.0] * table.num_rows}


def test_what_an_earlier_version_packed_is_packed_anew(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_it_is(source: Path, folder: Path, name: Path) -> Path:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        return shutil.copyfile(source, folder / name)

    first, *_, last = results.campaign.runs
    with monkeypatch.context() as patched:
        patched.setattr("relation.pipeline.publish._copy", as_it_is)
        publish(results.campaign, results)
    shutil.rmtree(results.own_folder / run_path(first))
    again(results)
    check(results)
    logs = [results.shipped.folder / run_path(run) / RUN_FILES[1] for run in (first, last)]
    how = [pq.ParquetFile(log).metadata.row_group(0).column(0).compression for log in logs]
    assert how == ["UNCOMPRESSED", "UNCOMPRESSED"]


def test_a_damaged_record_is_refused_before_anything_shipped_changes(shipped: Results) -> None:
    own = retrain(shipped)
    diagnostics = own.diagnostics(own.campaign.runs[-1])
    flip(diagnostics)
    before = bytes_of(shipped)
    assert diagnostics.as_posix() in refusal(lambda: again(shipped))
    assert bytes_of(shipped) == before
    flip(diagnostics)  # back, as `plan` also stops at an own record that is damaged
    check(shipped)


def test_damage_that_only_copying_finds_changes_nothing_shipped(shipped: Results) -> None:
    """In a record without a seal, the rows are checked only when they are read."""
    own = retrain(shipped)
    log = own.run(own.campaign.runs[-1]) / RUN_FILES[1]
    table = pq.read_table(log)
    origin = {b"relation.origin": table.schema.metadata[b"relation.origin"]}
    pq.write_table(table.replace_schema_metadata(origin), log, write_page_checksum=True)
    flip(log)
    assert read_origin(log)
    before = bytes_of(shipped)
    assert log.as_posix() in refusal(lambda: again(shipped))
    assert bytes_of(shipped) == before
    check(shipped)


def test_a_damaged_shipped_record_that_is_not_made_here_gets_no_checksum(shipped: Results) -> None:
    own = replace(shipped, published=False)
    gone = own.run(own.campaign.runs[-1])
    shutil.rmtree(gone)
    record = shipped.shipped.folder / gone.relative_to(own.folder) / RUN_FILES[0]
    flip(record)
    before = bytes_of(shipped)
    assert record.as_posix() in refusal(lambda: again(shipped))
    assert bytes_of(shipped) == before


def test_after_damaged_checksums_what_is_made_here_is_published_anew(shipped: Results) -> None:
    sums = shipped.shipped.place / CHECKSUMS
    before = bytes_of(shipped)
    sums.write_bytes(b"one word\n")
    assert f"delete {sums.parent} and publish anew" in refusal(lambda: again(shipped))
    shutil.rmtree(sums.parent)
    again(shipped)
    assert bytes_of(shipped) == before


def test_two_processes_never_publish_at_once(
    shipped: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call is made while the first moves its files."""

    def second(source: Path, target: Path) -> None:
        before = bytes_of(shipped)
        with pytest.raises(RunError, match="already running in another process"):
            again(shipped)
        assert bytes_of(shipped) == before
        raise Killed

    monkeypatch.setattr("relation.pipeline.publish.move", second)
    with pytest.raises(Killed):
        again(shipped)


def test_the_inventory_alone_changes_nothing_shipped(shipped: Results) -> None:
    later = read_origin(shipped.models) | {"created": "2027-01-01T00:00:00+00:00"}
    shutil.rmtree(shipped.own_folder)
    write_parquet(shipped.models, MODELS, [], later)
    before = bytes_of(shipped)
    assert "no complete record to publish" in refusal(lambda: again(shipped))
    assert bytes_of(shipped) == before
    check(shipped)


def test_the_inventory_alone_ships_nothing(shipped: Results) -> None:
    shutil.rmtree(shipped.shipped.place.parent)
    for path in shipped.own_folder.iterdir():
        if path != shipped.models:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert "no complete record to publish" in refusal(lambda: again(shipped))
    assert not shipped.shipped.place.parent.exists()


def kill_at(file: int, patched: pytest.MonkeyPatch) -> Callable[[], int]:
    """Kill the process before it gives a file its name, counted from 0.

    Returns a function that counts the files so far.
    """
    named: list[Path] = []
    replace_file = os.replace

    def counted(source: Path, target: Path) -> None:
        if len(named) == file:
            raise Killed
        named.append(target)
        replace_file(source, target)

    patched.setattr(os, "replace", counted)
    return lambda: len(named)


def lay(results: Results, files: dict[str, bytes]) -> None:
    """Make `files` what lies below results/published."""
    root = results.shipped.place.parent
    shutil.rmtree(root, ignore_errors=True)
    # The archive first: files that are older than theirs would be unpacked again.
    for name in sorted(files, key=lambda name: not name.endswith(ARCHIVE)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(files[name])


def test_after_a_kill_between_two_files_the_next_call_ships_everything(shipped: Results) -> None:
    retrain(shipped)
    before = bytes_of(shipped)
    lay(shipped, before)
    with pytest.MonkeyPatch.context() as patched:
        named = kill_at(-1, patched)
        again(shipped)
    final, files = bytes_of(shipped), named()
    assert final.keys() == before.keys() and final != before
    for file in range(0, files, files // 6):
        lay(shipped, before)
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
            kill_at(file, patched)
            again(shipped)
        left = bytes_of(shipped)
        assert all(left.get(name) in (before[name], final[name]) for name in before)
        again(shipped)
        assert bytes_of(shipped) == final
    check(shipped)


def test_what_a_killed_process_had_not_finished_is_written_anew(shipped: Results) -> None:
    before = bytes_of(shipped)
    stray = shipped.shipped.place.with_name(".tiny.partial") / "runs/stray.parquet"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"half a file")
    again(shipped)
    assert bytes_of(shipped) == before


def test_a_kill_between_the_files_of_readings_loses_no_shipped_run(
    gathered: Results, tmp_path: Path
) -> None:
    """The next call reads the shipped rows, which the checksums must fit by then."""
    results = replace(gathered, root=tmp_path)
    shutil.copytree(gathered.own_folder, results.own_folder)
    again(results)
    runs = results.shipped_readings()["runs"]
    shipped, before = sorted(pd.read_parquet(runs)["config_hash"]), bytes_of(results)
    first = results.campaign.reading_runs[0]
    shutil.rmtree(results.own_folder / run_path(first))
    with pytest.MonkeyPatch.context() as patched:
        named = kill_at(-1, patched)
        again(results)
    for file in range(named()):
        lay(results, before)
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
            kill_at(file, patched)
            again(results)
        again(results)
        assert sorted(pd.read_parquet(runs)["config_hash"]) == shipped and len(shipped) == 2
        replace(results).shipped.check_all()
