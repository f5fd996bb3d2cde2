"""One systems benchmark from specification to Parquet.

Whole updates for the tables of throughput; for the complexity, one layer's operator and the state
that decoding keeps of it, against T (Table 1). Tokens are `relation.bench.decode`'s.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from relation.bench.processes import Measurement, Worker
from relation.bench.rounds import WARM_ROUNDS, Answers, Part, prepared_together, session
from relation.bench.statistics import median_columns
from relation.bench.steps import UPDATE, WholeUpdates
from relation.bench.timing import TimedCalls
from relation.data.tokens import open_tokens, token_file
from relation.machine.devices import describe
from relation.nn.cache import HistoryCache, LinearState
from relation.ops import get_backend
from relation.spec import SystemsSpec
from relation.store.layouts import COMPLEXITY, THROUGHPUT
from relation.store.stamp import UNKNOWN, Stamp
from relation.variants import ModelConfig, model_config
from relation.verify.inputs import DTYPES

OPERATOR = "operator"
_GIB = 2**30


@torch.no_grad()
def _decode_cache(operator: str, call: Callable, inputs: list) -> HistoryCache | LinearState:
    """The cache of a layer that has read the inputs, (B, H, T, d_h) each."""
    if operator != "linear":
        cache = HistoryCache()
        cache.append(inputs[1], inputs[2])
        return cache
    cache, (_, state) = LinearState(), call(*inputs)
    cache.replace(state, inputs[0].shape[2])
    return cache


@dataclass
class OperatorCalls(TimedCalls):
    """Times one layer's operator, forward and backward, on random tokens, (1, H, T, d_h)."""

    config: ModelConfig
    operator: str
    backends: Mapping[str, str]
    context: int
    precision: str
    device: torch.device

    def prepare(self) -> dict:
        """Draw the inputs; returns the bytes that a decoding layer's cache holds after T tokens."""
        self.begin(self.device)
        config, operator, device = self.config, self.operator, self.device
        call = get_backend(operator, self.backends[operator], device).call
        generator = torch.Generator().manual_seed(0)
        shape = (1, config.heads, self.context, config.head_dim)

        def draw() -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(device, DTYPES[self.precision])

        inputs = [draw().requires_grad_() for _ in range(3)]
        weight = draw()
        if operator == "full":
            inputs.append(torch.tensor(config.lambda_init, device=device, requires_grad=True))
        elif operator == "linear":
            rate = torch.rand(shape, generator=generator).to(device)
            inputs.append((-rate).requires_grad_())

        def forward_backward() -> None:
            y = call(*inputs)
            y = y[0] if operator == "linear" else y
            torch.autograd.grad(y, inputs, weight)

        self.calls[OPERATOR] = forward_backward
        return {"decode_state_bytes": _decode_cache(operator, call, inputs).nbytes}


def measurement_of(
    spec: SystemsSpec, side: Mapping, tokens: Path | None, device: torch.device
) -> Measurement:
    """The measurement of one side; tokens: the training split, or None for random tokens."""
    model, backends, variant = model_config(side["model"]), side["backends"], side["variant"]
    if spec.benchmark == "complexity":
        return OperatorCalls(model, variant, backends, side["context"], spec.precision, device)
    return WholeUpdates.of(
        spec,
        model,
        backends,
        device,
        **{name: side[name] for name in ("context", "micro", "accumulation")},
        updates=spec.measured_updates,
        tokens=tokens,
        proves=(variant, backends[variant]),
    )


def _throughput_row(
    spec: SystemsSpec, tokens: Path | None, side: Mapping, answers: Answers
) -> dict:
    seconds, facts = answers.samples.get(UPDATE, []), answers.facts
    per_update = side["micro"] * side["accumulation"] * side["context"]
    rates = [per_update / s for s in seconds]
    peaks = [facts.get(name) for name in ("peak_bytes", "reserved_bytes")]
    allocated, reserved = (None if peak is None else peak / _GIB for peak in peaks)
    geometry = ("side", "variant", "context", "micro", "accumulation", "position")
    return {
        "benchmark": spec.benchmark,
        "scale": spec.scale,
        **{name: side[name] for name in geometry},
        "backend": side["backends"][side["variant"]],
        **answers.status(UPDATE),
        **median_columns("tokens_per_second", rates),
        "raw_tokens_per_second": facts.get("raw_tokens_per_second"),
        "allocated_gib": allocated,
        "reserved_gib": reserved,
        "measured_updates": len(seconds) * spec.measured_updates,
        "samples": rates,
        "alone": answers.alone,
        "kernels": facts.get("kernels", []),
        "tokens": "corpus" if tokens else "random",
    }


def _complexity_row(side: Mapping, answers: Answers) -> dict:
    return dict.fromkeys(COMPLEXITY.names) | {
        "operator": side["side"],
        "context": side["context"],
        **answers.status(OPERATOR),
        **median_columns("seconds", answers.samples.get(OPERATOR, [])),
        "decode_state_bytes": answers.facts.get("decode_state_bytes"),
    }


def _parts(spec: SystemsSpec, tokens: Path | None, device: torch.device) -> list[Part]:
    """The comparisons: the sides of one T, of a few T's, or all."""
    complexity, groups = spec.benchmark == "complexity", [spec.sides]
    if spec.benchmark == "linear-long":
        groups = prepared_together(spec.sides, lambda side: side["context"])
    elif complexity:
        contexts = dict.fromkeys(side["context"] for side in spec.sides)
        groups = [[side for side in spec.sides if side["context"] == T] for T in contexts]
    row = _complexity_row if complexity else partial(_throughput_row, spec, tokens)

    def part(sides: Sequence[Mapping]) -> Part:
        return Part(
            {side["side"]: measurement_of(spec, side, tokens, device) for side in sides},
            [OPERATOR] if complexity else [UPDATE],
            spec.rounds,
            lambda found: [row(side, found[side["side"]]) for side in sides],
            # A round's first update settles what the others left.
            warm_rounds=WARM_ROUNDS if complexity else 0,
            label=f"T={sides[0]['context']}" if complexity else "",
        )

    return [part(sides) for sides in groups]


def measure(
    spec: SystemsSpec,
    data: Path | None,
    output: Path,
    start: Callable[[Measurement], object] = Worker,
    stamp: Stamp = UNKNOWN,
) -> list[dict]:
    """Run one benchmark, write its Parquet and return the rows.

    data: the folder of the prepared corpus, or None for random tokens. Whatever a side meets, out
    of memory, a kill, a missing backend, is its row's status, not a failure of the benchmark.
    Raises InputError where there is no such device, or a step's corpus is not prepared.
    """
    tokens, rows = None if data is None else token_file(data, "train"), []
    if tokens is not None and spec.benchmark != "complexity":
        open_tokens(tokens)  # once here, not as every side's reason
    label, parts_of = f"{spec.benchmark} {spec.scale}", partial(_parts, spec, tokens)
    with session(spec.device, label, parts_of, start) as (shared, parts):
        for part in parts:
            found = part.rows(shared.compare(part))
            conditions = {"device": describe(shared.device), **shared.conditions.columns()}
            rows += [row | conditions for row in found]
        layout = COMPLEXITY if spec.benchmark == "complexity" else THROUGHPUT
        origin = (spec.campaign, spec.config_hash, "systems")
        shared.record(output, layout, rows, *origin, stamp=stamp)
    return rows
