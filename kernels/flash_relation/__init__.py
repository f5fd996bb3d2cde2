"""FlashRelation: Full Relation, exact, by tiles (the paper's Sections 3.1 and 5.1)."""

import functools
import importlib.util
import os

import torch

from relation.errors import InputError
from relation.kernels.checks import (
    check_device,
    check_floating,
    check_groups,
    check_once,
    check_tau,
)
from relation.kernels.documents import Documents

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NARROWEST, WIDEST = 16, 128
OLDEST_CAPABILITY = (8, 0)


def flash_relation(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    lam: torch.Tensor,
    tau: float = 2.0,
    *,
    transport_self: bool = True,
    documents: Documents | None = None,
) -> torch.Tensor:
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
    eager = is_eager(p1, p2, info, lam)
    if eager:
        facts = check_once(_check_inputs, p1, p2, info, lam, tau=tau)
    else:
        _check_inputs(p1, p2, info, lam, tau)
    starts = ends = None
    if documents is not None:
        documents.check(p1)
        starts, ends = documents.starts, documents.ends
    given = p1, p2, info, lam, float(tau), transport_self, starts, ends
    if eager:
        return _eager_relation().apply(*given, facts)
    from relation.kernels.flash_relation.autograd import relation_forward

    return relation_forward(*given)[0]


@functools.cache  # an import statement takes a microsecond
def _eager_relation() -> type[torch.autograd.Function]:
    # Registering the operators compiles nothing, but it imports Triton.
    from relation.kernels.flash_relation.autograd import EagerRelation

    return EagerRelation


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def is_eager(*tensors: torch.Tensor | None) -> bool:
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


def _check_inputs(
    p1: torch.Tensor, p2: torch.Tensor, info: torch.Tensor, lam: torch.Tensor, tau: float
) -> None:
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
