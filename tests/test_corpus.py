"""What a local corpus is known by: its documents and their split, in whatever files they lie."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import refusal
from test_config import config
from test_data import BAD_FILES, DOCUMENTS, WRITERS, as_jsonl, as_parquet, as_txt

from relation.data import sources
from relation.data.splits import END_OF_TEXT
from relation.errors import InputError
from relation.pipeline.campaign import resolve
from relation.pipeline.preflight import check_corpus
from relation.store import files


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's file, in a user's cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "relation" / "corpora.json"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    return folder


@pytest.fixture
def whole(tmp_path: Path) -> str:
    """The fingerprint of DOCUMENTS in one .jsonl."""
    as_jsonl(tmp_path / "whole.jsonl", DOCUMENTS)
    return fingerprint(tmp_path / "whole.jsonl")


def fingerprint(path: Path) -> str | None:
    """As a new process finds it."""
    sources.corpus_fingerprint.cache_clear()
    return sources.corpus_fingerprint(str(path))


def refuse_to_read(path: Path) -> Iterator[str]:
    raise AssertionError(f"{path} is read")
    yield


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("shards", [1, 3])
def test_the_same_documents_are_the_same_corpus(corpus, whole, suffix, shards) -> None:
    size = len(DOCUMENTS) // shards
    for i in range(shards):
        WRITERS[suffix](corpus / f"part-{i}{suffix}", DOCUMENTS[i * size : (i + 1) * size])
    assert fingerprint(corpus) == whole


def test_the_layout_of_a_file_is_no_part_of_a_corpus(corpus: Path, whole: str) -> None:
    as_txt(corpus / "a.txt", [*DOCUMENTS[:20], ""])  # it ends with a line of end-of-text
    (corpus / "b").mkdir()
    as_jsonl(corpus / "b" / "other name.jsonl", DOCUMENTS[20:30])
    table = pa.table({"n": range(31), "text": pa.array([*DOCUMENTS[30:], None], pa.large_string())})
    pq.write_table(table, corpus / "c.parquet", row_group_size=7, compression="NONE")
    assert fingerprint(corpus) == whole


def test_the_fingerprint_is_of_framed_documents_by_split(corpus: Path) -> None:
    as_jsonl(corpus / "a.jsonl", ["ab", "猫"])
    as_txt(corpus / "validation.txt", ["c\n"])
    train = b"\2" + bytes(7) + b"ab" + b"\3" + bytes(7) + "猫".encode()
    told = "".join(
        f"{split}:{hashlib.sha256(documents).hexdigest()};"
        for split, documents in (("train", train), ("validation", b"\2" + bytes(7) + b"c\n"))
    )
    assert fingerprint(corpus) == hashlib.sha256(told.encode()).hexdigest()


@pytest.mark.parametrize(
    "layout",
    [
        {"a": ["a", "bc"], "b": ["d"]},
        {"a": ["ab", "cd"]},
        {"a": ["abcd"]},
        {"a": ["c", "ab"], "b": ["d"]},
        {"a": ["d"], "b": ["ab", "c"]},
        {"a": ["ab", "c", "d", "d"]},
        {"a": ["ab", "c", "D"]},
        {"a": ["ab", "c", "d "]},
        {"a": ["ab", "c"], "validation": ["d"]},
        {"a": ["c", "d"], "validation": ["ab"]},
        {"a": ["ab", "c", "d"], "validation": [""]},
    ],
    ids=str,
)
def test_other_documents_or_another_split_are_another_corpus(corpus, tmp_path, layout) -> None:
    for name, texts in layout.items():
        as_jsonl(corpus / f"{name}.jsonl", texts)
    as_jsonl(tmp_path / "base.jsonl", ["ab", "c", "d"])
    assert fingerprint(corpus) != fingerprint(tmp_path / "base.jsonl")


def test_no_corpus_has_no_fingerprint(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "missing") is sources.corpus_fingerprint(None) is None


def test_texts_are_read_once_for_the_same_bytes(corpus, monkeypatch) -> None:
    as_parquet(corpus / "a.parquet", DOCUMENTS)
    found = fingerprint(corpus)
    monkeypatch.setattr(sources, "read_texts", refuse_to_read)
    assert fingerprint(corpus) == found
    (corpus / "a.parquet").rename(corpus / "b.parquet")
    assert fingerprint(corpus) == found
    (corpus / "b.parquet").rename(corpus / "b.txt")
    with pytest.raises(AssertionError, match="is read"):
        fingerprint(corpus)


def test_a_changed_byte_is_noticed_although_size_and_time_stay(corpus: Path, whole: str) -> None:
    path = corpus / "a.jsonl"
    as_jsonl(path, DOCUMENTS)
    assert fingerprint(corpus) == whole
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"Story 7", b"Story 8"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert fingerprint(corpus) != whole


def test_another_code_reads_the_texts_anew(corpus, whole, cache, monkeypatch) -> None:
    monkeypatch.setattr(sources, "reader_hash", lambda: "other")
    as_jsonl(corpus / "whole.jsonl", DOCUMENTS)
    assert fingerprint(corpus) == whole
    assert list(json.loads(cache.read_bytes()).values()) == [whole, whole]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b'{"',
        b"[]",
        b"\xff",
        b"[" * 10**5,
        b'{"KEY": 3}',
        b'{"KEY": "short"}',
        b'{"KEY": null}',
    ],
    ids=lambda damage: repr(damage[:12]),
)
def test_a_damaged_cache_is_replaced(tmp_path, whole, cache, damage) -> None:
    good = cache.read_bytes()
    (key,) = json.loads(good)
    cache.write_bytes(damage.replace(b"KEY", key.encode()))
    assert fingerprint(tmp_path / "whole.jsonl") == whole
    assert cache.read_bytes() == good


@pytest.mark.parametrize("case", ["a file in its place", "no home"])
def test_without_a_cache_the_texts_are_read(tmp_path, whole, monkeypatch, case) -> None:
    if case == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")

        def no_home(cls: type[Path]) -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", classmethod(no_home))
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "whole.jsonl"))
    assert fingerprint(tmp_path / "whole.jsonl") == whole


def test_a_cache_keeps_the_newest() -> None:
    for i in range(70):
        files.remember("numbers", str(i), str(-i))
    assert files.recall("numbers", "5") is None
    files.remember("numbers", "6", "kept")
    files.remember("numbers", "70", "new")
    assert [files.recall("numbers", key) for key in ("6", "7", "8", "70")] == [
        "kept", None, "-8", "new"
    ]  # fmt: skip


@pytest.mark.parametrize("texts", [[], [""], [" \n", f"{END_OF_TEXT} {END_OF_TEXT}"]], ids=str)
def test_an_empty_corpus_is_called_empty(corpus: Path, cache: Path, texts: list[str]) -> None:
    as_jsonl(corpus / "a.jsonl", texts)
    as_jsonl(corpus / "validation.jsonl", DOCUMENTS)
    with pytest.raises(InputError, match=f"corpus {corpus} is empty"):
        fingerprint(corpus)
    assert not cache.exists()


def test_a_corpus_that_changes_while_it_is_read_is_refused(corpus, cache, monkeypatch) -> None:
    as_jsonl(corpus / "a.jsonl", DOCUMENTS)
    read = sources.read_texts

    def grow(path: Path) -> Iterator[str]:
        yield from read(path)
        as_jsonl(corpus / "b.jsonl", DOCUMENTS)

    monkeypatch.setattr(sources, "read_texts", grow)
    with pytest.raises(InputError, match="changed while it was read"):
        fingerprint(corpus)
    assert not cache.exists()


@pytest.mark.parametrize("case", ["system error", *BAD_FILES])
def test_a_bad_corpus_is_refused_before_a_job_starts(tmp_path, cache, case) -> None:
    folder = tmp_path / "corpus"
    if case == "system error":
        folder.mkdir()
        (folder / "a.txt").symlink_to("/proc/self/mem")  # a regular file; to read it fails
    elif BAD_FILES[case][0]:
        name, content, _ = BAD_FILES[case]
        folder.mkdir()
        (folder / name).write_bytes(content)
    campaign = resolve(config(), campaign="books", corpus=str(folder))
    assert str(folder) in refusal(lambda: check_corpus(campaign))
    assert not cache.exists()


def test_a_good_corpus_is_not_refused(corpus: Path) -> None:
    as_txt(corpus / "a.txt", [f"one {END_OF_TEXT}\n", "two\n"])
    check_corpus(resolve(config(), campaign="books", corpus=str(corpus)))
    check_corpus(resolve(config(), campaign="books"))
