"""The token-mixing core alone: time against T, and decoding from a history of T (Table 1)."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from relation.geometry import ModelConfig
from relation.model import Decoder, Execution
from relation.model.cache import HistoryCache, LinearState
from relation.operators import get_backend
from relation.systems.bench.timing import Plan, Stopwatch
from relation.systems.throughput import synchronize
from relation.training.step import autocast

OPERATOR, DECODE = "operator", "decode"
_TOKENS_A_ROUND = 8


@dataclass(frozen=True)
class OperatorProbe:
    """One layer's operator on one sequence: a call to time, and the history it keeps.

    `decode_state_bytes` is what a decoding layer's cache holds after T tokens.
    """

    call: Callable[[], None]
    decode_state_bytes: int


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
    backends: dict,
    context: int,
    precision: str,
    device: torch.device,
) -> OperatorProbe:
    """Forward and backward of one layer's operator on random tokens, (1, H, T, d_h)."""
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

    return OperatorProbe(run, _decode_cache(operator, call, inputs).nbytes)


@dataclass(frozen=True)
class OperatorJob:
    """One layer's operator at one T, and decoding by a model of such layers, in its own process."""

    config: ModelConfig
    operator: str
    backends: dict
    context: int
    precision: str
    device: torch.device

    def __call__(self) -> "OperatorMeasurement":
        return OperatorMeasurement(self)


class OperatorMeasurement:
    """Times an operator's forward and backward, and one token of the whole model's decoding.

    The token is decoded by the clock on the wall, from random caches of T - 1 tokens, batch 1: what
    a reader waits for, launches included.
    """

    def __init__(self, job: OperatorJob):
        self.job = job
        if job.device.type == "cuda":
            torch.cuda.set_device(job.device)
        self._stopwatch = Stopwatch(job.device)
        self._plan: Plan | None = None
        self._decodes: Callable[[], None] | None = None

    def prepare(self) -> dict:
        """Draw the inputs. What is timed is built in its first round, where it may fail alone."""
        job = self.job
        self._probe = probe_operator(
            job.config, job.operator, job.backends, job.context, job.precision, job.device
        )
        return {"decode_state_bytes": self._probe.decode_state_bytes}

    def seconds(self, measure: str) -> float:
        """Seconds of a call of the operator, or of a token."""
        if measure == OPERATOR:
            if self._plan is None:
                self._plan = self._stopwatch.plan(self._probe.call)
            return self._stopwatch.seconds(self._probe.call, self._plan)
        if self._decodes is None:
            self._decodes = self._decoder()
        self._decodes()
        synchronize(self.job.device)
        began = time.perf_counter()
        for _ in range(_TOKENS_A_ROUND):
            self._decodes()
            # A token is read before the next can be chosen.
            synchronize(self.job.device)
        return (time.perf_counter() - began) / _TOKENS_A_ROUND

    def proof(self) -> dict:
        return {}

    def _decoder(self) -> Callable[[], None]:
        """Decodes the T-th token again and again."""
        job, config = self.job, self.job.config
        model = Decoder(config, Execution(**job.backends))
        model.initialise(seed=0)
        model.to(job.device)
        state = model.decode_state(job.context)
        before = job.context - 1
        generator = torch.Generator(job.device).manual_seed(0)
        dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32

        def drawn(length: int, kind: torch.dtype) -> torch.Tensor:
            shape = (1, config.heads, length, config.head_dim)
            return torch.randn(shape, generator=generator, device=job.device).to(kind)

        for cache in state.layers:
            if isinstance(cache, LinearState):
                cache.replace(drawn(config.head_dim, torch.float32), before)
            else:
                cache.append(drawn(before, dtype), drawn(before, dtype))
        token = torch.zeros((1, 1), dtype=torch.int64, device=job.device)

        def decode() -> None:
            for cache in state.layers:
                cache.length = before
            with autocast(job.device, job.precision):
                model.decode(token, state)

        return decode
