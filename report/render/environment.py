"""The HTML templates' surroundings: escaping, filters, and the words and signs of a verdict."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote

import jinja2

from report.render import html, templating
from report.render.behind import anchor
from report.render.printed import Entry, entry_text
from report.values import style
from report.values.numbers import DASH, MINUS, counted

LINE_NAMES = {"paper": "paper", "campaign": "this campaign", "difference": "difference"}

# A verdict's sign and its class of colour: of a cell, of a claim, and of a checklist's answer.
SIGNS = {
    "same": ("=", "open"),
    "within": ("✓", "agrees"),
    "outside": ("✗", "differs"),
    "not judged": ("·", "open"),
    "reproduced": ("✓", "agrees"),
    "direction only": ("≈", "partly"),
    "not reproduced": ("✗", "differs"),
    "not tested": ("–", "open"),
}


def html_environment() -> jinja2.Environment:
    """Every value is escaped on its way out, and an unknown name is an error."""
    environment = templating.environment(autoescape=True)
    environment.filters |= {
        "rich": html.rich,
        "symbols": html.symbols,
        "header": html.header,
        "entry": _entry,
        "path": quote,
        "capital": lambda text: text[:1].upper() + text[1:],
        "figure": figure,
        "counted": counted,
        "duration": duration,
    }
    environment.globals |= {
        "signs": SIGNS,
        "line_names": LINE_NAMES,
        "style": style,
        "anchors": anchor,
        "figure": figure,
    }
    return environment


def figure(value: float | None, signed: bool = False) -> str:
    """A number to four significant digits; a dash where there is none."""
    if value is None or value != value:
        return DASH
    if not value:
        return "0"
    size = abs(value)
    if 1e-7 < size < 1e-3:
        text = f"{size:.{3 - math.floor(math.log10(size))}f}".rstrip("0")
    else:
        text = f"{size:,.0f}" if size >= 1000 else f"{size:.4g}"
    return f"{MINUS if value < 0 else '+' if signed else ''}{text}"


def duration(seconds: float) -> str:
    """Seconds as a reader counts them: 0.4 s, 12 s, 5 min 20 s, 3 h 12 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _entry(entry: Entry) -> Any:
    return html.formula(entry.text) if entry.form == "formula" else entry_text(entry)
