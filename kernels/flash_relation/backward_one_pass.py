"""The backward pass with five products: every score is formed once.

A program owns a block of history of one head and scans the rows that read it (Appendix A.1.7). It
sums the gradients of p2 and information. What it adds to the rows' gradient of p1 is added to
integers in memory: their sums have no order, so that equal inputs give bitwise equal gradients
without one program waiting for another.

The unit of a row's integers comes from a bound on the sum, so that none overflows. With G = dL/dY
and maxima over the head,

    |sum_j dU_ij p2_jd| <= 1.1 sum_j F_ij |G_i . I_j - G_i . Y_i| max |p2|
                        <= 2.2 |G_i| max |I_j| max |p2|

and a unit is a little more than the bound over 2^30: nothing beside the rounding of 16-bit inputs.
"""

import triton
import triton.language as tl

from relation.kernels.common import offset_of_head
from relation.kernels.flash_relation.forward import LOG2_E
from relation.kernels.flash_relation.tiles import (
    half_tanh,
    load_tile,
    program_head,
    read_tile,
    store_tile,
)

# Planes of a head's row sums: log_norm, G . Y and a number of the size of 1 / |G|.
PLANES = 3
# Below these |G|, and |I| and |p2|, count as this much: the units' inverses then stay inside FP32.
_SMALLEST_DY = tl.constexpr(2.0**-50)
_SMALLEST = tl.constexpr(2.0**-15)
_UNITS = tl.constexpr(2.0**30)
_MAXIMA = tl.constexpr(256)


@triton.jit
def _larger_norm(
    norm2, head, start, T, stride_t, stride_d,
    D: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    tile = load_tile(head, start, T, stride_t, stride_d, D, FIRST, BLOCK, WIDTH, False)
    tile = tile.to(tl.float32)
    return norm2 + tl.sum(tile * tile, 1), tl.max(tl.max(tl.abs(tile), 1), 0)


@triton.jit(do_not_specialize=["T", "blocks"])
def one_pass_rows_kernel(
    p2, info, y, dy, log_norm, row_sums, maxima, dp1_sums, history_sums,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    H, T, length, blocks,
    D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr,
    PLANES: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """What the rows of a block need before the scan: their sums, maxima of history, and zeros."""
    start = tl.program_id(1) * BLOCK
    i = start + tl.arange(0, BLOCK)
    head = tl.cast(tl.program_id(0), tl.int64)
    p2 += offset_of_head(head, H, stride_p2_b, stride_p2_h)
    info += offset_of_head(head, H, stride_info_b, stride_info_h)
    y += offset_of_head(head, H, stride_y_b, stride_y_h)
    dy += offset_of_head(head, H, stride_dy_b, stride_dy_h)

    zero = tl.zeros([BLOCK], tl.float32)
    mean_h = zero
    norm_dy, _ = _larger_norm(zero, dy, start, T, stride_dy_t, stride_dy_d, D, 0, BLOCK, WIDE)
    norm_info, _ = _larger_norm(
        zero, info, start, T, stride_info_t, stride_info_d, D, 0, BLOCK, WIDE
    )
    _, most_p2 = _larger_norm(zero, p2, start, T, stride_p2_t, stride_p2_d, D, 0, BLOCK, WIDE)
    dy_i = load_tile(dy, start, T, stride_dy_t, stride_dy_d, D, 0, BLOCK, WIDE, False)
    y_i = load_tile(y, start, T, stride_y_t, stride_y_d, D, 0, BLOCK, WIDE, False)
    mean_h += tl.sum(dy_i.to(tl.float32) * y_i.to(tl.float32), 1)
    if REST > 0:
        norm_dy, _ = _larger_norm(
            norm_dy, dy, start, T, stride_dy_t, stride_dy_d, D, WIDE, BLOCK, REST
        )
        norm_info, _ = _larger_norm(
            norm_info, info, start, T, stride_info_t, stride_info_d, D, WIDE, BLOCK, REST
        )
        _, more_p2 = _larger_norm(
            zero, p2, start, T, stride_p2_t, stride_p2_d, D, WIDE, BLOCK, REST
        )
        most_p2 = tl.maximum(most_p2, more_p2)
        dy_i = load_tile(dy, start, T, stride_dy_t, stride_dy_d, D, WIDE, BLOCK, REST, False)
        y_i = load_tile(y, start, T, stride_y_t, stride_y_d, D, WIDE, BLOCK, REST, False)
        mean_h += tl.sum(dy_i.to(tl.float32) * y_i.to(tl.float32), 1)

    inside = i < T
    norm = tl.load(log_norm + head * T + i, mask=inside, other=0.0)
    # Integers hold no NaN: one of the forward pass reaches the gradient by way of the unit.
    inverse = 1.0 / tl.maximum(tl.sqrt(norm_dy), _SMALLEST_DY) + 0.0 * (norm + mean_h)
    rows = row_sums + head * PLANES * length + i
    tl.store(rows, norm, mask=inside)
    tl.store(rows + length, mean_h, mask=inside)
    tl.store(rows + 2 * length, inverse, mask=inside)
    at = maxima + 2 * (head * blocks + tl.program_id(1))
    tl.store(at, tl.max(tl.sqrt(norm_info), 0))
    tl.store(at + 1, most_p2)

    tl.store(history_sums + head * T + i, tl.zeros([BLOCK], tl.int32), mask=inside)
    d = tl.arange(0, WIDE)
    at = dp1_sums + head * T * STORED + i[:, None] * STORED
    blank = tl.zeros([BLOCK, WIDE], tl.int32)
    tl.store(at + d[None, :], blank, mask=inside[:, None] & (d < STORED)[None, :])
    if REST > 0:
        d = WIDE + tl.arange(0, REST)
        blank = tl.zeros([BLOCK, REST], tl.int32)
        tl.store(at + d[None, :], blank, mask=inside[:, None] & (d < STORED)[None, :])


@triton.jit
def _units(maxima, head, blocks, MAXIMA: tl.constexpr):
    """Units of a head's sums over history, of F H and of dU p2, for rows of |G| = 1."""
    n = tl.arange(0, MAXIMA)
    most_info = tl.zeros([MAXIMA], tl.float32) + _SMALLEST
    most_p2 = most_info
    for start in range(0, blocks, MAXIMA):
        at = maxima + 2 * (tl.cast(head, tl.int64) * blocks + start + n)
        inside = start + n < blocks
        most_info = tl.maximum(most_info, tl.load(at, mask=inside, other=0.0))
        most_p2 = tl.maximum(most_p2, tl.load(at + 1, mask=inside, other=0.0))
    of_h = _UNITS / (1.25 * tl.max(most_info, 0))
    # Twice dU / scale is summed.
    return of_h, of_h / (4.0 * tl.max(most_p2, 0))


@triton.jit
def _one_pass_tile(
    p2_j, p2_j_rest, info_j, info_j_rest, p1, dy, p1_tiles, dy_tiles, p1_rests, dy_rests, row_tiles,
    dp1_tiles, dp1_rests, row_sums, dp1_sums, history_sums, unit_h, unit_dp1,
    head, b, h, i_start, j_start, T, dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest,
    stride_p1_t, stride_p1_d, stride_dy_t, stride_dy_d, scale,
    D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, FAST: tl.constexpr, SCALED: tl.constexpr,
    PLANES: tl.constexpr, STORED: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Add what the rows at i_start and the history at j_start give to each other's gradients.

    The gradients of history are summed transposed, (WIDE, BLOCK_J): then no product's result is
    transposed into another, which some Triton versions miscompile for Hopper, and F and dU are
    stored for wgmma once, as they are.
    """
    p1_i = read_tile(
        p1_tiles, b, h, p1, i_start, T, stride_p1_t, stride_p1_d, D, 0, BLOCK_I, WIDE, False
    )
    dy_i = read_tile(
        dy_tiles, b, h, dy, i_start, T, stride_dy_t, stride_dy_d, D, 0, BLOCK_I, WIDE, False
    )
    norm_i = tl.reshape(row_tiles.load([PLANES * head, i_start]), [BLOCK_I])
    mean_h_i = tl.reshape(row_tiles.load([PLANES * head + 1, i_start]), [BLOCK_I])
    # From memory, ahead of its use: Triton prefetches what products read, and this they do not.
    i = i_start + tl.arange(0, BLOCK_I)
    at = (tl.cast(head, tl.int64) * PLANES + 2) * (tl.cdiv(T, 4) * 4) + i
    inverse_i = tl.load(row_sums + at, mask=i < T, other=0.0)
    u = tl.dot(p1_i, tl.trans(p2_j), input_precision="ieee")
    if REST > 0:
        p1_i_rest = read_tile(
            p1_rests, b, h, p1, i_start, T, stride_p1_t, stride_p1_d, D, WIDE, BLOCK_I, REST, False
        )
        u = tl.dot(p1_i_rest, tl.trans(p2_j_rest), u, input_precision="ieee")
    hs = tl.dot(dy_i, tl.trans(info_j), input_precision="ieee")
    if REST > 0:
        dy_i_rest = read_tile(
            dy_rests, b, h, dy, i_start, T, stride_dy_t, stride_dy_d, D, WIDE, BLOCK_I, REST, False
        )
        hs = tl.dot(dy_i_rest, tl.trans(info_j_rest), hs, input_precision="ieee")
    half_u = u if SCALED else u * (0.5 * scale)
    t = half_tanh(half_u, FAST)
    e = half_u * t + half_u
    log2_f = e * LOG2_E - norm_i[:, None]
    if DIAGONAL:
        j = j_start + tl.arange(0, BLOCK_J)
        log2_f = tl.where(j[None, :] < i[:, None], log2_f, float("-inf"))
    f = tl.exp2(log2_f)
    from_history_i = tl.sum(f * hs, 1)
    de = f * (hs - mean_h_i[:, None])
    du = (de * ((e - e * t) + t) + de).to(p1_i.dtype)
    f = f.to(dy_i.dtype)
    dinfo_j = tl.dot(tl.trans(dy_i), f, dinfo_j, input_precision="ieee")
    dp2_j = tl.dot(tl.trans(p1_i), du, dp2_j, input_precision="ieee")
    if REST > 0:
        dinfo_j_rest = tl.dot(tl.trans(dy_i_rest), f, dinfo_j_rest, input_precision="ieee")
        dp2_j_rest = tl.dot(tl.trans(p1_i_rest), du, dp2_j_rest, input_precision="ieee")
    unit_i = (inverse_i * unit_dp1)[:, None]
    whole = (tl.dot(du, p2_j, input_precision="ieee") * unit_i).to(tl.int32)
    at = history_sums + tl.cast(head, tl.int64) * T + i
    history = (from_history_i * (inverse_i * unit_h)).to(tl.int32)
    tl.atomic_add(at, history, mask=i < T, sem="relaxed")
    _add_tile(dp1_tiles, dp1_sums, head, whole, i_start, T, D, STORED, 0, BLOCK_I, WIDE)
    if REST > 0:
        whole = (tl.dot(du, p2_j_rest, input_precision="ieee") * unit_i).to(tl.int32)
        _add_tile(dp1_rests, dp1_sums, head, whole, i_start, T, D, STORED, WIDE, BLOCK_I, REST)
    return dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest


@triton.jit
def _add_tile(
    tiles, sums, head, tile, start, T,
    D: tl.constexpr, STORED: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Add integers to a head's (T, STORED), by TMA unless `tiles` is None."""
    if tiles is None:
        i = start + tl.arange(0, BLOCK)
        d = FIRST + tl.arange(0, WIDTH)
        at = tl.cast(head, tl.int64) * T * STORED + i[:, None] * STORED + d[None, :]
        inside = (i < T)[:, None] & (d < D)[None, :]
        tl.atomic_add(sums + at, tile, mask=inside, sem="relaxed")
    else:
        tiles.atomic_add([head, start, FIRST], tl.reshape(tile, [1, BLOCK, WIDTH]))


@triton.jit(do_not_specialize=["T", "blocks"])
def one_pass_kernel(
    p1, p2, info, dy, p1_tiles, dy_tiles, p1_rests, dy_rests, row_tiles, dp1_tiles, dp1_rests,
    gate_logit, row_sums, maxima, dp1_sums, history_sums, dp2, dinfo,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, blocks, scale,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, FAST: tl.constexpr, SCALED: tl.constexpr,
    PLANES: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    scale = tl.cast(scale, tl.float32)
    # The first of history is read by the most rows: program 0 starts first.
    j_start = tl.program_id(1) * BLOCK_J
    j = j_start + tl.arange(0, BLOCK_J)
    head = program_head()
    b, h = head // H, head % H
    rows = tl.cast(head, tl.int64) * T
    p1 += offset_of_head(head, H, stride_p1_b, stride_p1_h)
    p2 += offset_of_head(head, H, stride_p2_b, stride_p2_h)
    info += offset_of_head(head, H, stride_info_b, stride_info_h)
    dy += offset_of_head(head, H, stride_dy_b, stride_dy_h)
    out = offset_of_head(head, H, stride_out_b, stride_out_h)
    unit_h, unit_dp1 = _units(maxima, head, blocks, _MAXIMA)

    p2_j = load_tile(p2, j_start, T, stride_p2_t, stride_p2_d, D, 0, BLOCK_J, WIDE, False)
    info_j = load_tile(info, j_start, T, stride_info_t, stride_info_d, D, 0, BLOCK_J, WIDE, False)
    if SCALED:
        p2_j = (p2_j * (0.5 * scale)).to(p2_j.dtype)
        unit_dp1 *= 2.0 / scale
    f_self_j = tl.zeros([BLOCK_J], tl.float32)
    if TRANSPORT_SELF:
        f_self_j = tl.sigmoid(-tl.load(gate_logit + rows + j, mask=j < T, other=0.0))
    dy_j = load_tile(dy, j_start, T, stride_dy_t, stride_dy_d, D, 0, BLOCK_J, WIDE, False)
    dinfo_j = tl.trans(f_self_j[:, None] * dy_j.to(tl.float32))
    dp2_j = tl.zeros([WIDE, BLOCK_J], tl.float32)
    p2_j_rest, info_j_rest, dp2_j_rest, dinfo_j_rest = p2_j, info_j, 0.0, 0.0
    if REST > 0:
        p2_j_rest = load_tile(
            p2, j_start, T, stride_p2_t, stride_p2_d, D, WIDE, BLOCK_J, REST, False
        )
        info_j_rest = load_tile(
            info, j_start, T, stride_info_t, stride_info_d, D, WIDE, BLOCK_J, REST, False
        )
        dy_j_rest = load_tile(
            dy, j_start, T, stride_dy_t, stride_dy_d, D, WIDE, BLOCK_J, REST, False
        )
        dinfo_j_rest = tl.trans(f_self_j[:, None] * dy_j_rest.to(tl.float32))
        dp2_j_rest = tl.zeros([REST, BLOCK_J], tl.float32)

    # As in the forward pass, the diagonal first and in a loop of its own.
    past = tl.minimum(tl.cdiv(j_start + BLOCK_J, BLOCK_I) * BLOCK_I, T)
    for i_start in tl.range(j_start // BLOCK_I * BLOCK_I, past, BLOCK_I, num_stages=1):
        dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest = _one_pass_tile(
            p2_j, p2_j_rest, info_j, info_j_rest, p1, dy, p1_tiles, dy_tiles, p1_rests, dy_rests,
            row_tiles, dp1_tiles, dp1_rests, row_sums, dp1_sums, history_sums, unit_h, unit_dp1,
            head, b, h, i_start, j_start, T, dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest,
            stride_p1_t, stride_p1_d, stride_dy_t, stride_dy_d, scale,
            D, WIDE, REST, BLOCK_I, BLOCK_J, FAST, SCALED, PLANES, STORED, True,
        )  # fmt: skip
    for i_start in range(past, T, BLOCK_I):
        dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest = _one_pass_tile(
            p2_j, p2_j_rest, info_j, info_j_rest, p1, dy, p1_tiles, dy_tiles, p1_rests, dy_rests,
            row_tiles, dp1_tiles, dp1_rests, row_sums, dp1_sums, history_sums, unit_h, unit_dp1,
            head, b, h, i_start, j_start, T, dp2_j, dp2_j_rest, dinfo_j, dinfo_j_rest,
            stride_p1_t, stride_p1_d, stride_dy_t, stride_dy_d, scale,
            D, WIDE, REST, BLOCK_I, BLOCK_J, FAST, SCALED, PLANES, STORED, False,
        )  # fmt: skip

    dp2_j = tl.trans(dp2_j * (0.5 * scale))
    dinfo_j = tl.trans(dinfo_j)
    store_tile(dp2 + out, dp2_j, j_start, T, stride_out_t, stride_out_d, D, 0, BLOCK_J, WIDE)
    store_tile(dinfo + out, dinfo_j, j_start, T, stride_out_t, stride_out_d, D, 0, BLOCK_J, WIDE)
    if REST > 0:
        dp2_j_rest = tl.trans(dp2_j_rest * (0.5 * scale))
        dinfo_j_rest = tl.trans(dinfo_j_rest)
        store_tile(
            dp2 + out, dp2_j_rest, j_start, T, stride_out_t, stride_out_d, D, WIDE, BLOCK_J, REST
        )
        store_tile(
            dinfo + out, dinfo_j_rest, j_start, T, stride_out_t, stride_out_d,
            D, WIDE, BLOCK_J, REST,
        )  # fmt: skip


@triton.jit
def _row_dot(
    a, b, start, T, stride_a_t, stride_a_d, stride_b_t, stride_b_d,
    D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    a_i = load_tile(a, start, T, stride_a_t, stride_a_d, D, 0, BLOCK, WIDE, False)
    b_i = load_tile(b, start, T, stride_b_t, stride_b_d, D, 0, BLOCK, WIDE, False)
    total = tl.sum(a_i.to(tl.float32) * b_i.to(tl.float32), 1)
    if REST > 0:
        a_i = load_tile(a, start, T, stride_a_t, stride_a_d, D, WIDE, BLOCK, REST, False)
        b_i = load_tile(b, start, T, stride_b_t, stride_b_d, D, WIDE, BLOCK, REST, False)
        total += tl.sum(a_i.to(tl.float32) * b_i.to(tl.float32), 1)
    return total


@triton.jit
def _finish_columns(
    p1, p2, dp1_sums, dp1, dp2, du_self_i, unit_i, i_start, T,
    stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d, stride_out_t, stride_out_d, scale,
    D: tl.constexpr, STORED: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    p1_i = load_tile(p1, i_start, T, stride_p1_t, stride_p1_d, D, FIRST, BLOCK, WIDTH, False)
    p2_i = load_tile(p2, i_start, T, stride_p2_t, stride_p2_d, D, FIRST, BLOCK, WIDTH, False)
    whole = load_tile(dp1_sums, i_start, T, STORED, 1, D, FIRST, BLOCK, WIDTH, False)
    dp1_i = whole.to(tl.float32) * unit_i[:, None] * (0.5 * scale)
    dp1_i += du_self_i[:, None] * p2_i.to(tl.float32)
    store_tile(dp1, dp1_i, i_start, T, stride_out_t, stride_out_d, D, FIRST, BLOCK, WIDTH)
    dp2_i = load_tile(dp2, i_start, T, stride_out_t, stride_out_d, D, FIRST, BLOCK, WIDTH, False)
    dp2_i = dp2_i.to(tl.float32) + du_self_i[:, None] * p1_i.to(tl.float32)
    store_tile(dp2, dp2_i, i_start, T, stride_out_t, stride_out_d, D, FIRST, BLOCK, WIDTH)


@triton.jit(do_not_specialize=["T", "length", "blocks"])
def one_pass_end_kernel(
    p1, p2, info, dy, gate_logit, row_sums, maxima, dp1_sums, history_sums, dlam_partial, dp1, dp2,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_dy_b, stride_dy_h, stride_dy_t, stride_dy_d,
    stride_out_b, stride_out_h, stride_out_t, stride_out_d,
    H, T, length, blocks, scale, tau,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK: tl.constexpr, PLANES: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """What needs whole sums over history: the gate and lambda, Self, and the gradient of p1."""
    scale, tau = tl.cast(scale, tl.float32), tl.cast(tau, tl.float32)
    i_start = tl.program_id(1) * BLOCK
    i = i_start + tl.arange(0, BLOCK)
    head = tl.cast(tl.program_id(0), tl.int64)
    p1 += offset_of_head(head, H, stride_p1_b, stride_p1_h)
    p2 += offset_of_head(head, H, stride_p2_b, stride_p2_h)
    info += offset_of_head(head, H, stride_info_b, stride_info_h)
    dy += offset_of_head(head, H, stride_dy_b, stride_dy_h)
    out = offset_of_head(head, H, stride_out_b, stride_out_h)
    unit_h, unit_dp1 = _units(maxima, head, blocks, _MAXIMA)
    inside = i < T
    inverse = tl.load(row_sums + (head * PLANES + 2) * length + i, mask=inside, other=1.0)
    whole = tl.load(history_sums + head * T + i, mask=inside, other=0)

    # As in p1_kernel.
    logit = tl.load(gate_logit + head * T + i, mask=inside, other=0.0)
    da = whole.to(tl.float32) / (inverse * unit_h)
    if TRANSPORT_SELF:
        h_self = _row_dot(
            dy, info, i_start, T, stride_dy_t, stride_dy_d, stride_info_t, stride_info_d,
            D, WIDE, REST, BLOCK,
        )  # fmt: skip
        da -= tl.sigmoid(logit) * h_self
    da *= tl.sigmoid(-logit)
    u_self = _row_dot(
        p1, p2, i_start, T, stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d,
        D, WIDE, REST, BLOCK,
    )  # fmt: skip
    s = tl.sigmoid(u_self * (scale / tau))
    du_self = -da * s * (1.0 - s) * (scale / tau)
    block = head * tl.num_programs(1) + tl.program_id(1)
    dlam = tl.where(inside, -da * tl.log((i + 1).to(tl.float32)), 0.0)
    tl.store(dlam_partial + block, tl.sum(dlam, 0))

    unit = 1.0 / (inverse * unit_dp1)
    dp1_sums += head * T * STORED
    _finish_columns(
        p1, p2, dp1_sums, dp1 + out, dp2 + out, du_self, unit, i_start, T,
        stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d, stride_out_t, stride_out_d, scale,
        D, STORED, 0, BLOCK, WIDE,
    )  # fmt: skip
    if REST > 0:
        _finish_columns(
            p1, p2, dp1_sums, dp1 + out, dp2 + out, du_self, unit, i_start, T,
            stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d, stride_out_t, stride_out_d, scale,
            D, STORED, WIDE, BLOCK, REST,
        )  # fmt: skip
