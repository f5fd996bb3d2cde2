"""The report's site: at most seven pages of plain files, which open without a server."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from relation import plan, records
from relation.config import Options
from report import claims, data, figures, overview, render, study, table, tables
from report.data import Records, Setting
from report.evidence import VERDICTS, Evidence, axis
from report.figures import style

_NAMES = ("claims", "tables", "figures", "study", "assumptions", "records")
PAGES = {"index.html": "Overview"} | {f"{name}.html": name.capitalize() for name in _NAMES}
# The files of benchmarks and checks below a campaign's folder.
FILES = dict.fromkeys(("steps", "complexity", "decode"), "bench/{kind}/{scale}.parquet")
FILES |= {"checks": "check/operators.parquet", "gradients": "check/gradients.parquet"}
FILES |= {"recall": "recall/{mixer}.parquet"}
UNITS = {"1": "", "text": "", "x": "×"}  # of evidence, where they print otherwise
SYSTEMS = ("steps", "complexity", "decode", "recall", "checks", "gradients", "models", "data")


@dataclass(frozen=True)
class Shown:
    """What the pages show of one setting; drawn: the names of its figures."""

    records: Records
    cells: pd.DataFrame
    judged: list[claims.Judged]
    drawn: list[str]


def build(campaign: plan.Campaign, out: Path, published: bool) -> None:
    """Write the report of a campaign's columns to a folder; index.html comes last.

    published: from results/published alone; else from the campaigns' own folders. Raises
    InputError where a record is damaged.
    """
    campaigns = {c.campaign: _campaign(c.campaign, published) for c in campaign.columns}
    campaigns[campaign.name] = campaign  # with the changes that it was started with
    settings = [replace(c, corpus=campaigns[c.campaign].corpus) for c in campaign.columns]
    planned = [campaigns[setting.campaign] for setting in settings]
    out.mkdir(parents=True, exist_ok=True)
    work = partial(_shown, out=out, published=published)
    # A process a setting: tables and figures take most of the time.
    with ProcessPoolExecutor(min(len(settings), os.cpu_count() or 1)) as pool:
        drawn = pool.submit(_study, out, published)
        found = list((map if len(settings) == 1 else pool.map)(work, settings, planned))
        sections = drawn.result()
    of_settings, judged = [each.records for each in found], [each.judged for each in found]
    cells = pd.concat([each.cells for each in found], ignore_index=True)
    frames = {"cells": cells.assign(by_seed=cells["by_seed"].map(json.dumps))}
    frames["claims"], frames["evidence"] = claims.frames(settings, judged)
    for name, frame in frames.items():
        frame.to_parquet(out / f"{name}.parquet", index=False)
    printed = render.write(tables.EVERY, cells, settings, out, zip(*judged, strict=True))
    made = ((each.table, render.html(each)) for each in printed)
    by_claim, miniature = list(map(_claim, zip(*judged, strict=True))), of_settings[0].miniature
    runs = [each.runs for each in of_settings]
    apart = overview.difference_rows(settings, runs, cells, miniature)
    pages = {
        "claims.html": {"claims": by_claim},
        "tables.html": {"tables": [(of, Markup(html)) for of, html in made if html.strip()]},
        "figures.html": {"figures": _pictures(found)},
        "study.html": {"sections": list(map(_section, sections))},
        "assumptions.html": {"assumptions": assumptions(settings, campaigns)},
        "records.html": {
            "groups": run_groups(settings, published),
            "systems": [
                row
                for each, of in zip(of_settings, planned, strict=True)
                for row in system_records(each, of, published)
            ],
        },
        "index.html": {
            "differences": apart,
            "answer": overview.answer([row["evidence"] for row in apart]),
            "tuned": next((each.summary for each in sections if each.summary), ""),
            "cost": overview.cost(cells),
            "tally": list(map(overview.tally, judged)),
            "claims": by_claim,
            "miniature": miniature,
            "losses": overview.losses(runs),
            "missing": missing(of_settings, published),
            # A campaign that was started for some of its scales is made again for these.
            "again": [
                command(s, published, **({} if published else {"scales": s.scales or of.scales}))
                for s, of in zip(settings, planned, strict=True)
            ],
        },
    }
    pages = {name: content for name, content in pages.items() if any(content.values())}
    shown = [{"mark": "ABCD"[k], "name": s.name, "title": str(s)} for k, s in enumerate(settings)]
    _write_pages(pages, out, settings=shown, campaign=campaign)


def _root(published: bool) -> Path:
    return Path("results/published") if published else Path("results")


def _study(out: Path, published: bool) -> list[study.Section]:
    return study.sections(_root(published), out / "figures" / "study") if published else []


def _section(of: study.Section) -> dict[str, Any]:
    """What the template shows: differences as places on one axis, with the margin."""
    table = of.table
    if table is not None and "" in table:
        rows = {k: Evidence.of(each) for k, each in table[""].items() if each is not None}
        place = axis(list(rows.values()), study.MARGIN)
        table = table.assign(**{"": [place(rows[k]) if k in rows else None for k in table.index]})
    return {**vars(of), "table": table}


def _shown(setting: Setting, campaign: plan.Campaign, out: Path, published: bool) -> Shown:
    found = data.load(setting, published, campaign=campaign)
    cells = table.cells([found], tables.EVERY)
    drawn = figures.draw(found, out / "figures" / setting.slug)
    # What pages list is passed on, without what is long.
    listed = {"runs", *SYSTEMS}
    kept = {name: getattr(found, name)[:0] for name in data.FRAMES if name not in listed}
    return Shown(replace(found, **kept), cells, claims.judge(cells, found), drawn)


def _campaign(name: str, published: bool) -> plan.Campaign:
    """What is planned: all of the campaign, or as the workflow was started in its own folder."""
    started = Path("results") / name / "campaign.json"
    return plan.load(started if started.exists() and not published else {"campaign": name})


def _write_pages(pages: Mapping[str, Mapping[str, Any]], out: Path, **known: Any) -> None:
    """Write the pages in their order, and delete those of an earlier report that are gone."""
    known |= {
        "nav": [(name, title) for name, title in PAGES.items() if name in pages],
        "verdicts": VERDICTS,
        "table_numbers": {each.label: each.number for each in tables.EVERY},
        "style": style,
        "printed_units": UNITS,
    }
    templates = render.environment()
    for source in ("style.css.j2", "report.js"):
        text = templates.get_template(source).render(known)
        (out / source.removesuffix(".j2")).write_text(text, encoding="utf-8")
    for name in PAGES.keys() - pages.keys():
        (out / name).unlink(missing_ok=True)
    for name, content in pages.items():
        template = templates.get_template(f"{name}.j2")
        text = template.render(known, here=name, title=PAGES[name], **content)
        (out / name).write_text(text, encoding="utf-8")


def command(
    of: Setting, published: bool, again: bool = True, targets: Iterable[str] = (), **choice: Any
) -> str:
    """What makes again, or for the first time, what is shown: all of it, or the files `targets`.

    targets: below the campaign's folder; choice: what --config chooses beside the setting. Shipped
    records are made again where nothing shipped counts as done; own ones are forced.
    """
    given = {"variations": [of.variation], "scales": of.scales or ()} | choice
    if "=" in of.variation:  # a one-off change of options
        given["variations"] = [of.varies] if of.varies else []
        given["vary"] = [of.variation.replace("+", " ")]
    files = [f"results/{of.campaign}/{target}" for target in targets]
    words = [f"campaign={of.campaign}", *([f"corpus={of.corpus}"] if of.corpus else [])]
    words += [f"{key}={','.join(map(str, value))}" for key, value in given.items() if len(value)]
    words += ["published=false"] if again and published else []
    forced = ["--force"] if files else ["-R", "train"]
    made = ["snakemake", "--cores", "all", *(forced if again and not published else []), *files]
    return shlex.join([*made, "--config", *words])


# What did not run, and the other pages.


def missing(found: Sequence[Records], published: bool) -> list[dict[str, Any]]:
    """What did not run, by setting, kind and scale, with the command that runs it."""
    rows, campaigns = [], set()
    for of in found:
        lacking = of.planned[of.planned["status"] != "ok"]
        if of.setting.campaign in campaigns:  # its benchmarks are listed once
            lacking = lacking[lacking["kind"].isin(data.RUN_KINDS)]
        campaigns.add(of.setting.campaign)
        for (kind, scale), group in lacking.groupby(["kind", "own_scale"], sort=False):
            choice = {"scales": [scale]} if scale else {}
            if kind in data.RUN_KINDS:
                choice |= {"seeds": group["seed"].unique(), "variants": group["variant"].unique()}
            again = published and kind != "runs"  # checkpoints are not shipped
            told = data.counted(len(group), data.KIND_NAMES.get(kind, "benchmark"))
            row = {
                "what": f"{of.setting}: {told}{f' at {scale}' if scale else ''}",
                "names": ", ".join(dict.fromkeys(group["variant"])),
                "why": "; ".join(dict.fromkeys(filter(None, group["reason"]))),
                "command": command(of.setting, published, again, **choice),
            }
            rows.append(row)
    return rows


def _claim(judged: Sequence[claims.Judged]) -> dict[str, Any]:
    """A claim with its verdict and its evidence in every setting, on one axis.

    forms: the format of a quantity, the same in every setting; quantity: what all evidence is of.
    """
    every = [row for one in judged for row in one.evidence]
    evidence = [row for row in every if row.ours is not None]
    place, units = axis(evidence), {row.quantity: row.unit for row in every}
    return {
        "claim": judged[0].claim,
        "verdicts": [(one, [(row, place(row)) for row in one.evidence]) for one in judged],
        "quantity": next(iter(units)) if len(units) == 1 else "",
        "units": units,
        "forms": {name: _form([row for row in every if row.quantity == name]) for name in units},
        "plotted": bool(evidence and place(evidence[0])),
    }


def _form(rows: Sequence[Evidence]) -> str:
    """One format for all values of a quantity: four digits of the largest, losses to 1e-4 nat."""
    values = [v for row in rows for v in (row.paper, row.ours, row.low, row.high) if v is not None]
    largest = max(map(abs, values), default=0.0)
    if all(float(value).is_integer() for value in values):
        return ",.0f"
    if rows[0].unit == "nat/token":
        return ".4f"
    if largest < 0.01:
        return ".1e"
    return f",.{min(max(3 - math.floor(math.log10(largest)), 0), 4)}f"


def _pictures(found: Sequence[Shown]) -> list[dict[str, Any]]:
    """Each figure with its file in every setting that has it."""
    shown = []
    for each in figures.ALL:
        own = (one.records.setting for one in found if each.name in one.drawn)
        files = [(str(setting), f"figures/{setting.slug}/{each.name}.svg") for setting in own]
        shown += [{"drawing": each, "files": files}] if files else []
    return shown


def assumptions(
    settings: Sequence[Setting], campaigns: Mapping[str, plan.Campaign]
) -> list[dict[str, Any]]:
    """Every option of a run with what it means and Full Relation's values by setting and scale."""
    rows, options = [], []
    for setting in settings:
        of = campaigns[setting.campaign]
        scales = setting.scales or of.variations[setting.variation].get("scales") or of.scales
        own = {c: of.options(c, setting.variation, "full") for c in scales}
        corpora = of.settings["settings"]["corpora"]
        for each in own.values():
            each["corpus"] = corpora[each["corpus"]].get("title", each["corpus"])
        options.append(own)
    for name, field in Options.model_fields.items():
        values = [{c: _option(o.get(name)) for c, o in of.items()} for of in options]
        differs = any(
            a[scale] != b[scale] for a in values for b in values for scale in a.keys() & b.keys()
        )
        told = {"name": name, "about": field.description, "differs": differs, "values": values}
        rows.append(told)
    return rows


def _option(value: Any) -> str:
    """An option's value as the configuration words it, with commas in long counts."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {each}" for key, each in value.items())
    if isinstance(value, int) and value >= 10_000 and not isinstance(value, bool):
        return f"{value:,}"
    return json.dumps(value).strip('"')


def run_groups(settings: Sequence[Setting], published: bool) -> list[dict[str, Any]]:
    """Training runs by campaign; a shipped report has those of every campaign."""
    root, groups = _root(published), []
    corpora = {setting.campaign: setting.corpus for setting in settings}
    shipped = sorted(path.parent.name for path in root.glob("*/runs.parquet")) if published else ()
    for name in dict.fromkeys([*corpora, *shipped]):
        runs = records.read(root / name / "runs.parquet", "runs")
        runs = runs.assign(own_scale=runs["scale"], title=runs["variant"].map(data.title))
        runs = runs.assign(anchor=data.anchors(Setting(name), "runs", runs))
        known = Path("config", f"{name}.yaml").exists()  # else it can be made no more
        rows = runs.to_dict("records")
        for row in rows:
            setting = Setting(name, row["variation"], corpus=corpora.get(name))
            choice = {key: [row[key[:-1]]] for key in ("scales", "seeds", "variants")}
            file = "runs/{scale}/{variation}/{variant}/{seed}/run.parquet".format_map(row)
            again = command(setting, published, targets=[file], **choice)
            row["again"] = again if known else ""
        groups.append({"name": name, "rows": rows})
    return groups


def system_records(
    found: Records, campaign: plan.Campaign, published: bool
) -> list[dict[str, Any]]:
    """Benchmarks, checks and inventories that the tables rest on, a row a record.

    One without a command is of a variation that the campaign no longer measures.
    """
    jobs = [*campaign.benchmarks, *campaign.recall, *filter(None, [campaign.check])]
    measured, rows = {job.variation for job in jobs}, []
    for kind in SYSTEMS:
        for source, group in getattr(found, kind).groupby("source", sort=False):
            first = group.iloc[0].fillna("").to_dict()
            file, _, anchor = source.partition("#")
            named = {"kind": first.get("benchmark", kind), "scale": first.get("own_scale", "")}
            each = group.assign(kind=named["kind"], scale=named["scale"]).to_dict("records")
            again = kind in FILES and first["variation"] in measured
            made = dict.fromkeys(FILES[kind].format_map(one) for one in each if again)
            again = command(found.setting, published, targets=made, scales=()) if made else ""
            row = {"setting": str(found.setting), "file": file, "anchor": anchor, "again": again}
            row |= {name: first[name] for name in ("device", "commit", "created")}
            rows.append(row | named | {"count": len(group)})
    return rows
