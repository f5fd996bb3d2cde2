"""The backward pass: the gradient's states, what the information carries, then what selects it."""

import itertools

import torch
import triton

from relation.kernels.checks import layout
from relation.kernels.common import empty_parts, empty_tokens
from relation.kernels.linear_relation.fused import weak_gradients_kernel
from relation.kernels.linear_relation.launches import Launch, select_launches, split_chunks
from relation.kernels.linear_relation.levels import (
    coordinates_backward_kernel,
    information_backward_kernel,
)
from relation.kernels.linear_relation.prepare import launch_prepare
from relation.kernels.linear_relation.states import launch_states, states_of
from relation.kernels.linear_relation.weak import weak_coordinates_kernel, weak_information_kernel
from relation.kernels.plans import Configuration, plan_of


def launch_backward(
    dy: torch.Tensor,
    dfinal: torch.Tensor | None,
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    kept: torch.Tensor,
    tau: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the backward passes on the inputs and what `launch_forward` kept.

    Returns the gradients of p1, p2, info and log_retention, each in its dtype, and dC_0
    (B, H, D, D), FP32.
    """
    B, H, T, D = p1.shape
    shared = p2.shape[1]
    launches = select_launches(p1.device, p1.element_size(), D)
    segments = split_chunks(B * H, T, launches)
    given = p1, p2, info, log_retention, dy, dfinal, kept
    plan = plan_of(launch_backward, launches, tau, *map(layout, given))
    scale, of_call = 1 / (tau * D**0.5), (launches, segments, plan)
    with torch.cuda.device_of(p1):
        # Formed again: kept, the exponents would double what g takes.
        prepared = launch_prepare(p1, p2, log_retention, scale, *of_call, backward=True)
        _, dmet, dinitial = launch_states(p1, p2, dy, prepared, dfinal, *of_call, backward=True)
    # Heads that share p2 and info have gradients of their own until the end: of one chunk some may
    # be weak and others not, and no kernel has both.
    dp1, dp2, dinfo, dlog_retention = (empty_tokens(x, H) for x in (p1, p2, info, log_retention))
    read_dread, write_dwrite = empty_parts(kept, B * H * T, B * H * T)
    states = *states_of(kept, B * H, D, segments), *dmet
    inputs = p1, p2, info, log_retention, dy, prepared.selves, prepared.weak, *states
    after = H, T, scale, segments.chunks, segments.length, segments.count
    sums, gradients = (read_dread, write_dwrite), (dp1, dp2, dlog_retention)
    weak_information, weak_coordinates = launches.weak_information, launches.weak_coordinates
    apart = launches.weak_gradients is not None
    weak_inputs = p1, p2, info, dy, *prepared, *states

    def numbers(*tensors: torch.Tensor) -> tuple[float, ...]:
        return *itertools.chain(*(x.stride() for x in tensors)), *after

    def configure(launch: Launch, by_channels: bool, **own) -> Configuration:
        options = launch.options(D)
        constants = launches.constants(D, H // shared)
        blocks = (triton.cdiv(D, options["BLOCK_D"]),) if by_channels else ()
        strides = numbers(p1, p2, info, log_retention, dy, dp1)
        return (B * H, segments.chunks, *blocks), strides, constants | own | options

    def configure_weak(launch: Launch, by_channels: bool, **own) -> Configuration:
        own |= launches.constants(D, H // shared) | {"WHOLE": segments.whole}
        del own["LEVELS"]
        options = launch.options(D)
        grid = (B * H, segments.chunks)
        if by_channels:
            grid = (B * H, triton.cdiv(D, options["BLOCK_D"]), segments.chunks)
        return grid, numbers(p1, p2, info, dy, dp1), own | options

    def configure_weak_information() -> Configuration:
        keeps = weak_coordinates is not None
        return configure_weak(weak_information, False, KEEPS_DSCORES=keeps)

    def configure_information() -> Configuration:
        skips = apart or weak_information is not None
        return configure(launches.information, False, SKIP_WEAK=skips)

    def configure_coordinates() -> Configuration:
        skips = apart or weak_coordinates is not None
        return configure(launches.coordinates, True, SKIP_WEAK=skips)

    with torch.cuda.device_of(p1):
        if apart:
            tensors = (*weak_inputs, dp1, dp2, dinfo, dlog_retention)
            plan.launch(
                weak_gradients_kernel,
                tensors,
                lambda: configure_weak(launches.weak_gradients, False),
            )
        if weak_information is not None:
            squares, kind = launches.kept_scores
            count = B * H * segments.chunks if weak_coordinates else 0
            dscores_t = p1.new_empty((count, *squares), dtype=kind)
            tensors = (*weak_inputs, dinfo, *sums, dscores_t)
            plan.launch(weak_information_kernel, tensors, configure_weak_information)
        if weak_coordinates is not None:
            tensors = (*weak_inputs, *sums, dscores_t, *gradients)
            plan.launch(
                weak_coordinates_kernel, tensors, lambda: configure_weak(weak_coordinates, True)
            )
        tensors = (*inputs, dinfo, *sums)
        plan.launch(information_backward_kernel, tensors, configure_information)
        tensors = (*inputs, *sums, *gradients)
        plan.launch(coordinates_backward_kernel, tensors, configure_coordinates)
    dp2, dinfo = (_sum_over_groups(x, shared) for x in (dp2, dinfo))
    return dp1, dp2, dinfo, dlog_retention, dinitial


def _sum_over_groups(gradient: torch.Tensor, shared: int) -> torch.Tensor:
    """Of (B, H, T, D), stored as (B, T, H, D), the sums of each H / shared neighbouring heads.

    PyTorch adds 16-bit numbers in FP32, in an order that the shape decides.
    """
    if gradient.shape[1] == shared:
        return gradient
    return gradient.transpose(1, 2).unflatten(2, (shared, -1)).sum(3).transpose(1, 2)
