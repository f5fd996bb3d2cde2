"""Linear Relation in plain PyTorch, three forms of one function (Section 5.2, Appendix A.4).

`linear_relation` is the recurrence, `expanded_linear_relation` the sum over historical tokens that
unrolls it, `chunked_linear_relation` that sum inside a chunk and the recurrence between chunks.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.errors import InputError
from relation.kernels.checks import check_floating, check_relation_inputs, without_autocast

CHUNK = 32  # a power of two


def _read_write(
    p1: Tensor, p2: Tensor, info: Tensor, log_retention: Tensor, tau: float, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Checked inputs as (read, write, information, g, C_0), FP32 at least.

    read is S p1-hat and write S p2-hat: Self stands on both sides of the recurrence.
    """
    given = {} if state is None else {"state": state}
    check_floating(log_retention=log_retention, **given)
    check_relation_inputs(p1, p2, info, tau, log_retention, *given.values())
    if log_retention.shape != p1.shape:
        raise InputError(
            f"log_retention has shape {tuple(log_retention.shape)}; give {tuple(p1.shape)}"
        )
    batch, heads, _, width = p1.shape
    if state is not None and state.shape != (batch, heads, width, width):
        raise InputError(
            f"state has shape {tuple(state.shape)}; give {(batch, heads, width, width)}"
        )
    wide = torch.promote_types(p1.dtype, torch.float32)
    p1, p2 = p1.to(wide), p2.to(wide)
    S = torch.sigmoid((p1 * p2).sum(-1, keepdim=True) / (tau * math.sqrt(width)))
    C = p1.new_zeros(batch, heads, width, width) if state is None else state.to(wide)
    read, write = S * F.normalize(p1, dim=-1), S * F.normalize(p2, dim=-1)
    return read, write, info.to(wide), log_retention.to(wide), C


def linear_relation(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    log_retention: Tensor,
    tau: float = 2.0,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Ask Self, Ask Others, Answer, Become Others, one token at a time (Section 5.2).

    p1, p2, info: (B, H, T, D), one floating dtype; p1, p2 after RoPE and before normalisation,
    which divides by the length or by 1e-12, the larger; info after Givens mixing. log_retention:
    g = log alpha <= 0, (B, H, T, D), any floating dtype; -inf forgets all. state: C of the tokens
    before, (B, H, D, D), any floating dtype, with the retained channel first and the information
    channel last, or None for C = 0. tau: the Self temperature. Returns y (B, H, T, D) in info's
    dtype and the final state (B, H, D, D), FP32 (FP64 for FP64 inputs), in which all sums are
    formed. Raises InputError for other or unequal shapes, an empty dimension, dtypes that are mixed
    or not floating, mixed devices, or a tau that is not positive and finite.
    """
    read, write, information, g, C = _read_write(p1, p2, info, log_retention, tau, state)
    alpha = g.exp()
    exchange = []
    with without_autocast(p1):
        for t in range(p1.shape[2]):
            retained = alpha[:, :, t, :, None] * C
            exchange.append((read[:, :, t, None, :] @ retained).squeeze(-2))
            C = torch.addcmul(retained, write[:, :, t, :, None], information[:, :, t, None, :])
    return (information + torch.stack(exchange, dim=2)).to(info.dtype), C


def _retention_to_end(g: Tensor) -> Tensor:
    """Row j is alpha_j ... alpha_T of g = log alpha (B, H, T, D): what C_{j-1} keeps until T."""
    return g.flip(2).cumsum(dim=2).flip(2).exp()


def expanded_linear_relation(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    log_retention: Tensor,
    tau: float = 2.0,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`linear_relation` as the sum over historical tokens of Appendix A.4, without a state.

    Arguments, result and errors are those of `linear_relation`. What token j wrote reaches token t
    through D_t ... D_{j+1}, and a given C_0 through D_t ... D_1. Each product is the exponential of
    a sum of g, so no exponent is positive. The cost is quadratic in T.
    """
    read, write, information, g, C_0 = _read_write(p1, p2, info, log_retention, tau, state)
    exchange = []
    with without_autocast(p1):
        for t in range(p1.shape[2]):
            retention = _retention_to_end(g[:, :, : t + 1])
            written = write[:, :, :t] * retention[:, :, 1:]
            weights = (written @ read[:, :, t, :, None]).transpose(-1, -2)
            from_start = (read[:, :, t] * retention[:, :, 0])[:, :, None]
            exchange.append(weights @ information[:, :, :t] + from_start @ C_0)
        # Past the last token nothing more is forgotten: one step with g = 0.
        retention = _retention_to_end(F.pad(g, (0, 0, 0, 1)))
        written = write * retention[:, :, 1:]
        C = retention[:, :, 0, :, None] * C_0 + written.transpose(-1, -2) @ information
    return (information + torch.cat(exchange, dim=2)).to(info.dtype), C


def _after(g: Tensor) -> Tensor:
    """Row j is g_{j+1} + ... + g_T of (..., T, D): what lies between token j and the end."""
    return F.pad(g[..., 1:, :].flip(-2).cumsum(-2).flip(-2), (0, 0, 0, 1))


def _within_chunks(read: Tensor, write: Tensor, information: Tensor, g: Tensor) -> Tensor:
    """Exchange of each token with those before it in its chunk; all (..., CHUNK, D).

    By halves: j and t lie in the two halves of one block of 2, 4, ... or CHUNK tokens, and
    g_{j+1} + ... + g_t is a sum up to that block's middle and one from there. Neither is positive,
    so their exponentials are factors of write and read, and matrix products do the rest. A
    difference of running sums from the chunk's start would be the same in exact arithmetic, but
    after a strong retention it has lost the digits of a weak one.
    """
    exchange = torch.zeros_like(information)
    half = 1
    while half < CHUNK:
        (_, r), (w, _), (v, _), (before, after) = (
            x.unflatten(-2, (-1, 2, half)).unbind(-3) for x in (read, write, information, g)
        )
        asked, kept = r * after.cumsum(-2).exp(), w * _after(before).exp()
        answer = (asked @ kept.transpose(-1, -2)) @ v
        # The first half of a block has nothing before it there.
        exchange = exchange + F.pad(answer, (0, 0, half, 0)).flatten(-3, -2)
        half *= 2
    return exchange


def chunked_linear_relation(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    log_retention: Tensor,
    tau: float = 2.0,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`linear_relation` by chunks: the expanded sum inside a chunk, the recurrence between chunks.

    Arguments, result and errors are those of `linear_relation`. Every exponent is a sum of g, never
    positive, so nothing overflows however strong the retention.
    """
    read, write, information, g, C = _read_write(p1, p2, info, log_retention, tau, state)
    T = p1.shape[2]
    with without_autocast(p1):
        # Past the last token nothing is asked or written, and with g = 0 nothing is forgotten.
        read, write, values, g = (
            F.pad(x, (0, 0, 0, -T % CHUNK)).unflatten(2, (-1, CHUNK))
            for x in (read, write, information, g)
        )
        written = (write * _after(g).exp()).transpose(-1, -2) @ values
        from_start = g.cumsum(-2).exp()
        before = []
        for n in range(g.shape[2]):
            before.append(C)
            C = torch.addcmul(written[:, :, n], from_start[:, :, n, -1, :, None], C)
        exchange = _within_chunks(read, write, values, g)
        exchange = exchange + (read * from_start) @ torch.stack(before, dim=2)
    return (information + exchange.flatten(2, 3)[:, :, :T]).to(info.dtype), C
