"""FlashRelation as PyTorch operators for torch.compile, and as a plain function for eager calls.

No mathematics here: `forward` and `backward` compute, this file registers. torch.compile calls the
operators without a graph break; they are opaque to it, because Inductor cannot pass on a cap on
registers. Eager PyTorch would spend longer on an operator's dispatch than on its launches.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.library import custom_op

from relation.kernels.flash_relation.backward import launch_backward
from relation.kernels.flash_relation.forward import launch_forward


@custom_op("relation::flash_relation", mutates_args=())
def relation_forward(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    lam: Tensor,
    tau: float,
    transport_self: bool,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`launch_forward`; only the first result, Y, has a gradient, for which `ends` is kept."""
    return launch_forward(p1, p2, info, lam, tau, transport_self, starts=starts)


@custom_op("relation::flash_relation_backward", mutates_args=())
def relation_backward(
    dy: Tensor,
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    y: Tensor,
    gate_logit: Tensor,
    log_norm: Tensor,
    tau: float,
    transport_self: bool,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`launch_backward`."""
    rows = gate_logit, log_norm
    documents = {"starts": starts, "ends": ends}
    return launch_backward(dy, p1, p2, info, y, *rows, tau, transport_self, **documents)


def _tokens_like(x: Tensor) -> Tensor:
    B, H, T, D = x.shape
    return x.new_empty((B, T, H, D)).transpose(1, 2)


@relation_forward.register_fake
def _(p1, p2, info, lam, tau, transport_self, starts=None, ends=None):
    rows = [p1.new_empty(p1.shape[:3], dtype=torch.float32) for _ in range(2)]
    return _tokens_like(p1), *rows


@relation_backward.register_fake
def _(dy, p1, p2, info, y, gate_logit, log_norm, tau, transport_self, starts=None, ends=None):
    return *(_tokens_like(x) for x in (p1, p2, info)), log_norm.new_empty(())


def _save(ctx, inputs, output) -> None:
    p1, p2, info, lam, ctx.tau, ctx.transport_self, *documents = inputs
    # Without this, autograd would fill zero gradients of the row statistics in every backward.
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(p1, p2, info, *output, *documents)
    ctx.lam_shape = lam.shape


def _differentiate(ctx, dy, *_):
    *tensors, starts, ends = ctx.saved_tensors
    numbers = ctx.tau, ctx.transport_self
    dp1, dp2, dinfo, dlam = relation_backward(dy, *tensors, *numbers, starts, ends)
    return dp1, dp2, dinfo, dlam.reshape(ctx.lam_shape), None, None, None, None


relation_forward.register_autograd(_differentiate, setup_context=_save)


class EagerRelation(torch.autograd.Function):
    """The same without the operators' dispatch: Y of `relation_forward`'s arguments."""

    @staticmethod
    def forward(ctx, p1, p2, info, lam, tau, transport_self, starts, ends, facts):
        y, gate_logit, log_norm = launch_forward(
            p1, p2, info, lam, tau, transport_self, starts=starts, facts=facts
        )
        ctx.save_for_backward(p1, p2, info, y, gate_logit, log_norm, starts, ends)
        ctx.rest = tau, transport_self, lam.shape
        return y

    @staticmethod
    def backward(ctx, dy):
        # The wrapper takes two microseconds, and only create_graph needs it.
        return _gradients_once(ctx, dy) if torch.is_grad_enabled() else _gradients(ctx, dy)


def _gradients(ctx, dy):
    p1, p2, info, y, gate_logit, log_norm, starts, ends = ctx.saved_tensors
    tau, transport_self, shape = ctx.rest
    given = dy, p1, p2, info, y, gate_logit, log_norm, tau, transport_self
    dp1, dp2, dinfo, dlam = launch_backward(*given, starts=starts, ends=ends)
    return dp1, dp2, dinfo, dlam.view(shape) if shape else dlam, None, None, None, None, None


_gradients_once = once_differentiable(_gradients)
