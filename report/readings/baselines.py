"""The final NLL of both models of a pair, by reading: what a better baseline leaves of Relation's.

Texts differ in entropy, so an NLL is compared between readings of one text alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from relation.geometry import PAIRED
from report.readings.rule import BASE, RATES, SHORT

if TYPE_CHECKING:
    from relation.records.multiverse import ReadingRecords

FACTORS = dict(zip((RATES[0], BASE, RATES[1]), (0.5, 1.0, 2.0), strict=True))
COLUMNS = ["reading", "residual", "choice", "beside", "seed", *PAIRED, "delta"]


def paired_nll(readings: ReadingRecords) -> pd.DataFrame:
    """Final NLL, nat/token: a row a whole pair, with ``mha``, ``full`` and ``delta`` of the two."""
    runs = readings.runs[readings.runs["final_nll"].notna()]
    runs = runs[runs["variant"].isin(PAIRED)]
    wide = runs.pivot_table(
        index=["reading", "seed"], columns="variant", values="final_nll", sort=False
    )
    wide = wide.reindex(columns=list(PAIRED)).dropna().astype(float).reset_index()
    about = pd.DataFrame(readings.described, columns=["name", "residual", "choice", "beside"])
    pairs = about.rename(columns={"name": "reading"}).merge(wide, on="reading")
    return pairs.assign(delta=pairs["full"] - pairs["mha"])[COLUMNS]


def comparable(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs of the readings' own text."""
    return pairs[pairs["choice"] != SHORT]


def rates(readings: ReadingRecords) -> pd.DataFrame:
    """The pairs at ``factor`` times the paper's learning rate, of residual scales with several."""
    pairs = paired_nll(readings)
    pairs = pairs.assign(factor=pairs["choice"].map(FACTORS)).dropna(subset="factor")
    several = pairs.groupby("residual")["factor"].transform("nunique") > 1
    return pairs[several]
