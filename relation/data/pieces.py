"""Cutting long documents into short ones, and shuffling them."""

import re
from collections.abc import Iterator

import numpy as np

from relation.data.splits import END_OF_TEXT

# Both are greedy, so they find the last end inside the window.
_TO_SENTENCE_END = re.compile(r""".*[.!?]["'”’»)\]]*(?=\s)""", re.DOTALL)
_TO_WORD_END = re.compile(r".*\S(?=\s)", re.DOTALL)
_SPACE = re.compile(r"\s*")


def cut(text: str, characters: int) -> Iterator[str]:
    """The text in consecutive pieces of at most `characters` characters, without space around them.

    A piece ends where the text does, else with the last sentence that fits, else with the last
    word, else in the middle of one. Space between pieces is all that is lost.
    """
    start, stop = _SPACE.match(text).end(), len(text.rstrip())
    while start < stop:
        end = start + characters
        if end < stop:
            # One character more than a piece may have: the space behind its last.
            window = text, start, end + 1
            found = _TO_SENTENCE_END.match(*window) or _TO_WORD_END.match(*window)
            end = found.end() if found else end
        yield text[start : min(end, stop)]
        start = _SPACE.match(text, end).end()


def shuffled_pieces(documents: Iterator[str], characters: int) -> Iterator[str]:
    """The pieces of all documents in a pseudo-random order that depends on their number alone.

    In order, a piece would continue its neighbour's text; shuffled, neighbours are as unrelated as
    the stories of TinyStories. A document that spells end-of-text ends there. Memory holds all
    pieces at once, as UTF-8 with some 40 bytes more for each.
    """
    pieces = [
        piece.encode()
        for document in documents
        for part in document.split(END_OF_TEXT)
        for piece in cut(part, characters)
    ]
    # NumPy guarantees a bit generator's raw words in every version, and no permutation.
    keys = np.random.PCG64(np.random.SeedSequence(0)).random_raw(len(pieces))
    for place in np.argsort(keys, kind="stable"):
        yield pieces[place].decode()
