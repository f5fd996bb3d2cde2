"""The records of one setting (a campaign, a variation and scales): a column of the report."""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pandas as pd

from relation import plan, records
from relation.plan import Setting
from relation.variants import VARIANTS, parameter_count
from report.paper import SCALES

RUN_KINDS = ("runs", "losses", "probes", "flow", "curves", "maps", "lengths")
KEY_IN_SETTING = ["scale", "variant", "seed"]
PLANNED = ["kind", *KEY_IN_SETTING, "further", "own_scale", "status", "reason"]
# Names of the operators that the benchmark `complexity` times.
OPERATORS = {"mha": "MHA", "full-reference": "Full, materialised", "full-flash": "FlashRelation"}
OPERATORS |= {"linear": "Linear Relation"}
# A kind's noun in the reasons of gaps; other kinds are benchmarks.
KIND_NAMES = {"runs": "run", "flow": "diagnosed checkpoint", "models": "model", "checks": "check"}
KIND_NAMES |= {"gradients": "check", "lengths": "long text", "recall": "recall task"}
OUTSIDE = "is not part of this setting"
DIVERGED = "a run of it diverged"
UNMEASURED = "its checkpoint is not shipped; published=false trains it here"


@dataclass(frozen=True, kw_only=True)
class Records:
    """One setting's frames, as relation.records describes them, and its planned records.

    Each frame also has `source` (file and anchor on the Records page). `scale` is the paper's scale
    that the rows stand for (100M for 100M28pc, 10M for 10M-mini); `own_scale` is the run's own.
    Runs have `further`: whether the campaign plans them beyond its matrix.
    models: one row per scale and variant, from the configuration.
    planned: one row per planned record, with the columns PLANNED. A benchmark's variant is its
    name. precision: of the benchmarks. window: the fraction of the budget over which losses are
    smoothed.
    """

    setting: Setting
    runs: pd.DataFrame
    losses: pd.DataFrame
    probes: pd.DataFrame
    flow: pd.DataFrame
    curves: pd.DataFrame
    maps: pd.DataFrame
    lengths: pd.DataFrame
    recall: pd.DataFrame
    steps: pd.DataFrame
    complexity: pd.DataFrame
    decode: pd.DataFrame
    checks: pd.DataFrame
    gradients: pd.DataFrame
    data: pd.DataFrame
    models: pd.DataFrame
    planned: pd.DataFrame
    precision: Sequence[str]
    window: float

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds of the matrix: planned ones, and those of records."""
        rows = pd.concat([self.planned[self.planned["kind"] == "runs"], self.runs])
        return sorted(map(int, rows["seed"][~rows["further"].astype(bool)].unique()))

    @cached_property
    def miniature(self) -> bool:
        """Whether models are miniatures, by name or size; they are not set against the paper's."""
        named = self.models["own_scale"].astype(str).str.endswith("-mini").any()
        return bool(named or self.models["parameters"].max() < 1e6)


def paper_scale(scale: str) -> str:
    """Return the paper's scale that starts a name, such as 100M of 100M28pc; else the name."""
    return next((theirs for theirs in SCALES if str(scale).startswith(theirs)), scale)


def _scale_names(scales: Sequence[str]) -> dict[str, str]:
    """Map each scale of a setting to its `paper_scale`, or to itself if two would be one."""
    names = Counter(map(paper_scale, scales))
    return {s: s if names[paper_scale(s)] > 1 else paper_scale(s) for s in scales}


def scale_order(scale: str) -> int:
    """Return a key that sorts scales by the millions in their names; other names come last."""
    millions = re.match(r"\d+(?=M)", scale)
    return int(millions[0]) if millions else sys.maxsize


def anchors(setting: Setting, kind: str, rows: pd.DataFrame) -> pd.Series:
    """Return each row's anchor on the page Records: a run's key, or a record's kind and scale."""
    if kind in RUN_KINDS:
        key = rows[["own_scale", "variation", "variant", "seed"]].astype(str)
        return rows["campaign"].str.cat(key, sep="-")
    names = rows["benchmark"] if kind == "steps" else pd.Series(kind, rows.index)
    scaled = "-" + rows["own_scale"] if kind in ("steps", "complexity", "decode") else ""
    return setting.slug + "-" + names + scaled


_stored = cache(records.load)


def load(
    setting: Setting, published: bool = True, campaign: plan.Campaign | None = None
) -> Records:
    """Read a setting's records: shipped ones, or those in the campaign's own folder.

    campaign: the plan; None: the whole of config/<campaign>.yaml. Raises InputError, as
    relation.records.load does, if a file is damaged or two runs of a seed are not a pair.
    """
    campaign = campaign or plan.load({"campaign": setting.campaign})
    folder = records.PUBLISHED / campaign.name if published else campaign.folder
    scales = _scales(setting, campaign)
    shared, further = [], []  # keys of runs that an earlier variation made; runs beyond the matrix
    for (scale, variation, variant, seed), run in campaign.addresses.items():
        if variation != setting.variation:
            continue
        if run.variation != variation:
            shared.append(tuple(records.key(run).values()))
        if campaign.matrix.seeds(scale, variation, variant)[seed]:
            further.append((scale, variant, seed))
    stored = _stored(folder)
    frames = {k: _frame(setting, k, stored[k], folder, scales, shared) for k in records.FILES}
    runs = frames["runs"]
    # Also pairs of which an earlier variation made one run.
    records.check_pairs(runs.assign(variation=setting.variation, scale=runs["own_scale"]))
    names = pd.MultiIndex.from_frame(runs[["own_scale", "variant", "seed"]])
    frames["runs"] = runs.assign(further=names.isin(further))
    return Records(
        setting=setting,
        **frames,
        models=_at(scales, _models(campaign, setting.variation)),
        planned=_planned(setting, campaign, frames, scales),
        precision=sorted({bench.precision for bench in campaign.benchmarks}),
        window=campaign.efficiency_window,
    )


def _scales(setting: Setting, campaign: plan.Campaign) -> list[str]:
    """Return a setting's scales: its own, the paper's, or all; "" for records without a scale."""
    of_paper = [scale for scale in campaign.scales if scale in SCALES]
    scales = setting.scales or of_paper or campaign.scales_of(setting)
    # Records without a scale, such as identities, belong to settings with the paper's scales.
    alone = setting.scales and not {*SCALES} & {*setting.scales}
    return [*scales] if alone else [*scales, ""]


def _frame(
    setting: Setting, kind: str, rows: pd.DataFrame, folder: Path, scales: Sequence[str],
    shared: Sequence[tuple],
) -> pd.DataFrame:  # fmt: skip
    """Return a setting's rows of one kind. shared: RUN_KEY of the runs of earlier variations."""
    if "variation" in rows:
        chosen = rows["variation"] == setting.variation
        if shared and kind in RUN_KINDS:
            chosen |= pd.MultiIndex.from_frame(rows[records.RUN_KEY]).isin(shared)
        # A record without a variation is of all variations; the setting's own records win.
        rows = rows[chosen if chosen.any() else rows["variation"].isna()]
    if kind == "recall" and "" not in scales:
        rows = rows[:0]
    if "scale" in rows:
        rows = _at(scales, rows)
    return rows.assign(source=f"{folder / kind}.parquet#" + anchors(setting, kind, rows))


def _at(scales: Sequence[str], rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of some scales, sorted by the paper's scale that they stand for."""
    rows = rows[rows["scale"].fillna("").isin(scales)]
    rows = rows.assign(own_scale=rows["scale"], scale=rows["scale"].map(_scale_names(scales)))
    return rows.sort_values("scale", key=lambda each: each.map(scale_order), kind="stable")


def _models(campaign: plan.Campaign, variation: str) -> pd.DataFrame:
    """Return one row per model of a variation, also if an earlier variation has the runs."""
    source, rows, changes = f"config/{campaign.name}.yaml", [], campaign.variations[variation]
    shape = ("layers", "d_model", "heads", "head_dim", "d_ff")
    batch = ("context", "micro", "accumulation", "budget_tokens")
    titles = {data.corpus: data.title for data in campaign.data.values()}
    for scale, variant in dict.fromkeys((run.scale, run.variant) for run in campaign.planned):
        if scale not in changes.get("scales", [scale]):
            continue
        if variant not in changes.get("variants", [variant]):
            continue
        options = campaign.options(scale, variation, variant)
        model = campaign.matrix.model(source, variant, options)
        rows.append({
            "scale": scale, "variant": variant, "vocab": model.vocab_size, "source": source,
            **{name: getattr(model, name) for name in shape},
            **{name: options[name] for name in batch},
            "parameters": parameter_count(model), "data_title": titles[options["corpus"]],
        })  # fmt: skip
    columns = ("scale", "variant", "vocab", "source", *shape, *batch, "parameters", "data_title")
    return pd.DataFrame(rows, columns=columns)


def _planned(
    setting: Setting, campaign: plan.Campaign, frames: Mapping[str, pd.DataFrame],
    scales: Sequence[str],
) -> pd.DataFrame:  # fmt: skip
    """Return one row per planned record of this setting, with the reason if it is missing."""
    hashes, rows = {kind: set(frame["hash"]) for kind, frame in frames.items()}, []
    diverged = set(frames["runs"]["hash"][frames["runs"]["final_nll"].isna()])
    names, shipped = _scale_names(scales), campaign.shipped()

    def add(kind, hash, scale="", variant="", seed=-1, further=False, why="") -> None:
        status, reason = "not run", why
        if hash in hashes[kind]:
            status, reason = "ok", DIVERGED if hash in diverged else ""
        name = names.get(scale, scale)
        rows.append((kind, name, variant, seed, further, scale, status, reason))

    chosen = {run.name for run in campaign.runs}
    for (scale, variation, variant, seed), run in campaign.addresses.items():
        if variation == setting.variation and scale in scales and run.name in chosen:
            further = campaign.matrix.seeds(scale, variation, variant)[seed]
            add("runs", run.hash, scale, variant, seed, further)
            why = UNMEASURED if run.hash in hashes["runs"] and run.hash in shipped else ""
            for kind, hash in campaign.measured(run).items():
                add(kind, hash, scale, variant, seed, further, why)
    for bench in campaign.benchmarks:
        if bench.scale in scales and bench.variation == setting.variation:
            add(bench.kind, bench.hash, bench.scale, bench.benchmark)
    if "" in scales:
        for recall in campaign.recall:
            add("recall", recall.hash, variant=recall.mixer)
        for kind in ("checks", "gradients") if campaign.check else ():
            add(kind, campaign.check.hash)
    return pd.DataFrame(rows, columns=PLANNED)


def title(variant: str) -> str:
    """Return the name of a variant on the pages."""
    return VARIANTS[variant].title if variant in VARIANTS else variant


def counted(count: int | str, noun: str) -> str:
    """Format a count with its noun: 1 seed, 4 seeds."""
    return f"{count} {noun}{'' if str(count) == '1' else 's'}"


def rounded(count: float, digits: int = 3) -> str:
    """Format a count with some significant digits: 131K, 1.07B."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(count) >= unit:
            return f"{count / unit:.{digits}g}{letter}"
    return f"{count:.{digits}g}"


def gap(
    records: Records, kind: str, scale: str | None, variants: Sequence[str], seed: int | None
) -> tuple[str, str]:
    """Return status and reason of a missing value of the matrix, from the planned records."""
    noun = KIND_NAMES.get(kind, "benchmark")
    of_scale = [row for row in records.planned.itertuples() if scale in (None, row.scale)]
    if not of_scale:
        return "not run", f"{scale} {OUTSIDE}"
    rows = [row for row in of_scale if row.kind == kind and not row.further]
    of_variants = [row for row in rows if row.variant in variants]
    rows = [row for row in of_variants if seed in (None, row.seed)]
    absent = [variant for variant in variants if variant not in {row.variant for row in rows}]
    if absent:
        what = f"{scale or ''} {' and '.join(map(title, absent))}".strip()
        has_others = {row.variant for row in of_variants}.issuperset(absent)
        what += f" with seed {seed}" if has_others else ""
        return "not run", f"no {noun} of {what} is part of this setting"
    lacking = [row for row in rows if row.status != "ok"]
    if DIVERGED in {row.reason for row in rows}:
        return "diverged", DIVERGED
    if not lacking:
        return "no counterpart", f"the records of its {counted(len(rows), noun)} do not hold it"
    what = f"no {noun} is recorded"
    if len(lacking) < len(rows):
        seeds: dict[str, list[str]] = {}  # by the variant's name
        for row in lacking:
            seeds.setdefault(title(row.variant), []).append(str(row.seed))
        names = (f"{variant} of seed {', '.join(numbers)}" for variant, numbers in seeds.items())
        what = f"{'; '.join(names)} not run"
    reasons = dict.fromkeys([what, *(row.reason for row in lacking if row.reason)])
    return "not run", "; ".join(reasons)
