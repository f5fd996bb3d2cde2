"""What the pages and the document share of Jinja."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2

TEMPLATES = Path(__file__).parents[1] / "templates"


def environment(**options: Any) -> jinja2.Environment:
    """The project's templates; an unknown name is an error, and a tag leaves no line behind."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


def symbol_pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Running text in pieces, each with whether it is a variable with its index: F_ii as F_{ii}."""
    for place, piece in enumerate(re.split(r"\b([A-Za-z]_(?:[a-z]{1,2}|O|down))\b", text)):
        yield (f"{piece[0]}_{{{piece[2:]}}}", True) if place % 2 else (piece, False)
