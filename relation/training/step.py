"""One optimiser update: micro-batches, gradient, clipping, AdamW. Training and timing share it."""

from collections.abc import Iterable
from contextlib import nullcontext
from types import FunctionType

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.data.windows import IGNORED
from relation.model import Decoder


def autocast(device: torch.device, precision: str):
    """BF16 autocast over FP32 weights, or nothing for fp32."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def summed_nll(model: Decoder, inputs: Tensor, targets: Tensor) -> Tensor:
    """Sum of negative log-likelihoods in nats, FP32, over targets that are not IGNORED.

    inputs, targets: (B, T) int64.
    """
    logits = model(inputs)
    return F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def _with_own_code(function: FunctionType) -> FunctionType:
    """A copy of a function without closure that shares nothing with it in torch.compile's cache.

    The cache belongs to the code object: after a graph break, what was compiled for one model can
    be taken for another.
    """
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


class UpdateStep:
    """Runs updates of one model on one device.

    With `compile`, the loss is compiled once for the shape of a micro-batch, for this step alone.
    """

    def __init__(
        self,
        model: Decoder,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        precision: str,
        compile: bool,
        gradient_clip: float,
    ):
        self.model, self.optimizer, self.device = model, optimizer, device
        self.precision, self.gradient_clip = precision, gradient_clip
        self._loss = torch.compile(_with_own_code(summed_nll)) if compile else summed_nll

    def __call__(
        self, batches: Iterable[tuple[Tensor, Tensor]], tokens: int, learning_rate: float
    ) -> tuple[Tensor, Tensor]:
        """One update over micro-batches of (B, T) int64 inputs and targets.

        The gradient is the mean over the update's `tokens`. Returns the mean loss (nat/token) and
        the gradient's L2 norm before clipping, both scalars on the device.
        """
        total = torch.zeros((), device=self.device)
        for inputs, targets in batches:
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            with autocast(self.device, self.precision):
                loss = self._loss(self.model, inputs, targets) / tokens
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, norm
