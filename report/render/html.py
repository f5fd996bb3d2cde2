"""Plain Unicode text as HTML."""

import re

from markupsafe import Markup, escape

from report.render.templating import symbol_pieces

_TOKEN = re.compile(
    r"\^(?P<power>[−-]?[0-9.]+)|_(?:\{(?P<group>[^}]*)\}|(?P<index>\w))|(?P<name>[A-Za-zĨλℓ]+)|(?P<sign>.)"
)


def formula(text: str) -> Markup:
    """A formula such as ``O(T^2 d)`` or ``Σ_{j<i} F_{ij}`` with real sub- and superscripts."""
    return Markup("").join(_token(match) for match in _TOKEN.finditer(text))


def _token(match: re.Match[str]) -> Markup:
    if match["power"] is not None:
        return Markup("<sup>{}</sup>").format(match["power"])
    if match["group"] is not None or match["index"] is not None:
        return Markup("<sub>{}</sub>").format(formula(match["group"] or match["index"]))
    if match["name"] is not None:
        return Markup("<i>{}</i>").format(match["name"])
    return escape(match["sign"])


def rich(text: str) -> Markup:
    """Running text with formulas between dollar signs."""
    pieces = text.split("$")
    return Markup("").join(formula(p) if i % 2 else escape(p) for i, p in enumerate(pieces))


def symbols(text: str) -> Markup:
    """Running text in which a variable with its index, such as F_ii, is a formula."""
    return Markup("").join(formula(p) if symbol else escape(p) for p, symbol in symbol_pieces(text))


def briefly(reason: str) -> str:
    """Why records are older, each reason once and without the hashes, which the Parquet keeps."""
    plain = re.sub(r": [0-9a-f]{16}, now [0-9a-f]{16}", "", reason)
    return "; ".join(dict.fromkeys(plain.split("; ")))


def header(text: str) -> Markup:
    """A column heading; its lines stack."""
    return Markup("<br>").join(rich(line) for line in text.split("\n"))
