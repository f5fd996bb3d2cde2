"""The report's pages: at most seven plain HTML files, which open without a server."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from relation import plan, records
from relation.config import CONFIG, Options
from relation.jobs import Run
from relation.variants import ModelConfig
from report import claims, data, fair, figures, overview, render, study, table, tables
from report.data import Records, Setting
from report.evidence import VERDICTS, Evidence
from report.figures import style
from report.render import axis

_NAMES = ("study", "claims", "tables", "figures", "assumptions", "records")
PAGES = {"index.html": "Overview"} | {f"{name}.html": name.capitalize() for name in _NAMES}
UNIT_NAMES = {"1": "", "text": "", "x": "×"}  # units of evidence that print differently
SYSTEMS = ("steps", "complexity", "decode", "recall", "checks", "gradients", "data")


def build(campaign: plan.Campaign, out: Path, published: bool) -> None:
    """Write the report of a campaign's columns to a folder; index.html is written last.

    published: read only results/published; otherwise only the campaign's own folder. Raises
    InputError if a record is damaged.
    """
    # Printed commands make the user's runs again, or shipped ones if no others were chosen.
    choices = campaign.choices()
    unshipped = {run.hash for run in campaign.runs if not published} - {*campaign.shipped()}
    if not unshipped:
        choices["published"] = "false"
    settings = campaign.columns
    stored = [data.load(setting, published, campaign) for setting in settings]
    cells = table.cells(stored, tables.EVERY)
    judged = [claims.judge(cells[cells["setting"] == r.setting.name], r) for r in stored]
    drawn = [figures.draw(each, out / "figures" / each.setting.slug) for each in stored]
    sections = study.sections(out / "figures/study", stored) if published else []
    frames = {"cells": cells.assign(by_seed=cells["by_seed"].map(json.dumps))}
    frames["claims"], frames["evidence"] = claims.frames(settings, judged)
    for name, frame in frames.items():
        frame.to_parquet(out / f"{name}.parquet", index=False)
    miniature = stored[0].miniature
    verdicts = list(zip(*judged, strict=True))  # by claim, then by setting
    tested = [each for each in verdicts if {one.verdict for one in each} != {"not tested"}]
    # A report of miniatures, or without any verdict, leaves out untested claims.
    if miniature or not tested:
        verdicts = tested
    printed = render.write(tables.EVERY, cells, settings, out, verdicts)
    by_claim = [_claim(each) for each in verdicts]
    runs = [each.runs for each in stored]
    steps = cells[cells["table"] == "efficient-relation"]
    differences = overview.difference_rows(settings, runs, cells)
    pages = {
        "claims.html": {"claims": by_claim},
        "tables.html": {"tables": printed},
        "figures.html": {"figures": list(_pictures(settings, drawn))},
        "study.html": {"sections": list(map(_section, sections))},
        "assumptions.html": {"assumptions": list(assumptions(campaign))},
        "records.html": {
            "groups": list(run_groups(campaign, choices, unshipped, published)),
            "systems": [row for each in stored for row in system_records(each, cells)],
        },
        "index.html": {
            "differences": differences,
            "tuned": sections[0].summary if sections else {},
            "cost": overview.cost(cells),
            "device": next(iter(steps.loc[steps["column"] == "device", "text"]), ""),
            "tally": [overview.tally(each) for each in judged],
            "claims": by_claim,
            "miniature": miniature,
            "losses": overview.losses(runs),
            "again": command(choices, again=bool(unshipped)),
        },
    }
    pages = {name: content for name, content in pages.items() if any(content.values())}
    heads = [{"mark": "ABCD"[k], "name": s.name, "title": str(s)} for k, s in enumerate(settings)]
    _write_pages(pages, out, settings=heads, campaign=campaign)
    for old in (out / "figures").glob("*/"):  # an earlier report of other settings
        if old.name not in {"study", *(setting.slug for setting in settings)}:
            shutil.rmtree(old)


def _section(section: study.Section) -> dict[str, Any]:
    """Return a section for the template, its differences as places on one axis."""
    table = section.table
    if table is not None and "" in table:
        drawn = table[""].dropna()
        places = axis([(None, each.value, each.low, each.high) for each in drawn], fair.MARGIN)
        by_row = dict(zip(drawn.index, places, strict=True))
        table = table.assign(**{"": list(map(by_row.get, table.index))})
    return {**vars(section), "table": table}


def _write_pages(pages: Mapping[str, Mapping[str, Any]], out: Path, **context: Any) -> None:
    """Write the pages in their order. Delete pages that only an earlier report had."""
    context |= {
        "nav": [(name, title) for name, title in PAGES.items() if name in pages],
        "verdicts": VERDICTS,
        "table_numbers": {each.label: each.number for each in tables.EVERY},
        "style": style,
    }
    style_sheet = render.HTML.get_template("style.css.j2").render(context)
    (out / "style.css").write_text(style_sheet, encoding="utf-8")
    for name in PAGES.keys() - pages.keys():
        (out / name).unlink(missing_ok=True)
    for name, content in pages.items():  # index.html, the rule's output, is the last
        template = render.HTML.get_template(f"{name}.j2")
        text = template.render(context, here=name, title=PAGES[name], **content)
        with records.atomic(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def command(choices: Mapping, again: bool, run: str = "") -> str:
    """Return the command that makes a campaign's runs, or one run.

    choices: of --config, with the campaign. again: force runs that are already there.
    """
    file = f"{records.RESULTS}/{choices['campaign']}/runs/{run}/run.parquet" if run else ""
    force = ["-R", file or "train"] if again else []
    target = ("all" if again else file) if run else ""
    return plan.snakemake_command(choices, *force, target=target)


def _claim(judged: Sequence[claims.Judged]) -> dict[str, Any]:
    """Return a claim with its verdicts and evidence in every setting, for the template.

    plotted: whether all evidence has one unit, so that one axis serves all rows. forms: a format
    per quantity, the same in every setting. quantities: each with its unit. quantity: the only one.
    """
    rows = [row for one in judged for row in one.evidence]
    evidence = [row for row in rows if row.ours is not None]
    units = {row.quantity: UNIT_NAMES.get(row.unit, row.unit) for row in rows}
    quantities = {name: f"{name} ({unit})" if unit else name for name, unit in units.items()}
    plotted = len({row.unit for row in evidence}) == 1 and not any(r.paper_n for r in evidence)
    by_row = {}
    if plotted:
        places = axis((row.paper, row.ours, row.low, row.high) for row in evidence)
        by_row = dict(zip(evidence, places, strict=True))
    return {
        "claim": judged[0].claim,
        "verdicts": [(one, [(row, by_row.get(row)) for row in one.evidence]) for one in judged],
        "quantities": quantities,
        "quantity": next(iter(quantities.values())) if len(quantities) == 1 else "",
        "forms": {name: _form([row for row in rows if row.quantity == name]) for name in units},
        "plotted": plotted,
    }


def _form(rows: Sequence[Evidence]) -> str:
    """Return a format for all values of a quantity: four digits of the largest; losses to 1e-4."""
    numbers = (number for row in rows for number in (row.paper, row.ours, row.low, row.high))
    values = [number for number in numbers if number is not None]
    largest = max(map(abs, values), default=0.0)
    if all(float(value).is_integer() for value in values):
        return ",.0f"
    if rows[0].unit == "nat/token":
        return ".4f"
    if largest < 0.01:
        return ".1e"
    return f",.{min(max(3 - math.floor(math.log10(largest)), 0), 4)}f"


def _pictures(settings: Sequence[Setting], drawn: Sequence[list[str]]) -> Iterator[dict[str, Any]]:
    """Yield each figure with its file in every setting that has it. drawn: names by setting."""
    for drawing in figures.ALL:
        pairs = zip(settings, drawn, strict=True)
        having = [setting for setting, names in pairs if drawing.name in names]
        files = [(str(each), f"figures/{each.slug}/{drawing.name}.svg") for each in having]
        if files:
            yield {"drawing": drawing, "files": files}


def assumptions(campaign: plan.Campaign) -> Iterator[dict[str, Any]]:
    """Yield every option of a run: its meaning, and Full Relation's values by setting and scale."""
    options = []  # by setting: the options of each scale
    defaults = {f.name: f.default for kind in (Run, ModelConfig) for f in fields(kind)}
    titles = {each.corpus: each.title for each in campaign.data.values()}
    for setting in campaign.columns:
        scales = campaign.scales_of(setting)
        by_scale = {s: defaults | campaign.options(s, setting.variation) for s in scales}
        for each in by_scale.values():
            each["corpus"] = titles.get(each["corpus"], each["corpus"])
        options.append(by_scale)
    for name, field in Options.model_fields.items():
        values = [{s: _option(o.get(name)) for s, o in by_scale.items()} for by_scale in options]
        # Whether a scale has two values; 100M28pc is compared with 100M.
        shown = {(data.paper_scale(scale), text) for of in values for scale, text in of.items()}
        differs = len(shown) > len({scale for scale, _ in shown})
        yield {"name": name, "about": field.description, "differs": differs, "values": values}


def _option(value: Any) -> str:
    """Format an option's value as in the configuration, with commas in large counts."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {each}" for key, each in value.items())
    if isinstance(value, int) and value >= 10_000 and not isinstance(value, bool):
        return f"{value:,}"
    return json.dumps(value).strip('"')


def run_groups(
    campaign: plan.Campaign, choices: Mapping, unshipped: Collection[str], published: bool
) -> Iterator[dict[str, Any]]:
    """Yield training runs by campaign, with the command for one of them.

    choices: as in `command`. unshipped: hashes of runs that only the user has; if one is listed,
    the command makes the first of them again. published: list every campaign's shipped runs.
    """
    root = records.PUBLISHED if published else records.RESULTS
    shipped = sorted(path.parent.name for path in root.glob("*/runs.parquet")) if published else ()
    for name in dict.fromkeys([campaign.name, *shipped]):
        runs = records.read(root / name / "runs.parquet", "runs")
        if runs.empty:
            continue
        names = runs[records.RUN_KEY[1:]].astype(str).agg("/".join, axis=1)
        anchors = data.anchors(Setting(name), "runs", runs.assign(own_scale=runs["scale"]))
        runs = runs.assign(name=names, anchor=anchors)
        made_here = runs[runs["hash"].isin(unshipped)]
        first = (runs if made_here.empty else made_here)["name"].iloc[0]
        of_campaign = {"campaign": name, "published": "false"} if published else choices
        planned = (CONFIG.parent / "config" / f"{name}.yaml").exists()
        text = command(of_campaign, not made_here.empty, first) if planned else ""
        yield {"name": name, "rows": runs.to_dict("records"), "again": text}


def system_records(stored: Records, cells: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield one row per record of benchmarks, checks and corpora, with the tables that have it."""
    tables_of = cells.explode("sources").groupby("sources")["table"].unique()
    for kind in SYSTEMS:
        for source, group in getattr(stored, kind).groupby("source", sort=False):
            first = group.iloc[0].fillna("").to_dict()
            file, _, anchor = source.partition("#")
            row = {"setting": str(stored.setting), "file": file, "anchor": anchor}
            scales = dict.fromkeys(group["own_scale"].dropna()) if "own_scale" in group else ()
            row |= {"kind": first.get("benchmark", kind), "scale": ", ".join(filter(None, scales))}
            row |= {name: first[name] for name in ("device", "commit", "created")}
            yield row | {"tables": tables_of.get(source, ())}
