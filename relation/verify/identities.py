"""The paper's identities, as errors of an operator on random states."""

from collections.abc import Callable

import torch
from torch import Tensor

from relation.ops import linear_relation
from relation.ops.scores import scores
from relation.variants import ModelConfig
from relation.verify.exact import Deviation

OTHER_LAMBDA = -1.0
# By check. The flow itself is what the operator transports of the unit vectors, for which D must be
# T. The recurrence's T is three chunks of the Triton kernel and a ragged one.
SIZES = {
    "identity": {"heads": 2, "length": 64, "width": 64},
    "mixing": {"heads": 8, "length": 16, "width": 32},
    "recurrence": {"heads": 2, "length": 200, "width": 32},
    "history": {"heads": 2, "length": 136, "width": 32},
}
# What holds to the last bit.
BITWISE = ("no output reads a later token",)
# The most that one token forgets: the first head keeps nearly all, the second nearly nothing.
_FORGOTTEN = (0.01, 10.0)

Operator = Callable[..., Tensor]


def parameter_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of lambda, angles and retention beside states of `dtype`: FP32 at least."""
    return torch.promote_types(dtype, torch.float32)


def _draw(check: str, seed: int, device: torch.device, *stacked: int) -> Tensor:
    """Random states of a check's size, (..., 1, H, T, D) in FP32."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(*stacked, 1, *SIZES[check].values(), device=device, generator=generator)


def exchange_gate(p1: Tensor, p2: Tensor, lam: Tensor) -> Tensor:
    """The exchange gate g (B, H, T) of Section 4.2, by its two levels, in FP64."""
    U = scores(p1.double(), p2.double())
    T = U.shape[-1]
    S = torch.sigmoid(U.diagonal(dim1=-2, dim2=-1) / ModelConfig.tau)
    history = torch.ones(T, T, dtype=torch.bool, device=U.device).tril(-1)
    E = torch.nn.functional.silu(U).masked_fill(~history, -torch.inf)
    i = torch.arange(1, T + 1, dtype=U.dtype, device=U.device)
    return torch.sigmoid(E.logsumexp(-1) - lam.double() * i.log() - S)


def identity_errors(operator: Operator, dtype: torch.dtype, device: torch.device) -> dict:
    """The largest error of three identities of Full Relation (Sections 4.2, 4.3, Appendix A.1.8).

    operator: Full Relation of p1, p2, info (1, H, T, D) in `dtype` and lam. The flow is read off
    what it transports of unit vectors, the gate from the two levels in FP64.
    """
    p1, p2, info = _draw("identity", 2, device, 3).to(dtype)
    unit = torch.eye(info.shape[-1], dtype=dtype, device=device).expand_as(info).contiguous()
    lams = [
        torch.tensor(value, dtype=parameter_dtype(dtype), device=device)
        for value in (ModelConfig.lambda_init, OTHER_LAMBDA)
    ]
    flow, other = (operator(p1, p2, unit, lam).double() for lam in lams)
    own = flow.diagonal(dim1=-2, dim2=-1)
    allocations = []
    for found in (flow, other):
        exchange = found.tril(-1)[:, :, 1:]
        allocations.append(exchange / exchange.sum(-1, keepdim=True))
    y = operator(p1, p2, info, lams[0])
    errors = {
        "F_ii + g_i = 1": own + exchange_gate(p1, p2, lams[0]) - 1,
        "the count correction leaves the allocation": allocations[0] - allocations[1],
        "the first token's output is its information": (y - info)[:, :, 0],
    }
    return {name: error.abs().max().item() for name, error in errors.items()}


def mixing_errors(mix: Operator, dtype: torch.dtype, device: torch.device) -> dict:
    """How far the mixing of heads is from orthogonal, at most, under both pairings (Appendix A.2).

    mix: of info (1, H, T, D) in `dtype`, angles (H/2,) and the layer's index. Errors are relative:
    of lengths and inner products, by pair of heads, to the lengths; of what the transpose (the
    gradient) gives back, to the largest entry.
    """
    info, other = _draw("mixing", 3, device, 2).to(dtype)
    pairs = info.shape[1] // 2
    theta = torch.linspace(-3, 3, pairs, dtype=parameter_dtype(dtype), device=device)
    info.requires_grad_()
    found: dict[str, list[Tensor]] = {}
    for layer in (0, 1):
        first, second = mix(info, theta, layer), mix(other, theta, layer)
        (back,) = torch.autograd.grad(first, info, first.detach())

        def inner(x: Tensor, y: Tensor, shift: int = layer) -> Tensor:
            by_pair = (z.detach().double().roll(-shift, 1).unflatten(1, (-1, 2)) for z in (x, y))
            return torch.mul(*by_pair).sum((2, 4))

        lengths = inner(info, info)
        product = inner(first, second) - inner(info, other)
        returned = (back - info).detach().double()
        for name, error in (
            ("mixing keeps lengths", inner(first, first) / lengths - 1),
            ("mixing keeps inner products", product / (lengths * inner(other, other)).sqrt()),
            ("the transpose undoes mixing", returned / info.detach().double().abs().max()),
        ):
            found.setdefault(name, []).append(error.abs().max())
    return {name: torch.stack(errors).max().item() for name, errors in found.items()}


def recurrence_deviations(
    operator: Callable[..., tuple[Tensor, Tensor]], dtype: torch.dtype, device: torch.device
) -> list[Deviation]:
    """How far a form of Linear Relation lies off the recurrence in FP64 (Appendix A.4).

    operator: of p1, p2, info (1, H, T, D) in `dtype` and g, FP32 at least; returns y and the state.
    Both and every gradient may be off by twice what the recurrence in `dtype` is, plus 1e-3 (FP32:
    1e-5, FP64: 1e-12) of the truth, in RMS and at the largest.
    """
    *states, g, dy, dstate = _draw("recurrence", 4, device, 6).to(dtype)
    g = -torch.tensor(_FORGOTTEN, device=device)[:, None, None] * g.float().sigmoid()
    dstate = dstate[:, :, : dstate.shape[-1]]

    def results(form: Callable[..., tuple[Tensor, Tensor]], kind: torch.dtype) -> list[Tensor]:
        leaves = [*(x.to(kind, copy=True) for x in states), g.to(parameter_dtype(kind), copy=True)]
        leaves = [x.requires_grad_() for x in leaves]
        found = form(*leaves)
        wanted = [d.to(x.dtype) for d, x in zip((dy, dstate), found, strict=True)]
        gradients = torch.autograd.grad(found, leaves, wanted)
        return [x.detach().double() for x in (*found, *gradients)]

    ours = results(operator, dtype)
    plain, truths = (results(linear_relation, kind) for kind in (dtype, torch.float64))
    deviations = []
    for name, x, rounded, truth in zip(
        ("Y", "C", "dp1", "dp2", "dinfo", "dg"), ours, plain, truths, strict=True
    ):
        for measure, size in (
            ("RMS", lambda e: e.square().mean().sqrt().item()),
            ("largest", lambda e: e.abs().max().item()),
        ):
            sizes = size(x - truth), size(rounded - truth), size(truth)
            deviations.append(Deviation(name, measure, *sizes, dtype))
    return deviations


def history_states(dtype: torch.dtype, device: torch.device) -> Tensor:
    """p1, p2 and info for `history_errors`, (3, 1, 2, T, D)."""
    return _draw("history", 5, device, 3).to(dtype)


def history_retention(dtype: torch.dtype, device: torch.device) -> Tensor:
    """g of Linear Relation beside `history_states`, (1, 2, T, D), FP32 at least."""
    return -0.1 * _draw("history", 6, device).sigmoid().to(parameter_dtype(dtype))


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
    later = (token >= cuts[:, None])[:, None, :, None]
    y = operator(*before)
    changed = operator(*torch.where(later, other, before))
    leaked = torch.where(later, 0, changed - y)

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
    return {
        BITWISE[0]: leaked.abs().max().item(),
        "Exchange does not read the token's own information": (
            unexplained.abs().max() / scale
        ).item(),
    }
