"""One layer's operator as T grows: time of forward and backward, and decode state (Table 1)."""

from functools import partial
from pathlib import Path

import torch

from relation.bench.rounds import DTYPES, Timer, median_columns, record
from relation.jobs import Bench, Side
from relation.ops import get_backend


def operator(side: Side, precision: str, device: torch.device, context: int):
    """A workload that times an operator on one sequence of random inputs, (1, H, T, d_h).

    Its fact is the number of bytes that a layer keeps for T tokens to decode the next token. The
    inputs of a call shorter than 0.5 ms are in the L2 cache, because it is repeated.
    """
    name, model = side.variant, side.model
    H, D = model.heads, model.head_dim
    call = get_backend(name, side.backends[name], device).call
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(4, 1, H, context, D, generator=generator)
    # p1, p2, info; q, k, v in MHA
    *inputs, dy = states.to(device, DTYPES[precision]).unbind()
    inputs = [x.requires_grad_() for x in inputs]
    if name == "full":
        inputs.append(torch.tensor(model.lambda_init, device=device, requires_grad=True))
    elif name == "linear":
        rate = torch.rand(1, H, context, D, generator=generator)
        inputs.append((-rate).to(device).requires_grad_())

    def forward_backward() -> None:
        y = call(*inputs)
        torch.autograd.grad(y[0] if name == "linear" else y, inputs, dy)

    timer = Timer(device, forward_backward)
    # Two states per token; in Linear Relation C, (H, D, D) in FP32.
    history = 2 * H * context * D * dy.element_size()
    answer = {"decode_state_bytes": 4 * H * D * D if name == "linear" else history}
    while (yield answer) is not None:
        answer = timer.seconds()


def measure(bench: Bench, out: Path) -> None:
    """Time every operator at every context; write the record of kind `complexity`."""
    workloads = {side.side: partial(operator, side, bench.precision) for side in bench.sides}

    def row(name: str, seconds: list[float], context: int) -> dict:
        return {"operator": name, "context": context, **median_columns("seconds", seconds)}

    contexts = dict.fromkeys(side.context for side in bench.sides)
    record(bench, out, [workloads], [(T,) for T in contexts], row)
