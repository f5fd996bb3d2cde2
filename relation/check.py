"""Check operators, the paper's identities and a training step's gradients against FP64.

The yardstick is the error of the definition in the same precision. An operator or a gradient may
have twice that error plus a part of the truth's size: 1e-3 in 16 bits, 1e-5 in FP32, 1e-12 in FP64.

`operators` checks a campaign's backends of Full and Linear Relation. `gradients` checks every
parameter's gradient in its training step, without a mask of documents. Both use `deviations`.
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
from relation.variants import OPERATORS, ModelConfig

Operator = Callable[..., Any]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
SLACK = {torch.bfloat16: 1e-3, torch.float32: 1e-5, torch.float64: 1e-12}
# BF16 rounds a flow value by up to 2^-9 of it; the sums of a row and of a score add to that. Mixing
# rounds an entry once: squared lengths are off by 2^-8, entries mixed back by 3 * 2^-9.
_IDENTITY_SLACK = {"bf16": 2.0**-7, "fp32": 1e-5, "fp64": 1e-12}
# H, T and D of these checks. Unit vectors show the flow and the mixing, so `identity` needs D = T
# and `mixing` needs T = H. The recurrence's T is three chunks of the Triton kernel plus 8 tokens.
_SIZES = {
    "identity": (2, 64, 64),
    "mixing": (8, 8, 1),
    "recurrence": (2, 200, 32),
    "history": (2, 136, 32),
}
_TO_THE_BIT = "no output reads a later token"
_FORGOTTEN = (0.01, 10.0)  # largest -g per token: head 0 keeps nearly all, head 1 little
_FEWEST_FOR_LARGEST = 16  # gradients with fewer elements: RMS and scale only
_STANDARD_ERRORS = 4  # of a scale error; chance alone exceeds four once in 16,000
# Half of the 2% error that must be found; noise of the faulty gradient may hide the other half.
_LARGEST_SCALE_ERROR = 0.01


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of lambda, angles and retention for states of `dtype`: at least FP32."""
    return torch.promote_types(dtype, torch.float32)


def deviations(
    draws: Iterable[dict[Any, tuple[Tensor, Tensor, Tensor]]],
    dtype: torch.dtype,
    scales: bool = False,
) -> Iterator[dict]:
    """Rows of error, yardstick and allowed error: RMS and largest of each result over all draws.

    draws: by name, a result, the definition's result in `dtype` and the one in FP64, the truth.
    scales: add rows of the scale error abs(<g, t> / <t, t> - 1) of result g and truth t over all
    draws. BF16's noise is 1 to 4% of a gradient's RMS, so the RMS does not show a scale error of
    2%. In the product, noise that does not follow the truth averages out. A scale error may be
    twice the yardstick's plus the slack plus four standard errors (the larger of result and
    yardstick), but at most 1%, half of the error that must be found.
    """
    drawn: dict[tuple[Any, int], list[Tensor]] = {}
    for results in draws:
        for name, (result, yardstick, truth) in results.items():
            x = torch.stack((result.double() - truth, yardstick.double() - truth, truth.double()))
            x = x.view(3, -1)  # (3, numbers): errors of result and yardstick, and the truth
            moments = torch.stack((x.square().sum(1), x.abs().amax(1), x @ x[2]), dim=1)
            drawn.setdefault((name, truth.numel()), []).append(moments)  # (3, 3)
    for (name, elements), per_draw in drawn.items():
        squares, largest, products = torch.stack(per_draw).cpu().unbind(-1)  # (draws, 3) each
        sizes = {"RMS": (squares.mean(0) / elements).sqrt()}
        if elements >= _FEWEST_FOR_LARGEST or not scales:
            sizes["largest"] = largest.amax(0)
        for measure, values in sizes.items():
            error, yardstick, truth = values.tolist()
            row = {"name": name, "measure": measure, "error": error, "yardstick": yardstick}
            yield row | {"allowed": 2 * yardstick + SLACK[dtype] * truth}
        if scales:
            power = products[:, 2].sum()  # of the truth
            error, yardstick = (products[:, :2].sum(0).abs() / power).tolist()
            noise = (products[:, :2].square().sum(0).amax().sqrt() / power).item()
            allowed = 2 * yardstick + SLACK[dtype] + _STANDARD_ERRORS * noise
            row = {"name": name, "measure": "scale", "error": error, "yardstick": yardstick}
            yield row | {"allowed": min(allowed, _LARGEST_SCALE_ERROR)}


# Operators.


def _results(
    form: Operator, inputs: Sequence[Tensor], grad_outputs: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """An operator's outputs, then the gradients of its three states of `dtype` and parameter."""
    dtypes = (dtype, dtype, dtype, _wide(dtype))
    leaves = [x.to(d, copy=True).requires_grad_() for x, d in zip(inputs, dtypes, strict=True)]
    outputs = form(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    cast_grads = [dy.to(y.dtype) for dy, y in zip(grad_outputs, outputs, strict=True)]
    return [x.detach() for x in (*outputs, *torch.autograd.grad(outputs, leaves, cast_grads))]


def exactness(
    operator: Operator, shape: Sequence[int], dtype: torch.dtype, device: torch.device, draws: int
) -> Iterator[dict]:
    """`deviations` of Full Relation's output and gradients from its definition (Section 3.1).

    operator: takes p1, p2, info (1, H, T, D) in `dtype` and lambda; shape: H, T and D.
    """
    generator = torch.Generator(device).manual_seed(1)
    heads, length, width = shape
    names = ("Y", "dp1", "dp2", "dinfo", "dlam")

    def draw() -> dict[str, tuple[Tensor, ...]]:
        # Stored (B, T, H, D), as in a model.
        stored = torch.randn(4, 1, length, heads, width, device=device, generator=generator)
        *states, dy = stored.to(dtype).transpose(2, 3)
        inputs = (*states, torch.tensor(ModelConfig.lambda_init, device=device))
        # This fills new memory with NaN. Otherwise it could hold an earlier launch's right results.
        with deterministic_algorithms(True):
            results = _results(operator, inputs, (dy,), dtype)
        yardstick = _results(full_relation, inputs, (dy,), dtype)
        truth = _results(full_relation, inputs, (dy,), torch.float64)
        return dict(zip(names, zip(results, yardstick, truth, strict=True), strict=True))

    return deviations((draw() for _ in range(draws)), dtype)


def _draw(check: str, seed: int, device: torch.device, *stacked: int) -> Tensor:
    """Random states of a check's size, (..., 1, H, T, D) in FP32."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(*stacked, 1, *_SIZES[check], device=device, generator=generator)


def exchange_gate(p1: Tensor, p2: Tensor, lam: Tensor) -> Tensor:
    """The exchange gate g (B, H, T) of Section 4.2, computed from its two levels in FP64."""
    U = scores(p1.double(), p2.double())
    T = U.shape[-1]
    S = torch.sigmoid(U.diagonal(dim1=-2, dim2=-1) / ModelConfig.tau)
    history = torch.ones(T, T, dtype=torch.bool, device=U.device).tril(-1)
    E = F.silu(U).masked_fill(~history, -torch.inf)
    i = torch.arange(1, T + 1, dtype=U.dtype, device=U.device)
    return torch.sigmoid(E.logsumexp(-1) - lam.double() * i.log() - S)


def identity_errors(operator: Operator, dtype: torch.dtype, device: torch.device) -> dict:
    """The largest error of three identities of Full Relation (Sections 4.2, 4.3, Appendix A.1.8).

    operator: takes p1, p2, info and lambda. With unit vectors as info its output is the flow. The
    gate is that of `exchange_gate`.
    """
    p1, p2, info = _draw("identity", 2, device, 3).to(dtype)
    unit = torch.eye(info.shape[-1], dtype=dtype, device=device).expand_as(info).contiguous()
    lambdas = torch.tensor([ModelConfig.lambda_init, -1.0], dtype=_wide(dtype), device=device)
    flows = [operator(p1, p2, unit, lam).double() for lam in lambdas]
    exchange = [flow.tril(-1)[:, :, 1:] for flow in flows]
    allocations = [x / x.sum(-1, keepdim=True) for x in exchange]
    diagonal = flows[0].diagonal(dim1=-2, dim2=-1)
    first_token = (operator(p1, p2, info, lambdas[0]) - info)[:, :, 0]
    errors = {
        "F_ii + g_i = 1": diagonal + exchange_gate(p1, p2, lambdas[0]) - 1,
        "the count correction leaves the allocation": allocations[0] - allocations[1],
        "the first token's output is its information": first_token,
    }
    return {name: error.abs().max().item() for name, error in errors.items()}


def mixing_errors(mix: Operator, dtype: torch.dtype, device: torch.device) -> dict:
    """The largest deviations of head mixing from orthogonality, in both pairings (Appendix A.2).

    mix: takes info (1, H, T, D) in `dtype`, angles (H/2,) and the layer's index. Here token t has
    information only in head t, so the output is the mixing matrix M. M^T M must be the identity,
    and the transpose (the gradient) must undo M.
    """
    heads, unit = _SIZES["mixing"][0], torch.eye(_SIZES["mixing"][0], device=device)
    theta = torch.linspace(-3, 3, heads // 2, dtype=_wide(dtype), device=device)
    info = unit[None, ..., None].to(dtype).requires_grad_()
    largest = []
    for layer in (0, 1):
        mixed = mix(info, theta, layer)
        (undone,) = torch.autograd.grad(mixed, info, mixed.detach())
        M = mixed.detach().double()[0, :, :, 0]  # (H, H)
        residual = M.mT @ M - unit
        errors = (residual.diagonal(), residual, undone.double()[0, :, :, 0] - unit)
        largest.append(torch.stack([error.abs().max() for error in errors]))
    names = ("mixing keeps lengths", "mixing keeps inner products", "the transpose undoes mixing")
    # PyTorch's maximum keeps NaN, Python's can lose it.
    return dict(zip(names, torch.stack(largest).amax(0).tolist(), strict=True))


def expanded(p1: Tensor, p2: Tensor, info: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Linear Relation as the sum over history of Appendix A.4: y and the last state, in FP64.

    Token j's write reaches token t multiplied by D_t ... D_{j+1}, the exponential of a sum of g.
    """
    S = torch.sigmoid((p1 * p2).sum(-1, keepdim=True) / (ModelConfig.tau * p1.shape[-1] ** 0.5))
    read, write = S * F.normalize(p1, dim=-1), S * F.normalize(p2, dim=-1)
    cumulative = g.cumsum(2)
    log_retained = cumulative[:, :, :, None] - cumulative[:, :, None]  # (B, H, t, j, D)
    history = torch.ones(log_retained.shape[2:4], device=g.device).tril(-1).bool()[..., None]
    retained = log_retained.masked_fill(~history, -torch.inf).exp()
    # E_t = sum over j < t of (read_t . D_t ... D_{j+1} write_j) I_j; d: retained channels.
    exchange = torch.einsum("bhtd,bhtjd,bhjd,bhje->bhte", read, retained, write, info)
    remains = (cumulative[:, :, -1:] - cumulative).exp() * write
    return info + exchange, remains.mT @ info


def recurrence_errors(
    operator: Operator, dtype: torch.dtype, device: torch.device
) -> Iterator[dict]:
    """`deviations` of Linear Relation's outputs and gradients from the recurrence (Appendix A.4).

    operator: takes p1, p2, info (1, H, T, D) in `dtype` and g in at least FP32; returns y, state.
    """
    *states, g, dy, dstate = _draw("recurrence", 4, device, 6).to(dtype)
    g = -torch.tensor(_FORGOTTEN, device=device)[:, None, None] * g.float().sigmoid()
    inputs, dys = (*states, g), (dy, dstate[:, :, : dstate.shape[-1]])  # the state: (1, H, D, D)
    results = _results(operator, inputs, dys, dtype)
    yardstick = _results(linear_relation, inputs, dys, dtype)
    truth = _results(linear_relation, inputs, dys, torch.float64)
    names = ("Y", "C", "dp1", "dp2", "dinfo", "dg")
    draw = dict(zip(names, zip(results, yardstick, truth, strict=True), strict=True))
    return deviations([draw], dtype)


def history_errors(operator: Operator, states: Tensor, share: Tensor, parameter: Tensor) -> dict:
    """The largest errors of "Exchange reads only j < i" (Section 5.2, Appendix A.4), in two tests.

    operator: takes p1, p2, info (1, H, T, D) and `parameter`, lambda or g; states: (3, 1, H, T, D);
    share: weight of a token's own information in its output, without Exchange, (1, H, T).
    New states from token t on must leave earlier outputs equal to the bit. New information of token
    t must change its output by its share; that error is relative to the largest output or change.
    """

    def output(p1: Tensor, p2: Tensor, info: Tensor) -> Tensor:
        y = operator(p1, p2, info, parameter)
        return (y[0] if isinstance(y, tuple) else y).double()

    y, replacements = output(*states), states.flip(3).roll(1, 4)
    leaks, unexplained = [], []
    for t in range(1, states.shape[3], 3):  # reaches every position in tiles of up to 32
        later = torch.cat((states[:, :, :, :t], replacements[:, :, :, t:]), dim=3)
        leaks.append((output(*later) - y)[:, :, :t].abs().max())
        info = states[2].clone()
        info[:, :, t] = replacements[2, :, :, t]
        new_y, change = output(*states[:2], info), (info - states[2])[:, :, t].double()
        residual = (new_y - y)[:, :, t] - share[:, :, t, None] * change  # (1, H, D)
        scale = torch.stack([x.abs().max() for x in (y, new_y, change)]).max()
        unexplained.append(residual.abs().max() / scale)
    return {
        _TO_THE_BIT: torch.stack(leaks).max().item(),
        "Exchange does not read the token's own information": torch.stack(unexplained).max().item(),
    }


def _identity_rows(errors: dict[str, float], precision: str, title: str = "") -> Iterator[dict]:
    """Rows of the largest errors of identities, named `title` + name. They have no yardstick."""
    for name, error in errors.items():
        allowed = 0.0 if name == _TO_THE_BIT else _IDENTITY_SLACK[precision]
        row = {"name": title + name, "measure": "largest", "error": error, "yardstick": None}
        yield row | {"allowed": allowed}


def _identities(check: Check, full: Operator, device: torch.device) -> Iterator[tuple]:
    """Every check except exactness: its name, the operator, the precision, and its rows."""
    linear = get_backend("linear", check.linear, device).call
    backends = (check.backend, full, check.linear, linear, check.precision)
    definition = ("definition", full_relation, "definition", linear_relation, "fp64")
    for full_name, full_form, linear_name, linear_form, precision in (definition, backends):
        dtype = DTYPES[precision]
        lam = torch.tensor(ModelConfig.lambda_init, dtype=_wide(dtype), device=device)
        g = -0.1 * _draw("history", 6, device).sigmoid().to(_wide(dtype))
        states = _draw("history", 5, device, 3).to(dtype)
        share = 1 - exchange_gate(*states[:2], lam)
        errors = identity_errors(full_form, dtype, device)
        yield "identity", full_name, precision, _identity_rows(errors, precision)
        errors = history_errors(full_form, states, share, lam)
        yield "history", full_name, precision, _identity_rows(errors, precision, "Full Relation: ")
        errors = history_errors(linear_form, states, torch.ones_like(share), g)
        rows = _identity_rows(errors, precision, "Linear Relation: ")
        yield "history", linear_name, precision, rows
        errors = _identity_rows(mixing_errors(givens_mix, dtype, device), precision)
        yield "mixing", "definition", precision, errors
    chunked = get_backend("linear", "chunked").call
    exact = (("expanded", expanded, "fp64"), ("chunked", chunked, "fp64"))
    for title, form, precision in (*exact, (check.linear, linear, check.precision)):
        yield "recurrence", title, precision, recurrence_errors(form, DTYPES[precision], device)


def operators(check: Check, out: Path) -> None:
    """Check a campaign's backends of Full and Linear Relation; write one row per quantity.

    Too large an error is written too and raises nothing: the report judges it.
    """
    rows: list[dict] = []
    with claim(check.device) as device:
        operator = get_backend("full", check.backend, device).call
        columns = {"check": "exactness", "operator": check.backend, "precision": check.precision}
        dtype = DTYPES[check.precision]
        with Progress(f"check {check.backend}", len(check.shapes), "shapes") as progress:
            for size in check.shapes:
                # With T - 1 tokens the last tiles are masked.
                for length in dict.fromkeys((size["length"], max(1, size["length"] - 1))):
                    shape = (size["heads"], length, size["width"])
                    errors = exactness(operator, shape, dtype, device, check.draws)
                    size_columns = {**size, "length": length, "draws": check.draws}
                    rows += [columns | size_columns | error for error in errors]
                progress.advance(1, size["scale"])
        for kind, name, precision, errors in _identities(check, operator, device):
            columns = {"check": kind, "operator": name, "precision": precision, "scale": ""}
            columns |= zip(("heads", "length", "width"), _SIZES[kind], strict=True)
            rows += [columns | {"draws": 1} | error for error in errors]
    shared = records.key(check, "checks") | records.origin(check.hash, describe(device))
    records.write(out, "checks", rows, shared)


# Gradients. In FP64 the chunked form equals the recurrence up to rounding. It launches few kernels,
# while the recurrence launches several for every token.
_TRUTH = dict.fromkeys(OPERATORS.values(), "reference") | {"linear": "chunked"}
_GAIN, _SPREAD = 0.8, 0.3


@torch.no_grad()
def _draw_weights(model: Decoder, initial: dict[str, Tensor], seed: int) -> None:
    """Draw weights for which every parameter matters; initial: the initial weights by name.

    Matrices are normal with sd 0.8/sqrt(inputs), which gives scores of order 1. Angles (0 at the
    start), norm scales and retention are drawn around their initial values. Lambda is drawn around
    1: Exchange, a sum over i tokens divided by i^lambda, then weighs as much as Self.
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

    Token frequencies fall as 1 / rank, as those of words do. Gradients of lambda and angles then
    add up above BF16's noise. With uniform tokens they would cancel.
    """
    generator = torch.Generator().manual_seed(seed)
    vocabulary = side.model.vocab_size
    shape = (side.accumulation, side.micro, side.context + 1)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return ((vocabulary + 1) ** uniform).long().clamp(1, vocabulary).sub(1).to(device)


def _eager_gradients(model: Decoder, tokens: Tensor, precision: str) -> dict[str, Tensor]:
    """The gradient of the mean NLL by parameter, with PyTorch's cross-entropy in at least FP32."""
    model.zero_grad()
    for part in tokens:
        with autocast(part.device, precision):
            logits = model(part[:, :-1]).flatten(0, 1)
            logits, targets = logits.to(_wide(logits.dtype)), part[:, 1:].flatten()
            nll = F.cross_entropy(logits, targets, reduction="sum")
        (nll / tokens[..., 1:].numel()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def gradient_rows(side: Side, scale: str, check: Check, device: torch.device) -> Iterator[dict]:
    """Rows of kind `gradients` for one variant, without campaign and origin.

    They cover a step with launched kernels and, if the step uses CUDA graphs, a replayed one.
    """
    model = Decoder(side.model, Execution(**side.backends, compiled=check.compile), device=device)
    copies: dict[str, Tensor] = {}  # the step's gradients by parameter

    def copy(loss: Tensor) -> None:
        """Copy the gradients, after the last backward pass and before clipping."""
        for name, p in model.named_parameters():
            copies[name] = torch.zeros_like(p) if p.grad is None else p.grad.clone()

    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    step = UpdateStep(model, sgd, device, check.precision, check.compile, math.inf, reduce=copy)
    steps = {"launched": [step.uncaptured()]}
    if check.compile and device.type == "cuda":
        steps["replayed"] = [step, step]  # the first call launches, the next captures graphs
    truth, eager = (Decoder(side.model, Execution(**_TRUTH), device=device) for _ in range(2))
    truth.double()
    initial = {name: tensor.clone() for name, tensor in eager.state_dict().items()}

    def draw(seed: int) -> dict[tuple[str, str], tuple[Tensor, ...]]:
        """By parameter and update: the step's gradient, the yardstick and the truth."""
        _draw_weights(eager, initial, seed)
        for decoder in (truth, model):
            decoder.load_state_dict(eager.state_dict())
        tokens = _draw_tokens(side, seed, device)
        exact = _eager_gradients(truth, tokens.flatten(0, 1)[None], "fp64")  # as one micro-batch
        yardstick = _eager_gradients(eager, tokens, check.precision)
        batches = [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in tokens]
        results = {}
        for update, calls in steps.items():
            for call in calls:
                call(batches, tokens[..., 1:].numel(), learning_rate=0.0)
            results |= {(n, update): (copies[n], yardstick[n], t) for n, t in exact.items()}
        return results

    used = sorted({OPERATORS[letter] for letter in side.model.layout})
    columns = {
        "variant": side.variant, "scale": scale, "draws": check.gradient_draws,
        "length": side.context, "precision": check.precision, "compiled": check.compile,
        "backends": [f"{operator}: {side.backends.get(operator)}" for operator in used],
    }  # fmt: skip
    draws = (draw(seed) for seed in range(check.gradient_draws))
    for row in deviations(draws, DTYPES[check.precision], scales=True):
        name, update = row.pop("name")
        yield columns | {"parameter": name, "update": update} | row


def gradients(check: Check, out: Path) -> None:
    """Check the gradient of every parameter of the campaign's training step against FP64.

    A compiler bug can drop or mis-scale a gradient silently. The step has the campaign's loss,
    compilation, precision and backends. Prints wrong gradients, and then raises RunError.
    """
    out.unlink(missing_ok=True)  # an earlier check's record, which must not count if this one fails
    rows: list[dict] = []
    progress = Progress("check gradients", len(check.gradients), "variants")
    with claim(check.device) as device, progress:
        for side, scale in zip(check.gradients, check.gradient_scales, strict=True):
            rows += gradient_rows(side, scale, check, device)
            # The next variant must not reuse compiled code or hold the memory of these graphs.
            torch.compiler.reset()
            gc.collect()
            progress.advance(1, side.variant)
    shared = records.key(check, "gradients") | records.origin(check.hash, describe(device))
    wrong = [row for row in rows if not row["error"] <= row["allowed"]]
    # Under its own name this record would count as done in the next call of snakemake.
    records.write(out.with_stem(f"wrong-{out.stem}") if wrong else out, "gradients", rows, shared)
    for row in wrong:
        line = "{variant} {parameter}: {measure} error {error:.2e}, allowed {allowed:.2e}"
        print(line.format_map(row), file=sys.stderr)
    if wrong:
        raise RunError(
            f"the gradient of {wrong[0]['variant']} {wrong[0]['parameter']} is wrong, {len(wrong)} "
            f"errors above: do not train; a backend of the campaign or PyTorch {torch.__version__} "
            "computes it wrongly; try other backends, the pinned versions or `compile: false`"
        )
