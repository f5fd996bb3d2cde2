"""Shared by the kernels: how PyTorch sees them, which head a program works on, which GPU it is."""

import functools

import torch
import triton
import triton.language as tl
from triton.runtime import driver

from relation.kernels.available import may_launch

HOPPER, OTHER = "sm_90", "sm_120"
# By kind of call what Triton compiled, with the values of its constants. Texts have every length.
COMPILED: dict[tuple, tuple] = {}
_MOST_COMPILED = 1000
MOST_BLOCKS = 65_535  # of all but the first dimension of a launch, as CUDA counts them


def cdiv(a: int, b: int) -> int:
    """a / b rounded up. Triton's own, and its next_power_of_2, take microseconds on the host."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def padded_width(head_dim: int) -> int:
    """The power of two, at least 16, that a tile of `head_dim` columns is masked to."""
    return max(16, next_power_of_2(head_dim))


def empty_tokens(like: torch.Tensor, heads: int) -> torch.Tensor:
    """Memory for (B, heads, T, D) that lies as (B, T, heads, D); like: (B, ..., T, D).

    So joining the heads copies nothing.
    """
    B, _, T, D = like.shape
    return like.new_empty((B, T, heads, D)).transpose(1, 2)


def eager(forward, save, differentiate, launch) -> type[torch.autograd.Function]:
    """An operator for eager calls, without its dispatch, which takes as long as launches.

    forward and launch run the passes; save(ctx, inputs, output) keeps what differentiate(ctx,
    *gradients) reads, which launches `launch` in place of the backward operator where it may.
    """

    class Eager(torch.autograd.Function):
        # Not in two parts, forward and setup_context: then PyTorch would bind the signature anew
        # in every call, which takes as long as a launch.
        @staticmethod
        def forward(ctx, *inputs):
            output = forward(*inputs)
            save(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx, *gradients):
            how = {"launch": launch} if may_launch(*gradients) else {}
            return differentiate(ctx, *gradients, **how)

    return Eager


def start(kernel, grid: tuple, *arguments, **constants) -> None:
    """kernel[grid](*arguments, **constants), in less time of the host where a call comes again.

    In its own launch Triton looks at every argument, global and option to find what it compiled;
    here that is found by what can change it: constants and options, and of the arguments dtypes,
    alignment and numbers. Descriptors must follow from these.
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
    """What of an argument Triton compiles for; of a float and a descriptor the type."""
    if isinstance(x, torch.Tensor):
        return x.dtype, x.data_ptr() % 16
    if isinstance(x, tuple):
        return tuple(map(_compiled_for, x))
    return x if isinstance(x, int | None) else type(x)


def interpreted() -> bool:
    """Whether Triton's interpreter, rather than its compiler, runs the kernels of this process."""
    return not isinstance(offset_of_head, triton.JITFunction)


@functools.cache
def architecture(device: torch.device) -> str:
    """Whose launches a CUDA device takes: Hopper's, or sm_120's, which fit every other GPU."""
    return HOPPER if torch.cuda.get_device_capability(device)[0] == 9 else OTHER


@triton.jit
def offset_of_head(batch_head, H, stride_b, stride_h):
    """Elements, 64-bit, from a (B, H, ...) tensor's start to head `batch_head` of its B H."""
    b = tl.cast(batch_head // H, tl.int64)
    h = tl.cast(batch_head % H, tl.int64)
    return b * stride_b + h * stride_h
