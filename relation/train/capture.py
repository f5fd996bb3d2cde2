"""A micro-batch's forward and backward pass as CUDA graphs, which the host launches in one call.

Eagerly a pass of small models is hundreds of launches, and the GPU waits for the host between them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Pass = Callable[[Tensor, Tensor, Tensor], Tensor]

_WARM_PASSES = 2


def _release_workspaces() -> None:
    """Give back what cuBLAS took for the streams of this pass: it would keep it for each of them.

    A graph's own lies in its pool, where a replay finds it.
    """
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()


class CapturedPass:
    """Replays `run(inputs, targets, tokens)`, which adds gradients to `.grad` and returns a loss.

    inputs, targets: a micro-batch on the GPU, whose shapes all later ones share. Two graphs: the
    first micro-batch of an update writes the gradients, those after it add to them. They hold the
    memory of one pass as long as they live. Peak statistics of a replay are those of the capture.
    """

    def __init__(
        self, run: Pass, parameters: Sequence[nn.Parameter], inputs: Tensor, targets: Tensor
    ):
        self._run, self._parameters = run, parameters
        self._inputs, self._targets = inputs.clone(), targets.clone()
        self._tokens = torch.ones((), device=inputs.device)
        self._warm_up()
        self._write, self._written_loss = self._capture(pool=None)
        self._gradients = [p.grad for p in parameters]
        self._forget_gradients()
        self._add: torch.cuda.CUDAGraph | None = None
        self._added_loss: Tensor | None = None

    def _forget_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _warm_up(self) -> None:
        """Run outside a graph what cannot be captured: lazy initialisation of libraries."""
        self._forget_gradients()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_PASSES):
                self._run(self._inputs, self._targets, self._tokens)
                self._forget_gradients()
        torch.cuda.current_stream().wait_stream(stream)
        _release_workspaces()

    def _capture(self, pool) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use CUDA meanwhile: NCCL's watchdog asks for events.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            loss = self._run(self._inputs, self._targets, self._tokens)
        _release_workspaces()
        return graph, loss

    def __call__(self, inputs: Tensor, targets: Tensor, tokens: int, first: bool) -> Tensor:
        """One pass; returns the loss, a scalar that the next call overwrites."""
        self._inputs.copy_(inputs, non_blocking=True)
        self._targets.copy_(targets, non_blocking=True)
        self._tokens.fill_(tokens)
        if first:
            for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
                parameter.grad = gradient
            self._write.replay()
            return self._written_loss
        if self._add is None:
            self._add, self._added_loss = self._capture(pool=self._write.pool())
        self._add.replay()
        return self._added_loss
