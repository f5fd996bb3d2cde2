"""The states between chunks, in two levels: along each segment of chunks, then over segments.

The same two kernels carry C forward and its gradient backward: C_t = Diag(alpha_t) C_{t-1} +
w_t I_t^T one way, dC_{t-1} = Diag(alpha_t) (dC_t + r_t dY_t^T) the other.
"""

import torch
import triton
import triton.language as tl

from relation.kernels.linear_relation.arithmetic import exp, product
from relation.kernels.linear_relation.launches import Call, cdiv, next_power_of_2
from relation.kernels.linear_relation.tiles import (
    Prepared,
    States,
    load_channels,
    load_selves,
    load_tokens,
    of_head,
    state_tile,
    strided,
)


@triton.jit
def _from_registers(tile, PRECISION: tl.constexpr):
    """The tile, 16 bits a number, as a result and not as a load.

    wgmma reads a load of a pipelined loop where cp.async has put it, which Triton before 3.7.1 does
    not fence. A result is stored for it, with the fence.
    """
    if PRECISION == "ieee" or tile.dtype == tl.float32:
        return tile
    else:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [tile], dtype=tile.dtype, is_pure=True, pack=2
        )


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks"])
def chunk_states_kernel(
    p1, p2, value, prepared, within, log_decay, added, added_log_decay,
    H, T, chunks, segment_chunks,
    PRECISION: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BACKWARD: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    segment = tl.program_id(1)
    v_blocks: tl.constexpr = (D + BLOCK_V - 1) // BLOCK_V
    d_start = tl.program_id(2) // v_blocks * BLOCK_D
    v_start = tl.program_id(2) % v_blocks * BLOCK_V
    # The values are information forward and dY backward, which no heads share.
    SHARED: tl.constexpr = 1 if BACKWARD else GROUP
    value = of_head(value, tl.program_id(0) // SHARED, H // SHARED, ALIGNED)
    if BACKWARD:
        coordinates = of_head(p1, tl.program_id(0), H, ALIGNED)
    else:
        coordinates = of_head(p2, tl.program_id(0) // GROUP, H // GROUP, ALIGNED)
    within += head * chunks * D * D
    log_decay += head * chunks * D
    exponents = prepared.exponents + head * T * D, D, 1
    out = head * tl.num_programs(1) + segment

    t, d = tl.arange(0, CHUNK), d_start + tl.arange(0, BLOCK_D)
    offsets, inside = state_tile(d_start, v_start, D, BLOCK_D, BLOCK_V)
    # Every block of information channels needs the retention; the first one records it.
    records = d < tl.where(v_start == 0, D, 0)
    first = segment * segment_chunks
    count = tl.minimum(segment_chunks, chunks - first)
    state = tl.zeros([BLOCK_D, BLOCK_V], tl.float32)
    retained = tl.zeros([BLOCK_D], tl.float32)
    for k in range(0, count):
        chunk = first + count - 1 - k if BACKWARD else first + k
        if k > 0:
            tl.store(within + tl.cast(chunk, tl.int64) * D * D + offsets, state, mask=inside)
            tl.store(log_decay + chunk * D + d, retained, mask=records)
        t_start = chunk * CHUNK
        value_t = load_tokens(value, t_start, T, v_start, D, CHUNK, BLOCK_V, WHOLE)
        value_t = _from_registers(value_t, PRECISION)
        S, inverse_norm1, inverse_norm2 = load_selves(prepared.selves, head, t_start, T, CHUNK)
        coordinate = load_tokens(coordinates, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
        inverse_norm = inverse_norm1 if BACKWARD else inverse_norm2
        coordinate = coordinate.to(tl.float32) * (S * inverse_norm)[:, None]
        here = head * chunks + chunk
        left = load_channels(prepared.halves, 2 * here, d_start, D, BLOCK_D)
        right = load_channels(prepared.halves, 2 * here + 1, d_start, D, BLOCK_D)
        exponent = load_tokens(exponents, t_start, T, d_start, D, CHUNK, BLOCK_D, WHOLE)
        # Backward G(0, t), forward G(t, n).
        exponent = left[None, :] + exponent if BACKWARD else right[None, :] - exponent
        # Past T the coordinates are zeros anyway. With a mask Triton lays the factors out so that
        # fewer registers are needed: without it they spill at D = 48.
        factor = tl.where((t_start + t < T)[:, None], exp(exponent, PRECISION), 0.0)
        coordinate *= factor
        total = (left + right).to(tl.float32)
        state *= exp(total, PRECISION)[:, None]
        state += product(tl.trans(coordinate), value_t, PRECISION)
        retained += total
    tl.store(added + out * D * D + offsets, state, mask=inside)
    tl.store(added_log_decay + out * D + d, retained, mask=records)


@triton.jit
def _after_both(decay, state, next_decay, next_state):
    """Two segments as one: the retention of both, and what both add."""
    return decay * next_decay, next_decay * state + next_state


@triton.jit(do_not_specialize=["segments"])
def segment_scan_kernel(
    added, added_log_decay, initial, entry, final, segments,
    BACKWARD: tl.constexpr, HAS_INITIAL: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < D * D
    added += head * segments * D * D
    added_log_decay += head * segments * D
    entry += head * segments * D * D
    if HAS_INITIAL:
        state = tl.load(initial + head * D * D + element, mask=inside, other=0.0)
    else:
        state = tl.zeros([BLOCK], tl.float32)
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
        # A step outside keeps the state: its retention is 1, and it adds nothing.
        decay, sums = tl.associative_scan((tl.exp(log_decay), new), 0, _after_both)
        states = decay * state[None, :] + sums
        first = segments - 1 - start if BACKWARD else start
        tl.store(entry + tl.cast(first, tl.int64) * D * D + element, state, mask=inside)
        # What a segment leaves, the next one meets.
        ahead = offsets - D * D if BACKWARD else offsets + D * D
        met = exists & (position + 1 < tl.minimum(segments, start + STEPS))[:, None]
        tl.store(entry + ahead, states, mask=met)
        state = tl.sum(tl.where(last, states, 0.0), 0)
    tl.store(final + head * D * D + element, state, mask=inside)


def carry_states(
    call: Call,
    p1: torch.Tensor,
    p2: torch.Tensor,
    value: torch.Tensor,
    prepared: Prepared,
    initial: torch.Tensor | None,
    met: States,
    *,
    backward: bool,
) -> torch.Tensor:
    """Fill `met`, the states that the chunks meet, and return the one after the last chunk met.

    Forward, value is the information, initial C_0 and the result C_T. Backward, value is dY,
    initial dC_T and the result dC_0. None stands for zeros.
    """
    B, H, T, D = p1.shape
    launches, (block, steps) = call.launches, call.launches.scan
    added, final = torch.empty_like(met.entry), met.entry.new_empty(B, H, D, D)
    added_log_decay = met.entry.new_empty(B, H, call.segments, D)
    options = call.options(launches.states, p1, p2, value)
    tiles = cdiv(D, options["BLOCK_D"]) * cdiv(D, options["BLOCK_V"])
    chunk_states_kernel[(B * H, call.segments, tiles)](
        *map(strided, (p1, p2, value)), prepared, met.within, met.log_decay, added,
        added_log_decay, H, T, call.chunks, call.segment_chunks, BACKWARD=backward, **options,
    )  # fmt: skip
    segment_scan_kernel[(B * H, cdiv(D * D, block))](
        added, added_log_decay, added if initial is None else initial.contiguous(), met.entry,
        final, call.segments, BACKWARD=backward, HAS_INITIAL=initial is not None, D=D, BLOCK=block,
        # Every step costs, also one past the last segment.
        STEPS=min(steps, next_power_of_2(call.segments)), num_warps=1,
    )  # fmt: skip
    return final
