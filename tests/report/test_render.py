"""Tables as a reader sees them: HTML, LaTeX and CSV."""

import re
import shutil
import subprocess
from dataclasses import replace

import pandas as pd
import pytest
from test_tables import PLAN, pairs_of, paper_runs, records

from report import render, table, tables
from report.data import Setting

A, B = Setting("made", title="Nearest & best_1"), Setting("made", "other", title="Other")
MAIN = next(each for each in tables.PAPER if each.label == "main-results")


def html(of: table.Table, cells: pd.DataFrame, settings: list[Setting]) -> str:
    printed = render.prepare(of, cells[cells["table"] == of.label], settings)
    return render.HTML.get_template("cells.html.j2").render(printed=printed)


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    """Cells of two settings: one has the pairs of 10M, the other has none."""
    hybrids = [each for each in paper_runs() if each["variant"] == "hybrid"]
    ours = records(PLAN, runs=pairs_of([-0.045, -0.040, -0.039]) + hybrids)
    return table.cells([ours, replace(records(PLAN), setting=B)], tables.EVERY)


def test_a_line_has_the_papers_value_ours_with_its_interval_and_the_difference(cells) -> None:
    text = html(MAIN, cells, [A])
    line = re.search(r">Δ \(nat/token\)</th>(.*?)</tr>", text, re.S)[1]
    assert "−0.0412" in line and "−0.0413" in line and "(−0.04" in line and "−0.0001" in line
    assert "sign agrees" in line
    assert "Nearest &amp; best_1" in text
    assert [render.number(x, "+.2f") for x in (-1.5, 1e-5)] == ["−1.50", "+1e−05"]
    assert render.rich("T^2 < d") == "T<sup>2</sup> &lt; d"
    level = re.search(r">MHA NLL ↓ \(nat/token\)</th>(.*?)</tr>", text, re.S)[1]
    assert "3.0000 ± 0.0000" in level and "1.6853 ± 0.0042" in level and "sign" not in level


def test_a_gap_has_a_word_and_a_note(cells) -> None:
    text = html(MAIN, cells, [A])
    noted = re.search(r'not run<sup><a class="mark" href="#(note-main-results-\w+)"', text)
    assert noted and f'id="{noted[1]}"' in text
    assert "Not part of these settings: 30M, 100M." in text
    assert "<td></td>" not in text.replace(" ", "")


def test_a_setting_without_a_value_says_so(cells) -> None:
    text = html(MAIN, cells, [A, B])
    assert "Other: nothing of this table (" in text


def test_csv_holds_every_cell_of_every_setting(cells, tmp_path) -> None:
    render.write(tables.EVERY, cells, [A], tmp_path)
    written = pd.read_csv(tmp_path / "tables" / "main-results.csv")
    assert set(written["setting"]) == {A.name, B.name}
    assert {"n", "sd", "low", "high", "reason", "sources", "paper", "difference"} <= set(written)
    assert len(written) == (cells["table"] == "main-results").sum()
    assert written[written["status"] != "ok"]["reason"].notna().all()


def test_tables_tex_reads_the_seventeen_tables_and_typesets(cells, tmp_path) -> None:
    render.write(tables.EVERY, cells, [A], tmp_path)
    source = (tmp_path / "tables.tex").read_text()
    named = re.findall(r"^\\printed\{\d+\}\{([\w-]+)\}", source, re.M)
    assert [each.label for each in tables.PAPER] == named[:17]
    assert r"Nearest \& best\_" in (tmp_path / "tables" / "main-results.tex").read_text()
    assert all((tmp_path / "tables" / f"{name}.tex").is_file() for name in named)
    if not shutil.which("latexmk"):
        pytest.skip("latexmk is not installed")
    command = ["latexmk", "-pdf", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert (tmp_path / "tables.pdf").stat().st_size > 10_000
