"""Prepare each chunk (Self, norms, sums of retention), and carry the states between chunks.

States are carried in two levels: through the chunks of every segment, then over the segments. The
same two kernels carry C forward, C_t = Diag(alpha_t) C_{t-1} + w_t I_t^T, and its gradient
backward, dC_{t-1} = Diag(alpha_t) (dC_t + r_t dY_t^T).
"""

import triton
import triton.language as tl

from relation.kernels.linear_relation import tiles

# Stronger steps count as this: exp(-105) is 0 in FP32. It keeps sums finite and small: half a chunk
# of 64 sums to less than 4096 in magnitude, where FP32 rounds by at most 1.2e-4.
STRONGEST = tl.constexpr(-105.0)
# Both halves of a weak chunk keep at least exp(-60) of every channel, so no factor exceeds exp(60)
# and only masked pairs can overflow. FP32 uses 40: with 60 dg would be too small next to its terms.
LARGEST_OF_16_BITS, LARGEST_OF_FP32 = tl.constexpr(60.0), tl.constexpr(40.0)


@triton.jit
def _load_retention(g, d_start, K: tl.constexpr):
    tile = tiles.load_tokens(g, d_start, K.BLOCK_D, K).to(tl.float32)
    tile = tl.where(tile < STRONGEST, STRONGEST, tile)
    return tile.to(tl.float64) if K.IEEE else tile


@triton.jit(do_not_specialize=["T", "chunks"])
def prepare_kernel(
    p1, p2, log_retention, prepared, H, T, scale, chunks, SEES_WEAK: tl.constexpr, K: tl.constexpr
):
    """Fill `prepared` for one chunk. SEES_WEAK: this launch has kernels for weak chunks."""
    D: tl.constexpr = K.D
    BLOCK_D: tl.constexpr = K.BLOCK_D
    h, head, chunk = tl.program_id(0), tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    t_start = chunk * K.CHUNK
    p1 = tiles.of_head(p1, h, H, t_start, T, K)
    p2 = tiles.of_head(p2, h // K.GROUP, H // K.GROUP, t_start, T, K)
    log_retention = tiles.of_head(log_retention, h, H, t_start, T, K)

    # S = sigma(<p1, p2> / (tau sqrt(D))) and 1 / |p1|, 1 / |p2|, each (CHUNK,).
    pair = tiles.zeros(K.CHUNK)
    square1 = tiles.zeros(K.CHUNK)
    square2 = tiles.zeros(K.CHUNK)
    for d_start in tl.static_range(0, D, BLOCK_D):
        p1_d = tiles.load_tokens(p1, d_start, BLOCK_D, K).to(tl.float32)
        p2_d = tiles.load_tokens(p2, d_start, BLOCK_D, K).to(tl.float32)
        pair += tl.sum(p1_d * p2_d, 1)
        square1 += tl.sum(p1_d * p1_d, 1)
        square2 += tl.sum(p2_d * p2_d, 1)
    # Triton's interpreter passes Python numbers in FP64, which would widen the results.
    S = tl.sigmoid(pair * tl.cast(scale, tl.float32))
    inverse_norm1 = 1.0 / tl.maximum(tl.sqrt(square1), tiles.NORM_FLOOR)
    inverse_norm2 = 1.0 / tl.maximum(tl.sqrt(square2), tiles.NORM_FLOOR)
    tiles.store_row(prepared.selves, S, 3 * head, t_start, T, K)
    tiles.store_row(prepared.selves, inverse_norm1, 3 * head + 1, t_start, T, K)
    tiles.store_row(prepared.selves, inverse_norm2, 3 * head + 2, t_start, T, K)

    # G(0, m) and G(m, n), the sums of g over the two halves, each (BLOCK_D,).
    here = head * chunks + chunk
    halves = prepared.halves + here * 2 * D
    t = tl.arange(0, K.CHUNK)
    is_left = (t < K.CHUNK // 2)[:, None]
    strongest = 0.0
    for d_start in tl.static_range(0, D, BLOCK_D):
        g = _load_retention(log_retention, d_start, K)
        left = tl.sum(tl.where(is_left, g, 0.0), 0)
        right = tl.sum(tl.where(is_left, 0.0, g), 0)
        d = d_start + tl.arange(0, BLOCK_D)
        tl.store(halves + d, left, mask=d < D)
        tl.store(halves + D + d, right, mask=d < D)
        strongest = tl.minimum(strongest, tl.min(tl.minimum(left, right), 0))
    largest = LARGEST_OF_FP32 if K.IEEE else LARGEST_OF_16_BITS
    is_weak = SEES_WEAK and strongest >= -largest
    tokens = tl.minimum(T - t_start, K.CHUNK)
    if is_weak & (tokens < K.CHUNK):
        # The weak kernels form dg from terms of order one, which cancel to the size of exp(g). In
        # a full weak chunk every channel's mean step is at least -largest / (CHUNK / 2). In a short
        # chunk all steps can be stronger: dg would be smaller than the rounding of its terms. So
        # some channel must meet that bound here too. A single token without a state has dg = 0,
        # of which the terms would leave a rounding error.
        weakest = float("-inf")
        for d_start in tl.static_range(0, D, BLOCK_D):
            g = _load_retention(log_retention, d_start, K)
            d = d_start + tl.arange(0, BLOCK_D)
            total = tl.where(d < D, tl.sum(g, 0), float("-inf")).to(tl.float32)
            weakest = tl.maximum(weakest, tl.max(total, 0))
        is_weak = (weakest * (K.CHUNK // 2) >= -largest * tokens) & (tokens > 1)
    tl.store(prepared.weak + here, is_weak.to(tl.uint8))

    # e_t is G(m, t) right of the middle m, -G(t, m) left of it; by a product with 1, 0 and -1.
    right_of = (t >= K.CHUNK // 2).to(tl.float32)
    steps = tl.where(t[None, :] <= t[:, None], right_of[None, :], (right_of - 1)[None, :])
    for d_start in tl.static_range(0, D, BLOCK_D):
        if D > BLOCK_D:
            g = _load_retention(log_retention, d_start, K)
        if K.IEEE:
            left = tl.sum(tl.where(is_left, g, 0.0), 0)
            exponent = tl.cumsum(g, 0) - left[None, :]
        else:
            exponent = tiles.product(steps.to(tl.bfloat16), g, K)
        exponents = tiles.of_rows(prepared.exponents, head * T * K.D, t_start, T, K.D)
        tiles.store_tokens(exponents, exponent, d_start, BLOCK_D, K)
    if not K.IEEE and not is_weak:
        # Take both halves from the first and the last exponent: G(0, m) = g_1 - e_1, G(m, n) = e_n.
        # Then the rounding of the product cancels. The barrier makes the stored e_t visible.
        tl.debug_barrier()
        rows, first = prepared.exponents + head * T * D, tl.cast(t_start, tl.int64)
        pointer, stride_t, stride_d, _, _ = log_retention
        for d_start in tl.static_range(0, D, BLOCK_D):
            d = d_start + tl.arange(0, BLOCK_D)
            g_first = tl.load(pointer + first * stride_t + d * stride_d, mask=d < D, other=0.0)
            g_first = tl.maximum(g_first.to(tl.float32), STRONGEST)
            from_start = g_first - tiles.load_channels(rows, first, d_start, K)
            to_end = tiles.load_channels(rows, first + tokens - 1, d_start, K)
            tl.store(halves + d, from_start, mask=d < D)
            tl.store(halves + D + d, to_end, mask=d < D)


@triton.jit
def _from_registers(tile, K: tl.constexpr):
    """Return the tile through a mov if it is 16-bit, so that Triton takes it for a computed result.

    In a pipelined loop wgmma reads a loaded tile where cp.async put it, and Triton before 3.7.1
    leaves out the fence. Triton stores a computed tile to shared memory, with the fence.
    """
    if K.IEEE or tile.dtype == tl.float32:
        return tile
    else:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [tile], dtype=tile.dtype, is_pure=True, pack=2
        )


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks"])
def chunk_states_kernel(
    p1, p2, value, prepared, within, log_decay, added, added_log_decay,
    H, T, chunks, segment_chunks, BACKWARD: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Carry the state through the chunks of one segment, starting with zeros."""
    h, head, segment = tl.program_id(0), tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    v_blocks: tl.constexpr = (K.D + K.BLOCK_V - 1) // K.BLOCK_V
    d_start = tl.program_id(2) // v_blocks * K.BLOCK_D
    v_start = tl.program_id(2) % v_blocks * K.BLOCK_V
    # Forward, heads share info and p2. Backward reads dY and p1, which have H heads.
    SHARED: tl.constexpr = 1 if BACKWARD else K.GROUP
    value = tiles.of_head(value, h // SHARED, H // SHARED, 0, T, K)
    coordinates = tiles.of_head(p1 if BACKWARD else p2, h // SHARED, H // SHARED, 0, T, K)
    within += head * chunks * K.D * K.D
    log_decay += head * chunks * K.D
    exponents = tiles.of_rows(prepared.exponents, head * T * K.D, 0, T, K.D)
    out = head * tl.num_programs(1) + segment

    t, d = tl.arange(0, K.CHUNK), d_start + tl.arange(0, K.BLOCK_D)
    offsets, inside = tiles.state_tile(d_start, v_start, K)
    # Every block of information channels needs the retention; only the first one stores it.
    records = d < tl.where(v_start == 0, K.D, 0)
    first = segment * segment_chunks
    count = tl.minimum(segment_chunks, chunks - first)
    state = tiles.zeros(K.BLOCK_D, K.BLOCK_V)
    retained = tiles.zeros(K.BLOCK_D)
    for k in range(0, count):
        chunk = first + count - 1 - k if BACKWARD else first + k
        # The chunk's incoming state, (BLOCK_D, BLOCK_V), and the retention since the segment began.
        if k > 0:
            tl.store(within + tl.cast(chunk, tl.int64) * K.D * K.D + offsets, state, mask=inside)
            tl.store(log_decay + chunk * K.D + d, retained, mask=records)
        t_start = chunk * K.CHUNK
        value_t = _from_registers(
            tiles.load_tokens(tiles.at(value, t_start), v_start, K.BLOCK_V, K), K
        )
        S, inverse_norm1, inverse_norm2 = tiles.load_selves(prepared, head, t_start, T, K)
        coordinate = tiles.load_tokens(tiles.at(coordinates, t_start), d_start, K.BLOCK_D, K)
        inverse_norm = inverse_norm1 if BACKWARD else inverse_norm2
        coordinate = coordinate.to(tl.float32) * (S * inverse_norm)[:, None]
        here = head * chunks + chunk
        left = tiles.load_channels(prepared.halves, 2 * here, d_start, K)
        right = tiles.load_channels(prepared.halves, 2 * here + 1, d_start, K)
        exponent = tiles.load_tokens(tiles.at(exponents, t_start), d_start, K.BLOCK_D, K)
        # Backward G(0, t), forward G(t, n).
        exponent = left[None, :] + exponent if BACKWARD else right[None, :] - exponent
        # Past T the coordinates are zeros anyway. With this mask Triton picks a layout that needs
        # fewer registers; without it they spill at D = 48.
        factor = tl.where((t_start + t < T)[:, None], tiles.exp(exponent, K), 0.0)
        # C = Diag(exp G(0, n)) C + sum (w_t exp G(t, n)) I_t^T; backward r_t exp G(0, t) and dY_t.
        coordinate *= factor
        total = (left + right).to(tl.float32)
        state *= tiles.exp(total, K)[:, None]
        state += tiles.product(tl.trans(coordinate), value_t, K)
        retained += total
    tl.store(added + out * K.D * K.D + offsets, state, mask=inside)
    tl.store(added_log_decay + out * K.D + d, retained, mask=records)


@triton.jit
def _after_both(decay, state, next_decay, next_state):
    """Join two neighbouring segments into one: their retention and the state that they add."""
    return decay * next_decay, next_decay * state + next_state


@triton.jit(do_not_specialize=["segments"])
def segment_scan_kernel(
    added, added_log_decay, initial, entry, final, segments,
    BACKWARD: tl.constexpr, HAS_INITIAL: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    # One program: BLOCK elements of one head's (D, D) state, STEPS segments at a time.
    head = tl.cast(tl.program_id(0), tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < D * D
    added += head * segments * D * D
    added_log_decay += head * segments * D
    entry += head * segments * D * D
    if HAS_INITIAL:
        state = tl.load(initial + head * D * D + element, mask=inside, other=0.0)
    else:
        state = tiles.zeros(BLOCK)
    steps = tl.arange(0, STEPS)
    last = (steps == STEPS - 1)[:, None]
    for start in range(0, segments, STEPS):
        position = start + steps
        segment = segments - 1 - position if BACKWARD else position
        exists = (position < segments)[:, None] & inside[None, :]
        offsets = tl.cast(segment, tl.int64)[:, None] * (D * D) + element[None, :]
        new = tl.load(added + offsets, mask=exists, other=0.0)
        log_decay = tl.load(
            added_log_decay + tl.cast(segment, tl.int64)[:, None] * D + (element // D)[None, :],
            mask=exists, other=0.0,
        )  # fmt: skip
        # A step past the last segment keeps the state: its retention is 1 and it adds 0.
        decay, sums = tl.associative_scan((tl.exp(log_decay), new), 0, _after_both)
        states = decay * state[None, :] + sums
        first = segments - 1 - start if BACKWARD else start
        tl.store(entry + tl.cast(first, tl.int64) * D * D + element, state, mask=inside)
        # The state after a segment is the incoming state of the next.
        ahead = offsets - D * D if BACKWARD else offsets + D * D
        met = exists & (position + 1 < tl.minimum(segments, start + STEPS))[:, None]
        tl.store(entry + ahead, states, mask=met)
        state = tl.sum(tl.where(last, states, 0.0), 0)
    tl.store(final + head * D * D + element, state, mask=inside)
