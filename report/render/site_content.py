"""Everything that the pages say, read from a campaign's Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relation.store.parquet import read_origin, read_parquet
from report.judge.frames import FIGURES, FRAMES
from report.render.pipeline import Pipeline, campaign_pipeline
from report.render.printed import PrintedTable, print_table
from report.render.readings import run_names
from report.render.runs import Run, read_further, read_runs
from report.values.tables import TABLES

if TYPE_CHECKING:
    import pandas as pd

    from relation.pipeline.campaign import Campaign
    from relation.pipeline.results import Results

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Content:
    """What the site shows of one campaign.

    ``page`` holds the campaign's own words (``CampaignRecords.page``) and ``tables`` the ``cells``
    laid out; the other fields are rows of the Parquet of that name, and ``runs``, ``further`` (of
    the pairs beyond the matrix) and ``pipeline`` what their modules read.
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
    readings: Sequence[Row]
    readings_choice: Sequence[Row]
    readings_runs: Sequence[Row]
    readings_said: Sequence[Row]
    runs: Sequence[Run]
    further: Sequence[Run]
    pipeline: Pipeline


def gather(campaign: Campaign, results: Results) -> Content:
    """Read what the report's other rules and the runs have written.

    Raises InputError for a missing or damaged file.
    """
    folder = results.report
    frames = {
        name: read_parquet(folder / f"{name}.parquet", layout)
        for name, layout in {**FRAMES, "figures": FIGURES}.items()
    }
    rows = {name: frame.to_pylist() for name, frame in frames.items() if name != "cells"}
    runs = read_runs(campaign, results, rows["missing"])
    further = read_further(campaign, results, rows["missing"])
    cells = frames["cells"].to_pandas()
    return Content(
        page=read_origin(folder / "cells.parquet")["page"],
        cells=cells,
        tables=printed_tables(cells),
        runs=runs,
        further=further,
        pipeline=campaign_pipeline(
            campaign, runs, rows["missing"], further, run_names(rows["readings_runs"])
        ),
        **rows,
    )


def printed_tables(cells: pd.DataFrame) -> list[PrintedTable]:
    """The seventeen tables, laid out."""
    return [print_table(table, cells[cells["table"] == table.label]) for table in TABLES]
