"""The pictures of a campaign, drawn from its records alone: SVG for the pages, PDF for print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib import rc_context

from report.figures import (
    flow_maps,
    formation,
    further,
    overview,
    readings,
    self_exchange,
    structure,
    systems,
    training,
    validation,
)
from report.figures.drawing import Drawing, NotDrawnError
from report.figures.shapes import TYPE
from report.style import STYLE, svg_text

if TYPE_CHECKING:
    from relation.records import CampaignRecords

DRAWINGS: tuple[Drawing, ...] = (
    overview.DRAWING,
    self_exchange.DRAWING,
    *training.DRAWINGS,
    *further.DRAWINGS,
    validation.DRAWING,
    *structure.DRAWINGS,
    *flow_maps.DRAWINGS,
    *formation.DRAWINGS,
    *systems.DRAWINGS,
)
# Those of the page "Readings", which shows them beside its tables.
READINGS: tuple[Drawing, ...] = readings.DRAWINGS
# The face is looked up when a figure is written, so one drawing serves page and print.
_PAGE = {"font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"]}
_PRINT = {"font.sans-serif": ["STIXGeneral"], "pdf.fonttype": 42}


def draw_figures(
    records: CampaignRecords, out_dir: Path, drawings: Sequence[Drawing] | None = None
) -> list[dict[str, Any]]:
    """Draw every figure whose data are there under ``out_dir``/figures, as SVG and as PDF.

    The same records give the same bytes. drawings: which, DRAWINGS where None is given.

    Returns:
        One entry a figure that the campaign plans, in the order of the page: name, title, alt (what
        the picture shows, in words), file (the SVG, relative to ``out_dir``; None if not drawn; the
        PDF lies beside it), page (HTML on which a reader explores it; None if there is none),
        reason (why not drawn; else empty) and sources (the Parquet files that it is drawn from).
    """
    folder = Path(out_dir) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for drawing in DRAWINGS if drawings is None else drawings:
        if drawing.planned is None or drawing.planned(records):
            entries.append(_draw(drawing, records, folder))
        else:
            _remove(drawing, folder)
    return entries


def _files(drawing: Drawing, folder: Path) -> tuple[Path, ...]:
    """A figure's picture, its print and its page."""
    return tuple(folder / f"{drawing.name}.{suffix}" for suffix in ("svg", "pdf", "html"))


def _remove(drawing: Drawing, folder: Path) -> None:
    """What an earlier call drew of other records must not stay."""
    for stale in _files(drawing, folder):
        stale.unlink(missing_ok=True)


def _draw(drawing: Drawing, records: CampaignRecords, folder: Path) -> dict[str, Any]:
    entry: dict[str, str | None] = {
        "name": drawing.name,
        "title": drawing.title if isinstance(drawing.title, str) else drawing.title(records),
        "alt": drawing.alt,
        "file": None,
        "page": None,
        "reason": "",
        "sources": [],
    }
    path, printed, page = _files(drawing, folder)
    outlined = {**TYPE, "svg.fonttype": "path"} if drawing.outlined else {}
    with rc_context({**matplotlib.rcParamsDefault, **STYLE, **_PAGE, **outlined, "backend": "svg"}):
        try:
            figure = drawing.draw(records)
        except NotDrawnError as missing:
            _remove(drawing, folder)
            return entry | {"reason": str(missing)}
        path.write_text(svg_text(figure), encoding="utf-8")
        with rc_context(_PRINT):
            figure.savefig(printed, format="pdf", metadata={"CreationDate": None, "Creator": None})
    entry |= {"file": f"{folder.name}/{path.name}", "sources": drawing.sources(records)}
    if drawing.page is not None:
        page.write_text(drawing.page(records), encoding="utf-8")
        entry["page"] = f"{folder.name}/{page.name}"
    return entry
