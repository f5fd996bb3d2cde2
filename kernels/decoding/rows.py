"""One row of a head: loaded, and turned by RoPE to its place."""

import triton
import triton.language as tl


@triton.jit
def load_row(row, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """D neighbouring numbers as FP32, zeros after them."""
    d = tl.arange(0, BLOCK_D)
    return tl.load(row + d, mask=d < D, other=0.0).to(tl.float32)


@triton.jit
def load_rotated(row, cos, sin, place, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """A row of coordinates turned to `place`, rounded to its dtype as RoPE rounds it, as FP32."""
    d = tl.arange(0, BLOCK_D)
    inside = d < D
    partner = tl.where(d < D // 2, d + D // 2, d - D // 2)
    x = tl.load(row + d, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(row + partner, mask=inside, other=0.0).to(tl.float32)
    angle = tl.cast(place, tl.int64) * D + d
    c = tl.load(cos + angle, mask=inside, other=0.0)
    s = tl.load(sin + angle, mask=inside, other=0.0)
    turned = x * c + tl.where(d < D // 2, -other, other) * s
    return turned.to(row.dtype.element_ty).to(tl.float32)
