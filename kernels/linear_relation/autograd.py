"""Linear Relation as PyTorch operators for torch.compile, and as a plain function for eager calls.

No mathematics here: `forward` and `backward` compute, this file registers. torch.compile calls the
operators without a graph break; they are opaque to it. Eager PyTorch would spend as long on an
operator's dispatch as on two launches.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.library import custom_op

from relation.kernels.common import empty_tokens
from relation.kernels.linear_relation.backward import launch_backward
from relation.kernels.linear_relation.forward import empty_kept, launch_forward


@custom_op("relation::linear_relation", mutates_args=())
def linear_forward(
    p1: Tensor, p2: Tensor, info: Tensor, log_retention: Tensor, state: Tensor | None, tau: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`launch_forward`; only y and the final state have gradients."""
    y, final, kept = launch_forward(p1, p2, info, log_retention, state, tau)
    return y, final, *kept


@custom_op("relation::linear_relation_backward", mutates_args=())
def linear_backward(
    dy: Tensor,
    dfinal: Tensor | None,
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    log_retention: Tensor,
    kept: list[Tensor],
    tau: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`launch_backward`."""
    return launch_backward(dy, dfinal, p1, p2, info, log_retention, tuple(kept), tau)


def _empty_state(x: Tensor) -> Tensor:
    B, H, _, D = x.shape
    return x.new_empty((B, H, D, D), dtype=torch.float32)


@linear_forward.register_fake
def _(p1, p2, info, log_retention, state, tau):
    return empty_tokens(info, p1.shape[1]), _empty_state(p1), *empty_kept(p1, p2)


@linear_backward.register_fake
def _(dy, dfinal, p1, p2, info, log_retention, kept, tau):
    tokens = (empty_tokens(x, x.shape[1]) for x in (p1, p2, info, log_retention))
    return *tokens, _empty_state(p1)


def _save(ctx, inputs, output) -> None:
    *tensors, state, ctx.tau = inputs
    _, _, *kept = output
    # Without this, autograd would fill a zero gradient of the final state in every backward.
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*kept)
    ctx.save_for_backward(*tensors, *kept)
    ctx.has_state = state is not None


def _differentiate(ctx, dy, dfinal, *_, launch=linear_backward):
    p1, p2, info, log_retention, *kept = ctx.saved_tensors
    if dy is None:  # only the final state was used
        dy = torch.zeros_like(p1)
    *gradients, dstate = launch(dy, dfinal, p1, p2, info, log_retention, kept, ctx.tau)
    return *gradients, dstate if ctx.has_state else None, None


linear_forward.register_autograd(_differentiate, setup_context=_save)


class EagerRelation(torch.autograd.Function):
    """The same without the operators' dispatch."""

    @staticmethod
    def forward(ctx, *inputs):
        y, final, kept = launch_forward(*inputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:4], *kept)
        ctx.has_state, ctx.tau = inputs[4] is not None, inputs[5]
        return y, final

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dfinal):
        return _differentiate(ctx, dy, dfinal, launch=launch_backward)
