"""Make the jobs of a campaign from its values.

`Matrix` merges the options of the runs and makes the runs and their data. `bench_jobs`,
`recall_jobs` and `check_job` make the other jobs, with the options of the first variation.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path

from relation.config import Batches, CampaignSection, Options, merge_values
from relation.errors import InputError, check_among
from relation.jobs import UNTRAINED, Bench, Check, Data, Recall, Run, Side
from relation.variants import ARMS, FULL, LINEAR, MHA, OPERATORS, PAIRED, VARIANTS, ModelConfig

# Values that depend on the width d, by their name in the configuration.
_OF_WIDTH = {
    "1/sqrt(d)": lambda d: d**-0.5,
    "sqrt(2/(5d))": lambda d: (2 / (5 * d)) ** 0.5,
    "sqrt(d)": lambda d: d**0.5,
}
_MODEL = [field.name for field in fields(ModelConfig) if field.name in Options.model_fields]
# Options with a default in Run or ModelConfig. The configuration must give all others.
_DEFAULTS = {
    f.name for kind in (Run, ModelConfig) for f in fields(kind) if f.default is not MISSING
}
# Backends that need a GPU. Triton's interpreter can run those named flash on a CPU.
_GPU_ALONE = (("mha", "cudnn"), ("full", "flex"), ("full", "flash"), ("linear", "flash"))
_ROUNDS = ("rounds", "warmup_updates", "measured_updates")
_BENCHMARKS = ("fixed", "matched", "linear_steady", "linear_long", "complexity", "decode")
_DECODED = ("mha", "full", "linear", "hybrid")
# The layers of a mixer's recall models, and the variant whose options they take. Hybrid's LLLF
# becomes LF, one layer of each type.
_RECALLED = {
    "mha": (MHA * 2, "mha"),
    "full": (FULL * 2, "full"),
    "linear": (LINEAR * 2, "linear"),
    "hybrid": (LINEAR + FULL, "linear"),
}
# Maximum T, maximum micro-batch, and draws. BF16 needs this many draws to lift lambda's gradient
# above the noise; T x T matrices in FP64 still fit on a GPU. FP32's noise is 2^-16 times BF16's, so
# few tokens are enough.
_CHECKED = {"bf16": (512, 8, 32), "fp32": (32, 2, 16)}


@dataclass(frozen=True)
class Matrix:
    """A campaign's values, from which it makes runs and data. Errors name the place to change.

    corpus: replaces the campaign's texts, unless None; variations: the changes of each variation.
    In the methods, `o` are the options of one run, and `changes` those of its variation.
    """

    name: str
    section: CampaignSection
    corpus: str | None
    variations: dict[str, dict]

    def options(self, scale: str, variant: str, changes: Mapping = {}) -> dict:
        """The options of a run. A variation wins over the scale, and the scale over the campaign.

        In each of them `overrides` of the variant come last. Only these may set what the variant
        itself changes, and the model then refuses another value. changes: those of the variation.
        """
        values, fixed = self.section.as_dict(), VARIANTS[variant].changes
        merged: dict = {"learning_rate_factor": 1.0, "backends": {}, **fixed}
        for level in (values, values["scales"][scale], changes):
            free = {name: value for name, value in level.items() if name not in fixed}
            for options in (free, level.get("overrides", {}).get(variant, {})):
                known = {name: v for name, v in options.items() if name in Options.model_fields}
                merged = merge_values(merged, known)  # backends are merged, the rest replaced
        missing = [n for n in Options.model_fields if n not in merged and n not in _DEFAULTS]
        if missing:
            raise InputError(f"config/{self.name}.yaml: scale {scale} has no {missing[0]}; set it")
        # Micro-batches per update; `run` refuses a remainder.
        accumulation = merged["tokens_per_update"] // (merged["micro"] * merged["context"])
        return merged | {"accumulation": accumulation}

    def data(self, corpus: str, vocabulary: int, readers: list[dict]) -> Data:
        """The specification of a corpus; readers: the options of the runs that read it."""
        corpora, place = self.section.corpora, f"config/{self.name}.yaml"
        check_among(corpus, corpora, f"{place}: there is no corpus {corpus!r}")
        values = {"title": corpus, "fingerprint": None, **corpora[corpus].as_dict()}
        streams, path = values.pop("streams", None), values.pop("path", None)
        if path is None and streams is None:
            raise InputError(f"{place}: corpora.{corpus} has no path and no streams; give one")
        if path is not None and streams is not None:
            raise InputError(f"{place}: corpora.{corpus} has path and streams; set one to null")
        if self.corpus is not None:
            path, streams = _path_or_streams(self.corpus)
            values |= {"title": (path or Path(streams[0]["path"])).name, "fingerprint": None}
            if path is not None:  # the limits are the campaign's text's; a text given is read whole
                limits = "train_tokens", "validation_tokens", "tokenizer_characters"
                values |= dict.fromkeys(limits)
                if path.is_file() and path.suffix == ".txt":
                    values["validation_modulus"] = None
        elif path is not None:
            path = Path(path)
        if path is not None and path.exists() and values["fingerprint"] is None:
            from relation.data.corpus import fingerprint

            values["fingerprint"] = fingerprint(str(path))
        return Data(
            campaign=self.name,
            corpus=corpus,
            vocabulary=vocabulary,
            path=None if path is None else str(path),
            source=None if streams is None else {"streams": streams},
            largest_context=max(o["context"] for o in readers),
            diagnosed_tokens=max(o["flow_sequences"] * o["flow_window"] + 1 for o in readers),
            **values,
        )

    def model(self, where: str, variant: str, o: Mapping) -> ModelConfig:
        """The model of a variant with options `o`; where: the place that error messages name."""
        options = {name: o[name] for name in _MODEL if name in o} | {"vocab_size": o["vocabulary"]}
        for name, value in options.items():
            if value in _OF_WIDTH:
                options[name] = _OF_WIDTH[value](o["d_model"])
        if options.get("linear_init") == "normal":
            options["linear_init"] = None
        try:
            return ModelConfig.for_variant(variant, o["layers"], **options)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def run(self, address: tuple, data: Data, o: dict, further: bool) -> Run:
        """One run with options `o`. Raises InputError if its values contradict each other."""
        scale, variation, variant, seed = address
        where = f"config/{self.name}.yaml: scale {scale}, variation {variation}, variant {variant}"
        if o["tokens_per_update"] % (o["micro"] * o["context"]):
            raise InputError(
                f"{where}: tokens_per_update {o['tokens_per_update']} is not a multiple of micro "
                f"{o['micro']} x context {o['context']}; change one of them"
            )
        plateau = int(o["plateau_fraction"] * o["budget_tokens"])
        if o["warmup_tokens"] > plateau:
            raise InputError(f"{where}: warmup_tokens end after the plateau, {plateau}; lower them")
        _check_backends(where, variant, o)
        options = {field.name: o[field.name] for field in fields(Run) if field.name in o}
        options |= {
            "betas": tuple(o["betas"]),
            "learning_rate": o["learning_rate"] * o["learning_rate_factor"],
            "document_mask": None if o.get("document_mask") == "none" else o.get("document_mask"),
            "flow_length": min(o["flow_length"], o["context"]),
            "rank_length": min(o["rank_length"], o["context"]),
        }
        separate = o["paired_weights"] == "separate" and variant != "mha"
        return Run(
            **{"scale": scale, "variation": variation, "variant": variant, "seed": seed},
            campaign=self.name,
            model=self.model(where, variant, o),
            data=data,
            init_key=variant if separate else None,
            further=further,
            **options,
        )

    def seeds(self, scale: str, variation: str, variant: str) -> dict[int, bool]:
        """The seeds of a variant, each with whether it is one of `further_seeds`."""
        changes = self.variations[variation]
        seeds = changes.get("seeds", self.section.seeds) or []
        if len(set(seeds)) < len(seeds):
            raise InputError(f"config/{self.name}.yaml: seeds {seeds}: give each seed once")
        has_further = "seeds" not in changes and variant in PAIRED
        further = (self.section.further_seeds or {}).get(scale, []) if has_further else []
        return {seed: seed not in seeds for seed in (*seeds, *further)}

    def runs(self) -> tuple[dict[tuple, Run], dict[str, Data]]:
        """The run of each scale, variation, variant and seed, in this order, and the corpora.

        A run that equals one of an earlier variation is that run: it is trained once.
        """
        scales = self.section.scales
        trained = {k: PAIRED if s.variants is None else s.variants for k, s in scales.items()}
        unvaried = [self.options(scale, v) for scale in scales for v in trained[scale]]
        varied: dict[tuple, dict] = {}  # options by scale, variation and variant
        for variation, changes in self.variations.items():
            for scale in scales:
                if scale in changes.get("scales", scales):
                    for variant in changes.get("variants", trained[scale]):
                        varied[scale, variation, variant] = self.options(scale, variant, changes)

        readers = _by_corpus([*unvaried, *varied.values()])  # all that read a corpus
        timed = [self.at(scale) for name, scale in self.benchmarks() if name not in UNTRAINED]
        for names, each in _by_corpus(timed).items():  # a benchmark may read a text of its own
            readers.setdefault(names, each)
        # For flow windows, variations' contexts count only for corpora that no scale itself reads,
        # so that a variation with a longer context changes no other run's flow.
        readers_unvaried = _by_corpus(unvaried)
        for names, each in readers.items():
            longest = max(o["context"] for o in readers_unvaried.get(names, each))
            for o in each:  # the dicts of `varied`, of which the runs are made below
                o["flow_window"] = max(o["context"], longest)
        data = {names: self.data(*names, each) for names, each in readers.items()}

        runs: dict[tuple, Run] = {}
        by_hash: dict[str, Run] = {}
        for address, o in varied.items():
            for seed, further in self.seeds(*address).items():
                run = self.run((*address, seed), data[o["corpus"], o["vocabulary"]], o, further)
                runs[*address, seed] = by_hash.setdefault(run.hash, run)
        return runs, {corpus.name: corpus for corpus in data.values()}

    # Benchmarks, recall and checks use the options of the first variation.

    def at(self, scale: str, variant: str = "full") -> dict:
        """The options of a variant at a scale, in the first variation."""
        return self.options(scale, variant, next(iter(self.variations.values())))

    def benchmarks(self) -> Iterator[tuple[str, str]]:
        """The name and the scale of every systems benchmark (Appendix F)."""
        systems = self.section.systems
        for name in _BENCHMARKS if systems else ():
            section = getattr(systems, name)
            if section is not None:
                scales = section.batches if isinstance(section, Batches) else [section.scale]
                yield from ((name, scale) for scale in scales if scale in self.section.scales)

    def job(self, o: dict) -> dict:
        """The fields of a `Job` with these options."""
        key = {"campaign": self.name, "variation": next(iter(self.variations))}
        return key | {name: o[name] for name in ("precision", "compile", "device")}

    def optimizer(self, scale: str, variant: str = "full") -> dict:
        """AdamW's options for a benchmark or associative recall, without the learning rate."""
        o = self.at(scale, variant)
        names = ("betas", "weight_decay", "decay_embedding", "gradient_clip")
        options = {name: o[name] for name in names} | {"eps": o["adam_eps"]}
        return options | ({"decay_vectors": True} if o["decay_vectors"] else {})

    def model_at(self, scale: str, variant: str) -> ModelConfig:
        """The model of a variant at a scale, in the first variation."""
        where = f"config/{self.name}.yaml: scale {scale}, variant {variant}"
        return self.model(where, variant, self.at(scale, variant))


def _by_corpus(options: list[dict]) -> dict[tuple, list[dict]]:
    """Group options by corpus and vocabulary."""
    groups: dict[tuple, list[dict]] = {}
    for o in options:
        groups.setdefault((o["corpus"], o["vocabulary"]), []).append(o)
    return groups


def _path_or_streams(corpus: str) -> tuple[Path | None, list[dict] | None]:
    """Resolve corpus= to a path or to the streams of a data set of the hub."""
    path = Path(corpus)
    if corpus and path.exists():
        return path, None
    if hub := re.fullmatch(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})", corpus):
        return None, [{"path": hub[1], "revision": hub[2]}]
    raise InputError(
        f"corpus {corpus} does not exist; give a text file, a folder or a data set of the "
        "hub, OWNER/NAME@REVISION with the 40 digits of the commit to read"
    )


def _check_backends(where: str, variant: str, o: Mapping) -> None:
    """Raise InputError for a backend that cannot separate documents, or a GPU's on a CPU."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    for letter in dict.fromkeys(VARIANTS[variant].pattern):
        operator, backend = OPERATORS[letter], o["backends"].get(OPERATORS[letter])
        if o.get("document_mask") == "documents" and (operator, backend) == ("mha", "cudnn"):
            raise InputError(f"{where}: MHA's backend cudnn takes no documents; use flash")
        needs_gpu = (operator, backend) in _GPU_ALONE and not (interpreted and backend == "flash")
        if o["device"] == "cpu" and needs_gpu:
            raise InputError(f"{where}: backend {backend} of {operator} needs a GPU; use another")


def _forms(matrix: Matrix, benchmark: str, scale: str) -> list[tuple[str, str, dict]]:
    """What a benchmark compares: the name, the variant and the backends of each form."""
    systems, section = matrix.section.systems, getattr(matrix.section.systems, benchmark)

    def as_trained(variant: str) -> tuple[str, str, dict]:
        return (variant, variant, matrix.at(scale, variant)["backends"])

    mha = ("mha", "mha", systems.baseline.as_dict())
    reference, flash = {"full": "reference"}, {"full": systems.flash}
    if benchmark == "fixed":
        forms = [("reference", "full", reference), ("full", "full", flash)]
        if matrix.at(scale)["compile"]:
            forms.append(("reference-compiled", "full", {"full": "materialised"}))
        return forms
    if benchmark == "matched":
        peers = [(f"mha-{peer}", "mha", {"mha": peer}) for peer in section.peers or ()]
        further = [as_trained(variant) for variant in section.variants or ()]
        return [mha, ("full", "full", flash), *peers, *further]
    if benchmark == "complexity":
        full = [("full-reference", "full", reference), ("full-flash", "full", flash)]
        return [mha, *full, as_trained("linear")]
    if benchmark == "decode":
        return [as_trained(variant) for variant in _DECODED]
    return [as_trained("linear")]  # linear_steady and linear_long


def sides(matrix: Matrix, benchmark: str, scale: str) -> Iterator[Side]:
    """The sides of a benchmark's comparison: every form at every context and batch."""
    section = getattr(matrix.section.systems, benchmark)
    if isinstance(section, Batches):  # sizes: T, micro and accumulation of each side
        sizes = [(section.context or matrix.at(scale)["context"], *section.batches[scale])]
    elif benchmark == "linear_long":
        tokens = matrix.at(scale, "linear")["tokens_per_update"]
        sizes = [(T, 1, max(1, tokens // T)) for T in section.contexts]
    else:
        sizes = [(T, rows, 1) for T in section.contexts for rows in section.rows or [1]]
    for form, variant, backends in _forms(matrix, benchmark, scale):
        for position, (T, micro, accumulation) in enumerate(sizes):
            names = {"linear_long": f"T={T}", "decode": f"{form} T={T} x {micro}"}
            yield Side(
                side=names.get(benchmark, form),
                variant=variant,
                backends=backends,
                model=matrix.model_at(scale, variant),
                context=T,
                micro=micro,
                accumulation=accumulation,
                position=position if benchmark == "linear_long" else 0,
            )


def bench_jobs(matrix: Matrix) -> Iterator[Bench]:
    """Every systems benchmark."""
    for name, scale in matrix.benchmarks():
        o = matrix.at(scale)
        yield Bench(
            **matrix.job(o),
            benchmark=name.replace("_", "-"),
            scale=scale,
            sides=tuple(sides(matrix, name, scale)),
            optimizer=matrix.optimizer(scale) | {"learning_rate": o["learning_rate"]},
            **{n: getattr(matrix.section.systems, n) for n in _ROUNDS},
        )


def recall_jobs(matrix: Matrix) -> Iterator[Recall]:
    """Associative recall of every mixer. Raises InputError for impossible sequences."""
    section, scale = matrix.section.recall, next(iter(matrix.section.scales), None)
    if section is None or scale is None:
        return
    where = f"config/{matrix.name}.yaml: recall"
    for length, pairs in section.tasks:
        if length % 2 or length < 4 * pairs or pairs >= section.vocabulary // 2:
            raise InputError(
                f"{where}.tasks: {pairs} pairs need an even length of at least {4 * pairs}, not "
                f"{length}, and a vocabulary of at least {2 * pairs + 2}, not {section.vocabulary}"
            )
    names = {field.name for field in fields(Recall)}
    options = {name: value for name, value in section.as_dict().items() if name in names}
    for mixer in section.mixers:
        layout, variant = _RECALLED[mixer]
        base, o = matrix.model_at(scale, variant), matrix.at(scale, variant)
        if section.warmup_updates > o["plateau_fraction"] * section.updates:
            raise InputError(f"{where}: warmup_updates end after the plateau; lower them")
        shape = {"layout": layout, "vocab_size": section.vocabulary, "heads": section.heads}
        try:
            models = [replace(base, d_model=d, d_ff=2 * d, **shape) for d in section.widths]
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        yield Recall(
            **matrix.job(o),
            mixer=mixer,
            models=tuple(models),
            optimizer=matrix.optimizer(scale, variant) | {"eps": section.adam_eps},
            plateau_fraction=o["plateau_fraction"],
            backends=o["backends"],
            **options,
        )


def check_job(matrix: Matrix) -> Check | None:
    """The checks against FP64; None if the campaign has none."""
    if not matrix.section.check:
        return None
    scales = matrix.section.scales
    geometry = {scale: matrix.at(scale) for scale in scales}
    o = next(iter(geometry.values()))
    for operator in ("full", "linear"):
        if operator not in o["backends"]:
            where = f"config/{matrix.name}.yaml: check"
            raise InputError(f"{where}: backends has no {operator}; set it")
    length, micro, draws = _CHECKED[o["precision"]]
    gradients, gradient_scales = [], []  # a side and a scale per variant
    for name, variant in VARIANTS.items():
        # At the first scale that trains it, else at the first whose layers its pattern can fill.
        # An arm of the fair comparison that no scale trains is not checked.
        pattern, is_arm = len(variant.pattern), name in ARMS and name not in PAIRED
        suitable = [scale for scale in scales if name in (scales[scale].variants or ())]
        if not suitable and not is_arm:
            suitable = [scale for scale in scales if geometry[scale]["layers"] % pattern == 0]
        if not suitable:
            continue
        scale = suitable[0]
        options, model = matrix.at(scale, name), matrix.model_at(scale, name)
        layers = max(2, pattern)  # two layers have both pairings of heads
        side = Side(
            side=name,
            variant=name,
            backends=options["backends"],
            model=replace(model, layout=model.layout[:layers]),
            context=min(length, options["context"]),
            micro=min(micro, options["micro"]),
            accumulation=2,
        )
        gradients.append(side)
        gradient_scales.append(scale)
    shapes: dict[tuple, dict] = {}
    for scale, options in geometry.items():
        # The operator treats heads separately, so two are enough. Equal shapes are checked once.
        heads, T = options["heads"], options["context"]
        shape = {"heads": min(2, heads), "length": T, "width": options["d_model"] // heads}
        shapes.setdefault(tuple(shape.values()), {"scale": scale, **shape})
    return Check(
        **matrix.job(o),
        backend=matrix.section.systems.flash if matrix.section.systems else o["backends"]["full"],
        linear=o["backends"]["linear"],
        shapes=tuple(shapes.values()),
        draws=16,
        gradients=tuple(gradients),
        gradient_scales=tuple(gradient_scales),
        gradient_draws=draws,
    )
