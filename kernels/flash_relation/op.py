"""FlashRelation as PyTorch operators for torch.compile, and as a plain function for eager calls.

`launch` computes; this file only registers. torch.compile calls the operators without a graph
break. They are opaque to it, because Inductor cannot pass a limit on registers to a kernel. Eager
calls avoid the operators, because an operator's dispatch takes longer than its launches.
"""

import torch
from torch.library import custom_op

from relation.kernels.common import eager, empty_tokens
from relation.kernels.flash_relation.launch import launch_backward, launch_forward

relation_forward = custom_op("relation::flash_relation", launch_forward, mutates_args=())
relation_backward = custom_op("relation::flash_relation_backward", launch_backward, mutates_args=())


@relation_forward.register_fake
def _(p1, p2, info, lam, tau, transport_self, starts=None, ends=None):
    rows = [p1.new_empty(p1.shape[:3], dtype=torch.float32) for _ in range(2)]
    return empty_tokens(p1, p1.shape[1]), *rows


@relation_backward.register_fake
def _(dy, p1, p2, info, y, gate_logit, log_norm, tau, transport_self, starts=None, ends=None):
    return *(empty_tokens(x, x.shape[1]) for x in (p1, p2, info)), log_norm.new_empty(())


def _save(ctx, inputs, output) -> None:
    p1, p2, info, lam, ctx.tau, ctx.transport_self, *documents = inputs
    # Without this, every backward would create zero gradients for gate_logit and log_norm.
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(p1, p2, info, *output, *documents)
    ctx.lam_shape = lam.shape


def _differentiate(ctx, dy, *_, launch=relation_backward):
    if dy is None:  # whatever read Y passes no gradient on
        return (None,) * 8
    *tensors, starts, ends = ctx.saved_tensors
    dp1, dp2, dinfo, dlam = launch(dy, *tensors, ctx.tau, ctx.transport_self, starts, ends)
    return dp1, dp2, dinfo, dlam.reshape(ctx.lam_shape), None, None, None, None


relation_forward.register_autograd(_differentiate, setup_context=_save)

EagerRelation = eager(launch_forward, _save, _differentiate, launch_backward)
