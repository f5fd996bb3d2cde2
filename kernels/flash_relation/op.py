"""FlashRelation as a function, with its checks, and as PyTorch operators.

No mathematics here: `launch` runs the passes, and is imported with the first call, since importing
this needs no Triton. torch.compile calls the operators without a graph break; they are opaque to
it, because Inductor cannot pass on a cap on registers. Eager PyTorch would spend longer on an
operator's dispatch than on its launches, so it calls the forward through an autograd function.
"""

import functools
import importlib.util
import os

import torch
from torch import Tensor
from torch.library import custom_op

from relation.errors import InputError
from relation.kernels.checks import check_device, check_floating, check_groups, check_tau
from relation.kernels.documents import Documents

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NARROWEST, WIDEST = 16, 128
OLDEST_CAPABILITY = (8, 0)


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
    _check_inputs(p1, p2, info, lam, tau)
    starts = ends = None
    if documents is not None:
        documents.check(p1)
        starts, ends = documents.starts, documents.ends
    run = _EagerRelation.apply if is_eager(p1, p2, info, lam) else relation_forward
    return run(p1, p2, info, lam, float(tau), transport_self, starts, ends)[0]


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def is_eager(*tensors: Tensor | None) -> bool:
    """Whether plain tensors are computed with now, and not traced, transformed or wrapped."""
    return not torch.compiler.is_compiling() and _PLAIN.issuperset(map(type, tensors))


def why_unavailable(device: torch.device | str) -> str | None:
    """The reason why FlashRelation cannot run on `device`, or None where it can."""
    device = torch.device(device)
    if not _has_triton():
        return "Triton is not installed; install triton"
    if device.type == "cpu":
        if os.environ.get("TRITON_INTERPRET") == "1":
            return None
        return "on a CPU it runs only in Triton's interpreter; set TRITON_INTERPRET=1 before Python"
    if device.type != "cuda" or torch.version.hip is not None:
        return f"it needs an NVIDIA GPU, and this device is {device}"
    return _why_gpu_unavailable(device.index)


# What torch.compiler.assume_constant_result sets. Calling that imports torch._dynamo, which takes
# every process two seconds.
why_unavailable._dynamo_marked_constant = True


@functools.cache  # every eager call asks, and looking takes as long as a launch
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _why_gpu_unavailable(index: int | None) -> str | None:
    if not torch.cuda.is_available():
        return "PyTorch finds no usable CUDA device"
    capability = torch.cuda.get_device_capability(index)
    if capability < OLDEST_CAPABILITY:
        have, need = (".".join(map(str, c)) for c in (capability, OLDEST_CAPABILITY))
        return f"it needs compute capability {need} or newer, and this device has {have}"
    return None


def _check_inputs(p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor, tau: float) -> None:
    check_floating(lam=lam)
    check_groups(p1=p1, p2=p2, info=info)
    check_device(p1, lam)
    check_tau(tau)
    if not NARROWEST <= p1.shape[-1] <= WIDEST:
        raise InputError(
            f"the head width is {p1.shape[-1]}; flash_relation takes {NARROWEST} to {WIDEST}"
        )
    if p1.dtype not in DTYPES:
        raise InputError(
            f"p1, p2 and info are {str(p1.dtype).removeprefix('torch.')}; give bfloat16, float16 or"
            " float32"
        )
    if lam.dtype != torch.float32 or tuple(lam.shape) not in ((), (1,)):
        raise InputError(
            f"lam has shape {tuple(lam.shape)} and dtype {str(lam.dtype).removeprefix('torch.')};"
            " give one float32 number"
        )
    if p1.device.type == "cpu" and p1.dtype == torch.bfloat16:
        raise InputError(
            "Triton's interpreter multiplies the bit patterns of bfloat16; on a CPU give all"
            " in float16 or float32"
        )
    reason = why_unavailable(p1.device)
    if reason is not None:
        raise InputError(f"flash_relation cannot run on {p1.device}: {reason}")


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
