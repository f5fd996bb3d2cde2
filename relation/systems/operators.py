"""The token-mixing core alone: time against T and the state kept for decoding (Table 1)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from relation.geometry import ModelConfig
from relation.model.cache import HistoryCache, LinearState
from relation.operators import get_backend


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
