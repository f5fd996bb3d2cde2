"""`triton_forward.forward_kernel` in Gluon, for BF16 on Hopper, without a running maximum.

`hopper_tiles` explains the terms of Gluon. The product that adds a tile to z ends in the next step.
One group waits for it together with that step's scores. Several groups turn those scores into
weights while it runs.
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
from relation.kernels.flash_relation.hopper_tiles import BLOCK, LN_2, LOG2_E


@gluon.jit
def _producer(tiles, sizes, counter, memory, K: gl.constexpr):
    """Bring each block's rows of p1, then the history that they see, up to the diagonal."""
    TILE: gl.constexpr = 2 * BLOCK * (K.WIDE + K.REST)  # bytes
    p1_tiles, p2_tiles, info_tiles = tiles
    heads, blocks, all_blocks, H, documents = sizes
    p1, p2, info, full, empty, ready, free, work = memory
    stage = 0
    phase = 1
    turn = 0
    block = gl.program_id(0)
    while block < all_blocks:
        head, place = hp.place_of(block, heads, blocks)
        b, h = head // H, head % H
        # The last rows have the longest history, so they start first.
        i_block = (blocks - 1 - place) * (BLOCK * K.GROUPS)
        # Wait until all consumers have left the slot. The tiles of p1 then complete `ready`.
        slot = hp.slot_of(turn, K.SLOTS)
        hp.await_slot(free, turn, K.SLOTS)
        hp.hand_over(work, slot, b, h, i_block, block)
        mbarrier.expect(ready.index(slot), TILE * K.GROUPS)
        for g in gl.static_range(gl.constexpr(K.GROUPS)):
            at = slot * K.GROUPS + g
            hp.fetch(p1_tiles, b, h, i_block + BLOCK * g, p1, at, ready.index(slot))
        first, diagonal = hp.scan_of(documents, b, i_block, False)
        for step in range(first, diagonal + K.GROUPS):
            # Wait until all consumers have left the stage. p2 and info then complete `full`.
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(full.index(stage), 2 * TILE)
            hp.fetch(p2_tiles, b, h // K.MEMBERS, step * BLOCK, p2, stage, full.index(stage))
            hp.fetch(info_tiles, b, h // K.MEMBERS, step * BLOCK, info, stage, full.index(stage))
            stage, phase = hp.next_stage(stage, phase, K.STAGES)
        turn += 1
        block = hp.next_block(counter)
    hp.end_work(work, ready, free, turn, K.SLOTS)


@gluon.jit
def _exponents(u, K: gl.constexpr):
    """Return E log2(e). u: the scores as U / 2 if SCALED, else as U sqrt(D)."""
    if K.SCALED:
        return u * (hp.tanh(u) * LOG2_E + LOG2_E)
    else:
        h2 = u * (0.5 * LOG2_E * K.SCALE)
        return h2 * hp.tanh(u * (0.5 * K.SCALE)) + h2


@gluon.jit
def _weights(u, K: gl.constexpr):
    """Return exp(E), u as above, some by polynomials (`launches.GluonLaunch.emulated`).

    These count U above 88, or E above 88, as 88. A row's sum then exceeds 2^64 and is repaired.
    """
    # With several groups the product's factors take longer than what they save.
    if K.EMULATED > 0 and K.SCALED and K.GROUPS == 1:
        return hp.exp2_of_product(u, hp.tanh(u) * LOG2_E + LOG2_E, K.EMULATED)
    else:
        return hp.exp2(_exponents(u, K), K.EMULATED, "x <= 127")


@gluon.jit
def _await_scores(u, w, z, z_rest, own, info, add, HOLDS: gl.constexpr, K: gl.constexpr):
    """`hopper_tiles.await_scores`; a held p1, `own`, goes through the wait (`begin_scores`)."""
    wide, rest = own
    if HOLDS and K.REST > 0:
        u, z, z_rest, w, wide, rest = warpgroup_mma_wait(0, deps=[u, z, z_rest, w, wide, rest])
    elif HOLDS:
        u, z, w, wide = warpgroup_mma_wait(0, deps=[u, z, w, wide])
    else:
        u, w, z, z_rest = hp.await_scores(u, w, info, z, z_rest, add, 0, K.REST, K.GROUPS)
    return u, w, z, z_rest, (wide, rest)


@gluon.jit
def _consumer(ME: gl.constexpr, given, memory, K: gl.constexpr):
    y_tiles, lam, gate_logit, log_norm, sizes, T, tau = given
    _, _, _, H, documents = sizes
    p1, p2, info, full, empty, ready, free, work = memory
    DTYPE: gl.constexpr = p1[0].dtype
    S: gl.constexpr = hp.products(BLOCK)
    # Tiles that every row sees need no mask. They get a separate loop if registers suffice for it.
    SPLIT: gl.constexpr = documents is not None and K.REST == 0
    # With two loops, ptxas would serialise all products of a p1 in registers.
    HOLDS: gl.constexpr = K.HOLDS_P1 and documents is None
    lam = gl.load(lam)
    # The stage before stage 0, because each step first moves to the next stage.
    stage = K.STAGES - 1
    phase = 1
    turn = 0
    w = gl.zeros([BLOCK, BLOCK], DTYPE, hp.factors(K.WIDE))
    z = hp.no_product(K.WIDE)
    z_rest = hp.no_product(K.REST) if K.REST > 0 else z
    b, h, i_block = hp.receive(work, ready, turn, K.SLOTS)
    while b >= 0:
        # The block's rows of p1 have arrived (`receive` waited for `ready`): (BLOCK, D).
        slot = hp.slot_of(turn, K.SLOTS)
        place = slot * K.GROUPS + ME
        i_start = i_block + BLOCK * ME
        p1_i = hp.tile_at(p1, place)
        own = w, w  # stand for p1 held in registers, its tiles of WIDE and REST columns
        if HOLDS:
            wide = p1_i[0].load(hp.factors(BLOCK))
            wide = (wide * (0.5 * K.SCALE)).to(DTYPE) if K.SCALED else wide
            own = wide, p1_i[1].load(hp.factors(BLOCK)) if K.REST > 0 else wide
        elif K.SCALED:
            hp.scale_tile(p1_i[0], 0.5 * K.SCALE)
        hp.leave_slot(free, slot, turn, K.SLOTS, False)
        history = hp.partial_sums(hp.zeros(BLOCK))
        first, masked_end = hp.scan_of(documents, b, i_start, SPLIT)
        start_i = hp.bound_of(documents, b, i_start + gl.arange(0, BLOCK, gl.SliceLayout(1, S)))
        for UNMASKED in gl.static_range(2 if SPLIT else 1):
            begin = masked_end if UNMASKED else first
            for step in range(begin, i_start // BLOCK if UNMASKED else masked_end):
                # Wait for TMA, then form the scores P1 P2^T of a tile (BLOCK, BLOCK).
                before = stage
                stage, phase = hp.next_stage(stage, phase, K.STAGES)
                mbarrier.wait(full.index(stage), phase)
                u = hp.begin_scores(own if HOLDS else p1_i, hp.tile_at(p2, stage), K.REST)
                is_after_first, is_after_second = step > first, step > first + 1
                u, w, z, z_rest, own = _await_scores(
                    u, w, z, z_rest, own, hp.tile_at(info, before), is_after_second, HOLDS, K
                )
                # One group: z += W I of the previous step has ended too, so its stage is released.
                if K.GROUPS == 1 and is_after_first:
                    hp.leave(empty.index(before))
                # W_ij = exp(E_ij); l += sum of W_ij over j.
                if UNMASKED or documents is None:
                    weight = _weights(u, K)
                else:
                    e2 = _exponents(u, K)
                    weight = gl.exp2(hp.only_seen(e2, documents, start_i, step * BLOCK, False))
                history += hp.partial_sums(weight)
                # Several groups: the previous step's z += W I, begun in `await_scores`, ends here.
                if K.GROUPS > 1:
                    weight, w, z, z_rest = hp.await_sum(weight, w, z, z_rest, K.REST)
                    if is_after_first:
                        hp.leave(empty.index(before))
                w = gl.convert_layout(weight.to(DTYPE), hp.factors(K.WIDE))
                # One group begins z += W I (BLOCK, D) now; the next step waits for it.
                if K.GROUPS == 1:
                    z, z_rest = hp.begin_sum(
                        w, hp.tile_at(info, stage), z, z_rest, is_after_first, K.REST
                    )

        # The diagonal: the same waits, with history j < i and Self j = i in one tile.
        before = stage
        stage, phase = hp.next_stage(stage, phase, K.STAGES)
        mbarrier.wait(full.index(stage), phase)
        u = hp.begin_scores(own if HOLDS else p1_i, hp.tile_at(p2, stage), K.REST)
        is_after_first = i_start > first * BLOCK
        is_after_second = i_start > first * BLOCK + BLOCK
        u, w, z, z_rest, own = _await_scores(
            u, w, z, z_rest, own, hp.tile_at(info, before), is_after_second, HOLDS, K
        )
        if K.GROUPS == 1 and is_after_first:
            hp.leave(empty.index(before))
        j = gl.expand_dims(gl.arange(0, BLOCK, gl.SliceLayout(0, S)), 0)
        i = gl.arange(0, BLOCK, gl.SliceLayout(1, S))
        is_self = j == gl.expand_dims(i, 1)
        # Self: S_i = sigma(U_ii / tau); its weight is exp(S_i + lam log i), i from 1 per document.
        u_self = gl.sum(gl.where(is_self, u, 0.0), 1)
        s = hp.sigmoid(u_self * (2.0 / tau if K.SCALED else K.SCALE / tau))
        self2 = s * LOG2_E + lam * gl.log2((i_start + i - start_i + 1).to(gl.float32))
        # Without history only Self is left. Any weight divides out; 1 does so exactly.
        self2 = gl.where(i_start + i == start_i, 0.0, self2)
        e2 = hp.only_seen(_exponents(u, K), documents, start_i, i_start, False)
        weight = gl.exp2(gl.where(j < gl.expand_dims(i, 1), e2, float("-inf")))
        history += hp.partial_sums(weight)
        if K.TRANSPORT_SELF:
            weight = gl.where(is_self, gl.exp2(gl.expand_dims(self2, 1)), weight)
        if K.GROUPS > 1:
            weight, w, z, z_rest = hp.await_sum(weight, w, z, z_rest, K.REST)
            if is_after_first:
                hp.leave(empty.index(before))
        w = gl.convert_layout(weight.to(DTYPE), hp.factors(K.WIDE))
        z, z_rest = hp.begin_sum(w, hp.tile_at(info, stage), z, z_rest, is_after_first, K.REST)

        # A - S = log l_i - (S + lam log i), and n = log2(l_i + Self's weight), each (BLOCK,).
        l_i = hp.join_sums(history)
        l_all = l_i + gl.exp2(self2)
        share = 1.0 / l_all
        i = i_start + gl.arange(0, BLOCK, gl.SliceLayout(1, S))
        at = gl.cast(b * H + h, gl.int64) * T
        gl.store(gate_logit + at + i, (gl.log2(l_i) - self2) * LN_2, mask=i < T)
        gl.store(log_norm + at + i, gl.log2(l_all), mask=i < T)
        # Wait for the diagonal's product and release its stage.
        if K.REST > 0:
            y_i, y_rest, w = warpgroup_mma_wait(0, deps=[z, z_rest, w])
            z_rest = warpgroup_mma_init(y_rest)
        else:
            y_i, w = warpgroup_mma_wait(0, deps=[z, w])
        z = warpgroup_mma_init(y_i)
        hp.leave(empty.index(stage))
        # Y = z / l overwrites p1 in the slot, and TMA stores it from there.
        y_i *= gl.expand_dims(gl.convert_layout(share, gl.SliceLayout(1, hp.products(K.WIDE))), 1)
        p1_i[0].store(y_i.to(DTYPE))
        if K.REST > 0:
            y_rest *= gl.expand_dims(
                gl.convert_layout(share, gl.SliceLayout(1, hp.products(K.REST))), 1
            )
            p1_i[1].store(y_rest.to(DTYPE))
        fence_async_shared()
        hp.send(y_tiles, b, h, i_start, p1, place)
        # Only later groups need the remaining tiles.
        for _g in gl.static_range(ME + 1, gl.constexpr(K.GROUPS)):
            stage, phase = hp.next_stage(stage, phase, K.STAGES)
            hp.pass_by(full, empty, stage, phase)
        hp.leave_slot(free, slot, turn, K.SLOTS, True)
        turn += 1
        b, h, i_block = hp.receive(work, ready, turn, K.SLOTS)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["T", "heads", "blocks", "all_blocks"])
def hopper_forward_kernel(
    p1_tiles, p1_rests, p2_tiles, p2_rests, info_tiles, info_rests, y_tiles, y_rests,
    counter, lam, starts, gate_logit, log_norm, heads, blocks, all_blocks, H, T, tau,
    K: gl.constexpr,
):  # fmt: skip
    gl.static_assert(K.GROUPS == 1 or (K.GROUPS <= 3 and starts is None))
    tiles = (p1_tiles, p1_rests), (p2_tiles, p2_rests), (info_tiles, info_rests)
    p1 = hp.allocate_tiles(K.SLOTS * K.GROUPS, tiles[0])
    p2, info = hp.allocate_tiles(K.STAGES, tiles[1]), hp.allocate_tiles(K.STAGES, tiles[2])
    full, empty = hp.allocate_ring(K.STAGES, K.GROUPS)
    ready, free = hp.allocate_ring(K.SLOTS, K.GROUPS)
    memory = p1, p2, info, full, empty, ready, free, hp.allocate_work()
    sizes = heads, blocks, all_blocks, H, starts if starts is None else (starts, T)
    given = (y_tiles, y_rests), lam, gate_logit, log_norm, sizes, T, tau
    # Consumer 0 has the launch's own four warps. The producer (one warp) and consumers 1 and 2
    # (four warps each) run next to it; only the first GROUPS + 1 functions of the list are started.
    gl.warp_specialize(
        [
            (_consumer, (0, given, memory, K)),
            (_producer, (tiles, sizes, counter, memory, K)),
            (_consumer, (1, given, memory, K)),
            (_consumer, (2, given, memory, K)),
        ][: K.GROUPS + 1],
        [1, 4, 4][: K.GROUPS],
        [K.PRODUCER_REGISTERS, K.CONSUMER_REGISTERS, K.CONSUMER_REGISTERS][: K.GROUPS],
    )
