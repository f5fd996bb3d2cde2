"""Tables and index of a campaign, printed by Jinja to LaTeX and HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from report import html, latex
from report.tables import TABLES
from report.view import Entry, PrintedPanel, PrintedTable, print_table

TEMPLATES = Path(__file__).parent / "templates"
PAPER_DEVICE = "NVIDIA RTX 5090"
# Longer LaTeX tables continue in a second float: this many lines fill a page of an article.
LINES_A_FLOAT = 66
LINE_NAMES = {"paper": "paper", "campaign": "this campaign", "difference": "difference"}
SHORT_LINE_NAMES = {"paper": "paper", "campaign": "ours", "difference": "diff."}


def render_tables(
    cells: pd.DataFrame,
    page: Mapping[str, Any],
    figures: Sequence[Mapping[str, Any]],
    out_dir: Path,
) -> None:
    """Write tables/<label>.tex, tables/<label>.html and index.html under ``out_dir``.

    Args:
        cells: as ``cells.build`` returns them.
        page: the campaign's own words, ``CampaignRecords.page``.
        figures: as ``figures.draw_figures`` returns them; their files are relative to ``out_dir``.
        out_dir: the report's folder; made if missing.
    """
    tables = [print_table(table, cells[cells["table"] == table.label]) for table in TABLES]
    folder = Path(out_dir) / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    html_page = _html_environment().get_template("table.html.j2")
    tex_page = _latex_environment().get_template("table.tex.j2")
    shared = {"page": page, "paper_device": PAPER_DEVICE}
    for position, printed in enumerate(tables):
        label = printed.table.label
        html_text = html_page.render(
            shared,
            printed=printed,
            previous=tables[position - 1].table if position else None,
            following=tables[position + 1].table if position + 1 < len(tables) else None,
            home="../index.html",
            line_names=LINE_NAMES,
        )
        (folder / f"{label}.html").write_text(html_text, encoding="utf-8")
        tex_text = tex_page.render(
            shared, printed=printed, floats=_floats(printed), line_names=SHORT_LINE_NAMES
        )
        (folder / f"{label}.tex").write_text(tex_text, encoding="utf-8")
    index = _html_environment().get_template("index.html.j2")
    index_text = index.render(shared, tables=tables, figures=figures, home="index.html")
    (Path(out_dir) / "index.html").write_text(index_text, encoding="utf-8")


def _floats(printed: PrintedTable) -> list[list[PrintedPanel]]:
    """Split the panels of a table into floats that fit a page, between groups of rows."""
    lines = sum(len(row.lines) for panel in printed.panels for row in panel.rows)
    if lines <= LINES_A_FLOAT or len(printed.panels) > 1:
        return [list(printed.panels)]
    (panel,) = printed.panels
    floats: list[list[PrintedPanel]] = []
    pending: list = []
    for group in _groups(panel):
        size = sum(len(row.lines) for row in [*pending, *group])
        if pending and size > LINES_A_FLOAT:
            floats.append([PrintedPanel(panel.panel, tuple(pending))])
            pending = []
        pending += group
    return [*floats, [PrintedPanel(panel.panel, tuple(pending))]]


def _groups(panel: PrintedPanel) -> list[list]:
    groups: list[list] = []
    for row in panel.rows:
        if row.ruled or not groups:
            groups.append([])
        groups[-1].append(row)
    return groups


def _environment(**options: Any) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


def _html_environment() -> jinja2.Environment:
    environment = _environment(autoescape=True)
    environment.filters |= {"rich": html.rich, "header": html.header, "entry": _html_entry}
    return environment


def _latex_environment() -> jinja2.Environment:
    """Braces are LaTeX's own, so the delimiters differ; every value is escaped on its way out."""
    environment = _environment(
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
        "header": latex.header,
        "entry": _latex_entry,
    }
    return environment


def _entry_text(entry: Entry) -> str:
    return _with_times(entry.text) if entry.form == "geometry" else entry.text


def _with_times(text: str) -> str:
    """8x48 as 8×48, letters elsewhere untouched."""
    return re.sub(r"(?<=\d)x(?=\d)", "×", text)


def _html_entry(entry: Entry) -> Any:
    return html.formula(entry.text) if entry.form == "formula" else _entry_text(entry)


def _latex_entry(entry: Entry) -> latex.Tex:
    if entry.form == "formula" and not entry.missing:
        return latex.formula(entry.text)
    return latex.escape(_entry_text(entry))
