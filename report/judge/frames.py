"""The report's own Parquet, and the origin that carries what its pages say of the campaign."""

import pyarrow as pa

from relation.pipeline.origin import stamp
from relation.spec import canonical_hash
from relation.store.layouts import READING_RUNS
from relation.store.parquet import Column, schema
from relation.store.stamp import origin
from report.values.frames import CampaignRecords
from report.values.likeness import Likeness

_TEXT, _INT, _REAL = pa.string(), pa.int64(), pa.float64()
_FRESHNESS = "current, stale, or: older code, same golden losses; null without a value"
_CLAIM_FRESHNESS = "the worst of the sources; null without any"
_NOT_ESTABLISHED = (
    "labels of the evidence that the verdict rests on while its 95% interval includes values that "
    "would decide the other way, or one seed has no interval; empty where there is none"
)
_CELL_VERDICTS = (
    "same (a count or setting), within, outside, not judged, chose the reading; null without a "
    "paper value"
)
_VERDICTS = "reproduced, direction only, not reproduced, chose the reading or not tested"

CELLS = schema(
    Column("table", _TEXT, description="LaTeX label without tab:"),
    Column("row", _TEXT, description="the key of a row of the table, as 10M/L0"),
    Column("column", _TEXT, description="the key of a value of that row, as effrank.full"),
    Column("statistic", _TEXT, description="value, mean, sd, or an interval's low and high"),
    Column("paper", _TEXT, description="as printed; null where the paper has no such cell"),
    Column("paper_value", _REAL, "the row's unit", "the paper's, as a number"),
    Column("value", _REAL, "the row's unit", "the campaign's"),
    Column("text", _TEXT, description="the campaign's, where the cell is words"),
    Column("unit", _TEXT, description="of every number of the row but n; 1: none, text: words"),
    Column("n", _INT, description="seeds or measurements behind the value"),
    Column("spread", _REAL, "the row's unit", "standard deviation over seeds, ddof = 1"),
    Column("low", _REAL, "the row's unit", "95% t interval of the mean over seeds"),
    Column("high", _REAL, "the row's unit", "the interval's other end"),
    Column("difference", _REAL, "the row's unit", "value - paper_value"),
    Column(
        "status",
        _TEXT,
        description="ok, not run, failed, oom, not reached, undetermined, no counterpart",
    ),
    Column("reason", _TEXT, description="why there is no value, or what it leaves out"),
    Column("tolerance", _REAL, "the row's unit", "how far from paper_value; null where not judged"),
    Column("least", _REAL, "the row's unit", "in place of a tolerance: the least that will do"),
    Column("most", _REAL, "the row's unit", "in place of a tolerance: the most that will do"),
    Column("tolerance_rule", _TEXT, description="why, from report/tolerances.toml"),
    Column("verdict", _TEXT, description=_CELL_VERDICTS),
    Column("verdict_reason", _TEXT, description="what allowed it, or why it is not judged"),
    Column("freshness", _TEXT, description=_FRESHNESS),
    Column("freshness_reason", _TEXT, description="what has changed since"),
    Column("rows", _TEXT, description="which rows of the sources, as: metric = eff_rank"),
    Column("sources", pa.list_(_TEXT), description="Parquet files behind the value"),
)

PROVENANCE = schema(
    Column("source", _TEXT, description="a Parquet file that cells or claims rest on"),
    Column("kind", _TEXT, description="as run, log, diagnostics or systems"),
    Column("scale", _TEXT, description="empty where the file holds several"),
    Column("variant", _TEXT, description="of a systems benchmark, its name"),
    Column("seed", _INT),
    Column("config_hash", _TEXT),
    Column("code_hash", _TEXT),
    Column("golden_hash", _TEXT, description="of the golden losses; null in older records"),
    Column("commit", _TEXT),
    Column("device", _TEXT),
    Column("versions", _TEXT, description="JSON: package to version"),
    Column("made", _TEXT, description="time, ISO 8601, UTC"),
    Column("log", _TEXT, description="of the job that made it; null where it is not here"),
    Column("rerun", _TEXT, description="shell command"),
    Column("freshness", _TEXT, description=_FRESHNESS),
    Column("freshness_reason", _TEXT),
)

MISSING = schema(
    Column("kind", _TEXT, description="as run, further run, flow or throughput"),
    Column("scale", _TEXT),
    Column("variant", _TEXT, description="of a systems benchmark, its name"),
    Column("seed", _INT, description="-1 where it has none"),
    Column("status", _TEXT, description="not run, failed or oom"),
    Column("reason", _TEXT),
)

CLAIMS = schema(
    Column("number", _INT, description="as in docs/verdicts.md"),
    Column("claim", _TEXT, description="what the paper asserts"),
    Column("verdict", _TEXT, description=_VERDICTS),
    Column("reason", _TEXT),
    Column("not_established", _TEXT, description=_NOT_ESTABLISHED),
    Column("without", _TEXT, description="labels of what is not there to decide"),
    Column("beside", _TEXT, description="what evidence tells that the verdict does not count"),
    Column("rule", _TEXT, description="what reproduced means for this claim"),
    Column("tables", pa.list_(_TEXT), description="labels of the tables that hold its values"),
    Column("sources", pa.list_(_TEXT), description="Parquet files behind the evidence"),
    Column("flips", _TEXT, description="seeds without which the verdict would be another"),
    Column("freshness", _TEXT, description=_CLAIM_FRESHNESS),
    Column("freshness_reason", _TEXT),
)

EVIDENCE = schema(
    Column("claim", _INT, description="number of the claim"),
    Column("label", _TEXT, description="scale or variant"),
    Column("quantity", _TEXT, description="what is compared"),
    Column("paper", _REAL, "the row's unit", "null where the paper prints none"),
    Column("ours", _REAL, "the row's unit", "null where the campaign has none"),
    Column("difference", _REAL, "the row's unit", "ours - paper; null between counts out of n"),
    Column("low", _REAL, "the row's unit", "95% interval of ours"),
    Column("high", _REAL, "the row's unit"),
    Column("n", _INT, description="how many of counted are behind ours"),
    Column("counted", _TEXT, description="what n counts, as seeds, pairs, rounds or checks"),
    Column("paper_n", _INT, description="what the paper's count is out of, ours being out of n"),
    Column("unit", _TEXT),
    Column("direction", pa.bool_(), description="the paper's sign or bound; null: undecided"),
    Column("size", pa.bool_(), description="the paper's size; null: undecided or not asked"),
    Column("note", _TEXT, description="what is missing, or what the row leaves out"),
)

CHECKLIST = schema(
    Column("standard", _TEXT, description="NeurIPS or ACM"),
    Column("item", _TEXT),
    Column("answer", _TEXT),
    Column("justification", _TEXT, description="from the records"),
)

_READING = Column("reading", _TEXT, description="residual scale and choice, as scaled-sd-0.02")
_OF_THE_STATISTIC = "its own unit; shares are fractions"
_ON_ITS_SCALE = "on the statistic's transform"

READINGS = schema(
    Column("statistic", _TEXT, description="one of report.values.readings.STATISTICS"),
    Column("claim", _INT, description="number of the claim it is about; null for none"),
    Column("title", _TEXT),
    Column("unit", _TEXT),
    Column("transform", _TEXT, description="the scale of means and intervals"),
    Column("paper", _REAL, _OF_THE_STATISTIC, "the paper's at 10M; null where it prints none"),
    Column("side", _TEXT, description="the paper's direction: below, above or at least the bound"),
    Column("bound", _REAL, _OF_THE_STATISTIC),
    _READING,
    Column("base", pa.bool_(), description="whether contrasts are taken against it"),
    Column("n", _INT, description="pairs behind the mean"),
    Column("mean", _REAL, _OF_THE_STATISTIC),
    Column("low", _REAL, _OF_THE_STATISTIC, "95% t interval with the pooled deviation"),
    Column("high", _REAL, _OF_THE_STATISTIC, "null where no reading has two pairs"),
    Column("holds", pa.bool_(), description="the paper's direction; null where it has none"),
    Column("established", pa.bool_(), description="whether the whole interval says the same"),
    Column("paper_inside", pa.bool_(), description="the paper's value in the interval"),
    Column("difference", _REAL, _ON_ITS_SCALE, "less the base"),
    Column("se", _REAL, _ON_ITS_SCALE),
    Column("difference_low", _REAL, _ON_ITS_SCALE, "95% t interval"),
    Column("difference_high", _REAL, _ON_ITS_SCALE),
    Column("p", _REAL, description="two-sided t"),
    Column("p_holm", _REAL, description="corrected over the contrasts of the claim"),
    Column("told_apart", pa.bool_(), description="from the base, at 5% after Holm"),
    Column("turns", pa.bool_(), description="told apart, and another answer than the base's"),
)

READINGS_CHOICE = schema(
    _READING,
    *(Column(name, _TEXT) for name in ("residual", "choice", "title", "group")),
    Column("paper", _TEXT, description="the line of the paper that allows it"),
    Column("adds", pa.list_(_TEXT), description="statements it needs beyond the paper's"),
    Column("beside", pa.bool_(), description="no reading: it changes what the paper prints"),
    Column(
        "start_ratio",
        _REAL,
        description="RMS of the embedding over that of W_O W_I x, x normalised",
    ),
    Column("output_ratio", _REAL, description="RMS of the embedding over the sd of W_O"),
    Column("n", _INT, description="whole pairs behind the distance"),
    Column("distance", _REAL, "squared standard errors", "to the paper, over eight values"),
    Column("rms", _REAL, "standard errors", "root of the mean over the eight"),
    Column(
        "terms",
        pa.list_(_REAL),
        "standard errors",
        "the eight, as report.judge.readings_rule.VALUES",
    ),
    Column(
        "nearer", _REAL, description="share of the draws in which it is nearer than the nearest"
    ),
    Column("candidate", pa.bool_(), description="whether the rule may choose it"),
    Column("chosen", pa.bool_()),
    Column("default", pa.bool_(), description="what the matrix runs under, chosen or not"),
    Column("mha_nll", _REAL, "nat/token", "mean of the final NLL over its pairs"),
    Column("full_nll", _REAL, "nat/token"),
    Column("absent", pa.list_(_TEXT), description="its planned runs that have no record"),
    Column("answer", _TEXT, description="of the rule; the same in every row"),
    Column("bound", _REAL, "squared standard errors", "on the nearest distance"),
    Column("by_chance", _REAL, "squared standard errors", "what a right reading passes in 5%"),
    Column("by_text", _REAL, "squared standard errors", "four times what the text does"),
)

READINGS_SAID = schema(
    Column("place", _TEXT, description="headline, finding, answer, statistic, turns or practice"),
    Column("claim", _INT),
    Column("statistic", _TEXT),
    Column("text", _TEXT),
)

READINGS_RUNS = schema(
    *(Column(f.name, f.type, f.metadata[b"unit"].decode()) for f in READING_RUNS),
    Column("freshness", _TEXT, description="current, stale, or: older code, same golden losses"),
)

# What the rule `cells` writes, by file name.
FRAMES = {
    "cells": CELLS,
    "provenance": PROVENANCE,
    "missing": MISSING,
    "claims": CLAIMS,
    "evidence": EVIDENCE,
    "checklist": CHECKLIST,
    "readings": READINGS,
    "readings_choice": READINGS_CHOICE,
    "readings_runs": READINGS_RUNS,
    "readings_said": READINGS_SAID,
}

CELL_KEY = ("table", "row", "column", "statistic")

FIGURES = schema(
    Column("name", _TEXT),
    Column("heading", _TEXT, description="what it shows, in a few words"),
    Column("title", _TEXT, description="its caption"),
    Column("alt", _TEXT),
    Column("file", _TEXT, description="SVG below the report; null where it was not drawn"),
    Column("printed", pa.bool_(), description="in the document too, from a PDF beside the SVG"),
    Column("page", _TEXT, description="HTML below the report that explores it; null if none"),
    Column("reason", _TEXT, description="why it was not drawn"),
    Column("sources", pa.list_(_TEXT), description="Parquet files that it is drawn from"),
)


def page_origin(records: CampaignRecords, stage: str) -> dict:
    """The origin of a stage's Parquet, with the campaign's page in it."""
    page = records.page | {"differences": Likeness(records.page).differences}
    devices = "; ".join(page["devices"]) or "none"
    hashed = canonical_hash(page)
    return origin(page["campaign"], hashed, stage, devices, stamp(stage), page=page)
