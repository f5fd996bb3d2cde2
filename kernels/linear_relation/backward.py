"""The backward pass: the gradient's states, what the information carries, then what selects it."""

import itertools
from typing import NamedTuple

import torch
import triton

from relation.kernels.checks import layout
from relation.kernels.common import Parts, tokens_layout
from relation.kernels.linear_relation.forward import kept_sizes, views_of
from relation.kernels.linear_relation.fused import weak_gradients_kernel
from relation.kernels.linear_relation.launches import (
    Launch,
    Launches,
    Segments,
    select_launches,
    share_of,
    share_of_mixed,
    split_chunks,
)
from relation.kernels.linear_relation.levels import (
    coordinates_backward_kernel,
    information_backward_kernel,
)
from relation.kernels.linear_relation.mixed import (
    mixed_coordinates_kernel,
    mixed_information_kernel,
)
from relation.kernels.linear_relation.states import States, added_sizes, launch_states, state_sizes
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
    kept: tuple[int, ...]
    temporaries: Parts
    grouped: bool

    @classmethod
    def of(cls, launches: Launches, p1: torch.Tensor, p2: torch.Tensor) -> "_Recipe":
        B, H, T, D = p1.shape
        heads = B * H
        segments = split_chunks(heads, T, launches)
        squares, kind = launches.kept_scores
        # What weak_information and mixed_information keep for the coordinates.
        keeps = launches.weak_coordinates is not None or launches.mixed_coordinates is not None
        kept = heads * segments.chunks if keeps else 0
        rows = heads * T * D if keeps else 0
        temporaries = Parts(
            *added_sizes(heads, D, segments),
            *[(heads * T, torch.float32)] * 2,
            ((kept, *squares), kind),
            *[(size, torch.float32) for size in (rows, rows, kept * D)],
            *[(size, torch.float32) for size in state_sizes(heads, D, segments)],
        )
        tokens, grouped = tokens_layout(p1, H), p2.shape[1] != H
        sizes = kept_sizes(B, H, T, D, launches)
        return cls(segments, tokens, (B, H, D, D), sizes, temporaries, grouped)


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
    views = recipe.temporaries.views(memory)
    added, sums, between = views[:2], views[2:4], views[4:8]
    (prepared, met), dmet = views_of(kept, recipe.kept), States(*views[8:])
    given = p1, p2, dy, prepared, dfinal, dmet, dinitial, *added
    launch_states(launcher, *given, launches, segments, backward=True)
    states = *met, *dmet
    constants = launches.constants(D, H // p2.shape[1], p1, p2, info, log_retention, dy, dp1)
    inputs = p1, p2, info, log_retention, dy, prepared.selves, prepared.kinds, *states
    all_chunks = B * H * segments.chunks
    before, after = (H, T, scale, segments.chunks), (segments.length, segments.count)
    gradients = dp1, dp2, dlog_retention
    weak_information, weak_coordinates = launches.weak_information, launches.weak_coordinates
    apart = launches.weak_gradients is not None
    weak_inputs = p1, p2, info, dy, *prepared, *states

    def strides(*tensors: torch.Tensor) -> tuple[int, ...]:
        return tuple(itertools.chain(*(x.stride() for x in tensors)))

    def configure(launch: Launch, by_channels: bool, skips: bool) -> Configuration:
        options = launch.options(D)
        share = share_of(all_chunks, launches) if skips else 1
        own = constants | {"LEVELS": launches.levels}
        own |= {"SKIP_TAKEN": skips, "SHARE": share}
        blocks = (triton.cdiv(D, options["BLOCK_D"]),) if by_channels else ()
        numbers = (*strides(p1, p2, info, log_retention, dy, dp1), *before, all_chunks, *after)
        return (triton.cdiv(all_chunks, share), *blocks), numbers, own | options

    def configure_weak(launch: Launch, **own) -> Configuration:
        own |= constants | {"WHOLE": segments.whole}
        numbers = *strides(p1, p2, info, dy, dp1), *before, *after
        return (B * H, segments.chunks), numbers, own | launch.options(D)

    def configure_weak_information() -> Configuration:
        return configure_weak(weak_information, KEEPS=weak_coordinates is not None)

    def configure_weak_coordinates() -> Configuration:
        _, _, own = configure_weak(weak_coordinates)
        blocks = triton.cdiv(D, own["BLOCK_D"])
        del own["BLOCK_V"]
        return (B * H, blocks, segments.chunks), (*strides(p1, p2, dp1), *before), own

    def configure_mixed(launch: Launch) -> tuple[dict, int]:
        programs, share = share_of_mixed(B * H, segments.chunks, launch)
        own = constants | launch.options(D)
        return own | {"LEVELS": launches.levels, "SHARE": share}, programs

    def configure_mixed_information() -> Configuration:
        own, programs = configure_mixed(launches.mixed_information)
        # Scores are formed as the forward forms them, by more channels than the states allow.
        own["BLOCK_S"] = launches.mixed_output.options(D)["BLOCK_D"]
        numbers = *strides(p1, p2, info, dy, dp1), H, T, segments.chunks, all_chunks, *after
        return (programs,), numbers, own

    def configure_mixed_coordinates() -> Configuration:
        own, programs = configure_mixed(launches.mixed_coordinates)
        del own["BLOCK_V"]
        blocks = triton.cdiv(D, own["BLOCK_D"])
        return (programs, blocks), (*strides(p1, p2, dp1), *before, all_chunks), own

    def configure_information() -> Configuration:
        return configure(launches.information, False, apart or weak_information is not None)

    def configure_coordinates() -> Configuration:
        return configure(launches.coordinates, True, apart or weak_coordinates is not None)

    if apart:
        tensors = (*weak_inputs, dp1, dp2, dinfo, dlog_retention)
        launcher.launch(
            weak_gradients_kernel,
            tensors,
            lambda: configure_weak(launches.weak_gradients),
        )
    if weak_information is not None:
        tensors = (*weak_inputs, dinfo, *sums, *between)
        launcher.launch(weak_information_kernel, tensors, configure_weak_information)
    of_chunks = prepared.selves, prepared.kinds, prepared.exponents
    of_coordinates = (p1, p2, *of_chunks, *sums, *between, *gradients)
    if weak_coordinates is not None:
        launcher.launch(weak_coordinates_kernel, of_coordinates, configure_weak_coordinates)
    if launches.mixed_information is not None:
        tensors = (*weak_inputs, dinfo, *sums, *between)
        launcher.launch(mixed_information_kernel, tensors, configure_mixed_information)
        launcher.launch(mixed_coordinates_kernel, of_coordinates, configure_mixed_coordinates)
    tensors = (*inputs, dinfo, *sums)
    launcher.launch(information_backward_kernel, tensors, configure_information)
    tensors = (*inputs, *sums, *gradients)
    launcher.launch(coordinates_backward_kernel, tensors, configure_coordinates)


def _sum_over_groups(gradient: torch.Tensor, shared: int) -> torch.Tensor:
    """Of (B, H, T, D), stored as (B, T, H, D), the sums of each H / shared neighbouring heads.

    PyTorch adds 16-bit numbers in FP32, in an order that the shape decides.
    """
    return gradient.transpose(1, 2).unflatten(2, (shared, -1)).sum(3).transpose(1, 2)
