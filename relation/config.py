"""The configuration: every key with its type, its bounds and what it means.

`config.yaml` chooses a campaign and what of it to run; `config/<campaign>.yaml` is one campaign,
on at most one `base`. An option of a run is set by the campaign, over it by the scale, over that by
a variation; in each, `overrides` set what single variants differ in.
`python -m relation config` prints the reference of the keys from these types.
"""

import json
import re
from collections.abc import Collection, Mapping
from functools import reduce
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
from relation.variants import VARIANTS, ModelConfig

CONFIG = Path("config.yaml")
_OF_MODEL = "it is a field of the model: make a variant of it (docs/extending.md)"

Count = Annotated[StrictInt, Field(ge=1)]
Seed = Annotated[StrictInt, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(strict=True, gt=0)]
Counts = Annotated[list[Count], Field(min_length=2, max_length=2)]
Deviation = Positive | Literal["1/sqrt(d)", "sqrt(2/(5d))"]
Variant = Literal[*VARIANTS]
Name = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z._=+-]*$")]
Restriction = StrictStr | StrictInt | list[StrictStr | StrictInt] | None
Switch = Literal[True, False, "true", "false"]  # Snakemake passes a lower-case true as text
MhaBackend = Literal["reference", "flash", "cudnn"]
FullBackend = Literal["reference", "materialised", "tiled", "flex", "flash"]
LinearBackend = Literal["recurrent", "chunked", "flash"]
Mixer = Literal["mha", "full", "linear", "hybrid"]


def _known(name: str, info: Any) -> str:
    scales = (info.context or {}).get("scales")
    if scales is not None:
        check_among(name, scales, f"there is no scale {name!r}")
    return name


ScaleName = Annotated[Name, AfterValidator(_known)]


def key(description: str, **bounds: Any) -> Any:
    """A key that may be left out, with what it means."""
    return Field(default=None, description=description, **bounds)


def need(description: str, **bounds: Any) -> Any:
    """A key that a base may give, and that may not be missing once bases are merged."""
    return Field(description=description, **bounds)


class Section(BaseModel):
    """A mapping of the configuration. A file may leave out every key: a base may give it."""

    model_config = ConfigDict(allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown(cls, values: Any) -> Any:
        """Refuse an unknown key, with the nearest known one."""
        of_model = (
            ModelConfig.__dataclass_fields__.keys() - cls.model_fields.keys() - {"vocab_size"}
        )
        for name in values if isinstance(values, Mapping) else ():
            if name in of_model:
                raise InputError(f"unknown key {name!r}; {_OF_MODEL}")
            check_among(name, cls.model_fields, f"unknown key {str(name)!r}")
        return values

    def as_dict(self) -> dict[str, Any]:
        """The keys that the mapping sets, with plain values."""
        return self.model_dump(exclude_unset=True)


class Backends(Section):
    """The backend of each operator."""

    mha: MhaBackend = key("Of MHA")
    full: FullBackend = key("Of Full Relation")
    linear: LinearBackend = key("Of Linear Relation")


class Options(Section):
    """What determines a run, and how it is executed."""

    corpus: StrictStr = key("Name of the corpus, one of `corpora`")
    vocabulary: StrictInt = key("Entries of the tokenizer", ge=257, le=65536)
    layers: Count = key("Layers of the model")
    d_model: Count = key("Width d of the model")
    heads: Count = key("Heads of a layer")
    kv_heads: Count | None = key("Heads of the second coordinate and of information; null: `heads`")
    d_ff: Count = key("Width of the feed-forward network")
    context: Count = key("T, tokens predicted by one window")
    micro: Count = key("Sequences in a micro-batch")
    accumulation: Count = key("Micro-batches in an update")
    tokens_per_update: Count = key("Predicted tokens of an update: micro x accumulation x context")
    budget_tokens: Count = key("Predicted tokens of a whole run")
    warmup_tokens: Count = key("Predicted tokens over which the rate rises from zero")
    learning_rate: Positive = key("The rate after the warm-up")
    learning_rate_factor: Positive = key("What the learning rate is multiplied by")
    init_std: Deviation = key("Deviation of initial weights: a number, 1/sqrt(d) or sqrt(2/(5d))")
    linear_init: Literal["normal", "torch"] = key("Initial projections; torch: as nn.Linear")
    embedding_std: Deviation | None = key("Deviation of the initial embedding; null: init_std")
    embedding_multiplier: Positive | Literal["sqrt(d)"] | None = key("Of the embedding; null: 1")
    scale_residual_init: StrictBool = key("Whether W_O and W_down start divided by sqrt(2L)")
    paired_weights: Literal["shared", "separate"] = key("Whether a pair starts alike")
    norm_eps: Positive = key("Epsilon of RMSNorm")
    betas: Annotated[list[Annotated[Positive, Field(lt=1)]], Field(min_length=2, max_length=2)] = (
        key("Betas of AdamW")
    )
    weight_decay: Annotated[float, Field(strict=True, ge=0)] = key("Weight decay of AdamW")
    gradient_clip: Positive = key("Bound of the gradient's global L2 norm")
    adam_eps: Positive = key("Epsilon of AdamW")
    decay_embedding: StrictBool = key("Whether weight decay reaches the tied embedding")
    decay_vectors: StrictBool = key("Whether it reaches norms, lambda, angles, A_log and dt_bias")
    plateau_fraction: Positive = key("Share of the tokens before the rate falls to zero", lt=1)
    document_mask: Literal["none", "documents"] = key("documents: a token sees its own one alone")
    device: Literal["cpu", "cuda"] = key("Where runs compute")
    precision: Literal["fp32", "bf16"] = key("bf16: BF16 autocast over FP32 master weights")
    compile: StrictBool = key("Whether torch.compile builds the training step")
    backends: Backends = key("Backend of each operator; computes the same mathematics")
    deterministic: StrictBool = key("Whether a GPU gives the same bits every time, at a cost")
    checkpoint_seconds: Positive = key("A resume state is saved this long after the last, seconds")
    divergence: Literal["fail", "record"] = key("Whether a loss that is not finite fails or counts")
    probes: Count = key("Looks at the flow while a run trains, one in each such part of its budget")
    validations: Count = key("Validation NLLs while a run trains, in each such part of its budget")
    validation_tokens: Count = key("Tokens of the validation split, from its first, that they read")
    flow_sequences: Count = key("Sequences that a checkpoint is diagnosed on (Appendix B.4)")
    flow_length: Count = key("Tokens of a sequence whose flow is measured; at most the context")
    rank_length: Count = key("Tokens of a sequence whose spectra are measured; at most the context")


class Stream(Section):
    """A data set of the Hugging Face hub."""

    path: StrictStr = need("Name on the hub")
    name: StrictStr | None = key("Configuration of the data set")
    revision: StrictStr | None = key("Commit that is read")
    column: StrictStr = key("Column that holds the text; left out: text")


class Corpus(Section):
    """Texts, and how much of them is read."""

    title: StrictStr = key("What the report calls it")
    path: StrictStr | None = key("Folder or file of texts, below the project; corpus= replaces it")
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = key(
        "SHA-256 of the texts at `path`, by which shipped runs know theirs; null: computed"
    )
    streams: list[Stream] | None = key("Data sets of the hub, mixed by tokens in equal shares")
    validation_modulus: Annotated[StrictInt, Field(ge=2)] | None = key(
        "Documents whose text's SHA-256 is 0 modulo this validate, unless files named validation* "
        "do; null: a data set's own split, the last tenth of a text file, 50 for a folder"
    )
    train_tokens: Count | None = key("Stop the training split here, tokens; null: all of it")
    validation_tokens: Count | None = key("Stop the validation split here, tokens; null: all of it")
    tokenizer_characters: Count | None = key("Train BPE on so many characters; null: on all")
    document_characters: Count | None = key("Shuffle pieces of so many; null: whole documents")


class Scale(Options):
    """A size of the matrix. Any option may be set for it."""

    variants: list[Variant] = key("What is trained at it")
    overrides: dict[Variant, Options] = key("What single variants change of the scale")
    expected_tokens_per_second: Positive = key("For `plan` before anything was measured, tokens/s")


class Variation(Options):
    """A named change of options, and whom it is for."""

    title: StrictStr = key("What the report calls it; left out: its name")
    scales: list[ScaleName] = key("For these scales alone")
    variants: list[Variant] = key("These variants, in place of each scale's")
    seeds: list[Seed] = key("These seeds, in place of the campaign's and its further ones")
    overrides: dict[Variant, Options] = key("What single variants change of the variation")


class Column(Section):
    """A setting: a column of the report."""

    variation: Name = need("Which variation")
    scales: list[ScaleName] | None = key("At which scales; null: all")
    title: StrictStr = key("Its heading; left out: the variation's title")


class Length(Section):
    """Texts longer than a model was trained on, beyond the paper."""

    scales: list[ScaleName] | None = key("Scales whose checkpoints are measured; null: all")
    variants: list[Variant] = need("Variants whose checkpoints are measured")
    windows: Count = need("How many windows of validation text are read, and how many long ones")
    contexts: Count = need("Training contexts of a long window, halved until a document is so long")

    def hash(self, run: Any) -> str:
        """The hash of the measurement of one run's checkpoint."""
        return hash_of({"run": run.hash, "windows": self.windows, "contexts": self.contexts})


class Batches(Section):
    """A benchmark whose batch is fixed by scale."""

    context: Count = key("T; left out: the scale's own")
    batches: dict[ScaleName, Counts] = need("[micro, accumulation] by scale")
    peers: list[MhaBackend] = key("Further backends of MHA beside the pair")
    variants: list[Variant] = key("Further variants beside the pair, each by its own backends")


class Sweep(Section):
    """A benchmark over contexts at one scale."""

    scale: ScaleName = need("Whose geometry")
    contexts: Annotated[list[Count], Field(min_length=2)] = need("Contexts T, each a side")
    rows: list[Count] = key("Rows of a decoded batch, each at every context")


class Systems(Section):
    """The systems benchmarks (Appendix F)."""

    warmup_updates: Annotated[StrictInt, Field(ge=0)] = need("Updates before the first timed one")
    rounds: Count = need("How often each side of a comparison is measured, in turn")
    measured_updates: Count = need("Complete updates timed in a round")
    baseline: Backends = need("Backend of MHA in the comparisons")
    flash: FullBackend = need("The backend measured as FlashRelation")
    fixed: Batches | None = key("FlashRelation beside the reference at one context")
    matched: Batches | None = key("MHA and Full Relation at the scale's own context")
    linear_steady: Batches | None = key("Linear Relation at one context")
    linear_long: Sweep | None = key("Linear Relation at ever longer contexts")
    complexity: Sweep | None = key("Time and memory of one layer's operator against T")
    decode: Sweep | None = key("A token of whole models after ever more tokens")


class RecallSection(Section):
    """Multi-query associative recall (Arora et al. 2023), two layers of each mixer."""

    mixers: list[Mixer] = need("What recalls")
    widths: Annotated[list[Count], Field(min_length=1)] = need("Widths d of the models")
    heads: Count = need("Heads of every model; two are the fewest that Givens mixing pairs")
    vocabulary: Annotated[StrictInt, Field(ge=4, le=65536, multiple_of=2)] = need(
        "V: 0 fills, keys are 1 to V/2 - 1, values V/2 to V - 1"
    )
    tasks: Annotated[list[Counts], Field(min_length=1)] = need("[length, pairs] of each task")
    gap_power: Positive = need("Slots of queries are drawn with weights s^(power - 1); 1: uniform")
    learning_rates: Annotated[list[Positive], Field(min_length=1)] = need("Tried on the first seed")
    seeds: Annotated[list[Seed], Field(min_length=1)] = need("Seeds of weights and sequences")
    updates: Count = need("Updates of a training")
    warmup_updates: Count = need("Updates over which the rate rises from zero")
    sequences: Count = need("Sequences of each task in an update")
    tested: Count = need("Sequences of each task that a rate is chosen on, and that results count")
    adam_eps: Positive = need("Epsilon of AdamW: a key is seen seldom, so a large one outweighs it")


class CampaignSection(Options):
    """A campaign, `config/<campaign>.yaml`. Any option may be set for all its runs."""

    base: Name = key("Another campaign that this one starts from; mappings merge, null drops")
    title: StrictStr = key("Its name in words")
    description: StrictStr = key("What it trains, in a sentence")
    notice: StrictStr = key("What its values may be compared with; may be empty")
    seeds: Annotated[list[Seed], Field(min_length=1)] = key("Seeds of every run of the matrix")
    further_seeds: dict[ScaleName, list[Seed]] | None = key(
        "By scale, seeds of further pairs, not diagnosed; null: none"
    )
    corpora: dict[Name, Corpus | None] = key("Texts, by name")
    scales: dict[Name, Scale | None] = key("Sizes of the matrix, by name")
    overrides: dict[Variant, Options] = key("What single variants change at every scale")
    cross: list[dict[Name, Variation]] = key("One of each mapping, joined: variations a-b")
    variations: dict[Name, Variation] = key("Named changes of options; left out: one, `base`")
    columns: list[Column] = key("The settings that the report shows side by side, at most four")
    diagnosed: list[Variant] = key("Variants whose checkpoints are diagnosed")
    length: Length | None = key("Texts longer than trained; null: not measured")
    efficiency_window: Annotated[Positive, Field(le=1)] = key("Trailing window, share of budget")
    systems: Systems | None = key("The systems benchmarks; null: none")
    recall: RecallSection | None = key("Associative recall; null: none")
    check: StrictBool = key("Whether operators and gradients are checked against FP64")


class Choice(Section):
    """config.yaml, and what `--config KEY=VALUE` of Snakemake replaces of it."""

    campaign: Name = need("Which campaign of config/ to run")
    scales: Restriction = key("null: all; or one, or several separated by commas")
    variations: Restriction = key("The same of variations")
    variants: Restriction = key("The same of variants")
    seeds: Restriction = key("The same of seeds")
    corpus: StrictStr | None = key("File, folder or OWNER/NAME@REVISION of the hub, read instead")
    published: Switch = key("Whether runs in results/published count as done")
    vary: StrictStr | None = key('A one-off, "learning_rate=2e-2": the first chosen variation so')
    runs_per_gpu: Literal[1, 2, 3, 4, 5, 6] | None = key("Runs that share a GPU; null: one")


class _Loader(yaml.SafeLoader):
    """YAML whose keys are unique and whose 1e-5 is a number, as everywhere but in YAML 1.1."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            if (name := str(key_node.value)) in seen:  # one that is no scalar is refused below
                problem = f"the key {name!r} stands there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parsed(text: str) -> Any:
    """A value as YAML has it. Raises InputError for text that is no value."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError:
        raise InputError(f"{text!r} is no value of YAML; give a number, a word or a list") from None


def read(path: Path) -> dict:
    """A YAML or JSON file as a mapping. Raises InputError where it is missing or neither."""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.load(text, _Loader)
    except FileNotFoundError:
        hint = "choices take no --config" if "=" in str(path) else "run in the project's folder"
        raise InputError(f"no configuration file {path}; {hint}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise InputError(f"{path}{line} is not YAML: {getattr(error, 'problem', error)}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as YAML or JSON in UTF-8 ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no mapping; see config.yaml of the project")
    return content


# A campaign with variations of its own takes none of its base's, nor what speaks of them. These and
# batches replace the base's instead of being merged into them.
_OF_VARIATIONS = ("cross", "variations", "columns", "further_seeds")
_REPLACED = (*_OF_VARIATIONS, "batches")


def _merge(base: Mapping, changes: Mapping) -> dict:
    dropped = _OF_VARIATIONS if {"cross", "variations"} & set(changes) else ()
    merged = {name: value for name, value in base.items() if name not in dropped}
    for name, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merge(merged[name], value) if both and name not in _REPLACED else value
    return merged


def campaign_values(name: str, folder: Path) -> dict:
    """A campaign's values with those of its bases merged in.

    folder: where the campaigns' files lie. Raises InputError for an unknown campaign or key,
    naming the file.
    """
    names, values = [name], []
    while names[-1] is not None:
        path = folder / f"{names[-1]}.yaml"
        base_of = f" (base of {names[-2]})" if len(names) > 1 else ""
        campaigns = sorted(file.stem for file in folder.glob("*.yaml"))
        if not campaigns:
            raise InputError(f"{folder} has no campaigns; run in the project's folder")
        check_among(names[-1], campaigns, f"unknown campaign {names[-1]!r}{base_of}")
        content = read(path)
        validated(CampaignSection, content, f"config/{path.name}", whole=False)
        values.append(content)
        base = content.get("base")
        if base in names:
            raise InputError(f"{path.name}: base {base!r} leads back to itself; remove one")
        names.append(base)
    merged = reduce(_merge, reversed(values), {})
    merged.pop("base", None)
    for section in ("scales", "corpora"):
        merged[section] = {k: v for k, v in merged.get(section, {}).items() if v is not None}
    # What a base says of a scale that is dropped is void; what the campaign's own file says is not.
    validated(CampaignSection, values[0], f"config/{name}.yaml", merged["scales"], whole=False)
    return merged


def validated(
    section: type[Section],
    values: Mapping,
    where: str,
    scales: Collection[str] | None = None,
    whole: bool = True,
) -> Any:
    """Values as their type. Raises InputError with the place and reason of one violation.

    An unknown name comes before anything else. scales: those that the values may name, None for
    any. whole: whether a missing key is refused; else a base can give it, and the result is None.
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
    if error["type"] == "missing":
        reason = f"the key {error['loc'][-1]!r} is missing; give it"
    raise InputError(f"{where}: {'.'.join(place) or 'top level'}: {reason}")


def reference() -> str:
    """The reference of the keys in Markdown: a table for each section, by its types."""
    lines = ["# Keys of the configuration"]
    sections = (Choice, CampaignSection, *Section.__subclasses__(), Scale, Variation)
    for section in dict.fromkeys(sections):
        name, fields = section.__name__.removesuffix("Section"), section.model_fields
        lines += ["", f"## {name}", "", section.__doc__.strip(), ""]
        lines += ["| key | meaning |", "| --- | --- |"]
        names = (n for n in section.__annotations__ if n in fields)
        lines += [f"| `{n}` | {fields[n].description} |" for n in names]
    return "\n".join(lines)
