"""What a campaign computes: config.yaml and config/<campaign>.yaml, resolved to jobs.

`load` gives a `Campaign`; its runs, benchmarks and checks are specifications of `relation.jobs`.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from relation import measures
from relation.config import (
    CONFIG,
    PROJECT,
    CampaignSection,
    Choice,
    Options,
    Variation,
    campaign_values,
    parsed,
    read,
    validated,
)
from relation.errors import InputError
from relation.jobs import Bench, Check, Data, Length, Recall, Run, Side, hash_of
from relation.variants import FULL, LINEAR, MIXERS, PAIRED, VARIANTS, ModelConfig

__all__ = [
    "Bench",
    "Campaign",
    "Check",
    "Data",
    "Length",
    "Recall",
    "Run",
    "Setting",
    "Side",
    "hash_of",
    "load",
]

# The kinds of records of which a shipped one spares a job.
_SHIPPED = ("runs", "steps", "complexity", "decode", "recall", "checks")
# The name of the variation of a campaign that changes nothing.
UNCHANGED = "base"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A column of the report: a campaign's variation. scales: None for all."""

    campaign: str
    variation: str
    scales: tuple[str, ...] | None = None
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """One campaign, restricted as config.yaml chooses.

    planned: every run of the whole campaign; runs: those that are chosen; variations: the options
    that each changes; settings: what `load` makes this of again.
    """

    name: str
    title: str
    description: str
    notice: str
    device: str
    folder: Path
    planned: list[Run]
    runs: list[Run]
    data: dict[str, Data]
    benchmarks: list[Bench]
    recall: list[Recall]
    length: Length | None
    check: Check | None
    variations: dict[str, dict]
    columns: list[Setting]
    scales: list[str]
    seeds: list[int]
    diagnosed: tuple[str, ...]
    efficiency_window: float
    expected_tokens_per_second: dict[str, float]
    corpus: str | None
    published: bool
    runs_per_gpu: int
    settings: dict
    matrix: "Matrix"

    def options(self, scale: str, variation: str, variant: str = "full") -> dict[str, Any]:
        """The options of a run by name, as plain values."""
        return self.matrix.options(scale, variant, self.variations[variation])

    @property
    def hash(self) -> str:
        """Of all that was chosen."""
        return hash_of(self.settings)

    @property
    def settings_file(self) -> Path:
        """Where the configuration lies that a workflow's jobs read."""
        return self.folder / "work" / f"{self.hash}.json"

    def write_settings(self, path: Path) -> None:
        """Write the resolved configuration, which `load` reads."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.settings, indent=1))

    def files(self, shipped: Callable[[str, str], Collection[str]]) -> dict[str, str]:
        """The hash of every record that is to be made, by its path below the folder.

        shipped: the hashes that results/published has of a kind and campaign.
        """
        done = {kind: shipped(kind, self.name) if self.published else () for kind in _SHIPPED}
        found, used = {}, {}
        for run in (run for run in self.runs if run.hash not in done["runs"]):
            found |= {f"runs/{run.name}/{n}.parquet": run.hash for n in ("run", "losses", "probes")}
            if self.is_diagnosed(run):
                names = ("flow", "curves", "maps")
                found |= {f"flow/{run.name}/{name}.parquet": run.flow_hash for name in names}
            if self.measures_length(run):
                found[f"length/{run.name}/lengths.parquet"] = self.length.hash(run)
            used[run.data.name] = None
        for bench in self.benchmarks:
            kind = bench.benchmark if bench.benchmark in ("complexity", "decode") else "steps"
            if bench.hash not in done[kind]:
                found[f"bench/{bench.benchmark}/{bench.scale}.parquet"] = bench.hash
                used[self.data_at(bench.scale)] = None
        for recall in self.recall:
            if recall.hash not in done["recall"]:
                found[f"recall/{recall.mixer}.parquet"] = recall.hash
        if self.check and self.check.hash not in done["checks"]:
            found |= {f"check/{n}.parquet": self.check.hash for n in ("operators", "gradients")}
        return {f"data/{name}/data.parquet": self.data[name].hash for name in used} | found

    def hashes(self) -> set[str]:
        """The hash of every specification of the whole campaign."""
        found = {run.hash for run in self.planned} | {run.flow_hash for run in self.planned}
        if self.length:
            found |= {self.length.hash(run) for run in self.planned if self.length.covers(run)}
        rest = (*self.benchmarks, *self.recall, *self.data.values(), *filter(None, [self.check]))
        return found | {each.hash for each in rest}

    def data_at(self, scale: str) -> str:
        """The name of the corpus that benchmarks at a scale read."""
        return next(run.data.name for run in self.planned if run.scale == scale)

    def run(self, name: str) -> Run:
        """A run by its address, chosen or not. Raises InputError where there is none."""
        found = next((run for run in self.planned if run.name == name), None)
        if found is None:
            raise InputError(
                f"campaign {self.name} has no run {name!r}; an address is "
                "SCALE/VARIATION/VARIANT/SEED, and `python -m relation status` lists them"
            )
        return found

    def bench(self, benchmark: str, scale: str) -> Bench:
        """A benchmark. Raises InputError where the campaign has none."""
        found = (b for b in self.benchmarks if (b.benchmark, b.scale) == (benchmark, scale))
        return _one(found, f"campaign {self.name} has no benchmark {benchmark}/{scale}")

    def recall_of(self, mixer: str) -> Recall:
        """A mixer's recall. Raises InputError where the campaign has none."""
        found = (each for each in self.recall if each.mixer == mixer)
        return _one(found, f"campaign {self.name} has no recall of {mixer!r}")

    def is_diagnosed(self, run: Run) -> bool:
        """Whether the flow of a run's checkpoint is measured."""
        return run.variant in self.diagnosed and not run.further

    def measures_length(self, run: Run) -> bool:
        """Whether a run's checkpoint reads texts longer than it was trained on."""
        return self.length is not None and self.length.covers(run)


def _one(found: Iterable, problem: str) -> Any:
    value = next(iter(found), None)
    if value is None:
        raise InputError(f"{problem}; `python -m relation plan` lists what it has")
    return value


# Values that depend on the width d, by the names that the configuration gives them.
_OF_WIDTH = {
    "1/sqrt(d)": lambda d: d**-0.5,
    "sqrt(2/(5d))": lambda d: (2 / (5 * d)) ** 0.5,
    "sqrt(d)": lambda d: d**0.5,
}
# Options of the model that only layers of these letters rest on.
_LAYERS = {"givens_first_pairing": FULL + LINEAR} | dict.fromkeys(
    ("retention_input", "retention_a_range", "retention_dt_range"), LINEAR
)
_MODEL = [each.name for each in fields(ModelConfig) if each.name in Options.model_fields]
# What a CPU cannot run; of these Triton's interpreter runs those named flash.
_GPU_ALONE = (("mha", "cudnn"), ("full", "flex"), ("full", "flash"), ("linear", "flash"))


@dataclass(frozen=True)
class Matrix:
    """A campaign's values, and what is built from them; every error names the place to change."""

    name: str
    section: CampaignSection
    values: dict
    corpus: str | None
    variations: dict[str, dict]

    def options(self, scale: str, variant: str, changes: Mapping = {}) -> dict:
        """The options of a run, each place over the one before."""
        at = self.values["scales"][scale]
        places = (
            self.values,
            self.values.get("overrides", {}).get(variant, {}),
            at,
            at.get("overrides", {}).get(variant, {}),
            changes,
        )
        merged: dict = {"learning_rate_factor": 1.0, "backends": {}}
        for place in places:
            own = {name: value for name, value in place.items() if name in Options.model_fields}
            backends = merged["backends"] | own.get("backends", {})
            merged |= own | {"backends": backends}
        missing = [n for n in Options.model_fields if n not in merged and n != "kv_heads"]
        if missing:
            raise InputError(f"config/{self.name}.yaml: scale {scale} has no {missing[0]}; give it")
        return merged

    def data(self, corpus: str, vocabulary: int, read: list[dict]) -> Data:
        """A prepared corpus; `read`: the options of what reads it."""
        known = self.section.corpora or {}
        if corpus not in known:
            raise InputError(
                f"config/{self.name}.yaml: there is no corpus {corpus!r}; choose among "
                f"{', '.join(known)}"
            )
        values = {"title": corpus, **known[corpus].given()}
        streams, path = values.pop("streams", None), values.pop("path", None)
        if self.corpus is not None:
            values |= {"title": Path(self.corpus).name, "fingerprint": None}
            path, streams = _texts(self.corpus)
            if path is not None and path.is_file() and path.suffix == ".txt":
                values["validation_modulus"] = None
        elif path is not None:
            path = PROJECT / path
        if path is not None and path.exists() and values.get("fingerprint") is None:
            from relation.data.corpus import fingerprint

            values["fingerprint"] = fingerprint(str(path))
        return Data(
            campaign=self.name,
            corpus=corpus,
            vocabulary=vocabulary,
            path=None if path is None else str(path),
            source=None if streams is None else {"streams": streams},
            largest_context=max(o["context"] for o in read),
            diagnosed_tokens=max(o["flow_sequences"] * o["context"] + 1 for o in read),
            **{"fingerprint": None, **values},
        )

    def model(self, where: str, variant: str, o: Mapping) -> ModelConfig:
        """The model of a variant by its options."""
        letters = set(VARIANTS[variant].pattern)
        rest = {n: o[n] for n in _MODEL if n in o and letters & set(_LAYERS.get(n, letters))}
        for name, value in rest.items():
            if isinstance(value, str) and value in _OF_WIDTH:
                rest[name] = _OF_WIDTH[value](o["d_model"])
            elif isinstance(value, list):
                rest[name] = tuple(value)
        if rest["linear_init"] == "normal":
            rest["linear_init"] = None
        try:
            return ModelConfig.for_variant(variant, o["layers"], vocab_size=o["vocabulary"], **rest)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def run(self, key: tuple, data: Data, o: dict, further: bool) -> Run:
        """One run. Raises InputError where its values contradict each other."""
        scale, variation, variant, seed = key
        where = f"config/{self.name}.yaml: scale {scale}, variation {variation}, variant {variant}"
        tokens = o["micro"] * o["accumulation"] * o["context"]
        if tokens != o["tokens_per_update"]:
            raise InputError(
                f"{where}: micro {o['micro']} x accumulation {o['accumulation']} x context "
                f"{o['context']} is {tokens} tokens an update, and tokens_per_update is "
                f"{o['tokens_per_update']}; make them equal"
            )
        if o["warmup_tokens"] > o["plateau_fraction"] * o["budget_tokens"]:
            raise InputError(
                f"{where}: warmup_tokens {o['warmup_tokens']} reach beyond the plateau of a budget "
                f"of {o['budget_tokens']} tokens; lower them"
            )
        _check_backends(where, variant, o)
        taken = {each.name: o[each.name] for each in fields(Run) if each.name in o}
        taken |= {
            "betas": tuple(o["betas"]),
            "learning_rate": o["learning_rate"] * o["learning_rate_factor"],
            "document_mask": None if o["document_mask"] == "none" else o["document_mask"],
            "flow_window": data.largest_context,
            "flow_length": min(o["flow_length"], o["context"]),
            "rank_length": min(o["rank_length"], o["context"]),
        }
        separate = o["paired_weights"] == "separate" and variant != "mha"
        return Run(
            campaign=self.name,
            scale=scale,
            variation=variation,
            variant=variant,
            seed=seed,
            model=self.model(where, variant, o),
            data=data,
            init_key=variant if separate else None,
            further=further,
            **taken,
        )

    def runs(self) -> tuple[list[Run], dict[str, Data]]:
        """Every run, each specification once, and the corpora by name."""
        wanted, read = {}, {}
        for scale, at in self.section.scales.items():
            for variant in at.variants or PAIRED:
                o = self.options(scale, variant)
                read.setdefault((o["corpus"], o["vocabulary"]), []).append(o)
        for variation, changes in self.variations.items():
            scales = changes.get("scales", self.section.scales)
            for scale in (each for each in self.section.scales if each in scales):
                variants = changes.get("variants") or self.section.scales[scale].variants or PAIRED
                seeds = changes.get("seeds") or self.section.seeds or []
                further = (self.section.further_seeds or {}).get(scale, [])
                further = [] if "seeds" in changes else [s for s in further if s not in seeds]
                for variant in variants:
                    o = self.options(scale, variant, changes)
                    read.setdefault((o["corpus"], o["vocabulary"]), []).append(o)
                    for seed in (*seeds, *(further if variant in PAIRED else ())):
                        wanted[scale, variation, variant, seed] = (o, seed in further)
        data = {names: self.data(*names, options) for names, options in read.items()}
        found: dict[str, Run] = {}
        for key, (o, further) in wanted.items():
            run = self.run(key, data[o["corpus"], o["vocabulary"]], o, further)
            found.setdefault(run.hash, run)  # equal runs are trained once: the first variation's
        return list(found.values()), {each.name: each for each in data.values()}

    @property
    def first(self) -> dict:
        """The changes of the first variation, whose options benchmarks and checks have."""
        return next(iter(self.variations.values()))

    def optimizer(self, scale: str) -> dict:
        """The optimiser of a benchmark or of associative recall, without its rate."""
        o = self.options(scale, "full", self.first)
        names = ("betas", "weight_decay", "decay_embedding", "gradient_clip")
        found = {name: o[name] for name in names} | {"eps": o["adam_eps"]}
        return found | ({"decay_vectors": True} if o["decay_vectors"] else {})

    def model_at(self, scale: str, variant: str) -> ModelConfig:
        """The model of a variant at a scale, by the first variation."""
        where = f"config/{self.name}.yaml: scale {scale}, variant {variant}"
        return self.model(where, variant, self.options(scale, variant, self.first))


def _texts(corpus: str) -> tuple[Path | None, list[dict] | None]:
    """What corpus= names: a path, or else a data set of the hub, OWNER/NAME."""
    path = Path(corpus)
    if path.exists():
        return path, None
    if re.fullmatch(r"[\w.-]+/[\w.-]+", corpus) and path.suffix not in (".txt", ".parquet"):
        return None, [{"path": corpus}]
    raise InputError(f"corpus {corpus} does not exist; give a text file, a folder or OWNER/NAME")


def _check_backends(where: str, variant: str, o: Mapping) -> None:
    """Refuse backends that cannot keep documents apart, or that need a GPU on a CPU."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    for letter in dict.fromkeys(VARIANTS[variant].pattern):
        used = (MIXERS[letter], o["backends"].get(MIXERS[letter]))
        if o["document_mask"] == "documents" and used == ("mha", "cudnn"):
            raise InputError(
                f"{where}: backend cudnn of mha cannot keep documents apart; name flash"
            )
        on_gpu = used in _GPU_ALONE and not (interpreted and used[1] == "flash")
        if o["device"] == "cpu" and on_gpu:
            raise InputError(f"{where}: backend {used[1]} of {used[0]} needs a GPU; name another")


def _variations(values: Mapping, name: str) -> dict[str, dict]:
    """The variations of a campaign by name: combined ones first, then those that are listed."""
    found: dict[str, dict] = {}
    for parts in product(*(each.items() for each in values.get("cross", ()))):
        changes: dict = {}
        for _, change in parts:
            changes = {**changes, **change}
        if parts:
            found["-".join(key for key, _ in parts)] = changes
    for key, change in values.get("variations", {}).items():
        found[key] = {**found.get(key, {}), **change}
    for key, change in found.items():
        for scale in change.get("scales", ()):
            if scale not in values["scales"]:
                raise InputError(
                    f"config/{name}.yaml: variations.{key}.scales names {scale!r}; choose among "
                    f"{', '.join(values['scales'])}"
                )
    return found or {UNCHANGED: {}}


def _vary(text: str) -> tuple[str, dict]:
    """A one-off variation, "learning_rate=2e-2 layers=4": its name and its changes."""
    changes = {}
    for part in text.split():
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"vary={text}: {part!r} is no KEY=VALUE; see config.yaml")
        changes[key] = parsed(value)
    validated(Variation, changes, "vary")
    return re.sub(r"[^0-9A-Za-z._=+-]", "_", "+".join(text.split())), changes


def _chosen(key: str, given: Any, offered: Iterable, campaign: str, silent: tuple = ()) -> list:
    """What a choice of config.yaml leaves of what is offered. InputError for anything else."""
    offered = list(dict.fromkeys(offered))
    if given is None:
        return [*offered, *silent]
    items = given.split(",") if isinstance(given, str) else given
    wanted = {str(item).strip() for item in (items if isinstance(items, list) else [items])}
    for item in sorted(wanted - {str(each) for each in (*offered, *silent)}):
        raise InputError(
            f"{key}={item}: campaign {campaign} has no such {key[:-1]}; choose among "
            f"{', '.join(map(str, offered)) or 'none'}"
        )
    return [each for each in (*offered, *silent) if str(each) in wanted]


def load(config: Path | Mapping = CONFIG, **overrides: Any) -> Campaign:
    """The campaign that a configuration chooses.

    config: config.yaml, its content, or what `Campaign.settings` holds; overrides: choices that
    replace the configuration's where they are not None. Raises InputError with the place of what
    cannot be.
    """
    where = config.name if isinstance(config, Path) else "config"
    folder = config.parent / "config" if isinstance(config, Path) else PROJECT / "config"
    raw = read(config) if isinstance(config, Path) else dict(config)
    values = raw.pop("settings", None)
    raw |= {name: value for name, value in overrides.items() if value is not None}
    raw = {name: value for name, value in raw.items() if value is not None}
    choice: Choice = validated(Choice, raw, where)
    if not choice.campaign:
        raise InputError(f"{where}: no campaign is chosen; give campaign=NAME")
    name = choice.campaign
    if values is None:
        values = campaign_values(name, folder if folder.is_dir() else None)
    section = validated(CampaignSection, values, f"config/{name}.yaml")
    values = section.given()
    variations = _variations(values, name)
    chosen = _chosen("variations", choice.variations, variations, name)
    if choice.vary:
        varied, changes = _vary(choice.vary)
        variations[varied] = {**variations[chosen[0]], **changes}
        chosen.append(varied)
    matrix = Matrix(name, section, values, choice.corpus, variations)
    planned, data = matrix.runs()
    scales = _chosen("scales", choice.scales, section.scales, name)
    seeds = _chosen("seeds", choice.seeds, (run.seed for run in planned), name)
    trained = {run.variant for run in planned}
    offered = [each for each in VARIANTS if each in trained]
    # Linear Relation is benchmarked although no scale trains it.
    silent = () if "linear" in trained else ("linear",)
    variants = _chosen("variants", choice.variants, offered, name, silent)
    runs = [
        run
        for run in planned
        if run.variation in chosen
        and run.scale in scales
        and run.variant in variants
        and run.seed in seeds
    ]
    if not runs:
        raise InputError(f"campaign {name} has no run left under these choices; see config.yaml")
    columns = [
        Setting(**{"campaign": name, **_listed(each.given())}) for each in section.columns or ()
    ]
    columns = columns or [Setting(campaign=name, variation=each) for each in chosen]
    if choice.vary:
        columns = [*columns[:3], Setting(campaign=name, variation=chosen[-1])]
    length = section.length and {"scales": None, **_listed(section.length.given())}
    return Campaign(
        name=name,
        title=section.title or name,
        description=section.description or "",
        notice=section.notice or "",
        device=section.device,
        folder=Path("results", name),
        planned=planned,
        runs=runs,
        data=data,
        benchmarks=[
            bench
            for bench in measures.benchmarks(matrix)
            if bench.scale in scales
            and bench.variation in chosen
            and any(side.variant in variants for side in bench.sides)
        ],
        recall=[
            each
            for each in measures.recall(matrix)
            if each.mixer in variants or choice.variants is None
        ],
        length=length and Length(**length),
        check=measures.check(matrix),
        variations=variations,
        columns=columns[:4],
        scales=scales,
        seeds=list(section.seeds or ()),
        diagnosed=tuple(PAIRED if section.diagnosed is None else section.diagnosed),
        efficiency_window=section.efficiency_window or 0.01,
        expected_tokens_per_second={
            scale: at.expected_tokens_per_second or 1.0 for scale, at in section.scales.items()
        },
        corpus=choice.corpus,
        published=choice.published not in (False, "false"),
        runs_per_gpu=choice.runs_per_gpu or 1,
        settings={**raw, "settings": values},
        matrix=matrix,
    )


def _listed(values: Mapping) -> dict:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
