"""The backends by name: the implementations of each operator, and the choice of a default."""

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
from relation.variants import OPERATORS, ModelConfig


@dataclass(frozen=True)
class Backend:
    """One implementation of one operator.

    eager: keep it out of torch.compile. Benchmarks measure the reference uncompiled, and the
    compiler would unroll loops over tokens or tiles into graphs of thousands of nodes. why_not:
    returns the reason why a device cannot run the kernel behind `call`, or None.
    """

    call: Callable[..., Tensor]
    eager: bool = False
    why_not: Callable[[torch.device], str | None] = lambda device: None

    def why_unavailable(self, device: torch.device) -> str | None:
        """The reason why the backend cannot run on `device`, or None if it can."""
        if device.type == "cuda" and not torch.cuda.is_available():
            return "PyTorch finds no usable CUDA device"
        return self.why_not(device)

    def function(self, compiled: bool) -> Callable[..., Tensor]:
        """The function that a model calls. In a compiled model an eager one stays uncompiled."""
        return torch.compiler.disable(self.call) if compiled and self.eager else self.call


def _is_older(device: torch.device, major: int) -> bool:
    """Whether an NVIDIA GPU has a compute capability below `major`.0."""
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


def _why_no_flex_attention(device: torch.device) -> str | None:
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "FlexAttention needs Triton; install triton"
    if device.type == "cuda" and _is_older(device, 7):
        return "FlexAttention needs compute capability 7.0"
    return _why_no_cuda(device)


# torch.compile calls these functions once, while it traces, and keeps the answers as constants.
for _function in (_is_older, _why_no_flash_attention, _why_no_flex_attention):
    _function._dynamo_marked_constant = True


def _sdpa(kernel: SDPBackend, why_not: Callable[[torch.device], str | None]) -> Backend:
    return Backend(partial(fused_attention, kernel=kernel), why_not=why_not)


# "calibrated" is Full Relation with U as Exchange. It has no "flash": the kernels apply SiLU.
BACKENDS: dict[str, dict[str, Backend]] = {
    "mha": {
        "reference": Backend(causal_attention, eager=True),
        "flash": _sdpa(SDPBackend.FLASH_ATTENTION, _why_no_flash_attention),
        "cudnn": _sdpa(SDPBackend.CUDNN_ATTENTION, _why_no_cuda),
        "efficient": _sdpa(SDPBackend.EFFICIENT_ATTENTION, _why_no_cuda),
    },
    "full": {
        "reference": Backend(full_relation, eager=True),
        "materialised": Backend(full_relation),  # the reference, compiled if the model is
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
    """Return the backend `name` of an operator, "mha", "full", "calibrated" or "linear".

    Raises InputError for an unknown name and, if a device is given, for a backend that cannot run
    on it. Never returns another backend instead.
    """
    check_among(operator, BACKENDS, f"unknown operator {operator!r}")
    check_among(name, BACKENDS[operator], f"operator {operator!r} has no backend {name!r}")
    backend = BACKENDS[operator][name]
    reason = None if device is None else backend.why_unavailable(torch.device(device))
    if reason:
        raise InputError(f"backend {name!r} of {operator!r} cannot run here: {reason}")
    return backend


def default_backend(operator: str, x: Tensor, documents: bool = False, null: bool = False) -> str:
    """Return the name of the fastest backend that runs x, (B, H, T, D), if the user named none.

    On CUDA it is a kernel if device, dtype and head width allow; otherwise PyTorch in memory linear
    in T, except for MHA (see `_default_attention`).
    """
    if operator == "mha":
        return _default_attention(x, documents, null)
    fits = x.dtype in DTYPES and NARROWEST <= x.shape[3] <= WIDEST
    if operator != "calibrated" and x.is_cuda and fits and why_unavailable(x.device) is None:
        return "flash"
    if operator == "linear":
        return "chunked"
    flexes = _why_no_flex_attention(x.device) is None and not _lacks_kernels(x)
    return "flex" if flexes and x.shape[3] >= NARROWEST else "tiled"


def _default_attention(x: Tensor, documents: bool, null: bool) -> str:
    """`default_backend` of MHA. What its kernels refuse runs in the quadratic `reference`."""
    flashes = _why_no_flash_attention(x.device) is None
    if not x.is_cuda:
        # FlashAttention reads each document alone here, which torch.compile cannot trace.
        refused = documents and (null or torch.compiler.is_compiling())
        return "flash" if flashes and not refused else "reference"
    narrow = x.dtype in (torch.bfloat16, torch.float16)
    if flashes and narrow and x.shape[3] <= 256 and not (documents and null):
        return "flash"
    # PyTorch's memory-efficient kernel needs rows of a multiple of 16 bytes.
    aligned = x.shape[3] * x.dtype.itemsize % 16 == 0
    return "efficient" if aligned and not documents and not _lacks_kernels(x) else "reference"


def _lacks_kernels(x: Tensor) -> bool:
    """Whether neither Triton nor PyTorch has kernels for x on a GPU: FP64, BF16 before Ampere."""
    is_old = x.is_cuda and x.dtype == torch.bfloat16 and _is_older(x.device, 8)
    return is_old or x.dtype == torch.float64


_BEST = {"mha": "flash", "full": "flash", "linear": "flash", "calibrated": "flex"}


@functools.cache
def _warn(operator: str, name: str, dtype: torch.dtype, width: int, device: torch.device) -> None:
    """Warn once per case that a GPU does not run an operator's fastest backend, and say why."""
    best = _BEST[operator]
    why = BACKENDS[operator][best].why_unavailable(device)
    call = f"{str(dtype).removeprefix('torch.')}, head width {width}, its documents or null logit"
    why = why or f"it does not take this call ({call})"
    warnings.warn(f"{operator} on {device} runs {name!r} and not {best!r}: {why}", stacklevel=2)


def _say(*choice) -> None:
    """`_warn`, also under torch.compile, which takes no cached function as a constant."""
    _warn(*choice)


_say._dynamo_marked_constant = True


@dataclass(frozen=True)
class Operator:
    """An operator of a model, on the backend `name`; None: on the `default_backend` of each call.

    A class and not a closure, so that a model that holds it can be pickled.
    """

    operator: str
    name: str | None = None
    compiled: bool = False

    def __call__(self, first: Tensor, *inputs, documents=None, **options):
        """Run the operator. Raises InputError if a named backend cannot run on the device."""
        name = self.name
        if name is None:
            null = bool(options.get("null"))
            name = default_backend(self.operator, first, documents is not None, null)
            if first.is_cuda and name != _BEST[self.operator]:
                _say(self.operator, name, first.dtype, first.shape[3], first.device)
        backend = get_backend(self.operator, name, first.device if self.name else None)
        return backend.function(self.compiled)(first, *inputs, documents=documents, **options)


@dataclass(frozen=True)
class Execution:
    """The backend of each operator, a name in `relation.ops.BACKENDS`; None: the fastest that runs.

    Backends differ in speed and memory, and all compute the same function. compiled: torch.compile
    will trace the model, so the backends that are marked eager are excluded from tracing.
    """

    mha: str | None = None
    full: str | None = None
    linear: str | None = None
    calibrated: str | None = None
    compiled: bool = False

    def calls(self, config: ModelConfig, device: torch.device | None = None) -> dict[str, Operator]:
        """Return each operator that the model uses, by its name.

        Raises InputError for an unknown backend or, with a device, for one that it cannot run.
        """
        used = {OPERATORS[letter] for letter in config.layout}
        names = {operator: getattr(self, operator) for operator in BACKENDS}
        for operator, name in names.items():
            if name is not None:
                get_backend(operator, name, device if operator in used else None)
        return {operator: Operator(operator, names[operator], self.compiled) for operator in used}
