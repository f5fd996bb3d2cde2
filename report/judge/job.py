"""The rule `cells`: every value of every table, what is behind it, and what the paper claims."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from relation.store.parquet import write_parquet
from report.judge.cells import Behind, build
from report.judge.checklist import checklist
from report.judge.claims import Judged, judge_claims
from report.judge.frames import CELLS, EVIDENCE, FRAMES, MISSING, PROVENANCE, page_origin
from report.judge.readings_frames import reading_rows
from report.values.frames import CampaignRecords


def write_cells(records: CampaignRecords, folder: Path) -> None:
    """Compute what the pages show, from cells to readings, and write each frame to its Parquet."""
    origin = page_origin(records, "cells")
    judged, behind = judge_claims(records), Behind(records)

    rows = {
        "cells": _rows(build(records), CELLS),
        "provenance": _rows(records.provenance, PROVENANCE),
        "missing": _rows(records.missing, MISSING),
        "claims": [_claim(claim, behind) for claim in judged],
        "evidence": [row for claim in judged for row in _evidence(claim)],
        "checklist": checklist(records, judged),
        **reading_rows(records.readings),
    }
    for name, layout in FRAMES.items():
        write_parquet(folder / f"{name}.parquet", layout, rows[name], origin)


def _rows(frame: pd.DataFrame, layout: pa.Schema) -> list[dict[str, Any]]:
    """A frame's rows with None for what is missing, and whole numbers where the layout has them."""
    rows = frame.astype(object).where(frame.notna(), None)[layout.names].to_dict("records")
    whole = [field.name for field in layout if field.type == pa.int64()]
    for row in rows:
        row.update({name: int(row[name]) for name in whole if row[name] is not None})
    return rows


def _claim(judged: Judged, behind: Behind) -> dict[str, Any]:
    claim, fresh = judged.claim, (None, None)
    if judged.sources:
        fresh = behind.freshness(judged.sources)
    flips = (f"without seed {seed}: {verdict}" for seed, verdict in judged.flips.items())
    told = ("verdict", "reason", "not_established", "without", "beside")
    return {name: getattr(judged, name) for name in told} | {
        "number": claim.number,
        "claim": claim.text,
        "rule": claim.rule,
        "tables": list(claim.tables),
        "sources": list(judged.sources),
        "flips": "; ".join(flips),
        "freshness": fresh[0],
        "freshness_reason": fresh[1],
    }


def _evidence(judged: Judged) -> Iterable[dict[str, Any]]:
    for row in judged.evidence:
        both = row.ours is not None and row.paper is not None and row.paper_n is None
        yield {name: getattr(row, name, None) for name in EVIDENCE.names} | {
            "claim": judged.claim.number,
            "difference": row.ours - row.paper if both else None,
        }
