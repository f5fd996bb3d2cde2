"""Precision and gradients of the operators in PyTorch: autocast, casts, no second derivatives."""

import functools
from contextlib import AbstractContextManager, nullcontext

import torch

from relation.errors import InputError


def without_autocast(x: torch.Tensor) -> AbstractContextManager:
    """Return a context in which FP32 products stay FP32, even if the model runs under autocast."""
    kind = x.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def projection_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype in which a projection reads x: autocast's if it is on, else x's own."""
    kind = x.device.type
    if kind == "meta" or x.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return x.dtype  # autocast does not cast FP64
    return torch.get_autocast_dtype(kind)


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return x, the result of an autograd.Function, in `dtype`; x itself if it has that dtype.

    Compiled by PyTorch 2.11, a cast to the dtype that x already has gives gradients of zero.
    """
    return x if x.dtype == dtype else x.to(dtype)


def once_differentiable(backward):
    """Make the backward of an autograd.Function raise InputError for `create_graph=True`.

    PyTorch's own decorator may drop, without an error, terms that cannot be differentiated twice:
    `autograd.grad` always does, `backward` if the incoming gradient is a constant.
    """

    @functools.wraps(backward)
    def checked(ctx, *gradients):
        if torch.is_grad_enabled():
            raise InputError("Relation has no second derivatives; leave out create_graph=True")
        return backward(ctx, *gradients)

    return checked
