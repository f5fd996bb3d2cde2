"""The report's pages: at most seven plain HTML files, which open without a server."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from relation import plan, records
from relation.config import Options
from report import claims, data, fair, figures, overview, render, study, table, tables
from report.data import Records, Setting
from report.evidence import VERDICTS, Evidence
from report.figures import style
from report.render import axis

_NAMES = ("claims", "tables", "figures", "study", "assumptions", "records")
PAGES = {"index.html": "Overview"} | {f"{name}.html": name.capitalize() for name in _NAMES}
_values = attrgetter("paper", "ours", "low", "high")  # of evidence
UNITS = {"1": "", "text": "", "x": "×"}  # units of evidence that print differently
SYSTEMS = ("steps", "complexity", "decode", "recall", "checks", "gradients", "data")


def build(campaign: plan.Campaign, out: Path, published: bool) -> None:
    """Write the report of a campaign's columns to a folder; index.html is written last.

    published: read only results/published; otherwise only the campaign's own folder. Raises
    InputError if a record is damaged.
    """
    settings = campaign.columns
    out.mkdir(parents=True, exist_ok=True)
    work = partial(_shown, campaign=campaign, out=out, published=published)
    # One process per setting: tables and figures take most of the time.
    with ProcessPoolExecutor(min(len(settings), os.cpu_count() or 1)) as pool:
        job = published and pool.submit(study.sections, out / "figures/study")
        shown = (map if len(settings) == 1 else pool.map)(work, settings)
        stored, cells, judged, drawn = zip(*shown, strict=True)
        sections = job.result() if published else []
    cells = pd.concat(cells, ignore_index=True)
    frames = {"cells": cells.assign(by_seed=cells["by_seed"].map(json.dumps))}
    frames["claims"], frames["evidence"] = claims.frames(settings, judged)
    for name, frame in frames.items():
        frame.to_parquet(out / f"{name}.parquet", index=False)
    verdicts, miniature = list(zip(*judged, strict=True)), stored[0].miniature
    tested = [each for each in verdicts if {one.verdict for one in each} != {"not tested"}]
    # A report of miniatures, or without any verdict, leaves out untested claims.
    verdicts = tested if miniature or not tested else verdicts
    printed = render.write(tables.EVERY, cells, settings, out, verdicts)
    by_claim = list(map(_claim, verdicts))
    bodies = ((each.table, Markup(render.html(each))) for each in printed)
    systems = (system_records(each, campaign, published) for each in stored)
    runs = [each.runs for each in stored]
    differences = overview.difference_rows(settings, runs, cells, miniature)
    pages = {
        "claims.html": {"claims": by_claim},
        "tables.html": {"tables": [body for body in bodies if body[1].strip()]},
        "figures.html": {"figures": list(_pictures(settings, drawn))},
        "study.html": {"sections": list(map(_section, sections))},
        "assumptions.html": {"assumptions": list(assumptions(campaign))},
        "records.html": {
            "groups": list(run_groups(campaign, published)),
            "systems": list(chain(*systems)),
        },
        "index.html": {
            "differences": differences,
            "answer": overview.answer(differences),
            "tuned": next((each.summary for each in sections if each.summary), ""),
            "cost": overview.cost(cells),
            "tally": list(map(overview.tally, judged)),
            "claims": by_claim,
            "miniature": miniature,
            "losses": overview.losses(runs),
            "missing": list(missing(stored, published)),
            "again": [command(each, published, **_chosen(campaign)) for each in settings],
        },
    }
    pages = {name: content for name, content in pages.items() if any(content.values())}
    heads = [{"mark": "ABCD"[k], "name": s.name, "title": str(s)} for k, s in enumerate(settings)]
    _write_pages(pages, out, settings=heads, campaign=campaign)
    for old in (out / "figures").glob("*"):  # an earlier report of other settings
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


def _shown(
    setting: Setting, campaign: plan.Campaign, out: Path, published: bool
) -> tuple[Records, pd.DataFrame, list[claims.Judged], list[str]]:
    """Return a setting's records, cells, verdicts and the names of its figures."""
    stored = data.load(setting, published, campaign=campaign)
    cells = table.cells([stored], tables.EVERY)
    drawn = figures.draw(stored, out / "figures" / setting.slug)
    # The pages list only runs and SYSTEMS. The other frames are large, so they stay in the process.
    unlisted = set(data.FRAMES) - {"runs", *SYSTEMS}
    emptied = {name: getattr(stored, name)[:0] for name in unlisted}
    return replace(stored, **emptied), cells, claims.judge(cells, stored), drawn


def _chosen(campaign: plan.Campaign) -> dict[str, list]:
    """Return the scales, variants and seeds that the user chose, as `command` takes them."""
    choices = {key: campaign.settings.get(key) for key in ("scales", "variants", "seeds")}
    return {k: v if isinstance(v, list) else [v] for k, v in choices.items() if v is not None}


def _write_pages(pages: Mapping[str, Mapping[str, Any]], out: Path, **context: Any) -> None:
    """Write the pages in their order. Delete pages that only an earlier report had."""
    context |= {
        "nav": [(name, title) for name, title in PAGES.items() if name in pages],
        "verdicts": VERDICTS,
        "table_numbers": {each.label: each.number for each in tables.EVERY},
        "style": style,
        "printed_units": UNITS,
    }
    for source in ("style.css.j2", "report.js"):
        text = render.HTML.get_template(source).render(context)
        (out / source.removesuffix(".j2")).write_text(text, encoding="utf-8")
    for name in PAGES.keys() - pages.keys():
        (out / name).unlink(missing_ok=True)
    for name, content in pages.items():
        template = render.HTML.get_template(f"{name}.j2")
        text = template.render(context, here=name, title=PAGES[name], **content)
        (out / name).write_text(text, encoding="utf-8")


def command(
    setting: Setting, shipped: bool, again: bool = True, targets: Collection[str] = (), **choice
) -> str:
    """Return the command that produces a setting's files, for the first time or `again`.

    targets: files below the campaign's folder; none: all. choice: further choices of --config.
    `again` ignores shipped records (published=false) or forces the user's own files to be remade.
    """
    scales = () if len(targets) else setting.scales or ()
    choices = {"variations": [setting.variation], "scales": scales} | choice
    if "=" in setting.variation:  # a one-off change of options
        choices["variations"] = [setting.varies] if setting.varies else []
        choices["vary"] = [setting.variation.removeprefix(f"{setting.varies}+").replace("+", " ")]
    files = [f"{records.RESULTS / setting.campaign}/{target}" for target in targets]
    config = [f"campaign={setting.campaign}"]
    config += [f"corpus={setting.corpus}"] if setting.corpus else []
    config += [f"{key}={','.join(map(str, value))}" for key, value in choices.items() if len(value)]
    config += ["published=false"] if (again and shipped) or not setting.published else []
    forcing = ["--force"] if files else ["-R", "train"]
    words = ["snakemake", "--cores", "all", *(forcing if again and not shipped else []), *files]
    return shlex.join([*words, "--config", *config])


# The list of what did not run, and the other pages.


def missing(stored: Sequence[Records], published: bool) -> Iterator[dict[str, Any]]:
    """Yield what did not run, by setting, kind and scale, with the command that makes just that.

    Measurements on a missing run are grouped with the run.
    """
    for place, each in enumerate(stored):
        setting, lacking = each.setting, each.planned.query("status != 'ok'")
        if place > 0:  # all settings share the benchmarks, so they are listed once
            lacking = lacking[lacking["kind"].isin(data.RUN_KINDS)]
        runs = pd.MultiIndex.from_frame(lacking[["own_scale", "variant", "seed"]])
        of_missing = runs.isin(runs[lacking["kind"] == "runs"])
        lacking = lacking.assign(group=lacking["kind"].mask(of_missing, "runs"))
        for (kind, scale), group in lacking.groupby(["group", "own_scale"], sort=False):
            names = group["kind"].map(lambda kind: data.KIND_NAMES.get(kind, "benchmark"))
            counts = (data.counted(n, name) for name, n in names.value_counts(sort=False).items())
            again = published and kind != "runs"  # checkpoints are not shipped
            yield {
                "what": f"{setting}: {', '.join(counts)}{f' at {scale}' if scale else ''}",
                "names": ", ".join(dict.fromkeys(group["variant"])),
                "why": "; ".join(dict.fromkeys(filter(None, group["reason"]))),
                "command": command(setting, published, again, group["file"]),
            }


def _claim(judged: Sequence[claims.Judged]) -> dict[str, Any]:
    """Return a claim with its verdicts and evidence in every setting, for the template.

    plotted: whether all evidence has one unit, so that one axis serves all rows. forms: a format
    per quantity, the same in every setting. quantity: the quantity if all evidence has the same.
    """
    rows = [row for one in judged for row in one.evidence]
    evidence = [row for row in rows if row.ours is not None]
    units = {row.quantity: row.unit for row in rows}
    plotted = len({row.unit for row in evidence}) == 1 and not any(r.paper_n for r in evidence)
    places = axis(map(_values, evidence)) if plotted else [None] * len(evidence)
    by_row = dict(zip(evidence, places, strict=True))
    return {
        "claim": judged[0].claim,
        "verdicts": [(one, [(row, by_row.get(row)) for row in one.evidence]) for one in judged],
        "quantity": next(iter(units)) if len(units) == 1 else "",
        "units": units,
        "forms": {name: _form([row for row in rows if row.quantity == name]) for name in units},
        "plotted": plotted,
    }


def _form(rows: Sequence[Evidence]) -> str:
    """Return a format for all values of a quantity: four digits of the largest; losses to 1e-4."""
    values = [value for row in rows for value in _values(row) if value is not None]
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
    options = []
    for setting in campaign.columns:
        variation = campaign.variations[setting.variation]
        scales = setting.scales or variation.get("scales") or campaign.scales
        by_scale = {scale: campaign.options(scale, setting.variation, "full") for scale in scales}
        corpora = campaign.settings["settings"]["corpora"]
        for each in by_scale.values():
            each["corpus"] = corpora[each["corpus"]].get("title", each["corpus"])
        options.append(by_scale)
    for name, field in Options.model_fields.items():
        values = [{s: _option(o.get(name)) for s, o in by_scale.items()} for by_scale in options]
        # 100M28pc is compared with 100M.
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


def run_groups(campaign: plan.Campaign, published: bool) -> Iterator[dict[str, Any]]:
    """Yield training runs by campaign. A published report lists the runs of every campaign."""
    root = records.PUBLISHED if published else records.RESULTS
    columns = {(setting.campaign, setting.variation): setting for setting in campaign.columns}
    shipped = sorted(path.parent.name for path in root.glob("*/runs.parquet")) if published else ()
    for name in dict.fromkeys([campaign.name, *shipped]):
        runs = records.read(root / name / "runs.parquet", "runs")
        runs = runs.assign(own_scale=runs["scale"], title=runs["variant"].map(data.title))
        runs = runs.assign(anchor=data.anchors(Setting(name), "runs", runs))
        planned = campaign if name == campaign.name else None
        if planned is None and Path("config", f"{name}.yaml").exists():  # else it no longer exists
            planned = plan.load({"campaign": name})
        files = data.job_files(planned) if planned else {}
        rows = runs.assign(again="").to_dict("records")
        for row in (row for row in rows if row["hash"] in files):
            setting = Setting(name, row["variation"], corpus=planned.corpus)
            setting = columns.get((name, row["variation"]), setting)  # it knows a one-off's changes
            row["again"] = command(setting, published, targets=[files[row["hash"]]])
        yield {"name": name, "rows": rows}


def system_records(
    stored: Records, campaign: plan.Campaign, published: bool
) -> Iterator[dict[str, Any]]:
    """Yield one row per record of benchmarks, checks and corpora behind the tables.

    A row has no command if the campaign no longer plans that measurement.
    """
    files = data.job_files(campaign)
    for kind in SYSTEMS:
        for source, group in getattr(stored, kind).groupby("source", sort=False):
            first = group.iloc[0].fillna("").to_dict()
            file, _, anchor = source.partition("#")
            targets = dict.fromkeys(group["hash"].map(files).dropna())
            again = command(stored.setting, published, targets=targets) if targets else ""
            row = {"setting": str(stored.setting), "file": file, "anchor": anchor, "again": again}
            row |= {"kind": first.get("benchmark", kind), "scale": first.get("own_scale", "")}
            row |= {name: first[name] for name in ("device", "commit", "created")}
            yield row | {"count": len(group)}
