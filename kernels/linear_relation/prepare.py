"""What every pass takes of a chunk: Self and the norms, and whether its retention is weak."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from relation.kernels.common import Part, head_offset, padded_width
from relation.kernels.linear_relation.decays import (
    LARGEST_EXPONENT,
    LARGEST_OF_16_BITS,
    load_retention,
    self_and_norms_of,
    steps_to_middle,
    sum_halves,
    sum_steps,
)
from relation.kernels.linear_relation.launches import Launches, Segments
from relation.kernels.linear_relation.tiles import (
    load_tokens,
    shared_offset,
    store_row,
    store_tokens,
)
from relation.kernels.plans import Configuration, Launcher


class Prepared(NamedTuple):
    """Flat memory. selves: (3, B, H, T), FP32: S and what normalises p1 and p2 (`load_selves`).

    weak: (B, H, chunks), uint8, whether both halves of a chunk retain at least exp(-60) of every
    channel, exp(-40) of inputs in FP32. A chunk that T cuts short also needs two tokens, and a
    channel whose mean step is no stronger than a full weak chunk allows. exponents: (B, H, T, D),
    FP32: of a weak chunk with the middle m, G(m, t) right of it and -G(t, m) left of it; of
    another, what its state takes, G(t, n) forward and G(0, t) backward. halves: (B, H, chunks, 2,
    D), FP32, the sums of g over the halves.
    """

    selves: torch.Tensor
    weak: torch.Tensor
    exponents: torch.Tensor
    halves: torch.Tensor


@triton.jit(do_not_specialize=["T", "chunks"])
def prepare_kernel(
    p1, p2, log_retention, selves, weak, exponents, halves,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_g_b, stride_g_h, stride_g_t, stride_g_d,
    H, T, scale, chunks,
    PRECISION: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    LEVELS: tl.constexpr, WHOLE: tl.constexpr, GROUP: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    head = tl.cast(tl.program_id(0), tl.int64)
    heads = tl.cast(tl.num_programs(0), tl.int64)
    chunk = tl.program_id(1)
    t_start = chunk * CHUNK
    p1 += head_offset(H, stride_p1_b, stride_p1_h)
    p2 += shared_offset(H, GROUP, stride_p2_b, stride_p2_h)
    log_retention += head_offset(H, stride_g_b, stride_g_h)

    g = load_retention(log_retention, t_start, T, stride_g_t, 0, stride_g_d, D, CHUNK, WIDTH, WHOLE)
    p1_t = load_tokens(p1, t_start, T, stride_p1_t, 0, stride_p1_d, D, CHUNK, WIDTH, WHOLE)
    p2_t = load_tokens(p2, t_start, T, stride_p2_t, 0, stride_p2_d, D, CHUNK, WIDTH, WHOLE)
    S, inverse_norm1, inverse_norm2 = self_and_norms_of(
        p1_t.to(tl.float32), p2_t.to(tl.float32), scale
    )
    store_row(selves, S, head, t_start, T, CHUNK)
    store_row(selves, inverse_norm1, heads + head, t_start, T, CHUNK)
    store_row(selves, inverse_norm2, 2 * heads + head, t_start, T, CHUNK)
    left, right = sum_halves(g, CHUNK)
    d = tl.arange(0, WIDTH)
    here = head * chunks + chunk
    tl.store(halves + here * 2 * D + d, left, mask=d < D)
    tl.store(halves + here * 2 * D + D + d, right, mask=d < D)
    largest = LARGEST_EXPONENT if p1.dtype.element_ty == tl.float32 else LARGEST_OF_16_BITS
    is_weak = tl.min(tl.minimum(left, right), 0) >= -largest
    if not WHOLE:
        # The weak kernels form dg from terms of order one, which cancel to the size of exp(g). In a
        # full chunk with such halves every channel's mean step is at least -largest / (CHUNK / 2).
        # In a short one all may be stronger, and dg smaller than the rounding of its terms. One
        # token without a state has dg = 0, which these terms only round to.
        tokens = tl.minimum(T - t_start, CHUNK)
        weakest = tl.max(tl.where(d < D, left + right, float("-inf")), 0)
        is_weak &= (weakest * (CHUNK // 2) >= -largest * tokens) & (tokens > 1)
    tl.store(weak + here, is_weak.to(tl.uint8))
    t = tl.arange(0, CHUNK)
    t_rows, t_columns = t[:, None], t[None, :]
    if is_weak:
        sign = tl.where(t >= CHUNK // 2, 1.0, -1.0)[:, None]
        steps = sign * steps_to_middle(t_rows, t_columns, LEVELS - 1).to(tl.float32)
    elif BACKWARD:
        steps = (t_columns <= t_rows).to(tl.float32)
    else:
        steps = (t_columns > t_rows).to(tl.float32)
    exponent = sum_steps(steps, g, PRECISION)
    store_tokens(exponents + head * T * D, exponent, t_start, T, D, 0, 1, D, CHUNK, WIDTH, WHOLE)


def prepared_sizes(heads: int, T: int, D: int, segments: Segments) -> list[Part]:
    """Numbers and dtypes of `Prepared`."""
    rows, chunks = heads * T, heads * segments.chunks
    return [
        (3 * rows, torch.float32),
        (chunks, torch.uint8),
        (rows * D, torch.float32),
        (2 * chunks * D, torch.float32),
    ]


def launch_prepare(
    launcher: Launcher,
    p1: torch.Tensor,
    p2: torch.Tensor,
    log_retention: torch.Tensor,
    prepared: Prepared,
    scale: float,
    launches: Launches,
    segments: Segments,
    *,
    backward: bool,
) -> None:
    """Read p1, p2 and g once, and fill `prepared`."""
    B, H, T, D = p1.shape

    def configure() -> Configuration:
        strides = (*p1.stride(), *p2.stride(), *log_retention.stride())
        own = {
            "WIDTH": padded_width(D),
            "WHOLE": segments.whole,
            "BACKWARD": backward,
            "num_warps": launches.prepare_warps,
        }
        numbers = (*strides, H, T, scale, segments.chunks)
        constants = launches.constants(D, H // p2.shape[1])
        return (B * H, segments.chunks), numbers, constants | own

    launcher.launch(prepare_kernel, (p1, p2, log_retention, *prepared), configure)
