"""The HTML templates' surroundings: escaping, filters, and the words and signs of a verdict."""

from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from relation.machine import progress
from report.judge.chosen import ABOUT, CHOSE
from report.render import html, templating
from report.render.behind import anchor, device_text
from report.render.printed import Entry, entry_text
from report.values import style
from report.values.numbers import counted, significant

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
    CHOSE: ("○", "open"),
    "not tested": ("–", "open"),
}


def html_environment() -> jinja2.Environment:
    """Every value is escaped on its way out, and an unknown name is an error."""
    environment = templating.environment(autoescape=True)
    environment.filters |= {
        "rich": html.rich,
        "symbols": html.symbols,
        "header": html.header,
        "briefly": html.briefly,
        "entry": _entry,
        "path": quote,
        "capital": templating.capital,
        "figure": significant,
        "counted": counted,
        "device": device_text,
        "duration": duration,
        "yaml": templating.yaml,
    }
    environment.globals |= {
        "signs": SIGNS,
        "about_verdicts": {CHOSE: ABOUT},
        "line_names": LINE_NAMES,
        "style": style,
        "anchors": anchor,
        "figure": significant,
    }
    return environment


def duration(seconds: float) -> str:
    """A span of time as a reader counts it: 40 ms, 0.4 s, 12 s, 5 min 20 s."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    return f"{seconds:.1f} s" if seconds < 10 else progress.duration(seconds)


def _entry(entry: Entry) -> Any:
    """An entry; where there is little room its interval stands below its value."""
    if entry.form == "formula":
        return html.formula(entry.text)
    value, bracket, interval = entry_text(entry).partition(" [")
    if not bracket:
        return value
    below = ' <br class="narrow"><span class="interval">[{}</span>'
    return Markup("{}" + below).format(value, interval)
