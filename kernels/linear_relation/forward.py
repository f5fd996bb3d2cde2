"""The forward pass: prepare, states between chunks, then every chunk's output."""

import torch

from relation.kernels.checks import layout
from relation.kernels.common import empty_tokens
from relation.kernels.linear_relation.launches import (
    Launches,
    Segments,
    select_launches,
    split_chunks,
)
from relation.kernels.linear_relation.output import output_kernel
from relation.kernels.linear_relation.prepare import Prepared, launch_prepare
from relation.kernels.linear_relation.states import States, launch_states, state_sizes
from relation.kernels.linear_relation.weak import weak_output_kernel
from relation.kernels.plans import Configuration, Plan, plan_of


def kept_size(B: int, H: int, T: int, D: int, launches: Launches) -> int:
    """The FP32 numbers of `States`, which the backward pass takes."""
    return sum(state_sizes(B * H, D, split_chunks(B * H, T, launches)))


def launch_forward(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    state: torch.Tensor | None,
    tau: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the forward passes: y (B, H, T, D) in info's dtype, and C_T (B, H, D, D), FP32.

    After these two comes what the backward pass takes, `States` in one flat tensor.
    """
    B, H, T, D = p1.shape
    launches = select_launches(p1.device, p1.element_size(), D)
    segments = split_chunks(B * H, T, launches)
    given = p1, p2, info, log_retention, state
    plan = plan_of(launch_forward, launches, tau, *map(layout, given))
    scale, of_call = 1 / (tau * D**0.5), (launches, segments, plan)
    with torch.cuda.device_of(p1):
        prepared = launch_prepare(p1, p2, log_retention, scale, *of_call, backward=False)
        kept, met, final = launch_states(p1, p2, info, prepared, state, *of_call, backward=False)
        y = _launch_output(p1, p2, info, log_retention, prepared, met, *of_call)
    return y, final, kept


def _launch_output(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    prepared: Prepared,
    met: States,
    launches: Launches,
    segments: Segments,
    plan: Plan,
) -> torch.Tensor:
    B, H, T, D = p1.shape
    y = empty_tokens(info, H)
    numbers = H, T, segments.chunks, segments.length, segments.count
    by_chunk = (B * H, segments.chunks)

    def configure_weak() -> Configuration:
        strides = (*p1.stride(), *p2.stride(), *info.stride(), *y.stride())
        own = {
            "PRECISION": launches.precision,
            "D": D,
            "GROUP": H // p2.shape[1],
            "CHUNK": launches.chunk,
            "WHOLE": segments.whole,
        }
        return by_chunk, (*strides, *numbers), own | launches.weak_output.options(D)

    def configure_others() -> Configuration:
        strides = (*p1.stride(), *p2.stride(), *info.stride())
        strides += (*log_retention.stride(), *y.stride())
        own = {"SKIP_WEAK": launches.weak_output is not None}
        own |= launches.constants(D, H // p2.shape[1])
        return by_chunk, (*strides, *numbers), own | launches.output.options(D)

    if launches.weak_output is not None:
        tensors = (p1, p2, info, *prepared, *met, y)
        plan.launch(weak_output_kernel, tensors, configure_weak)
    tensors = (p1, p2, info, log_retention, prepared.selves, prepared.weak, *met, y)
    plan.launch(output_kernel, tensors, configure_others)
    return y
