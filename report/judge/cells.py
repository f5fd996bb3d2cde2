"""Every value of every table: the paper's, the campaign's, their difference, and what is missing.

One row a value, keyed by (table, row, column, statistic).
"""

from typing import Any

import pandas as pd

from relation.errors import InputError
from relation.pipeline.provenance import worst
from report.judge.chosen import chosen_reading, rests_on_the_choice, why
from report.judge.frames import CELL_KEY, CELLS
from report.judge.setting import Setting, Settings
from report.judge.tolerances import load_rules, rule_for
from report.judge.verdicts import judge
from report.values.frames import CampaignRecords
from report.values.layout import SCALES, Table
from report.values.measured import Measured
from report.values.paper import UNIT_SCALE, PrintedValue, load
from report.values.tables import BEYOND, EVERY

_DTYPES = {"double": "float64", "int64": "int64"}


def build(records: CampaignRecords, *labels: str) -> pd.DataFrame:
    """Set the campaign's values beside the paper's.

    Args:
        records: a campaign's frames; any of them may be empty or partial.
        labels: the tables to take; all where none is given.

    Returns:
        A row a value, as CELLS describes its columns: ``value`` and ``difference``
        (value - paper_value) in ``unit``, NaN where there is none; no verdict where the paper
        prints nothing, no freshness where there is no value.

    Raises:
        InputError: the paper's CSV holds a key that the table does not know, or no rule of the
            tolerances covers one of its values.
    """
    behind = Behind(records)
    tables = [table for table in EVERY if not labels or table.label in labels]
    rows = [row for table in tables for row in _table_rows(table, records, behind)]
    columns = {field.name: _DTYPES.get(str(field.type), "object") for field in CELLS}
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in columns.items()}
    )


class Behind:
    """What stands behind values: the devices and the freshness of their sources."""

    def __init__(self, records: CampaignRecords) -> None:
        self._settings = Settings(records)
        self._chosen = chosen_reading(records)
        self._sources = records.provenance.set_index("source").to_dict("index")

    def setting(self, row: str, sources: tuple[str, ...]) -> Setting:
        """What a value of this row has in common with the paper's; most rows begin with a scale."""
        scale = row.partition("/")[0]
        return self._settings.of(sources, (scale,) if scale in SCALES else ())

    def choice(self, table: str, row: str, column: str) -> str:
        """Why a value is evidence of the choice of a reading; empty where it is not."""
        rests = self._chosen is not None and rests_on_the_choice(table, row, column)
        return why(self._chosen) if rests else ""

    def freshness(self, sources: tuple[str, ...]) -> tuple[str, str]:
        """The worst state of these sources, and the reasons for it."""
        found = [self._sources[source] for source in sources if source in self._sources]
        state = worst(row["freshness"] for row in found)
        reasons = (row["freshness_reason"] for row in found if row["freshness"] == state)
        return state, "; ".join(dict.fromkeys(filter(None, reasons)))


def _table_rows(table: Table, records: CampaignRecords, behind: Behind) -> list[dict[str, object]]:
    printed = {} if table in BEYOND else load(table.label)
    measured = records.made(table.measure)
    unknown = printed.keys() - measured.keys()
    if unknown:
        key = ", ".join(sorted(unknown)[0])
        raise InputError(
            f"report/paper/{table.label}.csv: {key} is no value of this table; correct the key"
        )
    keys = [*printed, *(key for key in measured if key not in printed)]
    # A setting read off several records names none: it is as old as the oldest of its table.
    every = tuple(dict.fromkeys(s for value in measured.values() for s in value.sources))
    return [_cell(table.label, key, printed.get(key), measured[key], every, behind) for key in keys]


def _cell(
    label: str,
    key: tuple[str, str, str],
    printed: PrintedValue | None,
    measured: Measured,
    every: tuple[str, ...],
    behind: Behind,
) -> dict[str, object]:
    unit = printed.unit if printed else measured.unit
    paper = printed.number if printed else None
    value, spread, margin = (
        None if number is None else number / UNIT_SCALE[unit]
        for number in (measured.value, measured.spread, measured.margin)
    )
    sources = measured.sources or (every if measured.status != "no counterpart" else ())
    fresh = behind.freshness(sources) if measured.status == "ok" else (None, None)
    cell: dict[str, Any] = dict.fromkeys(CELLS.names) | {
        **dict(zip(CELL_KEY, (label, *key), strict=True)),
        **{name: getattr(measured, name) for name in ("text", "n", "status", "reason", "rows")},
        "paper": printed.printed if printed else None,
        "paper_value": paper,
        "value": value,
        "unit": unit,
        "spread": spread,
        "low": None if margin is None else value - margin,
        "high": None if margin is None else value + margin,
        "difference": None if value is None or paper is None else value - paper,
        "freshness": fresh[0],
        "freshness_reason": fresh[1],
        "sources": list(sources),
    }
    if printed is None:
        return cell
    rule = rule_for(cell, load_rules())
    chose = behind.choice(label, key[0], key[1])
    judged = judge(cell, margin, rule, behind.setting(key[0], sources), chose)
    return cell | {
        "tolerance": judged.tolerance,
        "least": judged.least,
        "most": judged.most,
        "tolerance_rule": rule.why,
        "verdict": judged.verdict,
        "verdict_reason": judged.reason,
    }
