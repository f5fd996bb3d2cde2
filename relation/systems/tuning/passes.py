"""FlashRelation with any launches: the calls that are timed, and the results that are checked."""

import itertools
from collections.abc import Callable, Sequence

from torch import Tensor

from relation.geometry import ModelConfig
from relation.kernels.flash_relation.backward import launch_backward
from relation.kernels.flash_relation.forward import launch_forward
from relation.kernels.flash_relation.launches import Launches
from relation.systems.bench.peers import Inputs

_TRANSPORT_SELF = True


def _coordinates(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    return inputs["p1"], inputs["p2"], inputs["info"]


def _forward(inputs: Inputs, launches: Launches) -> tuple[Tensor, Tensor, Tensor]:
    given = (*_coordinates(inputs), inputs["lam"], ModelConfig.tau, _TRANSPORT_SELF)
    return launch_forward(*given, launches)


def _backward(
    inputs: Inputs, saved: tuple[Tensor, Tensor, Tensor], launches: Launches
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = (inputs["dy"], *_coordinates(inputs), *saved, ModelConfig.tau, _TRANSPORT_SELF)
    return launch_backward(*given, launches)


def results(inputs: Inputs, launches: Launches) -> tuple[Tensor, ...]:
    """Y and the gradients of p1, p2, info and lam of inputs as the benchmark `flash` draws them."""
    saved = _forward(inputs, launches)
    return saved[0], *_backward(inputs, saved, launches)


class Passes:
    """The forward and the backward on copies of one shape's inputs, taken in turn.

    The backward reads what the `shipped` forward left.
    """

    def __init__(self, copies: Sequence[Inputs], shipped: Launches):
        self._copies = [(inputs, _forward(inputs, shipped)) for inputs in copies]

    def call(self, name: str, launches: Launches) -> Callable[[], None]:
        """What is timed for a pass: the forward, or for "p1" and "p2_info" the whole backward."""
        turn = itertools.cycle(self._copies)

        def forward() -> None:
            inputs, _ = next(turn)
            _forward(inputs, launches)

        def backward() -> None:
            _backward(*next(turn), launches)

        return forward if name == "forward" else backward
