"""The forward pass of `forward.py` in Gluon, for BF16 on Hopper: without a running maximum.

`hopper_tiles` explains what Gluon adds. The consumer keeps one product ahead: while it turns the
scores of a tile into weights, the tensor cores still add the tile before to z.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from relation.kernels.flash_relation.hopper_tiles import (
    BLOCK,
    LN_2,
    LOG2_E,
    allocate_barriers,
    allocate_tiles,
    allocate_work,
    await_slot,
    begin_scores,
    factors,
    fetch,
    hand_over,
    next_block,
    next_stage,
    offset_of,
    place_of,
    products,
    receive,
    rows,
    sigmoid,
    store_rows,
    tanh,
    tile_at,
)


@gluon.jit
def _producer(
    p1_tiles, p2_tiles, info_tiles, heads, blocks, all_blocks, H, counter,
    p1, p2, info, full, empty, ready, free, work,
    GROUP: gl.constexpr, STAGES: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """Bring each block's rows of p1, then its history: the diagonal, then from the start on.

    TILE: bytes of a tile.
    """
    stage = 0
    phase = 1
    turn = 0
    block = gl.program_id(0)
    while block < all_blocks:
        head, place = place_of(block, heads, blocks)
        b, h = head // H, head % H
        # The last rows have the longest history, so they start first.
        i_start = (blocks - 1 - place) * BLOCK
        slot = turn & 1
        await_slot(free, turn)
        hand_over(work, slot, block)
        mbarrier.expect(ready.index(slot), TILE)
        fetch(p1_tiles, b, h, i_start, p1, slot, ready.index(slot))
        j_start = i_start
        for step in range(i_start // BLOCK + 1):
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(full.index(stage), 2 * TILE)
            fetch(p2_tiles, b, h // GROUP, j_start, p2, stage, full.index(stage))
            fetch(info_tiles, b, h // GROUP, j_start, info, stage, full.index(stage))
            j_start = step * BLOCK
            stage, phase = next_stage(stage, phase, STAGES)
        turn += 1
        block = next_block(counter)
    await_slot(free, turn)
    hand_over(work, turn & 1, all_blocks)
    mbarrier.arrive(ready.index(turn & 1))


@gluon.jit
def _exponents(u, scale, SCALED: gl.constexpr):
    """E log2(e)."""
    if SCALED:
        return u * (tanh(u) * LOG2_E + LOG2_E)
    else:
        h2 = u * (0.5 * LOG2_E * scale)
        return h2 * tanh(u * (0.5 * scale)) + h2


@gluon.jit
def _consumer(
    lam, y, gate_logit, log_norm, stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    heads, blocks, all_blocks, H, T, scale, tau,
    p1, p2, info, full, empty, ready, free, work,
    TRANSPORT_SELF: gl.constexpr, D: gl.constexpr, WIDE: gl.constexpr, REST: gl.constexpr,
    STAGES: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    DTYPE: gl.constexpr = p1[0].dtype
    S: gl.constexpr = products(BLOCK)
    lam = gl.load(lam)
    stage = 0
    phase = 0
    turn = 0
    block = receive(work, ready, turn)
    while block < all_blocks:
        head, place = place_of(block, heads, blocks)
        i_start = (blocks - 1 - place) * BLOCK
        i = i_start + gl.arange(0, BLOCK, gl.SliceLayout(1, S))
        slot = turn & 1
        p1_i = tile_at(p1, slot)
        if SCALED:
            scaled = (p1_i[0].load(factors(BLOCK)) * (0.5 * scale)).to(DTYPE)
            p1_i = scaled, scaled

        # The diagonal.
        mbarrier.wait(full.index(stage), phase)
        u = begin_scores(p1_i, tile_at(p2, stage), REST)
        u = warpgroup_mma_wait(0, deps=[u])
        e2 = _exponents(u, scale, SCALED)
        j = i_start + gl.arange(0, BLOCK, gl.SliceLayout(0, S))
        own = gl.expand_dims(j, 0) == gl.expand_dims(i, 1)
        u_self = gl.sum(gl.where(own, u, 0.0), 1)
        s = sigmoid(u_self * (2.0 / tau if SCALED else scale / tau))
        self2 = s * LOG2_E + lam * gl.log2((i + 1).to(gl.float32))
        # Without history only Self is left: any weight will do, and 1 divides away exactly.
        self2 = gl.where(i == 0, 0.0, self2)
        e2 = gl.where(gl.expand_dims(j, 0) < gl.expand_dims(i, 1), e2, float("-inf"))
        weight = gl.exp2(e2)
        l_i = gl.sum(weight, 1)
        if TRANSPORT_SELF:
            weight = gl.where(own, gl.exp2(gl.expand_dims(self2, 1)), weight)
        w = gl.convert_layout(weight.to(DTYPE), factors(WIDE))
        info_j = tile_at(info, stage)
        z = gl.zeros([BLOCK, WIDE], gl.float32, products(WIDE))
        z = warpgroup_mma(w, info_j[0], z, use_acc=False, is_async=True)
        if REST > 0:
            w_rest = gl.convert_layout(w, factors(REST))
            z_rest = gl.zeros([BLOCK, REST], gl.float32, products(REST))
            z_rest = warpgroup_mma(w_rest, info_j[1], z_rest, use_acc=False, is_async=True)

        for _ in range(i_start // BLOCK):
            before = stage
            stage, phase = next_stage(stage, phase, STAGES)
            mbarrier.wait(full.index(stage), phase)
            u = begin_scores(p1_i, tile_at(p2, stage), REST)
            if REST > 0:
                u, z, z_rest, w = warpgroup_mma_wait(0, deps=[u, z, z_rest, w])
            else:
                u, z, w = warpgroup_mma_wait(0, deps=[u, z, w])
            mbarrier.arrive(empty.index(before))
            weight = gl.exp2(_exponents(u, scale, SCALED))
            l_i += gl.sum(weight, 1)
            w = gl.convert_layout(weight.to(DTYPE), factors(WIDE))
            info_j = tile_at(info, stage)
            z = warpgroup_mma(w, info_j[0], z, is_async=True)
            if REST > 0:
                w_rest = gl.convert_layout(w, factors(REST))
                z_rest = warpgroup_mma(w_rest, info_j[1], z_rest, is_async=True)
        if REST > 0:
            z, z_rest, w = warpgroup_mma_wait(0, deps=[z, z_rest, w])
        else:
            z, w = warpgroup_mma_wait(0, deps=[z, w])
        mbarrier.arrive(empty.index(stage))
        mbarrier.arrive(free.index(slot))
        stage, phase = next_stage(stage, phase, STAGES)
        turn += 1

        l_all = l_i + gl.exp2(self2)
        share = 1.0 / l_all
        first = gl.cast(head, gl.int64) * T
        inside = i < T
        gl.store(gate_logit + first + i, (gl.log2(l_i) - self2) * LN_2, mask=inside)
        gl.store(log_norm + first + i, gl.log2(l_all), mask=inside)
        at = y + offset_of(head // H, head % H, i_start, stride_y_b, stride_y_h, stride_y_t)
        z *= gl.expand_dims(gl.convert_layout(share, gl.SliceLayout(1, products(WIDE))), 1)
        z = gl.convert_layout(z.to(DTYPE), rows(WIDE))
        store_rows(at, z, T - i_start, stride_y_t, stride_y_d, 0, D)
        if REST > 0:
            z_rest *= gl.expand_dims(gl.convert_layout(share, gl.SliceLayout(1, products(REST))), 1)
            z_rest = gl.convert_layout(z_rest.to(DTYPE), rows(REST))
            store_rows(at, z_rest, T - i_start, stride_y_t, stride_y_d, WIDE, D)
        block = receive(work, ready, turn)


@gluon.jit(do_not_specialize=["T", "heads", "blocks", "all_blocks"])
def hopper_forward_kernel(
    p1_tiles, p1_rests, p2_tiles, p2_rests, info_tiles, info_rests, counter,
    lam, y, gate_logit, log_norm,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    heads, blocks, all_blocks, H, T, scale, tau,
    TRANSPORT_SELF: gl.constexpr, D: gl.constexpr, WIDE: gl.constexpr, REST: gl.constexpr,
    STAGES: gl.constexpr, SCALED: gl.constexpr, GROUP: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    scale, tau = gl.cast(scale, gl.float32), gl.cast(tau, gl.float32)
    p1 = allocate_tiles(2, p1_tiles, p1_rests)
    p2 = allocate_tiles(STAGES, p2_tiles, p2_rests)
    info = allocate_tiles(STAGES, info_tiles, info_rests)
    full, empty = allocate_barriers(STAGES), allocate_barriers(STAGES)
    ready, free = allocate_barriers(2), allocate_barriers(2)
    work = allocate_work()
    gl.warp_specialize(
        [
            (_consumer, (
                lam, y, gate_logit, log_norm, stride_y_b, stride_y_h, stride_y_t, stride_y_d,
                heads, blocks, all_blocks, H, T, scale, tau, p1, p2, info, full, empty, ready, free,
                work, TRANSPORT_SELF, D, WIDE, REST, STAGES, SCALED,
            )),
            (_producer, (
                (p1_tiles, p1_rests), (p2_tiles, p2_rests), (info_tiles, info_rests),
                heads, blocks, all_blocks, H, counter, p1, p2, info, full, empty, ready, free, work,
                GROUP, STAGES, 2 * BLOCK * (WIDE + REST),
            )),
        ],
        [1],
        [PRODUCER_REGISTERS],
    )  # fmt: skip
