"""Which pass of FlashRelation runs how, and the memory that it fills.

A pass runs in Gluon on Hopper where `hopper.why_triton` has no reason against it, and else in
Triton. `op` makes PyTorch operators of the two functions here.
"""

import torch
import triton
from torch import Tensor

from relation.kernels.common import empty_tokens
from relation.kernels.flash_relation import portable
from relation.kernels.flash_relation.hopper import chosen
from relation.kernels.flash_relation.launches import Launches, select_launches

ALIGNMENT = 16  # bytes, of a tensor's start and of every stride but the last


def launch_forward(
    p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor, tau: float, transport_self: bool,
    launches: Launches | None = None, *, starts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Run the forward pass, with the device's launches where none are given.

    starts: (B, T) int32, contiguous, where each token's document begins in its row.

    Returns Y (B, H, T, D) in info's dtype, and two FP32 (B, H, T): the gate's logit A - S, and the
    number n_i of which F_ij = 2^(E_ij log2(e) - n_i) for j < i.
    """
    launches = launches or select_launches(p1.device, p1.element_size(), p1.shape[3])
    gluon = chosen("forward", launches, p1.dtype)
    if launches.descriptors:
        p1, p2, info = map(aligned, (p1, p2, info))
    y = empty_tokens(info, p1.shape[1])
    # In Gluon, TMA stores Y.
    place = y if not gluon or fits(y) else empty_aligned(y)
    rows = [y.new_empty(p1.shape[:3], dtype=torch.float32) for _ in range(2)]
    with torch.cuda.device_of(p1):
        given = p1, p2, info, lam, starts, place, *rows, tau, transport_self
        if gluon:
            from relation.kernels.flash_relation import hopper_launch

            hopper_launch.launch_forward(gluon, *given)
        else:
            portable.forward(launches, *given)
        if not portable.keeps_maximum(p1.dtype):
            portable.repair(launches, *given)
    if place is not y:
        y.copy_(place)
    return y, *rows


def launch_backward(
    dy: Tensor, p1: Tensor, p2: Tensor, info: Tensor, y: Tensor, gate_logit: Tensor,
    log_norm: Tensor, tau: float, transport_self: bool, launches: Launches | None = None, *,
    starts: Tensor | None = None, ends: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Run the backward passes; p1 to transport_self are the forward's inputs and results.

    starts and ends: (B, T) int32, contiguous, where each token's document begins and ends in its
    row. Without `launches`, the device's are taken. Returns the gradients of p1, p2 and info in
    their dtype, and of lam as an FP32 scalar. One program writes an element, without atomics, so
    every sum has one order: equal inputs give bitwise equal gradients.
    """
    launches = launches or select_launches(p1.device, p1.element_size(), p1.shape[3])
    gluon = [chosen(name, launches, p1.dtype) for name in ("p1", "p2_info")]
    if launches.descriptors:
        dy, p1, p2, info = map(aligned, (dy, p1, p2, info))
    gradients = [empty_tokens(x, x.shape[1]) for x in (p1, p2, info)]
    with torch.cuda.device_of(p1):
        given = p1, p2, info, aligned(y) if gluon[0] else y, dy
        if not gluon[0]:
            documents = gate_logit, log_norm, starts, ends
            dlam = portable.backward(launches, *given, *documents, *gradients, tau, transport_self)
            return *gradients, dlam
        from relation.kernels.flash_relation import hopper_launch

        rows = aligned_rows(gate_logit), aligned_rows(log_norm), starts, ends
        places = [x if fits(x) else empty_aligned(x) for x in gradients]
        dlam = hopper_launch.launch_backward(*gluon, *given, *rows, *places, tau, transport_self)
    for x, place in zip(gradients, places, strict=True):
        if place is not x:
            x.copy_(place)
    return *gradients, dlam


def fits(x: Tensor) -> bool:
    """Whether TMA can hold a descriptor of x (B, H, T, D)."""
    *steps, last = x.stride()
    steps_fit = all(s > 0 and s * x.element_size() % ALIGNMENT == 0 for s in steps)
    return x.data_ptr() % ALIGNMENT == 0 and last == 1 and steps_fit


def aligned(x: Tensor) -> Tensor:
    """x (B, H, T, D), or a copy of it where TMA cannot hold its descriptor."""
    return x if fits(x) else empty_aligned(x).copy_(x)


def empty_aligned(x: Tensor) -> Tensor:
    """Memory for (B, H, T, D) like x, of which TMA can hold a descriptor."""
    B, H, T, D = x.shape
    unit = ALIGNMENT // x.element_size()
    return x.new_empty((B, T, H, -(-D // unit) * unit))[..., :D].transpose(1, 2)


def aligned_rows(x: Tensor) -> Tensor:
    """Numbers x (B, H, T), FP32, or a copy of them where TMA cannot hold their matrix."""
    whole = x.shape[2] * x.element_size() % ALIGNMENT == 0
    if whole and x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0:
        return x
    B, H, T = x.shape
    return x.new_empty((B, H, triton.cdiv(T, 4) * 4))[..., :T].copy_(x)
