"""The rule `document`: the tables in LaTeX, report.tex, and report.pdf where TeX is installed."""

from pathlib import Path

from report.render.document import render_document
from report.render.document_content import gather
from report.render.typeset import MissingTypesetterError, typeset


def write_document(folder: Path) -> str:
    """Write tables/<label>.tex, report.tex and report.pdf into a report's folder.

    Returns:
        One line: where the PDF is, or why there is none.

    Raises:
        InputError: the report's Parquet is missing or damaged.
        RelationError: the typesetter failed.
    """
    source = render_document(gather(folder), folder)
    try:
        return f"{typeset(source)}"
    except MissingTypesetterError as missing:
        # A PDF of other results must not stay beside this source.
        source.with_suffix(".pdf").unlink(missing_ok=True)
        return f"{missing}; then run the same command again"
