"""What the pages and the document say of a campaign, read from the report's own Parquet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from relation.store.parquet import read_origin, read_parquet
from report.judge.frames import FIGURES, FRAMES
from report.judge.readings_frames import NAMES
from report.render.pipeline import Rule
from report.render.printed import PrintedTable, print_table
from report.render.readings import Readings, is_of_readings, read_readings
from report.render.runs import Run
from report.render.shipped import Shipped
from report.values.layout import Table
from report.values.tables import BEYOND, TABLES

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Content:
    """The report of one campaign.

    ``page`` holds the campaign's own words (``CampaignRecords.page``), ``tables`` the ``cells``
    laid out, ``figures`` those of no reading; ``beyond`` and ``beyond_figures`` are of what the
    paper does not measure. ``runs``, ``further`` (of the pairs beyond the
    matrix) and ``pipeline`` are for the pages alone. ``shipped`` are all shipped reports, where
    this is one of several. The other fields are rows of the Parquet of that name.
    """

    page: Row
    cells: pd.DataFrame
    tables: Sequence[PrintedTable]
    figures: Sequence[Row]
    claims: Sequence[Row]
    evidence: Sequence[Row]
    provenance: Sequence[Row]
    missing: Sequence[Row]
    checklist: Sequence[Row]
    readings: Readings
    beyond: Sequence[PrintedTable] = ()
    beyond_figures: Sequence[Row] = ()
    runs: Sequence[Run] = ()
    further: Sequence[Run] = ()
    pipeline: Sequence[Rule] = ()
    shipped: Sequence[Shipped] = ()


def gather(folder: Path) -> Content:
    """Read a report's folder. Raises InputError for a missing or damaged file."""
    frames = {
        name: read_parquet(folder / f"{name}.parquet", layout)
        for name, layout in {**FRAMES, "figures": FIGURES}.items()
    }
    cells = frames.pop("cells").to_pandas()
    rows = {name: frame.to_pylist() for name, frame in frames.items()}
    figures = rows.pop("figures")
    return Content(
        page=read_origin(folder / "cells.parquet")["page"],
        cells=cells,
        tables=printed_tables(cells),
        beyond=printed_tables(cells, BEYOND),
        figures=[f for f in figures if not (is_of_readings(f) or _is_beyond(f))],
        beyond_figures=list(filter(_is_beyond, figures)),
        readings=read_readings(*(rows.pop(name) for name in NAMES), figures),
        **rows,
    )


def printed_tables(cells: pd.DataFrame, tables: Sequence[Table] = TABLES) -> list[PrintedTable]:
    """Tables laid out, the seventeen unless others are named."""
    return [print_table(table, cells[cells["table"] == table.label]) for table in tables]


def _is_beyond(figure: Row) -> bool:
    return figure["name"].startswith("beyond-")
