"""The backward pass over history of `backward_p2_info.py` in Gluon, for BF16 on Hopper.

`hopper_tiles` explains what Gluon adds. Scores are formed transposed, P2 P1^T, so that F^T and dU^T
are left factors, from registers. The consumer keeps one pair of products ahead: while it works on
the scores of a tile, the tensor cores still add the tile before to the gradients.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from relation.kernels.flash_relation.hopper_tiles import (
    BLOCK,
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
    p2_tiles, info_tiles, p1_tiles, dy_tiles, sums_tiles, heads, blocks, all_blocks, H, counters,
    p2, info, p1, dy, norms, means, full, empty, ready, free, work,
    GROUP: gl.constexpr, STAGES: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """Bring each block's history, then the rows that read it: of each head of p1 in turn.

    heads and H count heads of p2; counters: p1's blocks and these; TILE: bytes of a tile.
    """
    stage = 0
    phase = 1
    turn = 0
    block = gl.program_id(0)
    while block < all_blocks:
        # The first of history is read by the most rows, so it starts first.
        shared, place = place_of(block, heads, blocks)
        b, h = shared // H, shared % H
        j_start = place * BLOCK
        slot = turn & 1
        await_slot(free, turn)
        hand_over(work, slot, block)
        mbarrier.expect(ready.index(slot), 2 * TILE)
        fetch(p2_tiles, b, h, j_start, p2, slot, ready.index(slot))
        fetch(info_tiles, b, h, j_start, info, slot, ready.index(slot))
        for member in range(GROUP):
            head = shared * GROUP + member
            for step in range(blocks - place):
                i_start = j_start + step * BLOCK
                arrival = full.index(stage)
                mbarrier.wait(empty.index(stage), phase)
                mbarrier.expect(arrival, 2 * TILE + 2 * 4 * BLOCK)
                fetch(p1_tiles, b, h * GROUP + member, i_start, p1, stage, arrival)
                fetch(dy_tiles, b, h * GROUP + member, i_start, dy, stage, arrival)
                tma.async_copy_global_to_shared(
                    sums_tiles, [2 * head, i_start], arrival, norms.index(stage)
                )
                tma.async_copy_global_to_shared(
                    sums_tiles, [2 * head + 1, i_start], arrival, means.index(stage)
                )
                stage, phase = next_stage(stage, phase, STAGES)
        turn += 1
        block = next_block(counters + 1)
    await_slot(free, turn)
    hand_over(work, turn & 1, all_blocks)
    mbarrier.arrive(ready.index(turn & 1))


@gluon.jit
def _row_sums(numbers, stage):
    """Of the rows of a stage, one a column of the transposed scores."""
    sums = numbers.index(stage).reshape([BLOCK]).load(gl.SliceLayout(0, products(BLOCK)))
    return gl.expand_dims(sums, 0)


@gluon.jit
def _scan_head(
    gate_logit, du_self, head, j_start, tiles, T, scale, p2_j, info_j, stage, phase,
    dp2_j, dp2_rest, dinfo_j, dinfo_rest, p1, dy, norms, means, full, empty,
    TRANSPORT_SELF: gl.constexpr, WIDE: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
    SCALED: gl.constexpr, DTYPE: gl.constexpr, ALONE: gl.constexpr,
):  # fmt: skip
    """Add what the rows of `head` give to the gradients of the history at j_start.

    ALONE: no other head reads this history, and there is nothing yet to add to. The last stage is
    left to the caller to pass on.
    """
    S: gl.constexpr = products(BLOCK)
    # H's products begin before U's are waited for, while registers last. At 80 columns they do not
    # hold the factors of the step before as well, and ptxas would serialise every product (C7512).
    H_FIRST: gl.constexpr = WIDE + REST <= 64
    j = j_start + gl.arange(0, BLOCK, gl.SliceLayout(1, S))
    numbers = gl.cast(head, gl.int64) * T
    # Self's entries of twice dU / scale and of F.
    du_self_j = gl.load(du_self + numbers + j, mask=j < T, other=0.0) * (2.0 / scale)
    if TRANSPORT_SELF:
        f_self_j = sigmoid(-gl.load(gate_logit + numbers + j, mask=j < T, other=0.0))

    # The diagonal.
    mbarrier.wait(full.index(stage), phase)
    p1_i = tile_at(p1, stage)
    dy_i = tile_at(dy, stage)
    ut = begin_scores(p2_j, p1_i, REST)
    ht = begin_scores(info_j, dy_i, REST)
    norm_i = _row_sums(norms, stage)
    mean_h_i = _row_sums(means, stage)
    ut, ht = warpgroup_mma_wait(0, deps=[ut, ht])
    half_u = ut if SCALED else ut * (0.5 * scale)
    t = tanh(half_u)
    e = half_u * t + half_u
    i = j_start + gl.arange(0, BLOCK, gl.SliceLayout(0, S))
    # Rows past the end come as zeros, also their row sums.
    past = (gl.expand_dims(j, 1) < gl.expand_dims(i, 0)) & gl.expand_dims(i < T, 0)
    own = gl.expand_dims(j, 1) == gl.expand_dims(i, 0)
    ft = gl.exp2(gl.where(past, e * LOG2_E - norm_i, float("-inf")))
    de = ft * (ht - mean_h_i)
    dut = de * ((e - e * t) + t) + de
    dut = gl.where(own, gl.expand_dims(du_self_j, 1), dut)
    if TRANSPORT_SELF:
        ft = gl.where(own, gl.expand_dims(f_self_j, 1), ft)
    ft = gl.convert_layout(ft.to(DTYPE), factors(WIDE))
    dut = gl.convert_layout(dut.to(DTYPE), factors(WIDE))
    dinfo_j = warpgroup_mma(ft, dy_i[0], dinfo_j, use_acc=not ALONE, is_async=True)
    dp2_j = warpgroup_mma(dut, p1_i[0], dp2_j, use_acc=not ALONE, is_async=True)
    if REST > 0:
        ft_rest = gl.convert_layout(ft, factors(REST))
        dut_rest = gl.convert_layout(dut, factors(REST))
        dinfo_rest = warpgroup_mma(ft_rest, dy_i[1], dinfo_rest, use_acc=not ALONE, is_async=True)
        dp2_rest = warpgroup_mma(dut_rest, p1_i[1], dp2_rest, use_acc=not ALONE, is_async=True)

    for _ in range(1, tiles):
        before = stage
        stage, phase = next_stage(stage, phase, STAGES)
        mbarrier.wait(full.index(stage), phase)
        p1_i = tile_at(p1, stage)
        dy_i = tile_at(dy, stage)
        ut = begin_scores(p2_j, p1_i, REST)
        if H_FIRST:
            ht = begin_scores(info_j, dy_i, REST)
        norm_i = _row_sums(norms, stage)
        mean_h_i = _row_sums(means, stage)
        # All but H's products: its columns are one or two tiles.
        if REST > 0:
            ut, dinfo_j, dp2_j, dinfo_rest, dp2_rest, ft, dut = warpgroup_mma_wait(
                2 if H_FIRST else 0, deps=[ut, dinfo_j, dp2_j, dinfo_rest, dp2_rest, ft, dut]
            )
        else:
            ut, dinfo_j, dp2_j, ft, dut = warpgroup_mma_wait(1, deps=[ut, dinfo_j, dp2_j, ft, dut])
        if not H_FIRST:
            ht = begin_scores(info_j, dy_i, REST)
        mbarrier.arrive(empty.index(before))
        half_u = ut if SCALED else ut * (0.5 * scale)
        t = tanh(half_u)
        e = half_u * t + half_u
        weight = gl.exp2(e * LOG2_E - norm_i)
        # Twice dU / scale but for its factor H - G . Y, so that one tile waits for H and not three.
        slope = weight * ((e - e * t) + t) + weight
        ft = gl.convert_layout(weight.to(DTYPE), factors(WIDE))
        dinfo_j = warpgroup_mma(ft, dy_i[0], dinfo_j, is_async=True)
        if REST > 0:
            ft_rest = gl.convert_layout(ft, factors(REST))
            dinfo_rest = warpgroup_mma(ft_rest, dy_i[1], dinfo_rest, is_async=True)
            ht, slope = warpgroup_mma_wait(2, deps=[ht, slope])
        else:
            ht, slope = warpgroup_mma_wait(1, deps=[ht, slope])
        dut = gl.convert_layout((slope * (ht - mean_h_i)).to(DTYPE), factors(WIDE))
        dp2_j = warpgroup_mma(dut, p1_i[0], dp2_j, is_async=True)
        if REST > 0:
            dut_rest = gl.convert_layout(dut, factors(REST))
            dp2_rest = warpgroup_mma(dut_rest, p1_i[1], dp2_rest, is_async=True)
    if REST > 0:
        dinfo_j, dp2_j, dinfo_rest, dp2_rest, ft, dut = warpgroup_mma_wait(
            0, deps=[dinfo_j, dp2_j, dinfo_rest, dp2_rest, ft, dut]
        )
    else:
        dinfo_j, dp2_j, ft, dut = warpgroup_mma_wait(0, deps=[dinfo_j, dp2_j, ft, dut])
    mbarrier.arrive(empty.index(stage))
    stage, phase = next_stage(stage, phase, STAGES)
    return dp2_j, dp2_rest, dinfo_j, dinfo_rest, stage, phase


@gluon.jit
def _store(out, tile, rows_left, stride_t, stride_d, FIRST: gl.constexpr, D: gl.constexpr):
    tile = gl.convert_layout(tile, rows(tile.shape[1]))
    store_rows(out, tile, rows_left, stride_t, stride_d, FIRST, D)


@gluon.jit
def _consumer(
    gate_logit, du_self, dp2, dinfo, stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    heads, blocks, all_blocks, H, T, scale,
    p2, info, p1, dy, norms, means, full, empty, ready, free, work,
    TRANSPORT_SELF: gl.constexpr, D: gl.constexpr, WIDE: gl.constexpr, REST: gl.constexpr,
    STAGES: gl.constexpr, SCALED: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    DTYPE: gl.constexpr = p2[0].dtype
    stage = 0
    phase = 0
    turn = 0
    block = receive(work, ready, turn)
    while block < all_blocks:
        shared, place = place_of(block, heads, blocks)
        j_start = place * BLOCK
        slot = turn & 1
        p2_j = tile_at(p2, slot)
        info_j = tile_at(info, slot)
        if SCALED:
            p2_j[0].store((p2_j[0].load(rows(WIDE)) * (0.5 * scale)).to(DTYPE))
            fence_async_shared()
        dp2_j = gl.zeros([BLOCK, WIDE], gl.float32, products(WIDE))
        dinfo_j = gl.zeros([BLOCK, WIDE], gl.float32, products(WIDE))
        dp2_rest, dinfo_rest = dp2_j, dinfo_j
        if REST > 0:
            dp2_rest = gl.zeros([BLOCK, REST], gl.float32, products(REST))
            dinfo_rest = gl.zeros([BLOCK, REST], gl.float32, products(REST))
        for member in range(GROUP):
            dp2_j, dp2_rest, dinfo_j, dinfo_rest, stage, phase = _scan_head(
                gate_logit, du_self, shared * GROUP + member, j_start, blocks - place, T, scale,
                p2_j, info_j, stage, phase, dp2_j, dp2_rest, dinfo_j, dinfo_rest,
                p1, dy, norms, means, full, empty,
                TRANSPORT_SELF, WIDE, REST, STAGES, SCALED, DTYPE, GROUP == 1,
            )  # fmt: skip
        mbarrier.arrive(free.index(slot))
        turn += 1
        b, h = shared // H, shared % H
        out = offset_of(b, h, j_start, stride_out_b, stride_out_h, stride_out_t)
        left = T - j_start
        _store(dinfo + out, dinfo_j, left, stride_out_t, stride_out_d, 0, D)
        _store(dp2 + out, dp2_j * (0.5 * scale), left, stride_out_t, stride_out_d, 0, D)
        if REST > 0:
            _store(dinfo + out, dinfo_rest, left, stride_out_t, stride_out_d, WIDE, D)
            dp2_rest *= 0.5 * scale
            _store(dp2 + out, dp2_rest, left, stride_out_t, stride_out_d, WIDE, D)
        block = receive(work, ready, turn)


@gluon.jit(do_not_specialize=["T", "heads", "blocks", "all_blocks"])
def hopper_p2_info_kernel(
    p2_tiles, p2_rests, info_tiles, info_rests, p1_tiles, p1_rests, dy_tiles, dy_rests,
    sums_tiles, counters, gate_logit, du_self, dp2, dinfo,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    heads, blocks, all_blocks, H, T, scale,
    TRANSPORT_SELF: gl.constexpr, D: gl.constexpr, WIDE: gl.constexpr, REST: gl.constexpr,
    STAGES: gl.constexpr, SCALED: gl.constexpr, GROUP: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    scale = gl.cast(scale, gl.float32)
    p2 = allocate_tiles(2, p2_tiles, p2_rests)
    info = allocate_tiles(2, info_tiles, info_rests)
    p1 = allocate_tiles(STAGES, p1_tiles, p1_rests)
    dy = allocate_tiles(STAGES, dy_tiles, dy_rests)
    norms = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK], sums_tiles.layout)
    means = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK], sums_tiles.layout)
    full, empty = allocate_barriers(STAGES), allocate_barriers(STAGES)
    ready, free = allocate_barriers(2), allocate_barriers(2)
    work = allocate_work()
    gl.warp_specialize(
        [
            (_consumer, (
                gate_logit, du_self, dp2, dinfo,
                stride_out_b, stride_out_h, stride_out_t, stride_out_d,
                heads, blocks, all_blocks, H, T, scale,
                p2, info, p1, dy, norms, means, full, empty, ready, free, work,
                TRANSPORT_SELF, D, WIDE, REST, STAGES, SCALED, GROUP,
            )),
            (_producer, (
                (p2_tiles, p2_rests), (info_tiles, info_rests), (p1_tiles, p1_rests),
                (dy_tiles, dy_rests), sums_tiles, heads, blocks, all_blocks, H, counters,
                p2, info, p1, dy, norms, means, full, empty, ready, free, work,
                GROUP, STAGES, 2 * BLOCK * (WIDE + REST),
            )),
        ],
        [1],
        [PRODUCER_REGISTERS],
    )  # fmt: skip
