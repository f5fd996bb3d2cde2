"""The rule `cells`: every value of every table."""

from pathlib import Path

from relation.parquet import write_parquet
from relation.records import CampaignRecords
from report.cells import build
from report.jobs.schemas import CELLS, page_origin


def write_cells(records: CampaignRecords, path: Path) -> None:
    """Compute every cell and write cells.parquet."""
    frame = build(records)
    rows = frame.astype(object).where(frame.notna(), None)[CELLS.names].to_dict("records")
    write_parquet(path, CELLS, rows, page_origin(records, "cells"))
