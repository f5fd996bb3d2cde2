"""Linear Relation in plain PyTorch: the direct recurrence and its chunked form (Appendix A.4)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.errors import InputError
from relation.operators.checks import check_relation_inputs, without_autocast

CHUNK = 16


def _read_write(
    p1: Tensor, p2: Tensor, info: Tensor, log_retention: Tensor, tau: float, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Checked inputs as (read, write, information, g, C_0), FP32 at least.

    read is S p1-hat and write S p2-hat: Self stands on both sides of the recurrence.
    """
    check_relation_inputs(p1, p2, info, tau, log_retention)
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

    p1, p2, info: (B, H, T, D), any floating dtype; p1, p2 after RoPE and before normalisation.
    log_retention: g = log alpha <= 0, (B, H, T, D). state: C of the tokens before, (B, H, D, D)
    with the retained channel first and the information channel last, or None for C = 0.
    Returns y (B, H, T, D) in info's dtype and the final state (B, H, D, D), FP32 (FP64 for FP64).
    Raises InputError for unequal shapes, mixed devices or tau <= 0.
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


def chunked_linear_relation(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    log_retention: Tensor,
    tau: float = 2.0,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`linear_relation` by chunks: matrix products inside a chunk, the recurrence between chunks.

    Arguments, result and errors are those of `linear_relation`. With G the running sum of g inside
    a chunk, every exponent is G_t - G_j for j <= t, never positive, so nothing overflows however
    strong the retention.
    """
    read, write, information, g, C = _read_write(p1, p2, info, log_retention, tau, state)
    exchange = []
    with without_autocast(p1):
        for start in range(0, p1.shape[2], CHUNK):
            part = slice(start, start + CHUNK)
            r, w, v = read[:, :, part], write[:, :, part], information[:, :, part]
            G = g[:, :, part].cumsum(dim=2)
            since = G[:, :, :, None] - G[:, :, None, :]
            future = torch.ones(r.shape[2], r.shape[2], dtype=torch.bool, device=r.device).triu()
            decay = since.masked_fill(future[:, :, None], -torch.inf).exp()
            scores = torch.einsum("bhtd,bhjd,bhtjd->bhtj", r, w, decay)
            exchange.append(scores @ v + (r * G.exp()) @ C)
            end = G[:, :, -1:]
            C = end.exp().transpose(-1, -2) * C + (w * (end - G).exp()).transpose(-1, -2) @ v
    return (information + torch.cat(exchange, dim=2)).to(info.dtype), C
