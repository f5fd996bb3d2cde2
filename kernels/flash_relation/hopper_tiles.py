"""Shared by the Gluon kernels for Hopper: moving tiles, distributing blocks, arithmetic.

Gluon is Triton's lower level: the same Python, but the kernel makes the compiler's choices itself.

Layouts. A layout says which thread holds which numbers of a tile in registers, or where they are in
shared memory. `products` is Hopper's layout of a product's result, with 16 rows per warp; `factors`
is the layout of its left factor. Here `convert_layout` moves no number to another thread.

Warp specialisation. A program has GROUPS consumers, groups of four warps that compute, and one
producer, a warp that asks TMA for tiles. Most of the producer's registers go to the consumers.

Groups. Consumer ME, of GROUPS, owns 64 rows of the program's block and keeps their sums. All read
the same scanned tiles, so each tile travels once for GROUPS x 64 rows. The producer brings every
tile that some group needs; the other groups skip it (`pass_by`). With documents there is one group,
because more rows touch more documents, which makes the scan longer.

Order of products. One group begins the product of a step's weights at the end of that step and
waits for it in the next step. With several groups, ptxas serialises all products in that order (its
message C7512). They begin it in the next step, after that step's scores (`await_scores`), and wait
for it at that step's end (`await_sum`). One group is slower this way. `hopper_p2_info` differs.

mbarriers. An mbarrier is a counter in shared memory. Its phase completes when all its arrivals and
all bytes announced to it have come; phases are 0, 1, 0 and so on. `wait(barrier, phase)` returns
once that phase is complete. A new barrier counts as having completed phase 1.

Rings. Scanned tiles travel through STAGES stages. The producer waits until a stage is `empty` and
asks TMA to fill it. TMA's bytes make it `full`; the arrivals of all consumers make it `empty`. What
a block owns travels the same way through SLOTS slots, `ready` and `free`; `work` names the block.
With two slots, the next block's tiles arrive while the consumers end this block, with one slot
afterwards. A slot has a tile per group, at slot * GROUPS + ME. A result overwrites the owned rows
that it belongs to, and TMA stores it from there. The producer arrives once per stage or slot, each
thread of a consumer for itself (`leave`): else its four warps would have to meet at every tile.

wgmma. `warpgroup_mma(..., is_async=True)` only begins a product; `warpgroup_mma_wait(n, deps)`
waits until at most n are pending. `deps` must name all registers that the products read or write,
and the wait returns them. wgmma and TMA reach shared memory the same way; only what threads stored
there needs `fence_async_shared` before wgmma or TMA reads it.

Blocks. A launch starts as many programs as fit the GPU at once. Each computes the block of its own
number, then takes further numbers from a counter that is zero when the launch begins. The results
do not depend on which program computes a block.

Documents. None, which compiles to no code, or a pair: `Documents.starts` or `Documents.ends`, and
T. A scan reads only the tiles that its block needs and masks what a row does not see.

Tiles. D columns are a pair of tiles of WIDE and REST columns (`split_width`). If REST is 0, the
second tile is the first one again, and nothing uses it. Descriptors give zeros past T and D.
"""

import math
import struct
from typing import NamedTuple

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
THREADS = gl.constexpr(128)  # per consumer
# Layouts of one number in registers, for the producer's one warp and for a consumer's four.
IN_PRODUCER = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))
IN_CONSUMER = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


class Constants(NamedTuple):
    """The compile-time constants of every Gluon kernel, its argument K.

    WIDE, REST, STAGES, SLOTS, GROUPS: see above. SCALE: D^-1/2. SCALED: half of it is a power of
    two, so a tile is multiplied by it ahead (README, TMA). MEMBERS: heads of p1 per head of p2.
    *_REGISTERS: per thread of the producer's warp group and of consumers 1 and 2. EMULATED,
    HOLDS_P1: see `launches.GluonLaunch`.
    Triton before 3.8 takes no field in `static_range`, only gl.constexpr of it, nor in a list.
    """

    TRANSPORT_SELF: bool
    WIDE: int
    REST: int
    SCALE: float
    SCALED: bool
    STAGES: int
    SLOTS: int
    GROUPS: int
    MEMBERS: int
    PRODUCER_REGISTERS: int
    CONSUMER_REGISTERS: int
    EMULATED: int
    HOLDS_P1: bool


@gluon.constexpr_function
def products(width):
    """The layout of a product of `width` columns."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, width, 16]
    )


@gluon.constexpr_function
def factors(width):
    """The layout of such a product's left factor, if it is in registers."""
    return gl.DotOperandLayout(0, products(width), 2)


@gluon.jit
def _allocate(count: gl.constexpr, tiles):
    shape: gl.constexpr = [count, 1, 1, BLOCK, tiles.block_type.shape[3]]
    return gl.allocate_shared_memory(tiles.dtype, shape, tiles.layout)


@gluon.jit
def allocate_tiles(count: gl.constexpr, descriptors):
    """Allocate shared memory for `count` tiles of a pair of descriptors."""
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
    """Allocate `count` barriers that TMA completes, and `count` that all consumers complete."""
    return allocate_barriers(count), allocate_barriers(count, THREADS * GROUPS)


@gluon.jit
def leave(barrier):
    """Let each thread of a consumer arrive, without waiting for the other threads.

    The fence completes the thread's reads before it arrives. It is needed because the arrival waits
    only for the thread's own cp.async copies (there are none): PTX calls it asynchronous and gives
    it no release semantics. In sm_90's code the arrival follows the fence (MEMBAR, then ARRIVES).
    """
    gl.inline_asm_elementwise(
        "fence.acq_rel.cta; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    async_copy.mbarrier_arrive(barrier, increment_count=False)


@gluon.jit
def leave_together(barrier):
    """Let one thread arrive for all four warps, after they have waited for each other.

    If registers are short, ptxas serialises products unless this wait separates them.
    """
    mbarrier.arrive(barrier, count=THREADS)


@gluon.jit
def allocate_work():
    """Allocate, for each of two slots, the batch, head, first row and number of its block."""
    return gl.allocate_shared_memory(gl.int32, [8, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def allocate_row_numbers(count: gl.constexpr, tiles):
    """Allocate `count` times BLOCK numbers, one per row, in the layout of the descriptor."""
    return gl.allocate_shared_memory(gl.float32, [count, 1, BLOCK], tiles.layout)


@gluon.jit
def fetch_row_numbers(tiles, row, t, numbers, place, barrier):
    """Ask TMA for BLOCK numbers, from t on, of a row of the matrix that `tiles` describes."""
    tma.async_copy_global_to_shared(tiles, [row, t], barrier, numbers.index(place))


@gluon.jit
def send_row_numbers(tiles, row, t, numbers, place):
    """Ask TMA to store such numbers; the caller must do what `send` requires."""
    tma.async_copy_shared_to_global(tiles, [row, t], numbers.index(place))


@gluon.jit
def row_numbers(numbers, place, AXIS: gl.constexpr = 1):
    """Load fetched numbers: one per row (AXIS 1) or one per column (AXIS 0) of a product."""
    return numbers.index(place).reshape([BLOCK]).load(gl.SliceLayout(AXIS, products(BLOCK)))


@gluon.jit
def fetch(descriptors, b, h, t, tiles, place, barrier):
    """Ask TMA for the BLOCK rows from t on of head h of batch b; their bytes count at `barrier`."""
    wide, rest = descriptors
    first, second = tiles
    tma.async_copy_global_to_shared(wide, [b, h, t, 0], barrier, first.index(place))
    if rest is not None:
        WIDE: gl.constexpr = wide.block_type.shape[3]
        tma.async_copy_global_to_shared(rest, [b, h, t, WIDE], barrier, second.index(place))


@gluon.jit
def send(descriptors, b, h, t, tiles, place):
    """Ask TMA to store the tile at `place` as the rows from t on of head h of batch b.

    Call `fence_async_shared` before. After `tma.store_wait(0)` the place may be overwritten.
    """
    wide, rest = descriptors
    first, second = tiles
    tma.async_copy_shared_to_global(wide, [b, h, t, 0], first.index(place))
    if rest is not None:
        WIDE: gl.constexpr = wide.block_type.shape[3]
        tma.async_copy_shared_to_global(rest, [b, h, t, WIDE], second.index(place))


@gluon.jit
def tile_at(tiles, place):
    """Return the pair of tiles at a stage or slot, (BLOCK, WIDE) and (BLOCK, REST)."""
    first, second = tiles
    wide = first.index(place).reshape([BLOCK, first.shape[4]])
    return wide, second.index(place).reshape([BLOCK, second.shape[4]])


@gluon.jit
def scale_tile(tile, FACTOR: gl.constexpr):
    """Multiply a tile of shared memory in place, and fence it for the product that reads it."""
    tile.store((tile.load(factors(BLOCK)) * FACTOR).to(tile.dtype))
    fence_async_shared()


@gluon.jit
def begin_scores(left, right, REST: gl.constexpr):
    """Begin left right^T (BLOCK, BLOCK). right: tiles in shared memory; left: usually too.

    A left factor in registers that a loop does not change must go through each wait for its
    product: ptxas 12.8 and 12.9 consider its registers free afterwards (kernels/NOTES.md).
    """
    scores = zeros(BLOCK)
    scores = warpgroup_mma(left[0], right[0].permute((1, 0)), scores, use_acc=False, is_async=True)
    if REST > 0:
        scores = warpgroup_mma(left[1], right[1].permute((1, 0)), scores, is_async=True)
    return scores


@gluon.jit
def begin_sum(left, right, total, rest, add, REST: gl.constexpr):
    """Begin total + left right, or only left right if `add` is false. `left` is in registers.

    total, rest: the WIDE and REST columns of the sum.
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
    """Wait for the scores u, but not for BEHIND products that began after them.

    left, right: the factors of the previous step. With one group their product is already pending,
    and this waits for it too. With several groups it begins here, and `await_sum` waits for it:

        step   begun, in this order          waited for here   by `await_sum`   the sum becomes
        0      U_0, product of leftovers     U_0               leftovers        leftovers
        1      U_1, product of step 0        U_1               product 0        product 0
        2      U_2, product of step 1        U_2               product 1        products 0 + 1

    So `add` is true from a block's third step on. Step 0 multiplies a tile that does not belong to
    the sum (in the forward the previous block's, which TMA may be overwriting), because step 1
    replaces the result.
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
    """Wait for the product of `begin_sum`, but not for BEHIND products that began after it.

    done: a value that the compiler must compute before the wait.
    """
    if REST > 0:
        done, left, total, rest = warpgroup_mma_wait(BEHIND, deps=[done, left, total, rest])
        rest = warpgroup_mma_init(rest)
    else:
        done, left, total = warpgroup_mma_wait(BEHIND, deps=[done, left, total])
    return done, left, warpgroup_mma_init(total), rest


@gluon.jit
def zeros(WIDTH: gl.constexpr):
    """FP32 zeros, (BLOCK, WIDTH), as a product has them."""
    return gl.zeros([BLOCK, WIDTH], gl.float32, products(WIDTH))


@gluon.jit
def no_product(WIDTH: gl.constexpr):
    """Return an initial sum of WIDTH columns, which a block's first product replaces.

    A kernel makes it once: zeros in every block would end the overlap of products (C7515).
    """
    return warpgroup_mma_init(zeros(WIDTH))


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase


@gluon.jit
def pass_by(full, empty, stage, phase):
    """Wait until a stage is full and leave it unread, because only other groups need its tiles."""
    mbarrier.wait(full.index(stage), phase)
    leave(empty.index(stage))


@gluon.jit
def partial_sums(x):
    """Return (BLOCK, 4): per row of x (BLOCK, BLOCK), the sum of what each of four threads holds.

    x has the layout of a product. A scan adds such sums; `join_sums` joins a row's four at its end.
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
    """Return (head, block within it) for a block's number, in the order of `launches.grid`."""
    return block // (heads * blocks) * heads + block % heads, block // heads % blocks


@gluon.jit
def hand_over(work, slot, b, h, t, block):
    """Tell the consumers what comes to a slot: head h of batch b from row t on; b = -1: no more."""
    work.index(slot).store(gl.full([1], b, gl.int32, IN_PRODUCER))
    work.index(2 + slot).store(gl.full([1], h, gl.int32, IN_PRODUCER))
    work.index(4 + slot).store(gl.full([1], t, gl.int32, IN_PRODUCER))
    work.index(6 + slot).store(gl.full([1], block, gl.int32, IN_PRODUCER))


@gluon.jit
def slot_of(turn, SLOTS: gl.constexpr):
    """Return the slot of a program's `turn`-th block, turn % SLOTS, for SLOTS of 1 or 2.

    `%` and `//` would take more instructions, because the compiler cannot exclude a negative turn.
    """
    return turn & (SLOTS - 1)


@gluon.jit
def _phase_of(turn, SLOTS: gl.constexpr):
    """Return the phase of a slot's barriers in a turn, turn // SLOTS % 2."""
    return (turn >> (SLOTS - 1)) & 1


@gluon.jit
def await_slot(free, turn, SLOTS: gl.constexpr):
    """In the producer: wait until all consumers have left the previous block in a turn's slot."""
    mbarrier.wait(free.index(slot_of(turn, SLOTS)), _phase_of(turn, SLOTS) ^ 1)


@gluon.jit
def leave_slot(free, slot, turn, SLOTS: gl.constexpr, AT_END: gl.constexpr):
    """Wait until TMA has read the results in a slot, then leave the slot.

    With two slots: early in a block, for the previous block. With one: AT_END of the block itself.
    """
    if (SLOTS == 1) == AT_END and turn > SLOTS - 2:
        tma.store_wait(0)
        leave(free.index(slot ^ (SLOTS - 1)))


@gluon.jit
def end_work(work, ready, free, turn, SLOTS: gl.constexpr):
    """Tell the consumers that no block is left."""
    slot = slot_of(turn, SLOTS)
    await_slot(free, turn, SLOTS)
    hand_over(work, slot, -1, 0, 0, 0)
    mbarrier.arrive(ready.index(slot))


@gluon.jit
def _number(work, place):
    return gl.max(work.index(place).load(IN_CONSUMER), 0)


@gluon.jit
def receive(work, ready, turn, SLOTS: gl.constexpr):
    """In a consumer: wait for the tiles of block `turn`; return its batch, head and first row."""
    slot = slot_of(turn, SLOTS)
    mbarrier.wait(ready.index(slot), _phase_of(turn, SLOTS))
    return _number(work, slot), _number(work, 2 + slot), _number(work, 4 + slot)


@gluon.jit
def block_of(work, slot):
    """Return the number of the block in a slot."""
    return _number(work, 6 + slot)


@gluon.jit
def bound_of(documents, b, t):
    """Return where the document of token min(t, T - 1) of batch b begins or ends; 0 without any."""
    if documents is None:
        return 0
    else:
        bounds, T = documents
        return gl.load(bounds + gl.cast(b, gl.int64) * T + gl.minimum(t, T - 1))


@gluon.jit
def scan_of(documents, b, i_start, SPLIT: gl.constexpr):
    """Return the first tile of history that the rows from i_start on need, and where masks end.

    With SPLIT, all rows see all tiles from there to the diagonal. Without, it is the diagonal.
    """
    masked_end = i_start // BLOCK
    if SPLIT:
        last = bound_of(documents, b, i_start + BLOCK - 1)
        masked_end = gl.minimum((last + BLOCK - 1) // BLOCK, masked_end)
    return bound_of(documents, b, i_start) // BLOCK, masked_end


@gluon.jit
def only_seen(exponents, documents, bounds, t, BEFORE: gl.constexpr):
    """Return exponents (BLOCK, BLOCK) with -inf in columns outside the bound of a row's document.

    t: the token of the first column. bounds: where the rows' documents start or, BEFORE, end.
    """
    if documents is None:
        return exponents
    else:
        columns = gl.expand_dims(gl.arange(0, BLOCK, gl.SliceLayout(0, products(BLOCK))), 0)
        before = columns < gl.expand_dims(bounds - t, 1)
        return gl.where(before == BEFORE, exponents, float("-inf"))


@gluon.jit
def tanh(x):
    """tanh by the GPU's own instruction, as in `triton_tiles.half_tanh`."""
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def sigmoid(x):
    return 1.0 / (1.0 + gl.exp2(-x * LOG2_E))


# 2^f for |f| <= 1/2 as a polynomial, c0 to c3. Its relative error is at most 7.5e-5, less than that
# of `tanh` and far below BF16's rounding. PTX takes the bits of numbers.
EXP2_POLYNOMIAL = (0.99992806, 0.69326097, 0.24261113, 0.05517167)
# As gl.constexpr, these constants count in the key of compiled kernels, so an edit compiles again.
EXP2_BITS = gl.constexpr(
    [f"0f{bits:08X}" for bits in struct.unpack("<4I", struct.pack("<4f", *EXP2_POLYNOMIAL))]
)
# PTX that splits x into n + f, where n is the integer next to it: adding 1.5 x 2^23 (0f4B400000)
# leaves n in the lowest bits of t. x is bounded first, so that 2^x stays in FP32's range.
_SPLITS = gl.constexpr({
    "x >= -126": """max.f32 x, $X, 0fC2FC0000; add.rn.f32 t, x, 0f4B400000;
        sub.rn.f32 f, t, 0f4B400000; sub.rn.f32 f, x, f;""",
    "x <= 127": """min.f32 x, $X, 0f42FE0000; add.rn.f32 t, x, 0f4B400000;
        sub.rn.f32 f, t, 0f4B400000; sub.rn.f32 f, x, f;""",
    # The exponent is the product x $F, which is rounded once, in f. $F is at most 2 log2(e).
    "x <= 44 factor": """min.f32 x, $X, 0f42300000; fma.rn.f32 t, x, $F, 0f4B400000;
        sub.rn.f32 f, 0f4B400000, t; fma.rn.f32 f, x, $F, f;""",
})  # fmt: skip


@gluon.constexpr_function
def _exp2_assembly(emulated, bound):
    """Return PTX for eight powers $Y of two, of which `emulated` use no special function.

    bound: a key of `_SPLITS`. Inputs: x as $X, or its factors as $X and $F. The polynomial gives
    2^f, and adding n to its exponent multiplies it by 2^n.
    """
    c0, c1, c2, c3 = EXP2_BITS.value
    emulation = f"""{{ .reg .f32 x, t, f, p; .reg .b32 n, b; {_SPLITS.value[bound]}
        fma.rn.f32 p, f, {c3}, {c2}; fma.rn.f32 p, p, f, {c1}; fma.rn.f32 p, p, f, {c0};
        mov.b32 n, t; mov.b32 b, p; shl.b32 n, n, 23; add.s32 n, n, b; mov.b32 $Y, n; }}"""
    ordinary = "ex2.approx.ftz.f32 $Y, $X;"
    if "factor" in bound:
        ordinary = "{ .reg .f32 x; mul.rn.f32 x, $X, $F; ex2.approx.ftz.f32 $Y, x; }"
    places = {1: (3,), 2: (1, 5), 3: (1, 4, 7), 4: (1, 3, 5, 7)}[emulated]
    lines = [emulation if k in places else ordinary for k in range(8)]
    for name, first in (("$Y", 0), ("$X", 8), ("$F", 16)):
        lines = [line.replace(name, f"${first + k}") for k, line in enumerate(lines)]
    return " ".join(lines)


@gluon.jit
def exp2(x, EMULATED: gl.constexpr, BOUND: gl.constexpr):
    """Return 2^x (BLOCK, BLOCK), EMULATED of eight numbers without the special functions.

    exp(SiLU) takes two of those per score: at 64 columns twice the time of the forward's products.
    BOUND: "x >= -126" or "x <= 127". An emulated x beyond it counts as the bound.
    """
    if EMULATED == 0:
        return gl.exp2(x)
    else:
        return gl.inline_asm_elementwise(
            _exp2_assembly(EMULATED, BOUND), "=f,=f,=f,=f,=f,=f,=f,=f,f,f,f,f,f,f,f,f", [x],
            dtype=gl.float32, is_pure=True, pack=8,
        )  # fmt: skip


@gluon.jit
def exp2_of_product(x, factor, EMULATED: gl.constexpr):
    """Return 2^(x factor) for 0 <= factor <= 2 log2(e) like `exp2`, in an instruction less.

    An emulated x above 44 counts as 44.
    """
    return gl.inline_asm_elementwise(
        _exp2_assembly(EMULATED, "x <= 44 factor"),
        "=f,=f,=f,=f,=f,=f,=f,=f,f,f,f,f,f,f,f,f,f,f,f,f,f,f,f,f", [x, factor],
        dtype=gl.float32, is_pure=True, pack=8,
    )  # fmt: skip
