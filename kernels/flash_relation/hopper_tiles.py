"""Shared by the Gluon kernels for Hopper: how tiles travel, how blocks are shared out, arithmetic.

Gluon is Triton's lower level: the same Python, with what Triton's compiler decides written out.

Layouts. Which thread holds which numbers of a tile in registers, or how a tile lies in shared
memory. A product's result has Hopper's own layout (`products`), with 16 rows in each warp, and so
has its left factor (`factors`). `convert_layout` changes one into another, here without moving a
number between threads.

Warp specialisation. A program has GROUPS groups of four warps that compute, the consumers, and one
warp that asks TMA for tiles, the producer, which leaves most of its registers to the consumers.

Groups. Each consumer, ME of GROUPS, owns 64 rows of the program's block and keeps their sums; all
read the same scanned tiles, which travel once for GROUPS x 64 rows. A scan covers what any group
needs, and a group leaves unread the tiles that only others need (`pass_by`). With documents there
is one group: more rows would see more documents, and a scan would be longer.

Order of products. One group begins the product of a step's weights at the end of that step and
waits for it in the next. In this order ptxas serialises all products of several groups (C7512).
They begin it in the next step, behind that step's scores (`await_scores`), and wait for it at that
step's end (`await_sum`). One group is slower in this order. `hopper_p2_info` has another order.

mbarriers. A counter in shared memory that completes a phase, 0, 1, 0 and so on, when its arrivals
are there and, where one announced some, TMA's bytes. `wait(barrier, phase)` returns once that phase
is complete; a new barrier counts as having completed phase 1.

Rings. Tiles that are scanned travel in STAGES stages: the producer waits until a stage is `empty`,
TMA's bytes make it `full`, the consumers' arrivals `empty` again. What a block owns travels the
same way in SLOTS slots, `ready` and `free`, with its place in `work`: with two the next block's
tiles come while the consumers still end this one, with one when they have. A slot holds a tile for
each group, at slot * GROUPS + ME. A result leaves from the place of the rows that it belongs to.
The producer arrives once, each thread of a consumer for itself (`leave`): for one arrival of all
four warps they would have to meet once more at every tile.

wgmma. `warpgroup_mma(..., is_async=True)` only begins a product; `warpgroup_mma_wait(n, deps)`
waits until at most n are under way. `deps` must name every register that they read or write, and
gives them back. wgmma reads shared memory by the way on which TMA writes it: only what threads
stored there themselves needs `fence_async_shared` first.

Blocks. A launch starts as many programs as fit the GPU at once. Each takes the block of its own
number first and then the next from a counter, which is zero when the launch begins. Which program
computes a block changes nothing of the result.

Documents. None, and then no code, or a pair: their bounds, as `Documents` has `starts` or `ends`,
and T. A scan keeps to the tiles that its block needs and masks what a row does not see.

Tiles. D columns are a pair of tiles, WIDE and REST columns as `split_width` says; where REST is 0,
the second is the first once more and stays untouched. Descriptors give zeros past T and D.
"""

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from relation.kernels.flash_relation.launches import GLUON_BLOCK

BLOCK = gl.constexpr(GLUON_BLOCK)
LOG2_E = gl.constexpr(math.log2(math.e))
LN_2 = gl.constexpr(math.log(2))
THREADS = gl.constexpr(128)  # of a consumer
# One number in the registers of the producer's warp and of the consumer's four.
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


@gluon.jit
def _allocate(count: gl.constexpr, tiles):
    shape: gl.constexpr = [count, 1, 1, BLOCK, tiles.block_type.shape[3]]
    return gl.allocate_shared_memory(tiles.dtype, shape, tiles.layout)


@gluon.jit
def allocate_tiles(count: gl.constexpr, descriptors):
    """Shared memory for `count` tiles as a pair of descriptors gives them."""
    wide, rest = descriptors
    first = _allocate(count, wide)
    if rest is None:
        return first, first
    else:
        return first, _allocate(count, rest)


@gluon.jit
def allocate_barriers(count: gl.constexpr, arrivals: gl.constexpr = 1):
    barriers = gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(count):
        mbarrier.init(barriers.index(k), count=arrivals)
    return barriers


@gluon.jit
def allocate_ring(count: gl.constexpr, GROUPS: gl.constexpr):
    """The barriers on which `count` stages or slots fill and are left by all groups."""
    return allocate_barriers(count), allocate_barriers(count, THREADS * GROUPS)


@gluon.jit
def leave(barrier):
    """Each thread of the consumer arrives, with no wait for the others.

    The fence ends the thread's reads of the place before it arrives. PTX calls the arrival, which
    waits for the thread's own cp.async copies, of which it has none, asynchronous, and gives it no
    release of its own; in sm_90's code it follows the fence (MEMBAR, then ARRIVES).
    """
    gl.inline_asm_elementwise(
        "fence.acq_rel.cta; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    async_copy.mbarrier_arrive(barrier, increment_count=False)


@gluon.jit
def leave_together(barrier):
    """The same by one thread for all four warps, which wait for each other first.

    Where registers are short, ptxas serialises products unless this keeps them apart.
    """
    mbarrier.arrive(barrier, count=THREADS)


@gluon.jit
def allocate_work():
    """For batch, head of it, first row and number of the block in each of two slots."""
    return gl.allocate_shared_memory(gl.int32, [8, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def allocate_row_numbers(count: gl.constexpr, tiles):
    """For `count` times a number a row of a block, as the descriptor `tiles` gives them."""
    return gl.allocate_shared_memory(gl.float32, [count, 1, BLOCK], tiles.layout)


@gluon.jit
def fetch_row_numbers(tiles, row, t, numbers, place, barrier):
    """Ask TMA for BLOCK numbers from t on of a row of the matrix that `tiles` describes."""
    tma.async_copy_global_to_shared(tiles, [row, t], barrier, numbers.index(place))


@gluon.jit
def send_row_numbers(tiles, row, t, numbers, place):
    """Ask TMA to store them, as `send` does."""
    tma.async_copy_shared_to_global(tiles, [row, t], numbers.index(place))


@gluon.jit
def row_numbers(numbers, place, AXIS: gl.constexpr = 1):
    """Numbers that were fetched, one a row (AXIS 1) or a column (0) of a product."""
    return numbers.index(place).reshape([BLOCK]).load(gl.SliceLayout(AXIS, products(BLOCK)))


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
def send(descriptors, b, h, t, tiles, place):
    """Ask TMA to store the tile at a place as the rows from t on of head h of batch b.

    The caller has fenced it; once `tma.store_wait(0)` returns, it has been read.
    """
    wide, rest = descriptors
    first, second = tiles
    tma.async_copy_shared_to_global(wide, [b, h, t, 0], first.index(place))
    if rest is not None:
        WIDE: gl.constexpr = wide.block_type.shape[3]
        tma.async_copy_shared_to_global(rest, [b, h, t, WIDE], second.index(place))


@gluon.jit
def tile_at(tiles, place):
    """The tile at a stage or slot, (BLOCK, WIDE) and (BLOCK, REST)."""
    first, second = tiles
    wide = first.index(place).reshape([BLOCK, first.shape[4]])
    return wide, second.index(place).reshape([BLOCK, second.shape[4]])


@gluon.jit
def scale_tile(tile, FACTOR: gl.constexpr):
    """Multiply a tile of shared memory, which a product reads next."""
    tile.store((tile.load(factors(BLOCK)) * FACTOR).to(tile.dtype))
    fence_async_shared()


@gluon.jit
def begin_scores(left, right, REST: gl.constexpr):
    """Begin left right^T (BLOCK, BLOCK) of two tiles in shared memory.

    Left factors in registers are not for loops that do not change them: ptxas 12.8 and 12.9 take
    them for free behind the product and overwrite them (kernels/NOTES.md).
    """
    scores = gl.zeros([BLOCK, BLOCK], gl.float32, products(BLOCK))
    scores = warpgroup_mma(left[0], right[0].permute((1, 0)), scores, use_acc=False, is_async=True)
    if REST > 0:
        scores = warpgroup_mma(left[1], right[1].permute((1, 0)), scores, is_async=True)
    return scores


@gluon.jit
def begin_sum(left, right, total, rest, add, REST: gl.constexpr):
    """Begin total + left right, of a left factor in registers; where `add` is false left right.

    total, rest: WIDE and REST columns.
    """
    total = warpgroup_mma(left, right[0], total, use_acc=add, is_async=True)
    if REST > 0:
        left = gl.convert_layout(left, factors(REST))
        rest = warpgroup_mma(left, right[1], rest, use_acc=add, is_async=True)
    return total, rest


@gluon.jit
def await_scores(
    u, left, right, total, rest, add, BEHIND: gl.constexpr, REST: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """Wait for scores u, but not for BEHIND products that began after them.

    left, right: the factors of the step before. With one group their product is under way, and is
    waited for as well. With several it begins here, for `await_sum`. In a block's first step there
    is no step before: the product is of leftovers, perhaps of a tile that TMA is overwriting. The
    second step's replaces it, since `add` is false there as well.
    """
    if GROUPS > 1:
        total, rest = begin_sum(left, right, total, rest, add, REST)
        u = warpgroup_mma_wait(BEHIND + (2 if REST > 0 else 1), deps=[u])
    elif REST > 0:
        u, total, rest, left = warpgroup_mma_wait(BEHIND, deps=[u, total, rest, left])
    else:
        u, total, left = warpgroup_mma_wait(BEHIND, deps=[u, total, left])
    return u, left, total, rest


@gluon.jit
def await_sum(done, left, total, rest, REST: gl.constexpr, BEHIND: gl.constexpr = 0):
    """Wait for what `begin_sum` began, but not for BEHIND products that began after it.

    done: what is computed before the wait.
    """
    if REST > 0:
        done, left, total, rest = warpgroup_mma_wait(BEHIND, deps=[done, left, total, rest])
        rest = warpgroup_mma_init(rest)
    else:
        done, left, total = warpgroup_mma_wait(BEHIND, deps=[done, left, total])
    return done, left, warpgroup_mma_init(total), rest


@gluon.jit
def no_product(WIDTH: gl.constexpr):
    """What a block's first product of WIDTH columns takes the place of.

    Made once: zeros for every block would end the overlap of products (C7515).
    """
    return warpgroup_mma_init(gl.zeros([BLOCK, WIDTH], gl.float32, products(WIDTH)))


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase


@gluon.jit
def pass_by(full, empty, stage, phase):
    """Leave a stage unread whose tiles only other groups need."""
    mbarrier.wait(full.index(stage), phase)
    leave(empty.index(stage))


@gluon.jit
def partial_sums(x):
    """(BLOCK, 4): of each row of x (BLOCK, BLOCK) as products lie, the sums that a thread holds.

    Over a scan they are added as they are, and the four of a row joined once (`join_sums`).
    """
    parts = x.reshape([BLOCK, BLOCK // 8, 4, 2]).permute((0, 2, 1, 3))
    return gl.sum(parts.reshape([BLOCK, 4, BLOCK // 4]), 2)


@gluon.jit
def join_sums(parts):
    return gl.convert_layout(gl.sum(parts, 1), gl.SliceLayout(1, products(BLOCK)))


@gluon.jit
def next_block(counter):
    return gl.atomic_add(counter, 1) + gl.num_programs(0)


@gluon.jit
def place_of(block, heads, blocks):
    """(head, which of its blocks) of a block's number, in the order of `launches.grid`."""
    return block // (heads * blocks) * heads + block % heads, block // heads % blocks


@gluon.jit
def hand_over(work, slot, b, h, t, block):
    """Tell the consumer what comes to a slot: head h of batch b from row t on; b = -1: no more."""
    work.index(slot).store(gl.full([1], b, gl.int32, IN_PRODUCER))
    work.index(2 + slot).store(gl.full([1], h, gl.int32, IN_PRODUCER))
    work.index(4 + slot).store(gl.full([1], t, gl.int32, IN_PRODUCER))
    work.index(6 + slot).store(gl.full([1], block, gl.int32, IN_PRODUCER))


@gluon.jit
def slot_of(turn, SLOTS: gl.constexpr):
    """The slot of a program's `turn`-th block."""
    return turn & (SLOTS - 1)


@gluon.jit
def await_slot(free, turn, SLOTS: gl.constexpr):
    """Wait, in the producer, until the slot of a turn has been left by the block before in it."""
    mbarrier.wait(free.index(slot_of(turn, SLOTS)), ((turn >> (SLOTS - 1)) & 1) ^ 1)


@gluon.jit
def leave_slot(free, slot, turn, SLOTS: gl.constexpr, AT_END: gl.constexpr):
    """Leave the slot of a result that has left it: early in a block that of the one before.

    With one slot, at the end of the block itself.
    """
    if (SLOTS == 1) == AT_END and turn > SLOTS - 2:
        tma.store_wait(0)
        leave(free.index(slot ^ (SLOTS - 1)))


@gluon.jit
def end_work(work, ready, free, turn, SLOTS: gl.constexpr):
    """Tell the consumer that no block is left."""
    slot = slot_of(turn, SLOTS)
    await_slot(free, turn, SLOTS)
    hand_over(work, slot, -1, 0, 0, 0)
    mbarrier.arrive(ready.index(slot))


@gluon.jit
def _number(work, place):
    return gl.max(work.index(place).load(IN_CONSUMER), 0)


@gluon.jit
def receive(work, ready, turn, SLOTS: gl.constexpr):
    """Wait, in the consumer, for the tiles of its `turn`-th block; batch, head and first row."""
    slot = slot_of(turn, SLOTS)
    mbarrier.wait(ready.index(slot), (turn >> (SLOTS - 1)) & 1)
    return _number(work, slot), _number(work, 2 + slot), _number(work, 4 + slot)


@gluon.jit
def block_of(work, slot):
    """The number of the block in a slot."""
    return _number(work, 6 + slot)


@gluon.jit
def bound_of(documents, b, t):
    """Where the document of token t of batch b, the last one past the end, begins or ends; or 0."""
    if documents is None:
        return 0
    else:
        bounds, T = documents
        return gl.load(bounds + gl.cast(b, gl.int64) * T + gl.minimum(t, T - 1))


@gluon.jit
def scan_of(documents, b, i_start, SPLIT: gl.constexpr):
    """The first tile of history that the rows from i_start on need, and the end of those to mask.

    SPLIT: from there on to the diagonal, which this is otherwise, every row sees all.
    """
    whole = i_start // BLOCK
    if SPLIT:
        last = bound_of(documents, b, i_start + BLOCK - 1)
        whole = gl.minimum((last + BLOCK - 1) // BLOCK, whole)
    return bound_of(documents, b, i_start) // BLOCK, whole


@gluon.jit
def only_seen(exponents, documents, bounds, t, BEFORE: gl.constexpr):
    """Exponents (BLOCK, BLOCK), -inf where the document of a row does not hold the column.

    t: the token of the first column. BEFORE: the bounds are ends, and columns lie before them.
    """
    if documents is None:
        return exponents
    else:
        columns = gl.expand_dims(gl.arange(0, BLOCK, gl.SliceLayout(0, products(BLOCK))), 0)
        before = columns < gl.expand_dims(bounds - t, 1)
        return gl.where(before == BEFORE, exponents, float("-inf"))


@gluon.jit
def tanh(x):
    """The GPU's own instruction, as in `portable._half_tanh`."""
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def sigmoid(x):
    return 1.0 / (1.0 + gl.exp2(-x * LOG2_E))
