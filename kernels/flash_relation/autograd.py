"""FlashRelation as PyTorch operators, which autograd and torch.compile call without a graph break.

No mathematics here: `forward` and `backward` compute, this file registers. The operators are opaque
to the compiler, because Inductor cannot pass on a cap on registers.
"""

import torch
from torch import Tensor
from torch.library import custom_op

from relation.kernels.flash_relation.backward import launch_backward
from relation.kernels.flash_relation.forward import launch_forward


@custom_op("relation::flash_relation", mutates_args=())
def relation_forward(
    p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor, tau: float, transport_self: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`launch_forward`; only the first result, Y, has a gradient."""
    return launch_forward(p1, p2, info, lam, tau, transport_self)


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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`launch_backward`."""
    return launch_backward(dy, p1, p2, info, y, gate_logit, log_norm, tau, transport_self)


def _tokens_like(x: Tensor) -> Tensor:
    B, H, T, D = x.shape
    return x.new_empty((B, T, H, D)).transpose(1, 2)


@relation_forward.register_fake
def _(p1, p2, info, lam, tau, transport_self):
    rows = [info.new_empty(info.shape[:3], dtype=torch.float32) for _ in range(2)]
    return _tokens_like(info), *rows


@relation_backward.register_fake
def _(dy, p1, p2, info, y, gate_logit, log_norm, tau, transport_self):
    return *(_tokens_like(x) for x in (p1, p2, info)), log_norm.new_empty(())


def _save(ctx, inputs, output) -> None:
    p1, p2, info, lam, ctx.tau, ctx.transport_self = inputs
    # Without this, autograd would fill zero gradients of the row statistics in every backward.
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(p1, p2, info, *output)
    ctx.lam_shape = lam.shape


def _differentiate(ctx, dy, *_):
    dp1, dp2, dinfo, dlam = relation_backward(dy, *ctx.saved_tensors, ctx.tau, ctx.transport_self)
    return dp1, dp2, dinfo, dlam.reshape(ctx.lam_shape), None, None


relation_forward.register_autograd(_differentiate, setup_context=_save)
