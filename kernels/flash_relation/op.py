"""FlashRelation as a function, with its checks, and as PyTorch operators.

No mathematics here: `launch` runs the passes, and is imported with the first call, since importing
this needs no Triton. torch.compile calls the operators without a graph break; they are opaque to
it, because Inductor cannot pass on a cap on registers. Eager PyTorch would spend longer on an
operator's dispatch than on its launches, so it calls the forward through an autograd function.
"""

import torch
from torch import Tensor
from torch.library import custom_op

from relation.errors import InputError
from relation.kernels.available import check_arguments, check_available, is_eager
from relation.kernels.documents import Documents


def flash_relation(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    lam: Tensor,
    tau: float = 2.0,
    *,
    transport_self: bool = True,
    documents: Documents | None = None,
) -> Tensor:
    """Full Relation, Y = F I, in memory linear in T (Section 3.1; Appendix A.1 and A.3).

    p1, p2, info: (B, H, T, D), one of BF16, FP16 and FP32, any strides, T from 1 to 1,048,560
    (16-bit: four times that; CUDA refuses more than 65,535 blocks of a head) and D from 16 to 128;
    p1 and p2 after RoPE, info after Givens mixing; p2 and info may have fewer heads, a divisor of
    H, each read by neighbouring heads of p1. lam: one FP32 number, shape () or (1,). Returns
    (B, H, T, D) in their dtype, stored as (B, T, H, D). Scores, normalisers and sums are FP32.
    Differentiable once in p1, p2, info and lam; equal inputs give bitwise equal gradients.
    `transport_self=False` is the exchange-only ablation (Appendix D.1): the same flow, of which
    only the entries j < i carry information. documents: a token sees its own alone, and i counts
    in it; tiles without a row's document are not read.

    Raises InputError for other shapes, dtypes, mixed devices or tau <= 0, and on a device for
    which `why_unavailable` has a reason.
    """
    check_arguments("flash_relation", p1, p2, info, tau, lam=lam)
    if lam.dtype != torch.float32 or tuple(lam.shape) not in ((), (1,)):
        dtype = str(lam.dtype).removeprefix("torch.")
        raise InputError(
            f"lam has shape {tuple(lam.shape)} and dtype {dtype}; give one float32 number"
        )
    check_available("flash_relation", p1)
    starts = ends = None
    if documents is not None:
        documents.check(p1)
        starts, ends = documents.starts, documents.ends
    run = _EagerRelation.apply if is_eager(p1, p2, info, lam) else relation_forward
    return run(p1, p2, info, lam, float(tau), transport_self, starts, ends)[0]


def _forward(
    p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor, tau: float, transport_self: bool,
    starts: Tensor | None = None, ends: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`launch.launch_forward`; only Y, the first, has a gradient, for which `ends` is kept."""
    from relation.kernels.flash_relation.launch import launch_forward

    return launch_forward(p1, p2, info, lam, tau, transport_self, starts=starts)


relation_forward = custom_op("relation::flash_relation", _forward, mutates_args=())


@custom_op("relation::flash_relation_backward", mutates_args=())
def relation_backward(
    dy: Tensor, p1: Tensor, p2: Tensor, info: Tensor, y: Tensor, gate_logit: Tensor,
    log_norm: Tensor, tau: float, transport_self: bool,
    starts: Tensor | None = None, ends: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`launch.launch_backward`, which has no gradient itself."""
    from relation.kernels.flash_relation.launch import launch_backward

    given = dy, p1, p2, info, y, gate_logit, log_norm, tau, transport_self
    return launch_backward(*given, starts=starts, ends=ends)


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


class _EagerRelation(torch.autograd.Function):
    """`relation_forward` without an operator's dispatch."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_save)
    backward = staticmethod(_differentiate)
