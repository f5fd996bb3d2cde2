"""Chooses Gluon or Triton for each pass of FlashRelation, allocates its results and launches it.

A pass runs in Gluon if `chosen` finds a launch for it, otherwise in Triton. `op` makes PyTorch
operators of `launch_forward` and `launch_backward`.
"""

import math

import torch
from torch import Tensor

from relation.kernels.common import cdiv, empty_tokens
from relation.kernels.flash_relation import triton_backward, triton_forward, triton_tiles
from relation.kernels.flash_relation.launches import GluonLaunch, Launches, select_launches

ALIGNMENT = 16  # bytes; TMA needs it for a tensor's start and for all strides but the last
LARGE = 65_536  # rows; more than two blocks of up to 192 rows per multiprocessor


def chosen(name: str, launches: Launches, owned: Tensor, documents: bool) -> GluonLaunch | None:
    """Return the Gluon launch of a pass ("forward", "p1" or "p2_info"), or None for Triton.

    launches: the entry that `select_launches` returns. owned: the pass owns rows of this (B, H, T,
    D). Gluon's forward takes only BF16, because it keeps no running maximum.
    """
    if owned.dtype != torch.bfloat16 and (owned.dtype != torch.float16 or name == "forward"):
        return None
    large = launches.gluon_large.get(name)
    return large if large and not documents and is_large(large, owned) else launches.gluon.get(name)


def is_large(launch: GluonLaunch, owned: Tensor) -> bool:
    """Whether several groups of warps should share tiles in a pass that owns rows of `owned`."""
    B, H, T, _ = owned.shape
    return B * H * T >= LARGE and launch.shortest <= T


def launch_forward(
    p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor, tau: float, transport_self: bool,
    starts: Tensor | None = None, ends: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Run the forward pass and return (Y, gate_logit, log_norm).

    starts, ends: (B, T) int32, contiguous: where each token's document begins and ends in its row.
    Only the backward pass reads `ends`; `op` saves them for it.

    Y: (B, H, T, D) in info's dtype; only Y has a gradient. gate_logit: A - S, FP32 (B, H, T).
    log_norm: n, FP32 (B, H, T), defined by F_ij = 2^(E_ij log2(e) - n_i) for j < i.
    """
    launches = select_launches(p1.device, p1.element_size(), p1.shape[3])
    gluon = chosen("forward", launches, p1, starts is not None)
    if gluon:
        p1, p2, info = map(aligned, (p1, p2, info))
    # The Gluon kernel stores Y through TMA.
    y = empty_aligned(p1) if gluon else empty_tokens(p1, p1.shape[1])
    rows = [p1.new_empty(p1.shape[:3], dtype=torch.float32) for _ in range(2)]
    with torch.cuda.device_of(p1):
        given = p1, p2, info, lam, starts, y, *rows, tau, transport_self
        if gluon:
            from relation.kernels.flash_relation import hopper_launch

            hopper_launch.launch_forward(gluon, *given)
        else:
            triton_forward.forward(launches, *given)
        if not triton_tiles.keeps_maximum(p1.dtype):
            triton_forward.repair(launches, *given)
    return without_gaps(y), *rows


def launch_backward(
    dy: Tensor, p1: Tensor, p2: Tensor, info: Tensor, y: Tensor, gate_logit: Tensor,
    log_norm: Tensor, tau: float, transport_self: bool,
    starts: Tensor | None = None, ends: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Run the backward passes and return the gradients of p1, p2, info and lam.

    dy: the gradient of Y. The other arguments are the forward's inputs and results. The gradient
    of lam is an FP32 scalar, the others have their tensor's dtype. One program writes each
    element, without atomics and in a fixed order: equal inputs give bitwise equal gradients.
    """
    launches = select_launches(p1.device, p1.element_size(), p1.shape[3])
    p1_launch = chosen("p1", launches, p1, ends is not None)
    p2_info_launch = chosen("p2_info", launches, p2, ends is not None)
    with torch.cuda.device_of(p1):
        if not p1_launch:
            gradients = [empty_tokens(x, x.shape[1]) for x in (p1, p2, info)]
            given = p1, p2, info, y, dy, gate_logit, log_norm, starts, ends, *gradients
            return *gradients, triton_backward.backward(launches, *given, tau, transport_self)
        from relation.kernels.flash_relation import hopper_launch

        gradients = [empty_aligned(x) for x in (p1, p2, info)]
        tensors = [aligned(x) for x in (p1, p2, info, y, dy)]
        rows = aligned_rows(gate_logit), aligned_rows(log_norm)
        given = *tensors, *rows, starts, ends, *gradients, tau, transport_self
        dlam = hopper_launch.launch_backward(p1_launch, p2_info_launch, *given)
    return *map(without_gaps, gradients), dlam


def aligned(x: Tensor) -> Tensor:
    """Return x (B, H, T, D), or an aligned copy if TMA cannot describe x."""
    b, h, t, d = x.stride()
    steps_fit = min(b, h, t) > 0 and math.gcd(b, h, t) * x.element_size() % ALIGNMENT == 0
    fits = steps_fit and d == 1 and x.data_ptr() % ALIGNMENT == 0
    return x if fits else empty_aligned(x).copy_(x)


def empty_aligned(x: Tensor) -> Tensor:
    """Return an empty (B, H, T, D) tensor like x that TMA can describe.

    It is stored as (B, T, H, D), with every D numbers padded to a multiple of 16 bytes.
    """
    B, H, T, D = x.shape
    unit = ALIGNMENT // x.element_size()
    width = cdiv(D, unit) * unit
    tokens = x.new_empty((B, T, H, width)).transpose(1, 2)
    return tokens if width == D else tokens[..., :D]


def without_gaps(x: Tensor) -> Tensor:
    """Return x, made by `empty_aligned`, or a copy stored as in `empty_tokens` if x is padded."""
    if x.stride(1) == x.shape[3]:
        return x
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def aligned_rows(x: Tensor) -> Tensor:
    """Return x (B, H, T), FP32, or a copy with padded rows if TMA cannot describe x as a matrix."""
    unit = ALIGNMENT // x.element_size()
    B, H, T = x.shape
    if T % unit == 0 and x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0:
        return x
    return x.new_empty((B, H, cdiv(T, unit) * unit))[..., :T].copy_(x)
