"""The shipped sample of books, and the campaigns that read it unless other texts are given."""

import pyarrow.parquet as pq
import pytest
from sample import SAMPLE
from test_config import SAMPLE as CORPUS
from test_config import changed, config

from relation.data.sources import open_streams, text_files
from relation.pipeline.campaign import resolve


def test_every_document_has_its_source_and_status_and_the_splits_share_no_book() -> None:
    files = sorted(SAMPLE.iterdir())
    assert sum(path.stat().st_size for path in files) < 1 << 20
    titles = []
    for path in files:
        table = pq.read_table(path).to_pydict()
        assert all(map(str.strip, table["text"]))
        assert all(source.endswith(".md") for source in table["source"])
        assert all(status.startswith("public domain: ") for status in table["status"])
        titles.append(set(table["title"]))
    train, validation = titles
    assert train and validation and not train & validation


@pytest.mark.parametrize("name", ["smoke", "tiny"])
def test_the_sample_is_read_unless_other_texts_are_given(name: str) -> None:
    for spec in resolve(config(), campaign=name).data.values():
        assert text_files(spec.path) == {
            split: [SAMPLE / f"{split}.parquet"] for split in ("train", "validation")
        }
        (stream,) = open_streams(spec.source, "validation", spec.path)
        assert next(iter(stream)).startswith("The Happy Prince.")
    own = resolve(config(), campaign=name, corpus="mine").data.values()
    assert {(spec.path, spec.title) for spec in own} == {("mine", "Local texts")}


def test_where_shipped_texts_lie_changes_no_hash() -> None:
    moved = changed((f"{CORPUS}.path", "elsewhere"))
    for before, after in zip(
        resolve(config(), campaign="smoke").data.values(),
        resolve(moved, campaign="smoke").data.values(),
        strict=True,
    ):
        assert (before.config_hash, before.job_hash) == (after.config_hash, after.job_hash)
