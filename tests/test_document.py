"""The report on paper: LaTeX for any article, and its PDF, from an invented campaign."""

import dataclasses
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from sites import write_report
from test_report_records import HOSTILE, make_empty, make_records

import report.figures
from relation.errors import RelationError
from report.figures import draw_figures
from report.render import html, latex
from report.render.content import gather
from report.render.document import LINES_A_FLOAT, again, floats, render_document, write_document
from report.render.typeset import MissingTypesetterError, can_typeset, typeset, typesetter
from report.values import paper
from report.values.tables import TABLES

LABELS = [table.label for table in TABLES]
# What the paper's own source loads, without its conference's style.
PREAMBLE = r"""\documentclass{article}
\usepackage{times}
\usepackage[utf8]{inputenc}
\usepackage{amsmath,amssymb,mathtools}
\usepackage{graphicx}
\usepackage{booktabs}
\usepackage{hyperref}
\usepackage{url}
\begin{document}
"""

needs_tex = pytest.mark.skipif(
    not can_typeset(), reason="needs latexmk and TeX's recommended packages, or tectonic"
)
needs_pdf = pytest.mark.skipif(
    shutil.which("pdftotext") is None, reason="needs pdftotext of poppler-utils"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report.figures, "DRAWINGS", report.figures.DRAWINGS[:3])
        records = make_records(comparable=True)  # so that values are judged
        written = tmp_path_factory.mktemp("report")
        write_report(records, written, draw_figures(records, written))
    render_document(gather(written), written)
    return written


def source(folder: Path, label: str) -> str:
    return (folder / "tables" / f"{label}.tex").read_text(encoding="utf-8")


def words(pdf: Path) -> str:
    """The text of a PDF, its lines joined and its ligatures taken apart."""
    done = subprocess.run(["pdftotext", pdf, "-"], capture_output=True, text=True, check=True)
    text = done.stdout.replace("\N{LATIN SMALL LIGATURE FI}", "fi")
    return re.sub(r"\s+", " ", text.replace("-\n", "-"))


def article(folder: Path, body: str) -> Path:
    path = folder / "article.tex"
    path.write_text(f"{PREAMBLE}{body}\n\\end{{document}}\n", encoding="utf-8")
    return path


def test_every_printed_value_is_in_its_table(folder):
    for label in LABELS:
        text = source(folder, label)
        for value in paper.load(label).values():
            digits = value.printed.lstrip("+-")
            if value.unit == "text":
                continue
            grouped = f"{int(digits.partition('.')[0]):,}" + "".join(digits.partition(".")[1:])
            assert digits in text or grouped in text, (label, value)


@pytest.mark.parametrize("label", LABELS)
def test_latex_is_balanced_ascii_and_labelled(folder, label):
    text = source(folder, label)
    assert text.isascii()
    code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    bare = re.sub(r"\\[\\{}$&#%_]", "", code)
    depth = 0
    for sign in bare:
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0
    assert depth == 0 and bare.count("$") % 2 == 0
    open_environments = []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", code):
        if kind == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert open_environments == []
    assert rf"\label{{tab:{label}}}" in code and r"\toprule" in code
    assert r"\input" not in code


def test_comments_lead_from_a_value_to_its_records(folder):
    text = source(folder, "main-results")
    comments = [line for line in text.splitlines() if line.startswith("%")]
    (number,) = re.findall(
        r"^% (\d+) runs/10M/mha/42/record.parquet: seed 42, device cpu_0, configuration 0123, "
        r"code 4567, .*commit c0ffee, made \S+; current$",
        text,
        re.MULTILINE,
    )
    assert "%   again: snakemake --config a=<b>" in comments
    place = next(i for i, line in enumerate(comments) if line.startswith("% 10M: MHA NLL"))
    behind = comments[place + 1]
    assert "mha_nll: Paper 1.6853 +- 0.0042 nat/token; Here 2.01 +- 0.01 nat/token" in behind
    assert "Difference +0.3247 nat/token; Seeds or measurements 3; Tolerance +-" in behind
    assert number in behind.partition("records ")[2].split(", ")


def test_a_judged_difference_bears_its_sign(folder):
    tables = {printed.table.label: printed for printed in gather(folder).tables}
    for label in ("main-results", "app-nll"):
        verdicts = tables[label].verdicts
        assert verdicts["within"] + verdicts["outside"] > 0
        rows = [line for line in source(folder, label).splitlines() if " & diff. & " in line]
        signs = sum(row.count(r"\relationwithin") + row.count(r"\relationoutside") for row in rows)
        judged = [
            entry.verdict
            for panel in tables[label].panels
            for row in panel.rows
            if row.verdicts
            for entry in row.verdicts.entries
            if entry.verdict in ("within", "outside")
        ]
        assert signs == len(judged) > 0


def test_the_command_that_makes_records_again_is_said_once():
    def record(kind, seed, end):
        run = {"scale": "10M", "variant": "full", "seed": seed}
        return run | {"kind": kind, "rerun": f"snakemake {end}"}

    rows = [record("run", seed, f"-R a{seed}.parquet -- all") for seed in (42, 43)]
    rows += [record("log", seed, "-R b.parquet -- all") for seed in (42, 43)]
    rows += [record(kind, 44, "gpu=4 -- c.parquet") for kind in ("run", "log")]
    check = {"scale": None, "variant": None, "seed": None, "kind": "verification"}
    rows.append(check | {"rerun": "snakemake --config corpus=b.parquet -- v.parquet"})
    assert again(rows) == {
        "snakemake -R FILE -- all": ["run", "log"],
        "snakemake gpu=4 -- FILE": ["log, run of 10M/full/44"],
        "snakemake --config corpus=b.parquet -- FILE": ["verification"],
    }


def test_what_a_table_was_measured_under_stands_below_it(folder):
    text = source(folder, "efficient-relation")
    (before, *_), below = text.split(r"\bottomrule"), text.rpartition(r"\bottomrule")[2]
    assert "The fixed context of (a) is" in before and "What disturbed" in below
    assert "What disturbed" not in before and "ratios are not judged" in before


def test_a_figure_cites_the_records_it_is_drawn_from(folder):
    document = gather(folder)
    (figure,) = (row for row in document.figures if row["name"] == "loss-curves")
    text = (folder / "report.tex").read_text(encoding="utf-8")
    _, below = text.split(r"\label{fig:loss-curves}")
    cited = below.partition(r"\relationrecords{")[2].partition(r"}\par")[0]
    numbers = []
    for span in cited.split(", "):
        ends = [int(number) for number in re.findall(r"\d+", span)]
        numbers += range(ends[0], ends[-1] + 1)
    sources = [row["source"] for row in document.provenance]
    assert {sources[number - 1] for number in numbers} == set(figure["sources"])
    assert len(numbers) == len(figure["sources"]) == 24
    assert r"\section{Readings}" not in text, "this campaign shows none"


def test_the_summary_says_what_became_of_every_printed_value(folder):
    text = (folder / "report.tex").read_text(encoding="utf-8")
    rows = re.findall(r"^\\ref\{tab:.*? & .*? & ([\d &]+) \\\\$", text, re.MULTILINE)
    assert len(rows) == len(TABLES)
    for row in rows:
        asked, measured, same, within, outside, open_, missing, _ = map(int, row.split(" & "))
        assert measured == same + within + outside + open_ and asked == measured + missing


HELD = {None: "---", True: r"\relationwithin", False: r"\relationoutside"}


def evidence_cells(report_tex: Path) -> list[list[str]]:
    """The rows of evidence of the claims' table, each as its eight cells."""
    _, below = report_tex.read_text(encoding="utf-8").split(r"\section{The claims}")
    lines = below.partition(r"\end{longtable}")[0].splitlines()
    rows = [re.sub(r" \\\\\*?$", "", line).split(" & ") for line in lines if " & " in line]
    assert rows[0][-2:] == ["direction", "size"] and {len(row) for row in rows} == {8}
    return rows[1:]


def test_a_row_of_evidence_has_its_unit_and_the_signs_of_what_it_asks(folder):
    document = gather(folder)
    printed = evidence_cells(folder / "report.tex")
    for cells, row in zip(printed, document.evidence, strict=True):
        unit = "" if row["unit"] in ("1", "text", "") else f" ({latex.escape(row['unit'])})"
        assert cells[0] == f"{latex.symbols(row['label'])} {latex.escape(row['quantity'])}{unit}"
        assert cells[-2:] == [HELD[row["direction"]], HELD[row["size"]]]
    signs = {(row["direction"], row["size"]) for row in document.evidence}
    assert {True, False, None} == {direction for direction, _ in signs} == {s for _, s in signs}
    units = {row["unit"] for row in document.evidence}
    assert {"1", "%", "x", "nat/token"} <= units


def test_only_the_difference_of_equal_values_is_rid_of_its_last_bit(folder, tmp_path):
    document = gather(folder)
    (claim, *_), (row, *_) = document.claims, document.evidence
    pairs = {
        (0.0, 2.0**-52): ["0", "2.22e$-$16", "+2.22e$-$16"],
        (0.3, 0.1 + 0.2): ["0.3", "0.3", "0"],
        (0.3, 0.2999): ["0.3", "0.2999", "$-$0.0001"],
        (1e-13, 3e-13): ["1e$-$13", "3e$-$13", "+2e$-$13"],
        (None, 3e-13): ["---", "3e$-$13", "---"],
    }
    evidence = [
        {
            **row, "claim": claim["number"], "paper": paper, "ours": ours, "paper_n": None,
            "difference": None if paper is None else ours - paper,
        }
        for paper, ours in pairs
    ]  # fmt: skip
    written = render_document(dataclasses.replace(document, evidence=evidence), tmp_path)
    assert [cells[1:4] for cells in evidence_cells(written)] == list(pairs.values())


def test_a_long_table_is_cut_between_groups(folder):
    tables = {printed.table.label: printed for printed in gather(folder).tables}
    parts = floats(tables["app-structural-layerwise"])
    rows = [[row for panel in part for row in panel.rows] for part in parts]
    assert [part[0].key for part in rows] == ["10M/L0", "100M/L0"]
    assert sum(len(row.lines) for row in rows[0]) <= LINES_A_FLOAT
    assert len(floats(tables["main-results"])) == 1


@needs_tex
@needs_pdf
def test_hostile_words_are_typeset_as_themselves(folder):
    """In running text, captions, notes and commands; nothing that data say is obeyed."""
    text = words(typeset(folder / "report.tex"))
    assert HOSTILE.replace("猫", "[U+732B]") in text
    assert "snakemake --cores all --config a=<b>" in text
    assert "??" not in text
    for number, table in enumerate(TABLES, start=1):
        assert f"Table {number}:" in text and table.number == str(number)
    assert "Figure 1: Overview of Relation" in text and "Figure 2: Self" in text


@needs_tex
@needs_pdf
def test_the_pdf_says_its_title_subject_and_language(folder):
    pdf = typeset(folder / "report.tex")
    told = subprocess.run(["pdfinfo", pdf], capture_output=True, text=True, check=True).stdout
    facts = dict(re.findall(r"^(\w+): +(.*)$", told, re.MULTILINE))
    hostile = HOSTILE.replace("猫", "[U+732B]").translate({ord("“"): '"', ord("”"): '"'})
    title = "Ask Self, Ask Others: Relation Is All You Need. A reproduction: Invented"
    assert facts["Title"] == f"{title} {hostile}" and facts["Subject"] == hostile
    packed = re.findall(rb"/ObjStm.*?stream\r?\n(.*?)endstream", pdf.read_bytes(), re.DOTALL)
    objects = b"".join(zlib.decompressobj().decompress(part) for part in packed)
    assert b"/Lang(en)" in objects


@pytest.mark.skipif(
    not can_typeset() or typesetter() != "latexmk", reason="needs pdfLaTeX, whose log tells"
)
def test_nothing_sticks_out_of_its_column(folder, tmp_path):
    command = ["pdflatex", "-no-shell-escape", "-interaction=nonstopmode"]
    command += [f"-output-directory={tmp_path}", "report.tex"]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    log = (tmp_path / "report.log").read_text(encoding="utf-8", errors="replace")
    assert "Output written" in log
    assert re.findall(r"^Overfull .*", log, re.MULTILINE) == []


@needs_tex
def test_the_same_report_gives_the_same_pdf(folder):
    first = typeset(folder / "report.tex").read_bytes()
    assert typeset(folder / "report.tex").read_bytes() == first
    assert not list(folder.glob("*.aux")) and not (folder / "report.log").exists()


@needs_tex
@needs_pdf
def test_tables_drop_into_a_source_with_the_papers_packages(folder):
    inputs = "\n".join(rf"\input{{tables/{label}.tex}}\clearpage" for label in LABELS)
    references = " ".join(rf"\ref{{tab:{label}}}" for label in LABELS)
    text = words(typeset(article(folder, f"{inputs}\nReferences: {references}.")))
    numbers = " ".join(str(number) for number in range(1, 18))
    assert f"References: {numbers}." in text


@needs_tex
@needs_pdf
def test_a_campaign_without_a_value_is_typeset(tmp_path, monkeypatch):
    monkeypatch.setattr(report.figures, "DRAWINGS", report.figures.DRAWINGS[2:3])
    empty = make_empty()
    write_report(empty, tmp_path, draw_figures(empty, tmp_path))
    assert write_document(tmp_path) == str(tmp_path / "report.pdf")
    text = words(tmp_path / "report.pdf")
    assert "not run" in text and "Not drawn" in text and "Not the paper’s setting" in text


@needs_tex
def test_what_tex_complains_of_is_told_in_one_line(tmp_path):
    path = article(tmp_path, r"\nosuchcommand")
    with pytest.raises(RelationError, match=r"Undefined control sequence.*article\.log") as told:
        typeset(path)
    assert "\n" not in str(told.value)
    assert "nosuchcommand" in (tmp_path / "article.log").read_text(encoding="utf-8")


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def test_without_a_typesetter_the_source_is_written_and_one_line_says_so(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not can_typeset()
    stale = folder / "report.pdf"
    stale.write_bytes(b"another report")
    line = write_document(folder)
    assert "\n" not in line and "neither latexmk with pdflatex nor tectonic" in line
    assert "apt-get install latexmk" in line
    assert not stale.exists() and (folder / "report.tex").exists()


def test_a_tex_without_the_packages_is_told_which(tmp_path, monkeypatch):
    for name in ("latexmk", "pdflatex"):
        program(tmp_path, name, "exit 1")
    program(tmp_path, "kpsewhich", "echo /texmf/xcolor.sty; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTypesetterError, match=r"TeX lacks booktabs\.sty, hyperref\.sty"):
        typesetter()


def test_tectonic_is_taken_where_it_is_all_there_is(folder, tmp_path, monkeypatch):
    program(tmp_path, "tectonic", 'echo made > "$4/report.pdf"; echo "$@" > "$4/report.log"')
    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert typesetter() == "tectonic"
    assert typeset(folder / "report.tex").read_text(encoding="utf-8") == "made\n"


def test_hostile_words_are_escaped():
    assert latex.escape("a_b & 50% $x$") == r"a\_b \& 50\% \$x\$"
    assert latex.escape(r"\input{x}") == r"\textbackslash{}input\{x\}"
    assert latex.escape("[x] 猫\x1b") == "{[}x] {[}U+732B]{[}U+001B]"
    assert latex.escape("--config") == "-{}-config"
    assert latex.formula("O(T^2 d)") == "$O(T^{2} d)$"
    assert latex.formula("F_{ij} Ĩ_j") == r"$F_{ij} \tilde{I}_j$"
    assert html.formula("Ĩ_j") == "<i>Ĩ</i><sub><i>j</i></sub>"
    assert latex.formula(r"\input{x}") == r"\textbackslash{}input\{x\}"
    assert latex.plain("“λ” → a_b") == r"\textquotedbl{}lambda\textquotedbl{} -\textgreater{} a\_b"
    assert latex.symbols("F_ii = 50% of a_name") == r"$F_{ii}$ = 50\% of a\_name"
    assert latex.breakable("a/b_c") == r"a/\allowbreak{}b\_\allowbreak{}c"
    assert latex.comment("a\n\\input{b}\r− 猫") == r"% a \input{b} - [U+732B]"
