"""The backward pass over rows of `backward_p1.py` in Gluon, for BF16 on Hopper.

`hopper_tiles` explains what Gluon adds. The consumer keeps one product ahead: while it turns the
scores of a tile into dU, the tensor cores still add the tile before to the gradient of p1.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from relation.kernels.flash_relation.hopper_tiles import (
    BLOCK,
    LOG2_E,
    PAST_END,
    allocate_barriers,
    allocate_tiles,
    allocate_work,
    await_slot,
    begin_scores,
    factors,
    fetch,
    hand_over,
    load_rows,
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
    p1_tiles, dy_tiles, p2_tiles, info_tiles, heads, blocks, all_blocks, H, counters,
    p1, dy, p2, info, full, empty, ready, free, work,
    GROUP: gl.constexpr, STAGES: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """Bring each block's rows, then its history: the diagonal, then from the start on.

    counters: of these blocks and of p2_info's; TILE: bytes of a tile.
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
        mbarrier.expect(ready.index(slot), 2 * TILE)
        fetch(p1_tiles, b, h, i_start, p1, slot, ready.index(slot))
        fetch(dy_tiles, b, h, i_start, dy, slot, ready.index(slot))
        j_start = i_start
        for step in range(i_start // BLOCK + 1):
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(full.index(stage), 2 * TILE)
            fetch(p2_tiles, b, h // GROUP, j_start, p2, stage, full.index(stage))
            fetch(info_tiles, b, h // GROUP, j_start, info, stage, full.index(stage))
            j_start = step * BLOCK
            stage, phase = next_stage(stage, phase, STAGES)
        turn += 1
        block = next_block(counters)
    await_slot(free, turn)
    hand_over(work, turn & 1, all_blocks)
    mbarrier.arrive(ready.index(turn & 1))


@gluon.jit
def _mean_h(y, dy, rows_left, stride_t, stride_d, FIRST: gl.constexpr, D: gl.constexpr):
    """What the columns of the tile dy give to G . Y."""
    WIDTH: gl.constexpr = dy.shape[1]
    y_i = load_rows(y, rows_left, stride_t, stride_d, FIRST, WIDTH, D)
    both = dy.load(rows(WIDTH)).to(gl.float32) * y_i.to(gl.float32)
    return gl.convert_layout(gl.sum(both, 1), gl.SliceLayout(1, products(BLOCK)))


@gluon.jit
def _store_dp1(
    dp1, tile, du_self_i, p2_i, rows_left, scale, stride_t, stride_d,
    FIRST: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """Store columns of the gradient of p1: history's share and, by Self's score, p2's own row."""
    L: gl.constexpr = rows(tile.shape[1])
    du_self_i = gl.expand_dims(gl.convert_layout(du_self_i, gl.SliceLayout(1, L)), 1)
    tile = gl.convert_layout(tile, L) * (0.5 * scale) + du_self_i * p2_i.to(gl.float32)
    store_rows(dp1, tile, rows_left, stride_t, stride_d, FIRST, D)


@gluon.jit
def _consumer(
    p2_all, y, gate_logit, log_norm, row_sums, du_self, dlam_partial, dp1,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    stride_dp1_b, stride_dp1_h, stride_dp1_t, stride_dp1_d,
    heads, blocks, all_blocks, H, T, scale, tau,
    p1, dy, p2, info, full, empty, ready, free, work,
    TRANSPORT_SELF: gl.constexpr, D: gl.constexpr, WIDE: gl.constexpr, REST: gl.constexpr,
    STAGES: gl.constexpr, SCALED: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    DTYPE: gl.constexpr = p1[0].dtype
    S: gl.constexpr = products(BLOCK)
    length = (T + 3) // 4 * 4
    stage = 0
    phase = 0
    turn = 0
    block = receive(work, ready, turn)
    while block < all_blocks:
        head, place = place_of(block, heads, blocks)
        b, h = head // H, head % H
        i_start = (blocks - 1 - place) * BLOCK
        y_rows = y + offset_of(b, h, i_start, stride_y_b, stride_y_h, stride_y_t)
        p2_rows = p2_all + offset_of(b, h // GROUP, i_start, stride_p2_b, stride_p2_h, stride_p2_t)
        dp1_rows = dp1 + offset_of(b, h, i_start, stride_dp1_b, stride_dp1_h, stride_dp1_t)
        numbers = gl.cast(head, gl.int64) * T
        sums = row_sums + gl.cast(head, gl.int64) * 2 * length
        left = T - i_start
        i = i_start + gl.arange(0, BLOCK, gl.SliceLayout(1, S))
        slot = turn & 1
        p1_i = tile_at(p1, slot)
        dy_i = tile_at(dy, slot)
        norm_i = gl.load(log_norm + numbers + i, mask=i < T, other=PAST_END)
        logit = gl.load(gate_logit + numbers + i, mask=i < T, other=0.0)
        mean_h_i = _mean_h(y_rows, dy_i[0], left, stride_y_t, stride_y_d, 0, D)
        if REST > 0:
            mean_h_i += _mean_h(y_rows, dy_i[1], left, stride_y_t, stride_y_d, WIDE, D)
        if SCALED:
            p1_i[0].store((p1_i[0].load(rows(WIDE)) * (0.5 * scale)).to(DTYPE))
            fence_async_shared()
        gl.store(sums + i, norm_i, mask=i < T)
        gl.store(sums + length + i, mean_h_i, mask=i < T)
        norm_i = gl.expand_dims(norm_i, 1)
        mean_h_i = gl.expand_dims(mean_h_i, 1)

        # The diagonal.
        mbarrier.wait(full.index(stage), phase)
        p2_j = tile_at(p2, stage)
        u = begin_scores(p1_i, p2_j, REST)
        h_ij = begin_scores(dy_i, tile_at(info, stage), REST)
        u, h_ij = warpgroup_mma_wait(0, deps=[u, h_ij])
        half_u = u if SCALED else u * (0.5 * scale)
        t = tanh(half_u)
        e = half_u * t + half_u
        j = i_start + gl.arange(0, BLOCK, gl.SliceLayout(0, S))
        own = gl.expand_dims(j, 0) == gl.expand_dims(i, 1)
        past = gl.expand_dims(j, 0) < gl.expand_dims(i, 1)
        u_self = gl.sum(gl.where(own, u, 0.0), 1)
        h_self = gl.sum(gl.where(own, h_ij, 0.0), 1)
        f = gl.exp2(gl.where(past, e * LOG2_E - norm_i, float("-inf")))
        from_history = gl.sum(f * h_ij, 1)
        de = f * (h_ij - mean_h_i)
        # Twice dU / scale: the factor is applied once, to the sum.
        du = gl.convert_layout((de * ((e - e * t) + t) + de).to(DTYPE), factors(WIDE))
        dp1_i = gl.zeros([BLOCK, WIDE], gl.float32, products(WIDE))
        dp1_i = warpgroup_mma(du, p2_j[0], dp1_i, use_acc=False, is_async=True)
        if REST > 0:
            du_rest = gl.convert_layout(du, factors(REST))
            dp1_rest = gl.zeros([BLOCK, REST], gl.float32, products(REST))
            dp1_rest = warpgroup_mma(du_rest, p2_j[1], dp1_rest, use_acc=False, is_async=True)

        for _ in range(i_start // BLOCK):
            before = stage
            stage, phase = next_stage(stage, phase, STAGES)
            mbarrier.wait(full.index(stage), phase)
            p2_j = tile_at(p2, stage)
            u = begin_scores(p1_i, p2_j, REST)
            h_ij = begin_scores(dy_i, tile_at(info, stage), REST)
            # All but H's products: its columns are one or two tiles.
            if REST > 0:
                u, dp1_i, dp1_rest, du = warpgroup_mma_wait(2, deps=[u, dp1_i, dp1_rest, du])
            else:
                u, dp1_i, du = warpgroup_mma_wait(1, deps=[u, dp1_i, du])
            mbarrier.arrive(empty.index(before))
            half_u = u if SCALED else u * (0.5 * scale)
            t = tanh(half_u)
            e = half_u * t + half_u
            f = gl.exp2(e * LOG2_E - norm_i)
            h_ij = warpgroup_mma_wait(0, deps=[h_ij])
            from_history += gl.sum(f * h_ij, 1)
            de = f * (h_ij - mean_h_i)
            du = gl.convert_layout((de * ((e - e * t) + t) + de).to(DTYPE), factors(WIDE))
            dp1_i = warpgroup_mma(du, p2_j[0], dp1_i, is_async=True)
            if REST > 0:
                du_rest = gl.convert_layout(du, factors(REST))
                dp1_rest = warpgroup_mma(du_rest, p2_j[1], dp1_rest, is_async=True)

        p2_i = load_rows(p2_rows, left, stride_p2_t, stride_p2_d, 0, WIDE, D)
        # As in `backward_p1`: in FP32 from the scores.
        da = from_history
        if TRANSPORT_SELF:
            da -= sigmoid(logit) * h_self
        da *= sigmoid(-logit)
        s = sigmoid(u_self * (2.0 / tau if SCALED else scale / tau))
        du_self_i = -da * s * (1.0 - s) * (scale / tau)
        gl.store(du_self + numbers + i, du_self_i, mask=i < T)
        dlam_i = gl.where(i < T, -da * gl.log((i + 1).to(gl.float32)), 0.0)
        gl.store(dlam_partial + block, gl.sum(dlam_i, 0))
        if REST > 0:
            dp1_i, dp1_rest, du = warpgroup_mma_wait(0, deps=[dp1_i, dp1_rest, du])
        else:
            dp1_i, du = warpgroup_mma_wait(0, deps=[dp1_i, du])
        mbarrier.arrive(empty.index(stage))
        mbarrier.arrive(free.index(slot))
        stage, phase = next_stage(stage, phase, STAGES)
        turn += 1
        _store_dp1(dp1_rows, dp1_i, du_self_i, p2_i, left, scale, stride_dp1_t, stride_dp1_d, 0, D)
        if REST > 0:
            p2_rest = load_rows(p2_rows, left, stride_p2_t, stride_p2_d, WIDE, REST, D)
            _store_dp1(
                dp1_rows, dp1_rest, du_self_i, p2_rest, left, scale, stride_dp1_t, stride_dp1_d,
                WIDE, D,
            )  # fmt: skip
        block = receive(work, ready, turn)


@gluon.jit(do_not_specialize=["T", "heads", "blocks", "all_blocks"])
def hopper_p1_kernel(
    p1_tiles, p1_rests, dy_tiles, dy_rests, p2_tiles, p2_rests, info_tiles, info_rests, counters,
    p2, y, gate_logit, log_norm, row_sums, du_self, dlam_partial, dp1,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    stride_dp1_b, stride_dp1_h, stride_dp1_t, stride_dp1_d,
    heads, blocks, all_blocks, H, T, scale, tau,
    TRANSPORT_SELF: gl.constexpr, D: gl.constexpr, WIDE: gl.constexpr, REST: gl.constexpr,
    STAGES: gl.constexpr, SCALED: gl.constexpr, GROUP: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    scale, tau = gl.cast(scale, gl.float32), gl.cast(tau, gl.float32)
    p1_s = allocate_tiles(2, p1_tiles, p1_rests)
    dy_s = allocate_tiles(2, dy_tiles, dy_rests)
    p2_s = allocate_tiles(STAGES, p2_tiles, p2_rests)
    info_s = allocate_tiles(STAGES, info_tiles, info_rests)
    full, empty = allocate_barriers(STAGES), allocate_barriers(STAGES)
    ready, free = allocate_barriers(2), allocate_barriers(2)
    work = allocate_work()
    gl.warp_specialize(
        [
            (_consumer, (
                p2, y, gate_logit, log_norm, row_sums, du_self, dlam_partial, dp1,
                stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
                stride_y_b, stride_y_h, stride_y_t, stride_y_d,
                stride_dp1_b, stride_dp1_h, stride_dp1_t, stride_dp1_d,
                heads, blocks, all_blocks, H, T, scale, tau,
                p1_s, dy_s, p2_s, info_s, full, empty, ready, free, work,
                TRANSPORT_SELF, D, WIDE, REST, STAGES, SCALED, GROUP,
            )),
            (_producer, (
                (p1_tiles, p1_rests), (dy_tiles, dy_rests), (p2_tiles, p2_rests),
                (info_tiles, info_rests), heads, blocks, all_blocks, H, counters,
                p1_s, dy_s, p2_s, info_s, full, empty, ready, free, work,
                GROUP, STAGES, 2 * BLOCK * (WIDE + REST),
            )),
        ],
        [1],
        [PRODUCER_REGISTERS],
    )  # fmt: skip
