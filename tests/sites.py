"""A site of an invented campaign: hostile words wherever data reach a page, gaps, stale records."""

from pathlib import Path

from conftest import ROOT
from test_report_records import HOSTILE

from relation.pipeline.campaign import resolve
from relation.pipeline.config import load_config
from relation.store.layouts import LOG, RUN
from relation.store.parquet import read_parquet
from report.figures import draw_figures
from report.figures.runs import draw_runs
from report.judge.frames import FRAMES, page_origin
from report.judge.job import write_cells
from report.render.pipeline import campaign_pipeline
from report.render.printed import MISSING
from report.render.readings import run_names
from report.render.runs import Run
from report.render.site import render_site
from report.render.site_content import Content, printed_tables
from report.values.frames import CampaignRecords


def invented_site(records: CampaignRecords, folder: Path) -> Content:
    """Render the site of these records into ``folder``, empty LaTeX and PDF beside it."""
    write_cells(records, folder)
    figures = draw_figures(records, folder)
    draw_runs(records, folder)
    content = content_of(records, folder, figures)
    render_site(content, folder)
    papers = (f"tables/{printed.table.label}.tex" for printed in content.tables)
    for paper in ("report.tex", "report.pdf", *papers):
        (folder / paper).touch()
    return content


def content_of(records: CampaignRecords, folder: Path, figures: list, **cells: object) -> Content:
    """What `gather` would read from ``folder``; ``cells`` replace columns of the cells."""
    frames = {
        name: read_parquet(folder / f"{name}.parquet", layout) for name, layout in FRAMES.items()
    }
    rows = {name: frame.to_pylist() for name, frame in frames.items() if name != "cells"}
    runs, further = (
        [_run(row) for row in there.to_dict("records")]
        + [
            Run(row["scale"], row["variant"], row["seed"], MISSING[row["status"]], row["reason"])
            for row in rows["missing"]
            if row["kind"] == kind
        ]
        for there, kind in ((records.runs, "run"), (records.further_runs, "further run"))
    )
    campaign = resolve(load_config(ROOT / "config.yaml"), campaign="tiny")
    frame = frames["cells"].to_pandas().assign(**cells)
    return Content(
        page=page_origin(records, "cells")["page"],
        cells=frame,
        tables=printed_tables(frame),
        figures=figures,
        runs=runs,
        further=further,
        pipeline=campaign_pipeline(
            campaign, runs, rows["missing"], further, run_names(rows["readings_runs"])
        ),
        **rows,
    )


def _run(row: dict) -> Run:
    record = dict.fromkeys(RUN.names, 1) | {"order_hash": "0" * 64, "init_hash": HOSTILE}
    update = dict.fromkeys(LOG.names, 1)
    return Run(
        row["scale"],
        row["variant"],
        row["seed"],
        source=row["source"],
        record=record | {"final_nll": row["final_nll"], "peak_memory_gib": None},
        rate=1.0,
        first_seconds=1.0,
        settings=((HOSTILE, ((HOSTILE, HOSTILE),)),),
        environment=(("corpus", HOSTILE),),
        updates=(update,),
        text=f"error: {HOSTILE}",
    )
