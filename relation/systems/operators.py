"""The token-mixing core alone: time against T and the state kept for decoding (Table 1)."""

from collections.abc import Callable

import torch

from relation.geometry import ModelConfig
from relation.operators import get_backend


def operator_call(
    config: ModelConfig,
    operator: str,
    backends: dict,
    context: int,
    precision: str,
    device: torch.device,
) -> Callable[[], None]:
    """A call that runs one layer's operator forward and backward on one sequence of T tokens."""
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

    return run


def decode_state_bytes(config: ModelConfig, operator: str, context: int, precision: str) -> int:
    """Bytes one layer keeps after T tokens to decode the next.

    MHA keeps K and V, Full Relation p2 and information, (H, T, d_h) each in the compute dtype;
    Linear keeps C, (H, d_h, d_h) in FP32, whatever T.
    """
    if operator == "linear":
        return config.heads * config.head_dim**2 * torch.float32.itemsize
    itemsize = torch.bfloat16.itemsize if precision == "bf16" else torch.float32.itemsize
    return 2 * config.heads * context * config.head_dim * itemsize
