"""FlashRelation as PyTorch operators, which autograd and torch.compile see through.

No mathematics here: `kernels` computes, this file registers.
"""

import torch
from torch.library import triton_op

from kernels.flash_relation.kernels import launch_backward, launch_forward


@triton_op("relation::flash_relation", mutates_args=())
def relation_forward(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    lam: torch.Tensor,
    tau: float,
    transport_self: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`launch_forward`; only the first result, Y, has a gradient."""
    return launch_forward(p1, p2, info, lam, tau, transport_self)


@triton_op("relation::flash_relation_backward", mutates_args=())
def relation_backward(
    dy: torch.Tensor,
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    zbar: torch.Tensor,
    gate_logit: torch.Tensor,
    log_norm: torch.Tensor,
    tau: float,
    transport_self: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`launch_backward`."""
    return launch_backward(dy, p1, p2, info, zbar, gate_logit, log_norm, tau, transport_self)


def _save(ctx, inputs, output) -> None:
    p1, p2, info, lam, ctx.tau, ctx.transport_self = inputs
    _, zbar, gate_logit, log_norm = output
    # Without this, autograd would fill a zero gradient of zbar's size in every backward.
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(zbar, gate_logit, log_norm)
    ctx.save_for_backward(p1, p2, info, zbar, gate_logit, log_norm)
    ctx.lam_shape = lam.shape


def _differentiate(ctx, dy, *_):
    dp1, dp2, dinfo, dlam = relation_backward(dy, *ctx.saved_tensors, ctx.tau, ctx.transport_self)
    return dp1, dp2, dinfo, dlam.reshape(ctx.lam_shape), None, None


relation_forward.register_autograd(_differentiate, setup_context=_save)
