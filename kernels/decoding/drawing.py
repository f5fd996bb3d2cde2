"""Draw the next token of each row from its logits, and update the row's counts.

A program processes one row, in FP64 as the definition does. It compares cumulative sums of weights
with the uniform number times their total, so it divides by nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from relation.kernels.common import next_power_of_2
from relation.kernels.decoding.chain import options, wait_for_chain

# Logits per step: all of them if there are at most _WHOLE, otherwise _PART.
_WHOLE, _PART, _WARPS = 4096, 2048, 8


@triton.jit
def _weights(row, v, top, warmth, V: tl.constexpr):
    """Return exp((x - top) / temperature) for the logits v, FP64; 0 past the last one."""
    x = tl.load(row + v, mask=v < V, other=0.0).to(tl.float64)
    return tl.where(v < V, tl.exp((x - top) / warmth), 0.0)


@triton.jit(do_not_specialize=["B", "rounds", "stop"])
def draw_kernel(
    logits, temperature, uniforms, ids, place, lengths, active,
    B, rounds, stop,
    V: tl.constexpr, GREEDY: tl.constexpr, COUNTS: tl.constexpr, STOPS: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    at = tl.full([], 0, tl.int64)
    if COUNTS:
        at = tl.load(place + b) + 1
        length = tl.load(lengths + b)
        lives = tl.load(active + b)
    uniform = tl.load(uniforms + at % rounds * B + b)
    warmth = tl.load(temperature)
    wait_for_chain(CHAINED)

    row = logits + tl.cast(b, tl.int64) * V
    lane = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    broken = tl.zeros([BLOCK], tl.int32)
    for start in range(0, V, BLOCK):
        x = tl.load(row + start + lane, mask=start + lane < V, other=float("-inf"))
        largest = tl.maximum(largest, x)
        broken += ((start + lane < V) & ~(tl.abs(x) < float("inf"))).to(tl.int32)
    top = tl.max(largest, 0)
    if GREEDY:
        first = tl.full([BLOCK], V, tl.int32)
        for start in range(0, V, BLOCK):
            x = tl.load(row + start + lane, mask=start + lane < V, other=float("-inf"))
            first = tl.minimum(first, tl.where(x == top, start + lane, V))
        drawn = tl.min(first, 0)
    else:
        # The drawn token is the number of cumulative sums that are <= uniform * total.
        top = top.to(tl.float64)
        total = tl.full([], 0.0, tl.float64)
        for start in range(0, V, BLOCK):
            total += tl.sum(_weights(row, start + lane, top, warmth, V), 0)
        before = tl.full([], 0.0, tl.float64)
        below = tl.zeros([BLOCK], tl.int32)
        last = tl.zeros([BLOCK], tl.int32)
        for start in range(0, V, BLOCK):
            weight = _weights(row, start + lane, top, warmth, V)
            cumulative = before + tl.cumsum(weight, 0)
            below += ((cumulative <= uniform * total) & (start + lane < V)).to(tl.int32)
            last = tl.maximum(last, tl.where(weight > 0, start + lane, 0))
            before += tl.sum(weight, 0)
        # `total` was added in another order, so it may exceed the last cumulative sum slightly.
        drawn = tl.minimum(tl.sum(below, 0), tl.max(last, 0))
    drawn = tl.where(tl.sum(broken, 0) > 0, -1, drawn)
    if COUNTS:
        # One warp writes these counts, so first wait until every warp has read them.
        tl.debug_barrier()
        tl.store(place + b, at)
        tl.store(lengths + b, length + lives)
        if STOPS:
            drawn = tl.where(lives == 0, stop, drawn)
            tl.store(active + b, lives * (drawn != stop).to(tl.int32))
    tl.store(ids + b, drawn.to(tl.int64))


def draw(
    logits: Tensor,
    temperature: Tensor | None,
    uniforms: Tensor,
    ids: Tensor,
    counts: tuple[Tensor, Tensor, Tensor] | None = None,
    stop: int | None = None,
    *,
    chained: bool = False,
) -> None:
    """Draw a token for each row of logits, (B, V) FP32, into ids, (B,) int64; all contiguous.

    A row with logits that are not finite draws -1. temperature: (1,) FP64; None takes the likeliest
    token, the first of equal ones. uniforms: (n, B) FP64 in [0, 1), which cut the cumulative
    distribution. counts: (index, lengths, active), each (B,), updated in place. index, int64, is
    incremented, then selects row index % n of uniforms (without counts: row 0). lengths grows by
    active; both are as in `linear_token`. stop: an id that ends the row that draws it: active
    becomes 0, and the row draws the id again from then on. stop needs counts.
    """
    (B, V), rounds = logits.shape, len(uniforms)
    place, lengths, active = counts or (ids, ids, ids)  # without counts, the kernel reads none
    block = next_power_of_2(V) if V <= _WHOLE else _PART
    with torch.cuda.device_of(logits):
        draw_kernel[(B,)](
            logits, uniforms if temperature is None else temperature, uniforms, ids,
            place, lengths, active, B, rounds, -1 if stop is None else stop,
            V=V, GREEDY=temperature is None, COUNTS=counts is not None, STOPS=stop is not None,
            BLOCK=block, num_warps=_WARPS, **options(chained),
        )  # fmt: skip
