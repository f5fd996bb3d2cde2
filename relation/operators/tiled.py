"""FlashRelation in plain PyTorch: Full Relation by tiles, never a T x T matrix.

Forward is the historical Exchange scan (m, l, z) of Appendix A.3, where l is `normalizer`; backward
is written by hand from the credit decomposition of Appendix A.1. It is the CPU's FlashRelation.
"""

import math
from collections.abc import Iterator

import torch
from torch.autograd.function import once_differentiable

from relation.operators.checks import check_lambda, check_relation_inputs, without_autocast

TILE = 128


def _tiles(length: int) -> Iterator[tuple[slice, slice]]:
    """Pairs (rows, columns) of tiles that hold some j < i."""
    for start in range(0, length, TILE):
        rows = slice(start, min(start + TILE, length))
        for first in range(0, rows.stop, TILE):
            yield rows, slice(first, min(first + TILE, rows.stop))


def _mask_present(U: torch.Tensor, rows: slice, columns: slice, value: float) -> torch.Tensor:
    """Overwrite the entries j >= i of a tile on the diagonal; tiles below it pass unchanged."""
    if rows != columns:
        return U
    present = torch.ones(U.shape[-2:], dtype=torch.bool, device=U.device).triu()
    return U.masked_fill_(present, value)


class _TiledRelation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p1, p2, info, lam, tau, transport_self):
        wide = torch.promote_types(p1.dtype, torch.float32)
        scale = 1 / math.sqrt(p1.shape[-1])
        q, k, v = p1.to(wide), p2.to(wide), info.to(wide)
        length, tiny = q.shape[-2], torch.finfo(wide).tiny

        zbar = torch.zeros_like(v)
        log_normalizer = q.new_full(q.shape[:-1], -torch.inf)
        for start in range(0, length, TILE):
            rows = slice(start, min(start + TILE, length))
            m = q.new_full((*q.shape[:2], rows.stop - rows.start), -torch.inf)
            normalizer = torch.zeros_like(m)
            z = torch.zeros_like(v[..., rows, :])
            for first in range(0, rows.stop, TILE):
                columns = slice(first, min(first + TILE, rows.stop))
                U = (q[..., rows, :] * scale) @ k[..., columns, :].transpose(-1, -2)
                E = _mask_present(torch.nn.functional.silu(U), rows, columns, -torch.inf)
                m_new = torch.maximum(m, E.amax(-1))
                # The first row of the sequence has no history and keeps m = -inf.
                anchor = m_new.masked_fill(m_new == -torch.inf, 0)
                weight = E.sub_(anchor[..., None]).exp_()
                kept = (m - anchor).exp()
                normalizer = kept * normalizer + weight.sum(-1)
                z = kept[..., None] * z + weight @ v[..., columns, :]
                m = m_new
            zbar[..., rows, :] = z / normalizer.clamp(min=tiny)[..., None]
            log_normalizer[..., rows] = m + normalizer.log()

        log_i = torch.arange(1, length + 1, device=q.device, dtype=wide).log()
        S = torch.sigmoid((q * k).sum(-1) * (scale / tau))
        g = torch.sigmoid(log_normalizer - lam.to(wide) * log_i - S)
        y = g[..., None] * zbar
        if transport_self:
            y = y + (1 - g)[..., None] * v
        ctx.save_for_backward(p1, p2, info, lam, zbar, log_normalizer, g, S)
        ctx.tau, ctx.transport_self = tau, transport_self
        return y.to(info.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        p1, p2, info, lam, zbar, log_normalizer, g, S = ctx.saved_tensors
        wide = zbar.dtype
        scale = 1 / math.sqrt(p1.shape[-1])
        q, k, v, G = p1.to(wide), p2.to(wide), info.to(wide), dy.to(wide)
        length = q.shape[-2]

        displacement = zbar - v if ctx.transport_self else zbar
        dA = g * (1 - g) * (G * displacement).sum(-1)
        log_i = torch.arange(1, length + 1, device=q.device, dtype=wide).log()
        dlam = -(dA * log_i).sum()

        # Self: dL/dS = -dL/dA, through S = sigma(U_ii / tau) to both coordinates of token i.
        dU_self = (-dA * S * (1 - S) * (scale / ctx.tau))[..., None]
        dq, dk = dU_self * k, dU_self * q
        dv = (1 - g)[..., None] * G if ctx.transport_self else torch.zeros_like(v)

        # dL/dE_ij = pi_ij (g_i G_i.I_j - offset_i) with offset_i = g_i G_i.zbar_i - dL/dA_i.
        gG = g[..., None] * G
        offset = (gG * zbar).sum(-1) - dA
        finite = log_normalizer.masked_fill(log_normalizer == -torch.inf, 0)
        for rows, columns in _tiles(length):
            q_rows, k_columns = q[..., rows, :] * scale, k[..., columns, :]
            U = q_rows @ k_columns.transpose(-1, -2)
            sigma = torch.sigmoid(U)
            E = U.mul_(sigma)
            pi = _mask_present((E - finite[..., rows, None]).exp_(), rows, columns, 0.0)
            dv[..., columns, :] += pi.transpose(-1, -2) @ gG[..., rows, :]
            dE = gG[..., rows, :] @ v[..., columns, :].transpose(-1, -2)
            dE.sub_(offset[..., rows, None]).mul_(pi)
            # SiLU'(U) = sigma + U sigma (1 - sigma), and E = U sigma.
            dU = dE.mul_(E.sub_(E * sigma).add_(sigma))
            dq[..., rows, :] += (dU @ k_columns) * scale
            dk[..., columns, :] += dU.transpose(-1, -2) @ q_rows
        return (
            dq.to(p1.dtype),
            dk.to(p2.dtype),
            dv.to(info.dtype),
            dlam.to(lam.dtype).reshape(lam.shape),
            None,
            None,
        )


def tiled_relation(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    lam: torch.Tensor,
    tau: float = 2.0,
    *,
    transport_self: bool = True,
) -> torch.Tensor:
    """Full Relation by tiles (Section 5.1): the arguments, result and errors of `full_relation`.

    Memory beyond inputs and outputs is linear in T. Accumulates in FP32 (FP64 for FP64 inputs).
    """
    check_relation_inputs(p1, p2, info, tau, lam)
    check_lambda(lam)
    with without_autocast(p1):
        return _TiledRelation.apply(p1, p2, info, lam, tau, transport_self)
