"""One row of a head: loaded, and turned by RoPE to its place."""

import triton
import triton.language as tl


@triton.jit
def load_row(row, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """D neighbouring numbers as FP32, zeros after them."""
    d = tl.arange(0, BLOCK_D)
    return tl.load(row + d, mask=d < D, other=0.0).to(tl.float32)


@triton.jit
def load_angles(cos, sin, place, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """RoPE's cosines and sines at a place, each sine with the sign of what it turns."""
    d = tl.arange(0, BLOCK_D)
    angle = tl.cast(place, tl.int64) * D + d
    c = tl.load(cos + angle, mask=d < D, other=0.0)
    s = tl.load(sin + angle, mask=d < D, other=0.0)
    return c, tl.where(d < D // 2, -s, s)


@triton.jit
def load_rotated(row, angles, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """A row of coordinates turned by `load_angles`', rounded to its dtype as RoPE does, as FP32."""
    d = tl.arange(0, BLOCK_D)
    partner = tl.where(d < D // 2, d + D // 2, d - D // 2)
    x = tl.load(row + d, mask=d < D, other=0.0).to(tl.float32)
    other = tl.load(row + partner, mask=d < D, other=0.0).to(tl.float32)
    turned = x * angles[0] + other * angles[1]
    return turned.to(row.dtype.element_ty).to(tl.float32)
