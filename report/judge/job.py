"""The rule `cells`: every value of every table, what is behind it, and what the paper claims."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from relation.store.parquet import write_parquet
from report.judge.cells import Behind, build
from report.judge.checklist import checklist
from report.judge.claims import Judged, judge_claims
from report.judge.frames import CELLS, FRAMES, MISSING, PROVENANCE, page_origin
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
    fresh = behind.freshness(judged.sources) if judged.sources else (None, None)
    flips = (f"without seed {seed}: {verdict}" for seed, verdict in judged.flips.items())
    return {
        "number": judged.claim.number,
        "claim": judged.claim.text,
        "verdict": judged.verdict,
        "reason": judged.reason,
        "not_established": judged.not_established,
        "beside": judged.beside,
        "rule": judged.claim.rule,
        "tables": list(judged.claim.tables),
        "sources": list(judged.sources),
        "flips": "; ".join(flips),
        "freshness": fresh[0],
        "freshness_reason": fresh[1],
    }


def _evidence(judged: Judged) -> Iterable[dict[str, Any]]:
    for row in judged.evidence:
        both = row.ours is not None and row.paper is not None and row.paper_n is None
        yield {
            "claim": judged.claim.number,
            "label": row.label,
            "quantity": row.quantity,
            "paper": row.paper,
            "ours": row.ours,
            "difference": row.ours - row.paper if both else None,
            "low": row.low,
            "high": row.high,
            "n": row.n,
            "counted": row.counted,
            "paper_n": row.paper_n,
            "unit": row.unit,
            "direction": row.direction,
            "size": row.size,
            "note": row.note,
        }
