"""The pictures of a campaign, drawn from its records alone: SVG for the pages, PDF for print.

A PDF takes as long as its SVG: only what the document shows gets one.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from relation.store.parquet import read_parquet, write_parquet
from report.figures import (
    beyond,
    diagrams,
    flow_maps,
    formation,
    further,
    readings,
    readings_curve,
    recall,
    structure,
    systems,
    training,
    validation,
)
from report.figures.drawing import Drawing, NotDrawnError
from report.figures.runs import draw_runs
from report.judge.frames import FIGURES, page_origin
from report.values.frames import CampaignRecords
from report.values.style import save, styled


def _declared(*modules: ModuleType) -> tuple[Drawing, ...]:
    found = (vars(module).values() for module in modules)
    return tuple(one for one in chain.from_iterable(found) if isinstance(one, Drawing))


# Every figure that these modules declare, in the order of the page.
DRAWINGS = _declared(
    diagrams,
    training,
    further,
    validation,
    structure,
    flow_maps,
    formation,
    systems,
    recall,
    beyond,
)
# Those of the page "Readings", which shows them beside its tables.
READINGS = (*_declared(readings), *readings_curve.DRAWINGS)


def write_figures(records: CampaignRecords, path: Path, drawn: Path | None = None) -> None:
    """Draw every figure beside figures.parquet, which lists them, and the curves of every run.

    drawn: figures.parquet of another report; its pictures of the same readings are copied.
    """
    readings = READINGS if drawn is None else tuple(_taken(records, drawn))
    figures = draw_figures(records, path.parent) + draw_figures(records, path.parent, readings)
    draw_runs(records, path.parent)
    write_parquet(path, FIGURES, figures, page_origin(records, "figures"))


def _taken(records: CampaignRecords, drawn: Path) -> Iterator[Drawing]:
    """READINGS, with the pictures that another report has drawn from the same files."""
    theirs = {row["name"]: row for row in read_parquet(drawn, FIGURES).to_pylist()}
    for drawing in READINGS:
        row = theirs.get(drawing.name)
        same = row is not None and row["file"] and row["sources"] == drawing.sources(records)
        yield replace(drawing, draw=drawn.parent / row["file"]) if same else drawing


def draw_figures(
    records: CampaignRecords, out_dir: Path, drawings: Sequence[Drawing] | None = None
) -> list[dict[str, Any]]:
    """Draw every figure whose data are there under ``out_dir``/figures, as SVG; as PDF if printed.

    The same records give the same bytes. drawings: which, DRAWINGS where None is given.

    Returns:
        One entry a figure that the campaign plans, in the order of the page: name, heading (what it
        shows, in a few words), title (its caption), alt (what the picture shows, for those who do
        not see it), file (the SVG, relative to ``out_dir``; None if not drawn), printed (whether
        the document has it too, from a PDF beside it), page (HTML on which a reader explores it;
        None if there is none), reason (why not drawn; else empty) and sources (the Parquet files
        that it is drawn from).
    """
    folder = Path(out_dir) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for drawing in DRAWINGS if drawings is None else drawings:
        # What an earlier call drew of other records must not stay.
        for suffix in ("svg", "pdf", "html"):
            (folder / f"{drawing.name}.{suffix}").unlink(missing_ok=True)
        if drawing.planned is None or drawing.planned(records):
            entries.append(_draw(drawing, records, folder))
    return entries


def _draw(drawing: Drawing, records: CampaignRecords, folder: Path) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": drawing.name,
        "heading": drawing.heading,
        "title": drawing.title if isinstance(drawing.title, str) else drawing.title(records),
        "alt": drawing.alt,
        "file": None,
        "printed": drawing.printed,
        "page": None,
        "reason": "",
        "sources": [],
    }
    picture, page = (folder / f"{drawing.name}.{suffix}" for suffix in ("svg", "html"))
    if isinstance(drawing.draw, Path):
        for suffix in (".svg", ".pdf") if drawing.printed else (".svg",):
            shutil.copyfile(drawing.draw.with_suffix(suffix), picture.with_suffix(suffix))
    else:
        with styled():
            try:
                figure = drawing.draw(records)
            except NotDrawnError as missing:
                return entry | {"reason": str(missing)}
            save(figure, picture, drawing.printed)
    entry |= {"file": f"{folder.name}/{picture.name}", "sources": drawing.sources(records)}
    if drawing.page is not None:
        page.write_text(drawing.page(records), encoding="utf-8")
        entry["page"] = f"{folder.name}/{page.name}"
    return entry
