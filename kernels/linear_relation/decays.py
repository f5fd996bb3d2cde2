"""What every pass shares: Self and the coordinates, retention over intervals, and products."""

import triton
import triton.language as tl

from relation.kernels.linear_relation.tiles import load_tokens

# F.normalize divides by the norm, or by this where the norm is smaller.
NORM_FLOOR = tl.constexpr(1e-12)
# exp(-200) is 0 in FP32, so a stronger retention changes nothing; it keeps every sum finite.
STRONGEST = tl.constexpr(-200.0)
# exp(-40) beside 1 is below the rounding of FP32: where some channel forgets little, no step is
# taken for stronger, so that sums over a chunk are rounded less.
STRONGEST_OF_MIXED = tl.constexpr(-40.0)
LOG2_E = tl.constexpr(1.4426950408889634)
# exp(40) squared times any head width is far from FP32's largest number.
LARGEST_EXPONENT = tl.constexpr(40.0)
# With exp(60) a pair of tokens that no result takes may overflow, and is masked. If every step is
# strong, dg is small beside what cancels in it: too small for inputs in FP32.
LARGEST_OF_16_BITS = tl.constexpr(60.0)


@triton.jit
def from_registers(tile, PRECISION: tl.constexpr):
    """The tile, 16 bits a number, as a result and not as a load.

    wgmma reads a load of a pipelined loop where cp.async has put it, which Triton before 3.7.1 does
    not fence (`relation.kernels.fences`). A result is stored for it, with the fence.
    """
    if PRECISION == "ieee" or tile.dtype == tl.float32:
        return tile
    else:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [tile], dtype=tile.dtype, is_pure=True, pack=2
        )


@triton.jit
def self_and_norms(
    p1, p2, t_start, T, stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d, scale,
    D: tl.constexpr, CHUNK: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """S and what normalises p1 and p2, each (CHUNK,)."""
    pair = tl.zeros([CHUNK], tl.float32)
    square1 = tl.zeros([CHUNK], tl.float32)
    square2 = tl.zeros([CHUNK], tl.float32)
    for d_start in tl.static_range(0, D, BLOCK_D):
        p1_d = load_tokens(
            p1, t_start, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D, WHOLE
        ).to(tl.float32)
        p2_d = load_tokens(
            p2, t_start, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D, WHOLE
        ).to(tl.float32)
        pair += tl.sum(p1_d * p2_d, 1)
        square1 += tl.sum(p1_d * p1_d, 1)
        square2 += tl.sum(p2_d * p2_d, 1)
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    scale = tl.cast(scale, tl.float32)
    inverse_norm1 = 1.0 / tl.maximum(tl.sqrt(square1), NORM_FLOOR)
    inverse_norm2 = 1.0 / tl.maximum(tl.sqrt(square2), NORM_FLOOR)
    return tl.sigmoid(pair * scale), inverse_norm1, inverse_norm2


@triton.jit
def project(dcoordinate, p, S, inverse_norm, along):
    """The gradient of p from that of S p / max(|p|, NORM_FLOOR), a part of which is `along` p."""
    along = tl.where(inverse_norm < 1.0 / NORM_FLOOR, along * inverse_norm, 0.0)
    return inverse_norm[:, None] * (S[:, None] * dcoordinate - along[:, None] * p)


@triton.jit
def split(tile):
    """Two BF16 tiles whose sum is the tile to 16 bits."""
    tile = tile.to(tl.float32)
    bits = tile.to(tl.uint32, bitcast=True)
    # Cut, not rounded: a mask and a shift cost less than conversions, and the rest is exact.
    high = (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True), (tile - high).to(tl.bfloat16)


@triton.jit
def exp(x, PRECISION: tl.constexpr):
    """exp(x), with a relative error of at most 2^-22 + 2^-24 |x| unless PRECISION is "ieee"."""
    if PRECISION == "ieee":
        return tl.exp(x)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * LOG2_E], dtype=tl.float32, is_pure=True,
            pack=1,
        )  # fmt: skip


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
def load_retention(
    log_retention, t_start, T, stride_t, d_start, stride_d,
    D: tl.constexpr, CHUNK: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr = False,
):  # fmt: skip
    """g in FP32; what no FP32 exponential tells from the strongest retention becomes that."""
    g = load_tokens(
        log_retention, t_start, T, stride_t, d_start, stride_d, D, CHUNK, BLOCK_D, WHOLE
    )
    g = g.to(tl.float32)
    return tl.where(g < STRONGEST, STRONGEST, g)


@triton.jit
def sum_steps(steps, g, PRECISION: tl.constexpr):
    """steps @ g for a matrix of zeros and ones: the sums of g over intervals of tokens.

    A sum over the interval itself loses nothing to what lies outside it, as a difference of two
    running sums would. Two BF16 parts hold 16 bits of g, and an exponential of a sum G
    is then wrong by 2^-17 |G| exp(G) at most, below 3e-6.
    """
    return product(steps.to(tl.float32 if PRECISION == "ieee" else tl.bfloat16), g, PRECISION)


@triton.jit
def sum_halves(g, CHUNK: tl.constexpr):
    """The sums of g over the left and the right half of a chunk, each (D,)."""
    left = (tl.arange(0, CHUNK) < CHUNK // 2)[:, None]
    return tl.sum(tl.where(left, g, 0.0), 0), tl.sum(tl.where(left, 0.0, g), 0)


@triton.jit
def steps_to_middle(t, u, level):
    """Whether step u lies between token t and the middle of t's block of 2^(level + 1) tokens.

    In a block's right half these are the steps after the middle up to t, in its left half those
    after t up to the middle.
    """
    half = t >> level
    return (half == (u >> level)) & tl.where((half & 1) == 1, u <= t, u > t)


@triton.jit
def pairs_in_blocks(read, write, level):
    """Whether two tokens share a block of 2^(level + 1), the write before the read."""
    return ((read >> (level + 1)) == (write >> (level + 1))) & (read > write)


@triton.jit
def decays_at_level(g, level, PRECISION: tl.constexpr, CHUNK: tl.constexpr):
    """Retention between tokens and the middles of their blocks of 2^(level + 1), (CHUNK, D).

    Returns the factors of reads and of writes, whose product is the retention from a write to a
    later read of the same block, and whether they hold for all pairs of a block. They do where
    retention is weak enough for reciprocal factors. Elsewhere no exponent is above zero: reads left
    of a middle and writes right of it get the factor 0, and the levels below finish the halves.
    """
    t = tl.arange(0, CHUNK)
    to_middle = sum_steps(steps_to_middle(t[:, None], t[None, :], level), g, PRECISION)
    right = (((t >> level) & 1) == 1)[:, None]
    complete = tl.min(tl.min(to_middle, 1), 0) >= -LARGEST_EXPONENT
    across = tl.where(complete, -to_middle, float("-inf"))
    read_decay = tl.exp(tl.where(right, to_middle, across))
    write_decay = tl.exp(tl.where(right, across, to_middle))
    return read_decay, write_decay, complete
