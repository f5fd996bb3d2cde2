"""The report on paper: a LaTeX file a table, and the whole as one document."""

from report.document.content import Document, gather
from report.document.render import render_document

__all__ = ["Document", "gather", "render_document"]
