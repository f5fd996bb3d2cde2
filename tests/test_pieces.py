"""Short documents out of long ones: what is cut where, in which order, and after the split."""

import random
from itertools import islice
from pathlib import Path

import pytest
from test_data import DOCUMENTS, FILES, as_jsonl, as_txt, read

from relation.data.pieces import cut, shuffled_pieces
from relation.data.sources import is_held_out, open_streams
from relation.data.splits import END_OF_TEXT

SHORT = FILES | {"document_characters": 24}


@pytest.mark.parametrize(
    "text, characters, pieces",
    [
        ("One. Two. Three.", 16, ["One. Two. Three."]),
        ("One. Two. Three.", 15, ["One. Two.", "Three."]),
        ("One. Two. Three.", 9, ["One. Two.", "Three."]),
        ("One. Two. Three.", 8, ["One.", "Two.", "Three."]),
        ("“Go!” he said. (Why?) No.", 13, ["“Go!”", "he said.", "(Why?) No."]),
        ("It is 3.14 or so, more or less", 12, ["It is 3.14", "or so, more", "or less"]),
        ("Oh.\n\nanother long sentence", 12, ["Oh.", "another long", "sentence"]),
        ("abcdefgh ij", 3, ["abc", "def", "gh", "ij"]),
        ("  猫 and\u00a0owl \n", 5, ["猫 and", "owl"]),
        ("a b", 1, ["a", "b"]),
        (" \n\t", 4, []),
        ("", 4, []),
    ],
)
def test_pieces_end_with_a_sentence_else_a_word(text, characters, pieces) -> None:
    assert list(cut(text, characters)) == pieces


def test_only_space_is_lost_and_no_piece_is_too_long() -> None:
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices("abé猫.!?\"' \n\t\u2003”", k=draw.randrange(200)))
        characters = draw.randrange(1, 40)
        pieces = list(cut(text, characters))
        assert "".join("".join(pieces).split()) == "".join(text.split())
        assert all(piece == piece.strip() and 0 < len(piece) <= characters for piece in pieces)
        # As few as they can be where nothing but length ends them.
        assert len(list(cut("x" * len(text), characters))) == -(-len(text) // characters)


def test_a_text_without_an_end_is_cut_in_time_of_its_length() -> None:
    for text in (".“" * 200_000, "“" * 400_000, ". " * 200_000):
        assert max(map(len, cut(text, 100_000))) <= 100_000


def test_the_order_is_fixed_shuffled_and_of_the_number_of_pieces_alone() -> None:
    pieces = list(shuffled_pieces(iter(["a b c d e f", "g h"]), 1))
    assert pieces == list("dcbgahef")
    assert list(shuffled_pieces(iter(["s t", "u v w x y z"]), 1)) == [
        "stuvwxyz"["abcdefgh".index(piece)] for piece in pieces
    ]
    assert list(shuffled_pieces(iter([]), 1)) == []


def test_end_of_text_ends_a_piece_and_is_never_cut() -> None:
    text = f"one two{END_OF_TEXT}three {END_OF_TEXT}{END_OF_TEXT}"
    assert sorted(shuffled_pieces(iter([text]), 9)) == ["one two", "three"]


def test_whole_documents_are_split_and_then_cut(tmp_path: Path) -> None:
    as_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    for split in ("train", "validation"):
        kept = [text for text in DOCUMENTS if is_held_out(text, 5) == (split == "validation")]
        expected = [piece for text in kept for piece in cut(text, 24)]
        pieces = read(SHORT, split, tmp_path)
        assert len(expected) > 2 * len(kept) > 0
        assert pieces != expected and sorted(pieces) == sorted(expected)


def test_files_that_hold_validation_are_cut_too(tmp_path: Path) -> None:
    as_txt(tmp_path / "validation.txt", DOCUMENTS[:5])
    as_txt(tmp_path / "train.txt", DOCUMENTS[5:])
    for split, texts in (("validation", DOCUMENTS[:5]), ("train", DOCUMENTS[5:])):
        assert read(SHORT, split, tmp_path) == list(shuffled_pieces(iter(texts), 24))


@pytest.mark.parametrize("read_before", [0, 1, 100])
def test_a_stream_of_pieces_goes_on_at_its_cursor(tmp_path: Path, read_before: int) -> None:
    as_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    (first,) = open_streams(SHORT, "train", str(tmp_path))
    head = list(islice(first, read_before))
    (second,) = open_streams(SHORT, "train", str(tmp_path))
    second.seek(first.cursor())
    assert head + list(second) == read(SHORT, "train", tmp_path)
