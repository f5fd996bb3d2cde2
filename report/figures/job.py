"""The rule `figures`: every picture, and a list of them."""

from pathlib import Path

from relation.store.parquet import write_parquet
from report.figures import READINGS, draw_figures
from report.figures.runs import draw_runs
from report.judge.frames import FIGURES, page_origin
from report.values.frames import CampaignRecords


def write_figures(records: CampaignRecords, path: Path) -> None:
    """Draw every figure beside figures.parquet, which lists them, and the curves of every run."""
    figures = draw_figures(records, path.parent) + draw_figures(records, path.parent, READINGS)
    draw_runs(records, path.parent)
    write_parquet(path, FIGURES, figures, page_origin(records, "figures"))
