"""The readings as rows of the report's own Parquet."""

from typing import Any

import pandas as pd

from relation.pipeline.gather import ReadingRecords
from relation.pipeline.provenance import run_freshness
from report.judge.readings import said
from report.judge.readings_rule import VALUES
from report.judge.readings_study import Study, study
from report.values.readings import BY_NAME

NAMES = ("readings", "readings_choice", "readings_runs", "readings_said")
Rows = list[dict[str, Any]]
_OF_A_STATISTIC = ("title", "unit", "transform", "paper", "side", "bound")


def reading_rows(records: ReadingRecords | None) -> dict[str, Rows]:
    """The rows of every frame of the readings; none where a campaign has none."""
    if records is None:
        return {name: [] for name in NAMES}
    found = study(records)
    rows = (_values(found), _choice(found), _runs(records), [s._asdict() for s in said(found)])
    return {name: [_plain(row) for row in own] for name, own in zip(NAMES, rows, strict=True)}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """None in place of every NaN and NA, as Parquet holds what is missing."""
    return {k: v if isinstance(v, list) or pd.notna(v) else None for k, v in row.items()}


def _values(found: Study) -> Rows:
    """A row a statistic and reading, both in their order."""
    return [
        row
        | {name: getattr(BY_NAME[row["statistic"]], name) for name in _OF_A_STATISTIC}
        | {"base": row["reading"] == found.base}
        for statistic in found.statistics
        for row in found.of(statistic.name).reset_index().to_dict("records")
    ]


def _choice(found: Study) -> Rows:
    """A row a configured reading."""
    choice = found.choice
    distances = choice.distances.set_index("reading")
    terms = choice.terms.pivot(index="reading", columns="value", values="deviation").dropna()
    means = found.nll.groupby("reading")[["mha", "full"]].mean()
    return [
        {k: v for k, v in reading._asdict().items() if k != "name"}
        | {"reading": reading.name, "adds": list(reading.adds)}
        | {"absent": [n for n in found.records.absent if n.startswith(f"{reading.name}/")]}
        | distances.loc[reading.name, ["distance", "n", "rms", "nearer", "candidate"]].to_dict()
        | {"chosen": reading.name == choice.reading, "default": reading.name == choice.default}
        | {
            # In the order of VALUES; none without a distance.
            "terms": [float(terms.loc[reading.name, value.name]) for value in VALUES]
            if reading.name in terms.index
            else []
        }
        | {f"{variant}_nll": means[variant].get(reading.name) for variant in ("mha", "full")}
        | {name: getattr(choice, name) for name in ("answer", "bound", "by_chance", "by_text")}
        for reading in found.readings
    ]


def _runs(records: ReadingRecords) -> Rows:
    """The rows of the runs, each with what has changed since it was made."""
    rows = records.runs.astype(object).to_dict("records")
    return [row | {"freshness": run_freshness(row)} for row in rows]
