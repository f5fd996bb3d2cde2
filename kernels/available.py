"""Which GPUs, dtypes and head widths the kernels accept. This file does not import Triton."""

import functools
import importlib.util
import os

import torch
from torch import Tensor

from relation.errors import InputError
from relation.kernels.checks import check_device, check_floating, check_groups, check_tau

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NARROWEST, WIDEST = 16, 128
OLDEST_CAPABILITY = (8, 0)
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def is_eager(*tensors: Tensor | None) -> bool:
    """Whether this is eager code with plain tensors: not compiling, and no tensor subclasses."""
    return not torch.compiler.is_compiling() and _PLAIN.issuperset(map(type, tensors))


def why_unavailable(device: torch.device | str) -> str | None:
    """Return the reason why the kernels cannot run on `device`, or None if they can."""
    device = torch.device(device)
    if not _has_triton():
        return "Triton is not installed; install triton"
    if device.type == "cpu":
        if os.environ.get("TRITON_INTERPRET") == "1":
            return None
        return (
            "it needs an NVIDIA GPU; on a CPU give no backend, or call relation.ops"
            " (TRITON_INTERPRET=1 turns on Triton's interpreter, for tests only)"
        )
    if device.type != "cuda" or torch.version.hip is not None:
        return f"it needs an NVIDIA GPU, and this device is {device}"
    return _why_gpu_unavailable(device.index)


# torch.compiler.assume_constant_result sets this attribute. Calling it would import torch._dynamo,
# which takes two seconds in every process.
why_unavailable._dynamo_marked_constant = True


def why_no_decoding(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Return the reason why `relation.kernels.decoding` cannot decode such a model, or None."""
    if dtype not in DTYPES:
        return f"the model computes in {dtype}; the kernels take bfloat16, float16 or float32"
    if not NARROWEST <= head_dim <= WIDEST:
        return f"the head width is {head_dim}; the kernels take {NARROWEST} to {WIDEST}"
    return why_unavailable(device)


@functools.cache  # every eager call asks, and find_spec takes as long as a launch
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


def check_arguments(
    name: str, p1: Tensor, p2: Tensor, info: Tensor, tau: float, **others: Tensor
) -> None:
    """Raise InputError unless the kernels of operator `name` accept its arguments.

    p1, p2 and info must pass `check_groups`; others must be floating tensors on the same device.
    """
    check_floating(**others)
    check_groups(p1=p1, p2=p2, info=info)
    check_device(p1, *others.values())
    check_tau(tau)
    if not NARROWEST <= p1.shape[-1] <= WIDEST:
        raise InputError(f"the head width is {p1.shape[-1]}; {name} takes {NARROWEST} to {WIDEST}")
    if p1.dtype not in DTYPES:
        dtype = str(p1.dtype).removeprefix("torch.")
        raise InputError(f"p1, p2 and info are {dtype}; give bfloat16, float16 or float32")


def check_available(name: str, p1: Tensor) -> None:
    """Raise InputError unless operator `name` can run on p1's device. Call this check last."""
    reason = why_unavailable(p1.device)
    if reason is not None:
        raise InputError(f"{name} cannot run on {p1.device}: {reason}")
    if p1.device.type == "cpu" and p1.dtype == torch.bfloat16:
        raise InputError(
            "Triton's interpreter multiplies bfloat16 numbers as bit patterns, which is wrong;"
            " on a CPU give p1, p2 and info in float16 or float32"
        )
