"""FlashRelation in plain PyTorch: Full Relation by tiles, never a T x T matrix.

Forward is the historical Exchange scan of Appendix A.3, with `normalizer` for its l; backward is
the credit decomposition of Appendix A.1.7, written by hand. It is the CPU's FlashRelation.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from relation.kernels.checks import check_lambda, check_relation_inputs, without_autocast

TILE = 128


def _tiles(end: int) -> Iterator[slice]:
    """Tokens 0 .. end - 1 in tiles."""
    for start in range(0, end, TILE):
        yield slice(start, min(start + TILE, end))


def _keep_history(tile: Tensor, rows: slice, columns: slice, absent: float) -> Tensor:
    """Overwrite a tile's entries j >= i, which only tiles on the diagonal have."""
    if rows != columns:
        return tile
    no_history = torch.ones(tile.shape[-2:], dtype=torch.bool, device=tile.device).triu()
    return tile.masked_fill_(no_history, absent)


def _scan_history(p1: Tensor, p2: Tensor, info: Tensor) -> tuple[Tensor, Tensor]:
    """L (B, H, T) and zbar (B, H, T, D): log-normaliser and mean information of the Exchange.

    Appendix A.3. The first token has no history: L = -inf and zbar = 0.
    """
    scale, tiny = 1 / math.sqrt(p1.shape[-1]), torch.finfo(p1.dtype).tiny
    L, zbar = p1.new_empty(p1.shape[:-1]), torch.empty_like(info)
    for rows in _tiles(p1.shape[-2]):
        p1_rows = p1[..., rows, :] * scale
        m = p1.new_full(p1_rows.shape[:-1], -torch.inf)
        normalizer, z = torch.zeros_like(m), torch.zeros_like(p1_rows)
        for columns in _tiles(rows.stop):
            U = p1_rows @ p2[..., columns, :].transpose(-1, -2)
            E = _keep_history(F.silu(U), rows, columns, -torch.inf)
            m_new = torch.maximum(m, E.amax(-1))
            # A row without history keeps m = -inf, and -inf - (-inf) is not a number.
            anchor = m_new.masked_fill(m_new.isneginf(), 0)
            weight = E.sub_(anchor[..., None]).exp_()
            kept = (m - anchor).exp()
            normalizer = kept * normalizer + weight.sum(-1)
            z = kept[..., None] * z + weight @ info[..., columns, :]
            m = m_new
        L[..., rows] = m + normalizer.log()
        zbar[..., rows, :] = z / normalizer.clamp(min=tiny)[..., None]
    return L, zbar


def _masses(gap: Tensor) -> tuple[Tensor, Tensor]:
    """g = sigma(A - S) and F_ii = sigma(S - A), both (B, H, T, 1), of the gap A - S (B, H, T).

    1 - g in place of F_ii would lose the digits of a small one.
    """
    return torch.sigmoid(gap)[..., None], torch.sigmoid(-gap)[..., None]


def _log_count(like: Tensor) -> Tensor:
    """log i of tokens i = 1 .. T, for a (B, H, T) tensor."""
    return torch.arange(1, like.shape[-1] + 1, device=like.device, dtype=like.dtype).log()


class _TiledRelation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p1, p2, info, lam, tau, transport_self):
        wide = torch.promote_types(p1.dtype, torch.float32)
        p1_wide, p2_wide, info_wide, lam_wide = (x.to(wide) for x in (p1, p2, info, lam))
        L, zbar = _scan_history(p1_wide, p2_wide, info_wide)
        S = torch.sigmoid((p1_wide * p2_wide).sum(-1) / (tau * math.sqrt(p1.shape[-1])))
        gap = L - lam_wide * _log_count(L) - S
        g, F_ii = _masses(gap)
        y = g * zbar + F_ii * info_wide if transport_self else g * zbar
        ctx.save_for_backward(p1, p2, info, lam, L, zbar, S, gap)
        ctx.tau, ctx.transport_self = tau, transport_self
        return y.to(info.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        *states, lam, L, zbar, S, gap = ctx.saved_tensors
        p1, p2, info, G = (x.to(zbar.dtype) for x in (*states, dy))
        scale = 1 / math.sqrt(p1.shape[-1])
        g, F_ii = _masses(gap)
        gG = g * G

        displacement = zbar - info if ctx.transport_self else zbar
        dA = (F_ii * gG * displacement).sum(-1)
        dlam = -(dA * _log_count(dA)).sum()

        # dL/dS_i = -dL/dA_i reaches both coordinates of token i through U_ii.
        dU_self = (-dA * S * (1 - S) * (scale / ctx.tau))[..., None]
        dp1, dp2 = dU_self * p2, dU_self * p1
        dinfo = F_ii * G if ctx.transport_self else torch.zeros_like(info)

        # dL/dE_ij = pi_ij (g_i G_i . I_j - offset_i) with offset_i = g_i G_i . zbar_i - dL/dA_i.
        offset = (gG * zbar).sum(-1) - dA
        L = L.masked_fill(L.isneginf(), 0)
        for rows in _tiles(p1.shape[-2]):
            p1_rows, gG_rows = p1[..., rows, :] * scale, gG[..., rows, :]
            for columns in _tiles(rows.stop):
                p2_columns = p2[..., columns, :]
                U = p1_rows @ p2_columns.transpose(-1, -2)
                sigma = torch.sigmoid(U)
                E = U.mul_(sigma)
                pi = _keep_history((E - L[..., rows, None]).exp_(), rows, columns, 0.0)
                dinfo[..., columns, :] += pi.transpose(-1, -2) @ gG_rows
                dE = gG_rows @ info[..., columns, :].transpose(-1, -2)
                dE.sub_(offset[..., rows, None]).mul_(pi)
                # SiLU'(U) = sigma + U sigma (1 - sigma), and E = U sigma.
                dU = dE.mul_(E.sub_(E * sigma).add_(sigma))
                dp1[..., rows, :] += (dU @ p2_columns) * scale
                dp2[..., columns, :] += dU.transpose(-1, -2) @ p1_rows
        dlam = dlam.to(lam.dtype).reshape(lam.shape)
        return (*(x.to(dy.dtype) for x in (dp1, dp2, dinfo)), dlam, None, None)


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

    Memory beyond inputs and outputs is linear in T. Scores and sums are FP32 (FP64 for FP64
    inputs); differentiable once in p1, p2, info and lam.
    """
    check_lambda(lam)
    check_relation_inputs(p1, p2, info, tau, lam)
    with without_autocast(p1):
        return _TiledRelation.apply(p1, p2, info, lam, tau, transport_self)
