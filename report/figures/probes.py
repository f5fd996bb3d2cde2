"""The looks at a run while it trained, as figures take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from report.compute.measured import select
from report.figures.drawing import NotDrawnError, demand

if TYPE_CHECKING:
    from relation.records import CampaignRecords


def probed(records: CampaignRecords, needs: str, **keys: object) -> pd.DataFrame:
    """The probes that the figure shows. Looks of other samples or times do not mix with them."""
    rows = select(records.probes, **keys)
    demand(len(rows) > 0, needs, records, ("run",))
    alike = select(rows, alike=True)
    if alike.empty:
        raise NotDrawnError(
            "every run was probed by another configuration of `diagnostics`; set it back, or train "
            "again"
        )
    return alike


def left_out(records: CampaignRecords, *variants: str) -> str:
    """A sentence on the runs whose probes the figure leaves out, if there are any."""
    other = select(records.probes, alike=False, variant=variants)[["scale", "variant", "seed"]]
    runs = [
        f"{scale}/{variant}/{seed}"
        for scale, variant, seed in dict.fromkeys(other.itertuples(index=False, name=None))
    ]
    if not runs:
        return ""
    return f" Left out, since another configuration probed them: {', '.join(runs)}."
