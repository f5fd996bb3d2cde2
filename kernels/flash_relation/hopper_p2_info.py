"""The backward pass over history, `triton_backward.p2_info_kernel`, in Gluon on Hopper.

`hopper_tiles` explains the terms of Gluon. Scores are formed transposed, P2 P1^T, so that F^T and
dU^T are left factors in registers. A consumer computes F^T while H^T is formed, and dU^T while dI
is. In each step one group waits for the previous step's dI and dP2, several groups only for dP2.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from relation.kernels.flash_relation import hopper_tiles as hp
from relation.kernels.flash_relation.hopper_tiles import BLOCK, LOG2_E


@gluon.jit
def _producer(tiles, numbers, sizes, counters, memory, K: gl.constexpr):
    """Bring each block's history, then the rows that read it, for each head of p1 in turn.

    The first of these rows are the block's own tokens; Self's numbers come with them. heads and H
    count heads of p2. counters: the block counters of p1's kernel and of this one.
    """
    TILE: gl.constexpr = 2 * BLOCK * (K.WIDE + K.REST)  # bytes
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
        # The earliest history is read by the most rows, so it starts first.
        shared, place = hp.place_of(block, heads, blocks)
        b, h = shared // H, shared % H
        j_block = place * (BLOCK * K.GROUPS)
        # Wait until all consumers have left the slot. p2 and info then complete `ready`.
        slot = hp.slot_of(turn, K.SLOTS)
        hp.await_slot(free, turn, K.SLOTS)
        hp.hand_over(work, slot, b, h, j_block, block)
        mbarrier.expect(ready.index(slot), 2 * TILE * K.GROUPS)
        for g in gl.static_range(gl.constexpr(K.GROUPS)):
            at = slot * K.GROUPS + g
            hp.fetch(p2_tiles, b, h, j_block + BLOCK * g, p2, at, ready.index(slot))
            hp.fetch(info_tiles, b, h, j_block + BLOCK * g, info, at, ready.index(slot))
        if documents is not None:
            steps = _tiles_of_rows(documents, b, j_block)
        for member in range(K.MEMBERS):
            head = shared * K.MEMBERS + member
            for step in range((blocks - place) * K.GROUPS if documents is None else steps):
                i_start = j_block + step * BLOCK
                # Wait until all consumers have left the stage. p1, dY, -n, -G . Y and, for the
                # diagonal, A - S and Self's gradient then complete `full`.
                arrival = full.index(stage)
                mbarrier.wait(empty.index(stage), phase)
                if step < K.GROUPS:
                    mbarrier.expect(arrival, 2 * TILE + 4 * NUMBERS)
                    hp.fetch_row_numbers(logit_tiles, head, i_start, logits, stage, arrival)
                    hp.fetch_row_numbers(sums_tiles, 3 * head + 2, i_start, selves, stage, arrival)
                else:
                    mbarrier.expect(arrival, 2 * TILE + 2 * NUMBERS)
                hp.fetch(p1_tiles, b, h * K.MEMBERS + member, i_start, p1, stage, arrival)
                hp.fetch(dy_tiles, b, h * K.MEMBERS + member, i_start, dy, stage, arrival)
                hp.fetch_row_numbers(sums_tiles, 3 * head, i_start, norms, stage, arrival)
                hp.fetch_row_numbers(sums_tiles, 3 * head + 1, i_start, means, stage, arrival)
                stage, phase = hp.next_stage(stage, phase, K.STAGES)
        turn += 1
        block = hp.next_block(counters + 1)
    hp.end_work(work, ready, free, turn, K.SLOTS)


@gluon.jit
def _tiles_of_rows(documents, b, j_start):
    """Return how many tiles of rows see history of the block at j_start."""
    end = hp.bound_of(documents, b, j_start + BLOCK - 1)
    return (end - j_start + BLOCK - 1) // BLOCK


@gluon.jit
def _along(numbers, stage):
    """Return the numbers of a stage's rows, one per column of the transposed scores."""
    return gl.expand_dims(hp.row_numbers(numbers, stage, 0), 0)


@gluon.jit
def _down(numbers, stage):
    """Return a stage's numbers, one per row of the transposed scores, a token of the block."""
    return gl.expand_dims(hp.row_numbers(numbers, stage, 1), 1)


@gluon.jit
def _scan_head(
    ME: gl.constexpr, seen, p2_j, info_j, stage, phase, dp2_j, dp2_rest, dinfo_j, dinfo_rest,
    memory, K: gl.constexpr,
):  # fmt: skip
    """Add the share of one head's rows to the gradients of a block of history.

    seen: how many tiles of rows see some of the block, how many see all of it, documents, and where
    they end, counted from the block's start.
    """
    tiles, unmasked_end, documents, end_j = seen
    _, _, p1, dy, norms, means, logits, selves, full, empty, _, _, _ = memory
    DTYPE: gl.constexpr = p1[0].dtype
    S: gl.constexpr = hp.products(BLOCK)
    HALF_SCALE: gl.constexpr = 0.5 * K.SCALE
    # If no other head reads this history, the first products replace the sums.
    ALONE: gl.constexpr = K.MEMBERS == 1
    # wgmma products per U, per H and per gradient: one for each tile of columns.
    PRODUCTS: gl.constexpr = 2 if K.REST > 0 else 1
    # If registers suffice, H begins before the wait for U. Above 64 columns they do not for one
    # group, which still holds the previous factors: at 80 ptxas would serialise all (C7512).
    H_FIRST: gl.constexpr = K.WIDE + K.REST <= 64 or K.GROUPS > 1
    # Several groups end dinfo's product within its step, or ptxas would serialise all (C7512). They
    # begin dp2's in the next step, after H. At 128 columns, which are one tile, registers do not
    # suffice for that, so dp2's begins within its step.
    LATE: gl.constexpr = K.GROUPS > 1 and K.WIDE + K.REST < 128
    # Tiles whose rows all see the block need no mask: a separate loop, if registers suffice for it.
    SPLIT: gl.constexpr = documents is not None and K.REST == 0

    # Rows before this group's history do not see it.
    for _g in gl.static_range(ME):
        hp.pass_by(full, empty, stage, phase)
        stage, phase = hp.next_stage(stage, phase, K.STAGES)
    # The diagonal: U^T = P2 P1^T and H^T = I G^T of a tile (BLOCK of history, BLOCK of rows).
    mbarrier.wait(full.index(stage), phase)
    p1_i = hp.tile_at(p1, stage)
    dy_i = hp.tile_at(dy, stage)
    minus_norm, minus_mean = _along(norms, stage), _along(means, stage)
    ut = hp.begin_scores(p2_j, p1_i, K.REST)
    ht = hp.begin_scores(info_j, dy_i, K.REST)
    ut, ht = warpgroup_mma_wait(0, deps=[ut, ht])
    half_u = ut if K.SCALED else ut * HALF_SCALE
    t = hp.tanh(half_u)
    e = half_u * t + half_u
    j = gl.expand_dims(gl.arange(0, BLOCK, gl.SliceLayout(1, S)), 1)
    i = gl.expand_dims(gl.arange(0, BLOCK, gl.SliceLayout(0, S)), 0)
    # F^T and dU^T as in p1. Rows past T are zeros in p1 and dY, and add nothing to the sums.
    past, is_self = j < i, j == i
    log2_f = hp.only_seen(e * LOG2_E + minus_norm, documents, end_j, 0, True)
    ft = gl.exp2(gl.where(past, log2_f, float("-inf")))
    de = ft * (ht + minus_mean)
    dut = de * ((e - e * t) + t) + de
    # Self's entries: 2 dU_jj, from the stored dU_jj D^-1/2, and F_jj = sigma(S - A).
    dut = gl.where(is_self, _down(selves, stage) * (2.0 / K.SCALE), dut)
    if K.TRANSPORT_SELF:
        ft = gl.where(is_self, hp.sigmoid(-_down(logits, stage)), ft)
    ft = gl.convert_layout(ft.to(DTYPE), hp.factors(K.WIDE))
    dut = gl.convert_layout(dut.to(DTYPE), hp.factors(K.WIDE))
    # dI += F^T G and dP2 += 2 dU^T P1, both (BLOCK, D). LATE begins dP2 in the next step.
    dinfo_j, dinfo_rest = hp.begin_sum(ft, dy_i, dinfo_j, dinfo_rest, not ALONE, K.REST)
    if K.GROUPS > 1:
        dut, ft, dinfo_j, dinfo_rest = hp.await_sum(dut, ft, dinfo_j, dinfo_rest, K.REST)
    if LATE:
        dp2_j = warpgroup_mma_init(dp2_j)
        if K.REST > 0:
            dp2_rest = warpgroup_mma_init(dp2_rest)
    else:
        dp2_j, dp2_rest = hp.begin_sum(dut, p1_i, dp2_j, dp2_rest, not ALONE, K.REST)

    for MASKED in gl.static_range(2 if SPLIT else 1):
        end = unmasked_end if SPLIT and not MASKED else tiles
        for step in range(max(unmasked_end, 1) if MASKED else 1, end):
            before = stage
            stage, phase = hp.next_stage(stage, phase, K.STAGES)
            mbarrier.wait(full.index(stage), phase)
            p1_i = hp.tile_at(p1, stage)
            dy_i = hp.tile_at(dy, stage)
            # These loads overlap with the products. Several groups lack registers for the means
            # here and load them later.
            minus_norm = _along(norms, stage)
            if K.GROUPS == 1:
                minus_mean = _along(means, stage)
            # Begin U^T, then H^T, then wait for U^T. This also ends the previous step's dI and dP2
            # (one group) or dP2 (several groups, 128 columns). Its stage is left below.
            ut = hp.begin_scores(p2_j, p1_i, K.REST)
            if H_FIRST:
                ht = hp.begin_scores(info_j, dy_i, K.REST)
            if LATE:
                add = not ALONE or step > 1
                dp2_j, dp2_rest = hp.begin_sum(
                    dut, hp.tile_at(p1, before), dp2_j, dp2_rest, add, K.REST
                )
                ut = warpgroup_mma_wait(2 * PRODUCTS, deps=[ut])
            # Only H may be pending after these waits.
            elif K.GROUPS > 1:
                ut, dut, dp2_j = warpgroup_mma_wait(PRODUCTS, deps=[ut, dut, dp2_j])
            elif K.REST > 0:
                ut, dinfo_j, dp2_j, dinfo_rest, dp2_rest, ft, dut = warpgroup_mma_wait(
                    2 if H_FIRST else 0, deps=[ut, dinfo_j, dp2_j, dinfo_rest, dp2_rest, ft, dut]
                )
            else:
                ut, dinfo_j, dp2_j, ft, dut = warpgroup_mma_wait(
                    1 if H_FIRST else 0, deps=[ut, dinfo_j, dp2_j, ft, dut]
                )
            if not H_FIRST:
                ht = hp.begin_scores(info_j, dy_i, K.REST)
                hp.leave_together(empty.index(before))
            elif not LATE:
                hp.leave(empty.index(before))
            half_u = ut if K.SCALED else ut * HALF_SCALE
            t = hp.tanh(half_u)
            e = half_u * t + half_u
            log2_f = e * LOG2_E + minus_norm
            if documents is None or (SPLIT and not MASKED):
                weight = hp.exp2(log2_f, K.EMULATED, "x >= -126")
            else:
                weight = gl.exp2(hp.only_seen(log2_f, documents, end_j, step * BLOCK, True))
            # 2 dU^T without its factor H - G . Y: one tile is kept while H is pending, not three.
            slope = weight * ((e - e * t) + t) + weight
            # Begin dI += F^T G, then wait for H^T; dI may be pending.
            ft = gl.convert_layout(weight.to(DTYPE), hp.factors(K.WIDE))
            dinfo_j, dinfo_rest = hp.begin_sum(ft, dy_i, dinfo_j, dinfo_rest, True, K.REST)
            if K.GROUPS > 1:
                minus_mean = _along(means, stage)
            ht, slope = warpgroup_mma_wait(PRODUCTS, deps=[ht, slope])
            if LATE:
                # The previous step's dP2 began after H and before dI, so the last wait included it.
                slope, dut, dp2_j, dp2_rest = hp.await_sum(
                    slope, dut, dp2_j, dp2_rest, K.REST, PRODUCTS
                )
                hp.leave(empty.index(before))
            dut = gl.convert_layout((slope * (ht + minus_mean)).to(DTYPE), hp.factors(K.WIDE))
            if K.GROUPS > 1:
                dut, ft, dinfo_j, dinfo_rest = hp.await_sum(dut, ft, dinfo_j, dinfo_rest, K.REST)
            if not LATE:
                dp2_j, dp2_rest = hp.begin_sum(dut, p1_i, dp2_j, dp2_rest, True, K.REST)
    # End both sums, then release the last stage.
    if LATE:
        add = not ALONE or tiles > 1
        dp2_j, dp2_rest = hp.begin_sum(dut, hp.tile_at(p1, stage), dp2_j, dp2_rest, add, K.REST)
    if K.REST > 0:
        dinfo_j, dp2_j, dinfo_rest, dp2_rest, ft, dut = warpgroup_mma_wait(
            0, deps=[dinfo_j, dp2_j, dinfo_rest, dp2_rest, ft, dut]
        )
    else:
        dinfo_j, dp2_j, ft, dut = warpgroup_mma_wait(0, deps=[dinfo_j, dp2_j, ft, dut])
    hp.leave(empty.index(stage))
    stage, phase = hp.next_stage(stage, phase, K.STAGES)
    return dp2_j, dp2_rest, dinfo_j, dinfo_rest, stage, phase


@gluon.jit
def _add_up(dlam_partial, dlam, parts):
    """Store dlam, the sum of the parts that p1's kernel wrote, added in a fixed order."""
    PARTS: gl.constexpr = 1024
    at = gl.arange(0, PARTS, gl.BlockedLayout([8], [32], [4], [0]))
    total = gl.zeros([PARTS], gl.float32, gl.BlockedLayout([8], [32], [4], [0]))
    for first in range(0, parts, PARTS):
        total += gl.load(dlam_partial + first + at, mask=first + at < parts, other=0.0)
    gl.store(dlam, gl.sum(total, 0))


@gluon.jit
def _consumer(ME: gl.constexpr, given, memory, K: gl.constexpr):
    results, sizes, parts, T = given
    _, _, _, _, documents = sizes
    dp2_tiles, dinfo_tiles, dlam_partial, dlam = results
    p2, info, _, _, _, _, _, _, _, _, ready, free, work = memory
    DTYPE: gl.constexpr = p2[0].dtype
    HALF_SCALE: gl.constexpr = 0.5 * K.SCALE
    if ME == 0 and gl.program_id(0) == 0:
        _add_up(dlam_partial, dlam, parts)
    stage = 0
    phase = 0
    turn = 0
    b, h, j_block = hp.receive(work, ready, turn, K.SLOTS)
    while b >= 0:
        # The block's history, p2 and info (BLOCK, D), has arrived (`receive`).
        slot = hp.slot_of(turn, K.SLOTS)
        place = slot * K.GROUPS + ME
        j_start = j_block + BLOCK * ME
        p2_j = hp.tile_at(p2, place)
        info_j = hp.tile_at(info, place)
        if K.SCALED:
            hp.scale_tile(p2_j[0], HALF_SCALE)
        hp.leave_slot(free, slot, turn, K.SLOTS, False)
        dp2_j, dinfo_j = hp.zeros(K.WIDE), hp.zeros(K.WIDE)
        dp2_rest, dinfo_rest = dp2_j, dinfo_j
        if K.REST > 0:
            dp2_rest, dinfo_rest = hp.zeros(K.REST), hp.zeros(K.REST)
        tiles = (T - j_block + BLOCK * K.GROUPS - 1) // (BLOCK * K.GROUPS) * K.GROUPS - ME
        unmasked_end = tiles
        if documents is not None:
            tiles = _tiles_of_rows(documents, b, j_start)
            unmasked_end = (hp.bound_of(documents, b, j_start) - j_start) // BLOCK
        row = gl.arange(0, BLOCK, gl.SliceLayout(1, hp.products(BLOCK)))
        seen = tiles, unmasked_end, documents, hp.bound_of(documents, b, j_start + row) - j_start
        for _member in range(K.MEMBERS):
            dp2_j, dp2_rest, dinfo_j, dinfo_rest, stage, phase = _scan_head(
                ME, seen, p2_j, info_j, stage, phase, dp2_j, dp2_rest, dinfo_j, dinfo_rest, memory,
                K,
            )  # fmt: skip
        # The gradients overwrite p2 and info in the slot, and TMA stores them from there.
        p2_j[0].store((dp2_j * HALF_SCALE).to(DTYPE))
        info_j[0].store(dinfo_j.to(DTYPE))
        if K.REST > 0:
            p2_j[1].store((dp2_rest * HALF_SCALE).to(DTYPE))
            info_j[1].store(dinfo_rest.to(DTYPE))
        fence_async_shared()
        hp.send(dp2_tiles, b, h, j_start, p2, place)
        hp.send(dinfo_tiles, b, h, j_start, info, place)
        hp.leave_slot(free, slot, turn, K.SLOTS, True)
        turn += 1
        b, h, j_block = hp.receive(work, ready, turn, K.SLOTS)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["T", "parts", "heads", "blocks", "all_blocks"])
def hopper_p2_info_kernel(
    p2_tiles, p2_rests, info_tiles, info_rests, p1_tiles, p1_rests, dy_tiles, dy_rests,
    dp2_tiles, dp2_rests, dinfo_tiles, dinfo_rests, logit_tiles, sums_tiles,
    counters, ends, dlam_partial, dlam, heads, blocks, all_blocks, H, T, parts,
    K: gl.constexpr,
):  # fmt: skip
    tiles = (
        (p2_tiles, p2_rests), (info_tiles, info_rests), (p1_tiles, p1_rests), (dy_tiles, dy_rests),
    )  # fmt: skip
    gl.static_assert(K.GROUPS == 1 or (K.GROUPS == 2 and ends is None))
    numbers = logit_tiles, sums_tiles
    sizes = heads, blocks, all_blocks, H, ends if ends is None else (ends, T)
    OWNED: gl.constexpr = K.SLOTS * K.GROUPS
    p2, info = hp.allocate_tiles(OWNED, tiles[0]), hp.allocate_tiles(OWNED, tiles[1])
    p1, dy = hp.allocate_tiles(K.STAGES, tiles[2]), hp.allocate_tiles(K.STAGES, tiles[3])
    norms = hp.allocate_row_numbers(K.STAGES, sums_tiles)
    means = hp.allocate_row_numbers(K.STAGES, sums_tiles)
    selves = hp.allocate_row_numbers(K.STAGES, sums_tiles)
    logits = hp.allocate_row_numbers(K.STAGES, logit_tiles)
    full, empty = hp.allocate_ring(K.STAGES, K.GROUPS)
    ready, free = hp.allocate_ring(K.SLOTS, K.GROUPS)
    memory = (
        p2, info, p1, dy, norms, means, logits, selves, full, empty, ready, free, hp.allocate_work()
    )  # fmt: skip
    results = (dp2_tiles, dp2_rests), (dinfo_tiles, dinfo_rests), dlam_partial, dlam
    given = results, sizes, parts, T
    # Consumer 0 has the launch's own four warps, the producer one warp, consumer 1 four more.
    gl.warp_specialize(
        [
            (_consumer, (0, given, memory, K)),
            (_producer, (tiles, numbers, sizes, counters, memory, K)),
            (_consumer, (1, given, memory, K)),
        ][: K.GROUPS + 1],
        [1, 4][: K.GROUPS],
        [K.PRODUCER_REGISTERS, K.CONSUMER_REGISTERS][: K.GROUPS],
    )
