"""The states between chunks, in two levels: along each segment of chunks, then over segments.

The same two kernels carry C forward and its gradient backward: C_t = Diag(alpha_t) C_{t-1} +
w_t I_t^T one way, dC_{t-1} = Diag(alpha_t) (dC_t + r_t dY_t^T) the other.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from relation.kernels.common import Part
from relation.kernels.linear_relation.decays import exp, from_registers, product
from relation.kernels.linear_relation.launches import Launches, Segments
from relation.kernels.linear_relation.prepare import Prepared
from relation.kernels.linear_relation.tiles import (
    load_half,
    load_selves,
    load_tokens,
    own_offset,
    shared_offset,
    state_tile,
)
from relation.kernels.plans import Configuration, Launcher


class States(NamedTuple):
    """Where `load_state` finds the state that each chunk meets; all FP32.

    within: (B, H, chunks, D, D), the part from its own segment; log_decay: (B, H, chunks, D), the
    retention since the segment's start; entry: (B, H, segments, D, D), the state there.
    """

    within: torch.Tensor
    log_decay: torch.Tensor
    entry: torch.Tensor


def state_sizes(heads: int, D: int, segments: Segments) -> tuple[int, ...]:
    """Numbers of `States`. Segments of one chunk have no part of their own to store."""
    inner = segments.chunks if segments.length > 1 else 0
    return heads * inner * D * D, heads * inner * D, heads * segments.count * D * D


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks"])
def chunk_states_kernel(
    p1, p2, value, selves, kinds, exponents, halves,
    within, log_decay, added, added_log_decay,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_value_b, stride_value_h, stride_value_t, stride_value_d,
    H, T, chunks, segment_chunks,
    BACKWARD: tl.constexpr, GROUP: tl.constexpr,
    ALIGNED: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    segment = tl.program_id(1)
    v_blocks: tl.constexpr = (D + BLOCK_V - 1) // BLOCK_V
    d_start = tl.program_id(2) // v_blocks * BLOCK_D
    v_start = tl.program_id(2) % v_blocks * BLOCK_V
    p1 += own_offset(H, stride_p1_b, stride_p1_h, ALIGNED)
    p2 += shared_offset(H, GROUP, stride_p2_b, stride_p2_h, ALIGNED)
    # The values are information forward and dY backward, which no heads share.
    value += shared_offset(H, 1 if BACKWARD else GROUP, stride_value_b, stride_value_h, ALIGNED)
    within += head * chunks * D * D
    log_decay += head * chunks * D
    exponents += head * T * D
    out = head * tl.num_programs(1) + segment

    d = d_start + tl.arange(0, BLOCK_D)
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
        value_t = load_tokens(
            value, t_start, T, stride_value_t, v_start, stride_value_d, D, CHUNK, BLOCK_V, WHOLE
        )
        value_t = from_registers(value_t, PRECISION)
        S, inverse_norm1, inverse_norm2 = load_selves(selves, head, t_start, T, CHUNK)
        if BACKWARD:
            coordinate = load_tokens(
                p1, t_start, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D, WHOLE
            )
            coordinate = coordinate.to(tl.float32) * (S * inverse_norm1)[:, None]
        else:
            coordinate = load_tokens(
                p2, t_start, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D, WHOLE
            )
            coordinate = coordinate.to(tl.float32) * (S * inverse_norm2)[:, None]
        here = head * chunks + chunk
        left = load_half(halves, 2 * here, d_start, D, BLOCK_D)
        right = load_half(halves, 2 * here + 1, d_start, D, BLOCK_D)
        exponent = load_tokens(exponents, t_start, T, D, d_start, 1, D, CHUNK, BLOCK_D, WHOLE)
        from_middle = left[None, :] + exponent if BACKWARD else right[None, :] - exponent
        exponent = tl.where(tl.load(kinds + here) != 0, from_middle, exponent)
        coordinate *= exp(exponent, PRECISION)
        total = left + right
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


def added_sizes(heads: int, D: int, segments: Segments) -> list[Part]:
    """Numbers and dtypes of what every segment adds to a state, and of its retention."""
    ends = heads * segments.count * D
    return [(ends * D, torch.float32), (ends, torch.float32)]


def launch_states(
    launcher: Launcher,
    p1: torch.Tensor,
    p2: torch.Tensor,
    value: torch.Tensor,
    prepared: Prepared,
    initial: torch.Tensor | None,
    met: States,
    final: torch.Tensor,
    added: torch.Tensor,
    added_log_decay: torch.Tensor,
    launches: Launches,
    segments: Segments,
    *,
    backward: bool,
) -> None:
    """Fill `met`, the states that the chunks meet, and `final`, the one after the last chunk met.

    Forward, value is the information, initial C_0 and final C_T. Backward, value is dY, initial
    dC_T and final dC_0. initial, contiguous; None stands for zeros. added, added_log_decay:
    memory of `added_sizes`.
    """
    B, H, T, D = p1.shape
    within, log_decay, entry = met
    of_chunks = prepared.selves, prepared.kinds, prepared.exponents, prepared.halves
    scan = launches.scan
    start = added if initial is None else initial

    def configure_chunks() -> Configuration:
        options = launches.states.options(D)
        blocks = triton.cdiv(D, options["BLOCK_D"]) * triton.cdiv(D, options["BLOCK_V"])
        strides = (*p1.stride(), *p2.stride(), *value.stride())
        own = {"BACKWARD": backward, "WHOLE": segments.whole}
        own |= launches.constants(D, H // p2.shape[1], p1, p2, value)
        numbers = (*strides, H, T, segments.chunks, segments.length)
        return (B * H, segments.count, blocks), numbers, own | options

    def configure_scan() -> Configuration:
        own = {
            "BACKWARD": backward,
            "HAS_INITIAL": initial is not None,
            "D": D,
            "BLOCK": scan.block,
            # Every step costs, also one past the last segment.
            "STEPS": min(scan.steps, triton.next_power_of_2(segments.count)),
            "num_warps": scan.num_warps,
        }
        return (B * H, triton.cdiv(D * D, scan.block)), (segments.count,), own

    results = (within, log_decay, added, added_log_decay)
    launcher.launch(chunk_states_kernel, (p1, p2, value, *of_chunks, *results), configure_chunks)
    tensors = (added, added_log_decay, start, entry, final)
    launcher.launch(segment_scan_kernel, tensors, configure_scan)
