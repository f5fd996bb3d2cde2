"""The states between chunks, in two levels: along each segment of chunks, then over segments.

The same two kernels carry C forward and its gradient backward: C_t = Diag(alpha_t) C_{t-1} +
w_t I_t^T one way, dC_{t-1} = Diag(alpha_t) (dC_t + r_t dY_t^T) the other.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.common import head_offset
from kernels.linear_relation.decays import (
    LARGEST_EXPONENT,
    exp,
    load_retention,
    product,
    self_and_norms,
    self_and_norms_of,
    sum_halves,
    sum_steps,
)
from kernels.linear_relation.launches import Launches, Segments
from kernels.linear_relation.tiles import load_tokens, state_tile


@dataclass(frozen=True)
class States:
    """Where `load_state` finds the state that each chunk meets; all FP32.

    within: (B, H, chunks, D, D), the part from its own segment; log_decay: (B, H, chunks, D), the
    retention since the segment's start; entry: (B, H, segments, D, D), the state there.
    weak: (B, H, chunks), uint8, whether both halves of a chunk retain at least exp(-40) of every
    channel; empty where nobody asks.
    """

    within: torch.Tensor
    log_decay: torch.Tensor
    entry: torch.Tensor
    weak: torch.Tensor


@triton.jit(do_not_specialize=["T", "chunks", "segment_chunks"])
def chunk_states_kernel(
    p1, p2, value, log_retention, within, log_decay, added, added_log_decay, weak,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_value_b, stride_value_h, stride_value_t, stride_value_d,
    stride_g_b, stride_g_h, stride_g_t, stride_g_d,
    H, T, scale, chunks, segment_chunks,
    BACKWARD: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr,
    WHOLE: tl.constexpr, FIND_WEAK: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    segment = tl.program_id(1)
    v_blocks: tl.constexpr = (D + BLOCK_V - 1) // BLOCK_V
    d_start = tl.program_id(2) // v_blocks * BLOCK_D
    v_start = tl.program_id(2) % v_blocks * BLOCK_V
    p1 += head_offset(H, stride_p1_b, stride_p1_h)
    p2 += head_offset(H, stride_p2_b, stride_p2_h)
    value += head_offset(H, stride_value_b, stride_value_h)
    log_retention += head_offset(H, stride_g_b, stride_g_h)
    within += head * chunks * D * D
    log_decay += head * chunks * D
    out = head * tl.num_programs(1) + segment

    t, d = tl.arange(0, CHUNK), d_start + tl.arange(0, BLOCK_D)
    steps = t[None, :] <= t[:, None] if BACKWARD else t[None, :] > t[:, None]
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
        g = load_retention(
            log_retention, t_start, T, stride_g_t, d_start, stride_g_d, D, CHUNK, BLOCK_D, WHOLE
        )
        value_t = load_tokens(
            value, t_start, T, stride_value_t, v_start, stride_value_d, D, CHUNK, BLOCK_V, WHOLE
        )
        p1_d = load_tokens(
            p1, t_start, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D, WHOLE
        ).to(tl.float32)
        p2_d = load_tokens(
            p2, t_start, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D, WHOLE
        ).to(tl.float32)
        if BLOCK_D == WIDTH:
            S, inverse_norm1, inverse_norm2 = self_and_norms_of(p1_d, p2_d, scale)
        else:
            S, inverse_norm1, inverse_norm2 = self_and_norms(
                p1, p2, t_start, T, stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d, scale,
                D, CHUNK, WIDTH,
            )  # fmt: skip
        if BACKWARD:
            coordinate = p1_d * (S * inverse_norm1)[:, None]
        else:
            coordinate = p2_d * (S * inverse_norm2)[:, None]
        coordinate *= exp(sum_steps(steps, g, PRECISION), PRECISION)
        if FIND_WEAK:
            left, right = sum_halves(g, CHUNK)
            least = tl.min(tl.minimum(left, right), 0)
            is_weak = (least >= -LARGEST_EXPONENT).to(tl.uint8)
            tl.store(weak + head * chunks + chunk, is_weak, mask=v_start == 0)
            total = left + right
        else:
            total = tl.sum(g, 0)
        state *= exp(total, PRECISION)[:, None]
        state += product(tl.trans(coordinate), value_t, PRECISION)
        retained += total
    tl.store(added + out * D * D + offsets, state, mask=inside)
    tl.store(added_log_decay + out * D + d, retained, mask=records)


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
    for start in range(0, segments, STEPS):
        # All loads of a group are in flight before its first sum waits for one.
        segment = start + steps
        if BACKWARD:
            segment = segments - 1 - segment
        exists = (start + steps < segments)[:, None] & inside[None, :]
        segment = tl.cast(segment, tl.int64)[:, None]
        new = tl.load(added + segment * D * D + element[None, :], mask=exists, other=0.0)
        log_decay = tl.load(
            added_log_decay + segment * D + (element // D)[None, :], mask=exists, other=0.0
        )
        decay = tl.exp(log_decay)
        for step in tl.static_range(STEPS):
            position = start + step
            segment_now = position
            if BACKWARD:
                segment_now = segments - 1 - position
            tl.store(
                entry + tl.cast(segment_now, tl.int64) * D * D + element,
                state,
                mask=element < tl.where(position < segments, D * D, 0),
            )
            now = (steps == step)[:, None]
            state *= tl.sum(tl.where(now, decay, 0.0), 0)
            state += tl.sum(tl.where(now, new, 0.0), 0)
    tl.store(final + head * D * D + element, state, mask=inside)


def launch_states(
    p1: torch.Tensor,
    p2: torch.Tensor,
    value: torch.Tensor,
    log_retention: torch.Tensor,
    initial: torch.Tensor | None,
    scale: float,
    launches: Launches,
    segments: Segments,
    *,
    backward: bool,
) -> tuple[States, torch.Tensor]:
    """The states that the chunks meet, and the one after the last chunk met, (B, H, D, D).

    Forward, value is the information, initial C_0 and the result C_T. Backward, value is dY,
    initial dC_T and the result dC_0. None stands for an initial state of zeros.
    """
    B, H, T, D = p1.shape
    launch = launches.states

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty((B, H, *shape), dtype=torch.float32, device=p1.device)

    within = empty(segments.chunks, D, D)
    log_decay = empty(segments.chunks, D)
    added, added_log_decay = empty(segments.count, D, D), empty(segments.count, D)
    entry, final = empty(segments.count, D, D), empty(D, D)
    find_weak = launches.weak_output is not None and not backward
    weak = torch.empty(
        (B, H, segments.chunks if find_weak else 0), dtype=torch.uint8, device=p1.device
    )
    with torch.cuda.device_of(p1):
        blocks = triton.cdiv(D, launch.block_d) * triton.cdiv(D, launch.block_v)
        chunk_states_kernel[(B * H, segments.count, blocks)](
            p1, p2, value, log_retention, within, log_decay, added, added_log_decay, weak,
            *p1.stride(), *p2.stride(), *value.stride(), *log_retention.stride(),
            H, T, scale, segments.chunks, segments.length,
            BACKWARD=backward, PRECISION=launches.precision, D=D, WIDTH=launches.width,
            BLOCK_D=launch.block_d, BLOCK_V=launch.block_v, CHUNK=launches.chunk,
            WHOLE=segments.whole, FIND_WEAK=find_weak,
            num_warps=launch.num_warps, num_stages=launch.num_stages,
        )  # fmt: skip
        scan = launches.scan
        segment_scan_kernel[(B * H, triton.cdiv(D * D, scan.block))](
            added, added_log_decay, added if initial is None else initial.contiguous(),
            entry, final, segments.count,
            BACKWARD=backward, HAS_INITIAL=initial is not None, D=D,
            BLOCK=scan.block, STEPS=scan.steps, num_warps=scan.num_warps,
        )  # fmt: skip
    return States(within, log_decay, entry, weak), final
