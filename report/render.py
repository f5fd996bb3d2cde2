"""Tables as they print: HTML, LaTeX and CSV, each the paper's value beside every setting's."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from relation.records import atomic
from report.data import Setting
from report.table import Column, Table

TEMPLATES = Path(__file__).parent / "templates"
MINUS, DASH = "−", "—"
STATUS_WORDS = {"oom": "OOM", "no counterpart": "n/a"}
# Units that stand behind the number, and those that stand in the row's heading.
SUFFIXES = {"%": "%", "x": "×", "M tokens": "M", "B tokens": "B"}
HEADED = ("nat/token", "tok/s", "GiB", "ms")
_LATEX = {
    **{c: rf"\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "−": "$-$", "×": r"$\times$", "±": r"$\pm$", "→": r"$\to$", "↓": r"$\downarrow$",
    "↑": r"$\uparrow$", "Δ": r"$\Delta$", "λ": r"$\lambda$", "<": "$<$", ">": "$>$",
    "✓": r"$\surd$", "✗": r"$\neq$", "—": "---", "’": "'", "“": "``", "”": "''",
}  # fmt: skip


@dataclass
class Entry:
    """One printed value. sign: whether the paper's value lies in our interval, where decided."""

    text: str = DASH
    interval: str = ""
    difference: str = ""
    sign: bool | None = None
    hover: str = ""
    anchor: str = ""
    note: str = ""
    missing: bool = False


@dataclass
class Line:
    """One quantity of a row: its heading, the paper's value and an entry a setting."""

    title: str
    paper: str
    entries: list[Entry]


@dataclass
class Group:
    """The quantities of one row of the table."""

    label: str
    lines: list[Line]


@dataclass
class Printed:
    """A table ready for a template.

    panels: (title, groups); notes: (letter, text); conditions: (setting, (name, text)) that its
    values were measured under; absent: settings without a value, with the reason.
    """

    table: Table
    settings: list[Setting]
    panels: list[tuple[str, list[Group]]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    conditions: list[tuple[Setting, list[tuple[str, str]]]] = field(default_factory=list)
    absent: list[tuple[Setting, str]] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """The letter of a note, the same for the same text."""
        if text not in self.notes:
            head, tail = divmod(len(self.notes), 26)
            self.notes[text] = (ascii_lowercase[head - 1] if head else "") + ascii_lowercase[tail]
        return self.notes[text]


def number_text(value: float, form: str, unit: str = "") -> str:
    """A number in a format, with a true minus and its unit; a small one keeps two digits."""
    text = format(value, form)
    if not re.search("[1-9]", text):
        text = format(value, ".2g") if value else text.lstrip("+-")
    return text.replace("-", MINUS) + SUFFIXES.get(unit, "")


def paper_text(printed: str | None, column: Column, unit: str, sd: str | None = None) -> str:
    """The paper's value, every digit kept, with its standard deviation where it prints one."""
    if printed is None:
        return DASH
    if unit == "text":
        return words(printed)
    if "," in column.form:
        whole, point, fraction = printed.partition(".")
        printed = f"{int(whole):,}{point}{fraction}"
    text = printed.replace("-", MINUS) + (f" ± {sd}" if sd else "")
    return text + SUFFIXES.get(unit, "")


def words(text: str) -> str:
    """A worded cell, with signs of multiplication: 8×48 for 8x48."""
    return re.sub(r"(?<=\d)x(?=\d)", "×", text)


def _entry(column: Column, cell: dict[str, Any], sd: dict[str, Any] | None, out: Printed) -> Entry:
    behind = cell["sources"][0].partition("#")[2] if len(cell["sources"]) else ""
    if cell["status"] != "ok":
        text = STATUS_WORDS.get(cell["status"], cell["status"])
        note = out.mark(f"{cell['status']}: {cell['reason']}") if cell["reason"] else ""
        return Entry(text, note=note, missing=True, anchor=behind)
    found = Entry(anchor=behind, sign=cell["agrees"])
    unit, form = cell["unit"], column.form
    if unit == "text":
        found.text = words(cell["text"])
        if cell["paper"] is not None and "^" not in found.text:
            found.difference = "same" if cell["text"] == cell["paper"] else "differs"
        return found
    found.text = number_text(cell["value"], form)
    if column.spread and not math.isnan(cell["sd"]):
        found.text += f" ± {number_text(cell['sd'], form.lstrip('+'))}"
    found.text += SUFFIXES.get(unit, "")
    ends = ""
    if not math.isnan(cell["low"]):
        ends = f"[{', '.join(number_text(cell[end], form) for end in ('low', 'high'))}]"
        found.interval = ends if column.interval or isinstance(column.null, float) else ""
    if not math.isnan(cell["difference"]):
        exact = unit in ("parameters", "tokens") and cell["difference"] == 0
        signed = "+" + form.lstrip("+")
        told = number_text(cell["difference"], signed) + (" pp" if unit == "%" else "")
        found.difference = "same" if exact else told
    counted = f"n = {cell['n']}" if cell["n"] > 1 else ""
    found.hover = "; ".join(filter(None, (counted, ends, cell["reason"])))
    if "seeds without" in cell["reason"]:
        found.note = out.mark(f"n = {cell['n']}; {cell['reason']}")
    return found


def prepare(table: Table, cells: pd.DataFrame, settings: Sequence[Setting]) -> Printed:
    """Lay out one table: a line a row and column, an entry a setting that has a value in it."""
    own = cells[cells["table"] == table.label]
    out = Printed(table, [])
    index: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    rows = own.astype(object).where(own.notna(), None).to_dict("records")
    for cell in (_plain(row) for row in rows):
        key = (cell["setting"], cell["row"], cell["column"])
        index.setdefault(key, {})[cell["statistic"]] = cell
    for setting in settings:
        of = own[own["setting"] == setting.name]
        if (of["status"] == "ok").any():
            out.settings.append(setting)
            told = of[(of["row"] == "setting") & of["text"].notna()]
            pairs = list(told[["column", "text"]].itertuples(index=False, name=None))
            out.conditions += [(setting, pairs)] if pairs else []
        elif len(of):
            out.absent.append((setting, of["reason"].iloc[0]))
    there = dict.fromkeys(key[1:] for key in index)
    for panel in table.panels:
        keys = [column.key for column in panel.columns]
        found = dict.fromkeys(row for row, column in there if column in keys and row != "setting")
        groups = [
            Group(table.label_of(row), [_line(column, row, index, out) for column in columns])
            for row in _ordered([*panel.rows, *found])
            if (columns := [c for c in panel.columns if (row, c.key) in there])
        ]
        out.panels += [(panel.title, groups)] if groups else []
    return out


def _plain(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell whose numbers are floats, NaN for none, as formats take them."""
    for name in ("value", "paper_value", "sd", "low", "high", "difference"):
        cell[name] = math.nan if cell[name] is None else cell[name]
    return cell | {"sources": () if cell["sources"] is None else cell["sources"]}


def _ordered(rows: list[str]) -> list[str]:
    """Rows of one scale together, scales in the order of their first row."""
    groups = list(dict.fromkeys(row.partition("/")[0] for row in rows))
    return sorted(dict.fromkeys(rows), key=lambda row: groups.index(row.partition("/")[0]))


def _line(column: Column, row: str, index: dict, out: Printed) -> Line:
    entries, paper = [], DASH
    for setting in out.settings:
        found = index.get((setting.name, row, column.key), {})
        main, sd = found.get("value", found.get("mean")), found.get("sd")
        if main is None:
            entries.append(Entry(missing=True))
            continue
        entries.append(_entry(column, main, sd, out))
        theirs = None if sd is None else sd["paper"]
        paper = paper_text(main["paper"], column, main["unit"], theirs)
    heading = f"{column.title} ({column.unit})" if column.unit in HEADED else column.title
    return Line(heading, paper, entries)


@cache
def _environment(latex: bool) -> jinja2.Environment:
    """Braces are LaTeX's own, so its delimiters differ; every value is escaped on its way out."""
    options: dict[str, Any] = {"autoescape": True}
    if latex:
        names = ("block_start", "block_end", "variable_start", "variable_end")
        marks = ("((*", "*))", "(((", ")))")
        options = {f"{n}_string": m for n, m in zip(names, marks, strict=True)}
        options |= {"comment_start_string": "((=", "comment_end_string": "=))", "finalize": tex}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    environment.filters |= {"powers": powers}
    return environment


def powers(text: str) -> Markup:
    """HTML of words in which T^2 is a power."""
    return Markup(re.sub(r"\^(−?[\d.]+)", r"<sup>\1</sup>", escape(text, quote=False)))


def tex(text: Any) -> str:
    """A value in LaTeX: special characters escaped, T^2 as a power."""
    parts = re.split(r"\^(−?[\d.]+)", str(text))
    told = ("".join(_LATEX.get(c, c) for c in part) for part in parts)
    return "".join(rf"\textsuperscript{{{t}}}" if k % 2 else t for k, t in enumerate(told))


def html(table: Table, cells: pd.DataFrame, settings: Sequence[Setting]) -> str:
    """A table's panels, notes and conditions in HTML, without its heading and caption."""
    printed = prepare(table, cells, settings)
    return _environment(False).get_template("cells.html.j2").render(printed=printed)


def latex(table: Table, cells: pd.DataFrame, settings: Sequence[Setting]) -> str:
    """A table in LaTeX, as tables.tex reads it."""
    printed = prepare(table, cells, settings)
    return _environment(True).get_template("cells.tex.j2").render(printed=printed)


def csv(table: Table, cells: pd.DataFrame) -> str:
    """Every cell of a table in every setting, a line each."""
    own = cells[cells["table"] == table.label].drop(columns=["by_seed"])
    return own.assign(sources=own["sources"].map("; ".join)).to_csv(index=False)


def write(
    tables: Sequence[Table], cells: pd.DataFrame, settings: Sequence[Setting], folder: Path
) -> None:
    """Write tables/<label>.tex and .csv, and tables.tex, which reads the former, into a folder."""
    used = [table for table in tables if (cells["table"] == table.label).any()]
    makers: dict[str, Callable[[Table], str]] = {
        "tex": lambda table: latex(table, cells, settings),
        "csv": lambda table: csv(table, cells),
    }
    texts = {f"tables/{t.label}.{kind}": make(t) for t in used for kind, make in makers.items()}
    template = _environment(True).get_template("tables.tex.j2")
    texts["tables.tex"] = template.render(tables=used, settings=settings)
    for name, text in texts.items():
        with atomic(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
