"""Shared by the kernels: how PyTorch sees them, which head a program works on, which GPU it is."""

import functools

import torch
import triton
import triton.language as tl

HOPPER, SMALL = "sm_90", "sm_120"

# Bytes of shared memory a block may use, by architecture.
SHARED_MEMORY = {
    "sm_80": 166_912,
    "sm_89": 101_376,
    "sm_90": 232_448,
    "sm_100": 232_448,
    "sm_120": 101_376,
}


def padded_width(head_dim: int) -> int:
    """The power of two, at least 16, that a tile of `head_dim` columns is masked to."""
    return max(16, 1 << (head_dim - 1).bit_length())


def empty_tokens(like: torch.Tensor, heads: int) -> torch.Tensor:
    """Memory for (B, heads, T, D) that lies as (B, T, heads, D); like: (B, ..., T, D).

    So joining the heads copies nothing.
    """
    B, _, T, D = like.shape
    return like.new_empty((B, T, heads, D)).transpose(1, 2)


def interpreted() -> bool:
    """Whether Triton's interpreter, rather than its compiler, runs the kernels of this process."""
    return not isinstance(offset_of_head, triton.JITFunction)


@functools.cache
def architecture(device: torch.device) -> str:
    """The key of `SHARED_MEMORY` whose programs run on a CUDA device: its own, or the next smaller.

    Compute capability 8.6 has sm_89's shared memory, 8.7 has sm_80's, 10.3 sm_100's.
    """
    major, minor = torch.cuda.get_device_capability(device)
    if major == 8:
        return "sm_89" if minor in (6, 9) else "sm_80"
    return {9: "sm_90", 10: "sm_100"}.get(major, "sm_120")


@triton.jit
def offset_of_head(batch_head, H, stride_b, stride_h):
    """Elements, 64-bit, from a (B, H, ...) tensor's start to head `batch_head` of its B H."""
    b = tl.cast(batch_head // H, tl.int64)
    h = tl.cast(batch_head % H, tl.int64)
    return b * stride_b + h * stride_h
