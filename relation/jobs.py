"""The jobs of a campaign as specifications: plain values without PyTorch.

A specification's hash covers only what determines its result. It never covers paths. The hash of a
benchmark, recall or check covers device and backends; the hash of a run does not. Options at their
default are not hashed, so a new option does not change the hashes of older runs.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from relation.variants import ModelConfig

# Fields that are not hashed with a corpus or a run: names, places, execution, probes, diagnostics.
# `Run` adds model and data itself. Every other field is hashed if it differs from its default.
_DATA_NOT_HASHED = ("campaign", "corpus", "title", "path", "source", "largest_context")
_DATA_NOT_HASHED += ("diagnosed_tokens",)
_RUN_NOT_HASHED = ("campaign", "variation", "scale", "variant", "further", "model", "data")
_RUN_NOT_HASHED += ("device", "compile", "backends", "deterministic", "tokens_per_update")
_RUN_NOT_HASHED += ("divergence", "checkpoint_seconds")
PROBE_OPTIONS = ("probes", "validations", "validation_tokens")
FLOW_OPTIONS = ("flow_sequences", "flow_window", "flow_length", "rank_length")
UNTRAINED = ("complexity", "decode")  # the benchmarks that train nothing, and so read no text


def hash_of(value: Any) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def non_defaults(values: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass that differ from their default, as JSON values."""
    changed = {}
    for field in fields(values):
        value = getattr(values, field.name)
        if field.name not in without and value != field.default:
            changed[field.name] = _plain(value)
    return changed


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return non_defaults(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, kw_only=True)
class Data:
    """One corpus of a campaign at one vocabulary.

    path: file or folder of texts, None for data sets of the hub; source: these data sets;
    fingerprint: SHA-256 of the texts at `path`; largest_context: the longest context T trained on
    it; diagnosed_tokens: tokens of the validation split that the diagnostics read.
    """

    campaign: str
    corpus: str
    title: str
    path: str | None
    source: dict | None
    fingerprint: str | None
    vocabulary: int
    largest_context: int
    diagnosed_tokens: int = 0
    train_tokens: int | None = None
    validation_tokens: int | None = None
    tokenizer_characters: int | None = None
    validation_modulus: int | None = None
    document_characters: int | None = None

    @property
    def name(self) -> str:
        """Its folder below results/<campaign>/data."""
        return f"{self.corpus}-{self.vocabulary}"

    def specification(self) -> dict:
        """The values that determine its tokens."""
        texts = {"source": self.source} if self.fingerprint is None else {}
        return texts | non_defaults(self, _DATA_NOT_HASHED)

    @property
    def hash(self) -> str:
        return hash_of(self.specification())


@dataclass(frozen=True, kw_only=True)
class Job:
    """The fields that runs, benchmarks, recall and checks share: address and execution."""

    campaign: str
    variation: str
    precision: str
    compile: bool
    device: str

    def specification(self) -> dict:
        """The values that determine its result: all fields but campaign and variation."""
        return non_defaults(self, ("campaign", "variation"))

    @property
    def hash(self) -> str:
        return hash_of(self.specification())


@dataclass(frozen=True, kw_only=True)
class Run(Job):
    """One training run, with the options of `relation.config.Options` resolved.

    init_key: varies the initial weights of a seed; None for MHA and for pairs that share weights;
    further: belongs to a pair beyond the matrix, which is trained but not diagnosed.
    """

    scale: str
    variant: str
    seed: int
    model: ModelConfig
    data: Data
    context: int
    micro: int
    accumulation: int
    tokens_per_update: int
    budget_tokens: int
    warmup_tokens: int
    learning_rate: float
    betas: tuple[float, float]
    weight_decay: float
    gradient_clip: float
    adam_eps: float
    decay_embedding: bool = True
    decay_vectors: bool = False
    plateau_fraction: float
    document_mask: str | None = None
    init_key: str | None = None
    backends: dict
    deterministic: bool
    checkpoint_seconds: float
    divergence: str = "fail"
    probes: int
    validations: int
    validation_tokens: int
    flow_sequences: int
    flow_window: int
    flow_length: int
    rank_length: int
    further: bool = False

    @property
    def name(self) -> str:
        """Its address and its folder: scale/variation/variant/seed."""
        return f"{self.scale}/{self.variation}/{self.variant}/{self.seed}"

    def specification(self) -> dict:
        """The values that determine the trained weights and the final loss."""
        options = non_defaults(self, (*_RUN_NOT_HASHED, *PROBE_OPTIONS, *FLOW_OPTIONS))
        return {**options, "model": non_defaults(self.model), "data": self.data.specification()}

    @property
    def flow_hash(self) -> str:
        """The hash of the diagnostics of its checkpoint."""
        return hash_of({"run": self.hash, **{name: getattr(self, name) for name in FLOW_OPTIONS}})


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a benchmark's comparison. position: its place in the paper's order."""

    side: str
    variant: str
    backends: dict
    model: ModelConfig
    context: int
    micro: int
    accumulation: int
    position: int = 0


@dataclass(frozen=True, kw_only=True)
class Bench(Job):
    """One systems benchmark at one scale, with the options of one variation.

    benchmark: fixed, matched, linear-steady, linear-long, complexity or decode. Every side is
    measured in `rounds` rounds. In training benchmarks a round times `measured_updates` updates.
    """

    benchmark: str
    scale: str
    sides: tuple[Side, ...]
    optimizer: dict
    rounds: int
    warmup_updates: int
    measured_updates: int

    @property
    def kind(self) -> str:
        """The kind of its records."""
        return self.benchmark if self.benchmark in UNTRAINED else "steps"


@dataclass(frozen=True, kw_only=True)
class Recall(Job):
    """Associative recall of one mixer; models: one per width; tasks: (length, pairs) of each."""

    mixer: str
    models: tuple[ModelConfig, ...]
    optimizer: dict
    plateau_fraction: float
    vocabulary: int
    tasks: Sequence[Sequence[int]]
    gap_power: float
    learning_rates: Sequence[float]
    seeds: Sequence[int]
    updates: int
    warmup_updates: int
    sequences: int
    tested: int
    backends: dict


@dataclass(frozen=True, kw_only=True)
class Check(Job):
    """The checks against FP64: operators at every scale's shape, and gradients of every variant.

    shapes: scale, heads, length T and head width, each checked with `draws` random inputs;
    gradients: one side per variant, at its scale of `gradient_scales`, with `gradient_draws` draws.
    """

    backend: str
    linear: str
    shapes: tuple[dict, ...]
    draws: int
    gradients: tuple[Side, ...]
    gradient_scales: tuple[str, ...]
    gradient_draws: int
