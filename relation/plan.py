"""Resolve config.yaml and config/<campaign>.yaml to the jobs of a campaign.

`load` returns a `Campaign`. Its runs, benchmarks and checks are specifications of `relation.jobs`.
"""

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from relation import records
from relation.config import (
    CONFIG,
    CampaignSection,
    Choice,
    Options,
    Variation,
    campaign_values,
    merge_values,
    parsed,
    read,
    validated,
)
from relation.errors import InputError, check_among
from relation.jobs import Bench, Recall, Run, hash_of
from relation.matrix import Matrix, bench_jobs, check_job, recall_jobs
from relation.variants import PAIRED, VARIANTS

# Measurements on a checkpoint by kind of record: the folder, and the files that one job writes.
_MEASURED = {"flow": ("flow", ("flow", "curves", "maps")), "lengths": ("length", ("lengths",))}
# The variation of a campaign that defines none. It changes nothing.
UNCHANGED = "base"
PAPER_SCALES = ("10M", "30M", "100M")


@dataclass(frozen=True)
class Setting:
    """A column of the report: one variation of a campaign.

    scales: None for the campaign's scales of the paper, or all if it has none.
    """

    campaign: str
    variation: str = UNCHANGED
    scales: tuple[str, ...] | None = None
    title: str = ""

    @property
    def name(self) -> str:
        """For example books/nearest; `books/nearest@100M28pc` if the scales are not the paper's."""
        of_paper = self.scales is None or set(self.scales) == set(PAPER_SCALES)
        return f"{self.campaign}/{self.variation}{'' if of_paper else '@' + ','.join(self.scales)}"

    @property
    def slug(self) -> str:
        """The name in a form for paths and HTML anchors."""
        return re.sub(r"[^\w.-]", "-", self.name)

    def __str__(self) -> str:
        return self.title or self.name


class Campaign:
    """One campaign, restricted to the choices of config.yaml.

    addresses: the run of each scale, variation, variant and seed, which may be an equal run of an
    earlier variation; planned: all runs, each once; trained: their variants; runs: the chosen runs;
    variations: the changes of each variation; columns: the report's settings; resolved: what `load`
    can read.
    """

    def __init__(self, choice: Choice, values: Mapping):
        """values: of config/<campaign>.yaml and its bases."""
        name = choice.campaign
        if name in ("published", "report"):
            raise InputError(f"config/{name}.yaml: results/published uses this name; rename it")
        section = validated(CampaignSection, values, f"config/{name}.yaml")
        values = section.as_dict()
        self.resolved = {**choice.as_dict(), "settings": values}
        self.name, self.folder, self.device = name, records.RESULTS / name, section.device
        self.title, self.description = section.title or name, section.description or ""
        self.notice = section.notice or ""
        self.published = choice.published not in (False, "false")
        self.runs_per_gpu = choice.runs_per_gpu or 1
        self.diagnosed = tuple(PAIRED if section.diagnosed is None else section.diagnosed)
        self.efficiency_window = section.efficiency_window or 0.01
        self.length = section.length

        # All variations, including the one-off, and all runs of the campaign.
        self.variations = _variations(values)
        chosen = _chosen("variations", choice.variations, self.variations, name)
        self.scales = _chosen("scales", choice.scales, section.scales, name)
        varied = None  # the name of the one-off
        if choice.vary:
            varied = self._add_one_off(choice.vary, chosen[0], section.scales)
            chosen.append(varied)
        self.matrix = Matrix(name, section, choice.corpus, self.variations)
        self.addresses, self.data = self.matrix.runs()
        self._by_name = {run.name: run for run in self.addresses.values()}  # rules ask often
        self.planned = list(self._by_name.values())
        self.trained = dict.fromkeys(run.variant for run in self.planned)
        self._choose_jobs(choice, chosen)
        if varied and varied not in {run.variation for run in self.runs}:
            what = f"new run of {chosen[0]}, the first chosen variation: all exist, or none is left"
            raise InputError(f"vary={choice.vary} makes no {what}; change another key")
        self.check = check_job(self.matrix)
        self.columns = self._columns(section.columns or (), chosen, varied)

    def _add_one_off(self, vary: str, base: str, scales: Collection) -> str:
        """Add the variation `base` with the changes of vary=, and return its name."""
        name, changes = _one_off(vary, scales)
        if base != next(iter(self.variations)):  # several variations may get the same change
            name = f"{base}+{name}"
        options = self.variations[base]
        kept = [scale for scale in self.scales if scale in options.get("scales", self.scales)]
        # The change also replaces what the variation sets for single variants.
        overrides = {
            variant: {key: value for key, value in change.items() if key not in changes}
            for variant, change in options.get("overrides", {}).items()
        }
        options = {**options, "overrides": overrides, "title": name, "scales": kept}
        self.variations[name] = merge_values(options, changes)
        return name

    def _choose_jobs(self, choice: Choice, variations: list[str]) -> None:
        """Set the chosen runs, benchmarks and recall jobs."""
        benches, recall = list(bench_jobs(self.matrix)), list(recall_jobs(self.matrix))
        self._measurements = [*benches, *recall]  # chosen or not
        # Some variants are only benchmarked, or only trained on recall.
        benched = {side.variant for bench in benches for side in bench.sides}
        made = self.trained.keys() | benched | {job.mixer for job in recall}
        variants = (variant for variant in VARIANTS if variant in made)
        variants = _chosen("variants", choice.variants, variants, self.name)
        seeds = _chosen("seeds", choice.seeds, (run.seed for run in self.planned), self.name)

        asked = {*product(self.scales, variations, variants, seeds)}
        runs = {run.name: run for address, run in self.addresses.items() if address in asked}
        self.runs = list(runs.values())
        self.benchmarks = [
            bench for bench in benches
            if bench.scale in self.scales and bench.variation in variations
            and any(side.variant in variants for side in bench.sides)
        ]  # fmt: skip
        self.recall = [job for job in recall if job.mixer in variants]
        others = self.trained.keys().isdisjoint(variants) and (self.benchmarks or self.recall)
        if not self.runs and not others:
            raise InputError(f"{self.name} has no run left with these choices; see config.yaml")

    def _columns(self, given: Iterable, chosen: list[str], varied: str | None) -> list[Setting]:
        """The report's columns, at most four: the campaign's `columns` or the chosen variations."""
        columns = [self._setting(**column.as_dict()) for column in given]
        columns = columns or [self._setting(variation) for variation in chosen]
        columns = [column for column in columns if self.scales_of(column)]
        names = [column.name for column in columns]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"config/{self.name}.yaml: columns: give {name} once")
        if varied:  # its base comes first, the one-off last
            first = next((c for c in columns if c.variation == chosen[0]), self._setting(chosen[0]))
            others = [c for c in columns if c not in (first, self._setting(varied))]
            columns = [first, *others[:2], self._setting(varied)]
        return columns[:4]

    def _setting(self, variation: str, scales=None, title="") -> Setting:
        """A column of the report; scales and title: as the campaign's `columns` give them."""
        problem = f"config/{self.name}.yaml: columns: there is no variation {variation!r}"
        check_among(variation, self.variations, problem)
        title = title or self.variations[variation].get("title", "")
        return Setting(self.name, variation, None if scales is None else tuple(scales), title)

    def scales_of(self, column: Setting) -> list[str]:
        """The scales that a column may show. Those of a base may be missing in this campaign."""
        scales = column.scales or self.variations[column.variation].get("scales") or self.scales
        return [scale for scale in scales if scale in self.matrix.section.scales]

    def options(self, scale: str, variation: str, variant: str = "full") -> dict[str, Any]:
        """The options of a run by name, as plain values."""
        return self.matrix.options(scale, variant, self.variations[variation])

    @property
    def hash(self) -> str:
        """The hash of the campaign with its choices."""
        return hash_of(self.resolved)

    @property
    def resolved_file(self) -> Path:
        """The file with the resolved configuration for the workflow's jobs."""
        return self.folder / "work" / f"{self.hash}.json"

    def shipped(self, kind: str = "runs") -> Collection[str]:
        """The hashes of a kind in results/published. These jobs are done."""
        return records.published_hashes(kind, self.name) if self.published else ()

    def files(self) -> dict[str, str]:
        """The hash of every record to make, by the record's path below the campaign's folder."""
        files: dict[str, str] = {}
        corpora: list[str] = []  # read by these jobs
        for run in self.runs:
            made = self.folder / "runs" / run.name / "run.parquet"
            if run.hash in self.shipped() and not records.is_made(made, run.hash):
                continue  # a run that was made here counts before the shipped one
            corpora.append(run.data.name)
            files |= {f"runs/{run.name}/{n}.parquet": run.hash for n in ("run", "losses", "probes")}
            for kind, hash in self.measured(run).items():
                folder, names = _MEASURED[kind]
                files |= {f"{folder}/{run.name}/{name}.parquet": hash for name in names}
        for bench in self.benchmarks:
            if bench.hash not in self.shipped(bench.kind):
                corpora += self.corpora_of(bench)
                files[f"bench/{bench.benchmark}/{bench.scale}.parquet"] = bench.hash
        for recall in self.recall:
            if recall.hash not in self.shipped("recall"):
                files[f"recall/{recall.mixer}.parquet"] = recall.hash
        if self.check and self.check.hash not in self.shipped("gradients"):
            files |= {f"check/{n}.parquet": self.check.hash for n in ("operators", "gradients")}
        return {f"data/{name}/data.parquet": self.data[name].hash for name in corpora} | files

    def hashes(self) -> set[str]:
        """The hash of every specification of the whole campaign."""
        jobs = [*self.planned, *self._measurements, *self.data.values()]
        if self.check:
            jobs.append(self.check)
        hashes = {job.hash for job in jobs}
        for run in self.planned:
            hashes |= {run.flow_hash, *self.measured(run).values()}
        return hashes

    def corpora_of(self, bench: Bench) -> list[str]:
        """The names of the corpora that a benchmark reads: one for training steps, else none."""
        o = self.options(bench.scale, bench.variation)
        return [f"{o['corpus']}-{o['vocabulary']}"] if bench.kind == "steps" else []

    def run(self, name: str) -> Run:
        """A run by its address, chosen or not. Raises InputError if there is none."""
        asked = f"run {name!r} (SCALE/VARIATION/VARIANT/SEED)"
        return self._job(asked, name, self._by_name)

    def bench(self, benchmark: str, scale: str) -> Bench:
        """A chosen benchmark. Raises InputError if there is none of that name and scale."""
        benches = {f"{bench.benchmark}/{bench.scale}": bench for bench in self.benchmarks}
        return self._job(f"benchmark {benchmark}/{scale}", f"{benchmark}/{scale}", benches)

    def recall_of(self, mixer: str) -> Recall:
        """The chosen recall job of a mixer. Raises InputError if there is none."""
        return self._job(f"recall of {mixer!r}", mixer, {each.mixer: each for each in self.recall})

    def _job(self, asked: str, name: str, jobs: Mapping[str, Any]) -> Any:
        check_among(name, jobs, f"campaign {self.name} has no {asked}")
        return jobs[name]

    def choices(self) -> dict[str, Any]:
        """The choices of config.yaml that made this campaign, for `snakemake_command`."""
        return {k: v for k, v in self.resolved.items() if k != "settings" and v is not True}

    def gpu_jobs(self) -> int:
        """How many jobs run at once on this machine's GPUs; 1 on a CPU, where cores limit jobs."""
        if self.device == "cpu":
            return 1
        from torch.cuda import device_count

        return max(1, device_count()) * self.runs_per_gpu

    def begin(self, prepared: Iterable[str], trained: Collection[str], on_gpu: bool) -> None:
        """Check what the jobs need, tell what they replace, then write `resolved_file`.

        prepared: corpora to prepare; trained: runs to train. Raises InputError if texts or a needed
        GPU are missing, or if finished runs would be trained again because the tokens that they
        read are lost or were replaced by those of another text.
        """
        from relation.data.corpus import check_texts

        for name in prepared:
            check_texts(self.data[name])
            record = self.folder / "data" / name / "data.parquet"
            made = records.is_made(record, self.data[name].hash)
            for run in map(self.run, () if made else trained):
                done = self.folder / "runs" / run.name / "run.parquet"
                if run.data.name == name and records.is_made(done, run.hash):
                    raise InputError(
                        f"{record} is lost or holds another text, as after another corpus=, so "
                        f"finished runs such as {run.name} would be trained again; first make it "
                        f"alone: {snakemake_command(self.choices(), target=str(record))}"
                    )
        if on_gpu:
            from relation.machine import check_gpu

            check_gpu()
        self.tell_replaced(map(self.run, trained))
        with records.atomic(self.resolved_file) as temporary:
            temporary.write_text(json.dumps(self.resolved, indent=1))

    def tell_replaced(self, runs: Iterable[Run]) -> None:
        """Print which finished runs would be lost to `runs` of another specification, if any."""
        made = [(run, self.folder / f"runs/{run.name}/run.parquet") for run in runs]
        old = [run.name for run, p in made if p.exists() and not records.is_made(p, run.hash)]
        if old:
            print(f"These runs replace {len(old)} that finished with another text or other keys:")
            print(*(f"  {name}" for name in old[:3]), *["  ..."] * (len(old) > 3), sep="\n")

    def measured(self, run: Run) -> dict[str, str]:
        """The hashes of the measurements on a run's checkpoint, by kind: flow and lengths.

        Further runs have none, nor do runs that may diverge, whose flow would not be finite.
        """
        if run.further or run.divergence == "record":
            return {}
        long, hashes = self.length, {}
        if run.variant in self.diagnosed:
            hashes["flow"] = run.flow_hash
        if long and run.variant in long.variants and run.scale in (long.scales or [run.scale]):
            hashes["lengths"] = long.hash(run)
        return hashes


def snakemake_command(choices: Mapping, *options: str, target: str = "") -> str:
    """Return the snakemake command with `choices` of --config that makes `target`, or all."""
    lists = {k: v if isinstance(v, list) else [v] for k, v in choices.items()}
    config = [f"{key}={','.join(map(str, values))}" for key, values in lists.items()]
    end = ["--", target] if target else []
    return shlex.join(["snakemake", "--cores", "all", *options, "--config", *config, *end])


def _variations(values: Mapping) -> dict[str, dict]:
    """A campaign's variations by name: those of `cross`, then those of `variations`."""
    variations: dict[str, dict] = {}
    cross = values.get("cross") or [{}]  # an empty mapping makes no combination
    for entries in product(*(mapping.items() for mapping in cross)):
        name = "-".join(key for key, _ in entries)
        if name in variations:
            raise InputError(f"cross: two combinations are called {name}; rename an entry")
        variations[name] = {}
        for _, change in entries:
            variations[name] = merge_values(variations[name], change)
    for key, change in values.get("variations", {}).items():
        variations[key] = merge_values(variations.get(key, {}), change)
    return variations or {UNCHANGED: {}}


def _one_off(text: str, scales: Collection) -> tuple[str, dict]:
    """A one-off variation, "learning_rate=2e-2 layers=4": its name and its changes."""
    changes = {}
    for part in text.split():
        key, equals, value = part.partition("=")
        if not equals or key in changes or "=" in value:
            advice = "write each key once, with spaces between keys and none in values"
            raise InputError(f"vary={text}: {part!r} is no new KEY=VALUE; {advice}")
        changes[key] = parsed(value)
    changes = validated(Variation, changes, "vary", scales=scales).as_dict()
    return re.sub(r"[^0-9A-Za-z._=+-]", "_", "+".join(text.split())), changes


def _chosen(key: str, choice: Any, offered: Iterable, campaign: str) -> list:
    """The offered items that a choice names, or all. Raises InputError for an unknown name."""
    offered = list(dict.fromkeys(offered))
    if choice is None:
        return offered
    items = choice if isinstance(choice, list) else str(choice).split(",")
    names = {str(item).strip() for item in items}
    for item in sorted(names):
        problem = f"{key}={item}: campaign {campaign} has no such {key[:-1]}"
        check_among(item, list(map(str, offered)), problem)
    return [item for item in offered if str(item) in names]


def load(config: Path | Mapping = CONFIG, **overrides: Any) -> Campaign:
    """The campaign that a configuration chooses.

    config: config.yaml, its content, or `Campaign.resolved`; overrides: choices that replace the
    configuration's unless they are None. Raises InputError with the place of an invalid value.
    """
    folder = (config if isinstance(config, Path) else CONFIG).parent / "config"
    raw = read(config) if isinstance(config, Path) else dict(config)
    values = raw.pop("settings", None)
    raw = {n: value for n, value in (*raw.items(), *overrides.items()) if value is not None}
    choice: Choice = validated(Choice, raw, config.name if isinstance(config, Path) else "config")
    if values is not None:
        return Campaign(choice, values)
    campaign = Campaign(choice, campaign_values(choice.campaign, folder))
    # A base may name texts and variants that are not used; the campaign's own file must not.
    file, used = f"{campaign.name}.yaml", {data.corpus: data for data in campaign.data.values()}
    content = read(folder / file)
    scales, own = campaign.matrix.section.scales, content.get("scales", {})
    for name in content.keys() & Options.model_fields.keys() - {"backends", "device"}:
        overridden = all(name in scale.as_dict() for scale in scales.values())
        if overridden and any(name not in (own.get(scale) or {}) for scale in scales):
            raise InputError(f"config/{file}: {name}: every scale sets its own; set it there")
    for variant, values in (content.get("overrides") or {}).items():
        for name in values:
            if all(name in scale.as_dict() for scale in scales.values()):
                place = f"config/{file}: overrides.{variant}.{name}"
                raise InputError(f"{place}: every scale sets its own; override it there")
    lengths = (content.get("length") or {}).get("variants", ())
    for variant in (*content.get("diagnosed", ()), *lengths):
        problem = f"config/{file}: diagnosed or length: no scale trains {variant}"
        check_among(variant, campaign.trained, problem)
    for name, corpus in content.get("corpora", {}).items():
        if corpus is not None and name not in used:
            raise InputError(
                f"config/{file}: corpora.{name}: no scale reads it; they read {', '.join(used)}; "
                f"give a scale or variation `corpus: {name}`"
            )
    return campaign
