"""The forward pass: prepare, states between chunks, then every chunk's output."""

import torch

from relation.kernels.linear_relation.launches import (
    Launches,
    Segments,
    select_launches,
    split_chunks,
)
from relation.kernels.linear_relation.output import output_kernel
from relation.kernels.linear_relation.prepare import Prepared, launch_prepare
from relation.kernels.linear_relation.states import States, launch_states, state_shapes
from relation.kernels.linear_relation.weak import weak_output_kernel
from relation.kernels.plans import Configuration, Plan, layout, plan_of

Forward = tuple[torch.Tensor, ...]


def kept_shapes(B: int, H: int, T: int, D: int, launches: Launches) -> list[tuple[int, ...]]:
    """The shapes of the FP32 tensors of `States`, which the backward pass takes."""
    return [(B, H, *shape) for shape in state_shapes(D, split_chunks(B * H, T, launches))]


def launch_forward(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    state: torch.Tensor | None,
    tau: float,
) -> Forward:
    """Run the forward passes: y (B, H, T, D) in info's dtype, and C_T (B, H, D, D), FP32.

    After these two come the tensors of `States`, for the backward pass.
    """
    B, H, T, D = p1.shape
    launches = select_launches(p1.device, p1.element_size(), D)
    segments = split_chunks(B * H, T, launches)
    given = [layout(x) for x in (p1, p2, info, log_retention)]
    plan = plan_of(launch_forward, launches, tau, *given, None if state is None else layout(state))
    scale = 1 / (tau * D**0.5)
    prepared = launch_prepare(
        p1, p2, log_retention, scale, launches, segments, plan, backward=False
    )
    met, final = launch_states(
        p1, p2, info, prepared, state, launches, segments, plan, backward=False
    )
    y = _launch_output(p1, p2, info, log_retention, prepared, met, launches, segments, plan)
    return y, final, met.within, met.log_decay, met.entry


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
    y = torch.empty((B, T, H, D), dtype=info.dtype, device=info.device).transpose(1, 2)
    states, selves, weak = (met.within, met.log_decay, met.entry), prepared.selves, prepared.weak
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

    with torch.cuda.device_of(p1):
        if launches.weak_output is not None:
            kept = (selves, weak, prepared.exponents, prepared.halves)
            tensors = (p1, p2, info, *kept, *states, y)
            plan.launch(weak_output_kernel, tensors, configure_weak)
        tensors = (p1, p2, info, log_retention, selves, weak, *states, y)
        plan.launch(output_kernel, tensors, configure_others)
    return y
