"""The rule `report`: tables and index, from the cells and figures Parquet alone."""

from pathlib import Path

from relation.parquet import read_origin, read_parquet
from report.jobs.schemas import CELLS, FIGURES
from report.render import render_tables


def render_report(folder: Path) -> None:
    """Render the seventeen tables and the index into a report's folder."""
    cells = folder / "cells.parquet"
    figures = read_parquet(folder / "figures.parquet", FIGURES).to_pylist()
    page = read_origin(cells)["page"]
    render_tables(read_parquet(cells, CELLS).to_pandas(), page, figures, folder)
