"""The books that are shipped: the sample's sources, and rows of the recipe of `books`.

What tools/make_corpus.py makes it refuses itself, unless it has the fingerprint of the shipped
runs' corpora; here are two books that need no download, with the hashes of their published rows.
"""

import hashlib
import sys

import pandas as pd
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import make_corpus as recipe


@pytest.mark.parametrize(
    ("book", "published"),
    [
        ("Edgar Allan Poe/The Black Cat", "5ea25efba9a6b9f3"),
        ("H.P. Lovecraft/Pickman's Model", "34ad8bb6caadb086"),
    ],
)
def test_the_rows_of_a_book_are_the_published_ones(book: str, published: str) -> None:
    path = ROOT / "tests" / "data" / "books" / f"{book}.md"
    (text,) = recipe.book_rows(path.read_text(encoding="utf-8"))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == published


def test_every_book_of_the_shipped_sample_has_its_source_and_status() -> None:
    splits = [pd.read_parquet(p) for p in sorted((ROOT / "relation/data/sample").iterdir())]
    for split in splits:
        assert split["text"].str.strip().all() and split["source"].str.endswith(".md").all()
        assert split["status"].str.startswith("public domain: ").all()
    assert not set(splits[0]["title"]) & set(splits[1]["title"])
