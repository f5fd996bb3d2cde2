"""What the document says, read from the report's own Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from relation.store.parquet import read_origin, read_parquet
from report.judge.frames import CELLS, CHECKLIST, CLAIMS, EVIDENCE, FIGURES, FRAMES, PROVENANCE
from report.judge.readings_frames import NAMES
from report.render.printed import PrintedTable, print_table
from report.render.readings import Readings, is_of_readings, read_readings
from report.values.tables import TABLES

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Document:
    """The report of one campaign.

    ``page`` holds the campaign's own words (``CampaignRecords.page``); the other fields are the
    tables as they print and rows of the Parquet of that name.
    """

    page: Row
    tables: Sequence[PrintedTable]
    figures: Sequence[Row]
    claims: Sequence[Row]
    evidence: Sequence[Row]
    provenance: Sequence[Row]
    checklist: Sequence[Row]
    readings: Readings


def gather(folder: Path) -> Document:
    """Read a report's folder. Raises InputError for a missing or damaged file."""

    def rows(name: str, layout: pa.Schema) -> list[dict[str, Any]]:
        return read_parquet(folder / f"{name}.parquet", layout).to_pylist()

    cells = pd.DataFrame(rows("cells", CELLS), columns=CELLS.names, dtype=object)
    figures = rows("figures", FIGURES)
    return Document(
        page=read_origin(folder / "cells.parquet")["page"],
        tables=[print_table(table, cells[cells["table"] == table.label]) for table in TABLES],
        figures=[figure for figure in figures if not is_of_readings(figure)],
        claims=rows("claims", CLAIMS),
        evidence=rows("evidence", EVIDENCE),
        provenance=rows("provenance", PROVENANCE),
        checklist=rows("checklist", CHECKLIST),
        readings=read_readings(*(rows(name, FRAMES[name]) for name in NAMES), figures),
    )
