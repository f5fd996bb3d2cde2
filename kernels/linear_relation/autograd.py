"""Linear Relation as PyTorch operators, which autograd and torch.compile see through.

No mathematics here: `output` and `gradients` compute, this file registers.
"""

import torch
from torch.library import triton_op

from kernels.linear_relation.gradients import launch_backward
from kernels.linear_relation.output import launch_forward


@triton_op("relation::linear_relation", mutates_args=())
def linear_forward(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    state: torch.Tensor | None,
    tau: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`launch_forward`."""
    return launch_forward(p1, p2, info, log_retention, state, tau)


@triton_op("relation::linear_relation_backward", mutates_args=())
def linear_backward(
    dy: torch.Tensor,
    dfinal: torch.Tensor | None,
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    state: torch.Tensor | None,
    tau: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`launch_backward`."""
    return launch_backward(dy, dfinal, p1, p2, info, log_retention, state, tau)


def _save(ctx, inputs, output) -> None:
    p1, p2, info, log_retention, state, ctx.tau = inputs
    # Without this, autograd would fill a zero gradient of the final state in every backward.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(p1, p2, info, log_retention, state)


def _differentiate(ctx, dy, dfinal):
    p1, p2, info, log_retention, state = ctx.saved_tensors
    if dy is None:  # only the final state was used
        dy = torch.zeros_like(info)
    *gradients, dstate = linear_backward(dy, dfinal, p1, p2, info, log_retention, state, ctx.tau)
    return *gradients, None if state is None else dstate, None


linear_forward.register_autograd(_differentiate, setup_context=_save)
