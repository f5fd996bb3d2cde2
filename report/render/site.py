"""Writing the pages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import pyarrow as pa

from report.judge.frames import CELLS
from report.judge.setting import PAPER_DEVICE, other_device
from report.render.behind import behind_cells
from report.render.environment import html_environment
from report.render.evidence import evidence_by_claim
from report.render.overview import SHARE_CLASSES, gaps, headlines, shares, tally, texts
from report.render.pages import SECTIONS
from report.render.printed import PrintedTable
from report.render.readings import is_of_readings, read_readings
from report.render.runs import Run, pairs_by_scale
from report.render.site_content import Content
from report.render.templating import TEMPLATES
from report.render.typeset import can_typeset
from report.values.readings import INTERVALS


class _Site:
    """One site being written: its folder, its templates, and what every page is given."""

    def __init__(self, content: Content, folder: Path):
        self.content, self.folder = content, folder
        self.environment: jinja2.Environment = html_environment()
        self.records = records_by_source(content, folder)
        self.environment.globals |= {
            "page": content.page,
            "sections": SECTIONS,
            "tables": content.tables,
            "records": self.records,
            "paper_device": PAPER_DEVICE,
            "share_classes": SHARE_CLASSES,
            # The rule `document` writes them beside these pages.
            "on_paper": ("report.pdf", "report.tex") if can_typeset() else ("report.tex",),
        }

    def write(self, name: str, template: str, **values: Any) -> None:
        """Render one page; links in it start from ``up``, the way to the site's folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * name.count("/")
        text = self.environment.get_template(template).render(here=name, up=up, **values)
        path.write_text(text, encoding="utf-8")


def render_site(content: Content, folder: Path) -> None:
    """Write every page of the site under ``folder``.

    Args:
        content: what the site shows.
        folder: the report's folder, which holds figures/ already; made if missing.
    """
    site = _Site(content, Path(folder))
    site.folder.mkdir(parents=True, exist_ok=True)
    write_assets(site.folder, site.environment)
    tables, claims = content.tables, content.claims
    figures = [figure for figure in content.figures if not is_of_readings(figure)]
    readings = read_readings(
        content.readings,
        content.readings_choice,
        content.readings_runs,
        content.readings_said,
        content.figures,
    )
    claim_tally = tally(claims)
    site.write(
        "index.html",
        "index.html.j2",
        claims=claims,
        claim_tally=claim_tally,
        headlines=headlines(tables),
        gaps=gaps(content.missing),
        shares={printed.table.label: shares(printed) for printed in tables},
        figures=figures,
        readings=readings,
        runs=content.runs,
        further=content.further,
        texts=texts([*content.runs, *content.further]),
    )
    site.write(
        "tables.html",
        "tables.html.j2",
        shares={printed.table.label: shares(printed) for printed in tables},
        columns=[_documented(field) for field in CELLS if field.name != "table"],
    )
    for place, printed in enumerate(tables):
        write_csv(content.cells, printed.table.label, site.folder / "tables")
        devices = _devices(printed, site.records)
        site.write(
            f"tables/{printed.table.label}.html",
            "table.html.j2",
            printed=printed,
            shares=shares(printed),
            devices=devices,
            device=other_device(content.page, devices) if printed.table.systems else None,
            behind=behind_cells(printed, site.records),
            previous=tables[place - 1].table if place else None,
            following=tables[place + 1].table if place + 1 < len(tables) else None,
        )
    site.write(
        "claims.html",
        "claims.html.j2",
        claims=claims,
        claim_tally=claim_tally,
        numbers={printed.table.label: printed.table.number for printed in tables},
        evidence=evidence_by_claim(content.evidence),
        readings=readings,
    )
    site.write(
        "readings.html",
        "readings.html.j2",
        readings=readings,
        intervals=INTERVALS,
        claims={claim["number"]: claim for claim in claims},
    )
    site.write("figures.html", "figures.html.j2", figures=figures)
    site.write(
        "runs.html",
        "runs.html.j2",
        groups=_groups(content.runs),
        further=pairs_by_scale(content.further),
        others=_others(site.records.values()),
    )
    for place, run in enumerate(content.runs):
        _write_run(site, run, place)
    site.write("pipeline.html", "pipeline.html.j2", pipeline=content.pipeline)
    site.write("assumptions.html", "assumptions.html.j2", readings=readings)
    site.write("checklist.html", "checklist.html.j2", checklist=content.checklist)


def _devices(printed: PrintedTable, records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a table's values were measured on; models that were only counted have no device."""
    found = (records[source]["device"] for source in printed.sources if source in records)
    return [device for device in dict.fromkeys(found) if device != "meta"]


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


# The kinds of records that a run's page shows, and those that runs.html shows with further pairs.
_ON_RUN_PAGES = ("run", "log")
_OF_FURTHER = ("further run", "further log", "further probes")


def _others(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """The records that neither a run's page nor the list of further pairs shows, by kind."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in records:
        if row["kind"] not in (*_ON_RUN_PAGES, *_OF_FURTHER):
            found.setdefault(row["kind"], []).append(row)
    return list(found.items())


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

    def page(row: Mapping[str, Any]) -> str:
        if row["kind"] in (*_ON_RUN_PAGES, *_OF_FURTHER):
            return pages[row["scale"], row["variant"], row["seed"]]
        return f"runs.html#{row['source']}"

    return {
        row["source"]: {
            **row,
            "page": page(row),
            "log_link": Path(os.path.relpath(row["log"], folder)).as_posix() if row["log"] else "",
        }
        for row in content.provenance
    }


def _documented(field: pa.Field) -> tuple[str, str]:
    """A column's name, and what its schema says of it."""
    told = (field.metadata[key].decode() for key in (b"description", b"unit"))
    return field.name, ", in ".join(filter(None, told))


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs of one scale and variant together."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.scale, run.variant), []).append(run)
    return list(groups.values())


def _records_of(run: Run, provenance: Iterable[Mapping[str, Any]]) -> set[str]:
    """Every record of a run: its own, its log's and probes', those of its diagnosed checkpoint."""
    key = (run.scale, run.variant, run.seed)
    return {
        row["source"] for row in provenance if (row["scale"], row["variant"], row["seed"]) == key
    }


def _logs_of(runs: Iterable[Run | None], provenance: Iterable[Mapping[str, Any]]) -> list[str]:
    """The records of the updates of some runs, in their order."""
    logs = {
        (row["scale"], row["variant"], row["seed"]): row["source"]
        for row in provenance
        if row["kind"] == "log"
    }
    keys = ((run.scale, run.variant, run.seed) for run in runs if run is not None)
    return [logs[key] for key in keys if key in logs]


def _write_run(site: _Site, run: Run, place: int) -> None:
    runs = site.content.runs
    by_key = {(other.scale, other.variant, other.seed): other for other in runs}
    own = _records_of(run, site.content.provenance)
    used = [printed.table for printed in site.content.tables if own & set(printed.sources)]
    partner = by_key.get((run.scale, run.partner, run.seed)) if run.partner else None
    site.write(
        f"{run.page}.html",
        "run.html.j2",
        run=run,
        partner=partner,
        logs=_logs_of((run, partner), site.content.provenance),
        provenance=site.records.get(run.source),
        used=used if run.source else [],
        previous=runs[place - 1] if place else None,
        following=runs[place + 1] if place + 1 < len(runs) else None,
    )
