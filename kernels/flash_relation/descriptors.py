"""TMA descriptors of (B, H, T, D) tensors: one instruction copies a tile."""

import math

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from relation.kernels.flash_relation.launches import Launches

ALIGNMENT = 16  # bytes, of a tensor's start and of every stride but the last


def are_describable(launches: Launches, *tensors: torch.Tensor) -> bool:
    """Whether these launches scan through descriptors, and the hardware can hold these tensors'.

    Kernels that do so multiply p1 or p2 by half of D^-1/2 beforehand. That must be exact: a power
    of two, in a dtype whose small numbers keep their digits.
    """
    width = tensors[0].shape[-1]
    return (
        launches.descriptors
        and math.frexp(0.5 / math.sqrt(width))[0] == 0.5
        and all(x.dtype != torch.float16 and _is_aligned(x) for x in tensors)
    )


def _is_aligned(x: torch.Tensor) -> bool:
    *strides, last = x.stride()
    steps = (x.data_ptr(), *(stride * x.element_size() for stride in strides))
    return last == 1 and all(step > 0 and step % ALIGNMENT == 0 for step in steps)


def describe(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """The descriptor of x (B, H, T, D) in tiles of `rows` by D; past T they hold zeros."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, x.shape[-1]])
