"""Short documents of real text: pieces of the shipped sample."""

from itertools import islice
from pathlib import Path

from relation.data.pieces import cut
from relation.data.texts import read_texts

SAMPLE = Path(__file__).parents[1] / "relation" / "data" / "sample"


def documents(count: int) -> list[str]:
    """The first `count` documents of at most 1,300 characters each."""
    pieces = (piece for text in read_texts(SAMPLE / "train.parquet") for piece in cut(text, 1300))
    return list(islice(pieces, count))
