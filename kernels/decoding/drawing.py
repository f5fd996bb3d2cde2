"""The next token of each row, drawn from its logits, and what a row counts with it.

A program takes one row, in FP64 as the definition does. It cuts the cumulative distribution, times
its sum, where the uniform number says: nothing is divided.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from relation.kernels.common import next_power_of_2
from relation.kernels.decoding.chain import options, wait_for_chain

# Logits that a program takes at once: if these are all, and else.
_WHOLE, _PART, _WARPS = 4096, 2048, 8


@triton.jit
def _weights(row, v, top, warmth, V: tl.constexpr):
    """exp((x - top) / temperature) of the logits v, 0 past the last."""
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
        # The sum, added in another order, may lie a last digit above the cumulative distribution.
        drawn = tl.minimum(tl.sum(below, 0), tl.max(last, 0))
    drawn = tl.where(tl.sum(broken, 0) > 0, -1, drawn)
    if COUNTS:
        # Every warp has read what one of them now writes.
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
    """Draw a token of each row of logits (B, V) FP32 into ids (B,) int64.

    -1 where logits are not finite. temperature: (1,) FP64, None for the likeliest token, of equal
    ones the first. uniforms: (n, B) FP64 in [0, 1), where the cumulative distribution is cut;
    their first row is taken. counts: what a token moves on, in place: the drawings so far (B,)
    int64, whose next is that row of uniforms modulo n; `lengths` and `active`, as in
    `linear_token`, the former by the latter. stop: an id; a row that draws it ends, and one that
    has ended draws it again. All contiguous.
    """
    (B, V), rounds = logits.shape, len(uniforms)
    place, lengths, active = (ids, ids, ids) if counts is None else counts
    block = next_power_of_2(V) if V <= _WHOLE else _PART
    with torch.cuda.device_of(logits):
        draw_kernel[(B,)](
            logits, uniforms if temperature is None else temperature, uniforms, ids,
            place, lengths, active, B, rounds, -1 if stop is None else stop,
            V=V, GREEDY=temperature is None, COUNTS=counts is not None, STOPS=stop is not None,
            BLOCK=block, num_warps=_WARPS, **options(chained),
        )  # fmt: skip
