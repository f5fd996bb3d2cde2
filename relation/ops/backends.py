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
from relation.variants import MIXERS, ModelConfig


@dataclass(frozen=True)
class Backend:
    """One implementation of one operator.

    eager: it stays outside torch.compile: the reference is measured as it is written, and loops
    over tokens or tiles would be unrolled into graphs of thousands of nodes. why_not: of a device,
    the reason why the kernel behind `call` cannot run there, or None.
    """

    call: Callable[..., Tensor]
    eager: bool = False
    why_not: Callable[[torch.device], str | None] = lambda device: None

    def why_unavailable(self, device: torch.device) -> str | None:
        """The reason why it cannot run on `device`, or None where it can."""
        if device.type == "cuda" and not torch.cuda.is_available():
            return "PyTorch finds no usable CUDA device"
        return self.why_not(device)

    def function(self, compiled: bool) -> Callable[..., Tensor]:
        """What a model calls; where that is compiled, torch.compile steps around eager ones."""
        return torch.compiler.disable(self.call) if compiled and self.eager else self.call


def _is_older(device: torch.device, major: int) -> bool:
    """Whether a GPU of NVIDIA has a compute capability below `major`.0."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] < major


def _why_no_flash_attention(device: torch.device) -> str | None:
    if device.type not in ("cpu", "cuda"):
        return f"PyTorch has FlashAttention for CPUs and CUDA GPUs, and this device is {device}"
    if device.type == "cpu":
        return None
    if not torch.backends.cuda.is_flash_attention_available():
        return "this PyTorch was built without FlashAttention"
    return "FlashAttention needs compute capability 8.0" if _is_older(device, 8) else None


def _why_no_cuda(device: torch.device) -> str | None:
    return None if device.type == "cuda" else f"it needs a CUDA device, and this one is {device}"


def _why_no_cudnn(device: torch.device) -> str | None:
    if device.type == "cuda" and not torch.backends.cudnn.is_available():
        return "this PyTorch was built without cuDNN"
    return _why_no_cuda(device)


def _why_no_flex_attention(device: torch.device) -> str | None:
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "FlexAttention needs Triton; install triton"
    if device.type == "cuda" and _is_older(device, 7):
        return "FlexAttention needs compute capability 7.0"
    return _why_no_cuda(device)


# torch.compile takes the answers as they are at trace time.
for _function in (_is_older, _why_no_flash_attention, _why_no_flex_attention):
    _function._dynamo_marked_constant = True


def _sdpa(kernel: SDPBackend, why_not: Callable[[torch.device], str | None]) -> Backend:
    return Backend(partial(fused_attention, kernel=kernel), why_not=why_not)


# "calibrated" is Full Relation with attention's logits as Exchange; FlashRelation has SiLU alone.
BACKENDS: dict[str, dict[str, Backend]] = {
    "mha": {
        "reference": Backend(causal_attention, eager=True),
        "flash": _sdpa(SDPBackend.FLASH_ATTENTION, _why_no_flash_attention),
        "cudnn": _sdpa(SDPBackend.CUDNN_ATTENTION, _why_no_cudnn),
        "efficient": _sdpa(SDPBackend.EFFICIENT_ATTENTION, _why_no_cuda),
    },
    "full": {
        "reference": Backend(full_relation, eager=True),
        "materialised": Backend(full_relation),  # the same, compiled where the model is
        "tiled": Backend(tiled_relation, eager=True),
        "flex": Backend(flex_relation, why_not=_why_no_flex_attention),
        "flash": Backend(flash_relation, why_not=why_unavailable),
    },
    "calibrated": {
        "reference": Backend(partial(full_relation, silu=False), eager=True),
        "tiled": Backend(partial(tiled_relation, silu=False), eager=True),
        "flex": Backend(partial(flex_relation, silu=False), why_not=_why_no_flex_attention),
    },
    "linear": {
        "recurrent": Backend(linear_relation, eager=True),
        "chunked": Backend(chunked_linear_relation, eager=True),
        "flash": Backend(fused_linear_relation, why_not=why_unavailable),
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
        flashes = _why_no_flash_attention(x.device) is None and not (documents and null)
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
    flexes = not lacks and width >= NARROWEST and _why_no_flex_attention(x.device) is None
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
    """`_warn`, also where torch.compile traces: it takes no cached function as a constant."""
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
        call = BACKENDS[self.operator][name].function(self.compiled)
        return call(first, *inputs, documents=documents, **options)


@dataclass(frozen=True)
class Execution:
    """Backends by operator, names of `relation.ops.BACKENDS`; None takes the fastest that runs.

    They never change what is computed. compiled: the model will be traced by torch.compile, which
    then steps around the backends that are marked eager.
    """

    mha: str | None = None
    full: str | None = None
    linear: str | None = None
    calibrated: str | None = None
    compiled: bool = False

    def calls(
        self, config: ModelConfig, device: torch.device | None = None
    ) -> dict[str, Callable[..., Tensor]]:
        """The function of each operator that the model uses.

        Raises InputError for an unknown backend or, given a device, for one it cannot run.
        """
        functions: dict[str, Callable[..., Tensor]] = {}
        for operator in dict.fromkeys(MIXERS[letter] for letter in config.layout):
            name = getattr(self, operator)
            if name is None:
                functions[operator] = Automatic(operator, self.compiled)
            else:
                functions[operator] = get_backend(operator, name, device).function(self.compiled)
        return functions
