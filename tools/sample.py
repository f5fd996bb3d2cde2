"""Cut whole books from the corpus `books`: python -m tools.sample [CORPUS [TARGET]].

CORPUS holds its Parquet files, a chapter a row (default: corpora/books, which `python -m relation
corpus books` makes); TARGET gets train.parquet and validation.parquet (default: the shipped
sample's folder). Prints the SHA-256 of the sample's texts.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from relation.data.recipes import BOOKS as RECIPE
from relation.data.sources import corpus_fingerprint

ORIGIN = f"github.com/{RECIPE.repository} at {RECIPE.commit}"
# Author and title: year of publication, year of the author's death.
BOOKS = {
    "train": {
        "L. Frank Baum/The Wonderful Wizard of Oz": (1900, 1919),
        "Lewis Carroll/Alice's Adventures in Wonderland": (1865, 1898),
        "H.G. Wells/The Time Machine": (1895, 1946),
        "Jack London/The Call of the Wild": (1903, 1916),
        "Rudyard Kipling/The Jungle Book": (1894, 1936),
    },
    "validation": {"Oscar Wilde/The Happy Prince & Other Tales": (1888, 1900)},
}

given = [Path(argument) for argument in sys.argv[1:]]
shipped = Path(__file__).parents[1] / "relation" / "data" / "sample"
corpus, target = [*given, *[RECIPE.folder, shipped][len(given) :]]
chapters = ds.dataset(sorted(corpus.glob("*.parquet")))
for split, books in BOOKS.items():
    rows = []
    for book, (published, died) in books.items():
        facts = {
            "source": f"{ORIGIN}: {book}.md",
            "title": book,
            "status": f"public domain: published in {published}, the author died in {died}",
        }
        found = chapters.to_table(["text"], filter=ds.field("source") == book)
        if not len(found):
            sys.exit(f"error: {corpus} does not hold {book}; python -m relation corpus books")
        rows += [{"text": text, **facts} for text in found["text"].to_pylist()]
    path = target / f"{split}.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd", compression_level=19)
print(f"{target}  {corpus_fingerprint(str(target))}")
