"""What every pass takes of a chunk: Self and the norms, sums of retention, and its kind."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from relation.kernels.linear_relation.decays import (
    LARGEST_EXPONENT,
    LARGEST_OF_16_BITS,
    STRONGEST,
    STRONGEST_OF_MIXED,
    load_retention,
    self_and_norms,
    sum_halves,
    sum_steps,
)
from relation.kernels.linear_relation.launches import Launches, Segments
from relation.kernels.linear_relation.tiles import (
    IS_MIXED,
    IS_WEAK,
    own_offset,
    shared_offset,
    store_row,
    store_tokens,
)
from relation.kernels.plans import Configuration, Launcher


class Prepared(NamedTuple):
    """Flat memory. selves: (B, H, 3, T), FP32: S and what normalises p1 and p2 (`load_selves`).

    kinds: (B, H, chunks), uint8: IS_WEAK where both halves of a chunk retain at least exp(-60) of
    every channel, exp(-40) of inputs in FP32; IS_MIXED of the full ones of the others of which
    some channel's mean step is no stronger than a full weak chunk allows. A weak chunk that T cuts
    short has such a channel, too, and two tokens. exponents: (B, H, T, D), FP32: of a weak chunk
    with the middle m, G(m, t) right of it and -G(t, m) left of it; of a mixed one G(0, t); of
    another, what its state takes: G(t, n) forward, which the pass that forms its y replaces by
    G(0, t) for the backward pass. halves: (B, H, chunks, 2, D), FP32: the sums of g over the
    halves, of a mixed chunk 0 and the sum over it.
    """

    selves: torch.Tensor
    kinds: torch.Tensor
    exponents: torch.Tensor
    halves: torch.Tensor


@triton.jit(do_not_specialize=["T", "chunks"])
def prepare_kernel(
    p1, p2, log_retention, selves, kinds, exponents, halves,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_g_b, stride_g_h, stride_g_t, stride_g_d,
    H, T, scale, chunks,
    PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, CHUNK: tl.constexpr,
    WHOLE: tl.constexpr, GROUP: tl.constexpr, ALIGNED: tl.constexpr, MIXED: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    chunk = tl.program_id(1)
    t_start = chunk * CHUNK
    p1 += own_offset(H, stride_p1_b, stride_p1_h, ALIGNED)
    p2 += shared_offset(H, GROUP, stride_p2_b, stride_p2_h, ALIGNED)
    log_retention += own_offset(H, stride_g_b, stride_g_h, ALIGNED)

    S, inverse_norm1, inverse_norm2 = self_and_norms(
        p1, p2, t_start, T, stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d,
        scale, D, CHUNK, BLOCK_D, WHOLE,
    )  # fmt: skip
    store_row(selves, S, 3 * head, t_start, T, CHUNK)
    store_row(selves, inverse_norm1, 3 * head + 1, t_start, T, CHUNK)
    store_row(selves, inverse_norm2, 3 * head + 2, t_start, T, CHUNK)
    here = head * chunks + chunk
    strongest = 0.0
    for d_start in tl.static_range(0, D, BLOCK_D):
        g = load_retention(
            log_retention, t_start, T, stride_g_t, d_start, stride_g_d, D, CHUNK, BLOCK_D, WHOLE
        )
        left, right = sum_halves(g, CHUNK)
        d = d_start + tl.arange(0, BLOCK_D)
        tl.store(halves + here * 2 * D + d, left, mask=d < D)
        tl.store(halves + here * 2 * D + D + d, right, mask=d < D)
        strongest = tl.minimum(strongest, tl.min(tl.minimum(left, right), 0))
    largest = LARGEST_EXPONENT if p1.dtype.element_ty == tl.float32 else LARGEST_OF_16_BITS
    kind = tl.where(strongest >= -largest, IS_WEAK, 0)
    tokens = tl.minimum(T - t_start, CHUNK)
    if (kind == 0) & (tokens == CHUNK) & MIXED | (kind == IS_WEAK) & (tokens < CHUNK):
        # dg is formed from terms of order one, which cancel to the size of exp(g). In a full chunk
        # with weak halves every channel's mean step is at least -largest / (CHUNK / 2). In another
        # all may be stronger, and dg smaller than the rounding of its terms. One token without a
        # state has dg = 0, which these terms only round to.
        weakest = float("-inf")
        for d_start in tl.static_range(0, D, BLOCK_D):
            g = load_retention(
                log_retention, t_start, T, stride_g_t, d_start, stride_g_d, D, CHUNK, BLOCK_D, WHOLE
            )
            d = d_start + tl.arange(0, BLOCK_D)
            weakest = tl.maximum(weakest, tl.max(tl.where(d < D, tl.sum(g, 0), float("-inf")), 0))
        sums_well = (weakest * (CHUNK // 2) >= -largest * tokens) & (tokens > 1)
        kind = tl.where(sums_well, tl.where(kind == 0, IS_MIXED, kind), 0)
    tl.store(kinds + here, kind.to(tl.uint8))
    # Of a weak chunk 1 after the middle up to t and -1 after t up to the middle; of a mixed one 1
    # up to t, as if its middle were its start; of the others 1 after t.
    t = tl.arange(0, CHUNK)
    right = (t >= tl.where(kind == IS_MIXED, 0, CHUNK // 2)).to(tl.float32)
    up_to, after = tl.where(kind > 0, right, 0.0), tl.where(kind > 0, right - 1, 1.0)
    steps = tl.where(t[None, :] <= t[:, None], up_to[None, :], after[None, :])
    for d_start in tl.static_range(0, D, BLOCK_D):
        if D > BLOCK_D:
            g = load_retention(
                log_retention, t_start, T, stride_g_t, d_start, stride_g_d, D, CHUNK, BLOCK_D, WHOLE
            )
        if MIXED:
            floor = tl.where(kind == IS_MIXED, STRONGEST_OF_MIXED, STRONGEST)
            g = tl.where(g < floor, floor, g)
        exponent = sum_steps(steps, g, PRECISION)
        if MIXED and kind == IS_MIXED:
            # What the exponents end with, so that its rounding cancels.
            whole = tl.sum(tl.where((t == CHUNK - 1)[:, None], exponent, 0.0), 0)
            d = d_start + tl.arange(0, BLOCK_D)
            tl.debug_barrier()
            tl.store(halves + here * 2 * D + d, tl.zeros_like(whole), mask=d < D)
            tl.store(halves + here * 2 * D + D + d, whole, mask=d < D)
        store_tokens(
            exponents + head * T * D, exponent, t_start, T, D, d_start, 1, D, CHUNK, BLOCK_D, WHOLE
        )


def prepared_sizes(heads: int, T: int, D: int, segments: Segments) -> tuple[int, ...]:
    """Numbers of `Prepared`, in FP32; four flags of weak chunks take as much as one."""
    rows, chunks = heads * T, heads * segments.chunks
    return 3 * rows, (chunks + 3) // 4, rows * D, 2 * chunks * D


def launch_prepare(
    launcher: Launcher,
    p1: torch.Tensor,
    p2: torch.Tensor,
    log_retention: torch.Tensor,
    prepared: Prepared,
    scale: float,
    launches: Launches,
    segments: Segments,
) -> None:
    """Read p1, p2 and g once, and fill `prepared`."""
    B, H, T, D = p1.shape

    def configure() -> Configuration:
        strides = (*p1.stride(), *p2.stride(), *log_retention.stride())
        own = {"WHOLE": segments.whole, "MIXED": launches.mixed_output is not None}
        own |= launches.prepare.options(D)
        del own["BLOCK_V"]
        numbers = (*strides, H, T, scale, segments.chunks)
        own |= launches.constants(D, H // p2.shape[1], p1, p2, log_retention)
        return (B * H, segments.chunks), numbers, own

    launcher.launch(prepare_kernel, (p1, p2, log_retention, *prepared), configure)
