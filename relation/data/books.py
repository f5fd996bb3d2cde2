"""The rows of the public-domain books, from the Markdown files of their repository.

A row is one chapter or section. Every record trained on them rests on these very characters, so
what a step does to an odd line is part of the recipe.
"""

import hashlib
import re

SUFFIX = ".md"
_LEFT_OUT = {"README.md", "Samuel Richardson/Clarissa.md", "Various/King James Bible.md"}
_HELD_OUT = 64  # one book in so many is validation
_SHORTEST = 400  # characters of a section that is kept

_HEADING = re.compile(r"#{1,6} (.*)")
_TAG = re.compile(r"<[^>\n]*>")
_FOOTNOTE = re.compile(r"\[\^?\d+\]")
# An underscore is a word character, so a long run loses its ends alone.
_EMPHASIS = re.compile(r"(?<!\w)[*_]{1,3}|[*_]{1,3}(?!\w)")
_SPACES = re.compile("[ \t\u00a0]+")
_BREAKS = re.compile(r"\n{3,}")


def is_book(path: str) -> bool:
    """Whether a file of the repository, by its path there, is one of the books."""
    return path.endswith(SUFFIX) and path not in _LEFT_OUT


def place(path: str) -> int:
    """A book's place among the books: they are in the order of this hash of their path."""
    return int.from_bytes(hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest(), "big")


def is_validation(path: str) -> bool:
    """Whether a book belongs to validation, by its path."""
    return place(path) % _HELD_OUT == 0


def _sections(markdown: str) -> list[str]:
    """The text from one heading to the next, the heading's words as its first line."""
    sections: list[list[str]] = [[]]
    for line in markdown.replace("\r\n", "\n").split("\n"):
        heading = _HEADING.match(line)
        if heading:
            sections.append([heading[1]])
        else:
            sections[-1].append(line)
    return ["\n".join(lines) for lines in sections]


def _plain(section: str) -> str:
    """A section without its Markdown."""
    for pattern, replacement in (
        (_TAG, ""),
        (_FOOTNOTE, ""),
        (_EMPHASIS, ""),
        (_SPACES, " "),
    ):
        section = pattern.sub(replacement, section)
    section = "\n".join(line.strip() for line in section.split("\n"))
    return _BREAKS.sub("\n\n", section).strip()


def rows_of(markdown: str) -> list[str]:
    """The rows of one book: its sections as plain text, without those below 400 characters."""
    return [text for text in map(_plain, _sections(markdown)) if len(text) >= _SHORTEST]
