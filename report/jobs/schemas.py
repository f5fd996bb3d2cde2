"""The report's own Parquet, and the origin that carries what its pages say of the campaign."""

import pyarrow as pa

from relation.origin import origin
from relation.parquet import Column, schema
from relation.records import CampaignRecords
from relation.spec import canonical_hash

_TEXT, _REAL = pa.string(), pa.float64()

CELLS = schema(
    Column("table", _TEXT, description="LaTeX label without tab:"),
    Column("row", _TEXT),
    Column("column", _TEXT),
    Column("statistic", _TEXT, description="value, mean, sd, or an interval's low and high"),
    Column("paper", _TEXT, description="as printed; null where the paper has no such cell"),
    Column("paper_value", _REAL, "the row's unit"),
    Column("value", _REAL, "the row's unit", "the campaign's"),
    Column("text", _TEXT, description="the campaign's, where the cell is words"),
    Column("unit", _TEXT),
    Column("n", pa.int64(), description="seeds or measurements behind the value"),
    Column("difference", _REAL, "the row's unit", "value - paper_value"),
    Column("status", _TEXT),
    Column("reason", _TEXT),
    Column("sources", pa.list_(_TEXT), description="Parquet files behind the value"),
)

FIGURES = schema(
    Column("name", _TEXT),
    Column("title", _TEXT),
    Column("alt", _TEXT),
    Column("file", _TEXT, description="SVG below the report; null where it was not drawn"),
    Column("reason", _TEXT, description="why it was not drawn"),
)


def page_origin(records: CampaignRecords, stage: str) -> dict:
    """The origin of a stage's Parquet, with the campaign's page in it."""
    page = records.page
    devices = "; ".join(page["devices"]) or "none"
    return dict(origin(page["campaign"], canonical_hash(page), stage, devices, page=page))
