"""The shipped sample: short documents of it, and campaigns that do not have it at hand."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

from relation.data.pieces import cut
from relation.data.texts import read_texts
from relation.pipeline.campaign import Campaign

SAMPLE = Path(__file__).parents[1] / "relation" / "data" / "sample"


def documents(count: int) -> list[str]:
    """The first `count` documents of at most 1,300 characters each."""
    pieces = (piece for text in read_texts(SAMPLE / "train.parquet") for piece in cut(text, 1300))
    return list(islice(pieces, count))


def without_texts(campaign: Campaign) -> Campaign:
    """The campaign where no texts are at hand, so that records of any texts count."""
    data = {name: replace(spec, path=None) for name, spec in campaign.data.items()}
    return replace(campaign, data=data)
