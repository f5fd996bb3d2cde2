"""The sections of config.yaml that specifications take whole, and how a section is written.

A specification inherits them, so a new key of `training` is a field here and nowhere else.
"""

# ruff: noqa: RUF009 (`key` makes a field, not a default)

from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, Field, StrictBool, StrictInt
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict


def key(description: str, layers: str = "", default: object = MISSING, **bounds: Any) -> Any:
    """A field of a section: what it means, and bounds as `pydantic.Field` takes them.

    layers: for an assumption on the model, the letters of the layers that rest on it, as
    `relation.variants.MIXERS` has them; "*" for every model.
    """
    about = {"description": description, "layers": layers, **bounds}
    if default == {}:
        return field(default_factory=dict, metadata=about)
    return field(default=default, metadata=about)


def says(description: str) -> Any:
    """What a value means, where a type is annotated with it."""
    return Field(description=description)


def changes_of(section: type) -> type:
    """The keys of a section, each of which may be left out."""
    hints = get_type_hints(section, include_extras=True)
    for each in fields(section) if is_dataclass(section) else ():
        bounds = {name: value for name, value in each.metadata.items() if name != "layers"}
        hints[each.name] = Annotated[hints[each.name], Field(**bounds)]
    changes = TypedDict(f"{section.__name__}Changes", hints, total=False)
    changes.__doc__ = section.__doc__
    return changes


def _unique(values: list) -> list:
    for value in values:
        if values.count(value) > 1:
            raise PydanticCustomError(
                "unique", "{value} stands there twice", {"value": repr(value)}
            )
    return values


UNIQUE = (AfterValidator(_unique), Field(json_schema_extra={"uniqueItems": True}))
Count = Annotated[StrictInt, Field(ge=1)]
Positive = Annotated[float, Field(strict=True, gt=0)]
Range = Annotated[list[Positive], Field(min_length=2, max_length=2)]
# As relation.ops.BACKENDS lists them; here, so that a wrong name is told before a job starts.
MhaBackend = Literal["reference", "flash", "cudnn"]
FullBackend = Literal["reference", "materialised", "tiled", "flex", "flash"]
LinearBackend = Literal["recurrent", "expanded", "chunked", "flash"]

RecallMixer = Literal["mha", "full", "linear", "hybrid", "gla", "kda"]


# What cannot keep documents apart.
WITHOUT_DOCUMENTS = (("mha", "cudnn"),)
# What a CPU cannot run; of these Triton's interpreter runs those named flash.
GPU_ALONE = (("mha", "cudnn"), ("full", "flex"), ("full", "flash"), ("linear", "flash"))


class Backends(TypedDict):
    """Backend by operator; `python -m relation backends` lists them."""

    mha: MhaBackend
    full: FullBackend
    linear: LinearBackend


BackendsChanges = changes_of(Backends)


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """What the paper leaves open about the optimiser and its schedule; every run takes it whole."""

    adam_eps: Positive = key("Epsilon of AdamW")
    decay_embedding: StrictBool = key("Whether weight decay reaches the tied embedding")
    decay_vectors: StrictBool = key(
        "Whether weight decay reaches norms, lambda, angles, A_log and dt_bias"
    )
    plateau_fraction: Positive = key(
        "WSD80, the fraction of the tokens after which the rate falls linearly to zero", lt=1.0
    )
    last_update: Literal["partial", "drop"] = key(
        "The update in which the budget ends. Partial trains on the remaining windows, the last "
        "one truncated, and averages the gradient over their tokens; drop leaves them out"
    )


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the paper fixes for every run (Appendix B.2), and how a run is saved."""

    betas: Range = key("Betas of AdamW")
    weight_decay: float = key("Weight decay of AdamW", strict=True, ge=0)
    gradient_clip: Positive = key("Bound of the gradient's global L2 norm")
    checkpoint_seconds: Positive = key("Wall time after which a resume state is saved, seconds")
    checkpoint_tokens: Count | None = key(
        "Tokens after which one is saved, if that comes first; null saves by time alone"
    )
    deterministic: StrictBool = key(
        "Whether a GPU runs only algorithms that give the same bits every time; it changes how a "
        "run is executed, not what it computes"
    )
    shard: StrictBool = key(
        "Whether the processes that share a run divide its parameters, gradients and moments among "
        "them (FSDP) in place of a copy each: for a model that outgrows a GPU"
    )


@dataclass(frozen=True, kw_only=True)
class MicroBatches:
    """How an update is split."""

    micro: Count = key("Sequences in a micro-batch")
    accumulation: Count = key("Micro-batches in an update")


@dataclass(frozen=True, kw_only=True)
class Schedule(MicroBatches):
    """How long a run trains, and at what rate; every run takes it whole."""

    context: Count = key("T, tokens predicted by one window")
    budget_tokens: Count = key("Predicted tokens of a whole run")
    warmup_tokens: Count = key("Predicted tokens over which the rate rises from zero")
    learning_rate: Positive = key("The rate after the warm-up")


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How often a side of a benchmark is asked; every benchmark takes it whole."""

    warmup_updates: StrictInt = key(
        "Updates before the first that is timed; at least two are done", ge=0
    )
    rounds: Count = key("How often each side of a comparison is asked")
    measured_updates: Count = key("Complete updates timed in a round")


@dataclass(frozen=True, kw_only=True)
class ExecutionSection:
    """Where and how a run computes; every run takes it whole."""

    device: Literal["cpu", "cuda"]
    precision: Literal["fp32", "bf16"] = key(
        "FP32 master weights always; bf16 runs the model under BF16 autocast"
    )
    compile: StrictBool = key("Whether torch.compile builds the training step")
    backends: Backends


@dataclass(frozen=True, kw_only=True)
class RecallTraining:
    """Multi-query associative recall (Arora et al. 2023), and how a model is trained on it."""

    vocabulary: Annotated[StrictInt, Field(ge=4, le=65536, multiple_of=2)] = key(
        "V: 0 fills, keys are 1 to V/2 - 1, values V/2 to V - 1"
    )
    tasks: Annotated[
        list[Annotated[list[Count], Field(min_length=2, max_length=2)]], Field(min_length=1)
    ] = key(
        "[length, pairs]: tokens T of a sequence, even, and pairs of a key and its value, each "
        "asked for once, so that T is at least four times as many; a model trains on all tasks, "
        "as many sequences of each"
    )
    gap_power: Positive = key(
        "The queries' slots are drawn with weights s^(power - 1), s from 1 behind the pairs; 1 "
        "makes them uniform"
    )
    learning_rates: Annotated[list[Positive], Field(min_length=1), *UNIQUE] = key(
        "Rates that are tried on the first seed"
    )
    seeds: Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(min_length=1), *UNIQUE] = key(
        "Seeds of weights and sequences; those after the first train at the chosen rate alone"
    )
    updates: Count = key("Updates of a training")
    warmup_updates: Count = key("Updates over which the rate rises from zero")
    sequences: Count = key("Sequences of each task in an update")
    tested: Count = key("Sequences of each task that a rate is chosen on, and that results count")
