"""Exactness on this machine: operators, the paper's identities and a step's gradients against FP64.

The error of an operator or a gradient may be twice that of the definition in the same precision,
the yardstick, plus a share of the truth's size: 1e-3 for 16 bits, 1e-5 for FP32, 1e-12 for FP64.
"""

import gc
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relation import records
from relation.errors import RunError
from relation.machine import Progress, claim, describe
from relation.nn import Decoder, Execution
from relation.ops import full_relation, get_backend, givens_mix, linear_relation, scores
from relation.train.step import UpdateStep, autocast
from relation.variants import MIXERS, ModelConfig

if TYPE_CHECKING:
    from relation.jobs import Check, Side
    from relation.plan import Campaign

Operator = Callable[..., Any]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
SLACK = {torch.bfloat16: 1e-3, torch.float16: 1e-3, torch.float32: 1e-5, torch.float64: 1e-12}
# BF16 rounds a share of flow to 2^-9 of it, the sums of a row and of a score add to that. A mixed
# entry is rounded once, so that lengths are off by 2^-8 and what comes back by 3 * 2^-9.
_IDENTITY_SLACK = {"bf16": 2.0**-7, "fp32": 1e-5, "fp64": 1e-12}
# H, T and D of the checks of identities. Of `identity` D is T, as the flow is read off what it
# transports of unit vectors; the recurrence's T is three chunks of the Triton kernel and a rest.
_SIZES = {
    "identity": (2, 64, 64),
    "mixing": (8, 16, 32),
    "recurrence": (2, 200, 32),
    "history": (2, 136, 32),
}
_TO_THE_BIT = "no output reads a later token"
_FORGOTTEN = (0.01, 10.0)  # the most that a token forgets: head 0 keeps nearly all, head 1 little
_OTHER_LAMBDA = -1.0


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Of lambda, angles and retention beside states of `dtype`: FP32 at least."""
    return torch.promote_types(dtype, torch.float32)


@contextmanager
def _poisoned_memory() -> Iterator[None]:
    """Uninitialised memory holds NaN, else it could hold what an earlier launch got right."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def deviations(
    names: Sequence[str], drawn: Iterable[tuple[Sequence[Tensor], ...]], dtype: torch.dtype
) -> Iterator[dict]:
    """RMS and largest error of each named result over all draws: error, yardstick and allowed.

    drawn: an operator's results, the definition's in `dtype` and the definition's in FP64.
    """
    sizes = []
    for *rounded, truth in drawn:
        off = [[x.double() - t for x, t in zip(found, truth, strict=True)] for found in rounded]
        wide = [[x.double() for x in found] for found in (*off, truth)]
        both = [[torch.stack((x.square().mean(), x.abs().max())) for x in xs] for xs in wide]
        sizes.append(torch.stack([torch.stack(x) for x in both]))
    squares, largest = torch.stack(sizes).unbind(-1)  # each (draws, 3, results)
    measures = {"RMS": squares.mean(0).sqrt(), "largest": largest.amax(0)}
    for measure, values in measures.items():
        for name, error, yardstick, truth in zip(names, *values.tolist(), strict=True):
            allowed = 2 * yardstick + SLACK[dtype] * truth
            row = {"name": name, "measure": measure, "error": error}
            yield row | {"yardstick": yardstick, "allowed": allowed}


def _full_results(operator: Operator, inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Y and the gradients of p1, p2, info and lambda, in `dtype`."""
    *states, dy, lam = inputs
    leaves = [*(x.detach().to(dtype) for x in states), lam.detach().to(_wide(dtype))]
    leaves = [x.requires_grad_() for x in leaves]
    y = operator(*leaves, ModelConfig.tau)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(dtype))]


def exactness(
    operator: Operator,
    heads: int,
    length: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
    draws: int = 16,
) -> Iterator[dict]:
    """Errors of Full Relation against its definition (Section 3.1): `deviations` of its results.

    operator: of p1, p2, info (1, H, T, D) in `dtype`, lambda and tau.
    """
    generator = torch.Generator(device).manual_seed(1)
    kind = {"dtype": dtype, "device": device, "generator": generator}

    def drawn() -> Iterator[tuple[Sequence[Tensor], ...]]:
        for _ in range(draws):
            # Stored (B, T, H, D), as in a model.
            inputs = [
                torch.randn(1, length, heads, width, **kind).transpose(1, 2) for _ in range(4)
            ]
            inputs.append(torch.tensor(ModelConfig.lambda_init, device=device))
            with _poisoned_memory():
                ours = _full_results(operator, inputs, dtype)
            plain, truth = (_full_results(full_relation, inputs, d) for d in (dtype, torch.float64))
            yield ours, plain, truth

    yield from deviations(("Y", "dp1", "dp2", "dinfo", "dlam"), drawn(), dtype)


def _draw(check: str, seed: int, device: torch.device, *stacked: int) -> Tensor:
    """Random states of a check's size, (..., 1, H, T, D) in FP32."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(*stacked, 1, *_SIZES[check], device=device, generator=generator)


def exchange_gate(p1: Tensor, p2: Tensor, lam: Tensor) -> Tensor:
    """The exchange gate g (B, H, T) of Section 4.2, by its two levels, in FP64."""
    U = scores(p1.double(), p2.double())
    T = U.shape[-1]
    S = torch.sigmoid(U.diagonal(dim1=-2, dim2=-1) / ModelConfig.tau)
    history = torch.ones(T, T, dtype=torch.bool, device=U.device).tril(-1)
    E = F.silu(U).masked_fill(~history, -torch.inf)
    i = torch.arange(1, T + 1, dtype=U.dtype, device=U.device)
    return torch.sigmoid(E.logsumexp(-1) - lam.double() * i.log() - S)


def identity_errors(operator: Operator, dtype: torch.dtype, device: torch.device) -> dict:
    """The largest error of three identities of Full Relation (Sections 4.2, 4.3, Appendix A.1.8).

    operator: of p1, p2, info and lambda. The flow is read off what it transports of unit vectors,
    the gate from the two levels in FP64.
    """
    p1, p2, info = _draw("identity", 2, device, 3).to(dtype)
    unit = torch.eye(info.shape[-1], dtype=dtype, device=device).expand_as(info).contiguous()
    values = (ModelConfig.lambda_init, _OTHER_LAMBDA)
    lams = [torch.tensor(value, dtype=_wide(dtype), device=device) for value in values]
    flows = [operator(p1, p2, unit, lam).double() for lam in lams]
    own = flows[0].diagonal(dim1=-2, dim2=-1)
    exchange = [flow.tril(-1)[:, :, 1:] for flow in flows]
    allocations = [x / x.sum(-1, keepdim=True) for x in exchange]
    errors = {
        "F_ii + g_i = 1": own + exchange_gate(p1, p2, lams[0]) - 1,
        "the count correction leaves the allocation": allocations[0] - allocations[1],
        "the first token's output is its information": (operator(p1, p2, info, lams[0]) - info)[
            :, :, 0
        ],
    }
    return {name: error.abs().max().item() for name, error in errors.items()}


def mixing_errors(mix: Operator, dtype: torch.dtype, device: torch.device) -> dict:
    """How far the mixing of heads is from orthogonal, at most, under both pairings (Appendix A.2).

    mix: of info (1, H, T, D) in `dtype`, angles (H/2,) and the layer's index. Errors are relative:
    of lengths and inner products, by pair of heads, to the lengths; of what the transpose (the
    gradient) gives back, to the largest entry.
    """
    info, other = _draw("mixing", 3, device, 2).to(dtype)
    theta = torch.linspace(-3, 3, info.shape[1] // 2, dtype=_wide(dtype), device=device)
    info.requires_grad_()
    worst: dict[str, list[Tensor]] = {}
    for layer in (0, 1):
        first, second = mix(info, theta, layer), mix(other, theta, layer)
        (back,) = torch.autograd.grad(first, info, first.detach())

        def inner(x: Tensor, y: Tensor, shift: int = layer) -> Tensor:
            by_pair = (z.detach().double().roll(-shift, 1).unflatten(1, (-1, 2)) for z in (x, y))
            return torch.mul(*by_pair).sum((2, 4))

        lengths = inner(info, info)
        product = inner(first, second) - inner(info, other)
        errors = {
            "mixing keeps lengths": inner(first, first) / lengths - 1,
            "mixing keeps inner products": product / (lengths * inner(other, other)).sqrt(),
            "the transpose undoes mixing": (back - info).detach().double() / info.abs().max(),
        }
        for name, error in errors.items():
            worst.setdefault(name, []).append(error.abs().max())
    # By PyTorch's maximum: Python's loses what is no number.
    return {name: torch.stack(errors).max().item() for name, errors in worst.items()}


def recurrence_errors(
    operator: Operator, dtype: torch.dtype, device: torch.device
) -> Iterator[dict]:
    """`deviations` of a form of Linear Relation, and its gradients, off the recurrence (A.4).

    operator: of p1, p2, info (1, H, T, D) in `dtype` and g, FP32 at least; returns y and the state.
    """
    *states, g, dy, dstate = _draw("recurrence", 4, device, 6).to(dtype)
    g = -torch.tensor(_FORGOTTEN, device=device)[:, None, None] * g.float().sigmoid()
    dstate = dstate[:, :, : dstate.shape[-1]]  # (1, H, D, D)

    def results(form: Operator, kind: torch.dtype) -> list[Tensor]:
        leaves = [*(x.to(kind, copy=True) for x in states), g.to(_wide(kind), copy=True)]
        leaves = [x.requires_grad_() for x in leaves]
        found = form(*leaves)
        wanted = [d.to(x.dtype) for d, x in zip((dy, dstate), found, strict=True)]
        return [x.detach() for x in (*found, *torch.autograd.grad(found, leaves, wanted))]

    forms = ((operator, dtype), (linear_relation, dtype), (linear_relation, torch.float64))
    names = ("Y", "C", "dp1", "dp2", "dinfo", "dg")
    return deviations(names, [tuple(results(*form) for form in forms)], dtype)


def history_errors(operator: Operator, states: Tensor, share: Tensor) -> dict:
    """Whether Exchange reads j < i alone (Section 5.2, Appendix A.4): the largest errors.

    operator: of p1, p2 and info (B, H, T, D); states: these three, B = 1. share: what a token's own
    information weighs in its output beside Exchange, (1, H, T). "no output reads a later token"
    changes coordinates and information from a token on: earlier outputs stay to the last bit, so
    that its error is 0. The other changes the information of one token, by which its output moves
    by its share; relative to the largest output or change.
    """
    T = states.shape[3]
    # A copy of the sequence a changed token t, every third, which meets every place in a tile.
    cuts = torch.arange(0, T, 3, device=states.device)
    token = torch.arange(T, device=states.device)
    before, other = (
        x.expand(-1, len(cuts), -1, -1, -1).contiguous()
        for x in (states, states.flip(3).roll(1, 4))
    )
    later = (token >= cuts[:, None])[:, None, :, None]  # (copies, 1, T, 1)
    y = operator(*before)
    leaked = torch.where(later, 0, operator(*torch.where(later, other, before)) - y)

    info = torch.where((token == cuts[:, None])[:, None, :, None], other[2], before[2])
    moved = operator(*before[:2], info)
    copies = torch.arange(len(cuts), device=states.device)
    # (copies, H, D): what token t gained, and what its output moved by.
    given, shift = (
        (x.double() - x_before.double())[copies, :, cuts]
        for x, x_before in ((info, before[2]), (moved, y))
    )
    unexplained = shift - share[0].double().T[cuts][..., None] * given
    scale = torch.stack([x.double().abs().max() for x in (y, moved, given)]).max()
    own = "Exchange does not read the token's own information"
    return {
        _TO_THE_BIT: leaked.abs().max().item(),
        own: (unexplained.abs().max() / scale).item(),
    }


def _identities(check: "Check", full: Operator, device: torch.device) -> Iterator[dict]:
    def rows(kind: str, operator: str, precision: str, errors: dict, prefix: str = ""):
        for name, error in errors.items():
            allowed = 0.0 if name == _TO_THE_BIT else _IDENTITY_SLACK[precision]
            known = {"check": kind, "operator": operator, "precision": precision}
            known |= {"name": prefix + name, "measure": "largest"}
            yield known | {"error": error, "yardstick": None, "allowed": allowed}

    linear = get_backend("linear", check.linear, device).call
    definition, exact, own = "definition", "fp64", check.precision
    for name, operator, precision in (
        (definition, full_relation, exact),
        (check.backend, full, own),
    ):
        dtype = DTYPES[precision]
        states = _draw("history", 5, device, 3).to(dtype)
        lam = torch.tensor(ModelConfig.lambda_init, dtype=_wide(dtype), device=device)
        share = 1 - exchange_gate(*states[:2], lam)
        history = history_errors(lambda *s, f=operator, lam=lam: f(*s, lam), states, share)
        yield from rows("identity", name, precision, identity_errors(operator, dtype, device))
        yield from rows("history", name, precision, history, "Full Relation: ")
    for precision in dict.fromkeys((exact, own)):
        errors = mixing_errors(givens_mix, DTYPES[precision], device)
        yield from rows("mixing", definition, precision, errors)
    for name, precision in (("chunked", exact), (check.linear, own)):
        operator = get_backend("linear", name).call
        for row in recurrence_errors(operator, DTYPES[precision], device):
            yield {"check": "recurrence", "operator": name, "precision": precision} | row
    for name, operator, precision in (
        (definition, linear_relation, exact),
        (check.linear, linear, own),
    ):
        dtype = DTYPES[precision]
        states = _draw("history", 5, device, 3).to(dtype)
        g = -0.1 * _draw("history", 6, device).sigmoid().to(_wide(dtype))

        def y(*given: Tensor, f: Operator = operator, g: Tensor = g) -> Tensor:
            return f(*given, g.expand_as(given[0]).contiguous())[0]

        history = history_errors(y, states, torch.ones_like(g[..., 0]))
        yield from rows("history", name, precision, history, "Linear Relation: ")


def operators(campaign: "Campaign", out: Path) -> None:
    """Check a campaign's backends of Full and Linear Relation; write a row a checked quantity.

    An error above what is allowed is a row too: the report judges it. Raises InputError where the
    device cannot run a backend.
    """
    check = campaign.check
    rows: list[dict] = []
    with claim(check.device) as device:
        operator = get_backend("full", check.backend, device).call
        of_all = {"check": "exactness", "operator": check.backend, "precision": check.precision}
        with Progress(f"check {check.backend}", len(check.shapes), "shapes") as progress:
            for shape in check.shapes:
                heads, width = shape["heads"], shape["width"]
                # At T - 1 the last tiles are masked.
                for length in dict.fromkeys((shape["length"], max(1, shape["length"] - 1))):
                    given = (heads, length, width, DTYPES[check.precision], device, check.draws)
                    at = {**of_all, **shape, "length": length, "draws": check.draws}
                    rows += [at | row for row in exactness(operator, *given)]
                progress.advance(1, shape["scale"])
        for row in _identities(check, operator, device):
            size = zip(("heads", "length", "width"), _SIZES[row["check"]], strict=True)
            rows.append({"scale": "", "draws": 1, **dict(size), **row})
        key = {"campaign": campaign.name, "variation": None}
        origin = records.origin(check.hash, describe(device))
        records.write(out, "checks", [{**key, **row} for row in rows], origin)


# Gradients. In FP64 the chunks are the recurrence up to rounding, and launch a few kernels where it
# launches some for every token.
_TRUTH = {"mha": "reference", "full": "reference", "calibrated": "reference", "linear": "chunked"}
_STANDARD_ERRORS = 4  # of a scale; chance alone passes four once in 16,000
# Half of the 2% that must be found; the noise of the faulty gradient may take the other half.
_LARGEST_SCALE_ERROR = 0.01
_FEWEST_FOR_LARGEST = 16  # the largest error of fewer numbers is left to their RMS
_GAIN, _SPREAD = 0.8, 0.3

Batches = list[tuple[Tensor, Tensor]]
Tensors = dict[str, Tensor]


class _Truth(Decoder):
    """The decoder in FP64, its rotary angles too."""

    def __init__(self, config: ModelConfig):
        super().__init__(config, Execution(**_TRUTH))
        self.double()

    def rope_tables(self, length: int, device: torch.device, offset: int = 0):
        kind = {"dtype": torch.float64, "device": device}
        width = self.config.head_dim
        frequency = self.config.rope_base ** -(torch.arange(0, width, 2, **kind) / width)
        angle = torch.outer(torch.arange(offset, offset + length, **kind), frequency)
        return angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)


@torch.no_grad()
def _draw_weights(model: Decoder, initial: Tensors, seed: int) -> None:
    """Draw weights at which every parameter matters; `initial`: the initial ones by name.

    Matrices are normal with sd 0.8/sqrt(inputs), so that scores are of order 1. Angles, scales of
    norms and retention are moved off their initial values, at which angles are 0. Lambda lies
    around 1, where Exchange, a sum over i tokens divided by i^lambda, weighs as much as Self.
    """
    generator = torch.Generator(model.embedding.weight.device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.empty_like(parameter).normal_(generator=generator)
        if name.endswith(".lam"):
            parameter.copy_(1 + _SPREAD * noise)
        elif parameter.ndim < 2:
            parameter.copy_(initial[name] + _SPREAD * noise)
        else:
            parameter.copy_(_GAIN / math.sqrt(parameter.shape[-1]) * noise)


def _draw_batches(side: "Side", seed: int, device: torch.device) -> Batches:
    """Micro-batches of tokens: inputs and targets, (micro, T) int64.

    The frequency of a token falls as 1 / rank, as a word's does. Recurring tokens
    add up to gradients of lambda and angles above BF16's noise; those of uniform tokens cancel.
    """
    generator = torch.Generator().manual_seed(seed)
    vocabulary = side.model.vocab_size
    shape = (side.accumulation, side.micro, side.context + 1)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
    tokens = ((vocabulary + 1) ** drawn).long().clamp(1, vocabulary).sub(1).to(device)
    return [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in tokens]


def _eager_gradients(model: Decoder, batches: Batches, precision: str) -> Tensors:
    """The gradient of the mean NLL by PyTorch's own cross-entropy, in FP32 at least."""
    model.zero_grad()
    count = sum(targets.numel() for _, targets in batches)
    for inputs, targets in batches:
        with autocast(inputs.device, precision):
            logits = model(inputs).flatten(0, 1)
            nll = F.cross_entropy(
                logits.to(_wide(logits.dtype)), targets.flatten(), reduction="sum"
            )
        (nll / count).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


class _CheckedStep:
    """The step that trains; it gives its gradients and changes no weight."""

    def __init__(self, side: "Side", check: "Check", device: torch.device):
        execution = Execution(**side.backends, compiled=check.compile)
        execution.check(side.model, device)
        self.model = Decoder(side.model, execution).to(device)
        still = torch.optim.SGD(self.model.parameters(), lr=0.0)
        how = (check.precision, check.compile, math.inf)
        self._step = UpdateStep(self.model, still, device, *how, reduce=self._keep)
        self._replays, self._replayable = check.compile and device.type == "cuda", False
        self._kept: Tensors = {}

    def _keep(self, loss: Tensor) -> None:
        """Copy the gradients, after the last backward pass and before clipping."""
        self._kept = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self.model.named_parameters()
        }

    def _gradients(self, step: UpdateStep, batches: Batches) -> Tensors:
        step(batches, sum(targets.numel() for _, targets in batches), learning_rate=0.0)
        return self._kept

    def __call__(self, batches: Batches) -> dict[str, Tensors]:
        """The gradients of an update that the host launches and, of CUDA graphs, a replayed one."""
        found = {"launched": self._gradients(self._step.uncaptured(), batches)}
        if self._replays and not self._replayable:
            # The host launches a step's first update; the next one captures the graphs.
            self._gradients(self._step, batches)
            self._replayable = True
        if self._replays:
            found["replayed"] = self._gradients(self._step, batches)
        return found


def _moments(error: Tensor, truth: Tensor) -> Tensor:
    """Sum of squares, largest magnitude and product with the truth, (3,) FP64."""
    return torch.stack((error.square().sum(), error.abs().max(), (error * truth).sum()))


def measured(
    side: "Side", check: "Check", device: torch.device
) -> dict[tuple[str, str, int], Tensor]:
    """Moments of the error, of the yardstick's and of the truth: (draws, 3, 3) FP64 on the CPU.

    By parameter, kind of update and number of the parameter's elements.
    """
    checked, truth = _CheckedStep(side, check, device), _Truth(side.model).to(device)
    eager = Decoder(side.model, Execution(**_TRUTH))
    eager.initialise(seed=0)
    eager.to(device)
    initial = {name: tensor.clone() for name, tensor in eager.state_dict().items()}
    drawn: dict[tuple[str, str, int], list[Tensor]] = {}
    for seed in range(check.gradient_draws):
        _draw_weights(eager, initial, seed)
        for model in (truth, checked.model):
            model.load_state_dict(eager.state_dict())
        batches = _draw_batches(side, seed, device)
        # In FP64 one batch is as good as several.
        whole = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
        true = _eager_gradients(truth, [whole], "fp64")
        yardstick = _eager_gradients(eager, batches, check.precision)
        for update, found in checked(batches).items():
            for name, t in true.items():
                off = (found[name].double() - t, yardstick[name].double() - t, t)
                moments = torch.stack([_moments(x, t) for x in off])
                drawn.setdefault((name, update, t.numel()), []).append(moments)
    return {key: torch.stack(moments).cpu() for key, moments in drawn.items()}


def gradient_errors(moments: Tensor, elements: int, precision: str) -> Iterator[dict]:
    """RMS, largest and scale error of one parameter's gradient over all draws, and what is allowed.

    moments: (draws, 3, 3) FP64: of the error, the yardstick's error and the truth, each its sum of
    squares, largest magnitude and product with the truth. elements: numbers of the parameter.

    RMS and largest error follow the rule of this module; fewer than 16 elements have no largest.
    The RMS cannot see a scale error of 2%: BF16's own noise is 1 to 4% of a gradient's RMS here,
    and 2% adds in squares. The scale error |<g, t> / <t, t> - 1| can, g the gradient and t the
    truth over all draws: noise that does not follow the truth averages out in the product, to some
    2e-4 of a matrix. It may be twice the yardstick's plus the slack plus four standard errors, of
    the error or of the yardstick, whichever is noisier, as the draws are independent: of lambda a
    single draw with a large gradient can outweigh the rest, where the two round differently. But
    never more than 1%, half of the error that must be found.
    """
    squares, largest, products = moments.unbind(-1)  # each (draws, 3)
    slack = SLACK[DTYPES[precision]]
    sizes = {"RMS": (squares.mean(0) / elements).sqrt(), "largest": largest.amax(0)}
    for measure, values in sizes.items():
        error, yardstick, truth = values.tolist()
        if measure == "RMS" or elements >= _FEWEST_FOR_LARGEST:
            row = {"measure": measure, "error": error, "yardstick": yardstick}
            yield row | {"allowed": 2 * yardstick + slack * truth}
    power = squares[:, 2].sum()
    error, yardstick = (products[:, :2].sum(0).abs() / power).tolist()
    noise = (products[:, :2].square().sum(0).amax().sqrt() / power).item()
    allowed = min(2 * yardstick + slack + _STANDARD_ERRORS * noise, _LARGEST_SCALE_ERROR)
    yield {"measure": "scale", "error": error, "yardstick": yardstick, "allowed": allowed}


def gradient_rows(side: "Side", scale: str, check: "Check", device: torch.device) -> Iterator[dict]:
    """Rows of the kind `gradients` of one variant, without campaign and origin."""
    config = side.model
    used = sorted({MIXERS[letter] for letter in config.layout})
    known = {
        "variant": side.variant,
        "scale": scale,
        "draws": check.gradient_draws,
        "layout": config.layout,
        "width": config.head_dim,
        "length": side.context,
        "micro": side.micro,
        "accumulation": side.accumulation,
        "backends": [f"{operator}: {side.backends.get(operator)}" for operator in used],
        "precision": check.precision,
        "compiled": check.compile,
    }
    for (name, update, elements), moments in measured(side, check, device).items():
        where = {"parameter": name, "elements": elements, "update": update}
        for row in gradient_errors(moments, elements, check.precision):
            yield known | where | row


def gradients(campaign: "Campaign", out: Path) -> None:
    """Check the gradient of every parameter of the campaign's training step against FP64.

    A compiler can lose or mis-scale a gradient without an error, and training would go on. The
    step is the campaign's: its loss, compilation, precision and backends, through `UpdateStep`.
    Writes a row a parameter, kind of update and measure. Raises InputError where the device cannot
    run a backend and, with every row written and a line on each failing parameter on stderr,
    RunError where a gradient is wrong.
    """
    check = campaign.check
    rows: list[dict] = []
    with claim(check.device) as device:
        with Progress("check gradients", len(check.gradients), "variants") as progress:
            for side, scale in zip(check.gradients, check.gradient_scales, strict=True):
                rows += gradient_rows(side, scale, check, device)
                # No variant lends another compiled code or the memory of its graphs.
                torch.compiler.reset()
                gc.collect()
                progress.advance(1, side.variant)
        key = {"campaign": campaign.name, "variation": None}
        origin = records.origin(check.hash, describe(device))
        records.write(out, "gradients", [{**key, **row} for row in rows], origin)
    failed = {}
    for row in rows:
        if not row["error"] <= row["allowed"]:
            what = "the {measure} error of its gradient is {error:.2e} in the {update} update"
            line = f"{{variant}} {{parameter}}: {what}, where {{allowed:.2e}} is allowed"
            failed.setdefault((row["variant"], row["parameter"]), line.format(**row))
    for line in failed.values():
        print(line, file=sys.stderr)
    if failed:
        variant, parameter = next(iter(failed))
        others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise RunError(
            f"the gradient of {variant} {parameter}{others} is wrong with PyTorch "
            f"{torch.__version__}; {out} has every error: train nothing, use the pinned versions, "
            "or `compile: false` in config.yaml where the campaign compiles"
        )
