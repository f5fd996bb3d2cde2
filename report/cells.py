"""Every value of every table: the paper's, the campaign's, their difference, and what is missing.

One row a value, keyed by (table, row, column, statistic).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from relation.errors import InputError
from report.compute.measured import Measured
from report.layout import Table
from report.paper import UNIT_SCALE, PrintedValue, load
from report.tables import TABLES

if TYPE_CHECKING:
    from relation.records import CampaignRecords

COLUMNS = {
    "table": "str",
    "row": "str",
    "column": "str",
    "statistic": "str",
    "paper": "object",
    "paper_value": "float64",
    "value": "float64",
    "text": "object",
    "unit": "str",
    "n": "int64",
    "difference": "float64",
    "status": "str",
    "reason": "str",
    "sources": "object",
}


def build(records: CampaignRecords) -> pd.DataFrame:
    """Set the campaign's values beside the paper's.

    Args:
        records: a campaign's frames; any of them may be empty or partial.

    Returns:
        One row a value. ``paper`` is the printed string or None, ``paper_value`` its number or
        NaN; ``value`` and ``difference`` (value - paper_value) are in ``unit``, NaN where there is
        none; ``text`` holds worded values; ``n`` counts seeds or measurements; ``status`` is one
        of "ok", "not run", "oom", "not reached", "no counterpart"; ``reason`` says why a value is
        missing or what a present one leaves out; ``sources`` lists the records behind it.

    Raises:
        InputError: the paper's CSV holds a key that the table does not know.
    """
    rows = [row for table in TABLES for row in _table_rows(table, records)]
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in COLUMNS.items()}
    )


def _table_rows(table: Table, records: CampaignRecords) -> list[dict[str, object]]:
    printed = load(table.label)
    measured = table.measure(records)
    unknown = printed.keys() - measured.keys()
    if unknown:
        key = ", ".join(sorted(unknown)[0])
        raise InputError(
            f"report/paper/{table.label}.csv: {key} is no value of this table; correct the key"
        )
    keys = [*printed, *(key for key in measured if key not in printed)]
    return [_cell(table.label, key, printed.get(key), measured[key]) for key in keys]


def _cell(
    label: str, key: tuple[str, str, str], printed: PrintedValue | None, measured: Measured
) -> dict[str, object]:
    unit = printed.unit if printed else measured.unit
    value = None if measured.value is None else measured.value / UNIT_SCALE[unit]
    paper_value = printed.number if printed else None
    comparable = value is not None and paper_value is not None
    return {
        "table": label,
        "row": key[0],
        "column": key[1],
        "statistic": key[2],
        "paper": printed.printed if printed else None,
        "paper_value": paper_value,
        "value": value,
        "text": measured.text,
        "unit": unit,
        "n": measured.n,
        "difference": value - paper_value if comparable else None,
        "status": measured.status,
        "reason": measured.reason,
        "sources": list(measured.sources),
    }
