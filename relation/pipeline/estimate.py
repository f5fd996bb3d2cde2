"""What one training run of any size takes: parameters, operations, memory, time and cost.

All of it is arithmetic on the model's geometry and on one measured throughput, and says which.
"""

import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from relation.errors import InputError
from relation.pipeline.inventory import count_parameters
from relation.store.layouts import BENCH
from relation.store.parquet import read_parquet
from relation.variants import ModelConfig

MEASURED = Path(__file__).with_name("measured.csv")
MEASURED_ON = "one NVIDIA H200, BF16, whole training steps (kernels/README.md, Measured)"
BENCHED = Path("results", "bench", "flash.parquet")
_GIB = 2**30
_STATE_BYTES = 16  # a parameter, its gradient and two moments, each FP32
_SAVED_BYTES = 12  # a parameter and two moments, as a resume state holds them
_FLAT_BYTES = 4  # the sum of gradients that several processes exchange
_TOKEN_BYTES = 2  # in a token file


@dataclass(frozen=True)
class Geometry:
    """A model with its context (tokens) and micro-batch (sequences a GPU)."""

    scale: str
    variant: str
    layers: int
    d_model: int
    heads: int
    d_ff: int
    vocabulary: int
    context: int
    micro: int

    def model(self) -> ModelConfig:
        """The model. Raises InputError where there is none of that shape."""
        shape = (self.layers, self.d_model, self.heads, self.d_ff, self.vocabulary)
        return ModelConfig.for_variant(self.variant, *shape)

    @property
    def operations_per_token(self) -> float:
        """Floating-point operations that training must do for a token, forward and backward.

        Two a weight that multiplies (the tied embedding once, as the output), and for each layer
        two products over a history of T / 2 tokens on average; the backward pass is twice the
        forward one. What a kernel computes again is not counted.
        """
        weights = self.layers * (4 * self.d_model**2 + 3 * self.d_model * self.d_ff)
        weights += self.vocabulary * self.d_model
        return 3 * (2 * weights + 2 * self.layers * self.d_model * self.context)


# What the paper leaves open, in its own proportions: d_ff = 2 d, eight tokens of context a channel
# at most, 4,096 here as at 100M; d_h = 96 is a width the kernels take.
PLANNED = Geometry("1B", "full", 40, 1536, 16, 3072, 32768, 4096, 4)


@dataclass(frozen=True)
class Rate:
    """A measured training step: tokens a second and peak memory of one GPU, and whence."""

    geometry: Geometry
    tokens_per_second: float
    peak_gib: float
    source: str

    @property
    def operations_per_second(self) -> float:
        return self.tokens_per_second * self.geometry.operations_per_token


def shipped_rates() -> list[Rate]:
    """The measurements that the project ships."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Rate(
            _geometry(row),
            float(row["tokens_per_second"]),
            float(row["peak_gib"]),
            f"{row['scale']} on {MEASURED_ON}",
        )
        for row in rows
    ]


def _geometry(row: Mapping[str, str]) -> Geometry:
    names = ("layers", "d_model", "heads", "d_ff", "vocabulary", "context", "micro")
    return Geometry(row["scale"], row["variant"], *(int(row[name]) for name in names))


def rates(benched: Path = BENCHED) -> list[Rate]:
    """The shipped measurements, replaced scale by scale by what `bench flash` measured here.

    Raises InputError where that benchmark's file is damaged.
    """
    shipped = shipped_rates()
    if not benched.exists():
        return shipped
    steps = [
        row
        for row in read_parquet(benched, BENCH).to_pylist()
        if (row["measure"], row["peer"], row["status"]) == ("step", "flash-relation", "PASS")
    ]
    here = {row["scale"]: row for row in steps}
    return [_as_benched(rate, here.get(rate.geometry.scale), benched) for rate in shipped]


def _as_benched(rate: Rate, row: dict | None, benched: Path) -> Rate:
    shape = (rate.geometry.micro, rate.geometry.context)
    if row is None or (row["batch"], row["length"]) != shape or not row["peak_bytes"]:
        return rate
    source = f"{row['scale']} on one {row['device']} ({benched})"
    return Rate(rate.geometry, row["tokens_per_second"], row["peak_bytes"] / _GIB, source)


def activation_bytes(measured: list[Rate]) -> tuple[float, float]:
    """Bytes that a step keeps for each token: per layer and channel, and per vocabulary entry.

    Least squares on the measured peaks, less the parameters' states.
    """
    sizes, kept = [], []
    for rate in measured:
        g = rate.geometry
        tokens = g.micro * g.context
        sizes.append([tokens * g.layers * g.d_model, tokens * g.vocabulary])
        kept.append(rate.peak_gib * _GIB - _STATE_BYTES * count_parameters(g.model()))
    layers, logits = np.linalg.lstsq(np.array(sizes, float), np.array(kept), rcond=None)[0]
    return float(layers), float(logits)


@dataclass(frozen=True)
class ScalePlan:
    """What a run takes. Bytes and seconds as named; per GPU unless said otherwise."""

    geometry: Geometry
    parameters: int
    tokens: int
    gpus: int
    operations_per_token: float
    operations: float
    operations_per_second: float
    tokens_per_second: float
    tokens_per_update: int
    compute_seconds: float
    exchange_seconds: float
    efficiency: float
    hours: float
    gpu_hours: float
    cost: float
    state_gib: float
    activation_gib: float
    memory_gib: float
    resume_gib: float
    checkpoint_gib: float
    corpus_gib: float
    source: str

    def as_dict(self) -> dict:
        return asdict(self)


def plan_scale(
    geometry: Geometry,
    tokens: int,
    gpus: int,
    accumulation: int,
    link_gbytes: float,
    price: float,
    measured: list[Rate],
) -> ScalePlan:
    """What training `geometry` on `tokens` takes on `gpus` of the measured kind.

    Each GPU computes at the rate of operations of the largest measured model, on `accumulation`
    micro-batches an update; then all exchange FP32 gradients around a ring at `link_gbytes` GB/s a
    GPU, and nothing overlaps that, as in relation.train.parallel. price: USD a GPU-hour. Raises
    InputError for a model that cannot be or numbers that are not positive.
    """
    if min(tokens, gpus, accumulation, link_gbytes, price, geometry.micro, geometry.context) <= 0:
        raise InputError("give --tokens, --gpus, --accumulation, --link and --price above zero")
    model = geometry.model()
    parameters = count_parameters(model)
    rate = max(measured, key=lambda r: r.geometry.operations_per_token)
    per_token = geometry.operations_per_token
    tokens_per_second = rate.operations_per_second / per_token
    tokens_per_gpu = accumulation * geometry.micro * geometry.context
    compute = tokens_per_gpu / tokens_per_second
    exchange = 2 * (gpus - 1) / gpus * _FLAT_BYTES * parameters / (link_gbytes * 1e9)
    efficiency = compute / (compute + exchange)
    hours = tokens / (gpus * tokens_per_second * efficiency) / 3600
    by_layer, by_entry = activation_bytes(measured)
    kept = by_layer * geometry.layers * geometry.d_model + by_entry * geometry.vocabulary
    activations = geometry.micro * geometry.context * kept
    state = (_STATE_BYTES + _FLAT_BYTES * (gpus > 1)) * parameters
    return ScalePlan(
        geometry=geometry,
        parameters=parameters,
        tokens=tokens,
        gpus=gpus,
        operations_per_token=per_token,
        operations=per_token * tokens,
        operations_per_second=rate.operations_per_second,
        tokens_per_second=tokens_per_second,
        tokens_per_update=tokens_per_gpu * gpus,
        compute_seconds=compute,
        exchange_seconds=exchange,
        efficiency=efficiency,
        hours=hours,
        gpu_hours=hours * gpus,
        cost=hours * gpus * price,
        state_gib=state / _GIB,
        activation_gib=activations / _GIB,
        memory_gib=(state + activations) / _GIB,
        resume_gib=2 * _SAVED_BYTES * parameters / _GIB,
        checkpoint_gib=4 * parameters / _GIB,
        corpus_gib=_TOKEN_BYTES * tokens / _GIB,
        source=rate.source,
    )
