"""LaTeX from the templates: a file a table, and report.tex, which reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from relation.store.files import write_text
from report.judge.setting import PAPER_DEVICE, other_device
from report.render import latex, templating
from report.render.document_behind import again, cited, numbered, record_comments, row_comments
from report.render.document_content import Document
from report.render.printed import Entry, PrintedPanel, PrintedTable, entry_text
from report.values import style
from report.values.numbers import DASH, MINUS, counted

# Longer tables continue in a second float: this many lines fill a page of an article, with a few
# of notes below.
LINES_A_FLOAT, LINES_OF_NOTES = 60, 4
LETTERS_A_LINE = 130
ROUNDING = 1e-9  # of the paper's value: what is left of a difference between equal doubles
LINE_NAMES = {"paper": "paper", "campaign": "ours", "difference": "diff."}
# What a verdict is printed as: a command of the templates.
SIGNS = {
    "within": r"\relationwithin",
    "outside": r"\relationoutside",
    "reproduced": r"\relationwithin",
    "direction only": r"\relationpartly",
    "not reproduced": r"\relationoutside",
}


def render_document(document: Document, out_dir: Path) -> Path:
    """Write tables/<label>.tex and report.tex, which reads them, under ``out_dir``.

    Returns:
        The path of report.tex.
    """
    environment = _environment()
    numbers = numbered(document.provenance)
    (out_dir / "tables").mkdir(parents=True, exist_ok=True)
    template = environment.get_template("table.tex.j2")
    for printed in document.tables:
        text = template.render(
            page=document.page,
            printed=printed,
            floats=floats(printed),
            notes_apart=notes_apart(printed),
            records=record_comments(printed, document.provenance),
            cited=cited(printed.sources, numbers),
            warning=_warning(document.page, printed),
            behind=lambda row, panel: row_comments(row, panel.columns, numbers),
        )
        write_text(out_dir / "tables" / f"{printed.table.label}.tex", text)
    report = environment.get_template("report.tex.j2")
    drawn, absent = [], []
    for figure in document.figures:
        (drawn if figure["file"] else absent).append(figure)
    text = report.render(
        document=document,
        page=document.page,
        # A diagram shows no campaign's data.
        diagrams=[figure for figure in drawn if not figure["sources"]],
        pictures=[figure for figure in drawn if figure["sources"]],
        absent=absent,
        cited=lambda figure: cited(figure["sources"], numbers),
        evidence=_by_claim(document.evidence),
        again=again(document.provenance),
        checklists=_by_standard(document.checklist),
    )
    write_text(out_dir / "report.tex", text)
    return out_dir / "report.tex"


def _warning(page: Mapping[str, Any], printed: PrintedTable) -> str:
    """What a caption says of a setting that is not the paper's."""
    measured = page["devices"] if printed.sources else ()
    device = other_device(page, measured) if printed.table.systems else None
    if device is not None:
        return device
    return "Not the paper’s setting." if page["differences"] else ""


def _by_claim(evidence: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    found: dict[int, list[Mapping[str, Any]]] = {}
    for row in evidence:
        found.setdefault(row["claim"], []).append(row)
    return found


def _by_standard(checklist: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in checklist:
        found.setdefault(row["standard"], []).append(row)
    return found


def floats(printed: PrintedTable) -> list[list[PrintedPanel]]:
    """Split the panels of a table into floats that fit a page, between groups of rows."""
    lines = sum(len(row.lines) for panel in printed.panels for row in panel.rows)
    if lines <= LINES_A_FLOAT:
        return [list(printed.panels)]
    return [part for panel in printed.panels for part in _split(panel)]


def _split(panel: PrintedPanel) -> list[list[PrintedPanel]]:
    """A panel in floats of its own."""
    split: list[list[PrintedPanel]] = []
    pending: list = []
    for group in _groups(panel):
        size = sum(len(row.lines) for row in [*pending, *group])
        if pending and size > LINES_A_FLOAT:
            split.append([PrintedPanel(panel.panel, tuple(pending))])
            pending = []
        pending += group
    return [*split, [PrintedPanel(panel.panel, tuple(pending))]]


def notes_apart(printed: PrintedTable) -> bool:
    """Whether the notes do not fit under the table's last float and need one of their own."""
    rows = sum(len(row.lines) for panel in floats(printed)[-1] for row in panel.rows)
    texts = (*(text for _, text in printed.notes), " ".join(printed.conditions))
    notes = sum(math.ceil(len(text) / LETTERS_A_LINE) for text in texts)
    return notes > 0 and rows + notes > LINES_A_FLOAT + LINES_OF_NOTES


def _groups(panel: PrintedPanel) -> list[list]:
    groups: list[list] = []
    for row in panel.rows:
        if row.ruled or not groups:
            groups.append([])
        groups[-1].append(row)
    return groups


def _environment() -> jinja2.Environment:
    """Braces are LaTeX's own, so the delimiters differ; every value is escaped on its way out."""
    environment = templating.environment(
        block_start_string="((*",
        block_end_string="*))",
        variable_start_string="(((",
        variable_end_string=")))",
        comment_start_string="((=",
        comment_end_string="=))",
        finalize=latex.escape,
    )
    environment.filters |= {
        "source": latex.Tex,
        "rich": latex.rich,
        "symbols": latex.symbols,
        "header": latex.header,
        "breakable": latex.breakable,
        "code": latex.code,
        "plain": latex.plain,
        "comment": latex.comment,
        "entry": _entry,
        "sign": lambda verdict: latex.Tex(SIGNS.get(verdict, "")),
        "held": _held,
        "number": _number,
        "difference": _difference,
        "counted": counted,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "pdf": lambda file: latex.Tex(Path(file).with_suffix(".pdf").as_posix()),
        "colour": lambda colour: latex.Tex(colour.removeprefix("#").upper()),
    }
    environment.globals |= {
        "line_names": LINE_NAMES,
        "paper_device": PAPER_DEVICE,
        "style": style,
    }
    return environment


def _entry(entry: Entry) -> latex.Tex:
    if entry.form == "formula" and not entry.missing:
        return latex.formula(entry.text)
    return latex.escape(entry_text(entry))


def _held(whether: bool | None) -> str:
    """The sign of a direction or a size: it holds, it does not, or it is open."""
    if whether is None:
        return DASH
    return latex.Tex(SIGNS["within" if whether else "outside"])


def _number(value: float | None, signed: bool = False) -> str:
    """A real number of any unit: four digits, or all of a large count."""
    if value is None or math.isnan(value):
        return DASH
    size = abs(value)
    text = f"{size:,.0f}" if size >= 10_000 else f"{size:.4g}".replace("-", MINUS)
    return f"{MINUS if value < 0 else '+' if signed and value else ''}{text}"


def _difference(row: Mapping[str, Any]) -> str:
    """Ours less the paper's value, with its sign; 0 where only rounding tells the two apart."""
    difference = row["difference"]
    if difference is not None and abs(difference) < ROUNDING * abs(row["paper"]):
        return "0"
    return _number(difference, signed=True)
