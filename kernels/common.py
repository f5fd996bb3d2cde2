"""Shared by the kernels: how PyTorch sees them, which head a program works on, which GPU it is."""

from collections.abc import Sequence

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


def tokens_layout(x: torch.Tensor, heads: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of (B, heads, T, D) that lies as (B, T, heads, D); x: (B, ..., T, D).

    So joining the heads copies nothing.
    """
    B, _, T, D = x.shape
    return (B, heads, T, D), (T * heads * D, D, heads * D, 1)


def empty_tokens(like: torch.Tensor, heads: int) -> torch.Tensor:
    """Memory of `tokens_layout` in like's dtype; `new_empty_strided` takes PyTorch least time."""
    return like.new_empty_strided(*tokens_layout(like, heads))


def rows_layout(x: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of one number a row of x (B, H, T, D): (B, H, T)."""
    B, H, T, _ = x.shape
    return (B, H, T), (H * T, T, 1)


# Shape, or length, and dtype.
Part = tuple[int | Sequence[int], torch.dtype]


class Parts:
    """How contiguous tensors share one allocation, each 128-byte aligned."""

    def __init__(self, *parts: Part):
        self._parts, start = [], 0
        for shape, dtype in parts:
            shape = torch.Size((shape,) if isinstance(shape, int) else shape)
            end = start + -(-shape.numel() * dtype.itemsize // 128) * 32
            self._parts.append((start, end, shape, dtype))
            start = end
        self._numbers = start

    def allocate(self, like: torch.Tensor) -> torch.Tensor:
        """The memory of all, FP32, on like's device."""
        return like.new_empty(self._numbers, dtype=torch.float32)

    def views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """The tensors in what `allocate` returned."""
        return [
            memory[start:end].view(dtype)[: shape.numel()].view(shape)
            for start, end, shape, dtype in self._parts
        ]


def interpreted() -> bool:
    """Whether Triton's interpreter, rather than its compiler, runs the kernels of this process."""
    return not isinstance(head_offset, triton.JITFunction)


def architecture(device: torch.device) -> str:
    """The key of `SHARED_MEMORY` whose programs run on a CUDA device: its own, or the next smaller.

    Compute capability 8.6 has sm_89's shared memory, 8.7 has sm_80's, 10.3 sm_100's.
    """
    major, minor = torch.cuda.get_device_capability(device)
    if major == 8:
        return "sm_89" if minor in (6, 9) else "sm_80"
    return {9: "sm_90", 10: "sm_100"}.get(major, "sm_120")


@triton.jit
def head_offset(H, stride_b, stride_h):
    """Elements, 64-bit, from a (B, H, ...) tensor's start to the head of this program."""
    return offset_of_head(tl.program_id(0), H, stride_b, stride_h)


@triton.jit
def offset_of_head(batch_head, H, stride_b, stride_h):
    """Elements, 64-bit, from a (B, H, ...) tensor's start to head `batch_head` of its B H."""
    b = tl.cast(batch_head // H, tl.int64)
    h = tl.cast(batch_head % H, tl.int64)
    return b * stride_b + h * stride_h
