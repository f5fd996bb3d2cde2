"""LaTeX from the templates: a file a table, and report.tex, which reads them; report.pdf of it."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import jinja2

from relation.store.files import write_text
from report.judge.chosen import ABOUT, CHOSE
from report.judge.setting import PAPER_DEVICE, other_device
from report.render import latex, templating
from report.render.behind import Value, device_text, record_facts, title, values_behind
from report.render.content import Content, gather
from report.render.overview import unmeasured
from report.render.printed import Entry, PrintedPanel, PrintedRow, PrintedTable, entry_text
from report.render.shipped import Shipped, differing
from report.render.templating import capital, grouped
from report.render.typeset import MissingTypesetterError, typeset
from report.values import style
from report.values.layout import Column
from report.values.numbers import DASH, counted, in_a_row, significant

Record = Mapping[str, Any]

# Longer tables continue in a second float: this many lines fill a page of an article, with a few
# of notes below.
LINES_A_FLOAT, LINES_OF_NOTES = 60, 4
LETTERS_A_LINE = 130
# A wider panel sets its intervals below their values, so that it need not shrink as far.
LETTERS_A_ROW = 120
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


def write_document(folder: Path, shipped: Sequence[Shipped] = ()) -> str:
    """Write tables/<label>.tex, report.tex and report.pdf into a report's folder.

    Args:
        folder: the report's.
        shipped: all shipped reports, where it is one of several.

    Returns:
        One line: where the PDF is, or why there is none.

    Raises:
        InputError: the report's Parquet is missing or damaged.
        RelationError: the typesetter failed.
    """
    source = render_document(replace(gather(folder), shipped=shipped), folder)
    try:
        return f"{typeset(source)}"
    except MissingTypesetterError as missing:
        # A PDF of other results must not stay beside this source.
        source.with_suffix(".pdf").unlink(missing_ok=True)
        return f"{missing}; then run the same command again"


def render_document(content: Content, out_dir: Path) -> Path:
    """Write tables/<label>.tex and report.tex, which reads them, under ``out_dir``.

    Returns:
        The path of report.tex.
    """
    environment = _environment()
    environment.globals |= {"page": content.page, "readings": content.readings}
    numbers = {record["source"]: place for place, record in enumerate(content.provenance, start=1)}
    (out_dir / "tables").mkdir(parents=True, exist_ok=True)
    template = environment.get_template("table.tex.j2")
    for printed in (*content.tables, *content.beyond):
        used = [record for record in content.provenance if record["source"] in printed.sources]
        text = template.render(
            printed=printed,
            floats=floats(printed),
            notes_apart=notes_apart(printed),
            records=_record_comments(used, numbers),
            cited=_cited(printed.sources, numbers),
            warning=_warning(content.page, printed),
            behind=lambda row, panel: _row_comments(row, panel.columns, numbers),
        )
        write_text(out_dir / "tables" / f"{printed.table.label}.tex", text)
    drawn = [figure for figure in content.figures if figure["file"]]
    text = environment.get_template("report.tex.j2").render(
        document=content,
        # A diagram shows no campaign's data.
        diagrams=[figure for figure in drawn if not figure["sources"]],
        pictures=[figure for figure in drawn if figure["sources"]],
        beyond=[figure for figure in content.beyond_figures if figure["file"]],
        absent=[
            figure for figure in (*content.figures, *content.beyond_figures) if not figure["file"]
        ],
        cited=lambda figure: _cited(figure["sources"], numbers),
        differing=differing(content.shipped),
        unmeasured=unmeasured(content),
        evidence=grouped(content.evidence, itemgetter("claim")),
        again=again(content.provenance),
        checklists=grouped(content.checklist, itemgetter("standard")),
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


def _groups(panel: PrintedPanel) -> Iterator[list[PrintedRow]]:
    """The rows of a panel, cut where a rule sets one apart."""
    group: list[PrintedRow] = []
    for row in panel.rows:
        if row.ruled and group:
            yield group
            group = []
        group.append(row)
    yield group


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
        "wide": wide,
        "device": device_text,
        "capital": capital,
        "sign": lambda verdict: latex.Tex(SIGNS.get(verdict, "")),
        "held": _held,
        "number": significant,
        "difference": _difference,
        "counted": counted,
        "yaml": templating.yaml,
        "pdf": lambda file: latex.Tex(Path(file).with_suffix(".pdf").as_posix()),
        "colour": lambda colour: latex.Tex(colour.removeprefix("#").upper()),
    }
    environment.globals |= {
        "line_names": LINE_NAMES,
        "chose": CHOSE,
        "about_chose": ABOUT,
        "paper_device": PAPER_DEVICE,
        "style": style,
    }
    return environment


def wide(panel: PrintedPanel) -> bool:
    """Whether a panel's lines are longer than the page, intervals beside their values."""
    lines = [line.entries for row in panel.rows for line in row.lines]
    return (
        sum(max(len(e.text) for e in column) for column in zip(*lines, strict=True)) > LETTERS_A_ROW
    )


def _entry(entry: Entry, stacked: bool = False) -> latex.Tex:
    """An entry; stacked: its interval stands below its value."""
    if entry.form == "formula" and not entry.missing:
        return latex.formula(entry.text)
    value, bracket, interval = entry_text(entry).partition(" [")
    if stacked and bracket:
        lines = rf"{latex.escape(value)}\\{latex.escape('[' + interval)}"
        return latex.Tex(rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{lines}\end{{tabular}}")
    return latex.escape(entry_text(entry))


def _held(whether: bool | None) -> str:
    """The sign of a direction or a size: it holds, it does not, or it is open."""
    if whether is None:
        return DASH
    return latex.Tex(SIGNS["within" if whether else "outside"])


def _difference(row: Mapping[str, Any]) -> str:
    """Ours less the paper's value, with its sign; 0 where only rounding tells the two apart."""
    difference = row["difference"]
    if difference is not None and abs(difference) < ROUNDING * abs(row["paper"]):
        return "0"
    return significant(difference, signed=True)


def _cited(sources: Iterable[str], numbers: Mapping[str, int]) -> latex.Tex:
    """The records behind a table or a figure as ``\\relationrecord`` and ranges of it."""
    runs = in_a_row(numbers[source] for source in sources if source in numbers)
    ends = (dict.fromkeys((run[0], run[-1])) for run in runs)
    told = ("--".join(rf"\relationrecord{{{number}}}" for number in span) for span in ends)
    return latex.Tex(", ".join(told))


def _record_comments(records: Iterable[Record], numbers: Mapping[str, int]) -> latex.Tex:
    """Two comments a record: its origin, and how to make it again."""
    lines = []
    for record in records:
        facts = [f"{label.lower()} {text}" for label, text in record_facts(record)]
        facts += [f"log {record['log']}"] if record["log"] else []
        state = "; ".join(filter(None, (record["freshness"], record["freshness_reason"])))
        told = f"{record['source']}: {', '.join(facts)}; {state}"
        lines.append(latex.comment(f"{numbers[record['source']]} {told}"))
        lines.append(latex.comment(f"  again: {record['rerun']}"))
    return latex.Tex("\n".join(lines) or "% none")


# The record in the command that makes it: after -R or --, not a corpus that is such a file too.
_TARGET = re.compile(r"((?:-R|--) )\S+\.parquet")


def again(provenance: Iterable[Record]) -> dict[str, list[str]]:
    """The commands that make records again, each with the kinds of them, FILE for a record's.

    A run whose records another command makes than most of their kind is named with them.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for record in provenance:
        command = _TARGET.sub(r"\1FILE", record["rerun"])
        named = (record[part] for part in ("scale", "variant", "seed"))
        run = "/".join(str(part) for part in named if part not in (None, ""))
        found.setdefault(command, {}).setdefault(record["kind"], []).append(run)
    most = {
        kind: max(found, key=lambda command: len(found[command].get(kind, ())))
        for kinds in found.values()
        for kind in kinds
    }
    told = {}
    for command, kinds in found.items():
        usual = [kind for kind in kinds if most[kind] == command]
        runs = {kind: " and ".join(dict.fromkeys(names)) for kind, names in kinds.items()}
        others = grouped((kind for kind in kinds if kind not in usual), runs.get)
        apart = [
            ", ".join(sorted(names)) + (f" of {said}" if said else "")
            for said, names in others.items()
        ]
        told[command] = [*usual, *apart]
    return told


def _row_comments(
    row: PrintedRow, columns: Sequence[Column], numbers: Mapping[str, int]
) -> latex.Tex | None:
    """A comment a cell of a row, and one for each value in it."""
    comments = []
    for column, values in values_behind(row, columns):
        comments.append(latex.comment(title(row, column).replace(" · ", ": ")))
        comments += [latex.comment(f"  {_told(value, numbers)}") for value in values]
    return latex.Tex("\n".join(comments)) if comments else None


def _told(value: Value, numbers: Mapping[str, int]) -> str:
    facts = [f"{label} {text}" for label, text in value.facts]
    for said, reason in (
        (value.verdict, value.verdict_reason),
        (value.freshness, value.freshness_reason),
    ):
        facts += [": ".join(filter(None, (said, reason)))] if said else []
    records = sorted(numbers[source] for source in value.sources if source in numbers)
    facts += [f"records {', '.join(map(str, records))}"] if records else []
    return f"{value.name}: {'; '.join(facts)}"
