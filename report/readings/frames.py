"""The readings as rows of the report's own Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from relation.records.provenance import run_freshness
from report.readings.baselines import paired_nll
from report.readings.finding import said
from report.readings.rule import VALUES
from report.readings.study import Study, study

if TYPE_CHECKING:
    from relation.records.multiverse import ReadingRecords

NAMES = ("readings", "readings_choice", "readings_runs", "readings_said")
Rows = list[dict[str, Any]]


def reading_rows(records: ReadingRecords | None) -> dict[str, Rows]:
    """The rows of every frame of the readings; none where a campaign has none."""
    if records is None:
        return {name: [] for name in NAMES}
    found = study(records)
    rows = (_values(found), _choice(records, found), _runs(records), _said(records))
    return {name: [_plain(row) for row in own] for name, own in zip(NAMES, rows, strict=True)}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """None in place of every NaN and NA, as Parquet holds what is missing."""
    return {k: v if isinstance(v, list) or pd.notna(v) else None for k, v in row.items()}


def _values(found: Study) -> Rows:
    keys = ["statistic", "reading"]
    contrasts = found.contrasts.drop(columns="claim").rename(
        columns={"low": "difference_low", "high": "difference_high", "established": "told_apart"}
    )
    turns = found.turns[[*keys, "turns"]]
    rows = found.intervals.merge(contrasts, on=keys, how="left").merge(turns, on=keys, how="left")
    by_name = {statistic.name: statistic for statistic in found.statistics}
    order = {reading.name: place for place, reading in enumerate(found.readings)}
    statistics = {name: place for place, name in enumerate(by_name)}
    rows = rows.sort_values(
        keys, key=lambda column: column.map({**order, **statistics}), kind="stable"
    )
    return [
        row
        | {"title": statistic.title, "unit": statistic.unit, "transform": statistic.transform}
        | {"paper": statistic.paper, "side": statistic.side, "bound": statistic.bound}
        | {"base": row["reading"] == found.base}
        for row in rows.to_dict("records")
        for statistic in [by_name[row["statistic"]]]
    ]


_DESCRIBED = ("residual", "choice", "title", "group", "paper", "beside")


def _choice(records: ReadingRecords, found: Study) -> Rows:
    """A row a configured reading."""
    choice = found.choice
    distances = choice.distances.set_index("reading")
    terms = choice.terms.pivot(index="reading", columns="value", values="deviation")
    means = paired_nll(records).groupby("reading")[["mha", "full"]].mean()
    answer = {
        "answer": choice.answer, "bound": choice.bound,
        "by_chance": choice.by_chance, "by_text": choice.by_text,
    }  # fmt: skip
    rows = []
    for reading in found.readings:
        own = distances.loc[reading.name]
        absent = [name for name in records.absent if name.startswith(f"{reading.name}/")]
        rows.append(
            {name: getattr(reading, name) for name in _DESCRIBED}
            | {"reading": reading.name, "adds": list(reading.adds), "absent": absent}
            | {name: own[name] for name in ("distance", "n", "rms", "nearer", "candidate")}
            | {"chosen": reading.name == choice.reading, "default": reading.name == choice.default}
            | {"terms": _terms(terms, reading.name)}
            | {f"{variant}_nll": means[variant].get(reading.name) for variant in ("mha", "full")}
            | answer
        )
    return rows


def _terms(terms: pd.DataFrame, reading: str) -> list[float]:
    """The eight deviations from the paper, in the order of VALUES; empty without a distance."""
    if reading not in terms.index or terms.loc[reading].isna().any():
        return []
    return [float(terms.loc[reading, value.name]) for value in VALUES]


def _runs(records: ReadingRecords) -> Rows:
    """The rows of the runs, each with what has changed since it was made."""
    rows = records.runs.astype(object).to_dict("records")
    for row in rows:
        row["freshness"] = run_freshness(row)
    return rows


def _said(records: ReadingRecords) -> Rows:
    return [row._asdict() for row in said(records)]
