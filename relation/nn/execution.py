"""How a model is executed: which backend runs each operator. It never changes what is computed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from relation.ops import get_backend
from relation.variants import MIXERS, ModelConfig


@dataclass(frozen=True)
class Execution:
    """Backend names by operator, as listed in `relation.ops.BACKENDS`.

    `compiled` says that the model will be traced by torch.compile, which then steps around the
    backends that are marked eager.
    """

    mha: str = "reference"
    full: str = "reference"
    linear: str = "recurrent"
    compiled: bool = False

    def calls(
        self, config: ModelConfig, device: torch.device | None = None
    ) -> dict[str, Callable[..., torch.Tensor]]:
        """The function of each operator that the model uses.

        Raises InputError for an unknown backend or, given a device, for one it cannot run.
        """
        calls = {}
        for operator in sorted({MIXERS[letter] for letter in config.layout}):
            backend = get_backend(operator, getattr(self, operator), device)
            around = self.compiled and backend.eager
            calls[operator] = torch.compiler.disable(backend.call) if around else backend.call
        return calls

    def check(self, config: ModelConfig, device: torch.device) -> None:
        """Raise InputError where the device cannot run a backend that the model uses."""
        self.calls(config, device)
