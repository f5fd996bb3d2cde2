"""Format tables as HTML, LaTeX and CSV, with the paper's values and every setting's."""

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from relation.records import atomic
from report.data import OUTSIDE, Setting, counted, rounded, title
from report.paper import UNITS
from report.table import Column, Table

TEMPLATES = Path(__file__).parent / "templates"
MINUS, DASH = "−", "—"
STATUS_WORDS = {"oom": "OOM", "no counterpart": "n/a"}
# Units printed after the number, and units printed in the row's heading.
SUFFIXES = {"%": "%", "x": "×", "M tokens": "M", "B tokens": "B"}
HEADED = ("nat/token", "bit/character", "tok/s", "GiB", "ms")
_LATEX = {
    **{c: rf"\{c}" for c in "&%$#{}"}, "_": r"\_\allowbreak{}",
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "−": "$-$", "×": r"$\times$", "±": r"$\pm$", "→": r"$\to$", "↓": r"$\downarrow$",
    "↑": r"$\uparrow$", "Δ": r"$\Delta$", "λ": r"$\lambda$", "<": "$<$", ">": "$>$",
    "✓": r"$\surd$", "✗": r"$\neq$", "—": "---", "’": "'", "“": "``", "”": "''",
}  # fmt: skip


@dataclass
class Entry:
    """One printed value. sign: whether our interval holds the paper's value; None: undecided."""

    text: str = DASH
    interval: str = ""
    difference: str = ""
    sign: bool | None = None
    hover: str = ""
    anchor: str = ""
    note: str = ""
    missing: bool = False


@dataclass
class Printed:
    """A table ready for a template.

    panels: (title, rows); a row is (label, lines); a line is (heading, the paper's value, one entry
    per setting). notes: letters by text. conditions: (setting, texts by name) of the measurement.
    absent: settings without a value, with the reason. outside: scales that are part
    of none of the settings.
    """

    table: Table
    settings: list[Setting] = field(default_factory=list)
    panels: list[tuple[str, list]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    conditions: list[tuple[Setting, dict[str, str]]] = field(default_factory=list)
    absent: list[tuple[Setting, str]] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """Return the letter of a note. Equal texts share a letter."""
        if text not in self.notes:
            head, tail = divmod(len(self.notes), 26)
            self.notes[text] = (ascii_lowercase[head - 1] if head else "") + ascii_lowercase[tail]
        return self.notes[text]


def number(value: float | None, form: str, small: bool = True) -> str:
    """Format a number with a true minus sign; a dash for None or NaN.

    small: keep two digits of a number that the format would print as zero.
    """
    if value is None or math.isnan(value):
        return DASH
    text = format(value, form)
    if not re.search("[1-9]", text):
        sign = "+" if form.startswith("+") else ""
        text = format(value, f"{sign}.2g") if value and small else text.lstrip("+-")
    return text.replace("-", MINUS)


def paper_text(printed: str | None, column: Column, unit: str, sd: str | None) -> str:
    """Return the paper's value with every digit, and its standard deviation if printed."""
    if printed is None:
        return DASH
    if unit == "text":
        return words(printed)
    if "," in column.format:
        whole, point, fraction = printed.partition(".")
        printed = f"{int(whole):,}{point}{fraction}"
    return printed.replace("-", MINUS) + (f" ± {sd}" if sd else "") + SUFFIXES.get(unit, "")


def words(text: str) -> str:
    """Return the text of a cell with multiplication signs: 8×48 for 8x48."""
    return re.sub(r"(?<=\d)x(?=\d)", "×", text)


def _entry(column: Column, cell: dict[str, Any], out: Printed) -> Entry:
    """Return a setting's cell as printed; its notes get a letter of `out`."""
    anchor = cell["sources"][0].partition("#")[2] if len(cell["sources"]) else ""
    if cell["status"] != "ok":
        text = STATUS_WORDS.get(cell["status"], cell["status"])
        note = out.mark(f"{cell['status']}: {cell['reason']}") if cell["reason"] else ""
        return Entry(text, note=note, missing=True, anchor=anchor)
    unit, form = cell["unit"], column.format
    if unit == "text":
        entry = Entry(words(cell["text"]), anchor=anchor)
        miniature = str(cell["scale"]).endswith("-mini")  # not compared with the paper
        if cell["paper"] is not None and "^" not in entry.text and not miniature:
            entry.difference = "same" if cell["text"] == cell["paper"] else "differs"
        return entry
    text = number(cell["value"], form)
    if column.shows == "spread" and not math.isnan(cell["sd"]):
        text += f" ± {number(cell['sd'], form.lstrip('+'))}"
    text += SUFFIXES.get(unit, "")
    if unit.endswith(" tokens") and cell["value"] < 0.1:  # miniatures have few tokens
        text = rounded(cell["value"] * UNITS[unit])
    entry = Entry(text, anchor=anchor, sign=cell["agrees"])
    ends = ""
    if not math.isnan(cell["low"]):
        ends = f"({number(cell['low'], form)} to {number(cell['high'], form)})"
        if column.shows == "interval" or isinstance(column.null, float):
            entry.interval = ends
    if not math.isnan(cell["difference"]):
        exact = unit in ("parameters", "tokens") and cell["difference"] == 0
        signed = number(cell["difference"], "+" + form.lstrip("+"))
        entry.difference = "same" if exact else signed + (" pp" if unit == "%" else "")
    n = f"n = {cell['n']}"
    entry.hover = "; ".join(filter(None, (n if cell["n"] > 1 else "", ends, cell["reason"])))
    # These reasons get a note. Others show only on hover.
    if "seeds" in cell["reason"]:
        entry.note = out.mark(f"{n}; {cell['reason']}")
    elif "timed by" in cell["reason"]:
        entry.note = out.mark(cell["reason"])
    return entry


def prepare(table: Table, cells: pd.DataFrame, settings: Sequence[Setting]) -> Printed:
    """Lay out one table: one line per row and column, one entry per setting with any value."""
    out = Printed(table)
    _note_settings(out, cells, settings)
    shown = cells[cells["setting"].isin([setting.name for setting in out.settings])]
    outside = shown["reason"].str.endswith(OUTSIDE).groupby(shown["row"], sort=False).all()
    out.outside = list(dict.fromkeys(row.partition("/")[0] for row in outside.index[outside]))
    shown = shown[~shown["row"].map(outside).astype(bool)]
    # Cells by row and column, then by setting and "value" or "sd".
    index: dict[tuple[str, str], dict[tuple[str, str], dict[str, Any]]] = {}
    for cell in shown.to_dict("records"):
        key = (cell["setting"], "sd" if cell["statistic"] == "sd" else "value")
        index.setdefault((cell["row"], cell["column"]), {})[key] = cell
    scales = shown.groupby("row")["scale"].unique().to_dict()
    for heading, columns in table.panels.items():
        rows = []
        for row in _rows(table, heading, columns, index):
            filled = [column for column in columns if (row, column.column) in index]
            lines = [_line(column, index[row, column.column], out) for column in filled]
            label = table.names.get(row) or ", ".join(map(title, row.split("/")))
            scale, own_scales = row.partition("/")[0], scales[row]
            if len(own_scales) == 1 and own_scales[0] and label.startswith(scale):
                label = own_scales[0] + label.removeprefix(scale)  # such as 10M-mini
            rows.append((label, lines))
        if rows:
            out.panels.append((heading, rows))
    return out


def _note_settings(out: Printed, cells: pd.DataFrame, settings: Sequence[Setting]) -> None:
    """Record which settings have values, with their conditions; for the others the reason."""
    for setting in settings:
        setting_cells = cells[cells["setting"] == setting.name]
        if (setting_cells["status"] == "ok").any():
            out.settings.append(setting)
            conditions = setting_cells[setting_cells["row"] == "setting"]
            if texts := conditions.set_index("column")["text"].to_dict():
                out.conditions.append((setting, texts))
        elif len(setting_cells):
            reasons = setting_cells[setting_cells["status"] != "no counterpart"]["reason"]
            of_setting = reasons[~reasons.str.endswith(OUTSIDE)]
            out.absent.append((setting, next(iter([*of_setting.mode(), *reasons.mode()]), "")))


def _rows(table: Table, title: str, columns: Sequence[Column], index: Collection) -> list[str]:
    """Return a panel's rows in print order. index: (row, column) of every cell."""
    keys, always = {column.column for column in columns}, table.rows_of(title)
    there = {row for row, column in index if column in keys} - {"setting"}
    # Rows that the paper does not have come last.
    order = dict.fromkeys([*always, *table.printed["row"], *(row for row, _ in index)])
    rows = [row for row in order if row in there]
    # Group rows by scale, in the order of each scale's first row.
    groups = list(dict.fromkeys(row.partition("/")[0] for row in rows))
    return sorted(rows, key=lambda row: groups.index(row.partition("/")[0]))


def _line(column: Column, cells: dict, out: Printed) -> tuple[str, str, list[Entry]]:
    """Return one line of a row. cells: keyed by setting and "value" or "sd"."""
    heading = f"{column.title} ({column.unit})" if column.unit in HEADED else column.title
    entries, paper = [], DASH
    for setting in out.settings:
        main, sd = (cells.get((setting.name, key)) for key in ("value", "sd"))
        if main is None:
            note = out.mark("not run: no record of it in this setting")
            entries.append(Entry("not run", note=note, missing=True))
            continue
        entries.append(_entry(column, main, out))
        paper = paper_text(main["paper"], column, main["unit"], sd and sd["paper"])
    return heading, paper, entries


def axis(rows: Iterable[Iterable[float | None]], band: float = math.nan) -> list[dict[str, Any]]:
    """Return the places of each row's values, from 0 to 100 on one axis, for macro `forest`.

    rows: the paper's value, ours, and the ends of our interval; None or NaN for a missing value.
    band: half the width of the shaded band around zero; the axis includes the band.
    """
    rows = [[None if pd.isna(value) else value for value in row] for row in rows]
    ends = [] if math.isnan(band) else [-band, band]
    values = [value for row in rows for value in row if value is not None] + ends
    start, end = min(values, default=0.0), max(values, default=0.0)
    # Include zero if it is closer than 1.5 times the range of the values.
    start = 0.0 if 0 < start < 1.5 * (end - start) else start
    end = 0.0 if 0 > end > -1.5 * (end - start) else end

    def place(value: float | None) -> float | None:
        return None if value is None else round(100 * (value - start) / (end - start or 1.0), 2)

    fixed = {"zero": place(0.0) if start <= 0 <= end else None, "band": list(map(place, ends))}
    names = ("paper", "ours", "low", "high")
    return [dict(zip(names, map(place, row), strict=True)) | fixed for row in rows]


def environment(autoescape: bool = True, **options: Any) -> jinja2.Environment:
    """Return the environment of the templates. `autoescape` escapes every value."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, autoescape=autoescape, **options,
    )  # fmt: skip
    templates.filters |= {"number": number, "counted": counted, "rich": rich}
    return templates


def rich(text: str) -> Markup:
    """Return text as HTML, with `code`, F_ii, W_down and T^2 as markup."""
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text)).replace("$", ""))
    text = re.sub(r"\b([A-Za-z])_\{?(\w{1,5})\b\}?(?![\w<])", r"<i>\1</i><sub>\2</sub>", text)
    return Markup(re.sub(r"\^\{?([−-]?[\d.]+)\}?", r"<sup>\1</sup>", text))


def tex(text: Any) -> str:
    """Return a value as LaTeX: characters escaped, T^2 and F_ii as markup; Markup unchanged."""
    if isinstance(text, Markup):
        return text
    latex = "".join(_LATEX.get(character, character) for character in str(text))
    latex = re.sub(r"\\textasciicircum\{\}((?:\$-\$)?[\d.]+)", r"\\textsuperscript{\1}", latex)
    return re.sub(r"\b([A-Za-z])\\_\\allowbreak\{\}(\w{1,5})\b", r"$\1_{\\mathrm{\2}}$", latex)


HTML = environment()
# LaTeX uses braces itself, so its templates have other delimiters.
LATEX = environment(
    autoescape=False, finalize=tex, block_start_string="((*", block_end_string="*))",
    variable_start_string="(((", variable_end_string=")))", comment_start_string="((=",
    comment_end_string="=))",
)  # fmt: skip


def write(
    tables: Sequence[Table], cells: pd.DataFrame, settings: Sequence[Setting], folder: Path,
    judged: Iterable[Sequence[Any]] = (),
) -> list[Printed]:  # fmt: skip
    """Write tables/<label>.tex, tables/<label>.csv and tables.tex, which reads the former.

    A CSV has every cell of a table in every setting. judged: the verdicts of each claim by
    setting, which come first in tables.tex. Returns the tables that have cells.
    """
    by_table = dict(list(cells.groupby("table")))
    shown = [each for each in tables if each.label in by_table]
    printed = [prepare(each, by_table[each.label], settings) for each in shown]
    context = {"settings": settings, "judged": list(judged), "tables": shown}
    texts = {"tables.tex": LATEX.get_template("tables.tex.j2").render(context)}
    for each in printed:
        path, frame = f"tables/{each.table.label}", by_table[each.table.label]
        texts[f"{path}.tex"] = LATEX.get_template("cells.tex.j2").render(printed=each)
        frame = frame.drop(columns="by_seed").assign(sources=frame["sources"].map("; ".join))
        texts[f"{path}.csv"] = frame.to_csv(index=False)
    for name, text in texts.items():
        with atomic(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return printed
