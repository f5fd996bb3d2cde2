"""Checks the gradient of every parameter of the step that trains, against the definition in FP64.

A compiler can lose or mis-scale a gradient without an error, and training would go on. The step
checked is the campaign's: its loss, compilation, precision and backends, through `UpdateStep`.
"""

import gc
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.errors import RunError
from relation.machine.devices import claim, describe
from relation.machine.progress import Progress
from relation.nn import Decoder, Execution
from relation.nn.mixers import RopeTables
from relation.pipeline.origin import origin
from relation.pipeline.uses import TRUTH, uses_of
from relation.spec import GradientsSpec
from relation.store.layouts import GRADIENTS
from relation.store.parquet import write_parquet
from relation.train.step import UpdateStep, autocast
from relation.variants import MIXERS, ModelConfig, model_config

Batches = list[tuple[Tensor, Tensor]]
Tensors = dict[str, Tensor]

RMS, LARGEST, SCALE = "RMS", "largest", "scale"
_SLACK = {"bf16": 1e-3, "fp32": 1e-5}
# Standard errors of a scale; chance alone passes four once in 16,000.
_STANDARD_ERRORS = 4
# Half of the 2% that must be found; the noise of the faulty gradient may take the other half.
_LARGEST_SCALE_ERROR = 0.01
# The largest error of fewer numbers is left to their RMS.
_FEWEST_FOR_LARGEST = 16
_GAIN, _SPREAD = 0.8, 0.3
# In FP64 the chunks are the recurrence up to rounding (tests/test_linear_relation.py), and launch a
# few kernels where it launches some for every token.
_DEFINITION = Execution(**TRUTH)


class _Truth(Decoder):
    """The decoder in FP64, its rotary angles too."""

    def __init__(self, config: ModelConfig):
        super().__init__(config, _DEFINITION)
        self.double()

    def rope_tables(self, length: int, device: torch.device, offset: int = 0) -> RopeTables:
        kind = {"dtype": torch.float64, "device": device}
        width = self.config.head_dim
        frequency = self.config.rope_base ** -(torch.arange(0, width, 2, **kind) / width)
        angle = torch.outer(torch.arange(offset, offset + length, **kind), frequency)
        return angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)


@torch.no_grad()
def _draw_weights(model: Decoder, initial: Tensors, seed: int) -> None:
    """Draw weights at which every parameter matters; `initial`: the initial ones by name.

    Matrices are normal with sd 0.8/sqrt(inputs), so that scores are of order 1. Angles, scales of
    norms and retention are moved off their initial values, at which angles are 0. Lambda lies
    around 1, where Exchange, a sum over i tokens divided by i^lambda, weighs as much as Self.
    """
    generator = torch.Generator(model.embedding.weight.device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.empty_like(parameter).normal_(generator=generator)
        if name.endswith(".lam"):
            parameter.copy_(1 + _SPREAD * noise)
        elif parameter.ndim < 2:
            parameter.copy_(initial[name] + _SPREAD * noise)
        else:
            parameter.copy_(_GAIN / math.sqrt(parameter.shape[-1]) * noise)


def _draw_batches(side: dict, spec: GradientsSpec, seed: int, device: torch.device) -> Batches:
    """Micro-batches of tokens: inputs and targets, (micro, T) int64.

    The frequency of a token falls as 1 / rank, as a word's does. Recurring tokens
    add up to gradients of lambda and angles above BF16's noise; those of uniform tokens cancel.
    """
    generator = torch.Generator().manual_seed(seed)
    vocabulary = side["model"]["vocab_size"]
    shape = (spec.accumulation, side["micro"], side["length"] + 1)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
    tokens = ((vocabulary + 1) ** drawn).long().clamp(1, vocabulary).sub(1).to(device)
    return [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in tokens]


def _tokens(batches: Batches) -> int:
    return sum(targets.numel() for _, targets in batches)


def _eager_gradients(model: Decoder, batches: Batches, precision: str) -> Tensors:
    """The gradient of the mean NLL by PyTorch's own cross-entropy, in FP32 at least."""
    model.zero_grad()
    for inputs, targets in batches:
        with autocast(inputs.device, precision):
            logits = model(inputs).flatten(0, 1)
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            nll = F.cross_entropy(wide, targets.flatten(), reduction="sum")
        (nll / _tokens(batches)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


class _CheckedStep:
    """The step that trains; it gives its gradients and changes no weight."""

    def __init__(self, config: ModelConfig, side: dict, spec: GradientsSpec, device: torch.device):
        execution = Execution(**side["backends"], compiled=spec.compile)
        execution.check(config, device)
        self.model = Decoder(config, execution).to(device)
        still = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self._step = UpdateStep(
            self.model, still, device, spec.precision, spec.compile, math.inf, self._keep
        )
        self._replays, self._replayable = spec.compile and device.type == "cuda", False
        self._kept: Tensors = {}

    def _keep(self, loss: Tensor) -> None:
        """Copy the gradients, after the last backward pass and before clipping."""
        self._kept = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self.model.named_parameters()
        }

    def _gradients(self, step: UpdateStep, batches: Batches) -> Tensors:
        step(batches, _tokens(batches), learning_rate=0.0)
        return self._kept

    def __call__(self, batches: Batches) -> dict[str, Tensors]:
        """The gradients of an update whose kernels the host launches and of one that is replayed.

        The second only where the step replays CUDA graphs.
        """
        found = {"launched": self._gradients(self._step.uncaptured(), batches)}
        if self._replays and not self._replayable:
            # The host launches a step's first update; the next one captures the graphs.
            self._gradients(self._step, batches)
            self._replayable = True
        if self._replays:
            found["replayed"] = self._gradients(self._step, batches)
        return found


def _moments(error: Tensor, truth: Tensor) -> Tensor:
    """Sum of squares, largest magnitude and product with the truth, (3,) FP64."""
    return torch.stack((error.square().sum(), error.abs().max(), (error * truth).sum()))


def _measured(
    side: dict, spec: GradientsSpec, device: torch.device
) -> dict[tuple[str, str, int], Tensor]:
    """Moments of the error, of the yardstick's and of the truth: (draws, 3, 3) FP64 on the CPU.

    By parameter, kind of update and number of the parameter's elements.
    """
    config = model_config(side["model"])
    checked, truth = _CheckedStep(config, side, spec, device), _Truth(config).to(device)
    eager = Decoder(config, _DEFINITION)
    eager.initialise(seed=0)
    eager.to(device)
    initial = {name: tensor.clone() for name, tensor in eager.state_dict().items()}
    drawn: dict[tuple[str, str, int], list[Tensor]] = {}
    for seed in range(spec.draws):
        _draw_weights(eager, initial, seed)
        for model in (truth, checked.model):
            model.load_state_dict(eager.state_dict())
        batches = _draw_batches(side, spec, seed, device)
        # In FP64 one batch is as good as several.
        whole = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
        true = _eager_gradients(truth, [whole], "fp64")
        yardstick = _eager_gradients(eager, batches, spec.precision)
        for update, found in checked(batches).items():
            for name, t in true.items():
                off = (found[name].double() - t, yardstick[name].double() - t, t)
                moments = torch.stack([_moments(x, t) for x in off])
                drawn.setdefault((name, update, t.numel()), []).append(moments)
    return {key: torch.stack(moments).cpu() for key, moments in drawn.items()}


@dataclass(frozen=True)
class GradientError:
    """How far one gradient lies off the truth by one measure, and how far it may; in its units."""

    measure: str
    error: float
    yardstick: float
    allowed: float

    @property
    def passes(self) -> bool:
        """Whether the error is allowed; one that is not a number is not."""
        return self.error <= self.allowed


def gradient_errors(moments: Tensor, elements: int, precision: str) -> Iterator[GradientError]:
    """RMS, largest and scale error of one parameter's gradient over all draws.

    moments: (draws, 3, 3) FP64: of the error, the yardstick's error and the truth, each its sum of
    squares, largest magnitude and product with the truth. elements: numbers of the parameter.

    RMS and largest error may be twice the yardstick's plus 1e-3 (BF16; FP32: 1e-5) of the truth's;
    fewer than 16 elements have no largest. The RMS cannot see a scale error of 2%: BF16's own
    noise is 1 to 4% of a gradient's RMS here, and 2% adds in squares. The scale error
    |<g, t> / <t, t> - 1| can, g the gradient and t the truth over all draws: noise that does not
    follow the truth averages out in the product, to some 2e-4 of a matrix. It may be twice the
    yardstick's plus that slack plus four standard errors, of the error or of the yardstick,
    whichever is noisier, as the draws are independent: of lambda a single draw with a large
    gradient can outweigh the rest, where the two round differently. But never more than 1%, half of
    the error that must be found.
    """
    squares, largest, products = moments.unbind(-1)
    slack = _SLACK[precision]
    measures = [(RMS, (squares.sum(0) / (elements * len(moments))).sqrt())]
    if elements >= _FEWEST_FOR_LARGEST:
        measures.append((LARGEST, largest.amax(0)))
    for measure, values in measures:
        error, yardstick, truth = values.tolist()
        yield GradientError(measure, error, yardstick, 2 * yardstick + slack * truth)
    power = squares[:, 2].sum()
    error, yardstick = (products[:, :2].sum(0).abs() / power).tolist()
    noise = (products[:, :2].square().sum(0).amax().sqrt() / power).item()
    allowed = min(2 * yardstick + slack + _STANDARD_ERRORS * noise, _LARGEST_SCALE_ERROR)
    yield GradientError(SCALE, error, yardstick, allowed)


def check_variant(side: dict, spec: GradientsSpec, device: torch.device) -> list[dict]:
    """Rows of GRADIENTS of one of the specification's variants.

    Raises InputError where the device cannot run a backend.
    """
    config = model_config(side["model"])
    return [
        {
            "variant": side["variant"],
            "scale": side["scale"],
            "parameter": name,
            "elements": elements,
            "update": update,
            "measure": found.measure,
            "error": found.error,
            "yardstick": found.yardstick,
            "allowed": found.allowed,
            "draws": spec.draws,
            "layout": config.layout,
            "width": config.head_dim,
            "length": side["length"],
            "micro": side["micro"],
            "accumulation": spec.accumulation,
            "backends": sorted(f"{k}: {side['backends'][k]}" for k in _operators(config)),
            "precision": spec.precision,
            "compiled": spec.compile,
            "device": describe(device),
        }
        for (name, update, elements), moments in _measured(side, spec, device).items()
        for found in gradient_errors(moments, elements, spec.precision)
    ]


def _operators(config: ModelConfig) -> set[str]:
    return {MIXERS[letter] for letter in config.layout}


def failures(rows: Iterable[dict]) -> dict[tuple[str, str], str]:
    """A line for each variant and parameter that fails, about its first failing row."""
    said: dict[tuple[str, str], str] = {}
    for row in rows:
        if not row["error"] <= row["allowed"]:
            key = (row["variant"], row["parameter"])
            said.setdefault(
                key,
                f"{row['variant']} {row['parameter']}: the {row['measure']} error of its gradient "
                f"is {row['error']:.2e} in the {row['update']} update, where {row['allowed']:.2e} "
                "is allowed",
            )
    return said


def verify_gradients(spec: GradientsSpec, output: Path) -> None:
    """Check every variant's gradients and write a row a parameter, kind of update and measure.

    Raises InputError where the device cannot run a backend and, with every row written and a line
    on each failing parameter on stderr, RunError where a gradient is wrong.
    """
    rows: list[dict] = []
    with claim(spec.device) as device:
        with Progress("verify gradients", len(spec.variants), "variants") as progress:
            for side in spec.variants:
                rows += check_variant(side, spec, device)
                # No variant lends another compiled code or the memory of its graphs.
                torch.compiler.reset()
                gc.collect()
                progress.advance(1, side["variant"])
        written = origin(
            spec.campaign, spec.config_hash, "gradients", describe(device), uses_of(spec)
        )
    write_parquet(output, GRADIENTS, rows, written)
    failed = failures(rows)
    for line in failed.values():
        print(line, file=sys.stderr)
    if failed:
        variant, parameter = next(iter(failed))
        others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise RunError(
            f"the gradient of {variant} {parameter}{others} is wrong with PyTorch "
            f"{torch.__version__}; {output} has every error: train nothing, use the pinned "
            "versions, or `compile: false` in config.yaml where the campaign compiles"
        )
