"""Every value of every table: the paper's, the campaign's, their difference, and what is missing.

One row a value, keyed by (table, row, column, statistic).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from relation.errors import InputError
from relation.pipeline.provenance import worst
from report.judge.setting import Setting, Settings
from report.judge.tolerances import load_rules, rule_for
from report.judge.verdicts import judge
from report.values.layout import SCALES, Table
from report.values.measured import Measured
from report.values.paper import UNIT_SCALE, PrintedValue, load
from report.values.tables import TABLES

if TYPE_CHECKING:
    from report.values.frames import CampaignRecords

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
    "spread": "float64",
    "low": "float64",
    "high": "float64",
    "difference": "float64",
    "status": "str",
    "reason": "str",
    "tolerance": "float64",
    "least": "float64",
    "most": "float64",
    "tolerance_rule": "object",
    "verdict": "object",
    "verdict_reason": "object",
    "freshness": "object",
    "freshness_reason": "object",
    "rows": "str",
    "sources": "object",
}


def build(records: CampaignRecords) -> pd.DataFrame:
    """Set the campaign's values beside the paper's.

    Args:
        records: a campaign's frames; any of them may be empty or partial.

    Returns:
        One row a value. ``paper`` is the printed string or None, ``paper_value`` its number or
        NaN; ``value`` and ``difference`` (value - paper_value) are in ``unit``, NaN where there is
        none; ``text`` holds worded values; ``n`` counts seeds or measurements, ``spread`` is the
        standard deviation over seeds, ``low`` to ``high`` the 95% t interval of their mean;
        ``status`` is one of "ok", "not run", "failed", "oom", "not reached", "undetermined" and
        "no counterpart"; ``reason`` says why a value is missing or what a present one leaves out.
        ``verdict`` is "same", "within", "outside" or "not judged", by the ``tolerance``, or the
        bound ``least`` or ``most``, that ``tolerance_rule`` explains, and None where the paper
        prints nothing; ``freshness`` is the worst of the ``sources``, the records behind the
        value, of which ``rows`` count; None where there is no value.

    Raises:
        InputError: the paper's CSV holds a key that the table does not know, or no rule of the
            tolerances covers one of its values.
    """
    behind = Behind(records)
    rows = [row for table in TABLES for row in _table_rows(table, records, behind)]
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in COLUMNS.items()}
    )


class Behind:
    """What stands behind values: the devices and the freshness of their sources."""

    def __init__(self, records: CampaignRecords) -> None:
        self._settings = Settings(records)
        self._sources = records.provenance.set_index("source").to_dict("index")

    def setting(self, row: str, sources: tuple[str, ...]) -> Setting:
        """What a value of this row has in common with the paper's; most rows begin with a scale."""
        scale = row.partition("/")[0]
        return self._settings.of(sources, (scale,) if scale in SCALES else ())

    def freshness(self, sources: tuple[str, ...]) -> tuple[str, str]:
        """The worst state of these sources, and the reasons for it."""
        found = [self._sources[source] for source in sources if source in self._sources]
        state = worst(row["freshness"] for row in found)
        reasons = (row["freshness_reason"] for row in found if row["freshness"] == state)
        return state, "; ".join(dict.fromkeys(filter(None, reasons)))


def _table_rows(table: Table, records: CampaignRecords, behind: Behind) -> list[dict[str, object]]:
    printed = load(table.label)
    measured = table.measure(records)
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
    scale = UNIT_SCALE[unit]
    value = None if measured.value is None else measured.value / scale
    spread, margin = (
        None if size is None else size / scale for size in (measured.spread, measured.margin)
    )
    paper_value = printed.number if printed else None
    comparable = value is not None and paper_value is not None
    sources = measured.sources or (every if measured.status != "no counterpart" else ())
    cell: dict[str, Any] = {
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
        "spread": spread,
        "low": None if margin is None else value - margin,
        "high": None if margin is None else value + margin,
        "difference": value - paper_value if comparable else None,
        "status": measured.status,
        "reason": measured.reason,
        "rows": measured.rows,
        "sources": list(sources),
    }
    fresh = behind.freshness(sources) if measured.status == "ok" else (None, None)
    cell |= {"freshness": fresh[0], "freshness_reason": fresh[1]}
    if printed is None:
        unjudged = ("tolerance", "least", "most", "tolerance_rule", "verdict", "verdict_reason")
        return cell | dict.fromkeys(unjudged)
    rule = rule_for(cell, load_rules())
    judged = judge(cell, margin, rule, behind.setting(key[0], sources))
    return cell | {
        "tolerance": judged.tolerance,
        "least": judged.least,
        "most": judged.most,
        "tolerance_rule": rule.why,
        "verdict": judged.verdict,
        "verdict_reason": judged.reason,
    }
