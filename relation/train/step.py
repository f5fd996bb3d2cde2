"""One optimiser update: loss, gradient, clipping, AdamW. Training, checks and benchmarks share it.

On a GPU a compiled step replays its forward and backward pass as CUDA graphs. Without graphs, a
pass of a small model launches hundreds of kernels, and the GPU waits for the host between them.
"""

import copy
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import unwrap
from types import FunctionType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relation import kernels
from relation.data.masks import Mask
from relation.data.windows import IGNORED, validation_batches
from relation.errors import RunError
from relation.kernels.documents import Documents
from relation.machine import to_device
from relation.nn import Decoder
from relation.nn.replay import capture_stream
from relation.ops.precision import once_differentiable, projection_dtype

_WARM_PASSES = 2
_UPDATES_LATE = 3  # on a GPU, the host launches this many more updates before it waits for one


@dataclass(eq=False)
class UpdateStep:
    """Runs updates of one model on one device.

    compile: compile the loss for this step alone. On a GPU, later updates replay it as CUDA graphs,
    so all micro-batches must have one shape. mask(inputs, targets): returns the documents of a
    micro-batch, which do not see each other; it must not wait for the device. None: no mask.
    reduce(loss): called once per update, after the last backward pass and before clipping.
    Data-parallel training uses it to sum the gradients and the loss over its processes.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device
    precision: str
    compile: bool
    gradient_clip: float
    mask: Callable[[Tensor, Tensor], Documents] | None = None
    reduce: Callable[[Tensor], None] | None = None

    def __post_init__(self):
        self._loss = torch.compile(_recompiled_copy(summed_nll)) if self.compile else summed_nll
        # With graphs the first update compiles, the second captures the pass, later ones replay it.
        self._uses_graphs = self.compile and self.device.type == "cuda"
        self._updates = 0
        self._captured: _CapturedPass | None = None

    def __call__(
        self, batches: Iterable[tuple[Tensor, Tensor]], tokens: int, learning_rate: float
    ) -> tuple[Tensor, Tensor]:
        """Run one update over micro-batches of inputs and targets, (B, T) int64 each.

        tokens: how many tokens the update predicts; loss and gradient are means over them. Returns
        the loss (nat/token) and the gradient's L2 norm before clipping, both scalars on the device.
        """
        total = torch.zeros((), device=self.device)
        # A tensor on a GPU, as in the graphs: division by a Python number rounds differently.
        on_gpu = self.device.type == "cuda"
        divisor = torch.full((), float(tokens), device=self.device) if on_gpu else tokens
        for number, (inputs, targets) in enumerate(batches):  # (B, T) each
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            if self._uses_graphs and self._updates > 0 and self._captured is None:
                parameters = list(self.model.parameters())
                self._captured = _CapturedPass(self._pass, parameters, inputs, targets)
            if self._captured is None:
                total += self._pass(inputs, targets, divisor)
            else:
                total += self._captured(inputs, targets, tokens, first=number == 0)
        self._updates += 1
        if self.reduce is not None:
            self.reduce(total)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, norm

    def _pass(self, inputs: Tensor, targets: Tensor, tokens: int | Tensor) -> Tensor:
        """Add a micro-batch's share of the gradient to `.grad`; return its share of the loss."""
        documents = None if self.mask is None else self.mask(inputs, targets)
        with autocast(self.device, self.precision):
            loss = self._loss(self.model, inputs, targets, documents) / tokens
        loss.backward()
        return loss.detach()

    def uncaptured(self) -> "UpdateStep":
        """Return a step with the same model and compiled loss that does not use CUDA graphs."""
        launched = copy.copy(self)
        launched._uses_graphs, launched._captured = False, None
        return launched


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return an autocast context: BF16 over FP32 weights for "bf16", disabled for "fp32"."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def wsd(before: int, after: int, budget: int, warmup: int, plateau: float) -> float:
    """Return an update's learning rate as a fraction of the peak rate, by WSD80 (Appendix B.2).

    before, after: tokens consumed before and after the update. The fraction rises linearly over
    `warmup` tokens, stays 1 up to the share `plateau` of the budget, then falls linearly to zero.
    The rise uses `after` and the fall uses `before`, so no update has rate zero.
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
    """Return a fused AdamW with two parameter groups: with and without weight decay.

    decay_embedding: whether the tied embedding decays. decay_vectors: whether parameters with fewer
    than two dimensions decay: norms, lambda, angles, A_log and dt_bias.
    """
    decayed, undecayed = [], []
    for name, parameter in model.named_parameters():
        # A wrapper such as torch.compile's puts its own name first.
        decays = decay_embedding or not name.endswith("embedding.weight")
        decays = decays if parameter.ndim > 1 else decay_vectors
        (decayed if decays else undecayed).append(parameter)
    groups = [(decayed, weight_decay), (undecayed, 0.0)]
    groups = [{"params": params, "weight_decay": decay} for params, decay in groups if params]
    return AdamW(groups, lr=learning_rate, betas=tuple(betas), eps=eps, fused=True)


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW without the wrappers that keep torch.compile from tracing it.

    The first call of a wrapper imports torch._dynamo, which takes two seconds in every process. The
    optimiser is never compiled here, so it does not need the wrappers.
    """

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)


def check_all_learn(model: torch.nn.Module, optimizer: torch.optim.Adam, run: str) -> None:
    """Raise RunError if the gradient of a parameter has been zero in every update so far.

    A compiler bug can drop a gradient silently, and the run would still finish. Call it after two
    updates or more: in the first, weights that start at zero keep the gradient from others.
    """
    states = [optimizer.state.get(p, {}) for p in model.parameters()]  # empty: no gradient at all
    learned = [bool(state) and state["exp_avg"].any().item() for state in states]
    names = [name for name, _ in model.named_parameters()]
    idle = [name for name, learns in zip(names, learned, strict=True) if not learns]
    if idle:
        raise RunError(
            f"{run}: the gradient of {', '.join(idle)} is zero; the model does not use it, or "
            f"PyTorch {torch.__version__} computes wrong gradients: install the pinned version or, "
            "if the campaign compiles, set `compile: false` in its file"
        )


def summed_nll(
    model: nn.Module, inputs: Tensor, targets: Tensor, documents: Documents | None = None
) -> Tensor:
    """Return the sum of the targets' negative log-likelihoods in nats, an FP32 scalar.

    inputs, targets: (B, T) int64; a target that is IGNORED adds nothing. documents: the documents
    of the inputs. On a GPU with gradients enabled, a kernel computes loss and gradient together.
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
    """Return the mean NLL in nat/token over (N,) ids (Appendix B.2), summed in FP64.

    Every token but the first is predicted once, in windows of T = context, `rows` windows at a
    time. mask: the mask of the model's training. advance(n): called after each n tokens.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    for batch in validation_batches(tokens, context, rows):
        inputs, targets = (to_device(part, device) for part in batch)
        with autocast(device, precision):
            total += summed_nll(model, inputs, targets, mask(inputs))
        advance(targets.numel())
    return total.item() / (len(tokens) - 1)


def _fuses(device: torch.device, vocabulary: int) -> bool:
    """Whether the loss kernel is used: on a GPU, outside Triton's interpreter, if V fits."""
    if device.type != "cuda" or kernels.why_unavailable(device) is not None:
        return False
    from relation.kernels.cross_entropy import LARGEST_VOCABULARY  # here: it imports Triton

    return vocabulary <= LARGEST_VOCABULARY


class _SummedNLL(torch.autograd.Function):
    """Output projection and loss. The logits are freed before the backward pass.

    The forward pass keeps the gradient of the logits, computed as if the gradient of the loss
    were 1. The backward pass multiplies its two products by the actual gradient of the loss.
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
    @once_differentiable
    def backward(ctx, dloss: Tensor):
        x, w, dlogits = ctx.saved_tensors
        # dlogits, (B T, V), assumes that the gradient of the loss is 1.
        dstates, dweight = (dlogits @ w).to(dloss.dtype), (dlogits.mT @ x).to(dloss.dtype)
        states_dtype, weight_dtype = ctx.dtypes
        dstates = (dstates * dloss).to(states_dtype).view(ctx.shape)
        return dstates, (dweight * dloss).to(weight_dtype), None, None


def _recompiled_copy(function: FunctionType) -> FunctionType:
    """Copy a function without a closure, so that torch.compile compiles the copy separately.

    PyTorch caches compiled code per code object. After a graph break it can use code that was
    compiled for another model.
    """
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


class _CapturedPass:
    """Replays `run(inputs, targets, tokens)`, which adds gradients to `.grad` and returns a loss.

    inputs, targets: a micro-batch on the GPU; all later micro-batches have its shape. Two graphs:
    one writes the gradients of an update's first micro-batch, one adds the gradients of a later
    micro-batch. The graphs keep the memory of one pass while they exist. PyTorch counts it in its
    peak statistics at the capture, not at a replay.
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

    def _release_workspaces(self) -> None:
        # cuBLAS would keep a workspace per stream. A graph's workspace is in the graph's pool.
        torch.cuda.synchronize(self._inputs.device)
        torch._C._cuda_clearCublasWorkspaces()

    def _warm_up(self) -> None:
        """Run passes outside a graph: libraries initialise lazily, which cannot be captured."""
        self._forget_gradients()
        stream = torch.cuda.Stream(self._inputs.device)
        current = torch.cuda.current_stream(self._inputs.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(_WARM_PASSES):
                self._run(self._inputs, self._targets, self._tokens)
                self._forget_gradients()
        current.wait_stream(stream)
        self._release_workspaces()

    def _capture(self, pool) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may call CUDA during the capture: NCCL's watchdog queries events.
        stream = capture_stream(self._inputs.device)
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            loss = self._run(self._inputs, self._targets, self._tokens)
        self._release_workspaces()
        return graph, loss

    def __call__(self, inputs: Tensor, targets: Tensor, tokens: int, first: bool) -> Tensor:
        """Run one pass; return the loss, a scalar that the next call overwrites."""
        if inputs.shape != self._inputs.shape:  # copy_ would broadcast
            given, captured = tuple(inputs.shape), tuple(self._inputs.shape)
            raise RunError(f"a micro-batch is {given} and the captured ones {captured}; pad it")
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
    """Reads each update's scalars and its seconds on the host, without making a GPU wait.

    On a GPU the scalars are copied to pinned memory after the update and read three updates later,
    or by `drain`. The seconds are GPU time from the end of one update to the end of the next, so
    they include the time in which the GPU waits for the host. On a CPU the scalars are read at once
    and the host's clock is used. Call `restart` after saving or evaluating: that time then counts
    for no update.
    """

    def __init__(self, device: torch.device):
        self._device, self._on_gpu = device, device.type == "cuda"
        self._waiting: deque[tuple[Tensor, torch.cuda.Event]] = deque()
        self.restart()

    def _now(self) -> "torch.cuda.Event | float":
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def restart(self) -> None:
        """Start the clock for the next update; all earlier updates must have been read."""
        self._began = self._now()

    def put(self, *scalars: Tensor) -> list[tuple[list[float], float]]:
        """Take an update's scalars; return values and seconds of the updates that are due."""
        values = torch.stack(scalars)
        if not self._on_gpu:
            began, self._began = self._began, self._now()
            return [(values.tolist(), self._began - began)]
        pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        pinned.copy_(values, non_blocking=True)
        self._waiting.append((pinned, self._now()))  # an event after the copy
        return [self._next() for _ in range(len(self._waiting) - _UPDATES_LATE)]

    def drain(self) -> list[tuple[list[float], float]]:
        """Wait for all updates that are not read yet; return their values and seconds."""
        return [self._next() for _ in range(len(self._waiting))]

    def _next(self) -> tuple[list[float], float]:
        values, ended = self._waiting.popleft()
        ended.synchronize()
        seconds, self._began = self._began.elapsed_time(ended) / 1e3, ended
        return values.tolist(), seconds
