"""How a model is executed: which backend runs each operator. It never changes what is computed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from relation.geometry import MIXERS, ModelConfig
from relation.operators import get_backend


@dataclass(frozen=True)
class Execution:
    """Backend names by operator, as listed in `relation.operators.BACKENDS`."""

    mha: str = "reference"
    full: str = "reference"
    linear: str = "recurrent"

    def calls(
        self, config: ModelConfig, device: torch.device | None = None
    ) -> dict[str, Callable[..., torch.Tensor]]:
        """The function of each operator that the model uses.

        Raises InputError for an unknown backend or, given a device, for one it cannot run.
        """
        used = sorted({MIXERS[letter] for letter in config.layout})
        return {op: get_backend(op, getattr(self, op), device).call for op in used}

    def check(self, config: ModelConfig, device: torch.device) -> None:
        """Raise InputError where the device cannot run a backend that the model uses."""
        self.calls(config, device)
