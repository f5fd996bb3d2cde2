"""report.tex to report.pdf, with whichever typesetter is installed."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from relation.errors import RelationError
from relation.store.files import atomic_path

# What the document loads beyond LaTeX's base, and where Debian keeps it.
PACKAGES = {
    "booktabs.sty": "texlive-latex-recommended",
    "xcolor.sty": "texlive-latex-recommended",
    "hyperref.sty": "texlive-latex-base",
    "amssymb.sty": "texlive-latex-base",
    "mathptmx.sty": "texlive-latex-base",
    "utmr8a.pfb": "texlive-fonts-recommended",
}
DEBIAN = "apt-get install latexmk texlive-latex-recommended texlive-fonts-recommended"
SECONDS = 300


class MissingTypesetterError(RelationError):
    """No typesetter is installed, or one lacks a package; the message says what to install."""


def typesetter() -> str:
    """The command that typesets: latexmk, where pdfLaTeX and its packages are there, or tectonic.

    Raises MissingTypesetterError where there is neither.
    """
    tools = ("latexmk", "pdflatex", "kpsewhich")
    if all(map(shutil.which, tools)):
        lacking = _lacking()
        if not lacking:
            return "latexmk"
        why = f"TeX lacks {', '.join(lacking)}"
    else:
        why = "neither latexmk with pdflatex nor tectonic is on PATH"
    if shutil.which("tectonic"):
        return "tectonic"
    raise MissingTypesetterError(f"report.pdf was not made: {why}; on Debian: {DEBIAN}")


def can_typeset() -> bool:
    """Whether `typeset` finds something to typeset with."""
    try:
        return bool(typesetter())
    except MissingTypesetterError:
        return False


def _lacking() -> list[str]:
    found = subprocess.run(
        ["kpsewhich", *PACKAGES], capture_output=True, text=True, check=False
    ).stdout
    there = {Path(line).name for line in found.splitlines()}
    return [name for name in PACKAGES if name not in there]


def _command(tool: str, source: Path, out: Path) -> Sequence[str | Path]:
    if tool == "tectonic":
        return ["tectonic", "--untrusted", "--keep-logs", "--outdir", out, source.name]
    # -norc: a reader's own latexmkrc is for their papers. No text of the report may start programs.
    return [
        "latexmk",
        "-norc",
        "-pdf",
        "-interaction=nonstopmode",
        "-halt-on-error",
        "-pdflatex=pdflatex -no-shell-escape %O %S",
        f"-outdir={out}",
        source.name,
    ]


def typeset(source: Path) -> Path:
    """Typeset a document into a PDF beside it; the same source and figures give the same bytes.

    Raises:
        MissingTypesetterError: nothing that typesets is installed.
        RelationError: the typesetter failed; the message has TeX's first complaint, and the whole
            log lies beside the source.
    """
    tool = typesetter()
    result, log = source.with_suffix(".pdf"), source.with_suffix(".log")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        try:
            done = subprocess.run(
                _command(tool, source, out),
                cwd=source.parent,
                env={**os.environ, "max_print_line": "1000"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RelationError(f"{source}: {tool} took more than {SECONDS} s") from None
        made = out / result.name
        written = out / log.name
        said = done.stdout.decode("utf-8", "replace")
        if written.exists():
            said = written.read_text(encoding="utf-8", errors="replace")
        if done.returncode or not made.exists():
            log.write_text(said, encoding="utf-8")
            complaint = re.search(r"^(?:! |error: )(.+)$", said, re.MULTILINE)
            first = complaint[1] if complaint else f"{tool} exited with {done.returncode}"
            raise RelationError(f"{source}: {first}; the whole log is {log}")
        log.unlink(missing_ok=True)
        with atomic_path(result) as target:
            shutil.copyfile(made, target)
    return result
