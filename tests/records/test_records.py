"""Records: rows are read as written, faults give one clear line, and nothing is lost."""

import json
import math
import multiprocessing
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import refusal

from relation import records
from relation.errors import InputError, RunError
from relation.jobs import hash_of

KEY = {"campaign": "books", "scale": "10M", "variation": "nearest", "variant": "full", "seed": 42}
ORIGIN = {"hash": "a" * 16, "commit": "c" * 40, "device": "cpu", "versions": "{}"}
ORIGIN |= {"created": "2026-11-27T00:00:00+00:00", "specification": '{"model": {}}'}


def example(of: pa.DataType, draw: np.random.Generator) -> object:
    """A random value of a type; sometimes None or not finite."""
    if draw.random() < 0.1:
        return None
    if pa.types.is_list(of):
        return [example(of.value_type, draw) for _ in range(draw.integers(4))]
    if pa.types.is_floating(of):
        single = pa.types.is_float32(of)
        value = np.frombuffer(draw.bytes(4 if single else 8), "f4" if single else "f8")[0]
        return float(value) if np.isfinite(value) else math.inf
    if pa.types.is_integer(of):
        return int(draw.integers(-(2**62), 2**62))
    if pa.types.is_boolean(of):
        return bool(draw.integers(2))
    return draw.bytes(9) if pa.types.is_binary(of) else draw.bytes(3).hex()


def rows_of(kind: str, count: int = 2, **values: object) -> list[dict]:
    """Rows of a kind with a full key and origin. Values that are not given are random."""
    draw, given, columns = np.random.default_rng(7), KEY | ORIGIN | values, records.KINDS[kind]
    return [
        {c.name: given[c.name] if c.name in given else example(c.type, draw) for c in columns}
        for _ in range(count)
    ]


def write(path: Path, kind: str, count: int = 2, **values: object) -> Path:
    records.write(path, kind, rows_of(kind, count, **values))
    return path


@pytest.mark.parametrize("kind", records.KINDS)
def test_what_is_written_is_read(tmp_path: Path, kind: str) -> None:
    rows = rows_of(kind, 50)
    records.write(tmp_path / "list.parquet", kind, rows)
    table = pq.read_table(tmp_path / "list.parquet")
    assert table.to_pylist() == rows and table.schema.equals(records.KINDS[kind])
    frame = records.read(tmp_path / "list.parquet", kind)
    records.write(tmp_path / "frame.parquet", kind, frame.drop(columns="hash"), {"hash": "a" * 16})
    pd.testing.assert_frame_equal(records.read(tmp_path / "frame.parquet", kind), frame)
    empty = records.without_rows(kind)
    assert empty.empty and list(empty.columns) == records.KINDS[kind].names


def test_a_damaged_file_is_named_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "losses.parquet", "losses", 500)
    whole, silent = path.read_bytes(), 0
    good = records.read(path, "losses")
    step = max(1, len(whole) // 200)
    for at in range(0, len(whole), step):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            actual = records.read(path, "losses")
        except InputError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:  # the footer has no checksum, but the values must be right
            silent += 1
            pd.testing.assert_frame_equal(actual, good)
    assert silent < 60
    for content in (b"", b"PAR1", whole[: len(whole) // 2], whole[:-1], b"x" * 1000):
        path.write_bytes(content)
        assert str(path) in refusal(lambda: records.load(tmp_path))
    path.unlink()
    assert "missing" in refusal(lambda: records.read(path, "losses"))
    write(path, "lengths")  # as if another version wrote it
    assert "gradient_norm" in refusal(lambda: records.read(path, "losses"))


def test_a_newer_column_is_null_in_an_older_file(tmp_path: Path, monkeypatch) -> None:
    path, old = write(tmp_path / "losses.parquet", "losses", 3), records.KINDS["losses"]
    joules = pa.field("joules", pa.float64())
    monkeypatch.setitem(records.KINDS, "losses", old.insert(2, joules))
    assert "joules" in refusal(lambda: records.read(path, "losses"))
    monkeypatch.setattr(records, "NEWER", {"joules"})
    frame = records.read(path, "losses")
    assert frame["joules"].isna().tolist() == [True] * 3
    assert frame.columns.tolist() == records.KINDS["losses"].names
    assert records.read(path, "losses", ["joules", "loss"])["loss"].notna().all()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk; the system reports a similar error."""
    path = write(tmp_path / "losses.parquet", "losses", 3)
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        assert str(path) in refusal(lambda: write(path, "losses", 3_000), RunError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert len(records.read(path, "losses")) == 3
    assert [each.name for each in tmp_path.iterdir()] == ["losses.parquet"]


FORK = multiprocessing.get_context("fork")


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "losses.parquet", "losses", 3)

    def die_while_writing() -> None:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # the worst moment
        write(path, "losses", 9)

    process = FORK.Process(target=die_while_writing)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(records.read(path, "losses")) == 3
    write(path, "losses", 5)
    assert len(records.load(tmp_path)["losses"]) == 5


def test_two_writers_of_one_file_leave_one_of_theirs_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "losses.parquet", "losses", 10)

    def write_often(rows: list[dict]) -> None:
        for _ in range(15):
            records.write(path, "losses", rows)

    writers = [FORK.Process(target=write_often, args=[rows_of("losses", n)]) for n in (10, 1000)]
    for each in writers:
        each.start()
    while any(each.is_alive() for each in writers):
        assert len(records.read(path, "losses")) in (10, 1000)
    assert [each.exitcode for each in writers] == [0, 0]
    assert [each.name for each in tmp_path.iterdir()] == ["losses.parquet"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    lock, ready = tmp_path / "work" / "x.lock", FORK.Event()

    def hold() -> None:
        with records.held(lock, "run x"):
            ready.set()
            time.sleep(60)

    other = FORK.Process(target=hold)
    other.start()
    assert ready.wait(30)
    message = refusal(records.held(lock, "run x").__enter__, RunError)
    assert "run x is already running" in message
    other.kill()
    other.join()
    with records.held(lock, "run x"):  # a killed process leaves no lock behind
        pass


def test_a_commit_is_marked_if_files_that_decide_results_differ(tmp_path, monkeypatch) -> None:
    author = ("-c", "user.name=x", "-c", "user.email=x")
    for folder in ("relation", "docs", "config"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("committed")

    def git(*command: str) -> None:
        subprocess.run(["git", "-C", tmp_path, *command], check=True, capture_output=True)

    for command in (["init"], ["add", "."], [*author, "commit", "-m", "x"]):
        git(*command)
    monkeypatch.setattr(records, "PROJECT", tmp_path)
    unmarked = ("docs/a.txt", "config/mine.yaml")
    for changed in (*unmarked, "config/a.txt", "relation/a.txt", "relation/new.py"):
        (tmp_path / changed).write_text("changed")
        records.commit.cache_clear()
        assert records.commit()[40:] == ("" if changed in unmarked else "+changes")
        git("clean", "-fdq")
        git("checkout", ".")
    records.commit.cache_clear()


def pair(**second: object) -> pd.DataFrame:
    shared = {"order_hash": "o" * 64, "init_hash": "i" * 64, "specification": '{"model": {}}'}
    return pd.DataFrame(
        rows_of("runs", 1, variant="mha", **shared)
        + rows_of("runs", 1, **{"variant": "full", **shared, **second})
    )


def test_runs_that_are_no_pair_are_refused(tmp_path: Path) -> None:
    records.check_pairs(pair())
    for column in ("order_hash", "init_hash"):
        records.write(tmp_path / "runs.parquet", "runs", pair(**{column: "x" * 64}))
        assert "books/10M/nearest seed 42" in refusal(lambda: records.load(tmp_path))
    with pytest.raises(InputError):
        records.check_pairs(pair(order_hash=None))
    records.check_pairs(pair(order_hash="x" * 64, seed=43))
    records.check_pairs(pair(order_hash="x" * 64, final_nll=None))
    separate = {"specification": '{"init_key": "full", "model": {}}', "init_hash": "x" * 64}
    records.check_pairs(pair(**separate))
    records.check_pairs(pair(specification='{"model": {"d_ff": 40}}', init_hash="x" * 64))
    with pytest.raises(InputError):
        records.check_pairs(pair(**separate, order_hash="x" * 64))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    records.published_hashes.cache_clear()
    yield records.RESULTS
    records.published_hashes.cache_clear()


def make_runs(folder: Path, seeds: tuple[int, ...], **values: object) -> dict[str, str]:
    """Write small files of Full's runs; return the planned hash of each file."""
    planned = {}
    for seed in seeds:
        own = {"seed": seed, "hash": f"hash{seed}", "variant": "full"} | values
        for file in ("runs/{}/run", "runs/{}/losses", "flow/{}/maps"):
            address = f"10M/{own.get('variation', 'nearest')}/full/{seed}"
            name = file.format(address) + ".parquet"
            kind = next(k for k, pattern in records.FILES.items() if Path(name).match(pattern))
            write(folder / name, kind, 1 if kind == "runs" else 2, **own)
            planned[name] = own["hash"]
    return planned


def test_collect_joins_what_is_planned(results: Path) -> None:
    folder = results / "books"
    planned = make_runs(folder, (42, 43))
    later = {"runs/10M/nearest/full/44/run.parquet": "hash44", "check/operators.parquet": "c"}
    records.collect(folder, planned | later)
    frames = records.load(folder)
    counts = {kind: len(rows) for kind, rows in frames.items() if len(rows)}
    assert counts == {"runs": 2, "losses": 4, "maps": 4}
    assert sorted(frames["losses"]["seed"].unique()) == [42, 43]
    planned["runs/10M/nearest/full/43/losses.parquet"] = "another"
    assert "43/losses.parquet was made as hash43, now planned is another" in refusal(
        lambda: records.collect(folder, planned)
    )
    records.collect(folder, {})  # no rows of an older plan remain
    assert records.load(folder)["runs"].empty


def test_collect_adds_published_rows_that_were_not_made_here(results: Path) -> None:
    folder = results / "books"
    records.collect(folder, make_runs(folder, (42, 43)))
    records.publish("books")
    records.collect(folder, {})  # the joined rows of this folder are not where 42 comes from
    own = make_runs(folder, (43,), created="2027-01-01T00:00:00+00:00")
    records.collect(folder, own, {"hash42", "hash43"})
    runs = records.load(folder)["runs"]
    assert dict(zip(runs["seed"], runs["created"].str[:4], strict=True)) == {42: "2026", 43: "2027"}
    assert len(runs) == 2


def test_publish_merges_by_job(results: Path) -> None:
    folder, shipped = results / "books", results / "published" / "books"
    assert "is missing; run snakemake" in refusal(lambda: records.publish("books"))
    records.collect(folder, make_runs(folder, (42, 43)))
    assert "runs: 2 added, 0 replaced, 0 refused" in records.publish("books")
    assert records.published_hashes("runs", "books") == {"hash42", "hash43"}
    assert set(records.load(shipped)["maps"]["seed"]) == {42}
    before = records.load(shipped)
    assert "runs: 0 added, 0 replaced, 0 refused" in records.publish("books")
    for kind, rows in records.load(shipped).items():
        pd.testing.assert_frame_equal(rows, before[kind])

    # Seed 42 is made again, 44 is new, and 43 has another specification.
    records.collect(folder, make_runs(folder, (42,), created="2027-01-01T00:00:00+00:00"))
    records.publish("books")
    records.collect(folder, make_runs(folder, (44,)) | make_runs(folder, (43,), hash="other"))
    message = records.publish("books")
    assert "runs: 1 added, 0 replaced, 1 refused" in message
    assert "  books/10M/nearest/full/43 stays: another specification" in message
    runs = records.load(shipped)["runs"].drop_duplicates("seed").set_index("seed")
    assert dict(runs["hash"]) == {42: "hash42", 43: "hash43", 44: "hash44"}
    assert dict(runs["created"])[42].startswith("2027") and runs["created"][43].startswith("2026")
    assert records.published_hashes("losses", "books") == {"hash42", "hash43", "hash44"}
    assert records.published_hashes("runs", "readings") == frozenset()
    assert "hash44" in records.published_hashes("runs", "books")

    # Maps are of the lowest seed of every variation.
    records.collect(folder, make_runs(folder, (45,), variation="gpt2"))
    records.publish("books")
    maps = records.load(shipped)["maps"]
    assert set(zip(maps["variation"], maps["seed"], strict=True)) == {("nearest", 42), ("gpt2", 45)}


@pytest.mark.parametrize("kind, column", [
    ("runs", "seed"), ("flow", "variation"), ("data", "vocabulary"), ("recall", "mixer"),
    ("steps", "benchmark"), ("steps", "scale"), ("complexity", "scale"), ("decode", "scale"),
])  # fmt: skip
def test_a_job_takes_the_place_of_no_other(kind: str, column: str) -> None:
    same = {"corpus": "c", "vocabulary": 1, "mixer": "mha", "benchmark": "fixed", "hash": "old"}
    other = {column: 2 if column in ("seed", "vocabulary") else "other", "hash": "new"}
    old, new = (pd.DataFrame(rows_of(kind, **same | more)) for more in ({}, other))
    rows, changes = records.merge(kind, old, new)
    assert len(rows) == 4 and list(map(len, changes.values())) == [1, 0, 0]


def test_publish_interrupted_and_repeated_loses_nothing(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, shipped = results / "books", results / "published" / "books"
    records.collect(folder, make_runs(folder, (42,)))
    records.publish("books")
    records.collect(folder, make_runs(folder, (43,)))
    real = records.write

    def failing(path: Path, kind: str, *rest: object) -> None:
        if kind == "losses":
            raise RunError("the disk is full")
        real(path, kind, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(records, "write", failing)
        with pytest.raises(RunError):
            records.publish("books")
    records.publish("books")
    frames = records.load(shipped)
    assert [len(frames[kind]) for kind in ("runs", "losses", "maps")] == [2, 4, 2]


def test_publish_refuses_what_is_no_pair(results: Path) -> None:
    folder = results / "books"
    records.write(results / "published/books/runs.parquet", "runs", pair().head(1))
    records.collect(folder, {})
    records.write(folder / "runs.parquet", "runs", pair(order_hash="x" * 64).tail(1))
    assert "different data" in refusal(lambda: records.publish("books"))
    assert len(records.load(results / "published" / "books")["runs"]) == 1


def test_one_publish_at_a_time(results: Path) -> None:
    with records.held(results / "books" / "work" / "publish.lock", "publish of books"):
        message = refusal(lambda: records.publish("books"), RunError)
    assert "publish of books is already running" in message


SHIPPED = sorted(records.PUBLISHED.glob("*/runs.parquet"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_shipped_rows_are_whole(path: Path) -> None:
    frames = records.load(path.parent)
    runs = frames["runs"]
    assert not runs.duplicated(records.RUN_KEY).any()
    assert [hash_of(json.loads(each)) for each in runs["specification"]] == list(runs["hash"])
    trained = runs.set_index(records.RUN_KEY)["hash"]
    for kind in ("losses", "probes"):
        of_run = frames[kind].drop_duplicates(records.RUN_KEY).set_index(records.RUN_KEY)["hash"]
        assert of_run.sort_index().equals(trained.sort_index())
    last = frames["losses"].groupby(records.RUN_KEY)["tokens"].max()
    assert (last == runs.set_index(records.RUN_KEY)["trained_tokens"].reindex(last.index)).all()


def test_the_repository_stays_below_24_mib() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=records.PROJECT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no clone")
    files = (records.PROJECT / name for name in listed.stdout.split("\0")[:-1])
    assert sum(each.stat().st_size for each in files if each.is_file()) < 24 * 2**20
