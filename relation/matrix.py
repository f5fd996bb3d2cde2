"""The options of a run from the places that set them, and the runs of a campaign."""

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from relation.config import PROJECT, CampaignSection, Options
from relation.errors import InputError
from relation.jobs import Data, Run
from relation.variants import FULL, LINEAR, MIXERS, PAIRED, VARIANTS, ModelConfig

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
# Options that a run or a model has a default for; all others are given.
_DEFAULTS = {
    each.name for kind in (Run, ModelConfig) for each in fields(kind) if each.default is not MISSING
}
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
        setting = (self.values, self.values["scales"][scale], changes)
        places = [p for each in setting for p in (each, each.get("overrides", {}).get(variant, {}))]
        merged: dict = {"learning_rate_factor": 1.0, "backends": {}}
        for place in places:
            own = {name: value for name, value in place.items() if name in Options.model_fields}
            backends = merged["backends"] | own.get("backends", {})
            merged |= own | {"backends": backends}
        missing = [n for n in Options.model_fields if n not in merged and n not in _DEFAULTS]
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
        for each in streams or ():
            if each.get("revision") is None and not Path(each["path"]).exists():
                raise InputError(
                    f"config/{self.name}.yaml: corpora.{corpus}.streams: {each['path']} of the hub "
                    "may change; give its commit as revision"
                )
        if self.corpus is not None:
            path, streams = _texts(self.corpus)
            title = (path or Path(streams[0]["path"])).name
            values |= {"title": title, "fingerprint": None}
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
        if rest.get("linear_init") == "normal":
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
            "document_mask": None if o.get("document_mask") == "none" else o.get("document_mask"),
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

    def runs(self) -> tuple[list[Run], dict[str, Data], dict[str, str]]:
        """Every run, each specification once; the corpora; variations that equal earlier ones."""
        wanted, read = {}, {}
        for scale, at in self.section.scales.items():
            for variant in PAIRED if at.variants is None else at.variants:
                o = self.options(scale, variant)
                read.setdefault((o["corpus"], o["vocabulary"]), []).append(o)
        for variation, changes in self.variations.items():
            scales = changes.get("scales", self.section.scales)
            for scale in (each for each in self.section.scales if each in scales):
                variants = changes.get("variants", self.section.scales[scale].variants)
                seeds = changes.get("seeds") or self.section.seeds or []
                further = (self.section.further_seeds or {}).get(scale, [])
                further = [] if "seeds" in changes else [s for s in further if s not in seeds]
                for variant in PAIRED if variants is None else variants:
                    o = self.options(scale, variant, changes)
                    read.setdefault((o["corpus"], o["vocabulary"]), []).append(o)
                    for seed in (*seeds, *(further if variant in PAIRED else ())):
                        wanted[scale, variation, variant, seed] = (o, seed in further)
        data = {names: self.data(*names, options) for names, options in read.items()}
        found: dict[str, Run] = {}
        equals: dict[str, str] = {}
        for key, (o, further) in wanted.items():
            run = self.run(key, data[o["corpus"], o["vocabulary"]], o, further)
            # Equal runs are trained once: the first variation's.
            equals[run.variation] = found.setdefault(run.hash, run).variation
        for run in found.values():
            equals.pop(run.variation, None)
        return list(found.values()), {each.name: each for each in data.values()}, equals

    # Benchmarks, recall and checks have the options of the first variation.

    @property
    def key(self) -> dict[str, str]:
        """Campaign and variation of what is measured beside the runs."""
        return {"campaign": self.name, "variation": next(iter(self.variations))}

    def at(self, scale: str, variant: str = "full") -> dict:
        """The options of a variant at a scale."""
        return self.options(scale, variant, self.variations[self.key["variation"]])

    def optimizer(self, scale: str) -> dict:
        """The optimiser of a benchmark or of associative recall, without its rate."""
        o = self.at(scale)
        names = ("betas", "weight_decay", "decay_embedding", "gradient_clip")
        found = {name: o[name] for name in names} | {"eps": o["adam_eps"]}
        return found | ({"decay_vectors": True} if o["decay_vectors"] else {})

    def model_at(self, scale: str, variant: str) -> ModelConfig:
        """The model of a variant at a scale."""
        where = f"config/{self.name}.yaml: scale {scale}, variant {variant}"
        return self.model(where, variant, self.at(scale, variant))


def _texts(corpus: str) -> tuple[Path | None, list[dict] | None]:
    """What corpus= names: a path, or else a data set of the hub, OWNER/NAME@REVISION."""
    path = Path(corpus)
    if path.exists():
        return path, None
    if hub := re.fullmatch(r"([\w.-]+/[\w.-]+)@([\w./-]+)", corpus):
        return None, [{"path": hub[1], "revision": hub[2]}]
    raise InputError(
        f"corpus {corpus} does not exist; give a text file, a folder or, of the hub, "
        "OWNER/NAME@REVISION with the commit that is read"
    )


def _check_backends(where: str, variant: str, o: Mapping) -> None:
    """Refuse backends that cannot keep documents apart, or that need a GPU on a CPU."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    for letter in dict.fromkeys(VARIANTS[variant].pattern):
        used = (MIXERS[letter], o["backends"].get(MIXERS[letter]))
        if o.get("document_mask") == "documents" and used == ("mha", "cudnn"):
            raise InputError(
                f"{where}: backend cudnn of mha cannot keep documents apart; name flash"
            )
        on_gpu = used in _GPU_ALONE and not (interpreted and used[1] == "flash")
        if o["device"] == "cpu" and on_gpu:
            raise InputError(f"{where}: backend {used[1]} of {used[0]} needs a GPU; name another")
