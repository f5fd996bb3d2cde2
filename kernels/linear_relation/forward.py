"""The forward pass: prepare, states between chunks, then every chunk's output."""

from typing import NamedTuple

import torch
import triton

from relation.kernels.checks import layout
from relation.kernels.common import Parts, tokens_layout
from relation.kernels.linear_relation.launches import (
    Launches,
    Segments,
    select_launches,
    share_of,
    share_of_mixed,
    split_chunks,
)
from relation.kernels.linear_relation.mixed import mixed_output_kernel
from relation.kernels.linear_relation.output import output_kernel
from relation.kernels.linear_relation.prepare import (
    Prepared,
    launch_prepare,
    prepared_sizes,
)
from relation.kernels.linear_relation.states import (
    States,
    added_sizes,
    launch_states,
    state_sizes,
)
from relation.kernels.linear_relation.weak import weak_output_kernel
from relation.kernels.plans import Configuration, Launcher, plan_of


def kept_sizes(B: int, H: int, T: int, D: int, launches: Launches) -> tuple[int, ...]:
    """The numbers of `Prepared` and `States`, which the backward pass takes, in one FP32 tensor.

    Rounded up to multiples of 16, so that every part is 64-byte aligned.
    """
    segments = split_chunks(B * H, T, launches)
    sizes = *prepared_sizes(B * H, T, D, segments), *state_sizes(B * H, D, segments)
    return tuple((size + 15) // 16 * 16 for size in sizes)


def views_of(kept: torch.Tensor, sizes: tuple[int, ...]) -> tuple[Prepared, States]:
    """The two in a tensor of as many numbers as `kept_sizes` has."""
    selves, kinds, exponents, halves, *states = kept.split_with_sizes(sizes)
    return Prepared(selves, kinds.view(torch.uint8), exponents, halves), States(*states)


class _Recipe(NamedTuple):
    """What the layout decides of a call: shape and strides of y, and shapes of the rest."""

    segments: Segments
    tokens: tuple[tuple[int, ...], tuple[int, ...]]
    state: tuple[int, ...]
    kept: tuple[int, ...]
    temporaries: Parts

    @classmethod
    def of(cls, launches: Launches, p1: torch.Tensor, info: torch.Tensor) -> "_Recipe":
        B, H, T, D = p1.shape
        segments = split_chunks(B * H, T, launches)
        temporaries = Parts(*added_sizes(B * H, D, segments))
        kept = kept_sizes(B, H, T, D, launches)
        return cls(segments, tokens_layout(info, H), (B, H, D, D), kept, temporaries)


def launch_forward(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    state: torch.Tensor | None,
    tau: float,
    facts: tuple | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the forward passes: y (B, H, T, D) in info's dtype, and C_T (B, H, D, D), FP32.

    After these two comes what the backward pass takes (`kept_sizes`). facts: tau and
    the layouts of the tensors, where they are known.
    """
    launches = select_launches(p1.device, p1.element_size(), p1.shape[3])
    facts = facts or (tau, *map(layout, (p1, p2, info, log_retention, state)))
    plan = plan_of(launch_forward, launches, facts)
    recipe = plan.recipe or plan.keep(_Recipe.of(launches, p1, info))
    y = info.new_empty_strided(*recipe.tokens)
    kept = p1.new_empty(sum(recipe.kept), dtype=torch.float32)
    final = kept.new_empty(recipe.state)
    memory = recipe.temporaries.allocate(kept)
    if state is not None:
        state = state.contiguous()

    def launch(
        launcher: Launcher, p1, p2, info, log_retention, state, y, kept, final, memory
    ) -> None:
        added, added_log_decay = recipe.temporaries.views(memory)
        prepared, met = views_of(kept, recipe.kept)
        scale, of_call = 1 / (tau * p1.shape[3] ** 0.5), (launches, recipe.segments)
        given = p1, p2, log_retention, prepared, scale
        launch_prepare(launcher, *given, *of_call)
        given = p1, p2, info, prepared, state, met, final, added, added_log_decay
        launch_states(launcher, *given, *of_call, backward=False)
        given = p1, p2, info, log_retention, prepared, met, y
        _launch_output(launcher, *given, *of_call)

    with torch.cuda.device_of(p1):
        plan.run((p1, p2, info, log_retention, state, y, kept, final, memory), launch)
    return y, final, kept


def _launch_output(
    launcher: Launcher,
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    prepared: Prepared,
    met: States,
    y: torch.Tensor,
    launches: Launches,
    segments: Segments,
) -> None:
    B, H, T, D = p1.shape
    all_chunks, skips = B * H * segments.chunks, launches.weak_output is not None
    share = share_of(all_chunks, launches) if skips else 1
    of_segments = segments.length, segments.count
    constants = launches.constants(D, H // p2.shape[1], p1, p2, info, log_retention, y)

    def configure_weak() -> Configuration:
        strides = (*p1.stride(), *p2.stride(), *info.stride(), *y.stride())
        own = constants | {"WHOLE": segments.whole}
        numbers = (*strides, H, T, segments.chunks, *of_segments)
        return (B * H, segments.chunks), numbers, own | launches.weak_output.options(D)

    def configure_mixed() -> Configuration:
        strides = (*p1.stride(), *p2.stride(), *info.stride(), *y.stride())
        programs, share_of_one = share_of_mixed(B * H, segments.chunks, launches.mixed_output)
        own = {"LEVELS": launches.levels, "SHARE": share_of_one}
        own |= constants | launches.mixed_output.options(D)
        numbers = (*strides, H, T, segments.chunks, all_chunks, *of_segments)
        return (programs,), numbers, own

    def configure_others() -> Configuration:
        strides = (*p1.stride(), *p2.stride(), *info.stride())
        strides += (*log_retention.stride(), *y.stride())
        own = {"SKIP_TAKEN": skips, "SHARE": share, "LEVELS": launches.levels}
        own |= constants
        numbers = (*strides, H, T, segments.chunks, all_chunks, *of_segments)
        grid = (triton.cdiv(all_chunks, share),)
        return grid, numbers, own | launches.output.options(D)

    if launches.weak_output is not None:
        tensors = (p1, p2, info, *prepared, *met, y)
        launcher.launch(weak_output_kernel, tensors, configure_weak)
    if launches.mixed_output is not None:
        launcher.launch(mixed_output_kernel, (p1, p2, info, *prepared, *met, y), configure_mixed)
    of_chunks = prepared.selves, prepared.kinds, prepared.exponents
    tensors = (p1, p2, info, log_retention, *of_chunks, *met, y)
    launcher.launch(output_kernel, tensors, configure_others)
