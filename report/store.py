"""The report's own Parquet: cells and figures go through it, so pages rest on records alone."""

from pathlib import Path

import pyarrow as pa

from relation.origin import origin
from relation.parquet import Column, read_origin, read_parquet, schema, write_parquet
from relation.records import CampaignRecords
from relation.spec import canonical_hash
from report.cells import build
from report.figures import draw_figures
from report.render import render_tables

_TEXT, _REAL = pa.string(), pa.float64()

CELLS = schema(
    Column("table", _TEXT, description="LaTeX label without tab:"),
    Column("row", _TEXT),
    Column("column", _TEXT),
    Column("statistic", _TEXT, description="value, mean or sd"),
    Column("paper", _TEXT, description="as printed; null where the paper has no such cell"),
    Column("paper_value", _REAL, "the row's unit"),
    Column("value", _REAL, "the row's unit", "the campaign's"),
    Column("text", _TEXT, description="the campaign's, where the cell is words"),
    Column("unit", _TEXT),
    Column("n", pa.int64(), description="seeds or measurements behind the value"),
    Column("difference", _REAL, "the row's unit", "value - paper_value"),
    Column("status", _TEXT),
    Column("reason", _TEXT),
    Column("sources", pa.list_(_TEXT), description="Parquet files behind the value"),
)

FIGURES = schema(
    Column("name", _TEXT),
    Column("title", _TEXT),
    Column("alt", _TEXT),
    Column("file", _TEXT, description="SVG below the report; null where it was not drawn"),
    Column("reason", _TEXT, description="why it was not drawn"),
)


def _origin(records: CampaignRecords, stage: str) -> dict:
    page = records.page
    devices = "; ".join(page["devices"]) or "none"
    return dict(origin(page["campaign"], canonical_hash(page), stage, devices, page=page))


def write_cells(records: CampaignRecords, path: Path) -> None:
    """Compute every cell and write cells.parquet; what pages say of the campaign is its origin."""
    frame = build(records)
    rows = frame.astype(object).where(frame.notna(), None)[CELLS.names].to_dict("records")
    write_parquet(path, CELLS, rows, _origin(records, "cells"))


def write_figures(records: CampaignRecords, path: Path) -> None:
    """Draw every figure beside figures.parquet, which lists them."""
    figures = draw_figures(records, path.parent)
    write_parquet(path, FIGURES, figures, _origin(records, "figures"))


def render_report(folder: Path) -> None:
    """Render tables and index into a report's folder from its cells and figures Parquet alone."""
    cells = folder / "cells.parquet"
    figures = read_parquet(folder / "figures.parquet", FIGURES).to_pylist()
    page = read_origin(cells)["page"]
    render_tables(read_parquet(cells, CELLS).to_pandas(), page, figures, folder)
