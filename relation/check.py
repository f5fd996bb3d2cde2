"""Exactness on this machine: operators, the paper's identities and a step's gradients against FP64.

The error of an operator or a gradient may be twice that of the definition in the same precision,
the yardstick, plus a share of the truth's size: 1e-3 for 16 bits, 1e-5 for FP32, 1e-12 for FP64.
"""

import gc
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relation import records
from relation.errors import RunError
from relation.jobs import Check, Side
from relation.machine import Progress, claim, describe, deterministic_algorithms
from relation.nn import Decoder, Execution
from relation.ops import full_relation, get_backend, givens_mix, linear_relation, scores
from relation.train.step import UpdateStep, autocast
from relation.variants import MIXERS, ModelConfig

Operator = Callable[..., Any]
Tensors = dict[str, Tensor]
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


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Of lambda, angles and retention beside states of `dtype`: FP32 at least."""
    return torch.promote_types(dtype, torch.float32)


def _results(
    form: Operator, given: Sequence[Tensor], wanted: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """An operator's outputs on three states of `dtype` and a parameter, and their gradients."""
    kinds = (dtype, dtype, dtype, _wide(dtype))
    leaves = [x.to(k, copy=True).requires_grad_() for x, k in zip(given, kinds, strict=True)]
    found = form(*leaves)
    found = found if isinstance(found, tuple) else (found,)
    into = [w.to(x.dtype) for w, x in zip(wanted, found, strict=True)]
    return [x.detach() for x in (*found, *torch.autograd.grad(found, leaves, into))]


def moments(found: Tensor, yardstick: Tensor, truth: Tensor) -> Tensor:
    """Of the error, the yardstick's error and the truth, (3, 3) in FP64.

    Each row: the sum of squares, the largest magnitude and the product with the truth.
    """
    x = torch.stack((found.double() - truth, yardstick.double() - truth, truth)).view(3, -1)
    return torch.stack((x.square().sum(1), x.abs().amax(1), x @ truth.flatten()), dim=1)


def _sizes(drawn: Tensor, elements: int, slack: float) -> Iterator[dict]:
    """The RMS and the largest error of a result over all draws; drawn: `moments`, (draws, 3, 3)."""
    squares, largest, _ = drawn.unbind(-1)  # each (draws, 3)
    sizes = {"RMS": (squares.mean(0) / elements).sqrt(), "largest": largest.amax(0)}
    for measure, values in sizes.items():
        error, yardstick, truth = values.tolist()
        row = {"measure": measure, "error": error, "yardstick": yardstick}
        yield row | {"allowed": 2 * yardstick + slack * truth}


def deviations(
    names: Sequence[str], draws: Iterable[tuple[list[Tensor], ...]], dtype: torch.dtype
) -> Iterator[dict]:
    """RMS and largest error of each named result over all draws: error, yardstick and allowed.

    draws: an operator's results, the definition's in `dtype` and the definition's in FP64.
    """
    drawn = []
    for draw in draws:
        drawn.append(torch.stack([moments(*results) for results in zip(*draw, strict=True)]))
        elements = [truth.numel() for truth in draw[-1]]
    for name, count, each in zip(names, elements, torch.stack(drawn, 1), strict=True):
        yield from ({"name": name, **row} for row in _sizes(each, count, SLACK[dtype]))


def exactness(
    operator: Operator, shape: Sequence[int], dtype: torch.dtype, device: torch.device, draws: int
) -> Iterator[dict]:
    """`deviations` of Full Relation's output and gradients off its definition (Section 3.1).

    operator: of p1, p2, info (1, H, T, D) in `dtype` and lambda; shape: H, T and D.
    """
    generator = torch.Generator(device).manual_seed(1)
    heads, length, width = shape

    def draw() -> tuple[list[Tensor], ...]:
        # Stored (B, T, H, D), as in a model.
        stored = torch.randn(4, 1, length, heads, width, device=device, generator=generator)
        *states, dy = stored.to(dtype).transpose(2, 3)
        given = (*states, torch.tensor(ModelConfig.lambda_init, device=device)), (dy,)
        # Uninitialised memory then holds NaN, else it could hold what an earlier launch got right.
        with deterministic_algorithms(True):
            ours = _results(operator, *given, dtype)
        return ours, *(_results(full_relation, *given, kind) for kind in (dtype, torch.float64))

    return deviations(("Y", "dp1", "dp2", "dinfo", "dlam"), (draw() for _ in range(draws)), dtype)


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
    lam, other = torch.tensor([ModelConfig.lambda_init, -1.0], dtype=_wide(dtype), device=device)
    flows = [operator(p1, p2, unit, each).double() for each in (lam, other)]
    exchange = [flow.tril(-1)[:, :, 1:] for flow in flows]
    allocations = [x / x.sum(-1, keepdim=True) for x in exchange]
    own = flows[0].diagonal(dim1=-2, dim2=-1)
    errors = {
        "F_ii + g_i = 1": own + exchange_gate(p1, p2, lam) - 1,
        "the count correction leaves the allocation": allocations[0] - allocations[1],
        "the first token's output is its information": (operator(p1, p2, info, lam) - info)[
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
    largest = []
    for layer in (0, 1):
        first, second = mix(info, theta, layer), mix(other, theta, layer)
        (back,) = torch.autograd.grad(first, info, first.detach())

        def inner(x: Tensor, y: Tensor, shift: int = layer) -> Tensor:
            by_pair = (z.detach().double().roll(-shift, 1).unflatten(1, (-1, 2)) for z in (x, y))
            return torch.mul(*by_pair).sum((2, 4))

        lengths = inner(info, info)
        product = inner(first, second) - inner(info, other)
        errors = (
            inner(first, first) / lengths - 1,
            product / (lengths * inner(other, other)).sqrt(),
            (back - info).detach().double() / info.abs().max(),
        )
        largest.append(torch.stack([error.abs().max() for error in errors]))
    names = ("mixing keeps lengths", "mixing keeps inner products", "the transpose undoes mixing")
    # By PyTorch's maximum: Python's loses what is no number.
    return dict(zip(names, torch.stack(largest).amax(0).tolist(), strict=True))


def expanded(p1: Tensor, p2: Tensor, info: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Linear Relation as the sum over history of Appendix A.4, without a state; FP64.

    What token j wrote reaches token t through D_t ... D_{j+1}, the exponential of a sum of g.
    """
    S = torch.sigmoid((p1 * p2).sum(-1, keepdim=True) / (ModelConfig.tau * p1.shape[-1] ** 0.5))
    read, write = S * F.normalize(p1, dim=-1), S * F.normalize(p2, dim=-1)
    since = g.cumsum(2)
    between = since[:, :, :, None] - since[:, :, None]  # (B, H, t, j, D)
    history = torch.ones(between.shape[2:4], device=g.device).tril(-1).bool()[..., None]
    kept = between.masked_fill(~history, -torch.inf).exp()
    exchange = torch.einsum("bhtd,bhtjd,bhjd,bhje->bhte", read, kept, write, info)
    remains = (since[:, :, -1:] - since).exp() * write
    return info + exchange, remains.mT @ info


def recurrence_errors(
    operator: Operator, dtype: torch.dtype, device: torch.device
) -> Iterator[dict]:
    """`deviations` of a form of Linear Relation, and its gradients, off the recurrence (A.4).

    operator: of p1, p2, info (1, H, T, D) in `dtype` and g, FP32 at least; returns y and the state.
    """
    *states, g, dy, dstate = _draw("recurrence", 4, device, 6).to(dtype)
    g = -torch.tensor(_FORGOTTEN, device=device)[:, None, None] * g.float().sigmoid()
    given = (*states, g), (dy, dstate[:, :, : dstate.shape[-1]])  # the state is (1, H, D, D)
    forms = ((operator, dtype), (linear_relation, dtype), (linear_relation, torch.float64))
    draw = tuple(_results(form, *given, kind) for form, kind in forms)
    return deviations(("Y", "C", "dp1", "dp2", "dinfo", "dg"), [draw], dtype)


def history_errors(operator: Operator, states: Tensor, share: Tensor, given: Tensor) -> dict:
    """Whether Exchange reads j < i alone (Section 5.2, Appendix A.4): the largest errors.

    operator: of p1, p2, info (B, H, T, D) and what is `given`, lambda or g; states: p1, p2 and info
    of B = 1. share: what a token's own information weighs in its output beside Exchange, (1, H, T).
    Other states from a token on leave earlier outputs the same to the last bit. Other information
    of one token alone moves its output by its share; relative to the largest output or change.
    """

    def output(*states: Tensor) -> Tensor:
        y = operator(*states, given.expand_as(states[0]).contiguous() if given.ndim else given)
        return y[0] if isinstance(y, tuple) else y

    # A copy of the sequence a changed token t, every third, which meets every place in a tile.
    token = torch.arange(states.shape[3], device=states.device)
    cuts = token[::3]
    copies = torch.arange(len(cuts), device=states.device)
    before = states.expand(-1, len(cuts), -1, -1, -1).contiguous()  # (3, copies, H, T, D)
    other = before.flip(3).roll(1, 4)
    later = (token >= cuts[:, None])[:, None, :, None]  # (copies, 1, T, 1)
    itself = (token == cuts[:, None])[:, None, :, None]
    y = output(*before)
    leaked = torch.where(later, 0, output(*torch.where(later, other, before)) - y)
    info = torch.where(itself, other[2], before[2])
    moved = output(*before[:2], info)
    # (copies, H, D): what token t gained, and what its output moved by.
    gained, shift = (
        (x.double() - x_before.double())[copies, :, cuts]
        for x, x_before in ((info, before[2]), (moved, y))
    )
    unexplained = (shift - share[0].double().T[cuts][..., None] * gained).abs().max()
    scale = torch.stack([x.double().abs().max() for x in (y, moved, gained)]).max()
    own = (unexplained / scale).item()
    leak = leaked.abs().max().item()
    return {_TO_THE_BIT: leak, "Exchange does not read the token's own information": own}


def _identities(check: Check, full: Operator, device: torch.device) -> Iterator[tuple]:
    """Every check but exactness: its name, what was checked, in which precision, and the errors."""
    linear = get_backend("linear", check.linear, device).call
    own = (check.backend, full, check.linear, linear, check.precision)
    defined = ("definition", full_relation, "definition", linear_relation, "fp64")
    for operator, form, linear_operator, linear_form, precision in (defined, own):
        dtype = DTYPES[precision]
        lam = torch.tensor(ModelConfig.lambda_init, dtype=_wide(dtype), device=device)
        g = -0.1 * _draw("history", 6, device).sigmoid().to(_wide(dtype))
        states = _draw("history", 5, device, 3).to(dtype)
        share = 1 - exchange_gate(*states[:2], lam)
        yield "identity", operator, precision, identity_errors(form, dtype, device)
        for name, by, call, given, weighs in (
            ("Full Relation", operator, form, lam, share),
            ("Linear Relation", linear_operator, linear_form, g, torch.ones_like(share)),
        ):
            errors = history_errors(call, states, weighs, given)
            yield "history", by, precision, {f"{name}: {k}": e for k, e in errors.items()}
        yield "mixing", "definition", precision, mixing_errors(givens_mix, dtype, device)
    chunked = get_backend("linear", "chunked").call
    exact = (("expanded", expanded, "fp64"), ("chunked", chunked, "fp64"))
    for name, form, precision in (*exact, (check.linear, linear, check.precision)):
        yield "recurrence", name, precision, recurrence_errors(form, DTYPES[precision], device)


def _write(check: Check, out: Path, kind: str, rows: list[dict], device: torch.device) -> None:
    key = {"campaign": check.campaign, "variation": check.variation}
    records.write(out, kind, rows, key | records.origin(check.hash, describe(device)))


def operators(check: Check, out: Path) -> None:
    """Check a campaign's backends of Full and Linear Relation; write a row a checked quantity.

    An error above what is allowed is a row too: the report judges it.
    """
    rows: list[dict] = []
    with claim(check.device) as device:
        operator = get_backend("full", check.backend, device).call
        known = {"check": "exactness", "operator": check.backend, "precision": check.precision}
        with Progress(f"check {check.backend}", len(check.shapes), "shapes") as progress:
            for at in check.shapes:
                # At T - 1 the last tiles are masked.
                for length in dict.fromkeys((at["length"], max(1, at["length"] - 1))):
                    shape = (at["heads"], length, at["width"])
                    found = exactness(operator, shape, DTYPES[check.precision], device, check.draws)
                    size = {**at, "length": length, "draws": check.draws}
                    rows += [known | size | row for row in found]
                progress.advance(1, at["scale"])
        for kind, name, precision, found in _identities(check, operator, device):
            known = {"check": kind, "operator": name, "precision": precision, "scale": ""}
            known |= zip(("heads", "length", "width"), _SIZES[kind], strict=True)
            if isinstance(found, dict):  # of identities, which have no yardstick
                slack = _IDENTITY_SLACK[precision]
                found = [
                    {"name": name, "measure": "largest", "error": error, "yardstick": None}
                    | {"allowed": 0.0 if name.endswith(_TO_THE_BIT) else slack}
                    for name, error in found.items()
                ]
            rows += [known | {"draws": 1} | row for row in found]
        _write(check, out, "checks", rows, device)


# Gradients. In FP64 the chunks are the recurrence up to rounding, and launch a few kernels where it
# launches some for every token.
_TRUTH = {"mha": "reference", "full": "reference", "calibrated": "reference", "linear": "chunked"}
_STANDARD_ERRORS = 4  # of a scale; chance alone passes four once in 16,000
# Half of the 2% that must be found; the noise of the faulty gradient may take the other half.
_LARGEST_SCALE_ERROR = 0.01
_FEWEST_FOR_LARGEST = 16  # the largest error of fewer numbers is left to their RMS
_GAIN, _SPREAD = 0.8, 0.3


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
        if parameter.ndim >= 2:
            parameter.copy_(_GAIN / math.sqrt(parameter.shape[-1]) * noise)
        else:
            parameter.copy_((1 if name.endswith(".lam") else initial[name]) + _SPREAD * noise)


def _draw_tokens(side: Side, seed: int, device: torch.device) -> Tensor:
    """Tokens of an update, (accumulation, micro, T + 1) int64.

    The frequency of a token falls as 1 / rank, as a word's does. Recurring tokens add up to
    gradients of lambda and angles above BF16's noise; those of uniform tokens cancel.
    """
    generator = torch.Generator().manual_seed(seed)
    vocabulary = side.model.vocab_size
    shape = (side.accumulation, side.micro, side.context + 1)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
    return ((vocabulary + 1) ** drawn).long().clamp(1, vocabulary).sub(1).to(device)


def _eager_gradients(model: Decoder, tokens: Tensor, precision: str) -> Tensors:
    """The gradient of the mean NLL by PyTorch's own cross-entropy, in FP32 at least."""
    model.zero_grad()
    for part in tokens:
        with autocast(part.device, precision):
            logits = model(part[:, :-1]).flatten(0, 1)
            logits, targets = logits.to(_wide(logits.dtype)), part[:, 1:].flatten()
            nll = F.cross_entropy(logits, targets, reduction="sum")
        (nll / tokens[..., 1:].numel()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def gradient_errors(drawn: Tensor, elements: int, precision: str) -> Iterator[dict]:
    """RMS, largest and scale error of one parameter's gradient over all draws, and what is allowed.

    drawn: `moments`, (draws, 3, 3). elements: numbers of the parameter. The RMS cannot see a scale
    error of 2%: BF16's own noise is 1 to 4% of a gradient's RMS, and 2% adds in squares. The scale
    error |<g, t> / <t, t> - 1| can, g the gradient and t the truth over all draws: noise that does
    not follow the truth averages out in the product. It may be twice the yardstick's plus the slack
    plus four standard errors of the noisier of both, but never more than 1%, half of the error that
    must be found.
    """
    slack = SLACK[DTYPES[precision]]
    for row in _sizes(drawn, elements, slack):
        if row["measure"] == "RMS" or elements >= _FEWEST_FOR_LARGEST:
            yield row
    products = drawn[..., 2]  # (draws, 3); the truth with itself: its power
    power = products[:, 2].sum()
    error, yardstick = (products[:, :2].sum(0).abs() / power).tolist()
    noise = (products[:, :2].square().sum(0).amax().sqrt() / power).item()
    allowed = min(2 * yardstick + slack + _STANDARD_ERRORS * noise, _LARGEST_SCALE_ERROR)
    yield {"measure": "scale", "error": error, "yardstick": yardstick, "allowed": allowed}


def gradient_rows(side: Side, scale: str, check: Check, device: torch.device) -> Iterator[dict]:
    """Rows of the kind `gradients` of one variant, without campaign and origin.

    Of a step whose kernels the host launches and, where it replays CUDA graphs, of a replay.
    """
    model = Execution(**side.backends, compiled=check.compile).decoder(side.model, device)
    kept: Tensors = {}

    def keep(loss: Tensor) -> None:
        """Copy the gradients, after the last backward pass and before clipping."""
        for name, p in model.named_parameters():
            kept[name] = torch.zeros_like(p) if p.grad is None else p.grad.clone()

    still = torch.optim.SGD(model.parameters(), lr=0.0)
    step = UpdateStep(model, still, device, check.precision, check.compile, math.inf, reduce=keep)
    steps = {"launched": [step.uncaptured()]}
    if check.compile and device.type == "cuda":
        steps["replayed"] = [step, step]  # its first update is launched, the next captures graphs
    truth, eager = (Execution(**_TRUTH).decoder(side.model, device) for _ in range(2))
    truth.double()
    eager.initialise(seed=0)
    initial = {name: tensor.clone() for name, tensor in eager.state_dict().items()}
    drawn: dict[tuple[str, str, int], list[Tensor]] = {}
    for seed in range(check.gradient_draws):
        _draw_weights(eager, initial, seed)
        for each in (truth, model):
            each.load_state_dict(eager.state_dict())
        tokens = _draw_tokens(side, seed, device)
        # In FP64 one batch is as good as several.
        true = _eager_gradients(truth, tokens.flatten(0, 1)[None], "fp64")
        yardstick = _eager_gradients(eager, tokens, check.precision)
        batches = [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in tokens]
        for update, runs in steps.items():
            for run in runs:
                run(batches, tokens[..., 1:].numel(), learning_rate=0.0)
            for name, t in true.items():
                each = moments(kept[name], yardstick[name], t)
                drawn.setdefault((name, update, t.numel()), []).append(each)
    used = sorted({MIXERS[letter] for letter in side.model.layout})
    known = {n: getattr(side, n) for n in ("variant", "micro", "accumulation")} | {
        "scale": scale,
        "draws": check.gradient_draws,
        "layout": side.model.layout,
        "width": side.model.head_dim,
        "length": side.context,
        "backends": [f"{operator}: {side.backends.get(operator)}" for operator in used],
        "precision": check.precision,
        "compiled": check.compile,
    }
    for (name, update, elements), each in drawn.items():
        where = {"parameter": name, "elements": elements, "update": update}
        for row in gradient_errors(torch.stack(each).cpu(), elements, check.precision):
            yield known | where | row


def gradients(check: Check, out: Path) -> None:
    """Check the gradient of every parameter of the campaign's training step against FP64.

    A compiler can lose or mis-scale a gradient without an error, and training would go on. The
    step is the campaign's: its loss, compilation, precision and backends. Raises RunError where a
    gradient is wrong, with every row written and a line on each failing parameter on stderr.
    """
    rows: list[dict] = []
    with claim(check.device) as device:
        with Progress("check gradients", len(check.gradients), "variants") as progress:
            for side, scale in zip(check.gradients, check.gradient_scales, strict=True):
                rows += gradient_rows(side, scale, check, device)
                # No variant lends another compiled code or the memory of its graphs.
                torch.compiler.reset()
                gc.collect()
                progress.advance(1, side.variant)
        _write(check, out, "gradients", rows, device)
    failed: dict[str, dict] = {}
    for row in rows:
        if not row["error"] <= row["allowed"]:
            failed.setdefault("{variant} {parameter}".format_map(row), row)
    for name, row in failed.items():
        said = "the {measure} error of its gradient is {error:.2e} in the {update} update, where "
        said = (said + "{allowed:.2e} is allowed").format_map(row)
        print(f"{name}: {said}", file=sys.stderr)
    if failed:
        others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise RunError(
            f"the gradient of {next(iter(failed))}{others} is wrong with PyTorch "
            f"{torch.__version__}; {out} has every error: train nothing, use the pinned versions, "
            "or `compile: false` in config.yaml where the campaign compiles"
        )
