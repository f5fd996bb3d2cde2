"""Backends by name: which implementation executes an operator, and which one by default."""

import functools
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from relation.errors import InputError, check_among
from relation.kernels import flash_relation
from relation.kernels.available import DTYPES, NARROWEST, WIDEST, why_unavailable
from relation.kernels.linear_relation import linear_relation as fused_linear_relation
from relation.ops.attention import causal_attention, fused_attention
from relation.ops.flex import flex_relation
from relation.ops.full import full_relation
from relation.ops.linear import chunked_linear_relation, linear_relation
from relation.ops.tiled import tiled_relation


@dataclass(frozen=True)
class Backend:
    """One implementation of one operator.

    eager: it stays outside torch.compile: the reference is measured as it is written, and loops
    over tokens or tiles would be unrolled into graphs of thousands of nodes. kernel: what runs it,
    a key of `_why_not`; None: plain PyTorch.
    """

    call: Callable[..., Tensor]
    eager: bool = False
    kernel: str | None = None

    def why_unavailable(self, device: torch.device) -> str | None:
        """The reason why it cannot run on `device`, or None where it can."""
        if device.type == "cuda" and not torch.cuda.is_available():
            return "PyTorch finds no usable CUDA device"
        return self.kernel and _why_not(self.kernel, device)


def _is_older(device: torch.device, major: int) -> bool:
    """Whether a GPU of NVIDIA has a compute capability below `major`.0."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] < major


def _why_not(kernel: str, device: torch.device) -> str | None:
    """Why a kernel, Triton's ("ours") or one of PyTorch's, cannot run on `device`, or None."""
    if kernel == "ours":
        return why_unavailable(device)
    cuda = device.type == "cuda"
    if kernel == "flash":
        if device.type not in ("cpu", "cuda"):
            return f"PyTorch has FlashAttention for CPUs and CUDA GPUs, and this device is {device}"
        if cuda and not torch.backends.cuda.is_flash_attention_available():
            return "this PyTorch was built without FlashAttention"
        return (
            "FlashAttention needs compute capability 8.0" if cuda and _is_older(device, 8) else None
        )
    if not cuda:
        return f"it needs a CUDA device, and this one is {device}"
    if kernel == "flex" and importlib.util.find_spec("triton") is None:
        return "FlexAttention needs Triton; install triton"
    if kernel == "flex" and _is_older(device, 7):
        return "FlexAttention needs compute capability 7.0"
    if kernel == "cudnn" and not torch.backends.cudnn.is_available():
        return "this PyTorch was built without cuDNN"
    return None


# torch.compile takes the answers as they are at trace time.
_is_older._dynamo_marked_constant = _why_not._dynamo_marked_constant = True


_SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
# "calibrated" is Full Relation with attention's logits as Exchange; FlashRelation has SiLU alone.
BACKENDS: dict[str, dict[str, Backend]] = {
    "mha": {
        "reference": Backend(causal_attention, eager=True),
        **{n: Backend(partial(fused_attention, kernel=k), kernel=n) for n, k in _SDPA.items()},
    },
    "full": {
        "reference": Backend(full_relation, eager=True),
        "materialised": Backend(full_relation),  # the same, compiled where the model is
        "tiled": Backend(tiled_relation, eager=True),
        "flex": Backend(flex_relation, kernel="flex"),
        "flash": Backend(flash_relation, kernel="ours"),
    },
    "calibrated": {
        "reference": Backend(partial(full_relation, silu=False), eager=True),
        "tiled": Backend(partial(tiled_relation, silu=False), eager=True),
        "flex": Backend(partial(flex_relation, silu=False), kernel="flex"),
    },
    "linear": {
        "recurrent": Backend(linear_relation, eager=True),
        "chunked": Backend(chunked_linear_relation, eager=True),
        "flash": Backend(fused_linear_relation, kernel="ours"),
    },
}


def get_backend(operator: str, name: str, device: torch.device | str | None = None) -> Backend:
    """The backend `name` of an operator, "mha", "full", "calibrated" or "linear".

    With a device, also checks that it can run there. Raises InputError for an unknown name or a
    backend that the device cannot run; another one is never taken in its place.
    """
    check_among(operator, BACKENDS, f"unknown operator {operator!r}")
    check_among(name, BACKENDS[operator], f"operator {operator!r} has no backend {name!r}")
    backend = BACKENDS[operator][name]
    reason = None if device is None else backend.why_unavailable(torch.device(device))
    if reason:
        raise InputError(f"backend {name!r} of {operator!r} cannot run here: {reason}")
    return backend


def default_backend(operator: str, x: Tensor, documents: bool = False, null: bool = False) -> str:
    """The name of the fastest backend that runs x, (B, H, T, D), where nobody named one.

    On CUDA the kernels, where device, dtype and head width allow; elsewhere plain PyTorch in memory
    linear in T. MHA alone has no such form on a GPU for FP64, for BF16 before Ampere, for rows that
    are no multiple of 16 bytes, and for a null logit in documents.
    """
    width, narrow = x.shape[3], x.dtype in (torch.bfloat16, torch.float16)
    # Before Ampere neither Triton nor PyTorch's kernels have BF16.
    lacks = x.dtype == torch.float64 or (
        x.is_cuda and x.dtype == torch.bfloat16 and _is_older(x.device, 8)
    )
    if operator == "mha":
        flashes = not _why_not("flash", x.device) and not (documents and null)
        if flashes and (not x.is_cuda or (narrow and width <= 256)):
            return "flash"
        # PyTorch's memory-efficient kernel reads rows in pieces of 16 bytes.
        aligned = width * x.dtype.itemsize % 16 == 0
        return "efficient" if x.is_cuda and aligned and not (documents or lacks) else "reference"
    fits = x.dtype in DTYPES and NARROWEST <= width <= WIDEST
    if operator != "calibrated" and x.is_cuda and fits and why_unavailable(x.device) is None:
        return "flash"
    if operator == "linear":
        return "chunked"
    flexes = not lacks and width >= NARROWEST and _why_not("flex", x.device) is None
    return "flex" if flexes else "tiled"


_BEST = {"mha": "flash", "full": "flash", "linear": "flash", "calibrated": "flex"}


@functools.cache
def _warn(operator: str, name: str, dtype: torch.dtype, width: int, device: torch.device) -> None:
    """Say once why a GPU does not run an operator's fastest backend."""
    best = _BEST[operator]
    why = BACKENDS[operator][best].why_unavailable(device)
    why = why or f"it does not take {str(dtype).removeprefix('torch.')} in heads of {width} there"
    warnings.warn(f"{operator} on {device} runs {name!r} and not {best!r}: {why}", stacklevel=2)


def _say(*choice) -> None:
    """`_warn`, also where torch.compile traces."""
    _warn(*choice)


_say._dynamo_marked_constant = True


@dataclass(frozen=True)
class Automatic:
    """An operator by `default_backend` of what it is given, chosen at each call.

    Not a closure: a model that is saved whole, or sent to another process, is pickled with it.
    """

    operator: str
    compiled: bool = False

    def __call__(self, first: Tensor, *inputs, documents=None, **options):
        null = bool(options.get("null"))
        name = default_backend(self.operator, first, documents is not None, null)
        if first.is_cuda and name != _BEST[self.operator]:
            _say(self.operator, name, first.dtype, first.shape[3], first.device)
        call = around(BACKENDS[self.operator][name], self.compiled)
        return call(first, *inputs, documents=documents, **options)


def around(backend: Backend, compiled: bool) -> Callable[..., Tensor]:
    """A backend's function; where the model is compiled, the compiler steps around eager ones."""
    return torch.compiler.disable(backend.call) if compiled and backend.eager else backend.call
