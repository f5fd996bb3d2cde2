"""Corpora that are made by a recipe from a public repository at one commit.

`corpus=NAME` reads what lies at corpora/NAME, and it is made there where it is missing: from an
archive in corpora/, else from one that is downloaded. What was made counts only with the hash that
the published records hold.
"""

import http.client
import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from relation.data import books
from relation.data.archives import commit_of, repository_files
from relation.data.sources import corpus_fingerprint
from relation.errors import InputError, RunError
from relation.store.locks import held

CORPORA = Path("corpora")
_ROWS_AT_A_TIME = 1024
_SECONDS_OF_SILENCE = 60  # of a download
_LAYOUT = pa.schema([("text", pa.string()), ("source", pa.string())])


@dataclass(frozen=True)
class Recipe:
    """A corpus made of a public repository.

    repository: owner and name; commit: its 40 hexadecimal digits; books: how many it has;
    fingerprint: SHA-256 of the corpus, as `corpus_fingerprint` gives it.
    """

    key: str
    repository: str
    commit: str
    books: int
    fingerprint: str

    @property
    def url(self) -> str:
        """Where the repository's host offers an archive of the commit."""
        return f"https://github.com/{self.repository}/archive/{self.commit}.tar.gz"

    @property
    def archive(self) -> Path:
        """Where such an archive is looked for before one is downloaded."""
        return CORPORA / f"{self.repository.rpartition('/')[2]}-{self.commit}.tar.gz"

    @property
    def folder(self) -> Path:
        """Where the corpus lies."""
        return CORPORA / self.key


BOOKS = Recipe(
    "books",
    repository="mlschmitt/classic-books-markdown",
    commit="944882722e9a96fa6cf2739dc2ea757e101f412f",
    books=754,
    fingerprint="f912d9ff442f84a9255df0bfc0ffcd38401dde0b0238a7a445b3d563a0333c74",
)
RECIPES = {recipe.key: recipe for recipe in (BOOKS,)}


def texts_path(corpus: str | None) -> str | None:
    """The path of the texts that corpus=NAME or corpus=PATH chooses; None for None."""
    return str(RECIPES[corpus].folder) if corpus in RECIPES else corpus


def make_corpus(recipe: Recipe, source: Path | None = None) -> Path:
    """The folder of the recipe's corpus, made unless it is there.

    source: a checkout or an archive of the repository; if None, `recipe.archive`, else a download.
    Raises InputError for a source that is damaged or another, and for a corpus that is not the
    records'; RunError where the download or the disk fails, or another process makes it. What could
    not be made whole is removed.
    """
    with _disk(recipe), held(CORPORA / f"{recipe.key}.lock", f"corpus {recipe.key}"):
        if recipe.folder.exists():
            _check(recipe, recipe.folder, "delete it and run the same command again")
            return recipe.folder
        scratch = CORPORA / f".{recipe.key}"
        shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
        try:
            scratch.mkdir()
            if source is None and recipe.archive.exists():
                source = recipe.archive
            if source is None:
                source = _download(recipe, scratch / recipe.archive.name)
            print(f"making {recipe.folder} from {source}", file=sys.stderr)
            made = scratch / "rows"
            _write(recipe, _books_in(recipe, source), made)
            again = f"give a checkout or an archive of commit {recipe.commit}, without changes"
            _check(recipe, made, again, source)
            made.rename(recipe.folder)
            corpus_fingerprint.cache_clear()  # this process may know the folder as missing
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return recipe.folder


@contextmanager
def _disk(recipe: Recipe) -> Iterator[None]:
    """Tells a failure of the disk under CORPORA in one line."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
        raise RunError(
            f"{recipe.folder} cannot be made ({reason}); mend that and run the same command again"
        ) from None


def _download(recipe: Recipe, target: Path) -> Path:
    print(f"downloading {recipe.url}", file=sys.stderr)
    try:
        with urllib.request.urlopen(recipe.url, timeout=_SECONDS_OF_SILENCE) as answer:
            content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        raise RunError(
            f"{recipe.url} cannot be downloaded ({reason.partition(chr(10))[0]}); download it "
            f"elsewhere, or pack a checkout of that commit, put it at {recipe.archive} and run the "
            "same command again"
        ) from None
    target.write_bytes(content)
    return target


def _books_in(recipe: Recipe, source: Path) -> dict[str, bytes]:
    """The repository's books by path, in their order. Raises InputError unless they are all."""
    if not source.exists():
        raise InputError(f"{source} does not exist; give a checkout or an archive of {recipe.url}")
    commit = commit_of(source)
    if commit not in (None, recipe.commit):
        raise InputError(
            f"{source} is of commit {commit}, and the corpus of {recipe.commit}; check that one "
            f"out, or download {recipe.url}"
        )
    found = {
        path: content
        for path, content in repository_files(source, books.SUFFIX)
        if books.is_book(path)
    }
    if len(found) != recipe.books:
        raise InputError(
            f"{source} holds {len(found)} books, and {recipe.repository} {recipe.books}; download "
            f"{recipe.url}"
        )
    return {path: found[path] for path in sorted(found, key=books.place)}


def _write(recipe: Recipe, found: dict[str, bytes], folder: Path) -> None:
    """Write both splits as Parquet, a chapter a row, and flush them to the disk."""
    folder.mkdir()
    for split, held_out in (("train", False), ("validation", True)):
        path = folder / f"{split}.parquet"
        chosen = {book: found[book] for book in found if books.is_validation(book) is held_out}
        with pq.ParquetWriter(path, _LAYOUT, compression="zstd") as file:
            for rows in _batches(recipe, chosen):
                file.write_table(pa.Table.from_pylist(rows, schema=_LAYOUT))
        with path.open("rb") as written:
            os.fsync(written.fileno())


def _batches(recipe: Recipe, chosen: dict[str, bytes]) -> Iterator[list[dict]]:
    rows: list[dict] = []
    for path, content in chosen.items():
        try:
            texts = books.rows_of(content.decode())
        except UnicodeDecodeError:
            raise InputError(f"{path} is not UTF-8; download {recipe.url} again") from None
        source = path.removesuffix(books.SUFFIX)
        rows += [{"text": text, "source": source} for text in texts]
        if len(rows) >= _ROWS_AT_A_TIME:
            yield rows
            rows = []
    if rows:
        yield rows


def _check(recipe: Recipe, folder: Path, remedy: str, source: Path | None = None) -> None:
    """Raise InputError unless a folder holds the corpus that the records were made from."""
    found = corpus_fingerprint(str(folder))
    if found != recipe.fingerprint:
        raise InputError(
            f"{source or folder} gives another corpus than the records' (SHA-256 {found}, theirs "
            f"{recipe.fingerprint}); {remedy}"
        )
