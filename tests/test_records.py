"""Records: whole or refused, with units and origin; token efficiency on invented curves."""

import errno
import math
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import campaign, refusal

from relation.kernels.linear_relation.launches import LAUNCHES
from relation.ops.linear import CHUNK
from relation.pipeline.hashes import code_hash
from relation.pipeline.places import (
    GRADIENTS_FILE,
    VERIFICATION_FILE,
    recall_path,
    systems_path,
    with_pictures,
)
from relation.pipeline.results import Results
from relation.pipeline.uses import uses_of
from relation.spec import RunSpec, canonical_hash
from relation.store import files
from relation.store import layouts as schemas
from relation.store.parquet import (
    Column,
    pack_parquet,
    read_origin,
    read_parquet,
    schema,
    write_parquet,
)
from relation.store.seal import is_sealed
from report.values.efficiency import smoothed_loss, token_crossing
from report.values.frames import check_order, load_records

LAYOUT = schema(
    Column("name", pa.string()),
    Column("time", pa.float64(), "s", "wall time"),
    Column("count", pa.int64(), "tokens"),
)
ROWS = [{"name": "a", "time": 0.1, "count": 3}, {"name": "猫", "time": None, "count": 2**62}]
ORIGIN = {
    "campaign": "test",
    "stage": "training",
    "config_hash": "0" * 16,
    "code_hash": "1" * 16,
    "created": "2026-01-01T00:00:00+00:00",
    "device": "cpu",
    "commit": "abc",
    "versions": {"python": "3.11"},
    "nested": {"a": [1, 2.5]},
}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "record.parquet"
    write_parquet(path, LAYOUT, ROWS, ORIGIN)
    return path


def test_rows_units_and_origin_come_back(record: Path) -> None:
    table = read_parquet(record, LAYOUT)
    assert table.to_pylist() == ROWS
    assert read_origin(record) == ORIGIN
    field = pq.read_schema(record).field("time")
    assert field.metadata == {b"unit": b"s", b"description": b"wall time"}


def test_a_packed_record_is_the_same_in_fewer_bytes(record: Path, tmp_path: Path) -> None:
    packed, again = tmp_path / "packed.parquet", tmp_path / "again.parquet"
    pack_parquet(record, packed)
    pack_parquet(packed, again)
    assert packed.read_bytes() == again.read_bytes() and is_sealed(packed)
    assert packed.stat().st_size < record.stat().st_size
    assert read_origin(packed) == ORIGIN
    table, before = (read_parquet(path, LAYOUT) for path in (packed, record))
    assert table.equals(before) and table.to_pylist() == ROWS
    fields = [list(pq.read_schema(path)) for path in (packed, record)]
    assert [f.metadata for f in fields[0]] == [f.metadata for f in fields[1]]


def test_coarse_columns_keep_five_digits_and_the_rest_every_one(tmp_path: Path) -> None:
    layout = schema(Column("rate", pa.float64()), Column("loss", pa.float64()))
    rates = [1_255_602.569, 12.3456789, 0.0, None, math.inf]
    losses = [math.pi, -1e-300, 2.0, None, math.nan]
    rows = [{"rate": r, "loss": x} for r, x in zip(rates, losses, strict=True)]
    write_parquet(tmp_path / "log.parquet", layout, rows, ORIGIN)
    pack_parquet(tmp_path / "log.parquet", tmp_path / "packed.parquet", coarse={"rate"})
    packed, before = (
        read_parquet(tmp_path / f"{name}.parquet", layout) for name in ("packed", "log")
    )
    assert packed["rate"].to_pylist() == [1_255_600, 12.346, 0, None, math.inf]
    assert repr(packed["loss"].to_pylist()) == repr(before["loss"].to_pylist())


def test_records_of_an_archive_are_compressed_by_it_alone(record: Path, tmp_path: Path) -> None:
    pack_parquet(record, tmp_path / "plain.parquet", compress=False)
    with pq.ParquetFile(tmp_path / "plain.parquet") as file:
        group = file.metadata.row_group(0)
        assert {group.column(k).compression for k in range(group.num_columns)} == {"UNCOMPRESSED"}
    assert read_parquet(tmp_path / "plain.parquet", LAYOUT).to_pylist() == ROWS
    assert read_origin(tmp_path / "plain.parquet") == ORIGIN


def test_columns_write_what_rows_write(record: Path, tmp_path: Path) -> None:
    columns = {name: [row[name] for row in ROWS] for name in LAYOUT.names}
    write_parquet(tmp_path / "columns.parquet", LAYOUT, columns, ORIGIN)
    assert read_parquet(tmp_path / "columns.parquet", LAYOUT).equals(read_parquet(record, LAYOUT))


def test_a_record_without_rows_keeps_its_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "empty.parquet", LAYOUT, [], ORIGIN)
    table = read_parquet(tmp_path / "empty.parquet", LAYOUT)
    assert (table.num_rows, table.column_names) == (0, LAYOUT.names)


@pytest.mark.parametrize("odd", [{"count"}, {"extra"}, {"count", "extra"}])
@pytest.mark.parametrize("by_column", [False, True])
def test_missing_and_extra_keys_are_refused(tmp_path: Path, odd: set[str], by_column: bool) -> None:
    row = {k: 1 for k in {*LAYOUT.names} ^ odd} | {"name": "a"}
    rows = {k: [v] for k, v in row.items()} if by_column else [ROWS[0], row]
    message = refusal(lambda: write_parquet(tmp_path / "bad.parquet", LAYOUT, rows, ORIGIN))
    assert all(name in message for name in odd)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reader", [read_parquet, read_origin])
@pytest.mark.parametrize("length", [None, 0, 3, 100, -1])
def test_missing_and_truncated_records_are_refused(
    record: Path, reader, length: int | None
) -> None:
    content = record.read_bytes()
    record.unlink()
    if length is not None:
        record.write_bytes(content[:length])
    assert str(record) in refusal(lambda: reader(record))


FOREIGN = {
    "lacks count": schema(*(Column(n, LAYOUT.field(n).type) for n in ("name", "time"))),
    "other columns or types": schema(
        Column("name", pa.string()), Column("time", pa.float32(), "s"), Column("count", pa.int64())
    ),
    "other units": schema(
        Column("name", pa.string()),
        Column("time", pa.float64(), "ms", "wall time"),
        Column("count", pa.int64(), "tokens"),
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_record_of_another_schema_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "foreign.parquet"
    write_parquet(path, FOREIGN[kind], [], ORIGIN)
    assert str(path) in refusal(lambda: read_parquet(path, LAYOUT))


def test_a_file_of_another_writer_has_no_origin(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    assert "no origin" in refusal(lambda: read_origin(tmp_path / "other.parquet"))


def test_a_failing_writer_leaves_the_old_record(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = record.read_bytes()

    def full_disk(table: pa.Table, file: BinaryIO, **options) -> None:
        file.write(b"PAR1 half a file")
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_parquet(record, LAYOUT, ROWS, ORIGIN)
    assert record.read_bytes() == before
    assert list(record.parent.iterdir()) == [record]


def test_a_disk_that_syncs_no_folders_is_written_to_and_one_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = set()

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if (errno.EINVAL if is_folder else errno.EIO) in failing:
            raise OSError(errno.EINVAL if is_folder else errno.EIO, "no")

    monkeypatch.setattr(os, "fsync", fsync)
    failing.add(errno.EINVAL)
    files.write_text(tmp_path / "a" / "text", "new")
    failing.add(errno.EIO)
    with pytest.raises(OSError, match="no"):
        files.write_text(tmp_path / "a" / "text", "newer")
    assert {p.name: p.read_text() for p in (tmp_path / "a").iterdir()} == {"text": "new"}


def test_text_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a" / "text"
    for text in ("long words\n", "é"):
        files.write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    with pytest.raises(RuntimeError), files.atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text(encoding="utf-8") == "é"
    assert list(path.parent.iterdir()) == [path]


def test_the_trailing_mean_weighs_partial_and_cut_updates_by_their_tokens() -> None:
    """Window 150: it cuts the first update at 200 tokens, the second at 300; the last has 50."""
    smoothed = smoothed_loss(
        np.array([100, 200, 300, 350]), np.array([100, 100, 100, 50]), np.array([4.0, 3, 2, 1]), 150
    )
    by_hand = [4, (50 * 4 + 100 * 3) / 150, (50 * 3 + 100 * 2) / 150, (100 * 2 + 50 * 1) / 150]
    np.testing.assert_allclose(smoothed, by_hand, rtol=1e-15)


@pytest.mark.parametrize("window", [1, 7, 64, 65, 1000, 10**6])
def test_the_trailing_mean_is_the_mean_over_single_tokens(window: int) -> None:
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 130, 40)
    loss = draw.uniform(1, 9, 40)
    ends = sizes.cumsum()
    each = np.repeat(loss, sizes)
    expected = [each[max(0, end - window) : end].mean() for end in ends]
    # A difference of integrals of up to 9 x 2,600 over a window of `window` tokens.
    rounding = 40 * np.finfo(float).eps * 9 * ends[-1] / min(window, sizes[0])
    np.testing.assert_allclose(smoothed_loss(ends, sizes, loss, window), expected, atol=rounding)


@pytest.mark.parametrize("window", [0, -1, float("nan")])
def test_a_smoothing_window_must_be_positive(window: float) -> None:
    one = np.ones(1)
    assert "window" in refusal(lambda: smoothed_loss(one, one, one, window))


@pytest.mark.parametrize(
    "smoothed, target, tokens",
    [
        ([4, 3, 2, 1], 2.5, 250),  # half way from 200 to 300
        ([4, 3, 2, 1], 0.5, None),  # never
        ([4, 2, 3, 1], 2.5, 175),  # three quarters from 100 to 200, and twice more later
        ([4, 3, 2, 1], 3.0, 200),  # on a logged point
        ([4, 3, 3, 1], 3.0, 200),  # the first point of a plateau at the target
        ([2, 3, 2, 1], 2.5, 100),  # below from the start
        ([4, 3, 2, 1], 1.0, 400),  # at the very end
        ([4, 5, 6, 7], 4.5, 100),
    ],
)
def test_the_crossing_is_the_earliest(
    smoothed: list[float], target: float, tokens: float | None
) -> None:
    crossing = token_crossing(target, np.arange(100, 500, 100), np.array(smoothed, float), 500)
    assert crossing.target == target
    if tokens is None:
        assert (crossing.tokens, crossing.reduction) == (None, None)
    else:
        assert crossing.tokens == pytest.approx(tokens, rel=1e-15)
        assert crossing.reduction == pytest.approx(1 - tokens / 500, rel=1e-14)


def runs_frame(**hashes: str) -> pd.DataFrame:
    keys = [name.split("_") for name in hashes]
    return pd.DataFrame(
        {"scale": s, "variant": v, "seed": int(n), "order_hash": h}
        for (s, v, n), h in zip(keys, hashes.values(), strict=True)
    )


def test_runs_that_read_different_data_are_refused() -> None:
    check_order(runs_frame(A_mha_1="x", A_full_1="x", A_mha_2="y", B_mha_1="z", B_full_1="z"))
    frame = runs_frame(A_mha_1="x", A_full_1="x", B_mha_1="z", B_full_1="other")
    message = refusal(lambda: check_order(frame))
    assert all(word in message for word in ("B", "seed 1", "mha z", "full other"))


def probed(run: RunSpec, **changes) -> dict:
    """What the origin of probes says of a run of the tiny campaign; `changes` of its sampling."""
    sampling = replace(campaign().diagnostics_spec(run, sequences=1), **changes)
    return {
        "probe_code_hash": code_hash("probe", uses_of(run)),
        "probe_config_hash": sampling.config_hash,
        "probe_times": campaign().diagnostics["probes"],
        "validation_looks": campaign().diagnostics["validations"],
        "validation_look_tokens": campaign().diagnostics["validation_tokens"],
    }


def write_run(results: Results, run: RunSpec, loss: list[float], **changes) -> None:
    """A run of 600 tokens: four updates of 128 tokens and one of 88."""
    sizes = [128, 128, 128, 128, 88]
    log = {
        "update": [1, 2, 3, 4, 5],
        "tokens": np.cumsum(sizes).tolist(),
        "update_tokens": sizes,
        "loss": loss,
        **{n: [1.0] * 5 for n in ("learning_rate", "gradient_norm", "tokens_per_second")},
    }
    texts = {"scale": run.scale, "variant": run.variant, "order_hash": "same", "init_hash": "i"}
    row = {n: 1 for n in schemas.RUN.names} | texts | {"seed": run.seed, "budget_tokens": 600}
    made = {"device": "cpu", "checkpoint_sha256": canonical_hash(loss)}
    origin = ORIGIN | made | {"config_hash": run.config_hash}
    write_parquet(results.run(run) / "log.parquet", schemas.LOG, log, origin)
    write_parquet(results.run(run) / "record.parquet", schemas.RUN, [row | changes], origin)
    write_parquet(results.run(run) / "probes.parquet", schemas.PROBES, [], origin | probed(run))


def write_diagnostics(results: Results, run: RunSpec, sequences: str = "four") -> None:
    hashes = {"config_hash": results.campaign.diagnostics_spec(run).config_hash}
    origin = ORIGIN | hashes | {"sequences_hash": sequences}
    layouts = (schemas.FLOW, schemas.FLOW_CURVES, schemas.FLOW_MAPS)
    for path, layout in zip(with_pictures(results.diagnostics(run)), layouts, strict=True):
        write_parquet(path, layout, [], origin)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """The records of one pair: Relation's loss passes MHA's last in its partial update."""
    pair = campaign(scales="10M", seeds="42", variants="mha,full")
    results = Results(pair, tmp_path)
    write_run(results, pair.run("10M", "mha", 42), [5, 4, 3, 2, 1.5])
    write_run(results, pair.run("10M", "full", 42), [5, 4, 3, 2, 1.0])
    inventory = ORIGIN | {"config_hash": pair.inventory_hash}
    write_parquet(results.models, schemas.MODELS, [], inventory)
    for run in pair.runs:
        write_diagnostics(results, run)
    for spec in pair.systems:
        origin = ORIGIN | {"config_hash": spec.config_hash}
        write_parquet(results.folder / systems_path(spec), schemas.THROUGHPUT, [], origin)
    for spec in pair.recall:
        origin = ORIGIN | {"config_hash": spec.config_hash}
        write_parquet(results.folder / recall_path(spec), schemas.RECALL, [], origin)
    verified = ORIGIN | {"config_hash": pair.verification.config_hash}
    write_parquet(results.folder / VERIFICATION_FILE, schemas.VERIFICATION, [], verified)
    checked = ORIGIN | {"config_hash": pair.gradients.config_hash}
    write_parquet(results.folder / GRADIENTS_FILE, schemas.GRADIENTS, [], checked)
    return results


def test_efficiency_of_a_pair_from_its_records(results: Results) -> None:
    """A window of 1% of 600 tokens lies inside each update: the smoothed loss is the loss."""
    chosen = replace(results.campaign, efficiency_window=0.01)
    (row,) = load_records(chosen, results).efficiency.to_dict("records")
    assert (row["scale"], row["seed"], row["target"]) == ("10M", 42, pytest.approx(1.5, rel=1e-12))
    assert row["crossing_tokens"] == pytest.approx(512 + 88 / 2, rel=1e-12)
    assert row["reduction"] == pytest.approx(1 - 556 / 600, rel=1e-10)
    # MHA's loss falls to its end; Relation ends below it.
    assert row["own_reduction"] == 0 and row["end_gap"] == pytest.approx(-0.5, rel=1e-10)


@pytest.mark.parametrize("files, said", [
    (None, "the texts are not at hand to tell"),
    (("a.txt",), "Validation is the documents whose SHA-256 is 0 modulo 50; no file is named"),
    (("a.txt", "validation-1.txt", "validation-2.jsonl"),
     "corpus’s own, 2 files named validation*; validation_modulus is not used"),
])  # fmt: skip
def test_the_readings_say_how_local_texts_were_split(tmp_path: Path, files, said: str) -> None:
    folder = tmp_path / "texts"
    if files is not None:
        folder.mkdir()
    for name in files or ():
        (folder / name).write_text('{"text": "A text."}', encoding="utf-8")
    given = {} if files is None else {"corpus": str(folder)}
    books = campaign("books", scales="10M", **given)
    page = load_records(books, Results(books, tmp_path), partial=True).page
    readings = {reading["name"]: reading["value"] for reading in page["assumptions"]}
    assert said in readings["corpora.*.source"]
    (untold,) = (a for a in books.assumptions if a["name"] == "corpora.*.source")
    assert readings["corpora.*.source"].startswith(f"{untold['value']}. Validation")
    assert readings["backend_overrides"] == "single-head on materialised"
    assert readings["systems.rounds"] == "5 updates, then 10 rounds of 2 more"
    smoke = campaign("smoke")
    page = load_records(smoke, Results(smoke, tmp_path), partial=True).page
    readings = {reading["name"]: reading["value"] for reading in page["assumptions"]}
    assert readings["backend_overrides"] == "none"
    assert readings["backends.linear"] == f"chunked, chunks of {CHUNK} tokens"


def test_the_readings_name_the_papers_schedule_and_the_launches_in_its_place() -> None:
    assumptions = campaign("paper").assumptions
    (reading,) = (r for r in assumptions if r["name"] == "backends.linear")
    chunks: dict[int, set[int]] = {}
    for (_, size), entries in LAUNCHES.items():
        chunks.setdefault(size, set()).update(entry.chunk for entry in entries)
    assert chunks == {2: {64}, 4: {32}}
    assert reading["value"].startswith("flash, chunks of 64 tokens for 16-bit states, 32 for FP32")
    assert "K_L60 (chunk 128, block 64, four warps, one stage, row tile 1)" in reading["question"]


def test_a_text_beside_the_records_says_how_it_came_about_what_is_there(tmp_path: Path) -> None:
    books = campaign("books", scales="10M")
    results = Results(books, tmp_path, shipped_only=True)
    assert load_records(books, results, partial=True).page["omissions"] == ""
    results.folder.mkdir(parents=True)
    told = results.folder / "omissions.txt"
    told.write_bytes("In the order that we fixed – all.\n".encode())
    said = load_records(books, results, partial=True).page["omissions"]
    assert said == "In the order that we fixed – all."
    told.write_bytes(b"In a fixed order.\xff\n")
    assert "UTF-8" in refusal(lambda: load_records(books, results, partial=True))


def test_a_pair_with_other_order_or_a_missing_log_is_refused(results: Results) -> None:
    full = results.campaign.run("10M", "full", 42)
    (results.run(full) / "log.parquet").unlink()
    assert "log.parquet" in refusal(lambda: load_records(results.campaign, results))
    write_run(results, full, [5, 4, 3, 2, 1.0], order_hash="other")
    assert "read different data" in refusal(lambda: load_records(results.campaign, results))


def test_checkpoints_of_a_scale_that_read_different_sequences_are_refused(
    results: Results,
) -> None:
    write_diagnostics(results, results.campaign.run("10M", "full", 42), sequences="others")
    message = refusal(lambda: load_records(results.campaign, results))
    assert all(word in message for word in ("10M/full/42 others", "10M/mha/42 four"))
