"""One optimiser update: loss, gradient, clipping, AdamW. Training, checks and benchmarks share it.

On a GPU a compiled step replays its forward and backward pass as CUDA graphs: eagerly a pass of a
small model is hundreds of launches, and the GPU waits for the host between them.
"""

import copy
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import unwrap
from types import FunctionType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relation import kernels
from relation.data.windows import IGNORED, Mask, validation_batches
from relation.errors import RunError
from relation.kernels.checks import projection_dtype
from relation.kernels.documents import Documents
from relation.machine import to_device
from relation.nn import Decoder

_WARM_PASSES = 2
_UPDATES_LATE = 3  # a GPU is given the next updates before the first of these is waited for


@dataclass(eq=False)
class UpdateStep:
    """Runs updates of one model on one device.

    With `compile`, the loss is compiled once for the shape of a micro-batch, for this step alone,
    and on a GPU later updates replay it as CUDA graphs: every micro-batch then has that shape.
    `documents(inputs, targets)`, where given, says which documents a micro-batch has, which the
    model keeps apart; it must not wait for the device. `reduce(loss)`, where given, is called once
    an update, after the last backward pass and before clipping: data-parallel training sums the
    gradients and the loss over its processes there.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device
    precision: str
    compile: bool
    gradient_clip: float
    documents: Callable[[Tensor, Tensor], Documents] | None = None
    reduce: Callable[[Tensor], None] | None = None

    def __post_init__(self):
        self._loss = torch.compile(_recompiled_copy(summed_nll)) if self.compile else summed_nll
        # The first update compiles, the second captures the compiled pass, later ones replay it.
        self._captures, self._compiled = self.compile and self.device.type == "cuda", False
        self._captured: _CapturedPass | None = None

    def __call__(
        self, batches: Iterable[tuple[Tensor, Tensor]], tokens: int, learning_rate: float
    ) -> tuple[Tensor, Tensor]:
        """One update over micro-batches of (B, T) int64 inputs and targets.

        The gradient is the mean over the update's `tokens`. Returns the mean loss (nat/token) and
        the gradient's L2 norm before clipping, both scalars on the device.
        """
        total = torch.zeros((), device=self.device)
        # On a GPU a tensor, as graphs hold it: PyTorch divides by a number in other bits.
        on_gpu = self.device.type == "cuda"
        divisor = torch.full((), float(tokens), device=self.device) if on_gpu else tokens
        for number, (inputs, targets) in enumerate(batches):  # (B, T) each
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            if self._compiled and self._captured is None:
                parameters = list(self.model.parameters())
                self._captured = _CapturedPass(self._pass, parameters, inputs, targets)
            if self._captured is None:
                total += self._pass(inputs, targets, divisor)
            else:
                total += self._captured(inputs, targets, tokens, first=number == 0)
        # A process of several may have had no micro-batch.
        self._compiled = self._captures and any(p.grad is not None for p in self.model.parameters())
        if self.reduce is not None:
            self.reduce(total)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, norm

    def _pass(self, inputs: Tensor, targets: Tensor, tokens: int | Tensor) -> Tensor:
        """Add a micro-batch's share of the gradient to `.grad`; returns its share of the loss."""
        documents = None if self.documents is None else self.documents(inputs, targets)
        with autocast(self.device, self.precision):
            loss = self._loss(self.model, inputs, targets, documents) / tokens
        loss.backward()
        return loss.detach()

    def uncaptured(self) -> "UpdateStep":
        """The same update of the same model, compiled as it is, whose kernels the host launches."""
        launched = copy.copy(self)
        launched._captures, launched._compiled, launched._captured = False, False, None
        return launched


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """BF16 autocast over FP32 weights, or nothing for fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def wsd(before: int, after: int, budget: int, warmup: int, plateau: float) -> float:
    """WSD80 (Appendix B.2): the factor of the peak rate for an update of tokens before .. after.

    Linear warm-up over `warmup` tokens, constant until the fraction `plateau` of the budget, then
    linear to zero. Warm-up reads the tokens after the update and decay those before it, so that
    no update has rate zero.
    """
    rise = min(1.0, after / warmup)
    fall = min(1.0, (budget - before) / (budget * (1 - plateau)))
    return min(rise, fall)


def build_optimizer(
    model: nn.Module,
    learning_rate: float,
    betas: Sequence[float],
    eps: float,
    weight_decay: float,
    decay_embedding: bool,
    decay_vectors: bool = False,
) -> "AdamW":
    """A fused AdamW over two groups: the parameters that decay, and those that do not.

    decay_embedding: whether the tied embedding decays; decay_vectors: whether norms, lambda,
    angles, A_log and dt_bias do, which have fewer than two dimensions.
    """
    decayed, undecayed = [], []
    for name, parameter in model.named_parameters():
        decays = decay_embedding if name == "embedding.weight" else True
        if parameter.ndim < 2:
            decays = decay_vectors
        (decayed if decays else undecayed).append(parameter)
    groups = [(decayed, weight_decay), (undecayed, 0.0)]
    groups = [{"params": params, "weight_decay": decay} for params, decay in groups if params]
    return AdamW(groups, lr=learning_rate, betas=tuple(betas), eps=eps, fused=True)


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW, never traced by torch.compile.

    PyTorch wraps these methods against tracing, and the first call imports torch._dynamo, which
    takes every process two seconds.
    """

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)


def check_all_learn(model: torch.nn.Module, optimizer: torch.optim.Adam, run: str) -> None:
    """Raise RunError where a parameter has had gradients of zero alone.

    Every parameter gets a non-zero gradient in update 1. A compiler bug can drop one silently, and
    the run would still finish.
    """
    moments = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    learned = torch.stack([moment.any() for moment in moments]).tolist()
    names = [name for name, _ in model.named_parameters()]
    idle = [name for name, learns in zip(names, learned, strict=True) if not learns]
    if idle:
        raise RunError(
            f"{run}: the gradient of {', '.join(idle)} is zero, so this PyTorch "
            f"({torch.__version__}) differentiates the model wrongly; use the pinned version, or "
            "`compile: false` in config.yaml where the campaign compiles"
        )


def summed_nll(
    model: nn.Module, inputs: Tensor, targets: Tensor, documents: Documents | None = None
) -> Tensor:
    """Sum of negative log-likelihoods in nats, FP32, over targets that are not IGNORED.

    inputs, targets: (B, T) int64; documents: those of the inputs. On a GPU, where a gradient is
    wanted, it is formed with the loss.
    """
    states, weight = model.states(inputs, documents), model.embedding.weight  # (B, T, d), (V, d)
    if torch.is_grad_enabled() and _fuses(states.device, weight.shape[0]):
        return _SummedNLL.apply(states, weight, targets, projection_dtype(states))
    logits = model.logits(states)  # (B, T, V)
    return F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


@torch.no_grad()
def nll_of(
    model: Decoder,
    tokens: np.ndarray,
    context: int,
    rows: int,
    device: torch.device,
    precision: str,
    mask: Mask,
    advance: Callable[[int], None] = lambda tokens: None,
) -> float:
    """Mean NLL in nat/token over (N,) ids, each but the first predicted once (Appendix B.2).

    `rows` windows of T = context are evaluated at a time; the sum is taken in FP64. mask: that of
    the model's training. `advance(n)` is called when n more tokens are done.
    """
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    for batch in validation_batches(tokens, context, rows):
        inputs, targets = (to_device(part, device) for part in batch)
        with autocast(device, precision):
            total += summed_nll(model, inputs, targets, mask(inputs))
        advance(targets.numel())
    model.train()
    return total.item() / (len(tokens) - 1)


def _fuses(device: torch.device, vocabulary: int) -> bool:
    """Whether the kernel runs there: on a GPU, not in Triton's interpreter."""
    if device.type != "cuda" or kernels.why_unavailable(device) is not None:
        return False
    # It imports Triton.
    from relation.kernels.cross_entropy import LARGEST_VOCABULARY

    return vocabulary <= LARGEST_VOCABULARY


class _SummedNLL(torch.autograd.Function):
    """Output projection and loss, whose logits are gone before the backward pass.

    The forward pass leaves the gradient in the logits for a loss whose own gradient is 1; the
    backward multiplies its two products by what that turns out to be.
    """

    @staticmethod
    def forward(ctx, states: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        from relation.kernels.cross_entropy import cross_entropy

        x, w = states.to(dtype).flatten(0, 1), weight.to(dtype)  # (B T, d), (V, d)
        nll, dlogits = cross_entropy(x @ w.mT, targets.flatten(), IGNORED)
        ctx.save_for_backward(x, w, dlogits)
        ctx.shape, ctx.dtypes = states.shape, (states.dtype, weight.dtype)
        return nll.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dloss: Tensor):
        x, w, dlogits = ctx.saved_tensors
        # dlogits is (B T, V), of a loss whose gradient is 1.
        dstates, dweight = (dlogits @ w).to(dloss.dtype), (dlogits.mT @ x).to(dloss.dtype)
        states_dtype, weight_dtype = ctx.dtypes
        dstates = (dstates * dloss).to(states_dtype).view(ctx.shape)
        return dstates, (dweight * dloss).to(weight_dtype), None, None


def _recompiled_copy(function: FunctionType) -> FunctionType:
    """A copy of a function without closure that shares nothing with it in torch.compile's cache.

    The cache belongs to the code object: after a graph break, what was compiled for one model can
    be taken for another.
    """
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


class _CapturedPass:
    """Replays `run(inputs, targets, tokens)`, which adds gradients to `.grad` and returns a loss.

    inputs, targets: a micro-batch on the GPU, whose shapes all later ones share. Two graphs: the
    first micro-batch of an update writes the gradients, those after it add to them. They hold the
    memory of one pass as long as they live. Peak statistics of a replay are those of the capture.
    """

    def __init__(
        self,
        run: Callable[[Tensor, Tensor, Tensor], Tensor],
        parameters: Sequence[nn.Parameter],
        inputs: Tensor,
        targets: Tensor,
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

    @staticmethod
    def _release_workspaces() -> None:
        # cuBLAS would keep what it took for each stream; a graph's own lies in its pool.
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()

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
        self._release_workspaces()

    def _capture(self, pool) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use CUDA meanwhile: NCCL's watchdog asks for events.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            loss = self._run(self._inputs, self._targets, self._tokens)
        self._release_workspaces()
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


class Readback:
    """An update's scalars, read on the host when the device has got that far.

    On a GPU they are copied to pinned memory behind the update and read at most three updates
    later. The time is the GPU's own, from the end of one update to the end of the next, so that
    what the host takes to keep it busy is in it. On a CPU nothing is late and the clock is the
    host's. `restart` begins a stretch: the time before it, spent on saving or evaluating, belongs
    to no update.
    """

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        self._waiting: deque[tuple[Tensor, torch.cuda.Event]] = deque()
        self.restart()

    def _now(self) -> "torch.cuda.Event | float":
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def restart(self) -> None:
        """Begin a stretch of updates that follow one another at once; none may be waiting."""
        self._began = self._now()

    def put(self, *scalars: Tensor) -> Iterator[tuple[list[float], float]]:
        """Take an update's scalars; yield the values and seconds of those that are due."""
        values = torch.stack(scalars)
        if not self._on_gpu:
            began, self._began = self._began, self._now()
            yield values.tolist(), self._began - began
            return
        pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._waiting.append((pinned.copy_(values, non_blocking=True), self._now()))
        while len(self._waiting) > _UPDATES_LATE:
            yield self._next()

    def drain(self) -> Iterator[tuple[list[float], float]]:
        """Yield all that wait."""
        while self._waiting:
            yield self._next()

    def _next(self) -> tuple[list[float], float]:
        values, ended = self._waiting.popleft()
        ended.synchronize()
        seconds, self._began = self._began.elapsed_time(ended) / 1e3, ended
        return values.tolist(), seconds
