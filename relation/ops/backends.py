"""Backends by name: which implementation executes an operator, and why one cannot run here."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from relation.errors import InputError
from relation.kernels.flash_relation import flash_relation, why_unavailable
from relation.kernels.linear_relation import linear_relation as fused_linear_relation
from relation.ops.attention import causal_attention, cudnn_attention, flash_attention
from relation.ops.flex import flex_relation
from relation.ops.full import full_relation
from relation.ops.linear import (
    chunked_linear_relation,
    expanded_linear_relation,
    linear_relation,
)
from relation.ops.tiled import tiled_relation
from relation.registry import Registry, tells


@dataclass(frozen=True)
class Backend:
    """One implementation of one operator.

    `eager` ones stay outside torch.compile: the materialised reference is measured as it is
    written, and loops over tokens or tiles would be unrolled into graphs of thousands of nodes.
    `refusal` gives the reason why an existing device cannot run it, or None.
    """

    operator: str
    name: str
    call: Callable[..., torch.Tensor]
    summary: str
    eager: bool = False
    refusal: Callable[[torch.device], str | None] = lambda device: None

    @property
    def key(self) -> tuple[str, str]:
        return self.operator, self.name

    def why_unavailable(self, device: torch.device) -> str | None:
        """The reason why it cannot run on `device`, or None where it can."""
        if device.type == "cuda" and not torch.cuda.is_available():
            return "PyTorch finds no usable CUDA device"
        return self.refusal(device)


@tells
def _flash_attention_refusal(device: torch.device) -> str | None:
    if device.type == "cuda" and not torch.backends.cuda.is_flash_attention_available():
        return "this PyTorch was built without FlashAttention"
    if device.type not in ("cpu", "cuda"):
        return f"PyTorch has FlashAttention for CPUs and CUDA GPUs, and this device is {device}"
    return None


@tells
def _cudnn_refusal(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"it needs a CUDA device, and this one is {device}"
    return None if torch.backends.cudnn.is_available() else "this PyTorch was built without cuDNN"


@tells
def _flex_refusal(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"PyTorch's FlexAttention has no backward pass on this device, {device}; take tiled"
    return None


@tells
def _flash_refusal(device: torch.device) -> str | None:
    return why_unavailable(device)


BACKENDS: Registry[tuple[str, str], Backend] = Registry(
    Backend(
        "mha", "reference", causal_attention, summary="materialised softmax attention", eager=True
    ),
    Backend(
        "mha",
        "flash",
        flash_attention,
        summary="PyTorch FlashAttention, forced",
        refusal=_flash_attention_refusal,
    ),
    Backend(
        "mha", "cudnn", cudnn_attention, summary="cuDNN attention, forced", refusal=_cudnn_refusal
    ),
    Backend(
        "full",
        "reference",
        full_relation,
        summary="materialised R and F, the definition",
        eager=True,
    ),
    Backend("full", "materialised", full_relation, summary="the same, compiled where the model is"),
    Backend("full", "tiled", tiled_relation, summary="FlashRelation in plain PyTorch", eager=True),
    Backend(
        "full",
        "flex",
        flex_relation,
        summary="FlexAttention, for heads of any width",
        refusal=_flex_refusal,
    ),
    Backend(
        "full", "flash", flash_relation, summary="FlashRelation in Triton", refusal=_flash_refusal
    ),
    Backend("linear", "recurrent", linear_relation, summary="the direct recurrence", eager=True),
    Backend(
        "linear",
        "expanded",
        expanded_linear_relation,
        summary="the sum over history, O(T^2)",
        eager=True,
    ),
    Backend(
        "linear",
        "chunked",
        chunked_linear_relation,
        summary="chunks of matrix products",
        eager=True,
    ),
    Backend(
        "linear",
        "flash",
        fused_linear_relation,
        summary="chunks, fused in Triton",
        refusal=_flash_refusal,
    ),
)


def get_backend(operator: str, name: str, device: torch.device | str | None = None) -> Backend:
    """The backend `name` of `operator` ("mha", "full" or "linear").

    With a device, also checks that it can run there. Raises InputError for an unknown name or a
    backend that the device cannot run; another one is never taken in its place.
    """
    backend = BACKENDS.get((operator, name))
    if backend is None:
        operators = list(dict.fromkeys(op for op, _ in BACKENDS))
        if operator not in operators:
            raise InputError(
                f"unknown operator {operator!r}; choose one of: {', '.join(operators)}"
            )
        known = ", ".join(n for op, n in BACKENDS if op == operator)
        raise InputError(f"operator {operator!r} has no backend {name!r}; choose one of: {known}")
    if device is not None:
        reason = backend.why_unavailable(torch.device(device))
        if reason:
            raise InputError(f"backend {name!r} of {operator!r} cannot run here: {reason}")
    return backend
