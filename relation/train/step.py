"""One optimiser update: micro-batches, gradient, clipping, AdamW. Training and timing share it."""

import copy
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import FunctionType

import torch
from torch import Tensor
from torch.profiler import record_function

from relation.kernels.documents import Documents
from relation.nn import Decoder
from relation.train.capture import CapturedPass
from relation.train.loss import summed_nll
from relation.train.shards import whole


def autocast(device: torch.device, precision: str):
    """BF16 autocast over FP32 weights, or nothing for fp32."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def _with_own_code(function: FunctionType) -> FunctionType:
    """A copy of a function without closure that shares nothing with it in torch.compile's cache.

    The cache belongs to the code object: after a graph break, what was compiled for one model can
    be taken for another.
    """
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


class UpdateStep:
    """Runs updates of one model on one device.

    With `compile`, the loss is compiled once for the shape of a micro-batch, for this step alone,
    and on a GPU later updates replay it as CUDA graphs: every micro-batch then has that shape.
    `reduce(loss)`, where given, is called once an update, after the last backward pass and before
    clipping: data-parallel training sums the gradients and the loss over its processes there.
    `documents(inputs, targets)`, where given, says which documents a micro-batch has, which the
    model keeps apart; a graph holds what it does, so it must not wait for the device.
    """

    def __init__(
        self,
        model: Decoder,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        precision: str,
        compile: bool,
        gradient_clip: float,
        reduce: Callable[[Tensor], None] | None = None,
        documents: Callable[[Tensor, Tensor], Documents] | None = None,
    ):
        self.reduce, self.documents = reduce, documents
        self.model, self.optimizer, self.device = model, optimizer, device
        self.precision, self.gradient_clip = precision, gradient_clip
        self._loss = torch.compile(_with_own_code(summed_nll)) if compile else summed_nll
        self._captures, self._compiled = compile and device.type == "cuda", False
        self._captured: CapturedPass | None = None

    def uncaptured(self) -> "UpdateStep":
        """The same update of the same model, compiled as it is, whose kernels the host launches."""
        launched = copy.copy(self)
        launched._captures, launched._compiled, launched._captured = False, False, None
        return launched

    def _pass(self, inputs: Tensor, targets: Tensor, tokens: int | Tensor) -> Tensor:
        """Add a micro-batch's share of the gradient to `.grad`; returns its share of the loss."""
        documents = None if self.documents is None else self.documents(inputs, targets)
        with autocast(self.device, self.precision):
            loss = self._loss(self.model, inputs, targets, documents) / tokens
        loss.backward()
        return loss.detach()

    def __call__(
        self, batches: Iterable[tuple[Tensor, Tensor]], tokens: int, learning_rate: float
    ) -> tuple[Tensor, Tensor]:
        """One update over micro-batches of (B, T) int64 inputs and targets.

        The gradient is the mean over the update's `tokens`. Returns the mean loss (nat/token) and
        the gradient's L2 norm before clipping, both scalars on the device.
        """
        total = torch.zeros((), device=self.device)
        # As graphs hold it: by a number PyTorch divides otherwise, and the bits would differ.
        divisor = torch.full((), float(tokens), device=self.device) if self._captures else tokens
        for number, (inputs, targets) in enumerate(batches):
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            if self._compiled and self._captured is None:
                parameters = list(self.model.parameters())
                self._captured = CapturedPass(self._pass, parameters, inputs, targets)
            if self._captured is None:
                total += self._pass(inputs, targets, divisor)
            else:
                total += self._captured(inputs, targets, tokens, first=number == 0)
        # A process of several may have had no micro-batch.
        self._compiled = self._captures and any(p.grad is not None for p in self.model.parameters())
        if self.reduce is not None:
            self.reduce(total)
        with record_function("clipping"):
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_clip)
        norm = whole(norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, norm
