"""The backward pass over history of `portable.p2_info_kernel` in Gluon, for BF16 on Hopper.

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
    allocate_ring,
    allocate_row_numbers,
    allocate_tiles,
    allocate_work,
    await_slot,
    begin_scores,
    bound_of,
    end_work,
    factors,
    fetch,
    fetch_row_numbers,
    hand_over,
    leave,
    leave_slot,
    leave_together,
    next_block,
    next_stage,
    only_seen,
    place_of,
    products,
    receive,
    row_numbers,
    scale_tile,
    send,
    sigmoid,
    slot_of,
    tanh,
    tile_at,
)


@gluon.jit
def _producer(
    tiles, numbers, sizes, counters, memory,
    GROUP: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """Bring each block's history, then the rows that read it: of each head of p1 in turn.

    The first of these rows are the block's own, and bring what flows through Self. heads and H
    count heads of p2; counters: p1's blocks and these; TILE: bytes of a tile.
    """
    p2_tiles, info_tiles, p1_tiles, dy_tiles = tiles
    logit_tiles, sums_tiles = numbers
    heads, blocks, all_blocks, H, documents = sizes
    p2, info, p1, dy, norms, means, logits, selves, full, empty, ready, free, work = memory
    NUMBERS: gl.constexpr = 4 * BLOCK
    stage = 0
    phase = 1
    turn = 0
    block = gl.program_id(0)
    while block < all_blocks:
        # The first of history is read by the most rows, so it starts first.
        shared, place = place_of(block, heads, blocks)
        b, h = shared // H, shared % H
        j_start = place * BLOCK
        slot = slot_of(turn, SLOTS)
        await_slot(free, turn, SLOTS)
        hand_over(work, slot, b, h, j_start, block)
        mbarrier.expect(ready.index(slot), 2 * TILE)
        fetch(p2_tiles, b, h, j_start, p2, slot, ready.index(slot))
        fetch(info_tiles, b, h, j_start, info, slot, ready.index(slot))
        if documents is not None:
            steps = _tiles_of_rows(documents, b, j_start)
        for member in range(GROUP):
            head = shared * GROUP + member
            for step in range(blocks - place if documents is None else steps):
                i_start = j_start + step * BLOCK
                arrival = full.index(stage)
                mbarrier.wait(empty.index(stage), phase)
                if step == 0:
                    mbarrier.expect(arrival, 2 * TILE + 4 * NUMBERS)
                    fetch_row_numbers(logit_tiles, head, i_start, logits, stage, arrival)
                    fetch_row_numbers(sums_tiles, 3 * head + 2, i_start, selves, stage, arrival)
                else:
                    mbarrier.expect(arrival, 2 * TILE + 2 * NUMBERS)
                fetch(p1_tiles, b, h * GROUP + member, i_start, p1, stage, arrival)
                fetch(dy_tiles, b, h * GROUP + member, i_start, dy, stage, arrival)
                fetch_row_numbers(sums_tiles, 3 * head, i_start, norms, stage, arrival)
                fetch_row_numbers(sums_tiles, 3 * head + 1, i_start, means, stage, arrival)
                stage, phase = next_stage(stage, phase, STAGES)
        turn += 1
        block = next_block(counters + 1)
    end_work(work, ready, free, turn, SLOTS)


@gluon.jit
def _tiles_of_rows(documents, b, j_start):
    """How many tiles of rows see history of the block at j_start."""
    end = bound_of(documents, b, j_start + BLOCK - 1)
    return (end - j_start + BLOCK - 1) // BLOCK


@gluon.jit
def _along(numbers, stage):
    """Of the rows of a stage, one a column of the transposed scores."""
    return gl.expand_dims(row_numbers(numbers, stage, 0), 0)


@gluon.jit
def _down(numbers, stage):
    """Of a stage, one a row of the transposed scores: of the block's own."""
    return gl.expand_dims(row_numbers(numbers, stage, 1), 1)


@gluon.jit
def _scan_head(
    seen, p2_j, info_j, stage, phase, dp2_j, dp2_rest, dinfo_j, dinfo_rest, memory,
    TRANSPORT_SELF: gl.constexpr, WIDE: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
    SCALE: gl.constexpr, SCALED: gl.constexpr, ALONE: gl.constexpr,
):  # fmt: skip
    """Add what the rows of a head give to the gradients of the history at j_start.

    seen: how many tiles of rows see some of it, how many see it all, documents, and where they end,
    counted from j_start. ALONE: no other head reads this history, and there is nothing to add to.
    """
    tiles, whole, documents, end_j = seen
    _, _, p1, dy, norms, means, logits, selves, full, empty, _, _, _ = memory
    DTYPE: gl.constexpr = p1[0].dtype
    S: gl.constexpr = products(BLOCK)
    HALF_SCALE: gl.constexpr = 0.5 * SCALE
    # H's products begin before U's are waited for, while registers last. Above 64 columns they do
    # not hold the factors of the step before as well: at 80 ptxas would serialise all (C7512).
    H_FIRST: gl.constexpr = WIDE + REST <= 64
    # Tiles whose rows all see the block need no mask, where registers last for a loop of their own.
    SPLIT: gl.constexpr = documents is not None and REST == 0

    # The diagonal.
    mbarrier.wait(full.index(stage), phase)
    p1_i = tile_at(p1, stage)
    dy_i = tile_at(dy, stage)
    minus_norm, minus_mean = _along(norms, stage), _along(means, stage)
    ut = begin_scores(p2_j, p1_i, REST)
    ht = begin_scores(info_j, dy_i, REST)
    ut, ht = warpgroup_mma_wait(0, deps=[ut, ht])
    half_u = ut if SCALED else ut * HALF_SCALE
    t = tanh(half_u)
    e = half_u * t + half_u
    j = gl.expand_dims(gl.arange(0, BLOCK, gl.SliceLayout(1, S)), 1)
    i = gl.expand_dims(gl.arange(0, BLOCK, gl.SliceLayout(0, S)), 0)
    # Rows past the end come as zeros, and so do their products.
    past, own = j < i, j == i
    log2_f = only_seen(e * LOG2_E + minus_norm, documents, end_j, 0, True)
    ft = gl.exp2(gl.where(past, log2_f, float("-inf")))
    de = ft * (ht + minus_mean)
    dut = de * ((e - e * t) + t) + de
    # Self's entries of twice dU / scale and of F.
    dut = gl.where(own, _down(selves, stage) * (2.0 / SCALE), dut)
    if TRANSPORT_SELF:
        ft = gl.where(own, sigmoid(-_down(logits, stage)), ft)
    ft = gl.convert_layout(ft.to(DTYPE), factors(WIDE))
    dut = gl.convert_layout(dut.to(DTYPE), factors(WIDE))
    dinfo_j = warpgroup_mma(ft, dy_i[0], dinfo_j, use_acc=not ALONE, is_async=True)
    dp2_j = warpgroup_mma(dut, p1_i[0], dp2_j, use_acc=not ALONE, is_async=True)
    if REST > 0:
        ft_rest = gl.convert_layout(ft, factors(REST))
        dut_rest = gl.convert_layout(dut, factors(REST))
        dinfo_rest = warpgroup_mma(ft_rest, dy_i[1], dinfo_rest, use_acc=not ALONE, is_async=True)
        dp2_rest = warpgroup_mma(dut_rest, p1_i[1], dp2_rest, use_acc=not ALONE, is_async=True)

    for MASKED in gl.static_range(2 if SPLIT else 1):
        end = whole if SPLIT and not MASKED else tiles
        for step in range(max(whole, 1) if MASKED else 1, end):
            before = stage
            stage, phase = next_stage(stage, phase, STAGES)
            mbarrier.wait(full.index(stage), phase)
            p1_i = tile_at(p1, stage)
            dy_i = tile_at(dy, stage)
            # Read ahead of the products, which take long enough for it.
            minus_norm, minus_mean = _along(norms, stage), _along(means, stage)
            ut = begin_scores(p2_j, p1_i, REST)
            if H_FIRST:
                ht = begin_scores(info_j, dy_i, REST)
            # All but H's products: its columns are one or two tiles.
            if REST > 0:
                ut, dinfo_j, dp2_j, dinfo_rest, dp2_rest, ft, dut = warpgroup_mma_wait(
                    2 if H_FIRST else 0, deps=[ut, dinfo_j, dp2_j, dinfo_rest, dp2_rest, ft, dut]
                )
            else:
                ut, dinfo_j, dp2_j, ft, dut = warpgroup_mma_wait(
                    1 if H_FIRST else 0, deps=[ut, dinfo_j, dp2_j, ft, dut]
                )
            if H_FIRST:
                leave(empty.index(before))
            else:
                ht = begin_scores(info_j, dy_i, REST)
                leave_together(empty.index(before))
            half_u = ut if SCALED else ut * HALF_SCALE
            t = tanh(half_u)
            e = half_u * t + half_u
            log2_f = e * LOG2_E + minus_norm
            if MASKED or not SPLIT:
                log2_f = only_seen(log2_f, documents, end_j, step * BLOCK, True)
            weight = gl.exp2(log2_f)
            # Twice dU / scale but for its factor H - G . Y: one tile waits for H and not three.
            slope = weight * ((e - e * t) + t) + weight
            ft = gl.convert_layout(weight.to(DTYPE), factors(WIDE))
            dinfo_j = warpgroup_mma(ft, dy_i[0], dinfo_j, is_async=True)
            if REST > 0:
                ft_rest = gl.convert_layout(ft, factors(REST))
                dinfo_rest = warpgroup_mma(ft_rest, dy_i[1], dinfo_rest, is_async=True)
                ht, slope = warpgroup_mma_wait(2, deps=[ht, slope])
            else:
                ht, slope = warpgroup_mma_wait(1, deps=[ht, slope])
            dut = gl.convert_layout((slope * (ht + minus_mean)).to(DTYPE), factors(WIDE))
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
    leave(empty.index(stage))
    stage, phase = next_stage(stage, phase, STAGES)
    return dp2_j, dp2_rest, dinfo_j, dinfo_rest, stage, phase


@gluon.jit
def _add_up(dlam_partial, dlam, parts):
    """What p1's blocks left of the gradient of lambda, in one order."""
    PARTS: gl.constexpr = 1024
    at = gl.arange(0, PARTS, gl.BlockedLayout([8], [32], [4], [0]))
    total = gl.zeros([PARTS], gl.float32, gl.BlockedLayout([8], [32], [4], [0]))
    for first in range(0, parts, PARTS):
        total += gl.load(dlam_partial + first + at, mask=first + at < parts, other=0.0)
    gl.store(dlam, gl.sum(total, 0))


@gluon.jit
def _consumer(
    given, memory, TRANSPORT_SELF: gl.constexpr, WIDE: gl.constexpr, REST: gl.constexpr,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, SCALE: gl.constexpr, SCALED: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    results, sizes, parts, T = given
    _, _, _, _, documents = sizes
    dp2_tiles, dinfo_tiles, dlam_partial, dlam = results
    p2, info, _, _, _, _, _, _, _, _, ready, free, work = memory
    DTYPE: gl.constexpr = p2[0].dtype
    HALF_SCALE: gl.constexpr = 0.5 * SCALE
    if gl.program_id(0) == 0:
        _add_up(dlam_partial, dlam, parts)
    stage = 0
    phase = 0
    turn = 0
    b, h, j_start = receive(work, ready, turn, SLOTS)
    while b >= 0:
        slot = slot_of(turn, SLOTS)
        p2_j = tile_at(p2, slot)
        info_j = tile_at(info, slot)
        if SCALED:
            scale_tile(p2_j[0], HALF_SCALE)
        leave_slot(free, slot, turn, SLOTS, False)
        dp2_j = gl.zeros([BLOCK, WIDE], gl.float32, products(WIDE))
        dinfo_j = gl.zeros([BLOCK, WIDE], gl.float32, products(WIDE))
        dp2_rest, dinfo_rest = dp2_j, dinfo_j
        if REST > 0:
            dp2_rest = gl.zeros([BLOCK, REST], gl.float32, products(REST))
            dinfo_rest = gl.zeros([BLOCK, REST], gl.float32, products(REST))
        tiles = (T - j_start + BLOCK - 1) // BLOCK
        whole = tiles
        if documents is not None:
            tiles = _tiles_of_rows(documents, b, j_start)
            whole = (bound_of(documents, b, j_start) - j_start) // BLOCK
        row = gl.arange(0, BLOCK, gl.SliceLayout(1, products(BLOCK)))
        seen = tiles, whole, documents, bound_of(documents, b, j_start + row) - j_start
        for _member in range(GROUP):
            dp2_j, dp2_rest, dinfo_j, dinfo_rest, stage, phase = _scan_head(
                seen, p2_j, info_j, stage, phase, dp2_j, dp2_rest, dinfo_j, dinfo_rest, memory,
                TRANSPORT_SELF, WIDE, REST, STAGES, SCALE, SCALED, GROUP == 1,
            )  # fmt: skip
        # The gradients take the places of p2 and of information.
        p2_j[0].store((dp2_j * HALF_SCALE).to(DTYPE))
        info_j[0].store(dinfo_j.to(DTYPE))
        if REST > 0:
            p2_j[1].store((dp2_rest * HALF_SCALE).to(DTYPE))
            info_j[1].store(dinfo_rest.to(DTYPE))
        fence_async_shared()
        send(dp2_tiles, b, h, j_start, p2, slot)
        send(dinfo_tiles, b, h, j_start, info, slot)
        leave_slot(free, slot, turn, SLOTS, True)
        turn += 1
        b, h, j_start = receive(work, ready, turn, SLOTS)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["T", "parts", "heads", "blocks", "all_blocks"])
def hopper_p2_info_kernel(
    p2_tiles, p2_rests, info_tiles, info_rests, p1_tiles, p1_rests, dy_tiles, dy_rests,
    dp2_tiles, dp2_rests, dinfo_tiles, dinfo_rests, logit_tiles, sums_tiles,
    counters, ends, dlam_partial, dlam, heads, blocks, all_blocks, H, T, parts,
    TRANSPORT_SELF: gl.constexpr, WIDE: gl.constexpr, REST: gl.constexpr, SCALE: gl.constexpr,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, SCALED: gl.constexpr, GROUP: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    tiles = (
        (p2_tiles, p2_rests), (info_tiles, info_rests), (p1_tiles, p1_rests), (dy_tiles, dy_rests),
    )  # fmt: skip
    numbers = logit_tiles, sums_tiles
    sizes = heads, blocks, all_blocks, H, ends if ends is None else (ends, T)
    p2, info = allocate_tiles(SLOTS, tiles[0]), allocate_tiles(SLOTS, tiles[1])
    p1, dy = allocate_tiles(STAGES, tiles[2]), allocate_tiles(STAGES, tiles[3])
    norms = allocate_row_numbers(STAGES, sums_tiles)
    means = allocate_row_numbers(STAGES, sums_tiles)
    selves = allocate_row_numbers(STAGES, sums_tiles)
    logits = allocate_row_numbers(STAGES, logit_tiles)
    full, empty = allocate_ring(STAGES)
    ready, free = allocate_ring(SLOTS)
    memory = (
        p2, info, p1, dy, norms, means, logits, selves, full, empty, ready, free, allocate_work()
    )  # fmt: skip
    results = (dp2_tiles, dp2_rests), (dinfo_tiles, dinfo_rests), dlam_partial, dlam
    given = results, sizes, parts, T
    TILE: gl.constexpr = 2 * BLOCK * (WIDE + REST)
    gl.warp_specialize(
        [
            (
                _consumer,
                (given, memory, TRANSPORT_SELF, WIDE, REST, STAGES, SLOTS, SCALE, SCALED, GROUP),
            ),
            (_producer, (tiles, numbers, sizes, counters, memory, GROUP, STAGES, SLOTS, TILE)),
        ],
        [1],
        [PRODUCER_REGISTERS],
    )
