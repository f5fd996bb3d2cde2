"""Launches of one call by Triton's public launch, for callers that still ask a plan."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Configuration = tuple[tuple[int, ...], Sequence[float], Mapping[str, Any]]


class Launcher:
    """Launches on the current device and stream."""

    def launch(self, kernel: Any, tensors: Sequence, configure: Callable[[], Configuration]):
        """Launch a kernel with tensors, then the numbers and constants that `configure` gives."""
        grid, numbers, constants = configure()
        kernel[grid](*tensors, *numbers, **constants)


class Plan:
    """Of one call: nothing is kept."""

    recipe = None

    def keep(self, recipe: Any) -> Any:
        """The recipe itself."""
        return recipe

    def run(self, tensors: Sequence, launch: Callable[..., None]) -> None:
        """Make the launches of `launch(launcher, *tensors)`."""
        launch(Launcher(), *tensors)

    def launch(self, kernel: Any, tensors: Sequence, configure: Callable[[], Configuration]):
        """Launch one kernel."""
        Launcher().launch(kernel, tensors, configure)


def plan_of(*facts: object) -> Plan:
    """A plan."""
    return Plan()
