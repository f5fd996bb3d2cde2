"""The forward pass of FlashRelation: the Exchange scan (Appendix A.3), Self, the gate and Y.

Rows i and history j count from zero; the paper's one-based row is i + 1. Every program owns a block
of rows of one head. Exponents are base 2: `e2` is E log2(e).
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from relation.kernels.checks import layout
from relation.kernels.common import offset_of_head, rows_layout, tokens_layout
from relation.kernels.flash_relation.descriptors import (
    ALIGNMENT,
    aligned,
    describe,
    empty_aligned,
    fits,
    scales_exactly,
)
from relation.kernels.flash_relation.hopper import chosen
from relation.kernels.flash_relation.launches import (
    GluonLaunch,
    Launch,
    Launches,
    constants_of,
    grid,
    select_launches,
    split_width,
)
from relation.kernels.flash_relation.tiles import (
    document_starts,
    half_tanh,
    load_tile,
    program_head,
    read_tile,
    store_tile,
)
from relation.kernels.plans import Configuration, Launcher, plan_of

LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2))
# SiLU is nowhere below -0.2785, so the running maximum may start here and stay finite.
SILU_FLOOR = tl.constexpr(-0.28 * math.log2(math.e))
# Without a running maximum, sums of exp(E) are right while they stay below 2^64: they and their
# products with information below 2^60 then lie far inside FP32. Above, `repair_kernel` takes over.
LARGEST_LOG_NORM = tl.constexpr(64.0)
REPAIRED_ROWS = 1024


@triton.jit
def _history_tile(
    p1_i, p1_i_rest, p2, info, p2_tiles, info_tiles, p2_rests, info_rests, b, h, lam,
    start_i, i_start, j_start, T,
    m_i, l_i, self2_i, z_i, z_i_rest,
    stride_p2_t, stride_p2_d, stride_info_t, stride_info_d, scale, tau,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
    ONLINE: tl.constexpr, SCALED: tl.constexpr, DIAGONAL: tl.constexpr, BOUND: tl.constexpr,
):  # fmt: skip
    """Add the tile of history at j_start to the sums of the rows at i_start.

    With BOUND some of it may lie before start_i, the start of a row's document.

    l_i sums exp(E_ij) over j < i; z_i sums exp(E_ij) I_j and, from the diagonal, Self's share: in
    the softmax of row i, Self weighs exp(S_i + lam log i) where history weighs exp(E_ij).
    """
    # Only the diagonal reaches past the last row.
    p2_j = read_tile(
        p2_tiles, b, h, p2, j_start, T, stride_p2_t, stride_p2_d, D, 0, BLOCK_J, WIDE,
        WHOLE or not DIAGONAL,
    )  # fmt: skip
    info_j = read_tile(
        info_tiles, b, h, info, j_start, T, stride_info_t, stride_info_d, D, 0, BLOCK_J, WIDE,
        WHOLE or not DIAGONAL,
    )  # fmt: skip
    u = tl.dot(p1_i, tl.trans(p2_j), input_precision="ieee")
    if REST > 0:
        p2_j_rest = read_tile(
            p2_rests, b, h, p2, j_start, T, stride_p2_t, stride_p2_d, D, WIDE, BLOCK_J, REST,
            WHOLE or not DIAGONAL,
        )  # fmt: skip
        info_j_rest = read_tile(
            info_rests, b, h, info, j_start, T, stride_info_t, stride_info_d, D, WIDE, BLOCK_J,
            REST, WHOLE or not DIAGONAL,
        )  # fmt: skip
        u = tl.dot(p1_i_rest, tl.trans(p2_j_rest), u, input_precision="ieee")
    if SCALED:
        e2 = u * (half_tanh(u, FAST) * LOG2_E + LOG2_E)
    else:
        h2 = u * (0.5 * LOG2_E * scale)
        e2 = h2 * half_tanh(u * (0.5 * scale), FAST) + h2

    if DIAGONAL:
        i = i_start + tl.arange(0, BLOCK_I)
        j = j_start + tl.arange(0, BLOCK_J)
        own = j[None, :] == i[:, None]
        s = tl.sigmoid(tl.sum(tl.where(own, u, 0.0), 1) * (2.0 / tau if SCALED else scale / tau))
        place = i - start_i
        self2 = s * LOG2_E + tl.load(lam) * tl.log2((place + 1).to(tl.float32))
        # Without history only Self is left: any weight will do, and 1 divides away exactly.
        self2 = tl.where(place == 0, 0.0, self2)
        self2_i = tl.where((i >= j_start) & (i < j_start + BLOCK_J), self2, self2_i)
        e2 = tl.where(j[None, :] < i[:, None], e2, float("-inf"))
        if BOUND:
            e2 = tl.where(j[None, :] >= start_i[:, None], e2, float("-inf"))
        e2 = tl.where(own, self2[:, None], e2)
    elif BOUND:
        j = j_start + tl.arange(0, BLOCK_J)
        e2 = tl.where(j[None, :] >= start_i[:, None], e2, float("-inf"))
    if ONLINE:
        m_new = tl.maximum(m_i, tl.max(e2, 1))
        weight = tl.exp2(e2 - m_new[:, None])
        kept = tl.exp2(m_i - m_new)
        l_i = l_i * kept
        z_i = z_i * kept[:, None]
        if REST > 0:
            z_i_rest = z_i_rest * kept[:, None]
        m_i = m_new
    else:
        weight = tl.exp2(e2)
    if DIAGONAL:
        of_history = tl.where(own, 0.0, weight)
        l_i += tl.sum(of_history, 1)
        if not TRANSPORT_SELF:
            weight = of_history
    else:
        l_i += tl.sum(weight, 1)
    weight = weight.to(info_j.dtype)
    z_i = tl.dot(weight, info_j, z_i, input_precision="ieee")
    if REST > 0:
        z_i_rest = tl.dot(weight, info_j_rest, z_i_rest, input_precision="ieee")
    return m_i, l_i, self2_i, z_i, z_i_rest


@triton.jit
def _forward_rows(
    p1, p2, info, p1_tiles, p2_tiles, info_tiles, p2_rests, info_rests, b, h,
    lam, starts, y, gate_logit, log_norm, i_start,
    stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d, stride_info_t, stride_info_d,
    stride_y_t, stride_y_d, T, scale, tau,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
    ONLINE: tl.constexpr, SCALED: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    p1_i = read_tile(
        p1_tiles, b, h, p1, i_start, T, stride_p1_t, stride_p1_d, D, 0, BLOCK_I, WIDE, WHOLE
    )
    if SCALED:
        # Once, and exactly. What is computed on a tile from a descriptor also stays in registers.
        p1_i = (p1_i * (0.5 * scale)).to(p1_i.dtype)
    p1_i_rest, z_i_rest = p1_i, 0.0
    if REST > 0:
        p1_i_rest = load_tile(
            p1, i_start, T, stride_p1_t, stride_p1_d, D, WIDE, BLOCK_I, REST, WHOLE
        )
        z_i_rest = tl.zeros([BLOCK_I, REST], tl.float32)
    z_i = tl.zeros([BLOCK_I, WIDE], tl.float32)
    l_i = tl.zeros([BLOCK_I], tl.float32)
    self2_i = tl.zeros([BLOCK_I], tl.float32)
    m_i = tl.full([BLOCK_I], SILU_FLOOR if ONLINE else 0.0, tl.float32)
    DOCUMENTS: tl.constexpr = starts is not None
    start_i, first, bound = document_starts(starts, b, i_start, T, BLOCK_I, BLOCK_J)

    # The diagonal first and in a loop of its own: ptxas then keeps the matrix products of both
    # loops asynchronous, and the second loop needs no mask.
    for step in tl.range(0, tl.minimum(BLOCK_I, T - i_start), BLOCK_J, num_stages=1):
        m_i, l_i, self2_i, z_i, z_i_rest = _history_tile(
            p1_i, p1_i_rest, p2, info, p2_tiles, info_tiles, p2_rests, info_rests, b, h // GROUP,
            lam, start_i, i_start, i_start + step, T,
            m_i, l_i, self2_i, z_i, z_i_rest,
            stride_p2_t, stride_p2_d, stride_info_t, stride_info_d, scale, tau,
            TRANSPORT_SELF, D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, ONLINE, SCALED, True,
            DOCUMENTS,
        )  # fmt: skip
    if DOCUMENTS:
        for j_start in tl.range(first, bound, BLOCK_J, num_stages=1):
            m_i, l_i, self2_i, z_i, z_i_rest = _history_tile(
                p1_i, p1_i_rest, p2, info, p2_tiles, info_tiles, p2_rests, info_rests, b,
                h // GROUP, lam, start_i, i_start, j_start, T,
                m_i, l_i, self2_i, z_i, z_i_rest,
                stride_p2_t, stride_p2_d, stride_info_t, stride_info_d, scale, tau,
                TRANSPORT_SELF, D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, ONLINE, SCALED,
                False, True,
            )  # fmt: skip
    for j_start in range(bound, i_start, BLOCK_J):
        m_i, l_i, self2_i, z_i, z_i_rest = _history_tile(
            p1_i, p1_i_rest, p2, info, p2_tiles, info_tiles, p2_rests, info_rests, b, h // GROUP,
            lam, start_i, i_start, j_start, T,
            m_i, l_i, self2_i, z_i, z_i_rest,
            stride_p2_t, stride_p2_d, stride_info_t, stride_info_d, scale, tau,
            TRANSPORT_SELF, D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, ONLINE, SCALED, False,
            False,
        )  # fmt: skip

    l_all = l_i + tl.exp2(self2_i - m_i)
    share = 1.0 / l_all
    store_tile(y, z_i * share[:, None], i_start, T, stride_y_t, stride_y_d, D, 0, BLOCK_I, WIDE)
    if REST > 0:
        z_i_rest *= share[:, None]
        store_tile(y, z_i_rest, i_start, T, stride_y_t, stride_y_d, D, WIDE, BLOCK_I, REST)
    i = i_start + tl.arange(0, BLOCK_I)
    tl.store(gate_logit + i, (tl.log2(l_i) + m_i - self2_i) * LN_2, mask=i < T)
    tl.store(log_norm + i, tl.log2(l_all) + m_i, mask=i < T)


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    p1, p2, info, p1_tiles, p2_tiles, info_tiles, p2_rests, info_rests,
    lam, starts, y, gate_logit, log_norm,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    H, T, scale, tau,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
    ONLINE: tl.constexpr, SCALED: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # torch.compile passes Python numbers in FP64, which would widen everything they touch.
    scale, tau = tl.cast(scale, tl.float32), tl.cast(tau, tl.float32)
    # The last rows have the longest history, so they start first.
    i_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_I
    head = program_head()
    rows = tl.cast(head, tl.int64) * T
    _forward_rows(
        p1 + offset_of_head(head, H, stride_p1_b, stride_p1_h),
        p2 + offset_of_head(head // GROUP, H // GROUP, stride_p2_b, stride_p2_h),
        info + offset_of_head(head // GROUP, H // GROUP, stride_info_b, stride_info_h),
        p1_tiles, p2_tiles, info_tiles, p2_rests, info_rests, head // H, head % H, lam,
        starts, y + offset_of_head(head, H, stride_y_b, stride_y_h),
        gate_logit + rows, log_norm + rows, i_start,
        stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d, stride_info_t, stride_info_d,
        stride_y_t, stride_y_d, T, scale, tau,
        TRANSPORT_SELF, D, WIDE, REST, BLOCK_I, BLOCK_J, WHOLE, FAST, ONLINE, SCALED, GROUP,
    )  # fmt: skip


@triton.jit
def _left_the_range(log_norm, start, T, ROWS: tl.constexpr):
    i = start + tl.arange(0, ROWS)
    log_norms = tl.load(log_norm + i, mask=i < T, other=0.0)
    # A NaN, of infinite sums, fails the comparison.
    return tl.sum(tl.where(log_norms < LARGEST_LOG_NORM, 0, 1), 0) > 0


@triton.jit(do_not_specialize=["T"])
def repair_kernel(
    p1, p2, info, lam, starts, y, gate_logit, log_norm,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    H, T, scale, tau,
    TRANSPORT_SELF: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, FAST: tl.constexpr, ROWS: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Compute again, with a running maximum, the rows whose sums left the safe range.

    A program looks at ROWS numbers and, as a rule, ends.
    """
    scale, tau = tl.cast(scale, tl.float32), tl.cast(tau, tl.float32)
    first = tl.program_id(1) * ROWS
    head = program_head()
    rows = tl.cast(head, tl.int64) * T
    if _left_the_range(log_norm + rows, first, T, ROWS):
        for i_start in range(first, tl.minimum(first + ROWS, T), BLOCK_I):
            if _left_the_range(log_norm + rows, i_start, T, BLOCK_I):
                _forward_rows(
                    p1 + offset_of_head(head, H, stride_p1_b, stride_p1_h),
                    p2 + offset_of_head(head // GROUP, H // GROUP, stride_p2_b, stride_p2_h),
                    info
                    + offset_of_head(head // GROUP, H // GROUP, stride_info_b, stride_info_h),
                    None, None, None, None, None, head // H, head % H, lam,
                    starts, y + offset_of_head(head, H, stride_y_b, stride_y_h),
                    gate_logit + rows, log_norm + rows, i_start,
                    stride_p1_t, stride_p1_d, stride_p2_t, stride_p2_d,
                    stride_info_t, stride_info_d, stride_y_t, stride_y_d, T, scale, tau,
                    TRANSPORT_SELF, D, WIDE, REST, BLOCK_I, BLOCK_J, False, FAST, True, False,
                    GROUP,
                )  # fmt: skip


def keeps_maximum(dtype: torch.dtype) -> bool:
    """Whether the scan subtracts a running maximum: FP16 ends at 65504, and FP32 is in no hurry."""
    return dtype != torch.bfloat16


def launch_forward(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    lam: torch.Tensor,
    tau: float,
    transport_self: bool,
    launches: Launches | None = None,
    *,
    starts: torch.Tensor | None = None,
    facts: tuple | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the forward pass, with the device's launches where none are given.

    starts: (B, T) int32, contiguous, where each token's document begins in its row. facts: tau and
    the layouts of p1, p2, info and lam, where they are known.

    Returns Y (B, H, T, D) in info's dtype, and two FP32 (B, H, T): the gate's logit A - S, and the
    number n_i of which F_ij = 2^(E_ij log2(e) - n_i) for j < i.
    """
    launches = launches or select_launches(p1.device, p1.element_size(), p1.shape[3])
    facts = facts or (tau, *map(layout, (p1, p2, info, lam)))
    plan = plan_of(launch_forward, launches, transport_self, facts, layout(starts))
    recipe = plan.recipe or plan.keep(_Recipe.of(launches, p1, p2, info, starts is not None))
    if not recipe.fit:
        p1, p2, info = map(aligned, (p1, p2, info))
    y = info.new_empty_strided(*recipe.tokens)
    gate_logit = y.new_empty_strided(*recipe.rows, dtype=torch.float32)
    log_norm = y.new_empty_strided(*recipe.rows, dtype=torch.float32)
    # Cleared on the stream and in a CUDA graph with it, so that no launch shares its counter.
    counter = y.new_zeros(1, dtype=torch.int32) if recipe.gluon else None
    place = y if recipe.stored else empty_aligned(y)

    def launch(launcher: Launcher, p1, p2, info, counter, *results) -> None:
        given = (p1, p2, info), results, tau, transport_self, launches
        if recipe.gluon:
            from relation.kernels.flash_relation import hopper_launch

            lam, _, *outputs = results
            given_gluon = counter, p1, p2, info, lam, *outputs, tau, transport_self
            hopper_launch.launch_forward(launcher, recipe.gluon, *given_gluon)
        else:
            _launch_rows(launcher, *given)
        if not keeps_maximum(p1.dtype):
            _launch_repair(launcher, *given)

    with torch.cuda.device_of(p1):
        plan.run((p1, p2, info, counter, lam, starts, place, gate_logit, log_norm), launch)
    if not recipe.stored:
        y.copy_(place)
    return y, gate_logit, log_norm


class _Recipe(NamedTuple):
    """What the layout decides of a call.

    fit: whether tiles can come from p1, p2 and info as they are, and `stored` go to y; tokens and
    rows: shape and strides of y and of numbers a row; gluon: how the scan runs in Gluon, where it
    does.
    """

    fit: bool
    stored: bool
    tokens: tuple
    rows: tuple
    gluon: GluonLaunch | None

    @classmethod
    def of(
        cls,
        launches: Launches,
        p1: torch.Tensor,
        p2: torch.Tensor,
        info: torch.Tensor,
        documents: bool,
    ) -> "_Recipe":
        fit = not launches.descriptors or all(map(fits, (p1, p2, info)))
        gluon = chosen("forward", launches, p1.dtype, documents)
        stored = not gluon or p1.shape[3] * p1.element_size() % ALIGNMENT == 0
        return cls(fit, stored, tokens_layout(info, p1.shape[1]), rows_layout(p1), gluon)


def _configure(
    tile: Launch, padded: bool, inputs: tuple, y: torch.Tensor, tau: float, transport_self: bool,
    **own,
) -> tuple[tuple, dict]:  # fmt: skip
    """The numbers and constants that both kernels take, and their `own`."""
    (p1, p2, info), (_, H, T, D) = inputs, y.shape
    strides = (*p1.stride(), *p2.stride(), *info.stride(), *y.stride())
    constants = constants_of(tile, padded, p1, p2, transport_self)
    return (*strides, H, T, 1 / math.sqrt(D), tau), constants | own


def _launch_rows(
    launcher: Launcher, inputs: tuple, results: tuple, tau: float, transport_self: bool,
    launches: Launches,
) -> None:  # fmt: skip
    p1, p2, info = inputs
    tile, described = launches.forward, launches.descriptors
    wide, rest = split_width(p1.shape[3], described and tile.padded)
    tiles = [None] * 5
    if described:
        tiles = [
            describe(p1, tile.block_i, wide),
            *(describe(x, tile.block_j, width) for width in (wide, rest) for x in (p2, info)),
        ]

    def configure() -> Configuration:
        own = {
            "WHOLE": p1.shape[2] % tile.block_i == 0,
            "ONLINE": keeps_maximum(p1.dtype),
            "SCALED": described and scales_exactly(p1),
        }
        of_call = inputs, results[2], tau, transport_self
        return grid(p1, tile.block_i), *_configure(tile, described and tile.padded, *of_call, **own)

    launcher.launch(forward_kernel, (*inputs, *tiles, *results), configure)


def _launch_repair(
    launcher: Launcher, inputs: tuple, results: tuple, tau: float, transport_self: bool,
    launches: Launches,
) -> None:  # fmt: skip
    def configure() -> Configuration:
        B, H, T, _ = inputs[0].shape
        blocks = triton.cdiv(T, REPAIRED_ROWS)
        of_call = inputs, results[2], tau, transport_self
        return (B * H, blocks), *_configure(launches.repair, False, *of_call, ROWS=REPAIRED_ROWS)

    launcher.launch(repair_kernel, (*inputs, *results), configure)
