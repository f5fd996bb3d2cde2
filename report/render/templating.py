"""What the pages and the document share: Jinja, formulas in running text, rows by key."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
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
    for place, piece in enumerate(re.split(r"\b([A-Za-z]_(?:[a-z]{1,2}|I|O|down))\b", text)):
        yield (f"{piece[0]}_{{{piece[2:]}}}", True) if place % 2 else (piece, False)


def capital(text: str) -> str:
    """A sentence from a text that may begin with a small letter."""
    return text[:1].upper() + text[1:]


def yaml(value: Any) -> str:
    """A value of config.yaml as it stands there: null, false, true; a range with its two ends."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return " to ".join(map(yaml, value))
    return json.dumps(value, ensure_ascii=False)


def grouped(rows: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Rows by key, both in the order in which they come."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
