"""The recipes of `books` and `library`, on two books of the repository and on crafted texts.

The hashes are those of the published rows of these books.
"""

import hashlib
import random
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import make_corpus as recipe

BOOKS = {
    "Edgar Allan Poe/The Black Cat": "5ea25efba9a6b9f3",
    "H.P. Lovecraft/Pickman's Model": "34ad8bb6caadb086",
}


@pytest.mark.parametrize("book", BOOKS)
def test_the_rows_of_a_book_are_the_published_ones(book: str) -> None:
    path = ROOT / "tests" / "data" / "books" / f"{book}.md"
    (text,) = recipe.book_rows(path.read_text(encoding="utf-8"))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == BOOKS[book]


def test_one_book_in_64_validates_and_none_of_those_left_out_is_read() -> None:
    text = b"# One\n" + b"word " * 100
    names = [f"A/{i}.md" for i in range(300)] + ["README.md"]
    splits = recipe.books_of(dict.fromkeys(names, text))
    sources = {split: [source for _, source in rows] for split, rows in splits.items()}
    assert 1 <= len(sources["validation"]) <= 15 and len(sources["train"]) > 280
    assert not {"README"} & {*sources["train"], *sources["validation"]}


SENTENCE = "and it was the first of them that he had not seen in all his days with her, "
PARAGRAPH = "\n".join([SENTENCE.strip()] * 9) + "\nso that was it.\n\n"
PRODUCED = "Produced by two volunteers\n\n"
TEXT = (
    "The Project Gutenberg EBook\n\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\n\n"
    + PRODUCED
    + "\n\nCHAPTER I\n\n\n"
    + PARAGRAPH * 9
    + "\n\nCHAPTER II\n\n\n[Illustration: a fox]\n\n"
    + PARAGRAPH * 9
    + "End of the Project Gutenberg EBook\n\nlicence\n"
)


def test_a_gutenberg_text_loses_all_that_is_not_the_book_and_its_line_ends() -> None:
    text = recipe.plain_text(TEXT.encode(), wants_header=True)
    sections, size = recipe.sections_of(text)
    assert [section.split("\n\n")[0] for section in sections] == ["CHAPTER I", "CHAPTER II"]
    assert all("Produced" not in s and "fox" not in s and "licence" not in s for s in sections)
    joined = " ".join([SENTENCE.strip()] * 9) + " so that was it."
    assert sections[0].split("\n\n")[1:] == [joined] * 9 and size == 18 * len(joined)


@pytest.mark.parametrize(
    "change",
    [("START OF", "BEGIN OF"), ("CHAPTER I\n", "Copyright 1950\n"), ("two", "\ufffd" * 4)],
)
def test_texts_without_a_header_or_free_of_no_right_are_left_out(change) -> None:
    assert recipe.plain_text(TEXT.replace(*change).encode(), wants_header=True) is None


def test_what_the_books_hold_is_not_repeated() -> None:
    vocabulary = [f"{a}{b}{c}" for a in "abcdefg" for b in "aeiou" for c in "lmnrst"]
    function = sorted(recipe.FUNCTION)
    draw = random.Random(0)

    def prose(words: int) -> str:
        pairs = [f"{draw.choice(vocabulary)} {draw.choice(function)}" for _ in range(words // 2)]
        return " ".join(pairs) + "."

    old, held_out, new = prose(3000), prose(3000), prose(3000)
    known = [(" ".join(vocabulary) + ".", "A/b")] * 5
    repeats = recipe.Repeats({"train": [*known, (old, "A/c")], "validation": [(held_out, "A/d")]})
    assert repeats.kept([new], len(new)) == [new], "it is prose that nobody has"
    assert repeats.kept([new], len(new)) == repeats.kept([old], len(old)) == []
    other = prose(3000)
    run = " ".join(held_out.split()[40:53])
    assert repeats.kept([f"{run} {other}"], len(other)) == [], "13 words of validation"
    assert repeats.names_validation("X___The Dog.txt") is False
    assert repeats.names_validation("Gutenberg/txt/X___D.txt") is True
