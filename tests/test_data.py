"""Two sources behind one interface, each resumable; tokenizers of exactly the asked size."""

import hashlib
import json
import os
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import refusal

from relation.data.sources import open_streams
from relation.data.splits import END_OF_TEXT
from relation.data.tokenizer import load_tokenizer, train_tokenizer
from relation.errors import InputError

os.environ["HF_HUB_OFFLINE"] = "1"  # read when `datasets` is first imported: no test asks the hub

DOCUMENTS = [f"Story {i}: the fox met owl {i % 7}.\n\nThey ate {i * i} plums.\n" for i in range(60)]
FILES = {"kind": "files", "validation_modulus": 5}


def as_txt(path: Path, texts: list[str]) -> None:
    path.write_text(f"{END_OF_TEXT}\n".join(texts), encoding="utf-8")


def as_jsonl(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": t, "n": 1}) + "\n" for t in texts))


def as_parquet(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"text": texts, "source": ["here"] * len(texts)})
    pq.write_table(table, path, row_group_size=max(1, len(texts) // 3))


def hub_folder(folder: Path, train: list[str], validation: list[str]) -> dict:
    """A local data set of the hub's layout, as one stream of a `huggingface` source."""
    as_parquet(folder / "data" / "train-00000-of-00002.parquet", train[::2])
    as_parquet(folder / "data" / "train-00001-of-00002.parquet", train[1::2])
    as_parquet(folder / "data" / "validation-00000-of-00001.parquet", validation)
    return {"path": str(folder), "name": None, "revision": None}


def hub(*streams: dict, modulus: int | None = None) -> dict:
    return {"kind": "huggingface", "streams": list(streams), "validation_modulus": modulus}


def read(source: dict, split: str, path: Path | None = None) -> list[str]:
    return [t for s in open_streams(source, split, path and str(path)) for t in s]


WRITERS = {".txt": as_txt, ".jsonl": as_jsonl, ".parquet": as_parquet}


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_hash_splits_every_file_format_alike(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus{suffix}"
    WRITERS[suffix](path, DOCUMENTS)
    train, validation = (read(FILES, split, path) for split in ("train", "validation"))
    assert 0 < len(validation) < len(train)
    assert not set(train) & set(validation)
    assert sorted(train + validation) == sorted(DOCUMENTS)
    as_jsonl(tmp_path / "same.jsonl", DOCUMENTS)
    assert validation == read(FILES, "validation", tmp_path / "same.jsonl")


def test_the_held_out_documents_are_those_whose_hash_is_0(tmp_path: Path) -> None:
    as_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    hashes = [int(hashlib.sha256(text.encode()).hexdigest(), 16) for text in DOCUMENTS]
    expected = [text for text, number in zip(DOCUMENTS, hashes, strict=True) if number % 5 == 0]
    assert read(FILES, "validation", tmp_path) == expected


def test_a_validation_file_is_the_validation_split(tmp_path: Path) -> None:
    as_parquet(tmp_path / "validation.parquet", DOCUMENTS[:5])
    as_txt(tmp_path / "b.txt", DOCUMENTS[5:20])
    as_jsonl(tmp_path / "nested.jsonl", DOCUMENTS[20:])
    (tmp_path / "README.md").write_text("not a text of the corpus")
    assert read(FILES, "validation", tmp_path) == DOCUMENTS[:5]
    assert read(FILES, "train", tmp_path) == DOCUMENTS[5:]


def test_a_local_data_set_streams_like_the_hub(tmp_path: Path) -> None:
    stream = hub_folder(tmp_path / "set", DOCUMENTS[6:], DOCUMENTS[:6])
    assert sorted(read(hub(stream), "train")) == sorted(DOCUMENTS[6:])
    assert read(hub(stream), "validation") == DOCUMENTS[:6]
    held_out = read(hub(stream, modulus=5), "validation")
    assert sorted(held_out + read(hub(stream, modulus=5), "train")) == sorted(DOCUMENTS[6:])
    assert 0 < len(held_out) < 30


@pytest.mark.parametrize("kind", ["files", "hub", "hub-modulus"])
@pytest.mark.parametrize("read_before", [0, 1, 17, 39, 40])
def test_every_stream_goes_on_at_its_cursor(tmp_path: Path, kind: str, read_before: int) -> None:
    texts = DOCUMENTS[:40]
    as_parquet(tmp_path / "files" / "a.parquet", texts)
    as_txt(tmp_path / "files" / "validation.txt", DOCUMENTS[40:])
    stream = hub_folder(tmp_path / "set", texts, DOCUMENTS[40:])
    source = {"files": FILES, "hub": hub(stream)}.get(kind, hub(stream, modulus=1000))
    whole = read(source, "train", tmp_path / "files")
    (first,) = open_streams(source, "train", str(tmp_path / "files"))
    head = list(islice(first, read_before))
    (second,) = open_streams(source, "train", str(tmp_path / "files"))
    second.seek(json.loads(json.dumps(first.cursor())))
    assert head + list(second) == whole


BAD_FILES = {
    "no such folder": (None, b"", "does not exist"),
    "no texts": ("notes.md", b"text", "holds no"),
    "only validation": ("validation.txt", b"text", "holds"),
    "no JSON": ("a.jsonl", b'{"text": "fine"}\n{"text": \n', "line 2 is no JSON object"),
    "no text key": ("a.jsonl", b'{"body": "text"}\n', "line 1 is no JSON object"),
    "text is no string": ("a.jsonl", b'{"text": 3}\n', "line 1 is no JSON object"),
    "brackets": ("a.jsonl", b"[" * 100_000, "line 1 is no JSON object"),
    "digits": ("a.jsonl", b'{"text": ' + b"9" * 100_000 + b"}", "line 1 is no JSON object"),
    "half a surrogate pair": ("a.jsonl", b'{"text": "a \\ud800 b"}\n', "surrogate"),
    "truncated Parquet": ("a.parquet", b"PAR1" + bytes(40), "not readable Parquet"),
    "noise": ("a.parquet", b"PAR1" + bytes(range(256)) * 9 + b"PAR1", "not readable Parquet"),
    "not UTF-8": ("a.txt", b"caf\xe9 \xff\xfe", "is not UTF-8 at byte 3"),
    "UTF-16": ("a.txt", "Once upon a time".encode("utf-16"), "is not UTF-8 at byte 0"),
    "JSON not UTF-8": ("a.jsonl", b'{"text": "caf\xe9"}\n', "is not UTF-8"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_one_clear_line(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "corpus"
    name, content, said = BAD_FILES[case]
    if name:
        folder.mkdir()
        (folder / name).write_bytes(content)
    message = refusal(lambda: read(FILES, "train", folder))
    assert said in message and str(folder) in message


@pytest.mark.parametrize(
    "columns, said",
    [
        ({"body": ["a"]}, "no column"),
        ({"text": [1, 2]}, "hold strings"),
        ({"text": [["a"], ["b"]]}, "hold strings"),
        ({"text": pa.array([b"caf\xe9 \xff"] * 9).view(pa.string())}, "not UTF-8 at byte 3"),
    ],
    ids=["none", "numbers", "lists", "not UTF-8"],
)
def test_parquet_without_a_text_column_is_refused(tmp_path, columns: dict, said: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf"a\.parquet .*{said}"):
        read(FILES, "train", tmp_path)


def test_a_corpus_of_files_must_be_named() -> None:
    with pytest.raises(InputError, match="corpus="):
        open_streams(FILES, "train", None)


def test_a_data_set_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    absent = hub({"path": str(tmp_path / "absent")})
    assert "absent" in refusal(lambda: read(absent, "train"))
    stream = hub_folder(tmp_path / "set", DOCUMENTS, DOCUMENTS)
    with pytest.raises(InputError, match="'body'"):
        read(hub({**stream, "column": "body"}), "train")


@pytest.mark.parametrize("size", [257, 301, 400])
def test_a_tokenizer_has_exactly_the_asked_size(tmp_path: Path, size: int) -> None:
    tokenizer = train_tokenizer(DOCUMENTS, size, "corpus")
    assert tokenizer.get_vocab_size() == size
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    assert tokenizer.to_str() == train_tokenizer(DOCUMENTS, size, "corpus").to_str()
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    for text in (DOCUMENTS[7], " leading\t\r\n\n tabs  ", "Ünïcode 猫 🦊 \u202e\x00", "don't I'll"):
        ids = loaded.encode(text).ids
        assert loaded.decode(ids, skip_special_tokens=False) == text
        assert loaded.token_to_id(END_OF_TEXT) not in ids


def test_a_vocabulary_that_cannot_be_filled_is_refused() -> None:
    with pytest.raises(InputError, match=r"corpus: .* \d+ of 5000 vocabulary"):
        train_tokenizer(DOCUMENTS, 5000, "corpus")


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_a_missing_or_damaged_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    assert "tokenizer.json" in refusal(lambda: load_tokenizer(tmp_path / "tokenizer.json"))
