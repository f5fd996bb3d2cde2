"""Register Linear Relation as PyTorch operators, and as an autograd function for eager calls.

`launch` does the computing. torch.compile calls the operators without a graph break and does not
look inside them. Eager calls skip the operators, because an operator's dispatch takes as long as
two kernel launches.
"""

import torch
from torch.library import custom_op

from relation.kernels.common import eager, empty_tokens
from relation.kernels.linear_relation.launch import Call, launch_backward, launch_forward

linear_forward = custom_op("relation::linear_relation", launch_forward, mutates_args=())
linear_backward = custom_op("relation::linear_relation_backward", launch_backward, mutates_args=())


@linear_forward.register_fake
def _(p1, p2, info, log_retention, state, tau):
    call = Call.of(p1, p2)
    (final,) = call.empty(p1, p1.shape[3:] * 2)
    return empty_tokens(info, p1.shape[1]), final, *call.empty_kept(p1)


@linear_backward.register_fake
def _(dy, dfinal, p1, p2, info, log_retention, kept, tau):
    (dinitial,) = Call.of(p1, p2).empty(p1, p1.shape[3:] * 2)
    return *(empty_tokens(x, x.shape[1]) for x in (p1, p2, info, log_retention)), dinitial


def _save(ctx, inputs, output) -> None:
    *tensors, state, ctx.tau = inputs
    # Only y and the final state have gradients.
    _, _, *kept = output
    # Otherwise every backward fills a tensor with zeros if the final state has no gradient.
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

EagerRelation = eager(launch_forward, _save, _differentiate, launch_backward)
