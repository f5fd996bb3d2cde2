"""Linear Relation as PyTorch operators for torch.compile, and as a plain function for eager calls.

No mathematics here: `forward` and `backward` compute, this file registers. torch.compile calls the
operators without a graph break; they are opaque to it. Eager PyTorch would spend longer on an
operator's dispatch than on its launches.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.library import custom_op

from relation.kernels.linear_relation.backward import launch_backward
from relation.kernels.linear_relation.forward import kept_sizes, launch_forward
from relation.kernels.linear_relation.launches import select_launches


@custom_op("relation::linear_relation", mutates_args=())
def linear_forward(
    p1: Tensor, p2: Tensor, info: Tensor, log_retention: Tensor, state: Tensor | None, tau: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`launch_forward`; only y and the final state have gradients."""
    return launch_forward(p1, p2, info, log_retention, state, tau)


@custom_op("relation::linear_relation_backward", mutates_args=())
def linear_backward(
    dy: Tensor,
    dfinal: Tensor | None,
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    log_retention: Tensor,
    kept: Tensor,
    tau: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`launch_backward`."""
    return launch_backward(dy, dfinal, p1, p2, info, log_retention, kept, tau)


def _tokens_like(x: Tensor) -> Tensor:
    B, H, T, D = x.shape
    return x.new_empty((B, T, H, D)).transpose(1, 2)


def _state_of(x: Tensor) -> Tensor:
    B, H, _, D = x.shape
    return x.new_empty((B, H, D, D), dtype=torch.float32)


@linear_forward.register_fake
def _(p1, p2, info, log_retention, state, tau):
    launches = select_launches(p1.device, p1.element_size(), p1.shape[3])
    kept = p1.new_empty(sum(kept_sizes(*p1.shape, launches)), dtype=torch.float32)
    return _tokens_like(p1), _state_of(p1), kept


@linear_backward.register_fake
def _(dy, dfinal, p1, p2, info, log_retention, kept, tau):
    return *(_tokens_like(x) for x in (p1, p2, info, log_retention)), _state_of(p1)


def _save(ctx, inputs, output) -> None:
    p1, p2, info, log_retention, state, ctx.tau = inputs
    # Without this, autograd would fill a zero gradient of the final state in every backward.
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(p1, p2, info, log_retention, output[2])
    ctx.has_state = state is not None


def _differentiate(ctx, dy, dfinal, *_):
    saved = ctx.saved_tensors
    if dy is None:  # only the final state was used
        dy = torch.zeros_like(saved[0])
    *gradients, dstate = linear_backward(dy, dfinal, *saved, ctx.tau)
    return *gradients, dstate if ctx.has_state else None, None


linear_forward.register_autograd(_differentiate, setup_context=_save)


class EagerRelation(torch.autograd.Function):
    """The same without the operators' dispatch: y and the final state."""

    @staticmethod
    def forward(ctx, p1, p2, info, log_retention, state, tau, facts):
        y, final, kept = launch_forward(p1, p2, info, log_retention, state, tau, facts)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(p1, p2, info, log_retention, kept)
        ctx.has_state, ctx.tau = state is not None, tau
        return y, final

    @staticmethod
    def backward(ctx, *gradients):
        # The wrapper takes two microseconds, and only create_graph needs it.
        return (_gradients_once if torch.is_grad_enabled() else _gradients)(ctx, *gradients)


def _gradients(ctx, dy, dfinal):
    saved = ctx.saved_tensors
    if dy is None:  # only the final state was used
        dy = torch.zeros_like(saved[0])
    *gradients, dstate = launch_backward(dy, dfinal, *saved, ctx.tau)
    return *gradients, dstate if ctx.has_state else None, None, None


_gradients_once = once_differentiable(_gradients)
