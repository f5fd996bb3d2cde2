"""Freshness that survives a clone, gaps by name, shipped records, two campaigns side by side."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import refusal
from test_records import ORIGIN, results, write_run  # noqa: F401
from test_report_records import make_records

from relation.pipeline import gaps, provenance
from relation.pipeline import hashes as code
from relation.pipeline.ledger import Ledger
from relation.pipeline.places import (
    GRADIENTS_FILE,
    MODELS_FILE,
    VERIFICATION_FILE,
    systems_path,
    with_pictures,
)
from relation.pipeline.provenance import CURRENT, OLDER, STALE, freshness, worst
from relation.pipeline.publish import publish
from relation.pipeline.results import Results
from relation.pipeline.shipped import CHECKSUMS
from relation.store import layouts as schemas
from relation.store.parquet import read_origin, read_parquet, write_parquet
from report.judge.frames import CELL_KEY, CLAIMS
from report.judge.job import write_cells
from report.render.compare import compare
from report.values.frames import load_records


@pytest.fixture
def run_source(results: Results):  # noqa: F811
    """The record of one run, and an origin that this checkout would write."""
    source = next(record for record in Ledger(results).records if record.kind == "run")
    origin = ORIGIN | {
        "config_hash": source.job.config_hash,
        "code_hash": source.job.code,
        "golden_hash": code.golden_hash(),
    }
    return source, origin


def test_what_this_checkout_would_make_again_is_current(run_source) -> None:
    source, origin = run_source
    assert freshness(origin, source) == (CURRENT, "")


@pytest.mark.parametrize("changes, state, said", [
    ({"config_hash": "f" * 16}, STALE, "another configuration"),
    ({"golden_hash": "f" * 16}, STALE, "golden losses changed"),
    ({"code_hash": "f" * 16}, OLDER, "stage training changed"),
    ({"code_hash": "f" * 16, "golden_hash": None}, STALE, "not recorded"),
    ({"code_hash": "f" * 16, "golden_hash": "f" * 16}, STALE, "golden losses changed"),
])  # fmt: skip
def test_a_record_is_as_old_as_what_made_it(run_source, changes, state: str, said: str) -> None:
    source, origin = run_source
    found, reason = freshness(origin | changes, source)
    assert found == state and said in reason


def test_a_copy_without_the_tests_compares_no_golden_losses(run_source, monkeypatch) -> None:
    source, origin = run_source
    monkeypatch.setattr(provenance, "golden_hash", lambda: None)
    assert freshness(origin, source) == (CURRENT, "")
    found, reason = freshness(origin | {"code_hash": "f" * 16}, source)
    assert found == STALE and reason.endswith("the golden losses are not here to compare")


def test_other_texts_make_a_record_stale(run_source) -> None:
    source, origin = run_source
    texts = origin | {"data_origin": {"corpus_sha256": "a"}}
    # None: no texts to compare with.
    for given, state in (("b", STALE), ("a", CURRENT), (None, CURRENT)):
        asked = replace(source, job=replace(source.job, corpus=given))
        assert freshness(texts, asked)[0] == state


MADE = ORIGIN["created"]


@pytest.mark.parametrize("base, own, state, said", [
    ({"freshness": CURRENT}, {}, CURRENT, ""),
    ({"freshness": STALE}, {}, STALE, "record.parquet, which it rests on, is no fresher: other"),
    ({"freshness": OLDER}, {}, OLDER, "record.parquet, which it rests on, is no fresher: other"),
    ({"freshness": OLDER}, {"code_hash": "f" * 16}, OLDER, "stage training changed"),
    ({"freshness": STALE}, {"code_hash": "f" * 16}, STALE, "record.parquet"),
    ({"freshness": OLDER}, {"config_hash": "f" * 16}, STALE, "another configuration"),
    ({"freshness": CURRENT, "made": "2027-01-01T00:00:00+00:00"}, {}, STALE, "was made later"),
    (None, {}, STALE, "record.parquet, which it rests on, is not there"),
])  # fmt: skip
def test_a_record_is_no_fresher_than_what_it_rests_on(
    run_source, base, own, state: str, said: str
) -> None:
    source, origin = run_source
    source = replace(source, job=replace(source.job, base=Path("run/record.parquet")))
    row = base and {"made": MADE, "freshness_reason": "other", **base}
    found, reason = freshness(origin | own, source, row)
    assert found == state and said in reason


def states(results: Results) -> dict[tuple[str, str], tuple[str, str]]:  # noqa: F811
    """Freshness and reason of each record of a run, by kind and variant."""
    rows = load_records(results.campaign, results, partial=True).provenance
    of_runs = rows[rows["seed"].notna()]
    return {
        (row["kind"], row["variant"]): (row["freshness"], row["freshness_reason"])
        for row in of_runs.to_dict("records")
    }


@pytest.mark.parametrize("shipped", [False, True])
def test_what_rests_on_a_stale_run_is_stale(results: Results, shipped: bool) -> None:  # noqa: F811
    """Only the run's own record says so; the diagnoses of the other run stand."""
    full = results.campaign.run("10M", "full", 42)
    ledger, golden = Ledger(results), {"golden_hash": code.golden_hash()}
    for run in results.campaign.runs:
        now = golden | {"code_hash": ledger.train(run).code}
        looked = golden | {"code_hash": ledger.diagnose(run).code}
        files = {path: now for path in sorted(results.run(run).iterdir())}
        files |= {path: looked for path in with_pictures(results.diagnostics(run))}
        for path, made in files.items():
            if run == full and path.name == "record.parquet":
                made = made | {"golden_hash": "f" * 16}
            write_parquet(
                path, read_parquet(path).schema, read_parquet(path).to_pydict(),
                read_origin(path) | made,
            )  # fmt: skip
    if shipped:
        publish(results.campaign, results)
        results = replace(results, shipped_only=True)
    found = states(results)
    assert {state for (_, variant), (state, _) in found.items() if variant == "mha"} == {CURRENT}
    assert {state for (_, variant), (state, _) in found.items() if variant == "full"} == {STALE}
    record = (results.run(full) / "record.parquet").as_posix()
    for kind in ("log", "probes", "diagnostics", "curves", "maps"):
        reason = found[kind, "full"][1]
        assert reason.startswith(f"{record}, which it rests on, is no fresher: the golden losses")


def test_a_cell_is_as_old_as_the_oldest_of_its_records() -> None:
    assert worst([]) == CURRENT and worst([CURRENT, OLDER]) == OLDER
    assert worst([OLDER, STALE, CURRENT]) == STALE


def test_provenance_names_log_and_command(results: Results) -> None:  # noqa: F811
    log = results.folder / "logs" / "train" / "10M-full-42.log"
    log.parent.mkdir(parents=True)
    log.write_text("done\n")
    rows = load_records(results.campaign, results).provenance.set_index("source")
    row = rows.loc[
        (results.run(results.campaign.run("10M", "full", 42)) / "record.parquet").as_posix()
    ]
    assert row["log"] == log.as_posix() and row["kind"] == "run" and row["seed"] == 42
    assert row["rerun"].endswith("10M/full/42/record.parquet -- all")
    assert "variants=mha,full" in row["rerun"]


def test_what_is_not_there_is_a_gap_with_its_reason(results: Results) -> None:  # noqa: F811
    """A failed run, one out of memory, a damaged file and one that was never made."""
    campaign = results.campaign
    full, mha = (campaign.run("10M", variant, 42) for variant in ("full", "mha"))
    (results.run(full) / "record.parquet").unlink()
    results.diagnostics(mha).write_bytes(b"PAR1 half a file")
    matched, fixed = (
        results.folder / systems_path(campaign.benchmark(name, "10M"))
        for name in ("matched", "fixed")
    )
    matched.unlink(), fixed.unlink()
    logs = results.folder / "logs"
    for name, text in (
        ("train/10M-full-42.log", "10M/full/42 starts\nerror: loss nan <script> $x_1$\n"),
        ("measure/matched-10M.log", "Traceback (most recent call last):\nOutOfMemoryError: CUDA\n"),
    ):
        (logs / name).parent.mkdir(parents=True, exist_ok=True)
        (logs / name).write_text(text)
    assert "42" in refusal(lambda: load_records(campaign, results))

    records = load_records(campaign, results, partial=True)
    found = records.missing.set_index(["kind", "variant"])[["status", "reason"]]
    found = found[~found["reason"].str.startswith("left out")]
    rows = {key: tuple(row) for key, row in zip(found.index, found.to_numpy(), strict=True)}
    assert rows["run", "full"] == (gaps.FAILED, "loss nan <script> $x_1$")
    assert rows["throughput", "matched"] == (gaps.OOM, "OutOfMemoryError: CUDA")
    assert (
        rows["throughput", "fixed"][0] == gaps.NOT_RUN and "fixed" in rows["throughput", "fixed"][1]
    )
    assert rows["flow", "mha"][0] == gaps.FAILED and "not readable" in rows["flow", "mha"][1]
    write_cells(records, results.report)
    cells = read_parquet(results.report / "cells.parquet").to_pandas()
    failed = cells[(cells["table"] == "app-nll") & (cells["row"] == "10M/42")]
    assert set(failed[failed["column"] == "full"]["status"]) == {"failed"}
    assert "<script> $x_1$" in failed[failed["column"] == "full"]["reason"].iloc[0]


def test_a_record_of_another_configuration_is_refused_or_shown_as_stale(
    results: Results,  # noqa: F811
) -> None:
    """One that an older configuration left behind must not pass for this campaign's."""
    run = results.campaign.runs[0]
    write_run(results, replace(run, weight_decay=0.2), [5, 4, 3, 2, 1.5])
    assert "another configuration" in refusal(lambda: load_records(results.campaign, results))
    records = load_records(results.campaign, results, partial=True)
    assert len(records.runs) == 2
    states = records.provenance.set_index("source")["freshness_reason"]
    assert "another configuration" in states[(results.run(run) / "record.parquet").as_posix()]


def test_an_inventory_of_other_models_is_stale(results: Results) -> None:  # noqa: F811
    deeper = replace(results.campaign.planned_runs[0], context=17)
    runs = (deeper, *results.campaign.planned_runs[1:])
    campaign = replace(results.campaign, planned_runs=runs)
    assert "models.parquet" in refusal(lambda: load_records(campaign, results))
    records = load_records(campaign, results, partial=True)
    (row,) = records.provenance[records.provenance["kind"] == "models"].to_dict("records")
    assert row["freshness"] == STALE and "another configuration" in row["freshness_reason"]


def test_shipped_records_are_read_alone_and_checked(results: Results) -> None:  # noqa: F811
    results.shipped.folder.mkdir(parents=True)
    told = results.shipped.folder / "omissions.txt"
    told.write_text("In a fixed order.\n", encoding="utf-8")
    publish(results.campaign, results)
    shipped = replace(results, shipped_only=True)
    assert shipped.folder == results.shipped.folder
    assert told in shipped.shipped.files()
    shipped.shipped.check_all()
    records = load_records(results.campaign, shipped, partial=True)
    assert len(records.runs) == 2 and records.provenance["log"].isna().all()
    command = records.provenance.set_index("kind").loc["models", "rerun"]
    assert "published" not in command and "-R" not in command
    listed = shipped.shipped.files()
    files = (MODELS_FILE, VERIFICATION_FILE, GRADIENTS_FILE)
    assert {shipped.folder / file for file in files} <= set(listed)
    listed[0].write_bytes(listed[0].read_bytes() + b" ")
    assert "SHA256SUMS" in refusal(shipped.shipped.check_all)
    listed[0].unlink()
    assert "restore it" in refusal(shipped.shipped.check_all)


def test_what_shipped_before_gradients_were_checked_still_renders(results: Results) -> None:  # noqa: F811
    (results.folder / GRADIENTS_FILE).unlink()
    publish(results.campaign, results)
    shipped = replace(results, shipped_only=True)
    records = load_records(results.campaign, shipped, partial=True)
    assert records.gradients.empty and {*schemas.GRADIENTS.names} < {*records.gradients.columns}
    gap = records.missing.set_index("kind").loc["gradients"]
    assert gap["status"] == "not run" and "gradients.parquet" in gap["reason"]


def test_nothing_shipped_is_said_in_one_line(results: Results) -> None:  # noqa: F811
    assert "publish --campaign tiny" in refusal(
        replace(results, shipped_only=True).shipped.check_all
    )


def test_the_checkout_has_a_hash_of_all_that_records_rest_on(monkeypatch) -> None:
    before = provenance.checkout_hash()
    monkeypatch.setattr(provenance, "golden_hash", lambda: "other")
    assert provenance.checkout_hash() != before


def test_two_campaigns_stand_side_by_side(tmp_path: Path) -> None:
    first = make_records()
    runs = first.runs.assign(final_nll=first.runs["final_nll"] + 1.0)
    second = replace(first, runs=runs[runs["variant"] != "hybrid"])
    for name, records in (("a", first), ("published/b", second)):
        write_cells(records, tmp_path / name / "report")
    found = compare("a", "published/b", tmp_path)
    assert found.folder == tmp_path / "compare" / "a-published-b"
    cells = {
        tuple(cell.either[name] for name in CELL_KEY): cell
        for compared in found.tables
        for _, _, cell in compared.rows
    }
    mean = cells["main-results", "10M", "full_nll", "mean"]
    assert mean.difference == pytest.approx(1.0) and mean.intervals_meet is False
    assert mean.first["value"] == pytest.approx(1.92) and mean.either["paper"] == "1.6441"
    delta = cells["main-results", "10M", "delta", "value"]
    assert delta.difference == pytest.approx(0.0) and delta.intervals_meet is True
    gone = cells["app-hybrid", "42", "nll", "value"]
    assert gone.second["status"] == "not run" and gone.first["value"] == pytest.approx(1.8)
    assert [claim["number"] for claim, _ in found.claims] == list(range(1, 25))


def test_ledgers_of_two_versions_are_not_compared(tmp_path: Path) -> None:
    write_cells(make_records(), tmp_path / "a/report")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    path = tmp_path / "b" / "report" / "claims.parquet"
    rows = read_parquet(path, CLAIMS).to_pylist()
    write_parquet(path, CLAIMS, rows[:18], read_origin(path))
    refused = refusal(lambda: compare("a", "b", tmp_path))
    assert "hold 24 and 18 claims" in refused and "render both again" in refused


def test_what_was_shipped_of_a_campaign_is_offered_for_comparison(tmp_path: Path) -> None:
    shipped = tmp_path / "published/tiny"
    assert "published/tiny" not in refusal(lambda: compare("tiny", "tiny", tmp_path))
    shipped.mkdir(parents=True)
    (shipped / CHECKSUMS).touch()
    refused = refusal(lambda: compare("tiny", "tiny", tmp_path))
    assert refused.endswith("`make published` renders what was shipped of it, published/tiny")
    (shipped / "report").mkdir()
    (shipped / "report/cells.parquet").touch()
    refused = refusal(lambda: compare("tiny", "tiny", tmp_path))
    assert refused.endswith("published/tiny, what was shipped of it, can be compared")


def test_a_campaign_that_cannot_be_compared_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke" / "campaign.json").touch()
    (tmp_path / "published/smoke").mkdir(parents=True)
    (tmp_path / "published/smoke" / CHECKSUMS).touch()
    for name, said in {
        "nowhere": "no such campaign; config.yaml defines paper,",
        "published/nowhere": "no such campaign",
        "elsewhere/tiny": "no such campaign",
        "tiny": "`snakemake --cores all --config campaign=tiny` runs it",
        "smoke": "`python -m relation render --campaign smoke`",
        "published/tiny": "`python -m relation publish --campaign tiny` ships",
        "published/smoke": "`make published` renders it",
    }.items():
        refused = refusal(lambda name=name: compare(name, name, tmp_path))
        assert refused.startswith(f"cannot compare {name}: ") and said in refused
