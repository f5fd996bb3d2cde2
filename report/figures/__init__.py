"""The pictures of a campaign, drawn from its records alone as SVG."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib import rc_context
from matplotlib.figure import Figure

from report.figures import structure, systems, training
from report.figures.drawing import Drawing, NotDrawnError
from report.style import STYLE, adapt

if TYPE_CHECKING:
    from relation.records import CampaignRecords

DRAWINGS: tuple[Drawing, ...] = (*training.DRAWINGS, *structure.DRAWINGS, *systems.DRAWINGS)


def draw_figures(records: CampaignRecords, out_dir: Path) -> list[dict[str, str | None]]:
    """Draw every figure whose data are there under ``out_dir``/figures.

    The same records give the same bytes.

    Returns:
        One entry a figure, in the order of the page: name, title, alt (what the picture shows, in
        words), file (relative to ``out_dir``; None if not drawn) and reason (why not; else empty).
    """
    folder = Path(out_dir) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    return [_draw(drawing, records, folder) for drawing in DRAWINGS]


def _draw(drawing: Drawing, records: CampaignRecords, folder: Path) -> dict[str, str | None]:
    entry: dict[str, str | None] = {
        "name": drawing.name,
        "title": drawing.title,
        "alt": drawing.alt,
        "file": None,
        "reason": "",
    }
    path = folder / f"{drawing.name}.svg"
    with rc_context({**matplotlib.rcParamsDefault, **STYLE, "backend": "svg"}):
        try:
            figure = drawing.draw(records)
        except NotDrawnError as missing:
            path.unlink(missing_ok=True)
            return entry | {"reason": str(missing)}
        path.write_text(_svg(figure), encoding="utf-8")
    return entry | {"file": f"{folder.name}/{path.name}"}


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return adapt(buffer.getvalue())
