"""Cut whole books from the corpus public-domain-books: python tools/sample.py CORPUS TARGET.

CORPUS holds its Parquet files; TARGET gets train.parquet and validation.parquet, a chapter a row.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

ORIGIN = "github.com/mlschmitt/classic-books-markdown at 944882722e9a96fa6cf2739dc2ea757e101f412f"
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

corpus, target = map(Path, sys.argv[1:])
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
        rows += [{"text": text, **facts} for text in found["text"].to_pylist()]
    path = target / f"{split}.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd", compression_level=19)
