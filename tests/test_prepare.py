"""Preparation: the same bytes however often it was killed, exact limits, equal shares of tokens."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import refusal
from test_data import DOCUMENTS, FILES, as_jsonl, as_txt, hub, hub_folder

from relation.data import encode
from relation.data import prepare as preparation
from relation.data.prepare import prepare, unigram_entropy
from relation.data.sources import open_streams
from relation.data.splits import END_OF_TEXT
from relation.data.tokenizer import end_of_text_id, load_tokenizer
from relation.data.tokens import open_tokens
from relation.errors import InputError
from relation.spec import DataSpec
from relation.store.files import sha256_of
from relation.store.layouts import DATA
from relation.store.parquet import read_origin, read_parquet

# A journal is written every 4,096 documents: the second one falls on the end of the split.
TRAIN, HELD_OUT = 8192, 40
MANY = [f"{i} owls met fox {i % 7}" for i in range(TRAIN + HELD_OUT)]


def data_spec(source: dict, path: Path | None = None, **changes) -> DataSpec:
    values = {
        "corpus": "c", "title": "C", "vocabulary": 300, "source": source, "train_tokens": None,
        "validation_tokens": None, "tokenizer_characters": 9000, "largest_context": 32,
        "path": path and str(path),
    }  # fmt: skip
    return DataSpec(**(values | changes))


def prepared(spec: DataSpec, folder: Path) -> dict[str, bytes]:
    """Prepare a corpus; the bytes of what a run reads, by file name."""
    prepare(spec, folder / "out", folder / "work", "test")
    assert not (folder / "work").exists()
    names = ("tokenizer.json", "train.bin", "validation.bin")
    return {name: (folder / "out" / name).read_bytes() for name in names}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder for texts, apart from what preparation writes."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    return folder


def decoded(folder: Path, split: str) -> list[str]:
    """The documents of a prepared split; it must end with end-of-text."""
    tokenizer = load_tokenizer(folder / "out" / "tokenizer.json")
    ids = open_tokens(folder / "out" / f"{split}.bin").tolist()
    *documents, rest = tokenizer.decode(ids, skip_special_tokens=False).split(END_OF_TEXT)
    assert rest == ""
    return documents


class KilledError(Exception):
    """The process ends here."""


class Mortal:
    """A stream that ends the process when all streams together gave `left[0]` documents."""

    def __init__(self, stream, left: list[int]):
        self.stream, self.left = stream, left
        self.cursor, self.seek = stream.cursor, stream.seek

    def __iter__(self) -> Iterator[str]:
        for text in self.stream:
            if self.left[0] == 0:
                raise KilledError
            self.left[0] -= 1
            yield text


def read_by(
    monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], limit: int = 10**6
) -> int:
    """How many documents an action reads; it is killed where it wants more than `limit`."""
    left = [limit]
    with monkeypatch.context() as patch:
        for module in (preparation, encode):
            patch.setattr(
                module, "open_streams", lambda *a: [Mortal(s, left) for s in open_streams(*a)]
            )
        action()
    return limit - left[0]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fingerprints stay out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module", params=["files", "pieces", "hub"])
def long_corpus(request, tmp_path_factory) -> DataSpec:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "hub":
        return data_spec(hub(hub_folder(folder, MANY[:TRAIN], MANY[TRAIN:])))
    as_jsonl(folder / "a.jsonl", MANY)
    source = {**FILES, "validation_modulus": 50}
    if request.param == "pieces":
        source["document_characters"] = 14
    return data_spec(source, folder, train_tokens=60_001)


@pytest.fixture(scope="module")
def uninterrupted(long_corpus, tmp_path_factory) -> dict[str, bytes]:
    return prepared(long_corpus, tmp_path_factory.mktemp("whole"))


# In the tokenizer's sample, before the first journal, after it, and in the validation split.
@pytest.mark.parametrize("share", [0.01, 0.2, 0.7, 0.999])
def test_a_killed_preparation_goes_on_to_the_same_bytes(
    tmp_path, monkeypatch, long_corpus, uninterrupted, share
) -> None:
    def run() -> None:
        assert prepared(long_corpus, tmp_path) == uninterrupted

    whole = read_by(monkeypatch, lambda: prepared(long_corpus, tmp_path / "counted"))
    with pytest.raises(KilledError):
        read_by(monkeypatch, run, int(share * whole))
    assert read_by(monkeypatch, run) <= (whole if share < 0.5 else 0.6 * whole)


def test_a_partial_file_that_lost_its_end_is_not_filled_up(
    tmp_path, monkeypatch, long_corpus, uninterrupted
) -> None:
    """After a crash of the machine a file may be shorter than its journal says."""
    with pytest.raises(KilledError):
        read_by(monkeypatch, lambda: prepared(long_corpus, tmp_path), 6000)
    partial = tmp_path / "work" / "train.bin"
    partial.write_bytes(partial.read_bytes()[:1000])
    assert prepared(long_corpus, tmp_path) == uninterrupted


def test_a_preparation_killed_at_its_record_can_be_repeated(
    tmp_path, monkeypatch, long_corpus, uninterrupted
) -> None:
    def killed(*arguments) -> None:
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(preparation, "write_parquet", killed)
        prepared(long_corpus, tmp_path)
    assert not (tmp_path / "out" / "data.parquet").exists()
    assert prepared(long_corpus, tmp_path) == uninterrupted


def test_another_configuration_starts_from_the_beginning(
    tmp_path, monkeypatch, long_corpus
) -> None:
    with pytest.raises(KilledError):
        read_by(monkeypatch, lambda: prepared(long_corpus, tmp_path), 6000)
    other = data_spec(long_corpus.source, long_corpus.path, vocabulary=320)
    assert prepared(other, tmp_path) == prepared(other, tmp_path / "fresh")


def test_the_record_describes_the_files(tmp_path: Path, corpus: Path) -> None:
    as_txt(corpus / "train.txt", [*DOCUMENTS[8:], " \n"])
    as_jsonl(corpus / "validation.jsonl", DOCUMENTS[:8])
    spec = data_spec(FILES, corpus)
    prepared(spec, tmp_path)
    assert decoded(tmp_path, "train") == DOCUMENTS[8:]
    assert decoded(tmp_path, "validation") == DOCUMENTS[:8]
    record = tmp_path / "out" / "data.parquet"
    rows = {row.pop("split"): row for row in read_parquet(record, DATA).to_pylist()}
    for split, texts in (("train", DOCUMENTS[8:]), ("validation", DOCUMENTS[:8])):
        path = tmp_path / "out" / f"{split}.bin"
        tokens = np.frombuffer(path.read_bytes(), "<u2")
        assert rows[split] == {
            "tokens": len(tokens),
            "documents": len(texts),
            "characters": sum(map(len, texts)),
            "unigram_entropy": unigram_entropy(tokens),
            "sha256": sha256_of(path),
        }
    origin = read_origin(record)
    assert (origin["campaign"], origin["config_hash"]) == ("test", spec.config_hash)
    assert (origin["vocabulary"], origin["source"]) == (300, FILES)


@pytest.mark.parametrize("train_tokens, validation_tokens", [(500, 100), (501, None), (None, 37)])
def test_limits_are_exact_and_cut_nothing_else(
    tmp_path, corpus, train_tokens, validation_tokens
) -> None:
    as_jsonl(corpus / "texts.jsonl", DOCUMENTS)
    whole = prepared(data_spec(FILES, corpus), tmp_path / "whole")
    limits = {"train_tokens": train_tokens, "validation_tokens": validation_tokens}
    cut = prepared(data_spec(FILES, corpus, **limits), tmp_path)
    for split, limit in (("train.bin", train_tokens), ("validation.bin", validation_tokens)):
        assert cut[split] == (whole[split][: 2 * limit] if limit else whole[split])
    assert cut["tokenizer.json"] == whole["tokenizer.json"]


def test_the_record_counts_only_documents_that_the_limit_left(tmp_path: Path, corpus: Path) -> None:
    as_jsonl(corpus / "texts.jsonl", DOCUMENTS)
    prepared(data_spec(FILES, corpus, train_tokens=500), tmp_path)
    end = end_of_text_id(tmp_path / "out")
    tokens = open_tokens(tmp_path / "out" / "train.bin").tolist()
    row = read_parquet(tmp_path / "out" / "data.parquet", DATA).to_pylist()[0]
    assert (row["split"], row["tokens"]) == ("train", 500)
    assert row["documents"] == tokens.count(end) + (tokens[-1] != end)


def test_a_document_that_spells_end_of_text_ends_there(tmp_path: Path, corpus: Path) -> None:
    odd = [f"before{END_OF_TEXT}after {END_OF_TEXT}", f"{END_OF_TEXT}{END_OF_TEXT}", "last"]
    as_jsonl(corpus / "train.jsonl", [*DOCUMENTS, *odd])
    as_jsonl(corpus / "validation.jsonl", DOCUMENTS)
    prepared(data_spec(FILES, corpus), tmp_path)
    assert decoded(tmp_path, "train") == [*DOCUMENTS, "before", "after ", "last"]


def test_two_streams_are_mixed_half_and_half_by_tokens(tmp_path: Path) -> None:
    short = [f"fox {i}" for i in range(9000)]
    long = [f"owl {i} " + "saw the moon rise over the hill " * 3 for i in range(3000)]
    streams = [
        hub_folder(tmp_path / name, texts, texts[:50])
        for name, texts in (("short", short), ("long", long))
    ]
    limit = 80_000
    prepared(data_spec(hub(*streams), train_tokens=limit), tmp_path)
    tokenizer = load_tokenizer(tmp_path / "out" / "tokenizer.json")
    shares = {"fox": 0, "owl": 0}
    text = tokenizer.decode(open_tokens(tmp_path / "out" / "train.bin"), skip_special_tokens=False)
    batch = 0
    for document in text.split(END_OF_TEXT):
        tokens = len(tokenizer.encode(document).ids) + 1
        shares[document[:3]] += tokens
        batch = max(batch, 256 * tokens)
    assert abs(sum(shares.values()) - limit) <= 1
    assert abs(shares["fox"] - shares["owl"]) <= batch


def test_unigram_entropy_of_known_counts() -> None:
    """The first token is never predicted, so it does not count."""
    assert unigram_entropy(np.array([9, 0, 0, 1, 1])) == pytest.approx(math.log(2), rel=1e-15)
    assert unigram_entropy(np.array([0, 3, 3, 3])) == 0
    quarter = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert unigram_entropy(np.array([1, 5, 7, 7, 7])) == pytest.approx(quarter, rel=1e-15)


@pytest.mark.parametrize(
    "texts, changes, said",
    [
        ([""], {}, "is empty"),
        (DOCUMENTS, {"vocabulary": 5000}, "vocabulary"),
        (DOCUMENTS, {"largest_context": 10**5}, "window"),
        (DOCUMENTS, {"source": {**FILES, "validation_modulus": 10**9}}, "validation split"),
    ],
    ids=["empty", "vocabulary", "window", "no validation"],
)
def test_a_corpus_too_small_is_one_clear_line(tmp_path, corpus, texts, changes, said) -> None:
    as_txt(corpus / "a.txt", texts)
    spec = data_spec(**({"source": FILES, "path": corpus} | changes))
    assert said in refusal(lambda: prepared(spec, tmp_path))
    assert not (tmp_path / "out").exists()


def test_missing_and_empty_token_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.bin").touch()
    for name in ("empty.bin", "absent.bin"):
        with pytest.raises(InputError, match=name):
            open_tokens(tmp_path / name)
