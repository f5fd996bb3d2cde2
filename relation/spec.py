"""Specifications: everything one job needs, as plain values.

A specification's `config_hash` covers what determines its result and nothing else: not where the
files lie, not the device, not the backend that executes the same mathematics.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from relation.sections import (
    ExecutionSection,
    Optimisation,
    RecallTraining,
    Rounds,
    Schedule,
    Training,
)
from relation.variants import ModelConfig, model_config


def canonical_hash(value: Any) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Spec:
    """Shared by the specifications: what identifies the result, and what identifies the job."""

    not_identity: tuple[str, ...] = ()
    not_job: tuple[str, ...] = ()

    def _without(self, left_out: tuple[str, ...]) -> dict:
        # An option that is off (None, its default) is in no hash: a new option makes no older
        # record stale.
        options = {field.name for field in fields(self) if field.default is None}
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in left_out and not (value is None and name in options)
        }

    def identity(self) -> dict:
        """The fields that determine the result."""
        return self._without(self.not_identity)

    @property
    def config_hash(self) -> str:
        return canonical_hash(self.identity())

    @property
    def job_hash(self) -> str:
        """What makes a job stale: the identity and the way of execution, such as the backend."""
        return canonical_hash(self._without(self.not_job))


@dataclass(frozen=True)
class DataSpec(Spec):
    """One corpus tokenised at one vocabulary.

    Each split must hold a window of `largest_context` predicted tokens, and validation
    `diagnosed_tokens` besides. What lies at `path` is no part of the identity, so that shipped
    records are recognised where the texts are not; its fingerprint is compared where they are.
    """

    corpus: str
    title: str
    vocabulary: int
    source: dict
    train_tokens: int | None
    validation_tokens: int | None
    tokenizer_characters: int | None
    path: str | None
    largest_context: int
    diagnosed_tokens: int = 0

    not_identity = ("corpus", "title", "path", "largest_context", "diagnosed_tokens")
    not_job = not_identity

    @property
    def name(self) -> str:
        return f"{self.corpus}-{self.vocabulary}"


@dataclass(frozen=True, kw_only=True)
class RunSpec(ExecutionSection, Training, Optimisation, Schedule, Spec):
    """One training run: the sections of the configuration that it takes whole, and what it is.

    decay_vectors: whether norms, scalars and angles decay too; init_key: what initial weights are
    keyed by beside the seed, where a pair does not share them; reading: the reading of the paper
    that it is trained for, empty in the matrix; document_mask: "documents" where a token sees its
    own document alone; start: the configuration hash of the MHA run from whose weights it
    goes on, converted where it trains Full Relation; None where it starts from drawn ones.
    """

    campaign: str
    scale: str
    variant: str
    seed: int
    model: dict
    data: str
    data_hash: str
    tokens_per_update: int
    decay_vectors: bool | None = None
    init_key: str | None = None
    document_mask: str | None = None
    start: str | None = None
    reading: str = ""

    not_job = ("campaign", "data", "checkpoint_seconds", "checkpoint_tokens", "shard", "reading")
    not_identity = (*not_job, "device", "compile", "backends", "deterministic")

    @property
    def name(self) -> str:
        """Its address: scale, or reading, then variant and seed."""
        return f"{self.reading or self.scale}/{self.variant}/{self.seed}"

    def model_config(self) -> ModelConfig:
        """The model as the typed configuration that builds it."""
        return model_config(self.model)


@dataclass(frozen=True)
class DiagnosticsSpec(Spec):
    """The structural diagnostics of one checkpoint, on the first tokens of the first windows.

    `window` is the longest context of the corpus's scales, so that all its checkpoints read the
    same sequences; `document_mask` is the run's.
    """

    run_hash: str
    sequences: int
    window: int
    flow_length: int
    rank_length: int
    device: str
    document_mask: str | None = None

    not_identity = ("device",)


@dataclass(frozen=True)
class ExaminationSpec(Spec):
    """What is asked of one checkpoint beyond the paper (`relation.probes`).

    Random blocks that fill `sequences` windows at each distance; `windows` of text, the long ones
    of `contexts` training contexts. Context, precision and backends are the run's.
    """

    run_hash: str
    sequences: int
    windows: int
    contexts: int
    device: str

    not_identity = ("device",)


@dataclass(frozen=True, kw_only=True)
class SystemsSpec(Rounds, Spec):
    """One systems benchmark at one scale.

    `sides`: each a variant with its backends, model, context, micro and accumulation, and a
    position in the paper's order. A side is asked in `rounds` rounds, each of `measured_updates`
    whole updates; of the complexity, each of one call.
    """

    campaign: str
    benchmark: str
    scale: str
    sides: list[dict]
    optimizer: dict
    precision: str
    compile: bool
    device: str

    not_identity = ("campaign",)
    not_job = ("campaign",)

    @property
    def stage(self) -> str:
        """Whose code it rests on: that of tokens, or that of updates and operators."""
        return "decode" if self.benchmark == "decode" else "systems"


@dataclass(frozen=True)
class VerificationSpec(Spec):
    """The check of one backend of Full Relation, and one of Linear, against their definitions.

    `shapes` has a scale, heads, context T and head width D each; `draws` of random inputs are made
    for a shape. `linear` is no identity: records from before it was checked keep theirs, and the
    claims say of a check that they lack it.
    """

    campaign: str
    backend: str
    shapes: list[dict]
    draws: int
    precision: str
    device: str
    linear: str

    not_identity = ("campaign", "linear")
    not_job = ("campaign",)


# The backends of the truth of the gradients, where that is not the definition.
TRUTH = {"linear": "chunked"}


@dataclass(frozen=True)
class GradientsSpec(Spec):
    """The check of a training step's gradients against FP64.

    `variants` has a variant, the scale of its widths, its model, length T, micro-batch in sequences
    and backends each. An update takes `accumulation` micro-batches; `draws` of random weights and
    tokens are made for a variant.
    """

    campaign: str
    variants: list[dict]
    accumulation: int
    draws: int
    precision: str
    compile: bool
    device: str

    not_identity = ("campaign",)
    not_job = ("campaign",)


@dataclass(frozen=True, kw_only=True)
class RecallSpec(ExecutionSection, RecallTraining, Spec):
    """Multi-query associative recall of one mixer.

    models: one a width, two layers each; a peer of flash-linear-attention's takes the place of
    their mixers. plateau_fraction: of the updates, as of a run's tokens.
    """

    campaign: str
    mixer: str
    models: list[dict]
    optimizer: dict
    plateau_fraction: float

    not_identity = ("campaign", "device", "compile", "backends")
    not_job = ("campaign",)
