"""Arithmetic that the passes share: exponentials, products of split operands, the norm's gradient.

PRECISION is "bf16x3" for 16-bit inputs and "ieee" for FP32, whose exponents are FP64.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# F.normalize divides by the norm, or by this where the norm is smaller.
NORM_FLOOR = tl.constexpr(1e-12)


@triton.jit
def exp(x, PRECISION: tl.constexpr):
    """exp(x) in FP32; of "bf16x3" with a relative error of at most 2^-22 + 2^-24 |x|."""
    if PRECISION == "ieee":
        return tl.exp(x.to(tl.float32))
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * LOG2_E], dtype=tl.float32, is_pure=True,
            pack=1,
        )  # fmt: skip


@triton.jit
def rounded(tile, like):
    """The tile in BF16 where view `like` is: for results that are stored in it."""
    if like[0].dtype.element_ty == tl.bfloat16:
        return tile.to(tl.bfloat16)
    else:
        return tile


@triton.jit
def split(tile):
    """Two BF16 tiles whose sum is the tile to 16 bits."""
    tile = tile.to(tl.float32)
    bits = tile.to(tl.uint32, bitcast=True)
    # Cut, not rounded: a mask and a shift cost less than conversions, and the rest is exact.
    high = (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True), (tile - high).to(tl.bfloat16)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a @ b in FP32. BF16 operands are exact; what is not BF16 is split into two of them.

    Of two splits, the product of the lower parts is below 2^-16 and left out.
    """
    if PRECISION == "ieee":
        result = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif a.dtype == b.dtype and a.dtype != tl.float32:
        result = tl.dot(a, b)
    elif a.dtype == tl.bfloat16:
        b_high, b_low = split(b)
        result = tl.dot(a, b_low)
        result = tl.dot(a, b_high, result)
    elif b.dtype == tl.bfloat16:
        a_high, a_low = split(a)
        result = tl.dot(a_low, b)
        result = tl.dot(a_high, b, result)
    else:
        a_high, a_low = split(a)
        b_high, b_low = split(b)
        result = tl.dot(a_low, b_high)
        result = tl.dot(a_high, b_low, result)
        result = tl.dot(a_high, b_high, result)
    return result


@triton.jit
def parts(tile, PRECISION: tl.constexpr):
    """What `add_product` takes of an FP32 tile: two BF16 parts, or of "ieee" the whole, twice."""
    if PRECISION == "ieee":
        return tile, tile
    else:
        return split(tile)


@triton.jit
def add_product(result, a, high, low, PRECISION: tl.constexpr):
    """result + a @ b of FP32 tiles as `product` forms it, of b's `parts`."""
    if PRECISION == "ieee":
        return tl.dot(a, high, result, input_precision="ieee")
    else:
        a_high, a_low = split(a)
        result = tl.dot(a_low, high, result)
        result = tl.dot(a_high, low, result)
        return tl.dot(a_high, high, result)


@triton.jit
def zeros_and_ones(where, PRECISION: tl.constexpr):
    """A mask as an exact left factor of `product`."""
    return where.to(tl.float32 if PRECISION == "ieee" else tl.bfloat16)


@triton.jit
def dlogit_of(sum_read, sum_write, S, scale):
    """The gradient of <p1, p2> through Self, of <r, dr> and <w, dw>; (CHUNK, 1)."""
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    return ((sum_read + sum_write) * (1.0 - S) * tl.cast(scale, tl.float32))[:, None]


@triton.jit
def project(dcoordinate, p, S, inverse_norm, along):
    """The gradient of p from that of S p / max(|p|, NORM_FLOOR), a part of which is `along` p."""
    along = tl.where(inverse_norm < 1.0 / NORM_FLOOR, along * inverse_norm, 0.0)
    return inverse_norm[:, None] * (S[:, None] * dcoordinate - along[:, None] * p)
