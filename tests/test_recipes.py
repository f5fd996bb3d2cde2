"""The corpus of books by its recipe: the published rows from any form of the repository, or none.

tests/books holds two books as they stand in the public repository, and parts of three.
"""

import errno
import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import refusal
from test_config import config

from relation.cli import main
from relation.data import recipes, sources
from relation.data.books import is_book, is_validation, place, rows_of
from relation.data.recipes import RECIPES, Recipe, make_corpus
from relation.errors import InputError, RelationError, RunError
from relation.pipeline.campaign import resolve
from relation.pipeline.preflight import check_corpus, make_chosen_corpus

BOOKS = Path(__file__).with_name("books")
# In the order of the published corpus: how many of its rows each has, and what they are.
PUBLISHED = {
    "Edgar Allan Poe/The Black Cat.md": (1, "5ea25efba9a6b9f3"),
    "H.P. Lovecraft/Pickman's Model.md": (1, "34ad8bb6caadb086"),
    "Voltaire/Candide.md": (7, "0845590bed6e8cc4"),
    "Edward Bulwer-Lytton/The Coming Race.md": (1, "9529890e35154d43"),
    "Henry De Vere Stacpoole/The Blue Lagoon.md": (1, "bc7f40d2b48cbc92"),
}
HELD_OUT = "A/111.md"  # its hash is divisible by 64
COMMIT = "5" * 40


def texts() -> dict[str, bytes]:
    """The sample's files by path, with a validation book and one that is no book."""
    files = {path: (BOOKS / path).read_bytes() for path in PUBLISHED}
    return files | {HELD_OUT: b"# Title\n" + b"A sentence. " * 40, "README.md": b"# Books\n" * 99}


def fingerprint_of(files: dict[str, bytes]) -> str:
    """SHA-256 of the rows by split, each behind its length, worked out beside the project's."""
    told = ""
    for split, held_out in (("train", False), ("validation", True)):
        digest = hashlib.sha256()
        for path in sorted(files, key=lambda path: hashlib.sha256(path.encode()).hexdigest()):
            if path != "README.md" and (path == HELD_OUT) is held_out:
                for row in rows_of(files[path].decode()):
                    digest.update(len(row.encode()).to_bytes(8, "little") + row.encode())
        told += f"{split}:{digest.hexdigest()};"
    return hashlib.sha256(told.encode()).hexdigest()


RECIPE = Recipe("books", "someone/books", COMMIT, len(PUBLISHED) + 1, fingerprint_of(texts()))


def as_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def as_tar(path: Path, files: dict[str, bytes], top: str = "books-5/", commit=COMMIT) -> Path:
    """As a forge offers it: a folder above all files, the commit in the global header."""
    with tarfile.open(path, "w:gz", pax_headers={"comment": commit}) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{top}{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def as_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = COMMIT.encode()
        for name, content in files.items():
            archive.writestr(f"books-5/{name}", content)
    return path


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and a cache of the test's own, without network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sources.corpus_fingerprint.cache_clear()

    def unreachable(url: str, timeout: float) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    return tmp_path


def refused(action: Callable[[], object], kind: type[RelationError] = InputError) -> str:
    """The one line that an action is refused with; it leaves nothing made behind."""
    message = refusal(action, kind)
    assert {path.name for path in Path("corpora").iterdir()} <= {"books.lock", RECIPE.archive.name}
    return message


@pytest.mark.parametrize("path", PUBLISHED)
def test_a_book_gives_the_published_rows(path: str) -> None:
    rows = rows_of((BOOKS / path).read_bytes().decode())
    digest = hashlib.sha256("\0".join(rows).encode()).hexdigest()[:16]
    assert (len(rows), digest) == PUBLISHED[path]


@pytest.mark.parametrize(
    "line, row",
    [
        ("a <b>bold</b> word", "a bold word"),
        ("a < b\nand c > d", "a < b\nand c > d"),
        ("so[12] it[^3] is[a]", "so it is[a]"),
        ("*one* __two__ ***three***, fo_u_r", "one two three, fo_u_r"),
        ("the ________ mine", "the __ mine"),
        ("two \t\u00a0 words  ", "two words"),
        ("a\r\n\r\n \r\n\r\nb", "a\n\nb"),
        ("####### seven\n###\u00a0no space", "####### seven\n### no space"),
    ],
)
def test_what_becomes_of_an_odd_line(line: str, row: str) -> None:
    rest = "word " * 80
    assert rows_of(f"{line}\n{rest}") == [f"{row}\n{rest.strip()}"]


def test_a_heading_begins_a_row_and_a_short_row_is_left_out() -> None:
    long, short = "x" * 398, "x" * 397
    markdown = f"# Title\n\n### A\n{long}\r\n###### B\n{short}\n# C\n{long}"
    assert rows_of(markdown) == [f"A\n{long}", f"C\n{long}"]


def test_order_and_split_follow_the_path() -> None:
    assert sorted(PUBLISHED, key=place) == list(PUBLISHED)
    assert [path for path in texts() if is_validation(path)] == [HELD_OUT]
    left_out = ["README.md", "Samuel Richardson/Clarissa.md", "Various/King James Bible.md"]
    assert not any(map(is_book, [*left_out, "LICENSE"])) and is_book("A/README.md")


@pytest.mark.parametrize("form", ["folder", "tar.gz", "bare tar.gz", "zip"])
def test_every_form_of_the_repository_gives_the_corpus(own_folder: Path, form: str) -> None:
    path, files = own_folder / "source", dict(reversed(texts().items()))
    made = {
        "folder": lambda: as_folder(path, files),
        "tar.gz": lambda: as_tar(path, files),
        "bare tar.gz": lambda: as_tar(path, files, top=""),
        "zip": lambda: as_zip(path, files),
    }[form]()
    folder = make_corpus(RECIPE, made)
    assert folder == Path("corpora/books")
    assert sorted(path.name for path in folder.iterdir()) == ["train.parquet", "validation.parquet"]
    sources.corpus_fingerprint.cache_clear()
    assert sources.corpus_fingerprint(str(folder)) == RECIPE.fingerprint
    titles = pq.read_table(folder / "train.parquet")["source"].to_pylist()
    assert [f"{title}.md" for title in dict.fromkeys(titles)] == list(PUBLISHED)
    assert make_corpus(RECIPE) == folder  # it is there: nothing is read or downloaded


def test_a_checkout_counts_at_its_commit_alone(own_folder: Path) -> None:
    checkout = as_folder(own_folder / "checkout", texts())
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "books"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    commit = head.stdout.strip()
    message = refused(lambda: make_corpus(RECIPE, checkout))
    assert commit in message and COMMIT in message
    make_corpus(replace(RECIPE, commit=commit), checkout)


SPOILT = {
    "damaged": (lambda content: content[:3000] + bytes(9) + content[3009:], "no whole checkout"),
    "truncated": (lambda content: content[:-4000], "no whole checkout"),
    "empty": (lambda content: b"", "no whole checkout"),
    "a web page": (lambda content: b"<html>Not found</html>", "no whole checkout"),
    "truncated tar": (lambda content: gzip.decompress(content)[:-90_000], "no whole checkout"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_archive_is_refused(own_folder: Path, case: str) -> None:
    spoil, told = SPOILT[case]
    path = as_tar(own_folder / "books.tar.gz", texts())
    path.write_bytes(spoil(path.read_bytes()))
    message = refused(lambda: make_corpus(RECIPE, path))
    assert str(path) in message and told in message


OTHERS = {
    "another commit": (texts(), "6" * 40, f"is of commit {'6' * 40}"),
    "a book less": ({**texts(), "Voltaire/Candide.md": None}, COMMIT, "holds 5 books"),
    "another repository": ({"a.md": b"", "b/c.py": b""}, COMMIT, "holds 1 books"),
    "another text": ({**texts(), HELD_OUT: b"other " * 99}, COMMIT, "another corpus than"),
    "another code page": ({**texts(), HELD_OUT: b"\xe9t\xe9 " * 99}, COMMIT, "is not UTF-8"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_archive_is_refused(own_folder: Path, case: str) -> None:
    files, commit, told = OTHERS[case]
    files = {name: content for name, content in files.items() if content is not None}
    path = as_tar(own_folder / "books.tar.gz", files, commit=commit)
    message = refused(lambda: make_corpus(RECIPE, path))
    assert told in message and ("commit " + COMMIT in message or RECIPE.url in message)


def test_without_network_the_line_says_what_to_put_where(own_folder: Path) -> None:
    message = refused(lambda: make_corpus(RECIPE), RunError)
    assert all(part in message for part in ("no route", RECIPE.url, str(RECIPE.archive)))
    as_tar(RECIPE.archive, texts())
    assert make_corpus(RECIPE).is_dir() and RECIPE.archive.exists()


def test_a_download_is_used_and_removed(own_folder: Path, monkeypatch) -> None:
    path, asked = as_tar(own_folder / "books.tar.gz", texts()), []

    def offered(url: str, timeout: float) -> io.BufferedReader:
        asked.append(url)
        return path.open("rb")

    monkeypatch.setattr(urllib.request, "urlopen", offered)
    make_corpus(RECIPE)
    assert asked == [f"https://github.com/someone/books/archive/{COMMIT}.tar.gz"]
    assert {path.name for path in Path("corpora").iterdir()} == {"books", "books.lock"}


def test_a_full_disk_leaves_nothing(own_folder: Path, monkeypatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = as_folder(own_folder / "source", texts())
    monkeypatch.setattr(recipes.pq.ParquetWriter, "write_table", full)
    message = refused(lambda: make_corpus(RECIPE, source), RunError)
    assert message.startswith("corpora/books cannot be made (No space left on device)")


def test_a_killed_attempt_is_swept_and_a_changed_corpus_refused(own_folder: Path) -> None:
    source = as_folder(own_folder / "source", texts())
    as_folder(Path("corpora/.books"), {"rows/train.parquet": b"half"})
    folder = make_corpus(RECIPE, source)
    assert {path.name for path in Path("corpora").iterdir()} == {"books", "books.lock"}
    (folder / "validation.parquet").unlink()
    sources.corpus_fingerprint.cache_clear()
    with pytest.raises(InputError, match=r"corpora/books gives another corpus .* delete it"):
        make_corpus(RECIPE, source)


def test_a_campaign_reads_the_corpus_by_name(own_folder: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(RECIPES, "books", RECIPE)
    by_name = resolve(config(), campaign="books", corpus="books")
    assert {spec.path for spec in by_name.data.values()} == {"corpora/books"}
    by_path = resolve(config(), campaign="books", corpus="./books")
    assert {spec.path for spec in by_path.data.values()} == {"./books"}
    check_corpus(by_name)  # it may yet be made
    as_tar(Path("source.tar.gz"), texts())
    assert main(["corpus", "books", "--source", "source.tar.gz"]) == 0
    assert capsys.readouterr().out == f"corpora/books  {RECIPE.fingerprint}\n"
    make_chosen_corpus(by_name)
    assert sources.corpus_fingerprint("corpora/books") == RECIPE.fingerprint
