"""Shared by the kernels: eager calls, launches, the GPU's architecture and the offset of a head."""

import functools

import torch
import triton
import triton.language as tl
from triton.runtime import driver

from relation.kernels.available import is_eager

HOPPER, OTHER = "sm_90", "sm_120"
# Per kind of call: the compiled kernel and its constants. Each new T adds entries, up to a limit.
COMPILED: dict[tuple, tuple] = {}
_MOST_COMPILED = 1000
_BY_VALUE = {int, bool, type(None)}


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up. Triton's cdiv and next_power_of_2 take microseconds per call."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def padded_width(head_dim: int) -> int:
    """Return the width of a masked tile for `head_dim` columns: a power of two, at least 16."""
    return max(16, next_power_of_2(head_dim))


def empty_tokens(like: torch.Tensor, heads: int) -> torch.Tensor:
    """Return an empty (B, heads, T, D) tensor, stored as (B, T, heads, D); like: (B, ..., T, D).

    Joining the heads of such a tensor copies nothing.
    """
    B, _, T, D = like.shape
    return like.new_empty((B, T, heads, D)).transpose(1, 2)


def eager(forward, save, differentiate, launch) -> type[torch.autograd.Function]:
    """Return an operator as an autograd.Function: its dispatch would take as long as launches.

    forward runs the forward pass. save(ctx, inputs, output) keeps what differentiate(ctx,
    *gradients) reads. Instead of the operator of the backward pass, differentiate calls `launch`.
    The operator is needed only for tracing and, because it refuses second derivatives, with
    `create_graph`.
    """

    class Eager(torch.autograd.Function):
        # Not split into forward and setup_context: PyTorch would then bind the signature in every
        # call, which takes as long as a launch.
        @staticmethod
        def forward(ctx, *inputs):
            output = forward(*inputs)
            save(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx, *gradients):
            if is_eager(*gradients) and not torch.is_grad_enabled():
                return differentiate(ctx, *gradients, launch=launch)
            return differentiate(ctx, *gradients)

    return Eager


def start(kernel, grid: tuple, *arguments, **constants) -> None:
    """Run kernel[grid](*arguments, **constants), with less host time for a repeated kind of call.

    Triton's launch inspects every argument, global and option to find the compiled kernel. Here the
    key is only what can change it: constants, options, and the dtypes, alignment and integers of
    the arguments. These must determine everything that matters about a descriptor.
    """
    if interpreted():
        kernel[grid](*arguments, **constants)
        return
    device = driver.active.get_current_device()
    key = kernel.fn, device, *constants.values(), *map(_compiled_for, arguments)
    known = COMPILED.get(key)
    if known is None:
        if len(COMPILED) >= _MOST_COMPILED:
            COMPILED.clear()
        compiled = kernel[grid](*arguments, **constants)
        COMPILED[key] = compiled, [constants[name] for name in kernel.arg_names[len(arguments) :]]
        return
    compiled, last = known
    compiled[*grid, *[1] * (3 - len(grid))](*arguments, *last)


def _compiled_for(x):
    """Return what Triton compiles an argument for; of floats that is the type."""
    kind = type(x)
    if kind in _BY_VALUE:
        return x
    if isinstance(x, tuple):
        return tuple(map(_compiled_for, x))
    if isinstance(x, torch.Tensor):
        return x.dtype, x.data_ptr() % 16
    base = getattr(x, "base", None)  # the tensor of a descriptor
    return kind if base is None else (kind, base.dtype)


def interpreted() -> bool:
    """Whether this process runs kernels in Triton's interpreter instead of compiling them."""
    return not isinstance(offset_of_head, triton.JITFunction)


@functools.cache
def architecture(device: torch.device) -> str:
    """Return whose launches a CUDA device uses: Hopper's, or sm_120's, which fit all other GPUs."""
    return HOPPER if torch.cuda.get_device_capability(device)[0] == 9 else OTHER


@triton.jit
def offset_of_head(batch_head, H, stride_b, stride_h):
    """Return the 64-bit offset, in elements, of one of the B H heads of a (B, H, ...) tensor."""
    b = tl.cast(batch_head // H, tl.int64)
    h = tl.cast(batch_head % H, tl.int64)
    return b * stride_b + h * stride_h
