"""Launches that repeat: what Triton works out at every call is kept by the layout of the inputs.

A kernel's arguments are its tensors and descriptors, then numbers, then constants. Between two
calls on inputs of one layout only the pointers differ. A `Plan` binds the rest at the first call,
and later ones pass pointers as integers, which Triton does not ask the driver about, and tensor
maps that were encoded before (`direct`).
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton

from relation.kernels.checks import MOST_LAYOUTS
from relation.kernels.common import interpreted
from relation.kernels.direct import Arguments, Tensors, TritonLaunch, Unexpected, bind

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
        self._bound: dict[int, Callable[[Tensors], None]] = {}

    def launch(
        self,
        kernel: Any,
        tensors: Tensors,
        configure: Callable[[], Configuration],
        arguments: Arguments | None = None,
    ) -> None:
        """Launch a kernel on the current device and stream.

        tensors: its first arguments, or what `arguments(*tensors)` makes these of, such as
        descriptors; all 16-byte aligned but for those whose layout the plan knows; configure and
        arguments: called where the launch is not yet bound, or a descriptor's map is new.
        """
        bound = self._bound.get(id(kernel))
        if bound is not None and not _observed():
            bound(tensors)
            return
        grid, numbers, constants = configure()
        given = tensors if arguments is None else arguments(*tensors)
        compiled = kernel[grid](*given, *numbers, **constants)
        if bound is None and not interpreted():
            rest = numbers, constants
            self._bound[id(kernel)] = _bind(compiled, kernel, grid, tensors, arguments, *rest)


def _observed() -> bool:
    """Whether a profiler wants to be told of launches, which Triton does."""
    enter, leave = _HOOKS.launch_enter_hook, _HOOKS.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _bind(
    compiled: Any,
    kernel: Any,
    grid: tuple[int, ...],
    tensors: Tensors,
    arguments: Arguments | None,
    numbers: Sequence[float],
    constants: Mapping[str, Any],
) -> Callable[[Tensors], None]:
    """The launch of a compiled kernel in Triton's own order of arguments, but for the tensors'."""
    if hasattr(compiled, "result"):
        compiled = compiled.result()
    first = len(tensors if arguments is None else arguments(*tensors))
    names = kernel.arg_names[first:]
    given = dict(zip(names, numbers, strict=False)) | dict(constants)
    launch = TritonLaunch(compiled, grid, tuple(given[name] for name in names), arguments)
    try:
        return bind(launch, tensors)
    except Unexpected as reason:
        # Slower, never wrong.
        warnings.warn(f"{kernel.__name__} goes through Triton's launcher: {reason}", stacklevel=2)
        return launch
