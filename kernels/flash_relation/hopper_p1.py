"""The backward pass over rows, `triton_backward.p1_kernel`, in Gluon, on Hopper in 16 bits.

`hopper_tiles` explains the terms of Gluon. A consumer turns U into F while H is formed. The product
that adds a tile to dP1 ends in the next step: one group waits for it together with that step's U,
several groups wait at that step's end. The diagonal comes last. Then Self's gradient is known, and
it becomes the diagonal entry of dU.
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
    """Bring each block's rows, then its Y, then the history that they see, up to the diagonal.

    Y takes one stage: the place of p2 and, for a second group, of info. counters: for blocks of
    this kernel and of p2_info's.
    """
    TILE: gl.constexpr = 2 * BLOCK * (K.WIDE + K.REST)  # bytes
    p1_tiles, dy_tiles, y_tiles, p2_tiles, info_tiles = tiles
    norm_tiles, logit_tiles = numbers
    heads, blocks, all_blocks, H, documents = sizes
    p1, dy, p2, info, norms, logits, _, full, empty, ready, free, work = memory
    stage = 0
    phase = 1
    turn = 0
    block = gl.program_id(0)
    while block < all_blocks:
        head, place = hp.place_of(block, heads, blocks)
        b, h = head // H, head % H
        # The last rows have the longest history, so they start first.
        i_block = (blocks - 1 - place) * (BLOCK * K.GROUPS)
        # Wait until all consumers have left the slot. p1, dY, n and A - S then complete `ready`.
        slot = hp.slot_of(turn, K.SLOTS)
        arrival = ready.index(slot)
        hp.await_slot(free, turn, K.SLOTS)
        hp.hand_over(work, slot, b, h, i_block, block)
        mbarrier.expect(arrival, (2 * TILE + 2 * 4 * BLOCK) * K.GROUPS)
        for g in gl.static_range(gl.constexpr(K.GROUPS)):
            at = slot * K.GROUPS + g
            i_start = i_block + BLOCK * g
            hp.fetch(p1_tiles, b, h, i_start, p1, at, arrival)
            hp.fetch(dy_tiles, b, h, i_start, dy, at, arrival)
            hp.fetch_row_numbers(norm_tiles, head, i_start, norms, at, arrival)
            hp.fetch_row_numbers(logit_tiles, head, i_start, logits, at, arrival)
        # Each stage, first Y's, is refilled after all consumers have left it.
        mbarrier.wait(empty.index(stage), phase)
        mbarrier.expect(full.index(stage), TILE * K.GROUPS)
        hp.fetch(y_tiles, b, h, i_block, p2, stage, full.index(stage))
        if K.GROUPS > 1:
            hp.fetch(y_tiles, b, h, i_block + BLOCK, info, stage, full.index(stage))
        stage, phase = hp.next_stage(stage, phase, K.STAGES)
        first, diagonal = hp.scan_of(documents, b, i_block, False)
        for step in range(first, diagonal + K.GROUPS):
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(full.index(stage), 2 * TILE)
            hp.fetch(p2_tiles, b, h // K.MEMBERS, step * BLOCK, p2, stage, full.index(stage))
            hp.fetch(info_tiles, b, h // K.MEMBERS, step * BLOCK, info, stage, full.index(stage))
            stage, phase = hp.next_stage(stage, phase, K.STAGES)
        turn += 1
        block = hp.next_block(counters)
    hp.end_work(work, ready, free, turn, K.SLOTS)


@gluon.jit
def _mean_h(y, dy):
    """Return G_i . Y_i, summed over the columns of the tiles y and dy."""
    both = dy.load(hp.factors(BLOCK)).to(gl.float32) * y.load(hp.factors(BLOCK)).to(gl.float32)
    return gl.convert_layout(gl.sum(both, 1), gl.SliceLayout(1, hp.products(BLOCK)))


@gluon.jit
def _consumer(ME: gl.constexpr, given, memory, K: gl.constexpr):
    dp1_tiles, sums_tiles, dlam_partial, sizes, tau = given
    _, _, _, H, documents = sizes
    p1, dy, p2, info, norms, logits, means, full, empty, ready, free, work = memory
    DTYPE: gl.constexpr = p1[0].dtype
    S: gl.constexpr = hp.products(BLOCK)
    # Tiles that every row sees have a separate loop, without a mask.
    SPLIT: gl.constexpr = documents is not None
    HALF_SCALE: gl.constexpr = 0.5 * K.SCALE
    # wgmma products per U, per H and per dP1 += dU P2: one for each tile of columns.
    PRODUCTS: gl.constexpr = 2 if K.REST > 0 else 1
    stage = 0
    phase = 0
    turn = 0
    du = gl.zeros([BLOCK, BLOCK], DTYPE, hp.factors(K.WIDE))
    dp1_i = hp.no_product(K.WIDE)
    dp1_rest = hp.no_product(K.REST) if K.REST > 0 else dp1_i
    b, h, i_block = hp.receive(work, ready, turn, K.SLOTS)
    while b >= 0:
        # p1 and G = dY (BLOCK, D) and n (BLOCK,) have arrived (`receive`); Y comes in a stage.
        slot = hp.slot_of(turn, K.SLOTS)
        place = slot * K.GROUPS + ME
        i_start = i_block + BLOCK * ME
        p1_i = hp.tile_at(p1, place)
        dy_i = hp.tile_at(dy, place)
        norm_i = hp.row_numbers(norms, place)
        mbarrier.wait(full.index(stage), phase)
        y_i = hp.tile_at(p2 if ME == 0 else info, stage)
        mean_h_i = _mean_h(y_i[0], dy_i[0])
        if K.REST > 0:
            mean_h_i += _mean_h(y_i[1], dy_i[1])
        # Stored negative, because p2_info adds them.
        means.index(place).reshape([BLOCK]).store(-mean_h_i)
        norms.index(place).reshape([BLOCK]).store(-norm_i)
        if K.SCALED:
            hp.scale_tile(p1_i[0], HALF_SCALE)
        norm_i, mean_h_i = gl.expand_dims(norm_i, 1), gl.expand_dims(mean_h_i, 1)
        history = hp.partial_sums(hp.zeros(BLOCK))
        hp.leave_slot(free, slot, turn, K.SLOTS, False)

        first, masked_end = hp.scan_of(documents, b, i_start, SPLIT)
        start_i = hp.bound_of(documents, b, i_start + gl.arange(0, BLOCK, gl.SliceLayout(1, S)))
        for UNMASKED in gl.static_range(2 if SPLIT else 1):
            begin = masked_end if UNMASKED else first
            for step in range(begin, i_start // BLOCK if UNMASKED else masked_end):
                # U = P1 P2^T and H = G I^T of a tile (BLOCK, BLOCK), in this order.
                before = stage
                stage, phase = hp.next_stage(stage, phase, K.STAGES)
                mbarrier.wait(full.index(stage), phase)
                p2_j = hp.tile_at(p2, stage)
                u = hp.begin_scores(p1_i, p2_j, K.REST)
                h_ij = hp.begin_scores(dy_i, hp.tile_at(info, stage), K.REST)
                is_after_second = step > first + 1
                u, du, dp1_i, dp1_rest = hp.await_scores(
                    u, du, hp.tile_at(p2, before), dp1_i, dp1_rest, is_after_second, PRODUCTS,
                    K.REST, K.GROUPS,
                )  # fmt: skip
                # One group: besides U, dP1 += dU P2 of the previous step has ended, so the stage
                # before is released (in the first step it is Y's). H may still be pending.
                if K.GROUPS == 1:
                    hp.leave(empty.index(before))
                # F_ij = 2^(E_ij log2(e) - n_i), from E = SiLU(U).
                half_u = u if K.SCALED else u * HALF_SCALE
                t = hp.tanh(half_u)
                e = half_u * t + half_u
                log2_f = e * LOG2_E - norm_i
                f = gl.exp2(
                    hp.only_seen(
                        log2_f, None if UNMASKED else documents, start_i, step * BLOCK, False
                    )
                )
                # Wait for H, but with several groups not for the dP1 product begun after it.
                if K.GROUPS > 1:
                    h_ij, f = warpgroup_mma_wait(PRODUCTS, deps=[h_ij, f])
                else:
                    h_ij = warpgroup_mma_wait(0, deps=[h_ij])
                # dE_ij = F_ij (H_ij - G_i . Y_i), and dU_ij = dE_ij (1 + t + E_ij (1 - t)) / 2.
                history += hp.partial_sums(f * h_ij)
                de = f * (h_ij - mean_h_i)
                # du_ij is 2 dU_ij. The factor scale / 2 is applied once, to the sum.
                du_ij = de * ((e - e * t) + t) + de
                # Several groups: dP1 += dU P2 of the previous step ends here, and frees its stage.
                if K.GROUPS > 1:
                    du_ij, du, dp1_i, dp1_rest = hp.await_sum(du_ij, du, dp1_i, dp1_rest, K.REST)
                    hp.leave(empty.index(before))
                du = gl.convert_layout(du_ij.to(DTYPE), hp.factors(K.WIDE))
                if K.GROUPS == 1:
                    is_after_first = step > first
                    dp1_i, dp1_rest = hp.begin_sum(
                        du, p2_j, dp1_i, dp1_rest, is_after_first, K.REST
                    )

        # The diagonal: U and H as above, but each group waits for both at once.
        before = stage
        stage, phase = hp.next_stage(stage, phase, K.STAGES)
        mbarrier.wait(full.index(stage), phase)
        p2_j = hp.tile_at(p2, stage)
        u = hp.begin_scores(p1_i, p2_j, K.REST)
        h_ij = hp.begin_scores(dy_i, hp.tile_at(info, stage), K.REST)
        if K.GROUPS > 1:
            is_after_second = i_start > first * BLOCK + BLOCK
            dp1_i, dp1_rest = hp.begin_sum(
                du, hp.tile_at(p2, before), dp1_i, dp1_rest, is_after_second, K.REST
            )
            u, h_ij = warpgroup_mma_wait(PRODUCTS, deps=[u, h_ij])
        elif K.REST > 0:
            u, h_ij, dp1_i, dp1_rest, du = warpgroup_mma_wait(
                0, deps=[u, h_ij, dp1_i, dp1_rest, du]
            )
        else:
            u, h_ij, dp1_i, du = warpgroup_mma_wait(0, deps=[u, h_ij, dp1_i, du])
        if K.GROUPS == 1:
            hp.leave(empty.index(before))
        half_u = u if K.SCALED else u * HALF_SCALE
        t = hp.tanh(half_u)
        e = half_u * t + half_u
        j = gl.expand_dims(gl.arange(0, BLOCK, gl.SliceLayout(0, S)), 0)
        i = gl.arange(0, BLOCK, gl.SliceLayout(1, S))
        is_self = j == gl.expand_dims(i, 1)
        past = j < gl.expand_dims(i, 1)
        u_self = gl.sum(gl.where(is_self, u, 0.0), 1)
        h_self = gl.sum(gl.where(is_self, h_ij, 0.0), 1)
        log2_f = hp.only_seen(e * LOG2_E - norm_i, documents, start_i, i_start, False)
        f = gl.exp2(gl.where(past, log2_f, float("-inf")))
        history += hp.partial_sums(f * h_ij)
        de = f * (h_ij - mean_h_i)
        du_ij = de * ((e - e * t) + t) + de
        # dA_i = (1 - g_i) (sum of F_ij H_ij over j < i, minus g_i H_ii), in FP32 from the scores as
        # in `triton_backward.p1_kernel`; 1 - g = sigma(S - A) = F_ii. dS = -dA.
        da = hp.join_sums(history)
        logit = hp.row_numbers(logits, place)
        if K.TRANSPORT_SELF:
            da -= hp.sigmoid(logit) * h_self
        da *= hp.sigmoid(-logit)
        s = hp.sigmoid(u_self * (2.0 / tau if K.SCALED else K.SCALE / tau))
        du_self_i = -da * s * (1.0 - s) * (K.SCALE / tau)
        logits.index(place).reshape([BLOCK]).store(du_self_i)
        # dlam = -sum of dA_i log i. In rows past T, G is 0, and so is da.
        dlam = gl.sum(-da * gl.log((i_start + i - start_i + 1).to(gl.float32)), 0)
        gl.store(dlam_partial + (hp.block_of(work, slot) * K.GROUPS + ME), dlam)
        if K.SCALED:
            # No product reads these numbers, but the tests' check of fences takes them for a tile.
            fence_async_shared()
        du_ij = gl.where(is_self, gl.expand_dims(du_self_i * (2.0 / K.SCALE), 1), du_ij)
        if K.GROUPS > 1:
            du_ij, du, dp1_i, dp1_rest = hp.await_sum(du_ij, du, dp1_i, dp1_rest, K.REST)
            hp.leave(empty.index(before))
        du = gl.convert_layout(du_ij.to(DTYPE), hp.factors(K.WIDE))
        is_after_first = i_start > first * BLOCK
        dp1_i, dp1_rest = hp.begin_sum(du, p2_j, dp1_i, dp1_rest, is_after_first, K.REST)

        # Wait for the diagonal's product and release its stage.
        if K.REST > 0:
            sum_i, sum_rest, du = warpgroup_mma_wait(0, deps=[dp1_i, dp1_rest, du])
            dp1_rest = warpgroup_mma_init(sum_rest)
        else:
            sum_i, du = warpgroup_mma_wait(0, deps=[dp1_i, du])
        dp1_i = warpgroup_mma_init(sum_i)
        hp.leave(empty.index(stage))
        stage, phase = hp.next_stage(stage, phase, K.STAGES)
        # dP1 overwrites p1 in the slot; TMA stores it and three rows of numbers from there.
        p1_i[0].store((sum_i * HALF_SCALE).to(DTYPE))
        if K.REST > 0:
            p1_i[1].store((sum_rest * HALF_SCALE).to(DTYPE))
        fence_async_shared()
        hp.send(dp1_tiles, b, h, i_start, p1, place)
        sums_row = 3 * (b * H + h)
        hp.send_row_numbers(sums_tiles, sums_row, i_start, norms, place)
        hp.send_row_numbers(sums_tiles, sums_row + 1, i_start, means, place)
        hp.send_row_numbers(sums_tiles, sums_row + 2, i_start, logits, place)
        # Only the second group needs the last tile.
        for _g in gl.static_range(ME + 1, gl.constexpr(K.GROUPS)):
            hp.pass_by(full, empty, stage, phase)
            stage, phase = hp.next_stage(stage, phase, K.STAGES)
        hp.leave_slot(free, slot, turn, K.SLOTS, True)
        turn += 1
        b, h, i_block = hp.receive(work, ready, turn, K.SLOTS)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["T", "heads", "blocks", "all_blocks"])
def hopper_p1_kernel(
    p1_tiles, p1_rests, dy_tiles, dy_rests, y_tiles, y_rests, p2_tiles, p2_rests,
    info_tiles, info_rests, dp1_tiles, dp1_rests, norm_tiles, logit_tiles, sums_tiles,
    counters, starts, dlam_partial, heads, blocks, all_blocks, H, T, tau,
    K: gl.constexpr,
):  # fmt: skip
    # A stage has two places for Y.
    gl.static_assert(K.GROUPS == 1 or (K.GROUPS == 2 and starts is None))
    tiles = (
        (p1_tiles, p1_rests), (dy_tiles, dy_rests), (y_tiles, y_rests), (p2_tiles, p2_rests),
        (info_tiles, info_rests),
    )  # fmt: skip
    numbers = norm_tiles, logit_tiles
    sizes = heads, blocks, all_blocks, H, starts if starts is None else (starts, T)
    given = (dp1_tiles, dp1_rests), sums_tiles, dlam_partial, sizes, tau
    OWNED: gl.constexpr = K.SLOTS * K.GROUPS
    p1, dy = hp.allocate_tiles(OWNED, tiles[0]), hp.allocate_tiles(OWNED, tiles[1])
    p2, info = hp.allocate_tiles(K.STAGES, tiles[3]), hp.allocate_tiles(K.STAGES, tiles[4])
    # One number per row each. n and A - S arrive; they become -n and dL/dU_ii D^-1/2, and -G . Y is
    # added. TMA stores all three from here for p2_info.
    norms = hp.allocate_row_numbers(OWNED, norm_tiles)
    logits = hp.allocate_row_numbers(OWNED, logit_tiles)
    means = hp.allocate_row_numbers(OWNED, sums_tiles)
    full, empty = hp.allocate_ring(K.STAGES, K.GROUPS)
    ready, free = hp.allocate_ring(K.SLOTS, K.GROUPS)
    memory = p1, dy, p2, info, norms, logits, means, full, empty, ready, free, hp.allocate_work()
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
