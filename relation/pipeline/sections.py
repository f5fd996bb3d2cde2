"""The sections of config.yaml: every key with its type, its bounds and what it means.

The JSON Schema, the documentation of the keys (`python -m relation keys`) and the words on the
assumptions in the report follow from these types. Those that specifications take whole are in
`relation.sections`.
"""

# ruff: noqa: RUF009 (`key` makes a field, not a default)

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict, Field, StrictBool, StrictInt, StrictStr
from typing_extensions import TypedDict

from relation.pipeline.systems import Systems
from relation.sections import (
    UNIQUE,
    BackendsChanges,
    Count,
    ExecutionSection,
    MicroBatches,
    Optimisation,
    Positive,
    Range,
    RecallMixer,
    RecallTraining,
    Schedule,
    Training,
    changes_of,
    key,
    says,
)
from relation.variants import ABLATIONS, VARIANTS

Words = Annotated[StrictStr, Field(min_length=1)]
Name = Annotated[str, Field(pattern="^[a-z][a-z0-9-]*$")]
ScaleName = Annotated[str, Field(pattern="^[0-9A-Za-z]+$")]
ChoiceName = Annotated[str, Field(pattern="^[a-z][a-z0-9.-]*$")]
AtLeastTwo = Annotated[StrictInt, Field(ge=2)]
Seed = Annotated[StrictInt, Field(ge=0)]
Seeds = Annotated[list[Seed], *UNIQUE]
Deviation = Positive | Literal["1/sqrt(d)", "sqrt(2/(5d))"]
Variant = Literal[*VARIANTS]
Switch = Literal[True, False, "true", "false"]  # Snakemake gives a lower-case true as text
Restriction = Annotated[
    StrictStr | StrictInt | list[StrictStr | StrictInt] | None,
    says("null for all, one value, a list, or values separated by commas"),
]


@dataclass(frozen=True, kw_only=True)
class ModelAssumptions:
    """What the paper leaves open about the model."""

    givens_first_pairing: Literal["A", "B"] = key(
        "Which Givens pairing layer 0 uses; the next layers alternate by absolute index", "FL"
    )
    retention_input: Literal["normalised", "residual"] = key(
        "What x-bar is in the retention path, the normalised mixer input or the residual", "L"
    )
    retention_projection: Literal["per-head"] = key(
        "Shape of the retention path. Two matrices a head (d to d_h to d_h) with A_log a channel "
        "give the paper's count of the Hybrid's parameters; KDA's published code, which the paper"
        " follows, shares one pair (d to d_h to d) and has A_log a head, and a shared pair d to "
        "9d/16 to d would have the same count as here"
    )
    retention_a_range: Range = key(
        "Range of the uniform initial value of A, whose logarithm is A_log", "L"
    )
    retention_dt_range: Range = key(
        "Range of the log-uniform initial dt; dt_bias is its inverse softplus", "L"
    )
    init_std: Deviation = key(
        "Standard deviation of the normal initial weights; a number, or a rule of the width d", "*"
    )
    linear_init: Literal["normal", "torch"] = key(
        "Initial projections, normal as init_std says, or as PyTorch's nn.Linear has them, "
        "uniform within 1/sqrt(fan_in)",
        "*",
    )
    embedding_std: Deviation | None = key(
        "Standard deviation of the initial embedding; null takes init_std", "*"
    )
    embedding_multiplier: Positive | Literal["sqrt(d)"] | None = key(
        "What the embedding is multiplied by before the first block; null multiplies nothing", "*"
    )
    scale_residual_init: StrictBool = key(
        "Whether W_O and the FFN's down projection start divided by sqrt(2L)", "*"
    )
    paired_weights: Literal["shared", "separate"] = key(
        "Whether MHA and Relation of one seed start from the same weights where they share them"
    )
    norm_eps: Positive = key("Epsilon of RMSNorm", "*")


@dataclass(frozen=True, kw_only=True)
class Assumptions(Optimisation, ModelAssumptions):
    """The reading chosen where the paper is silent."""

    document_mask: Literal["none", "documents"] = key(
        "What a token sees of its window: none masks nothing before it; documents, the tokens of "
        "its own document alone, which the end-of-text before it begins, and where positions and "
        "counts begin again. The sink is then that of a document's first token. Benchmarks, on "
        "windows of any tokens, mask nothing"
    )
    validation: Literal["full-split"] = key("What final validation NLL averages over")
    diagnostic_windows: Literal["first"] = key(
        "Which windows of the validation split the diagnostics read; a window is as long as the "
        "longest context of the corpus's scales, so that all checkpoints read the same ones"
    )


AssumptionsChanges = changes_of(Assumptions)


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """Sampling of the structural diagnostics (Appendix B.4), and looks at a run meanwhile."""

    sequences: Count = key("How many sequences a checkpoint is diagnosed on")
    flow_length: Count = key("Tokens of a sequence whose flow is measured")
    rank_length: Count = key("Tokens of a sequence whose spectra are measured")
    probes: Count = key(
        "Into how many equal parts of the budget a run's model is looked at, at the end of each "
        "and before the first; no part of what is trained"
    )
    probe_sequences: Count = key("How many of the sequences those looks read")
    validations: Count = key(
        "Into how many equal parts of the budget a run's validation NLL is taken, at the end of "
        "each and before the first"
    )
    validation_tokens: Count = key(
        "How many tokens of the validation split, from its first, those predict"
    )


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What trained models are asked beyond the paper: copying, long texts, the use of Self."""

    scales: list[StrictStr] | None = key("Scales whose checkpoints are examined; null for all")
    variants: Annotated[list[Variant], *UNIQUE] = key(
        "Variants whose checkpoints are examined, where they are trained"
    )
    sequences: Count = key(
        "How many windows, as long as the training context, are filled with random tokens that "
        "stand twice, at each distance"
    )
    windows: Count = key("How many windows of validation text are read, and how many long ones")
    contexts: Count = key(
        "How many training contexts a long window has, halved until a document is so long"
    )


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Matched-train-loss token efficiency (Appendix B.4)."""

    window: Positive = key("Trailing smoothing window as a fraction of the budget", le=1.0)


@dataclass(frozen=True, kw_only=True)
class ChoiceSection:
    """What the paper leaves open, as a change of assumptions."""

    title: Words
    group: Words = key("What it is a choice of")
    paper: Words = key("The line of the paper that allows it")
    adds: list[StrictStr] = key("What it assumes that the paper does not print, a statement each")
    beside: StrictBool = key(
        "Whether it changes what the paper does print (its text, its learning rate): no reading, "
        "and never chosen",
        default=False,
    )
    assumptions: AssumptionsChanges = key("What it changes", default={})
    learning_rate_factor: Positive = key(
        "What the scale's learning rate is multiplied by", default=1.0
    )
    corpus: StrictStr | None = key("Another corpus of the campaign", default=None)
    backends: BackendsChanges = key("Backends that its runs need", default={})


@dataclass(frozen=True, kw_only=True)
class ReadingsSection:
    """The readings of the paper that are tried, each with pairs of MHA and Full Relation."""

    scale: StrictStr = key("The scale whose pairs are trained")
    base: AssumptionsChanges = key(
        "The assumptions that every reading starts from, whatever the campaign's own; a choice "
        "changes them"
    )
    choices: Annotated[list[StrictStr], *UNIQUE] = key(
        "Names of choices, each tried under every residual scale; the first is the base",
        min_length=1,
    )
    seeds: Seeds = key("Seeds of every reading, none of them the matrix's", min_length=1)
    further_seeds: Seeds = key("Seeds of the readings that `further` names")
    further: Annotated[list[StrictStr], *UNIQUE] = key(
        "Readings that have the further seeds too, chosen by the rule of docs/readings.md"
    )
    ablations: Annotated[list[Literal[*ABLATIONS,]], *UNIQUE] = key(
        "Ablations that are trained under every residual scale, with the first choice"
    )


class Files(TypedDict):
    """Local .txt, .jsonl and .parquet files, at the corpus's `path` or corpus=PATH."""

    kind: Literal["files"]
    validation_modulus: Annotated[
        AtLeastTwo,
        says("Where no file is named validation*, documents whose text hash is 0 modulo this"),
    ]
    document_characters: NotRequired[
        Annotated[
            Count,
            says(
                "Cut every document, after the split, into pieces of at most so many characters, "
                "at the ends of sentences where it can, and shuffle a split's pieces in a fixed "
                "order; memory holds all of them. Without it documents stay whole and in order"
            ),
        ]
    ]


class StreamSection(TypedDict):
    """A data set of the hub, or a local folder."""

    path: Annotated[StrictStr, says("Name on the hub, or a local folder")]
    name: NotRequired[Annotated[StrictStr | None, says("Configuration of the data set")]]
    revision: NotRequired[Annotated[StrictStr | None, says("Commit, so that it cannot move")]]
    column: NotRequired[Annotated[StrictStr, says("Column that holds the text")]]


class HuggingFace(TypedDict):
    """Data sets of the Hugging Face hub, or local folders of the same schema."""

    kind: Literal["huggingface"]
    streams: Annotated[
        list[StreamSection], says("Data sets mixed by tokens in equal shares"), Field(min_length=1)
    ]
    validation_modulus: Annotated[
        AtLeastTwo | None,
        says("null where the data set has a validation split of its own"),
    ]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Texts, and how much of them is read."""

    title: Words
    source: Files | HuggingFace = key("Where its documents come from", discriminator="kind")
    path: Words | None = key(
        "Texts that a `files` source reads unless corpus=PATH names others, below the project's "
        "folder",
        default=None,
    )
    train_tokens: AtLeastTwo | None = key(
        "Stop the training split here, tokens; null takes all of it", default=None
    )
    validation_tokens: AtLeastTwo | None = key(
        "Stop the validation split here, tokens", default=None
    )
    tokenizer_characters: Count | None = key(
        "Train BPE on this much of the training split, characters; null takes all of it",
        default=None,
    )


@dataclass(frozen=True, kw_only=True)
class ShapeSection(MicroBatches):
    """What single variants may change of their scale."""

    layers: Count
    d_model: Count
    heads: Count
    d_ff: Count


@dataclass(frozen=True, kw_only=True)
class Scale(ShapeSection, Schedule):
    """A size of the matrix: its texts, models and runs."""

    corpus: StrictStr
    vocabulary: StrictInt = key("Entries of the tokenizer", ge=257, le=65536)
    variants: Annotated[list[Variant], *UNIQUE] = key("What is trained at it", min_length=1)
    overrides: dict[Variant, changes_of(ShapeSection)] = key(
        "What single variants change of the scale", default={}
    )
    expected_tokens_per_second: Positive = key(
        "For estimates before anything was measured, tokens a second"
    )

    @property
    def data(self) -> str:
        """The name of the prepared corpus that it reads."""
        return f"{self.corpus}-{self.vocabulary}"

    def of(self, variant: str) -> "Scale":
        """The scale with what a variant changes of it."""
        return replace(self, **self.overrides.get(variant, {}))


@dataclass(frozen=True, kw_only=True)
class ConversionSection:
    """Full Relation that goes on from the campaign's MHA runs, and MHA trained on beside it."""

    scales: Annotated[list[ScaleName], *UNIQUE] = key("Where the MHA runs are gone on from")
    share: Positive = key("Tokens that such a run trains, as a share of the budget", le=1.0)
    rate: Positive = key("Its learning rate, as a share of the scale's")


@dataclass(frozen=True, kw_only=True)
class RecallSection(RecallTraining):
    """Associative recall, beyond the paper: two layers of each mixer, at each width."""

    mixers: Annotated[list[RecallMixer], *UNIQUE] = key(
        "What recalls: hybrid is a Linear layer below a Full one; gla and kda are "
        "flash-linear-attention's, where its layers are installed"
    )
    widths: Annotated[list[Count], *UNIQUE] = key("Widths d of the models", min_length=1)
    heads: Count = key("Heads of every model; two are the fewest that Givens mixing pairs")
    adam_eps: Positive = key(
        "Epsilon of AdamW: a key is seen so seldom that the campaign's own may outweigh its "
        "gradient"
    )
    expected_tokens_per_second: Positive = key("For estimates, tokens a second, fillers included")


@dataclass(frozen=True, kw_only=True)
class CampaignSection(ExecutionSection):
    """A campaign, with its bases merged in."""

    base: StrictStr | None = key("Another campaign whose values this one starts from", default=None)
    title: Words
    description: StrictStr
    notice: StrictStr = key(
        "What its values may be compared with, in words for the reader; may be empty"
    )
    assumptions: AssumptionsChanges = key(
        "Assumptions that this campaign reads differently", default={}
    )
    diagnostics: changes_of(Diagnostics) = key(
        "Where this campaign is sampled or looked at differently", default={}
    )
    examination: changes_of(Examination) = key(
        "Where this campaign's checkpoints are examined differently", default={}
    )
    efficiency: changes_of(Efficiency) = key(
        "Where this campaign reads token efficiency differently", default={}
    )
    backend_overrides: dict[Variant, BackendsChanges] = key(
        "Backends of single variants", default={}
    )
    seeds: Seeds = key("Seeds of the matrix", min_length=1)
    further_seeds: dict[str, Seeds] = key(
        "By scale, seeds of pairs of MHA and Full Relation beyond the paper's matrix. They are "
        "trained, not diagnosed, and compared apart from it; `seeds` leaves them out like others,"
        " and an empty list drops those of a base",
        default={},
    )
    matrix: StrictBool = key(
        "Whether the paper's matrix and benchmarks are run; false runs the readings alone",
        default=True,
    )
    readings: ReadingsSection | None = key(
        "The readings of the paper that are tried: changes of its assumptions, each with pairs of"
        " MHA and Full Relation",
        default=None,
    )
    readings_from: StrictStr | None = key(
        "Another campaign, whose readings this one's report shows; null for none", default=None
    )
    conversion: ConversionSection | None = key(
        "Which MHA runs are trained on, converted to Full Relation and as they are; null for none",
        default=None,
    )
    runs_per_gpu: Literal[1, 2, 4, 5] = key(
        "How many runs of readings share a GPU, 1 to 5: their times are no result, and one waits "
        "for the host while another computes",
        default=1,
    )
    import_once: StrictBool = key(
        "Whether jobs are forks of one process that has imported their libraries, where they run "
        "on this machine's CPU. It spares small campaigns much time; a fork cannot use a GPU",
        default=False,
    )
    recall: RecallSection | None = key(
        "Associative recall, beyond the paper; null leaves it out", default=None
    )
    tokens_per_update: Count = key("Predicted tokens of one optimiser update (the paper's 131,072)")
    corpora: dict[Name, Corpus] = key("Texts, by name", min_length=1)
    scales: dict[ScaleName, Scale] = key("Sizes of the matrix, by name", min_length=1)
    systems: Systems


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """config.yaml, after each campaign's `base` has been merged in."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    campaign: StrictStr = key("The campaign to run")
    scales: Restriction = None
    seeds: Restriction = None
    variants: Restriction = None
    readings: Restriction = key(
        "Which readings of a campaign that has some; null for all", default=None
    )
    corpus: StrictStr | None = key(
        "File or folder of texts for campaigns whose source is `files`", default=None
    )
    published: Switch = key(
        "Whether records in results/published count as done; true or false, as text too",
        default=True,
    )
    tensorboard: Switch = key("Whether training runs log to TensorBoard", default=False)
    runs_per_gpu: Literal[1, 2, 4, 5] | None = key(
        "How many runs share a GPU while they train and are diagnosed, of the matrix too: their"
        " tokens per second are then no benchmark. null: as the campaign says of readings, and one"
        " of the matrix",
        default=None,
    )
    assumptions: Assumptions
    training: Training
    diagnostics: Diagnostics
    examination: Examination
    efficiency: Efficiency
    residuals: dict[ChoiceName, ChoiceSection] = key(
        "The scales of the residual matrices under which every choice is tried, by name",
        default={},
    )
    choices: dict[ChoiceName, ChoiceSection] = key(
        "What the paper leaves open, each as a change of assumptions, by name", default={}
    )
    campaigns: dict[Name, CampaignSection] = key("By name", min_length=1)
