"""Corpora: equal documents from any files, exact limits, one line for bad texts."""

import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, refusal

from relation.data import corpus
from relation.data.tokenizer import END_OF_TEXT, end_of_text_id, load_tokenizer, train_tokenizer
from relation.data.windows import data_rows, open_tokens, sha256_of
from relation.errors import RunError
from relation.jobs import Data

os.environ["HF_HUB_OFFLINE"] = "1"  # read when `datasets` is first imported; no test uses the hub

DOCUMENTS = [f"Story {i}: the fox met owl {i % 7}.\n\nThey ate {i * i} plums.\n" for i in range(60)]


def as_txt(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{END_OF_TEXT}\n".join(texts), encoding="utf-8")


def as_pandas(path: Path, documents: list[str]) -> None:
    pd.DataFrame({"text": documents}).to_parquet(path)


def as_parquet(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"text": texts, "source": ["here"] * len(texts)})
    pq.write_table(table, path, row_group_size=max(1, len(texts) // 3))


def data_of(path: Path | None, **changes) -> Data:
    given = {"campaign": "tests", "corpus": "c", "title": "C", "path": path and str(path)}
    given |= {"source": None, "fingerprint": None, "vocabulary": 300, "largest_context": 32}
    given |= {"tokenizer_characters": 9000, "validation_modulus": 5}
    return Data(**given | changes)


def hub(folder: Path, train: list[str], validation: list[str]) -> dict:
    """A local data set in the hub's layout, as one stream of a source."""
    as_parquet(folder / "data" / "train-00000-of-00002.parquet", train[::2])
    as_parquet(folder / "data" / "train-00001-of-00002.parquet", train[1::2])
    as_parquet(folder / "data" / "validation-00000-of-00001.parquet", validation)
    return {"path": str(folder)}


def read(data: Data, split: str) -> list[str]:
    return [text for stream in corpus.document_streams(data, split) for text in stream]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder for texts, separate from the output of preparation."""
    folder = tmp_path / "texts"
    folder.mkdir()
    return folder


def fingerprint_of(path: Path) -> str:
    """The fingerprint without the cache, as in a new process."""
    corpus.fingerprint.cache_clear()
    return corpus.fingerprint(str(path))


def test_held_out_documents_are_those_whose_hash_is_0(texts: Path) -> None:
    as_txt(texts / "a.txt", DOCUMENTS[:30])
    as_parquet(texts / "b.parquet", DOCUMENTS[30:])
    held_out = [t for t in DOCUMENTS if int(hashlib.sha256(t.encode()).hexdigest(), 16) % 5 == 0]
    assert read(data_of(texts), "validation") == held_out
    assert read(data_of(texts), "train") == [t for t in DOCUMENTS if t not in held_out]
    assert 0 < len(held_out) < 30
    as_txt(texts / "a.txt", [f"{text}{i}\n" for i in range(20) for text in DOCUMENTS])
    fiftieth = read(data_of(texts, validation_modulus=None), "validation")
    assert fiftieth == read(data_of(texts, validation_modulus=50), "validation") != []


def test_files_and_folders_named_validation_are_the_validation_split(texts: Path) -> None:
    as_txt(texts / "validation" / "a.txt", DOCUMENTS[:2])
    as_parquet(texts / "validation.parquet", DOCUMENTS[2:5])
    as_txt(texts / ".ipynb_checkpoints" / "b-checkpoint.txt", DOCUMENTS[5:20])
    as_txt(texts / "b.txt", DOCUMENTS[5:20])
    as_parquet(texts / "nested" / "c.parquet", DOCUMENTS[20:])
    (texts / "README.md").write_text("not a text of the corpus")
    assert read(data_of(texts), "validation") == DOCUMENTS[:5]
    assert read(data_of(texts), "train") == DOCUMENTS[5:]


@pytest.mark.parametrize(
    "documents", [["x" * 95 + "y" * 15], ["one\n", "two " * 40 + "\n", "three\n"]]
)
def test_the_last_tenth_of_one_text_file_validates(texts: Path, documents) -> None:
    as_txt(texts / "story.txt", documents)
    data = data_of(texts / "story.txt", validation_modulus=None)
    train, validation = (read(data, split) for split in ("train", "validation"))
    size = sum(map(len, documents))
    assert sum(map(len, validation)) == size // 10
    assert "".join(train + validation) == "".join(documents)


def test_a_text_longer_than_memory_takes_becomes_several_documents(texts, monkeypatch) -> None:
    monkeypatch.setattr(corpus, "_LONGEST", 20)
    as_txt(texts / "a.txt", ["123456\n" * 3 + "x" * 45 + "\n", "b\n"])
    pieces = list(corpus.read_texts(texts / "a.txt"))
    assert "".join(pieces) == "123456\n" * 3 + "x" * 45 + "\nb\n" and max(map(len, pieces)) <= 20
    assert pieces[-1] == "b\n"
    as_parquet(texts / "b.parquet", ["x" * 45, "b"])
    assert [*map(len, corpus.read_texts(texts / "b.parquet"))] == [20, 20, 5, 1]


def test_a_local_data_set_streams_like_the_hub(tmp_path: Path) -> None:
    source = {"streams": [hub(tmp_path / "set", DOCUMENTS[6:], DOCUMENTS[:6])]}
    own = data_of(None, source=source, validation_modulus=None)
    assert sorted(read(own, "train")) == sorted(DOCUMENTS[6:])
    assert read(own, "validation") == DOCUMENTS[:6]
    by_hash = data_of(None, source=source)
    held_out = read(by_hash, "validation")
    assert sorted(held_out + read(by_hash, "train")) == sorted(DOCUMENTS[6:])
    assert 0 < len(held_out) < 30


# Of DOCUMENTS and "c\n" for validation. Shipped records identify texts by fingerprints.
PINNED = "73580ab920ee7f33f4d633cd6dfc531999bc43d897adc7ad75fced6c27e276d5"


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    "write, suffix", [(as_txt, ".txt"), (as_parquet, ".parquet"), (as_pandas, ".parquet")]
)
def test_the_fingerprint_is_that_of_the_texts_by_split(texts, write, suffix, shards) -> None:
    size = len(DOCUMENTS) // shards
    for i in range(shards):
        write(texts / f"part-{i}{suffix}", DOCUMENTS[i * size : (i + 1) * size])
    as_txt(texts / "validation.txt", ["c\n"])
    assert fingerprint_of(texts) == PINNED
    (texts / "validation.txt").rename(texts / "z.txt")
    assert fingerprint_of(texts) != PINNED


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("notes.md", b"text", "holds no .txt or .parquet files"),
        ("validation.txt", b"text", "holds only"),
        ("a.parquet", b"PAR1" + bytes(40), "cannot be read"),
        ("a.txt", b"caf\xe9 \xff\xfe", "is not UTF-8 (invalid"),
        ("a.txt", f"\n{END_OF_TEXT}\n \n".encode(), "is empty"),
    ],
)
def test_bad_texts_are_one_clear_line(texts: Path, name: str, content: bytes, message: str) -> None:
    (texts / name).write_bytes(content)
    assert message in refusal(lambda: fingerprint_of(texts))
    refusal(lambda: corpus.check_texts(data_of(texts)))


def test_data_that_hold_no_texts_are_refused(tmp_path: Path, texts: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), texts / "a.parquet")
    message = refusal(lambda: fingerprint_of(texts))
    assert "a.parquet has no column `text` of strings, only text (int64)" in message
    absent = data_of(None, source={"streams": [{"path": str(tmp_path / "absent")}]})
    assert "absent" in refusal(lambda: read(absent, "train"), RunError)
    stream = hub(tmp_path / "set", DOCUMENTS, DOCUMENTS) | {"column": "body"}
    wrong = data_of(None, source={"streams": [stream]})
    assert "'body'" in refusal(lambda: read(wrong, "train"), RunError)
    stream = hub(tmp_path / "nulls", [*DOCUMENTS, None], DOCUMENTS)
    wrong = data_of(None, source={"streams": [stream]})
    assert "no text but None" in refusal(lambda: read(wrong, "train"), RunError)


def test_a_download_that_breaks_off_is_told(monkeypatch) -> None:
    def rows(path: str, name: str, *, revision: str, **_) -> Iterator[dict]:
        assert (path, name, revision) == ("owner/name", "part", "1a2b")
        yield {"text": "one"}
        raise ConnectionError("reset\nby peer")

    monkeypatch.setattr("datasets.load_dataset", rows)
    stream = {"path": "owner/name", "name": "part", "revision": "1a2b"}
    data = data_of(None, source={"streams": [stream]}, validation_modulus=None)
    message = refusal(lambda: read(data, "train"), RunError)
    assert "owner/name (part, train) cannot be read (ConnectionError: reset); correct" in message


@pytest.mark.parametrize(
    "text, characters, pieces",
    [
        ("One. Two. Three.", 16, ["One. Two. Three."]),
        ("One. Two. Three.", 9, ["One. Two.", "Three."]),
        ("“Go!” he said. (Why?) No.", 13, ["“Go!”", "he said.", "(Why?) No."]),
        ("It is 3.14 or so, more or less", 12, ["It is 3.14", "or so, more", "or less"]),
        ("abcdefgh ij", 3, ["abc", "def", "gh", "ij"]),
        ("  猫 and\u00a0owl \n", 5, ["猫 and", "owl"]),
        (" \n\t", 4, []),
    ],
)
def test_pieces_end_with_a_sentence_else_a_word(text, characters, pieces) -> None:
    assert list(corpus.cut(text, characters)) == pieces


def test_whole_documents_are_split_and_then_cut_and_shuffled(texts: Path) -> None:
    as_parquet(texts / "a.parquet", DOCUMENTS)
    short = data_of(texts, document_characters=24)
    for split in ("train", "validation"):
        held = split == "validation"
        kept = [text for text in DOCUMENTS if corpus.is_held_out(text, 5) == held]
        expected = [piece for text in kept for piece in corpus.cut(text, 24)]
        pieces = read(short, split)
        assert len(expected) > 2 * len(kept) > 0
        assert pieces != expected and sorted(pieces) == sorted(expected)
    as_parquet(texts / "a.parquet", ["a b c d e f", "g h"])
    as_parquet(texts / "validation.parquet", ["x"])
    assert read(data_of(texts, document_characters=1), "train") == list("dcbgahef")


@pytest.mark.parametrize("size", [257, 301, 400])
def test_a_tokenizer_has_exactly_the_asked_size(tmp_path: Path, size: int) -> None:
    tokenizer = train_tokenizer(DOCUMENTS, size, "corpus")
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    assert tokenizer.to_str() == train_tokenizer(DOCUMENTS, size, "corpus").to_str()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    for text in (DOCUMENTS[7], " leading\t\r\n\n tabs  ", "Ünïcode 猫 🦊 \u202e\x00", "don't I'll"):
        ids = loaded.encode(text).ids
        assert loaded.decode(ids, skip_special_tokens=False) == text
        assert loaded.token_to_id(END_OF_TEXT) not in ids


def test_every_book_of_the_shipped_sample_has_its_source_and_status() -> None:
    splits = [pd.read_parquet(p) for p in sorted((ROOT / "relation/data/sample").iterdir())]
    for split in splits:
        assert split["text"].str.strip().all() and split["source"].str.endswith(".md").all()
        assert split["status"].str.startswith("public domain: ").all()
    assert not set(splits[0]["title"]) & set(splits[1]["title"])


def prepared(data: Data, folder: Path) -> dict[str, bytes]:
    """Prepare a corpus and return the bytes of the files that a run reads, by name."""
    corpus.prepare(data, folder / "out")
    names = {"tokenizer.json", "train.bin", "validation.bin"}
    assert {p.name for p in (folder / "out").iterdir()} == names | {"data.parquet"}
    return {name: (folder / "out" / name).read_bytes() for name in names}


def decoded(folder: Path, split: str) -> list[str]:
    """The documents of a prepared split; the limit may have cut the last one."""
    tokenizer = load_tokenizer(folder / "out" / "tokenizer.json")
    ids = open_tokens(folder / "out", split).tolist()
    return tokenizer.decode(ids, skip_special_tokens=False).split(END_OF_TEXT)


def test_the_record_describes_the_files(tmp_path: Path, texts: Path) -> None:
    as_txt(texts / "train.txt", [*DOCUMENTS[8:], " \n"])
    as_parquet(texts / "validation.parquet", DOCUMENTS[:8])
    fingerprint = fingerprint_of(texts)
    data = data_of(texts, fingerprint=fingerprint)
    corpus.check_texts(data)
    first = prepared(data, tmp_path)
    for split, documents in (("train", DOCUMENTS[8:]), ("validation", DOCUMENTS[:8])):
        assert decoded(tmp_path, split) == [*documents, ""]
        tokens = np.fromfile(tmp_path / "out" / f"{split}.bin", "<u2")
        expected = {"campaign": "tests", "corpus": "c", "vocabulary": 300, "hash": data.hash}
        expected |= {"tokens": len(tokens), "documents": len(documents), "fingerprint": fingerprint}
        expected |= {"characters": sum(map(len, documents))}
        expected |= {"unigram_entropy": corpus.unigram_entropy(tokens)}
        expected |= {"sha256": sha256_of(tmp_path / "out" / f"{split}.bin")}
        row = data_rows(tmp_path / "out")[split]
        assert {name: row[name] for name in expected} == expected
    # A killed preparation leaves this state.
    (tmp_path / "out" / "data.parquet").unlink()
    (tmp_path / "out" / "train.bin").write_bytes(b"half")
    assert prepared(data, tmp_path) == first


@pytest.mark.parametrize("train_tokens, validation_tokens", [(500, 100), (501, None), (None, 37)])
def test_limits_are_exact_and_cut_nothing_else(
    tmp_path, texts, train_tokens, validation_tokens
) -> None:
    as_parquet(texts / "texts.parquet", DOCUMENTS)
    whole = prepared(data_of(texts), tmp_path / "whole")
    limits = {"train_tokens": train_tokens, "validation_tokens": validation_tokens}
    short = prepared(data_of(texts, **limits), tmp_path)
    for split, limit in (("train", train_tokens), ("validation", validation_tokens)):
        name = f"{split}.bin"
        assert short[name] == (whole[name][: 2 * limit] if limit else whole[name])
        documents = [text for text in decoded(tmp_path, split) if text]
        row = data_rows(tmp_path / "out")[split]
        assert row["documents"] == len(documents)
        assert row["characters"] == sum(map(len, documents))
    assert short["tokenizer.json"] == whole["tokenizer.json"]
    few = prepared(data_of(texts, tokenizer_characters=1500), tmp_path / "few")
    assert few["tokenizer.json"] != whole["tokenizer.json"]


def test_a_document_that_spells_end_of_text_ends_there(tmp_path: Path, texts: Path) -> None:
    odd = [f"before{END_OF_TEXT}after {END_OF_TEXT}", f"{END_OF_TEXT}{END_OF_TEXT}", "last"]
    as_parquet(texts / "train.parquet", [*DOCUMENTS, *odd])
    as_parquet(texts / "validation.parquet", DOCUMENTS)
    prepared(data_of(texts), tmp_path)
    assert decoded(tmp_path, "train") == [*DOCUMENTS, "before", "after ", "last", ""]
    assert end_of_text_id(tmp_path / "out") in open_tokens(tmp_path / "out", "train")


def test_two_streams_are_mixed_half_and_half_by_tokens(tmp_path: Path) -> None:
    short = [f"fox {i}" for i in range(9000)]
    long = [f"owl {i} " + "saw the moon rise over the hill " * 3 for i in range(3000)]
    named = (("short", short), ("long", long))
    sets = [hub(tmp_path / name, documents, documents[:50]) for name, documents in named]
    limit = 80_000
    changes = {"validation_modulus": None, "train_tokens": limit}
    prepared(data_of(None, source={"streams": sets}, **changes), tmp_path)
    tokenizer = load_tokenizer(tmp_path / "out" / "tokenizer.json")
    shares, batch = {"fox": 0, "owl": 0}, 0
    for document in decoded(tmp_path, "train"):
        tokens = len(tokenizer.encode(document).ids) + 1
        shares[document[:3]] += tokens
        batch = max(batch, 256 * tokens)
    assert abs(sum(shares.values()) - limit) <= 1
    assert abs(shares["fox"] - shares["owl"]) <= batch


def test_unigram_entropy_of_known_counts(monkeypatch) -> None:
    """The first token does not count, because no model predicts it. Tokens are read in parts."""
    monkeypatch.setattr(corpus, "_TOKENS_AT_A_TIME", 3)
    for tokens, entropy in (([9, 0, 0, 1, 1], math.log(2)), ([0, 3, 3, 3], 0)):
        assert corpus.unigram_entropy(np.array(tokens)) == pytest.approx(entropy, rel=1e-15)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"largest_context": 10**5}, "fewer than the 100,001"),
        ({"diagnosed_tokens": 10**5}, "fewer than the 100,000"),
        ({"validation_tokens": 20}, "validation_tokens is 20, fewer than the 33 that its longest"),
        ({"validation_modulus": 10**9}, "the validation split holds 0 tokens"),
        ({"vocabulary": 5000}, "vocabulary"),
        ({"fingerprint": "another"}, "has fingerprint"),
    ],
)
def test_a_corpus_that_will_not_do_is_one_clear_line(tmp_path, texts, changes, message) -> None:
    as_txt(texts / "a.txt", DOCUMENTS)
    data = data_of(texts, **changes)
    record = tmp_path / "out" / "data.parquet"  # of earlier files, which preparation replaces
    record.parent.mkdir()
    record.touch()
    assert message in refusal(lambda: corpus.prepare(data, tmp_path / "out"))
    assert record.exists() == ("fingerprint" in changes)  # refused before a file is touched
    if not changes.keys() & {"vocabulary", "fingerprint"}:  # known before the texts are read
        refusal(lambda: corpus.check_texts(data))
