"""The token-mixing core alone: time against T and the state kept for decoding (Table 1)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from relation.geometry import ModelConfig
from relation.operators import get_backend


@dataclass(frozen=True)
class OperatorProbe:
    """One layer's operator on one sequence: a call to time, and the history it keeps.

    `decode_state_bytes` is the size of the tensors that the next token needs after T tokens.
    """

    call: Callable[[], None]
    decode_state_bytes: int


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

    first, second, transported = draw(), draw(), draw()
    inputs = [first, second, transported]
    # MHA keeps K and V, Full Relation p2 and the mixed information.
    kept = [second, transported]
    weight = torch.randn(shape, generator=generator).to(device, dtype)
    if operator == "full":
        inputs.append(torch.tensor(config.lambda_init, device=device, requires_grad=True))
    elif operator == "linear":
        rate = torch.rand(shape, generator=generator).to(device)
        inputs.append((-rate).requires_grad_())
        with torch.no_grad():
            kept = [call(*inputs)[1]]

    def run() -> None:
        y = call(*inputs)
        y = y[0] if operator == "linear" else y
        torch.autograd.grad(y, inputs, weight)

    return OperatorProbe(run, sum(tensor.nbytes for tensor in kept))
