"""The shipped sample of books."""

import pandas as pd
from conftest import ROOT


def test_every_book_of_the_shipped_sample_has_its_source_and_status() -> None:
    splits = [pd.read_parquet(p) for p in sorted((ROOT / "relation/data/sample").iterdir())]
    for split in splits:
        assert split["text"].str.strip().all() and split["source"].str.endswith(".md").all()
        assert split["status"].str.startswith("public domain: ").all()
    assert not set(splits[0]["title"]) & set(splits[1]["title"])
