"""Values that chose the reading which a campaign trains: evidence of the choice, not verdicts.

docs/readings.md fixed this before the runs under the chosen reading.
"""

import re

from report.judge.readings_rule import VALUES
from report.judge.readings_study import study
from report.values.frames import CampaignRecords
from report.values.structure import INTERNAL, LAYERWISE, ROUTING, SINK_PROFILE, SPECTRUM

CHOSE = "chose the reading"
ABOUT = (
    "The rule for readings chose the one that this campaign trains by what layers 0 and 1 do. "
    "Claims and values that rest on these layers are evidence of that choice and no test of the "
    "paper, so they get no verdict."
)
_LAYERS = {value.layer for value in VALUES}
_TABLES = {table.label for table in (INTERNAL, LAYERWISE, ROUTING, SINK_PROFILE, SPECTRUM)}
_LATER_LAYERS = "l2_"  # columns of Table 4 that begin so hold layers from 2 on


def chosen_reading(records: CampaignRecords) -> str | None:
    """The reading that the rule chose, where its assumptions are those of the campaign."""
    if records.readings is None:
        return None
    name = study(records.readings).choice.reading
    chosen = next((r["assumptions"] for r in records.readings.described if r["name"] == name), None)
    ours = {row["name"]: row["value"] for row in records.page["assumptions"]}
    if chosen is None or any(ours.get(key) != value for key, value in chosen.items()):
        return None
    return name


def why(reading: str) -> str:
    """Why what rests on the first layers gets no verdict under the reading that they chose."""
    return (
        f"the rule chose {reading} for its agreement with the paper in layers 0 and 1, on which "
        "this rests"
    )


def rests_on_the_choice(table: str, row: str, column: str) -> bool:
    """Whether a cell holds layers 0 or 1, or an average that includes them."""
    layer = re.search(r"/L(\d+)$", row)
    if layer is not None:
        return table in _TABLES and int(layer[1]) in _LAYERS
    return table in _TABLES and not column.startswith(_LATER_LAYERS)
