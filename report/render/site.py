"""Writing the pages."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import pyarrow as pa

from relation.pipeline.campaign import Campaign
from relation.pipeline.results import Results
from report.judge.frames import CELLS
from report.judge.setting import PAPER_DEVICE, other_device
from report.render.behind import COUNTED, behind_cells
from report.render.content import Content, gather
from report.render.environment import html_environment
from report.render.evidence import evidence_by_claim
from report.render.overview import (
    SHARE_CLASSES,
    gaps,
    overview,
    shares,
    tally,
    texts,
    unmeasured,
)
from report.render.pages import SECTIONS
from report.render.pipeline import campaign_pipeline
from report.render.runs import pairs_by_scale, read_runs
from report.render.shipped import differing, elsewhere, read_shipped
from report.render.templating import TEMPLATES, grouped
from report.render.typeset import can_typeset
from report.values.readings import INTERVALS

Record = Mapping[str, Any]
# A page: its file, its template and the values that no other page has.
Page = tuple[str, str, Mapping[str, Any]]

# The kinds of records that a run's page shows, and those that runs.html shows with further pairs.
ON_RUN_PAGES = ("run", "log")
OF_FURTHER = ("further run", "further log", "further probes")


def render_report(campaign: Campaign, results: Results) -> None:
    """Render every page from the report's Parquet. Raises InputError for a damaged file."""
    content = gather(results.report)
    content = replace(
        content,
        runs=read_runs(campaign.planned_runs, results, content.missing),
        further=read_runs(campaign.planned_further, results, content.missing, "further run"),
        pipeline=campaign_pipeline(results),
        shipped=read_shipped(results),
    )
    render_site(content, results.report)


def render_site(content: Content, folder: Path) -> None:
    """Write every page of the site under ``folder``.

    Args:
        content: what the site shows.
        folder: the report's folder, which holds figures/ already; made if missing.
    """
    folder = Path(folder)
    environment = html_environment()
    records = records_by_source(content, folder)
    every = (*content.tables, *content.beyond)
    environment.globals |= {
        "page": content.page,
        "sections": SECTIONS,
        "tables": content.tables,
        "claims": content.claims,
        "claim_tally": tally(content.claims),
        "figures": content.figures,
        "beyond_figures": content.beyond_figures,
        "readings": content.readings,
        "shares": {printed.table.label: shares(printed) for printed in every},
        "records": records,
        "paper_device": PAPER_DEVICE,
        "unmeasured": unmeasured(content),
        "share_classes": SHARE_CLASSES,
        # The rule `document` writes them beside these pages.
        "on_paper": ("report.pdf", "report.tex") if can_typeset() else ("report.tex",),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_assets(folder, environment)
    for printed in every:
        write_csv(content.cells, printed.table.label, folder / "tables")
    pages = (_sections(content, records), _tables(content, records), _runs(content, records))
    for name, template, values in chain(*pages):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Links start from ``up``, the way to the site's folder.
        up = "../" * name.count("/")
        text = environment.get_template(template).render(here=name, up=up, **values)
        path.write_text(text, encoding="utf-8")


def _sections(content: Content, records: Mapping[str, Record]) -> Iterator[Page]:
    """The pages of the bar at the top."""
    values: dict[str, dict[str, Any]] = {
        "index.html": {
            **overview(content),
            "beyond": [printed for printed in content.beyond if printed.sources],
            "converted": sum(r["kind"] == "converted run" for r in content.provenance),
            "of_readings": _runs_of_readings(content),
            "gaps": gaps(content.missing),
            "runs": content.runs,
            "further": content.further,
            "texts": texts([*content.runs, *content.further]),
            "shipped": content.shipped,
            "differing": differing(content.shipped),
        },
        "claims.html": {
            "numbers": {printed.table.label: printed.table.number for printed in content.tables},
            "evidence": evidence_by_claim(content.evidence),
            "elsewhere": {c["number"]: elsewhere(content.shipped, c) for c in content.claims},
        },
        "readings.html": {
            "intervals": INTERVALS,
            "claim_of": {claim["number"]: claim for claim in content.claims},
        },
        "tables.html": {"columns": [_documented(f) for f in CELLS if f.name != "table"]},
        "beyond.html": {"beyond": content.beyond},
        "runs.html": {
            "groups": list(grouped(content.runs, attrgetter("scale", "variant")).values()),
            "further": pairs_by_scale(content.further),
            # A CPU counts none.
            "counts_memory": any(
                run.record["peak_memory_gib"] is not None for run in content.runs if run.record
            ),
            "others": grouped(
                (r for r in records.values() if r["kind"] not in (*ON_RUN_PAGES, *OF_FURTHER)),
                itemgetter("kind"),
            ),
        },
        "pipeline.html": {"pipeline": content.pipeline},
        "checklist.html": {"checklist": content.checklist},
    }
    for name, _ in SECTIONS:
        yield name, f"{name}.j2", values.get(name, {})


def _runs_of_readings(content: Content) -> list[Record]:
    """The readings' runs, each once, where the campaign has planned such and no other is there."""
    if not content.page["reading_runs"] or any(run.record for run in content.runs):
        return []
    rows = [row for runs in content.readings.runs.values() for row in runs]
    # A run that several readings share stands at each.
    return list({(row["config_hash"], row["variant"], row["seed"]): row for row in rows}.values())


def _tables(content: Content, records: Mapping[str, Record]) -> Iterator[Page]:
    every = (*content.tables, *content.beyond)
    for place, printed in enumerate(every):
        found = (records[source]["device"] for source in printed.sources if source in records)
        devices = [device for device in dict.fromkeys(found) if device != COUNTED]
        values = {
            "printed": printed,
            "devices": devices,
            "device": other_device(content.page, devices) if printed.table.systems else None,
            "behind": behind_cells(printed, records),
            **_beside([other.table for other in every], place),
        }
        yield f"tables/{printed.table.label}.html", "table.html.j2", values


def _runs(content: Content, records: Mapping[str, Record]) -> Iterator[Page]:
    by_key = {(run.scale, run.variant, run.seed): run for run in content.runs}
    of_run = grouped(content.provenance, itemgetter("scale", "variant", "seed"))
    for place, run in enumerate(content.runs):
        key = (run.scale, run.variant, run.seed)
        own = {row["source"] for row in of_run.get(key, ())}
        partner = by_key.get((run.scale, run.partner, run.seed)) if run.partner else None
        pair = [key, (run.scale, run.partner, run.seed)] if partner else [key]
        logs = [row for one in pair for row in of_run.get(one, ()) if row["kind"] == "log"]
        values = {
            "run": run,
            "partner": partner,
            "logs": [row["source"] for row in logs],
            "provenance": records.get(run.source),
            "used": [
                printed.table
                for printed in (*content.tables, *content.beyond)
                if run.source and own & set(printed.sources)
            ],
            **_beside(content.runs, place),
        }
        yield f"{run.page}.html", "run.html.j2", values


def _beside(pages: Sequence[Any], place: int) -> dict[str, Any]:
    """What comes before and after a page of its kind."""
    return {
        "previous": pages[place - 1] if place else None,
        "following": pages[place + 1] if place + 1 < len(pages) else None,
    }


def write_csv(cells: pd.DataFrame, label: str, folder: Path) -> None:
    """One table's rows of cells.parquet as CSV, all columns but its name; sources apart by "; "."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = cells[cells["table"] == label].drop(columns="table")
    rows = rows.assign(sources=rows["sources"].map("; ".join))
    rows.to_csv(folder / f"{label}.csv", index=False, lineterminator="\n")


def write_assets(folder: Path, environment: jinja2.Environment) -> None:
    """The style sheet and the script that every page of a site shares."""
    style = environment.get_template("style.css.j2").render()
    (folder / "style.css").write_text(style, encoding="utf-8")
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    (folder / "report.js").write_text(script, encoding="utf-8")


def records_by_source(content: Content, folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of provenance.parquet by source, with how to reach what shows them.

    ``page`` is the page and place of a record, ``log_link`` its text log, both from ``folder``, the
    site's; the latter is empty where there is no log.
    """
    pages = {(run.scale, run.variant, run.seed): f"{run.page}.html" for run in content.runs}
    # One job wrote a further run's record, log and probes: the first stands for all.
    pages |= {
        (row["scale"], row["variant"], row["seed"]): f"runs.html#{row['source']}"
        for row in content.provenance
        if row["kind"] == "further run"
    }

    def page(row: Record) -> str:
        if row["kind"] in (*ON_RUN_PAGES, *OF_FURTHER):
            return pages[row["scale"], row["variant"], row["seed"]]
        return f"runs.html#{row['source']}"

    def log(row: Record) -> str:
        return Path(os.path.relpath(row["log"], folder)).as_posix() if row["log"] else ""

    return {
        row["source"]: {**row, "page": page(row), "log_link": log(row)}
        for row in content.provenance
    }


def _documented(field: pa.Field) -> tuple[str, str]:
    """A column's name, and what its schema says of it."""
    told = (field.metadata[key].decode() for key in (b"description", b"unit"))
    return field.name, ", in ".join(filter(None, told))
