"""The backward pass: the gradient's states, what the information carries, then what selects it."""

import itertools
from typing import NamedTuple

import torch
import triton

from relation.kernels.checks import layout
from relation.kernels.common import Parts, tokens_layout
from relation.kernels.linear_relation.fused import weak_gradients_kernel
from relation.kernels.linear_relation.launches import (
    Launch,
    Launches,
    Segments,
    select_launches,
    split_chunks,
)
from relation.kernels.linear_relation.levels import (
    coordinates_backward_kernel,
    information_backward_kernel,
)
from relation.kernels.linear_relation.prepare import Prepared, launch_prepare, prepared_sizes
from relation.kernels.linear_relation.states import (
    added_sizes,
    launch_states,
    state_sizes,
    states_of,
)
from relation.kernels.linear_relation.weak import weak_coordinates_kernel, weak_information_kernel
from relation.kernels.plans import Configuration, Launcher, plan_of


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
    launches = select_launches(p1.device, p1.element_size(), p1.shape[3])
    given = p1, p2, info, log_retention, dy, dfinal, kept
    plan = plan_of(launch_backward, launches, tau, *map(layout, given))
    recipe = plan.recipe or plan.keep(_Recipe.of(launches, p1, p2))
    # Heads that share p2 and info have gradients of their own until the end: of one chunk some may
    # be weak and others not, and no kernel has both.
    dp1, dp2, dinfo = (x.new_empty_strided(*recipe.tokens) for x in (p1, p2, info))
    dlog_retention = log_retention.new_empty_strided(*recipe.tokens)
    dinitial = kept.new_empty(recipe.state)
    memory = recipe.temporaries.allocate(kept)
    if dfinal is not None:
        dfinal = dfinal.contiguous()

    def launch(launcher: Launcher, *tensors: torch.Tensor | None) -> None:
        _launch(launcher, recipe, launches, 1 / (tau * tensors[0].shape[3] ** 0.5), *tensors)

    with torch.cuda.device_of(p1):
        inputs = p1, p2, info, log_retention, dy, dfinal, kept
        plan.run((*inputs, dp1, dp2, dinfo, dlog_retention, dinitial, memory), launch)
    if recipe.grouped:
        dp2, dinfo = (_sum_over_groups(x, p2.shape[1]) for x in (dp2, dinfo))
    return dp1, dp2, dinfo, dlog_retention, dinitial


class _Recipe(NamedTuple):
    """What the layout decides of a call: shape and strides of gradients, and shapes of the rest."""

    segments: Segments
    tokens: tuple[tuple[int, ...], tuple[int, ...]]
    state: tuple[int, ...]
    temporaries: Parts
    grouped: bool

    @classmethod
    def of(cls, launches: Launches, p1: torch.Tensor, p2: torch.Tensor) -> "_Recipe":
        B, H, T, D = p1.shape
        heads = B * H
        segments = split_chunks(heads, T, launches)
        squares, kind = launches.kept_scores
        scores = heads * segments.chunks if launches.weak_coordinates else 0
        temporaries = Parts(
            *prepared_sizes(heads, T, D, segments),
            *added_sizes(heads, D, segments),
            (sum(state_sizes(heads, D, segments)), torch.float32),
            *[(heads * T, torch.float32)] * 2,
            ((scores, *squares), kind),
        )
        tokens, grouped = tokens_layout(p1, H), p2.shape[1] != H
        return cls(segments, tokens, (B, H, D, D), temporaries, grouped)


def _launch(
    launcher: Launcher,
    recipe: _Recipe,
    launches: Launches,
    scale: float,
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    dy: torch.Tensor,
    dfinal: torch.Tensor | None,
    kept: torch.Tensor,
    dp1: torch.Tensor,
    dp2: torch.Tensor,
    dinfo: torch.Tensor,
    dlog_retention: torch.Tensor,
    dinitial: torch.Tensor,
    memory: torch.Tensor,
) -> None:
    (B, H, T, D), segments = p1.shape, recipe.segments
    *prepared, added, added_log_decay, dkept, read_dread, write_dwrite, dscores_t = (
        recipe.temporaries.views(memory)
    )
    prepared = Prepared(*prepared)
    met, dmet = (states_of(x, B * H, D, segments) for x in (kept, dkept))
    # Formed again: kept, the exponents would double what g takes.
    given = p1, p2, log_retention, prepared, scale
    launch_prepare(launcher, *given, launches, segments, backward=True)
    given = p1, p2, dy, prepared, dfinal, dmet, dinitial, added, added_log_decay
    launch_states(launcher, *given, launches, segments, backward=True)
    states = *met, *dmet
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
        constants = launches.constants(D, H // p2.shape[1])
        blocks = (triton.cdiv(D, options["BLOCK_D"]),) if by_channels else ()
        strides = numbers(p1, p2, info, log_retention, dy, dp1)
        return (B * H, segments.chunks, *blocks), strides, constants | own | options

    def configure_weak(launch: Launch, by_channels: bool, **own) -> Configuration:
        own |= launches.constants(D, H // p2.shape[1]) | {"WHOLE": segments.whole}
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

    if apart:
        tensors = (*weak_inputs, dp1, dp2, dinfo, dlog_retention)
        launcher.launch(
            weak_gradients_kernel,
            tensors,
            lambda: configure_weak(launches.weak_gradients, False),
        )
    if weak_information is not None:
        tensors = (*weak_inputs, dinfo, *sums, dscores_t)
        launcher.launch(weak_information_kernel, tensors, configure_weak_information)
    if weak_coordinates is not None:
        tensors = (*weak_inputs, *sums, dscores_t, *gradients)
        launcher.launch(
            weak_coordinates_kernel, tensors, lambda: configure_weak(weak_coordinates, True)
        )
    tensors = (*inputs, dinfo, *sums)
    launcher.launch(information_backward_kernel, tensors, configure_information)
    tensors = (*inputs, *sums, *gradients)
    launcher.launch(coordinates_backward_kernel, tensors, configure_coordinates)


def _sum_over_groups(gradient: torch.Tensor, shared: int) -> torch.Tensor:
    """Of (B, H, T, D), stored as (B, T, H, D), the sums of each H / shared neighbouring heads.

    PyTorch adds 16-bit numbers in FP32, in an order that the shape decides.
    """
    return gradient.transpose(1, 2).unflatten(2, (shared, -1)).sum(3).transpose(1, 2)
