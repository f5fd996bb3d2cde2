"""The configuration: every key with its type, bounds and meaning.

`config.yaml` chooses a campaign and which of its runs to make. `config/<campaign>.yaml` defines one
campaign, with at most one `base`. A run takes an option from its variation, else from its scale,
else from the campaign. In each of them `overrides` sets options of single variants.
`python -m relation config` prints the reference of the keys from these types.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from relation.errors import InputError, check_among
from relation.jobs import hash_of
from relation.variants import LINEAR, VARIANTS, ModelConfig

CONFIG = Path("config.yaml")
_OF_MODEL = "it is a field of the model: make a variant of it (docs/extending.md)"

Count = Annotated[StrictInt, Field(ge=1)]
Seed = Annotated[StrictInt, Field(ge=0, lt=2**63)]
Seeds = Annotated[list[Seed], Field(min_length=1)]
Positive = Annotated[float, Field(strict=True, gt=0)]
Counts = Annotated[list[Count], Field(min_length=2, max_length=2)]
Deviation = Positive | Literal["1/sqrt(d)", "sqrt(2/(5d))"]
Variant = Literal[*VARIANTS]
WithFlow = Literal[*(name for name, v in VARIANTS.items() if LINEAR not in v.pattern)]
_NAME = "^[0-9A-Za-z][0-9A-Za-z._=+-]*$"
Name = Annotated[str, Field(pattern=_NAME)]
Restriction = StrictStr | StrictInt | list[StrictStr | StrictInt] | None
Switch = Literal[True, False, "true", "false"]  # Snakemake passes a lower-case true as text
MhaBackend = Literal["reference", "flash", "cudnn"]
FullBackend = Literal["reference", "materialised", "tiled", "flex", "flash"]
LinearBackend = Literal["recurrent", "chunked", "flash"]
Mixer = Literal["mha", "full", "linear", "hybrid"]


def _known_scale(name: str, info: Any) -> str:
    scales = (info.context or {}).get("scales")  # as given to `validated`
    if scales is not None:
        check_among(name, scales, f"there is no scale {name!r}")
    return name


ScaleName = Annotated[Name, AfterValidator(_known_scale)]
Scales = Annotated[list[ScaleName], Field(min_length=1)]


def key(description: str, **bounds: Any) -> Any:
    """An optional key and its meaning."""
    return Field(default=None, description=description, **bounds)


def need(description: str, **bounds: Any) -> Any:
    """A key that must have a value once the bases are merged."""
    return Field(description=description, **bounds)


class Section(BaseModel):
    """A mapping of the configuration. A file may leave out any key that its base has."""

    model_config = ConfigDict(allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown(cls, values: Any) -> Any:
        """Raise InputError for an unknown key, with the nearest known one."""
        if not isinstance(values, Mapping):
            return values
        of_model = {*ModelConfig.__dataclass_fields__} - {*cls.model_fields, "vocab_size"}
        for name in values:
            if name in of_model:
                raise InputError(f"unknown key {name!r}; {_OF_MODEL}")
            check_among(name, cls.model_fields, f"unknown key {str(name)!r}")
        return values

    def as_dict(self) -> dict[str, Any]:
        """The keys that were set explicitly, with plain values."""
        return self.model_dump(exclude_unset=True)


class Backends(Section):
    """The backend of each operator."""

    mha: MhaBackend = key("Backend of MHA")
    full: FullBackend = key("Backend of Full Relation")
    linear: LinearBackend = key("Backend of Linear Relation")


class Options(Section):
    """The options of a run: those that determine its result, and how it is executed."""

    corpus: StrictStr = key("Name of the corpus, one of `corpora`")
    vocabulary: StrictInt = key("Vocabulary size of the tokenizer", ge=257, le=65536)
    layers: Count = key("Number of layers")
    d_model: Count = key("Width d of the model")
    heads: Count = key("Heads per layer")
    d_ff: Count = key("Width of the feed-forward network")
    context: Annotated[Count, Field(ge=2)] = key("T, the tokens that one window predicts")
    micro: Count = key("Sequences in a micro-batch")
    tokens_per_update: Count = key("Predicted tokens per update, a multiple of micro x context")
    budget_tokens: Count = key("Predicted tokens of the whole run")
    warmup_tokens: Count = key("Predicted tokens over which the learning rate rises from zero")
    learning_rate: Positive = key("Learning rate after the warm-up")
    learning_rate_factor: Positive = key("Factor on the learning rate")
    init_std: Deviation = key("SD of initial weights: a number, 1/sqrt(d) or sqrt(2/(5d))")
    linear_init: Literal["normal", "torch"] = key("Initial projections; torch: as in nn.Linear")
    embedding_std: Deviation | None = key("SD of the initial embedding; null: init_std")
    embedding_multiplier: Positive | Literal["sqrt(d)"] | None = key("Scales embeddings; null: 1")
    scale_residual_init: StrictBool = key("Whether W_O and W_down start divided by sqrt(2L)")
    paired_weights: Literal["shared", "separate"] = key("shared: a pair starts with equal weights")
    norm_eps: Positive = key("Epsilon of RMSNorm")
    betas: Annotated[list[Annotated[Positive, Field(lt=1)]], Field(min_length=2, max_length=2)] = (
        key("Betas of AdamW")
    )
    weight_decay: Annotated[float, Field(strict=True, ge=0)] = key("Weight decay of AdamW")
    gradient_clip: Positive = key("Maximum global L2 norm of the gradient")
    adam_eps: Positive = key("Epsilon of AdamW")
    decay_embedding: StrictBool = key("Whether weight decay applies to the tied embedding")
    decay_vectors: StrictBool = key("Weight decay also on norms, lambda, angles, A_log and dt_bias")
    plateau_fraction: Positive = key("Share of the budget before the rate starts to fall", lt=1)
    document_mask: Literal["none", "documents"] = key("documents: a token sees only its document")
    device: Literal["cpu", "cuda"] = key("Device of the runs")
    precision: Literal["fp32", "bf16"] = key("bf16: BF16 autocast with FP32 master weights")
    compile: StrictBool = key("Whether torch.compile compiles the training step")
    backends: Backends = key("Backend of each operator; all compute the same mathematics")
    deterministic: StrictBool = key("Whether a GPU repeats results to the bit; slower")
    checkpoint_seconds: Positive = key("Seconds from one saved resume state to the next")
    divergence: Literal["fail", "record"] = key(
        "If a loss is not finite: fail, or record a run of one process; `record` diagnoses no run"
    )
    probes: Count = key("Flow probes in training, evenly spaced; one more at the start")
    validations: Count = key("Validation NLLs in training, evenly spaced; one more at the start")
    validation_tokens: Count = key("Number of first validation tokens that `validations` read")
    flow_sequences: Count = key("Validation sequences per diagnosed checkpoint (Appendix B.4)")
    flow_length: Count = key("Tokens of a sequence that flow metrics read, at most the context")
    rank_length: Count = key("Tokens of a sequence that spectra read, at most the context")


class Stream(Section):
    """A data set of the Hugging Face hub."""

    path: StrictStr = need("Name on the hub")
    name: StrictStr | None = key("Configuration of the data set")
    revision: StrictStr = need("Commit to read, 40 digits", pattern="^[0-9a-f]{40}$")
    column: StrictStr = key("Column that holds the text; default: text")


class Corpus(Section):
    """A corpus: its texts and how much of them to read."""

    title: StrictStr = key("Its name in the report")
    path: StrictStr | None = key("Folder or file of texts, in the project; corpus= replaces it")
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = key(
        "SHA-256 of the texts at `path`, part of the hash of their runs; null: computed"
    )
    streams: list[Stream] | None = key("Data sets of the hub, mixed in equal shares of tokens")
    validation_modulus: Annotated[StrictInt, Field(ge=2)] | None = key(
        "Documents whose SHA-256 is 0 modulo this validate; null: 50, or a hub data set's split. "
        "Not used with files or folders named validation*, or for one .txt file, whose last tenth "
        "validates"
    )
    train_tokens: Count | None = key("Maximum tokens of the training split; null: all")
    validation_tokens: Count | None = key("Maximum tokens of the validation split; null: all")
    tokenizer_characters: Count | None = key("Characters to train BPE on; null: all")
    document_characters: Count | None = key("Cut into pieces this long, shuffled; null: no")


class Scale(Options):
    """A model size. It may set any option."""

    variants: list[Variant] = key("Variants to train")
    overrides: dict[Variant, Options] = key("Options of single variants at this scale")
    expected_tokens_per_second: Positive = key("Speed that `plan` expects, tokens/s")


class Variation(Options):
    """A named change of options, and the runs that it applies to."""

    title: StrictStr = key("Its name in the report; default: its key")
    scales: Scales = key("Only these scales; default: all")
    variants: list[Variant] = key("These variants instead of each scale's")
    seeds: Seeds = key("These seeds instead of the campaign's `seeds` and `further_seeds`")
    overrides: dict[Variant, Options] = key("Options of single variants in this variation")


class Column(Section):
    """A setting: a column of the report."""

    variation: Name = need("Its variation")
    scales: Scales | None = key("Its scales; null: the paper's, or all if there are none")
    title: StrictStr = key("Its heading; default: the variation's title")


class Length(Section):
    """NLL on texts longer than the training context, beyond the paper."""

    scales: Scales | None = key("Scales whose checkpoints are measured; null: all")
    variants: list[Variant] = need("Variants whose checkpoints are measured")
    windows: Count = need("Maximum number of long windows of validation text")
    contexts: Count = need("Training contexts per long window, halved until a document is as long")

    def hash(self, run: Any) -> str:
        """The hash of this measurement on one run's checkpoint."""
        return hash_of({"run": run.hash, "windows": self.windows, "contexts": self.contexts})


class Batches(Section):
    """A benchmark with one batch per scale."""

    context: Count = key("T; default: the scale's context")
    batches: dict[ScaleName, Counts] = need("[micro, accumulation] for each scale")
    peers: list[MhaBackend] = key("Further backends of MHA to measure with the pair")
    variants: list[Variant] = key("Further variants to measure, with their own backends")


class Sweep(Section):
    """A benchmark over several contexts at one scale."""

    scale: ScaleName = need("Scale whose model shape is measured")
    contexts: Annotated[list[Count], Field(min_length=2)] = need("Contexts T to measure")
    rows: list[Count] = key("Batch sizes to decode with, each at every context")


class Systems(Section):
    """The systems benchmarks (Appendix F)."""

    warmup_updates: StrictInt = need(
        "Warm-up updates; the first compiles, the second captures CUDA graphs", ge=2
    )
    rounds: Count = need("Rounds; each measures all sides of a comparison in turn")
    measured_updates: Count = need("Complete updates timed per round")
    baseline: Backends = need("Backend of MHA in the comparisons")
    flash: FullBackend = need("Backend measured as FlashRelation")
    fixed: Batches | None = key("FlashRelation and the reference at one context")
    matched: Batches | None = key("MHA and Full Relation at the scale's context")
    linear_steady: Batches | None = key("Linear Relation at one context")
    linear_long: Sweep | None = key("Linear Relation at growing contexts")
    complexity: Sweep | None = key("Time and decode state of one layer's operator against T")
    decode: Sweep | None = key("Time of one token of whole models after growing contexts")


class RecallSection(Section):
    """Multi-query associative recall (Arora et al. 2023) with two-layer models of each mixer."""

    mixers: list[Mixer] = need("Mixers to train")
    widths: Annotated[list[Count], Field(min_length=1)] = need("Widths d of the models")
    heads: Count = need("Heads of every model; Givens mixing needs pairs, so at least 2")
    vocabulary: Annotated[StrictInt, Field(ge=4, le=65536, multiple_of=2)] = need(
        "V: 0 is filler, keys are 1 to V/2 - 1, values V/2 to V - 1"
    )
    tasks: Annotated[list[Counts], Field(min_length=1)] = need("[length, pairs] of each task")
    gap_power: Positive = need("Query slot s is drawn with weight s^(power - 1); 1: uniform")
    learning_rates: Annotated[list[Positive], Field(min_length=1)] = need("Tried on the first seed")
    seeds: Seeds = need("Seeds of weights and sequences")
    updates: Count = need("Updates per training")
    warmup_updates: Count = need("Updates over which the rate rises from zero")
    sequences: Count = need("Sequences of each task per update")
    tested: Count = need("Sequences of each task to choose a rate on, and as many to test on")
    adam_eps: Positive = need("Epsilon of AdamW; keep it below the small gradients of rare keys")


class CampaignSection(Options):
    """A campaign, `config/<campaign>.yaml`. It may set any option for all its runs."""

    base: Name = key("Campaign to start from: mappings but variations merge, null removes an entry")
    title: StrictStr = key("Its name in words")
    description: StrictStr = key("What it trains, in one sentence")
    notice: StrictStr = key("Notice in the report: what its values compare with; may be empty")
    seeds: Seeds = key("Seeds of every run of the matrix")
    further_seeds: dict[ScaleName, list[Seed]] | None = key(
        "Seeds of further pairs by scale, trained but not diagnosed; null: none"
    )
    corpora: dict[Name, Corpus | None] = key("Corpora by name")
    scales: dict[Name, Scale | None] = key("Model sizes by name")
    overrides: dict[Variant, Options] = key("Options of single variants, if their scale sets none")
    cross: list[dict[Name, Variation]] = key("Combines one entry of each mapping: variation a-b")
    variations: dict[Name, Variation] = key("Named changes of options; default: `base`, no change")
    columns: Annotated[list[Column], Field(max_length=4)] = key("Columns of the report, at most 4")
    diagnosed: list[WithFlow] = key("Variants whose checkpoints are diagnosed, none with Linear")
    length: Length | None = key("NLL on longer texts; null: not measured")
    efficiency_window: Annotated[Positive, Field(le=1)] = key(
        "Window that smooths the loss, as a share of the budget"
    )
    systems: Systems | None = key("The systems benchmarks; null: none")
    recall: RecallSection | None = key("Associative recall; null: none")
    check: StrictBool = key("Whether operators and gradients are checked against FP64")


class Choice(Section):
    """config.yaml. Snakemake's `--config KEY=VALUE` replaces single keys."""

    campaign: Name = need("Campaign in config/ to run")
    scales: Restriction = key("Scales to run, separated by commas or as a list; null: all")
    variations: Restriction = key("Variations to run, in the same form")
    variants: Restriction = key("Variants to run, in the same form")
    seeds: Restriction = key("Seeds to run, in the same form")
    corpus: StrictStr | None = key("Text to read instead: file, folder or OWNER/NAME@REVISION")
    published: Switch = key("Whether runs in results/published count as done")
    vary: StrictStr | None = key('One-off change of the first chosen variation: "d_ff=64 micro=4"')
    runs_per_gpu: Literal[1, 2, 3, 4, 5, 6] | None = key("Runs that share a GPU; null: one")


class _Loader(yaml.SafeLoader):
    """YAML in which keys are unique and 1e-5 is a number. YAML 1.1 reads 1e-5 as text."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            if (name := str(key_node.value)) in seen:  # non-scalars fail below
                problem = f"the key {name!r} occurs twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parsed(text: str) -> Any:
    """Parse text as a YAML value. Raises InputError if it is not one."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError:
        raise InputError(f"{text!r} is no YAML; give a number, word or list, no spaces") from None


def read(path: Path) -> dict:
    """Read a YAML or JSON file as a mapping. Raises InputError if it is missing or invalid."""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.load(text, _Loader)
    except FileNotFoundError:
        hint = "choices need no --config" if "=" in str(path) else "run in the project's folder"
        raise InputError(f"no configuration file {path}; {hint}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        problem = getattr(error, "problem", str(error).partition("\n")[0])
        raise InputError(f"{path}{line} is not YAML: {problem}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as YAML or JSON in UTF-8 ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a mapping; see config.yaml of the project")
    return content


# A campaign that defines variations inherits none of these keys from its base. Its own values of
# these keys, and of `batches`, replace the base's. All other mappings are merged.
_OF_VARIATIONS = ("cross", "variations", "columns", "further_seeds")
_REPLACED = (*_OF_VARIATIONS, "batches")


def merge_values(base: Mapping, changes: Mapping) -> dict:
    """Base with changes; mappings are merged key by key, except those of _REPLACED."""
    dropped = _OF_VARIATIONS if {"cross", "variations"} & set(changes) else ()
    merged = {name: value for name, value in base.items() if name not in dropped}
    for name, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merges = both and name not in _REPLACED
        merged[name] = merge_values(merged[name], value) if merges else value
    return merged


def _with_bases(campaign: str, folder: Path) -> dict[str, dict]:
    """The files of a campaign and its bases as mappings by name, each before its own base."""
    campaigns = sorted(file.stem for file in folder.glob("*.yaml"))
    if not campaigns:
        raise InputError(f"{folder} has no campaigns; run in the project's folder")
    contents, name, base_of = {}, campaign, ""
    while name is not None:
        check_among(name, campaigns, f"unknown campaign {name!r}{base_of}")
        contents[name] = read(folder / f"{name}.yaml")
        validated(CampaignSection, contents[name], f"config/{name}.yaml", whole=False)
        base = contents[name].get("base")
        if base in contents:
            raise InputError(f"{name}.yaml: base {base!r} leads back to itself; change it")
        name, base_of = base, f" (base of {name})"
    return contents


def campaign_values(name: str, folder: Path) -> dict:
    """A campaign's values, merged over those of its bases.

    folder: holds the campaigns' files. Raises InputError for an unknown campaign or key, an invalid
    value, or bases that form a cycle.
    """
    contents, merged = _with_bases(name, folder), {}
    for content in reversed(contents.values()):
        for corpus in content.get("corpora", {}).values():
            if corpus and "path" in corpus:  # the fingerprint of a base is of its own text
                corpus.setdefault("fingerprint", None)
        merged = merge_values(merged, content)
    merged.pop("base", None)
    for section in ("scales", "corpora"):
        merged[section] = {k: v for k, v in merged.get(section, {}).items() if v is not None}
    scales = merged["scales"]
    # A base may name a scale that this campaign removes. The campaign's own file must not.
    validated(CampaignSection, contents[name], f"config/{name}.yaml", scales, whole=False)
    return merged


def validated(
    section: type[Section],
    values: Mapping,
    where: str,
    scales: Collection[str] | None = None,
    whole: bool = True,
) -> Any:
    """Validate values as a section. Raises InputError with the place and reason of one error.

    An unknown name is reported first. scales: scales that the values may name, None for any.
    whole: whether a missing key is an error. If not, a base can give it, and the result is None.
    """
    try:
        return section.model_validate(values, context={"scales": scales})
    except ValidationError as refused:
        errors = [e for e in refused.errors() if whole or e["type"] != "missing"]
    if not errors:
        return None
    error = min(errors, key=lambda error: (error["type"] != "value_error", len(error["loc"])))
    place, inside = [], values
    for part in error["loc"]:  # pydantic's location also names types and alternatives
        if isinstance(part, int) or (isinstance(inside, Mapping) and part in inside):
            inside = inside[part]
            place.append(str(part))
    value = "this" if isinstance(error["input"], Mapping) else repr(error["input"])[:80]
    reason = error["msg"].removeprefix("Value error, ").replace("Input", value, 1).splitlines()[0]
    not_a_name = f"{value} is no name; give ASCII letters or digits, then also . _ = + -"
    reason = reason.replace(f"String should match pattern '{_NAME}'", not_a_name)
    if error["type"] == "missing":
        reason = f"the key {error['loc'][-1]!r} is missing; give it"
    raise InputError(f"{where}: {'.'.join(place) or 'top level'}: {reason}")


def reference() -> str:
    """The reference of all keys in Markdown, one table per section."""
    lines = ["# Keys of the configuration"]
    sections = (Choice, CampaignSection, *Section.__subclasses__(), Scale, Variation)
    for section in dict.fromkeys(sections):
        name, fields = section.__name__.removesuffix("Section"), section.model_fields
        lines += ["", f"## {name}", "", section.__doc__.strip(), ""]
        lines += ["| key | meaning |", "| --- | --- |"]
        names = (n for n in section.__annotations__ if n in fields)
        lines += [f"| `{n}` | {fields[n].description} |" for n in names]
    return "\n".join(lines)
