"""TMA descriptors of (B, H, T, D) tensors: one instruction copies a tile."""

import math

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

ALIGNMENT = 16  # bytes, of a tensor's start and of every stride but the last


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x (B, H, T, D), or a copy of it where the hardware cannot hold its descriptor."""
    if fits(x):
        return x
    return empty_aligned(x).copy_(x)


def empty_aligned(x: torch.Tensor) -> torch.Tensor:
    """Memory for (B, H, T, D) like x, whose descriptor the hardware can hold."""
    B, H, T, D = x.shape
    unit = ALIGNMENT // x.element_size()
    rows = torch.empty((B, T, H, -(-D // unit) * unit), dtype=x.dtype, device=x.device)
    return rows[..., :D].transpose(1, 2)


def aligned_rows(x: torch.Tensor) -> torch.Tensor:
    """Numbers x (B, H, T), FP32, or a copy of them where the hardware cannot hold their matrix."""
    whole = x.shape[2] * x.element_size() % ALIGNMENT == 0
    if whole and x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0:
        return x
    return empty_aligned_rows(x, x.shape[:2]).copy_(x)


def empty_aligned_rows(like: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor:
    """Memory for `rows` rows of as many FP32 numbers as like's, of which TMA can hold a matrix."""
    T = like.shape[2]
    return like.new_empty((*rows, -(-T // 4) * 4))[..., :T]


def fits(x: torch.Tensor) -> bool:
    """Whether the hardware can hold the descriptor of x (B, H, T, D)."""
    *steps, last = x.stride()
    size = x.element_size()
    aligned = all(s > 0 and s * size % ALIGNMENT == 0 for s in steps)
    return x.data_ptr() % ALIGNMENT == 0 and last == 1 and aligned


def scales_exactly(x: torch.Tensor) -> bool:
    """Whether x (..., D) can be multiplied by half of D^-1/2 beforehand without rounding.

    That takes a power of two, and a dtype whose small numbers keep their digits.
    """
    return math.frexp(0.5 / math.sqrt(x.shape[-1]))[0] == 0.5 and x.dtype != torch.float16


class Tiles(TensorDescriptor):
    """A descriptor without the checks that `aligned` has made needless, at every call."""

    def __init__(self, base: torch.Tensor, shape, strides, block_shape: list[int]):
        self.base, self.shape, self.strides, self.block_shape = base, shape, strides, block_shape
        self.padding = "zero"
        self.round_f32_to_tf32 = False


def describe(x: torch.Tensor, rows: int, width: int) -> Tiles | None:
    """Of x (B, H, T, D) in tiles of `rows` by `width`, zeros past T and D; None for no width."""
    return Tiles(x, x.shape, x.stride(), [1, 1, rows, width]) if width else None


def row_sums_shape(heads: int, length: int, planes: int) -> tuple[int, int, int]:
    """Of FP32 numbers a row: a pair, or so many `planes` for TMA."""
    return (heads, planes, -(-length // 4) * 4) if planes else (heads, length, 2)


def describe_row_sums(row_sums: torch.Tensor, length: int, rows: int) -> Tiles:
    """Of planes (heads, 2, length or a little more) as rows of `length`, zeros beyond."""
    heads, planes, stride = row_sums.shape
    return Tiles(row_sums, (heads * planes, length), (stride, 1), [1, rows])
