"""Launches that repeat: what Triton works out at every call is kept by the layout of the inputs.

A kernel's arguments are its tensors and descriptors, then numbers, then constants. Between two
calls on inputs of one layout only the pointers differ. A `Plan` binds the rest at the first call,
and later ones go straight to Triton's launcher, with pointers as integers, which it does not ask
the driver about.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from relation.kernels.checks import MOST_LAYOUTS
from relation.kernels.common import interpreted

Argument = torch.Tensor | TensorDescriptor | None
# The grid, the numbers after the tensors, and constexpr parameters with Triton's options.
Configuration = tuple[tuple[int, ...], Sequence[float], Mapping[str, Any]]
_HOOKS = triton.knobs.runtime
_plans: dict[tuple, "Plan"] = {}


def plan_of(owner: Callable, launches: Any, *facts: object) -> "Plan":
    """The plan of a launcher's calls with equal `facts`: layouts of tensors, and numbers.

    launches: the tile shapes, told by identity; the plan keeps them alive.
    """
    key = owner, id(launches), *facts
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= MOST_LAYOUTS:
            _plans.clear()
        plan = _plans[key] = Plan(launches)
    return plan


class Plan:
    """The launches of one call, each kernel once."""

    def __init__(self, launches: Any):
        self._launches = launches
        # By the kernel's id: Triton hashes a kernel by its source.
        self._bound: dict[int, Callable[[Sequence[Argument]], None]] = {}

    def launch(
        self, kernel: Any, tensors: Sequence[Argument], configure: Callable[[], Configuration]
    ) -> None:
        """Launch a kernel on the current device and stream.

        tensors: its first arguments, all 16-byte aligned but for those whose layout the plan knows;
        configure: called where the launch is not yet bound.
        """
        bound = self._bound.get(id(kernel))
        if bound is not None and not _observed():
            bound(tensors)
            return
        grid, numbers, constants = configure()
        compiled = kernel[grid](*tensors, *numbers, **constants)
        if not interpreted():
            rest = numbers, constants
            self._bound[id(kernel)] = _bind(compiled, kernel, grid, len(tensors), *rest)


def _observed() -> bool:
    """Whether a profiler wants to be told of launches, which Triton does."""
    enter, leave = _HOOKS.launch_enter_hook, _HOOKS.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _bind(
    compiled: Any,
    kernel: Any,
    grid: tuple[int, ...],
    tensors: int,
    numbers: Sequence[float],
    constants: Mapping[str, Any],
) -> Callable[[Sequence[Argument]], None]:
    """The launch of a compiled kernel in Triton's own order of arguments, but for the tensors'."""
    if hasattr(compiled, "result"):
        compiled = compiled.result()
    names = kernel.arg_names[tensors:]
    given = dict(zip(names, numbers, strict=False)) | dict(constants)
    rest = tuple(given[name] for name in names)
    grid = (*grid, 1, 1)[:3]
    run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
    device, stream = driver.active.get_current_device(), driver.active.get_current_stream

    def launch(tensors: Sequence[Argument]) -> None:
        pointers = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in tensors]
        run(*grid, stream(device), function, packed, None, None, None, *pointers, *rest)

    return launch
