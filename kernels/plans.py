"""Launches that repeat: what Triton works out at every call is kept by the layout of the inputs.

A kernel's arguments are its tensors and descriptors, then numbers, then constants. Between two
calls on inputs of one layout only the pointers differ. A `Plan` records the launches of the first
call; later ones repeat them with pointers as integers, which Triton does not ask the driver about.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton

from relation.kernels.checks import MOST_LAYOUTS
from relation.kernels.common import interpreted
from relation.kernels.direct import (
    Launch,
    TritonLaunch,
    UnexpectedError,
    bind,
    current_device,
    stream_getter,
)

Tensors = Sequence[torch.Tensor | None]
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


class Launcher:
    """Makes the launches of one call, Triton's way; of the first, a plan keeps a record."""

    def __init__(self, tensors: Tensors, recorded: bool):
        self._tensors = tensors
        self.record: list[Launch] | None = [] if recorded else None

    def launch(
        self, kernel: Any, tensors: Sequence[Any], configure: Callable[[], Configuration]
    ) -> None:
        """Launch a kernel on the current device and stream.

        tensors: its first arguments, each None or one of the call's tensors, a part of one that
        shares its storage with no other, or a descriptor of either; all 16-byte aligned but for
        those whose layout the plan knows.
        """
        grid, numbers, constants = configure()
        compiled = kernel[grid](*tensors, *numbers, **constants)
        if self.record is None:
            return
        if hasattr(compiled, "result"):
            compiled = compiled.result()
        names = kernel.arg_names[len(tensors) :]
        given = dict(zip(names, numbers, strict=False)) | dict(constants)
        rest = tuple(given[name] for name in names)
        bound = TritonLaunch(compiled, grid, tensors, rest, self._tensors)
        try:
            bound = bind(bound, _pointers(self._tensors))
        except UnexpectedError as reason:
            # Slower, never wrong.
            warnings.warn(f"{kernel.__name__} goes through Triton: {reason}", stacklevel=2)
        self.record.append(bound)


class Plan:
    """The launches of calls on inputs of one layout; `recipe`: see `keep`."""

    def __init__(self, launches: Any):
        self._launches = launches
        self._record: list[Launch] | None = None
        self._kernel: Any = None
        self.recipe: Any = None

    def run(self, tensors: Tensors, launch: Callable[..., None]) -> None:
        """Make the launches of `launch` on the current device and stream.

        launch(launcher, *tensors): called where they are not yet recorded, to make them all by
        `launcher.launch`. It rests on the plan's facts and the tensors, and does nothing else:
        later calls repeat only the launches.
        """
        if self._record is not None and not _observed():
            pointers, stream = _pointers(tensors), self._stream(self._device)
            for bound in self._record:
                bound(stream, pointers)
            return
        if interpreted():
            launch(Launcher(tensors, recorded=False), *tensors)
            return
        # Each an object apart: given twice, as p1 and p2, a tensor would be found in one place.
        tensors = [x if x is None else x.detach() for x in tensors]
        launcher = Launcher(tensors, recorded=self._record is None)
        launch(launcher, *tensors)
        if launcher.record is not None:
            self._device, self._stream = current_device(), stream_getter()
            self._record = launcher.record

    def keep(self, recipe: Any) -> Any:
        """Keep what a launcher works out from the layout, as `recipe`, and return it."""
        self.recipe = recipe
        return recipe

    def launch(self, kernel: Any, tensors: Tensors, configure: Callable[[], Configuration]) -> None:
        """The same for a call of one launch, with the tensors for its first arguments."""
        self._kernel = self._kernel or kernel
        assert self._kernel is kernel, "a plan repeats the launch that it has recorded"
        self.run(tensors, lambda launcher, *given: launcher.launch(kernel, given, configure))


def _pointers(tensors: Tensors) -> list[int | None]:
    return [x if x is None else x.data_ptr() for x in tensors]


def _observed() -> bool:
    """Whether a profiler wants to be told of launches, which Triton does."""
    enter, leave = _HOOKS.launch_enter_hook, _HOOKS.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))
