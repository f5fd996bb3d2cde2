"""A site of an invented campaign: hostile words wherever data reach a page, gaps, stale records."""

from dataclasses import replace
from pathlib import Path

from conftest import campaign
from test_report_records import HOSTILE

from relation.pipeline.results import Results
from relation.store.layouts import LOG, RUN
from relation.store.parquet import write_parquet
from report.figures import draw_figures
from report.figures.runs import draw_runs
from report.judge.frames import FIGURES, page_origin
from report.judge.job import write_cells
from report.render.content import Content, gather
from report.render.pipeline import campaign_pipeline
from report.render.printed import MISSING
from report.render.runs import Run
from report.render.site import render_site
from report.values.frames import CampaignRecords


def invented_site(records: CampaignRecords, folder: Path) -> Content:
    """Render the site of these records into ``folder``, empty LaTeX and PDF beside it."""
    write_report(records, folder, draw_figures(records, folder))
    draw_runs(records, folder)
    content = content_of(records, folder)
    render_site(content, folder)
    papers = (f"tables/{printed.table.label}.tex" for printed in (*content.tables, *content.beyond))
    for paper in ("report.tex", "report.pdf", *papers):
        (folder / paper).touch()
    return content


def write_report(records: CampaignRecords, folder: Path, figures: list) -> None:
    """A report's Parquet, as the rules `cells` and `figures` leave it."""
    write_cells(records, folder)
    write_parquet(folder / "figures.parquet", FIGURES, figures, page_origin(records, "figures"))


def content_of(records: CampaignRecords, folder: Path) -> Content:
    """The report in ``folder`` with invented runs, and the pipeline of a campaign that has none."""
    content = gather(folder)
    runs, further = (
        [_run(row) for row in there.to_dict("records")]
        + [
            Run(
                *(row[key] for key in ("scale", "variant", "seed")),
                gap=MISSING[row["status"]],
                reason=row["reason"],
                command=f"snakemake {HOSTILE}",
            )
            for row in content.missing
            if row["kind"] == kind
        ]
        for there, kind in ((records.runs, "run"), (records.further_runs, "further run"))
    )
    books = campaign("books")
    names = {run.name for run in (*runs, *further)}
    planned, beyond = (
        tuple(spec for spec in specs if spec.name in names)
        for specs in (books.planned_runs, books.planned_further)
    )
    books = replace(books, planned_runs=planned, planned_further=beyond)
    pipeline = campaign_pipeline(Results(books, folder))
    return replace(content, runs=runs, further=further, pipeline=pipeline)


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
