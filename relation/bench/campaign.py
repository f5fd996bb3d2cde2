"""One systems benchmark from specification to Parquet.

Whole updates for the tables of throughput; for the complexity, one layer's operator against T, and
decoding from a history of T (Table 1).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from relation.bench.processes import Measurement, Worker
from relation.bench.rounds import Answers, prepared_together, session
from relation.bench.statistics import median_columns
from relation.bench.steps import UPDATE, Setup, WholeUpdates
from relation.bench.timing import TimedCalls, synchronize
from relation.data.tokens import token_file
from relation.machine.devices import describe
from relation.nn import Decoder, Execution
from relation.nn.cache import HistoryCache, LinearState
from relation.ops import get_backend
from relation.pipeline.uses import uses_of
from relation.spec import SystemsSpec
from relation.store.layouts import COMPLEXITY, THROUGHPUT
from relation.train.step import autocast
from relation.variants import ModelConfig, model_config

OPERATOR, DECODE = "operator", "decode"
_TOKENS_A_ROUND = 8
_GIB = 2**30


@torch.no_grad()
def _decode_cache(operator: str, call: Callable, inputs: list) -> HistoryCache | LinearState:
    """The cache of a layer that has read the inputs, (B, H, T, d_h) each."""
    if operator == "linear":
        cache = LinearState()
        _, state = call(*inputs)
        cache.replace(state, inputs[0].shape[2])
    else:
        cache = HistoryCache()
        cache.append(inputs[1], inputs[2])
    return cache


def probe_operator(
    config: ModelConfig,
    operator: str,
    backends: Mapping[str, str],
    context: int,
    precision: str,
    device: torch.device,
) -> tuple[Callable[[], None], int]:
    """Forward and backward of one layer's operator on random tokens, (1, H, T, d_h).

    Beside that call, the bytes that a decoding layer's cache holds after T tokens.
    """
    call = get_backend(operator, backends[operator], device).call
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    generator = torch.Generator().manual_seed(0)
    shape = (1, config.heads, context, config.head_dim)

    def draw() -> torch.Tensor:
        values = torch.randn(shape, generator=generator).to(device, dtype)
        return values.requires_grad_()

    inputs = [draw(), draw(), draw()]
    weight = torch.randn(shape, generator=generator).to(device, dtype)
    if operator == "full":
        inputs.append(torch.tensor(config.lambda_init, device=device, requires_grad=True))
    elif operator == "linear":
        rate = torch.rand(shape, generator=generator).to(device)
        inputs.append((-rate).requires_grad_())

    def run() -> None:
        y = call(*inputs)
        y = y[0] if operator == "linear" else y
        torch.autograd.grad(y, inputs, weight)

    return run, _decode_cache(operator, call, inputs).nbytes


@dataclass
class OperatorAndDecoding(TimedCalls):
    """Times an operator's forward and backward, and one token of the whole model's decoding.

    The token is decoded by the clock on the wall, from random caches of T - 1 tokens, batch 1: what
    a reader waits for, launches included.
    """

    config: ModelConfig
    operator: str
    backends: Mapping[str, str]
    context: int
    precision: str
    device: torch.device

    def prepare(self) -> dict:
        """Draw the inputs. What is timed is built in its first round, where it may fail alone."""
        self.begin(self.device)
        self._decodes: Callable[[], None] | None = None
        self.calls[OPERATOR], held = probe_operator(
            self.config, self.operator, self.backends, self.context, self.precision, self.device
        )
        return {"decode_state_bytes": held}

    def seconds(self, measure: str) -> float:
        """Seconds of a call of the operator, or of a token."""
        if measure == OPERATOR:
            return super().seconds(measure)
        if self._decodes is None:
            self._decodes = self._decoder()
        self._decodes()
        synchronize(self.device)
        began = time.perf_counter()
        for _ in range(_TOKENS_A_ROUND):
            self._decodes()
            # A token is read before the next can be chosen.
            synchronize(self.device)
        return (time.perf_counter() - began) / _TOKENS_A_ROUND

    def _decoder(self) -> Callable[[], None]:
        """Decodes the T-th token again and again."""
        config, device, before = self.config, self.device, self.context - 1
        model = Decoder(config, Execution(**self.backends))
        model.initialise(seed=0)
        model.to(device)
        state = model.decode_state(self.context)
        generator = torch.Generator(device).manual_seed(0)
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32

        def drawn(length: int, kind: torch.dtype) -> torch.Tensor:
            shape = (1, config.heads, length, config.head_dim)
            return torch.randn(shape, generator=generator, device=device).to(kind)

        for cache in state.layers:
            if isinstance(cache, LinearState):
                cache.replace(drawn(config.head_dim, torch.float32), before)
            else:
                cache.append(drawn(before, dtype), drawn(before, dtype))
        token = torch.zeros((1, 1), dtype=torch.int64, device=device)

        def decode() -> None:
            for cache in state.layers:
                cache.length = before
            with autocast(device, self.precision):
                model.decode(token, state)

        return decode


def measurement_of(
    spec: SystemsSpec, side: Mapping, tokens: Path | None, device: torch.device
) -> Measurement:
    """The measurement of one side; tokens: the training split, or None for random tokens."""
    model, backends, variant = model_config(side["model"]), side["backends"], side["variant"]
    if spec.benchmark == "complexity":
        return OperatorAndDecoding(
            model, variant, backends, side["context"], spec.precision, device
        )
    return WholeUpdates(
        Setup.of(spec, model, backends, device),
        context=side["context"],
        micro=side["micro"],
        accumulation=side["accumulation"],
        warmup=spec.warmup_updates,
        updates=spec.measured_updates,
        tokens=tokens,
        proves=(variant, backends[variant]),
    )


def _status(answers: Answers, measure: str) -> dict:
    failure = answers.failures.get(measure)
    if failure is None:
        return {"status": "PASS", "reason": None}
    return {"status": failure.status, "reason": failure.reason}


def _throughput_row(spec: SystemsSpec, side: Mapping, answers: Answers, tokens: str) -> dict:
    seconds, facts = answers.samples.get(UPDATE, []), answers.facts
    per_update = side["micro"] * side["accumulation"] * side["context"]
    rates = [per_update / s for s in seconds]
    peaks = {
        name: None if facts.get(source) is None else facts[source] / _GIB
        for name, source in (("allocated_gib", "peak_bytes"), ("reserved_gib", "reserved_bytes"))
    }
    geometry = ("side", "variant", "context", "micro", "accumulation", "position")
    return {
        "benchmark": spec.benchmark,
        "scale": spec.scale,
        **{name: side[name] for name in geometry},
        "backend": side["backends"][side["variant"]],
        **_status(answers, UPDATE),
        **median_columns("tokens_per_second", rates),
        "raw_tokens_per_second": facts.get("raw_tokens_per_second"),
        **peaks,
        "measured_updates": len(seconds) * spec.measured_updates,
        "samples": rates,
        "alone": answers.alone,
        "kernels": facts.get("kernels", []),
        "tokens": tokens,
    }


def _complexity_row(side: Mapping, answers: Answers) -> dict:
    decode = answers.failures.get(DECODE)
    return {
        "operator": side["side"],
        "context": side["context"],
        **_status(answers, OPERATOR),
        **median_columns("seconds", answers.samples.get(OPERATOR, [])),
        **median_columns("decode_seconds", answers.samples.get(DECODE, [])),
        "decode_reason": None if decode is None else f"{decode.status}: {decode.reason}",
        "decode_state_bytes": answers.facts.get("decode_state_bytes"),
    }


def _together(spec: SystemsSpec) -> list[Sequence[Mapping]]:
    """The sides of each comparison: those of one T, of a few T's, or all."""
    if spec.benchmark == "linear-long":
        return prepared_together(spec.sides, lambda side: side["context"])
    if spec.benchmark != "complexity":
        return [spec.sides]
    by_context: dict[int, list[Mapping]] = {}
    for side in spec.sides:
        by_context.setdefault(side["context"], []).append(side)
    return list(by_context.values())


def measure(
    spec: SystemsSpec,
    data: Path | None,
    output: Path,
    start: Callable[[Measurement], object] = Worker,
) -> list[dict]:
    """Run one benchmark, write its Parquet and return the rows.

    data: the folder of the prepared corpus, or None for random tokens. Whatever a side meets, out
    of memory, a kill, a missing backend, is its row's status, not a failure of the benchmark.
    Raises InputError where there is no such device.
    """
    tokens = None if data is None else token_file(data, "train")
    complexity, rows = spec.benchmark == "complexity", []
    label = f"{spec.benchmark} {spec.scale}"
    with session(spec.device, label, len(spec.sides), start) as shared:
        for sides in _together(spec):
            answers = shared.compare(
                {side["side"]: measurement_of(spec, side, tokens, shared.device) for side in sides},
                [OPERATOR, DECODE] if complexity else [UPDATE],
                spec.rounds,
                f"T={sides[0]['context']}" if complexity else "",
                # A round's first update settles what the others left.
                **({} if complexity else {"warm_rounds": 0}),
            )
            conditions = {"device": describe(shared.device), **shared.conditions.columns()}
            for side in sides:
                found = answers[side["side"]]
                if complexity:
                    row = _complexity_row(side, found)
                else:
                    row = _throughput_row(spec, side, found, "corpus" if tokens else "random")
                rows.append(row | conditions)
        layout = COMPLEXITY if complexity else THROUGHPUT
        origin = (spec.campaign, spec.config_hash, "systems")
        shared.record(output, layout, rows, *origin, uses=uses_of(spec))
    return rows
