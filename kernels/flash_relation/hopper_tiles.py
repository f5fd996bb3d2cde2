"""Shared by the Gluon kernels for Hopper: how tiles travel, how blocks are shared out, arithmetic.

Gluon is Triton's lower level: the same Python, with what Triton's compiler decides written out.

Layouts. Which thread holds which numbers of a tile in registers, or how a tile lies in shared
memory. A product's result has Hopper's own layout (`products`), with 16 rows in each warp; what is
loaded or stored has a blocked one (`rows`), 16 bytes a thread. `convert_layout` changes one into
the other.

Warp specialisation. A program has four warps that compute, the consumer, and one that asks TMA for
tiles, the producer, which leaves most of its registers to the consumer.

mbarriers. A counter in shared memory that completes a phase, 0, 1, 0 and so on, when its one
arrival is there and, where the arrival announced some, TMA's bytes. `wait(barrier, phase)` returns
once that phase is complete; a new barrier counts as having completed phase 1.

Rings. Tiles that are scanned travel in STAGES stages: the producer waits until a stage is `empty`,
TMA's bytes make it `full`, the consumer's arrival `empty` again. What a block owns travels the same
way in two slots, `ready` and `free`, with the block's number in `work`, so that the next block's
tiles come while the consumer still ends this one.

wgmma. `warpgroup_mma(..., is_async=True)` only begins a product; `warpgroup_mma_wait(n, deps)`
waits until at most n are under way. `deps` must name every register that they read or write, and
gives them back. wgmma reads shared memory by the way on which TMA writes it: only what threads
stored there themselves needs `fence_async_shared` first.

Blocks. A launch starts as many programs as fit the GPU at once. Each takes the block of its own
number first and then the next from a counter, which is zero when the launch begins. Which program
computes a block changes nothing of the result.

Tiles. D columns are a pair of tiles, WIDE and REST columns as `split_width` says; where REST is 0,
the second is the first once more and stays untouched. Descriptors give zeros past T and D.
"""

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma

from relation.kernels.flash_relation.launches import GLUON_BLOCK

BLOCK = gl.constexpr(GLUON_BLOCK)
LOG2_E = gl.constexpr(math.log2(math.e))
LN_2 = gl.constexpr(math.log(2))
# As in `tiles`: rows past the end get F = 2^(E - PAST_END) = 0.
PAST_END = gl.constexpr(1e30)
# A block's number in the registers of the producer's warp and of the consumer's four.
IN_PRODUCER = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))
IN_CONSUMER = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.constexpr_function
def products(width):
    """The layout of a product of `width` columns."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, width, 16]
    )


@gluon.constexpr_function
def factors(width):
    """The layout of the left factor of such a product, where it lies in registers."""
    return gl.DotOperandLayout(0, products(width), 2)


@gluon.constexpr_function
def rows(width):
    """The layout in which tiles of `width` columns are loaded and stored."""
    return gl.BlockedLayout([1, 8], [256 // width, width // 8], [4, 1], [1, 0])


@gluon.jit
def _allocate(count: gl.constexpr, tiles):
    shape: gl.constexpr = [count, 1, 1, BLOCK, tiles.block_type.shape[3]]
    return gl.allocate_shared_memory(tiles.dtype, shape, tiles.layout)


@gluon.jit
def allocate_tiles(count: gl.constexpr, wide, rest):
    """Shared memory for `count` tiles as the descriptors `wide` and `rest` give them."""
    first = _allocate(count, wide)
    if rest is None:
        return first, first
    else:
        return first, _allocate(count, rest)


@gluon.jit
def allocate_barriers(count: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(count):
        mbarrier.init(barriers.index(k), count=1)
    return barriers


@gluon.jit
def allocate_work():
    """For the number of the block in each of two slots."""
    return gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def fetch(descriptors, b, h, t, tiles, place, barrier):
    """Ask TMA for the rows from t on of head h of batch b, to arrive at `barrier`."""
    wide, rest = descriptors
    first, second = tiles
    tma.async_copy_global_to_shared(wide, [b, h, t, 0], barrier, first.index(place))
    if rest is not None:
        WIDE: gl.constexpr = wide.block_type.shape[3]
        tma.async_copy_global_to_shared(rest, [b, h, t, WIDE], barrier, second.index(place))


@gluon.jit
def tile_at(tiles, place):
    """The tile at a stage or slot, (BLOCK, WIDE) and (BLOCK, REST)."""
    first, second = tiles
    wide = first.index(place).reshape([BLOCK, first.shape[4]])
    return wide, second.index(place).reshape([BLOCK, second.shape[4]])


@gluon.jit
def begin_scores(left, right, REST: gl.constexpr):
    """Begin left right^T (BLOCK, BLOCK) of two tiles; left may lie in registers."""
    scores = gl.zeros([BLOCK, BLOCK], gl.float32, products(BLOCK))
    scores = warpgroup_mma(left[0], right[0].permute((1, 0)), scores, use_acc=False, is_async=True)
    if REST > 0:
        scores = warpgroup_mma(left[1], right[1].permute((1, 0)), scores, is_async=True)
    return scores


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase


@gluon.jit
def next_block(counter):
    return gl.atomic_add(counter, 1) + gl.num_programs(0)


@gluon.jit
def place_of(block, heads, blocks):
    """(head, which of its blocks) of a block's number, in the order of `launches.grid`."""
    return block // (heads * blocks) * heads + block % heads, block // heads % blocks


@gluon.jit
def offset_of(b, h, t, stride_b, stride_h, stride_t):
    """Elements, 64-bit, from a tensor's start to row t of head h of batch b."""
    at = gl.cast(b, gl.int64) * stride_b + gl.cast(h, gl.int64) * stride_h
    return at + gl.cast(t, gl.int64) * stride_t


@gluon.jit
def hand_over(work, slot, block):
    work.index(slot).store(gl.full([1], block, gl.int32, IN_PRODUCER))


@gluon.jit
def await_slot(free, turn):
    """Wait, in the producer, until slot turn % 2 has been left by the block before the last."""
    mbarrier.wait(free.index(turn & 1), ((turn >> 1) & 1) ^ 1)


@gluon.jit
def receive(work, ready, turn):
    """Wait, in the consumer, for the tiles of its `turn`-th block; the block's number."""
    mbarrier.wait(ready.index(turn & 1), (turn >> 1) & 1)
    return gl.max(work.index(turn & 1).load(IN_CONSUMER), 0)


@gluon.jit
def _addresses(
    at, rows_left, stride_t, stride_d, FIRST: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr
):
    """Of a tile in the layout of `rows`, and which of it lies in the tensor."""
    t = gl.arange(0, BLOCK, gl.SliceLayout(1, rows(WIDTH)))
    d = FIRST + gl.arange(0, WIDTH, gl.SliceLayout(0, rows(WIDTH)))
    offsets = gl.expand_dims(t, 1) * stride_t + gl.expand_dims(d, 0) * stride_d
    inside = gl.expand_dims(t < rows_left, 1)
    if FIRST + WIDTH > D:
        inside = inside & gl.expand_dims(d < D, 0)
    return at + offsets, inside


@gluon.jit
def load_rows(
    at, rows_left, stride_t, stride_d, FIRST: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr
):
    """BLOCK rows of WIDTH columns of a tensor from column FIRST on; zeros past its end and D."""
    addresses, inside = _addresses(at, rows_left, stride_t, stride_d, FIRST, WIDTH, D)
    return gl.load(addresses, mask=inside, other=0.0)


@gluon.jit
def store_rows(at, tile, rows_left, stride_t, stride_d, FIRST: gl.constexpr, D: gl.constexpr):
    """Store a tile in the layout of `rows` from column FIRST on, but nothing past its end and D."""
    WIDTH: gl.constexpr = tile.shape[1]
    addresses, inside = _addresses(at, rows_left, stride_t, stride_d, FIRST, WIDTH, D)
    gl.store(addresses, tile.to(at.dtype.element_ty), mask=inside)


@gluon.jit
def tanh(x):
    """The GPU's own instruction, as in `tiles.half_tanh`."""
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def sigmoid(x):
    return 1.0 / (1.0 + gl.exp2(-x * LOG2_E))
